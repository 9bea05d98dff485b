//! Names with rules, as types.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A Kubernetes object's UID: another UID is another object, whatever the name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Uid(pub String);

/// A Node's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeName(pub String);

/// A Service's namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServiceKey {
    /// The Service's namespace.
    pub namespace: String,
    /// The Service's name.
    pub name: String,
}

/// The owner's name on a cloud resource, as SPEC.md section 7.1 makes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Mark(pub String);

/// What makes a server-side object the one we decided about: its UID and the version we read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The object's UID.
    pub uid: Uid,
    /// The `resourceVersion` that was read.
    pub resource_version: String,
}

/// A provider ID, `scheme://rest`, taken apart once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ProviderId {
    text: String,
    scheme_length: usize,
}

/// Longest provider ID in bytes (the protocol's bound on ids).
pub(crate) const PROVIDER_ID_MAX: usize = 512;

/// Why a text is no provider ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderIdError {
    /// There is no `://`, or nothing before or behind it.
    #[error("a provider ID has the form scheme://id")]
    Form,
    /// A scheme starts with a letter and goes on with letters, digits, `+`, `-` and `.`.
    #[error("the part before :// may have letters, digits, '+', '-' and '.' only, and starts with a letter")]
    Scheme,
    /// White space or a control character.
    #[error("a provider ID has no white space and no control characters")]
    Character,
    /// Over 512 bytes.
    #[error("a provider ID has at most {PROVIDER_ID_MAX} bytes")]
    Long,
}

impl ProviderId {
    /// Parses `scheme://rest`.
    pub fn parse(text: impl Into<String>) -> Result<Self, ProviderIdError> {
        let text = text.into();
        let (scheme, rest) = text.split_once("://").ok_or(ProviderIdError::Form)?;
        if scheme.is_empty() || rest.is_empty() {
            return Err(ProviderIdError::Form);
        }
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
        if !scheme.starts_with(|c: char| c.is_ascii_alphabetic()) || !scheme.chars().all(legal) {
            return Err(ProviderIdError::Scheme);
        }
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(ProviderIdError::Character);
        }
        if text.len() > PROVIDER_ID_MAX {
            return Err(ProviderIdError::Long);
        }
        let scheme_length = scheme.len();
        Ok(Self { text, scheme_length })
    }

    /// The part before `://`.
    pub fn scheme(&self) -> &str {
        self.text.get(..self.scheme_length).unwrap_or_default()
    }

    /// The whole text.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl TryFrom<String> for ProviderId {
    type Error = ProviderIdError;

    fn try_from(text: String) -> Result<Self, ProviderIdError> {
        Self::parse(text)
    }
}

impl From<ProviderId> for String {
    fn from(id: ProviderId) -> Self {
        id.text
    }
}

impl fmt::Display for ProviderId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{ProviderId, ProviderIdError};

    #[rstest]
    #[case::aws("aws:///eu-central-1a/i-1", "aws")]
    #[case::dotted("example.com://x", "example.com")]
    #[case::second_separator_belongs_to_the_rest("a://b://c", "a")]
    fn a_legal_provider_id_knows_its_scheme(#[case] text: &str, #[case] scheme: &str) {
        let id = ProviderId::parse(text).unwrap();
        assert_eq!((id.scheme(), id.as_str()), (scheme, text));
    }

    #[rstest]
    #[case::missing_prefix("6407101", ProviderIdError::Form)]
    #[case::empty("", ProviderIdError::Form)]
    #[case::no_id("aws://", ProviderIdError::Form)]
    #[case::no_scheme("://x", ProviderIdError::Form)]
    #[case::scheme_with_space("a b://x", ProviderIdError::Scheme)]
    #[case::scheme_with_digit_first("1a://x", ProviderIdError::Scheme)]
    #[case::space("aws://a b", ProviderIdError::Character)]
    #[case::newline("aws://a\n", ProviderIdError::Character)]
    fn an_illegal_provider_id_says_why(#[case] text: &str, #[case] why: ProviderIdError) {
        assert_eq!(ProviderId::parse(text), Err(why));
    }

    #[test]
    fn an_endless_provider_id_is_refused() {
        assert_eq!(
            ProviderId::parse(format!("a://{}", "x".repeat(600))),
            Err(ProviderIdError::Long)
        );
    }
}
