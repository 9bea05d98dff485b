//! Values of the configuration file that are written as text, parsed where they are read, so that a mistake is told
//! with its line.

use std::borrow::Cow;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use bulkhead_core::ids::ProviderId;
use http::Uri;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::cli::values::{self, ValueError};

/// A value that is written as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text<T>(pub T);

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        match text.parse() {
            Ok(value) => Ok(Self(value)),
            Err(error) => Err(D::Error::custom(format!("{text:?} {error}"))),
        }
    }
}

impl<T> JsonSchema for Text<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Text".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

/// A type whose values are parsed by a function that a flag is parsed by, too.
macro_rules! as_the_flag {
    ($(#[$about:meta] $name:ident($inner:ty) by $parse:path;)*) => {$(
        #[$about]
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name(pub $inner);

        impl FromStr for $name {
            type Err = ValueError;

            fn from_str(text: &str) -> Result<Self, ValueError> {
                $parse(text).map(Self)
            }
        }
    )*};
}

as_the_flag! {
    /// A span of time.
    Span(Duration) by values::duration;
    /// A span of time longer than 0.
    PositiveSpan(Duration) by values::positive_duration;
    /// A text that is not empty.
    Word(String) by values::nonempty;
    /// The URL of an API server.
    ServerUrl(Uri) by values::server_url;
    /// The name of a plugin or provider.
    Name(String) by name;
    /// A scheme of provider IDs.
    Scheme(String) by scheme;
    /// An amount of memory, in bytes.
    Bytes(u64) by bytes;
}

fn name(text: &str) -> Result<String, ValueError> {
    match text {
        "" => Err(ValueError::Name),
        text => values::plugin_name(text),
    }
}

fn scheme(text: &str) -> Result<String, ValueError> {
    match ProviderId::parse(format!("{text}://id")) {
        Ok(id) if id.scheme() == text => Ok(text.to_owned()),
        Ok(_) | Err(_) => Err(ValueError::Scheme),
    }
}

/// A number with one of Kubernetes' suffixes, or none.
fn bytes(text: &str) -> Result<u64, ValueError> {
    const SUFFIXES: [(&str, u64); 8] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
    ];
    let with_suffix = SUFFIXES
        .iter()
        .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit)));
    let (number, unit) = with_suffix.unwrap_or((text, 1));
    let number = Some(number).filter(|it| it.bytes().all(|byte| byte.is_ascii_digit()));
    number
        .and_then(|it| it.parse::<u64>().ok()?.checked_mul(unit))
        .filter(|bytes| *bytes > 0)
        .ok_or(ValueError::Bytes)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::plain("1024", Some(1024))]
    #[case::binary("512Mi", Some(512 << 20))]
    #[case::decimal("2G", Some(2_000_000_000))]
    #[case::none("0", None)]
    #[case::a_fraction("1.5Gi", None)]
    #[case::signed("+1", None)]
    #[case::only_a_suffix("Mi", None)]
    #[case::more_than_there_is("99999999999Ti", None)]
    fn amounts_of_memory_are_kubernetes(#[case] text: &str, #[case] bytes: Option<u64>) {
        assert_eq!(text.parse().ok(), bytes.map(Bytes));
    }

    #[rstest]
    #[case::plain("aws", true)]
    #[case::dotted("example.com", true)]
    #[case::empty("", false)]
    #[case::with_separator("aws://", false)]
    #[case::with_id("aws://x", false)]
    fn schemes_are_those_of_provider_ids(#[case] text: &str, #[case] is_scheme: bool) {
        assert_eq!(text.parse::<Scheme>().is_ok(), is_scheme);
    }
}
