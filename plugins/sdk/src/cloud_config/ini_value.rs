//! What an INI file holds, and how serde reads it: every value is text until the type asks for something else.

use std::fmt;

use serde::de::value::{MapDeserializer, SeqDeserializer, StrDeserializer};
use serde::de::{self, Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

/// What is wrong with an INI file.
#[derive(Debug, thiserror::Error)]
pub enum IniError {
    /// A header that is none.
    #[error("line {line}: a section is written [name] or [name \"other\"]")]
    Header {
        /// From 1.
        line: u64,
    },
    /// A key before the first section.
    #[error("line {line}: this key belongs to no section: write [Global] above it")]
    OutsideSection {
        /// From 1.
        line: u64,
    },
    /// A line that is neither section, key nor comment.
    #[error("line {line}: this is no key = value")]
    Key {
        /// From 1.
        line: u64,
    },
    /// An open quote.
    #[error("line {line}: the quotes are not closed")]
    Quote {
        /// From 1.
        line: u64,
    },
    /// An unknown escape.
    #[error("line {line}: only \\\\, \\\", \\n and \\t may follow a backslash")]
    Escape {
        /// From 1.
        line: u64,
    },
    /// A name is used as a key and as a section.
    #[error("line {line}: {name} is a key and a section at once")]
    Clash {
        /// From 1.
        line: u64,
        /// The name.
        name: String,
    },
    /// The text does not fit the field's type.
    #[error("line {line}: {key} must be {wanted}")]
    Type {
        /// From 1.
        line: u64,
        /// The key.
        key: String,
        /// What the field takes.
        wanted: &'static str,
    },
    /// What the type of the configuration says: a field is missing or unknown.
    #[error("line {line}, section {section:?}: {message}")]
    Field {
        /// Where the section begins; 0 for the file.
        line: u64,
        /// The section; empty for the file.
        section: String,
        /// What is wrong.
        message: String,
    },
}

/// One assignment.
#[derive(Clone, Debug)]
pub(super) struct Value {
    pub(super) line: u64,
    pub(super) key: String,
    pub(super) text: String,
}

/// A section, one value, or all values of one key.
#[derive(Debug)]
pub(super) enum Node {
    Section {
        line: u64,
        name: String,
        entries: Vec<(String, Self)>,
    },
    Values(Vec<Self>),
    One(Value),
}

impl Node {
    pub(super) fn section(line: u64, name: &str) -> Self {
        Self::Section {
            line,
            name: name.to_owned(),
            entries: Vec::new(),
        }
    }

    /// The section `name` in this one, made if missing.
    pub(super) fn enter(&mut self, line: u64, name: &str) -> Result<&mut Self, IniError> {
        let clash = || IniError::Clash {
            line,
            name: name.to_owned(),
        };
        let node = self.entry(name, || Self::section(line, name)).ok_or_else(clash)?;
        if matches!(node, Self::Section { .. }) {
            Ok(node)
        } else {
            Err(clash())
        }
    }

    /// Adds a value to `key`.
    pub(super) fn add(&mut self, line: u64, key: &str, value: Value) -> Result<(), IniError> {
        match self.entry(key, || Self::Values(Vec::new())) {
            Some(Self::Values(values)) => {
                values.push(Self::One(value));
                Ok(())
            }
            _ => Err(IniError::Clash {
                line,
                name: key.to_owned(),
            }),
        }
    }

    fn entry(&mut self, name: &str, make: impl FnOnce() -> Self) -> Option<&mut Self> {
        let Self::Section { entries, .. } = self else {
            return None;
        };
        let known = entries.iter().position(|(known, _)| same_name(known, name));
        let at = known.unwrap_or(entries.len());
        if known.is_none() {
            entries.push((name.to_owned(), make()));
        }
        entries.get_mut(at).map(|(_, node)| node)
    }

    /// Serde's errors know no place; the section is the closest.
    fn at(&self, error: IniError) -> IniError {
        match (self, error) {
            (
                Self::Section { line, name, .. },
                IniError::Field {
                    line: 0,
                    section,
                    message,
                },
            ) if section.is_empty() => IniError::Field {
                line: *line,
                section: name.clone(),
                message,
            },
            (_, error) => error,
        }
    }

    fn last(&self) -> Option<&Value> {
        match self {
            Self::Values(values) => values.last().and_then(Self::last),
            Self::One(value) => Some(value),
            Self::Section { .. } => None,
        }
    }

    /// The last value is the one that counts, as in the Go library.
    fn parsed<T: std::str::FromStr>(&self, wanted: &'static str) -> Result<T, IniError> {
        let value = self.last().ok_or_else(|| self.misfit(wanted))?;
        value.text.parse().map_err(|_| self.misfit(wanted))
    }

    /// Names the place, never the value.
    fn misfit(&self, wanted: &'static str) -> IniError {
        let (line, key) = match self {
            Self::Section { line, name, .. } => (*line, name.clone()),
            Self::Values(_) | Self::One(_) => self
                .last()
                .map_or_else(Default::default, |value| (value.line, value.key.clone())),
        };
        IniError::Type { line, key, wanted }
    }
}

/// As the Go library compares: case, `-` and `_` say nothing.
fn same_name(one: &str, other: &str) -> bool {
    let letters = |name: &str| {
        let kept = name.chars().filter(|character| !matches!(character, '-' | '_'));
        kept.flat_map(char::to_lowercase).collect::<String>()
    };
    letters(one) == letters(other)
}

impl de::Error for IniError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Field {
            line: 0,
            section: String::new(),
            message: message.to_string(),
        }
    }
}

macro_rules! parsed {
    ($($method:ident $visit:ident $wanted:literal,)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, IniError> {
            visitor.$visit(self.parsed($wanted)?)
        }
    )*};
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = IniError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, IniError> {
        match self {
            Node::Section { .. } => self.deserialize_map(visitor),
            Node::Values(values) if values.len() > 1 => self.deserialize_seq(visitor),
            Node::Values(_) | Node::One(_) => self.deserialize_str(visitor),
        }
    }

    parsed! {
        deserialize_i8 visit_i8 "a whole number",
        deserialize_i16 visit_i16 "a whole number",
        deserialize_i32 visit_i32 "a whole number",
        deserialize_i64 visit_i64 "a whole number",
        deserialize_u8 visit_u8 "a whole number from 0",
        deserialize_u16 visit_u16 "a whole number from 0",
        deserialize_u32 visit_u32 "a whole number from 0",
        deserialize_u64 visit_u64 "a whole number from 0",
        deserialize_f32 visit_f32 "a number",
        deserialize_f64 visit_f64 "a number",
        deserialize_char visit_char "one character",
        deserialize_string visit_string "text",
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, IniError> {
        const WANTED: &str = "true or false";
        let text: String = self.parsed(WANTED)?;
        match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => visitor.visit_bool(true),
            "false" | "no" | "off" | "0" => visitor.visit_bool(false),
            _ => Err(self.misfit(WANTED)),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, IniError> {
        visitor.visit_string(self.parsed("text")?)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, IniError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, IniError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, IniError> {
        match self {
            Node::Values(values) => visitor.visit_seq(SeqDeserializer::new(values.iter())),
            Node::Section { .. } | Node::One(_) => Err(self.misfit("a list")),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, IniError> {
        self.visit_entries(&[], visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, IniError> {
        self.visit_entries(fields, visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, IniError> {
        let text: String = self.parsed("text")?;
        let variant: StrDeserializer<'_, IniError> = text.as_str().into_deserializer();
        variant
            .deserialize_enum(name, variants, visitor)
            .map_err(|_| self.misfit("one of the values that the reference names"))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, IniError> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! { bytes byte_buf unit unit_struct tuple tuple_struct identifier }
}

impl Node {
    /// Entries under the names of the type's fields, where one is the same but for its writing.
    fn visit_entries<'de, V: Visitor<'de>>(
        &'de self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, IniError> {
        let Self::Section { entries, .. } = self else {
            return Err(self.misfit("a section"));
        };
        let named = entries.iter().map(|(name, node)| {
            let field = fields.iter().find(|field| same_name(field, name));
            (field.map_or(name.as_str(), |field| field), node)
        });
        visitor
            .visit_map(MapDeserializer::new(named))
            .map_err(|error| self.at(error))
    }
}

impl<'de> IntoDeserializer<'de, IniError> for &'de Node {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}
