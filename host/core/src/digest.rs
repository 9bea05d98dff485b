//! Digests: one short name for a whole value, the same in every language.
//!
//! A value is written in the canonical form of `proto/SPEC.md` section 7 and hashed with sha256 while it is
//! written, so that no copy of it is ever held. What goes into a digest is the business of the type that has
//! one; this module only knows how it is written. Invariant: two values have the same form only if they are equal.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A sha256 in lower-case hexadecimal: 64 characters where it was computed here, whatever was stored or sent
/// where it was read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Digest(String);

impl Digest {
    /// A digest that somebody else computed, to be compared with one of ours.
    pub fn received(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// As it goes over the wire.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The fingerprint of a load balancer: its Spec as one plugin build and configuration translates it
/// (`SPEC.md` section 7.4).
pub fn fingerprint(spec: &Digest, behaviour_digest: &str) -> Digest {
    let mut canonical = Canonical::new();
    canonical.record(|record| {
        record
            .string("spec_digest", spec.as_str())
            .string("behaviour_digest", behaviour_digest);
    });
    canonical.finish()
}

/// Whether a plugin that declares these keys reads `key`: a declared key that ends in `/` or `*` stands for all
/// keys that begin so. Only such labels and annotations go into a digest.
pub fn is_declared<'a>(key: &str, declared: impl IntoIterator<Item = &'a str>) -> bool {
    declared
        .into_iter()
        .any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => key.starts_with(prefix),
            None if pattern.ends_with('/') => key.starts_with(pattern),
            None => key == pattern,
        })
}

/// Writes values in canonical form. Write exactly one value, then [`finish`](Self::finish).
///
/// ```
/// use bulkhead_core::digest::Canonical;
///
/// let mut canonical = Canonical::new();
/// canonical.record(|node| {
///     node.string("name", "n1").list("pod_cidrs", ["10.0.0.0/24"], Canonical::string);
/// });
/// assert_eq!(canonical.finish().as_str().len(), 64);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Canonical {
    hash: Sha256,
}

impl Canonical {
    /// Nothing written yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A string: its length in bytes, a colon, its UTF-8 bytes.
    pub fn string(&mut self, value: &str) {
        self.raw(&format!("{}:", value.len()));
        self.raw(value);
    }

    /// An integer, or the number of an enum's value.
    pub fn integer(&mut self, value: i64) {
        self.raw(&format!("i{value}e"));
    }

    /// A list; `write` writes one element.
    pub fn list<T>(&mut self, items: impl IntoIterator<Item = T>, mut write: impl FnMut(&mut Self, T)) {
        self.raw("l");
        for item in items {
            write(self, item);
        }
        self.raw("e");
    }

    /// A map of strings, in the order of the bytes of its keys whatever the order given.
    pub fn map<'m>(&mut self, entries: impl IntoIterator<Item = (&'m String, &'m String)>) {
        let ordered: BTreeMap<_, _> = entries.into_iter().collect();
        self.raw("d");
        for (key, value) in ordered {
            self.string(key);
            self.string(value);
        }
        self.raw("e");
    }

    /// A message; `write` writes its fields in the order of their numbers.
    pub fn record(&mut self, write: impl FnOnce(&mut Record<'_>)) {
        self.raw("d");
        write(&mut Record { canonical: self });
        self.raw("e");
    }

    /// The digest of what was written.
    pub fn finish(self) -> Digest {
        Digest(HEXLOWER.encode(&self.hash.finalize()))
    }

    fn raw(&mut self, text: &str) {
        self.hash.update(text.as_bytes());
    }
}

/// Writes the fields of one message. A field without presence that has its zero is left out, so that a field
/// added to the protocol later changes no digest until it is used; one with presence is left out when unset.
#[derive(Debug)]
pub struct Record<'a> {
    canonical: &'a mut Canonical,
}

impl Record<'_> {
    /// A string without presence; empty is left out.
    pub fn string(&mut self, name: &str, value: &str) -> &mut Self {
        if !value.is_empty() {
            self.name(name).string(value);
        }
        self
    }

    /// An integer or an enum's number without presence; zero is left out.
    pub fn integer(&mut self, name: &str, value: impl Into<i64>) -> &mut Self {
        let value = value.into();
        if value != 0 {
            self.name(name).integer(value);
        }
        self
    }

    /// An integer with presence.
    pub fn optional_integer(&mut self, name: &str, value: Option<impl Into<i64>>) -> &mut Self {
        if let Some(value) = value {
            self.name(name).integer(value.into());
        }
        self
    }

    /// A boolean without presence, written as 1; false is left out.
    pub fn boolean(&mut self, name: &str, value: bool) -> &mut Self {
        self.integer(name, value)
    }

    /// A boolean with presence, written as 0 or 1.
    pub fn optional_boolean(&mut self, name: &str, value: Option<bool>) -> &mut Self {
        self.optional_integer(name, value)
    }

    /// A `google.protobuf.Duration`, which has presence: a message of `seconds` and `nanos`.
    pub fn duration(&mut self, name: &str, value: Option<Duration>) -> &mut Self {
        if let Some(value) = value {
            let seconds = i64::try_from(value.as_secs()).unwrap_or(i64::MAX);
            self.record(name, |record| {
                record
                    .integer("seconds", seconds)
                    .integer("nanos", value.subsec_nanos());
            });
        }
        self
    }

    /// A repeated field; empty is left out. `write` writes one element.
    pub fn list<T>(
        &mut self,
        name: &str,
        items: impl IntoIterator<Item = T>,
        write: impl FnMut(&mut Canonical, T),
    ) -> &mut Self {
        let mut items = items.into_iter().peekable();
        if items.peek().is_some() {
            self.name(name).list(items, write);
        }
        self
    }

    /// A map of strings; empty is left out. Takes a whole map or what a filter leaves of it.
    pub fn map<'m>(
        &mut self,
        name: &str,
        entries: impl IntoIterator<Item = (&'m String, &'m String)>,
    ) -> &mut Self {
        let mut entries = entries.into_iter().peekable();
        if entries.peek().is_some() {
            self.name(name).map(entries);
        }
        self
    }

    /// A message that is set, even if all its fields are zero. Do not call it for one that is unset.
    pub fn record(&mut self, name: &str, write: impl FnOnce(&mut Record<'_>)) -> &mut Self {
        self.name(name).record(write);
        self
    }

    fn name(&mut self, name: &str) -> &mut Canonical {
        self.canonical.string(name);
        self.canonical
    }
}

#[cfg(test)]
mod tests;
