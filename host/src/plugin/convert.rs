//! The border between the wire and the core: whatever a plugin sends is hostile until it went through here.
//!
//! From the wire, an unset oneof, a zero in a decision, somebody else's name, a wrong count, an impossible
//! address or a list without end is a [`Violation`] that names the field; text for people is cleaned and cut
//! instead. To the wire, structs are taken apart field by field, so that a new field forces a decision.

pub(crate) mod balancers;
pub(crate) mod description;
pub(crate) mod failure;
pub(crate) mod instances;
pub(crate) mod requests;
pub(crate) mod text;

#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use bulkhead_core::clock::Timestamp;
use bulkhead_core::cloud::{AbsenceProof, Certainty, Failure, Freshness, Reason, Resource};
use bulkhead_core::disposition::RETRY_AFTER_MAX;
use bulkhead_core::ids::Mark;
use bulkhead_proto::v1;

use self::text::{ID_MAX, NAME_MAX, line, word};

/// Most scopes of one answer.
const SCOPES_MAX: usize = 1024;
/// Most resources of one Service.
const RESOURCES_MAX: usize = 20_000;

/// An answer that no plugin may give: which field, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the plugin broke the protocol: field {field} {problem}")]
pub struct Violation {
    /// The field's path in the answer, as `results[3].found.provider_id`.
    pub field: String,
    /// What is wrong with it, as the end of a sentence.
    pub problem: &'static str,
}

impl Violation {
    pub(crate) fn new(field: impl Into<String>, problem: &'static str) -> Self {
        Self {
            field: field.into(),
            problem,
        }
    }

    /// The same, seen from the message around.
    pub(crate) fn inside(self, outer: impl fmt::Display) -> Self {
        let field = if self.field.is_empty() {
            outer.to_string()
        } else {
            format!("{outer}.{}", self.field)
        };
        Self { field, ..self }
    }
}

impl From<Violation> for Failure {
    fn from(violation: Violation) -> Self {
        Self {
            reason: Some(Reason::ProtocolViolation),
            certainty: Certainty::Unknown,
            message: text::clean(&violation.to_string()),
            retry_after: None,
        }
    }
}

/// What is parsed from an answer.
pub(crate) type Parsed<T> = Result<T, Violation>;

/// Parses a list of at most `max` items; a violation names the item.
fn list<W, T>(
    field: &'static str,
    items: Vec<W>,
    max: usize,
    parse: impl Fn(W) -> Parsed<T>,
) -> Parsed<Vec<T>> {
    if items.len() > max {
        return Err(Violation::new(field, "is longer than any real list"));
    }
    let parse_one =
        |(index, item)| parse(item).map_err(|error| error.inside(format_args!("{field}[{index}]")));
    items.into_iter().enumerate().map(parse_one).collect()
}

/// An enum's value that is neither unset nor from a later revision.
fn known<E: TryFrom<i32> + Default + PartialEq>(field: &'static str, number: i32) -> Parsed<E> {
    match E::try_from(number) {
        Ok(value) if value == E::default() => Err(Violation::new(field, "is unspecified")),
        Ok(value) => Ok(value),
        Err(_) => Err(Violation::new(field, "has a value that this host does not know")),
    }
}

fn port(number: u32) -> Parsed<u16> {
    match u16::try_from(number) {
        Ok(port) if port != 0 => Ok(port),
        _ => Err(Violation::new("port", "is no port")),
    }
}

/// A span that the plugin asks to be left alone, never longer than the host grants.
fn retry_after(span: Option<prost_types::Duration>) -> Parsed<Option<Duration>> {
    let Some(span) = span else { return Ok(None) };
    match (u64::try_from(span.seconds), u32::try_from(span.nanos)) {
        (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 => {
            Ok(Some(Duration::new(seconds, nanos).min(RETRY_AFTER_MAX)))
        }
        _ => Err(Violation::new("retry_after", "is no span of time")),
    }
}

fn timestamp(field: &'static str, time: prost_types::Timestamp) -> Parsed<Timestamp> {
    let micros = |nanos: u32| {
        time.seconds
            .checked_mul(1_000_000)?
            .checked_add(i64::from(nanos / 1000))
    };
    u32::try_from(time.nanos)
        .ok()
        .filter(|nanos| *nanos < 1_000_000_000)
        .and_then(micros)
        .map(Timestamp)
        .ok_or_else(|| Violation::new(field, "is no time"))
}

fn absence(proof: v1::AbsenceProof) -> Parsed<AbsenceProof> {
    let v1::AbsenceProof {
        complete,
        scopes_checked,
        freshness,
    } = proof;
    let unset = || Violation::new("freshness", "is not set");
    let freshness = match freshness.and_then(|freshness| freshness.kind).ok_or_else(unset)? {
        v1::freshness::Kind::Direct(_) => Freshness::Direct,
        v1::freshness::Kind::CachedAsOf(time) => {
            Freshness::CachedAsOf(timestamp("freshness.cached_as_of", time)?)
        }
        v1::freshness::Kind::Unknown(_) => Freshness::Unknown,
    };
    let scopes = list("scopes_checked", scopes_checked, SCOPES_MAX, |scope| {
        word("", scope, NAME_MAX)
    })?;
    Ok(AbsenceProof {
        complete,
        scopes,
        freshness,
    })
}

fn resources(field: &'static str, resources: Vec<v1::Resource>) -> Parsed<Vec<Resource>> {
    list(field, resources, RESOURCES_MAX, resource)
}

fn resource(resource: v1::Resource) -> Parsed<Resource> {
    let v1::Resource {
        id,
        r#type,
        class,
        role,
        mark,
        owner: _,
        origin,
        revision,
    } = resource;
    if id.is_empty() {
        return Err(Violation::new("id", "is empty"));
    }
    let origin: v1::ResourceOrigin = known("origin", origin)?;
    let parse_mark = |mark: v1::Mark| Ok((Mark(word("mark.value", mark.value, NAME_MAX)?), mark.kind));
    Ok(Resource {
        id: line("id", id, ID_MAX)?,
        kind: line("type", r#type, NAME_MAX)?,
        class,
        role: line("role", role, NAME_MAX)?,
        mark: mark
            .filter(|mark| !mark.value.is_empty())
            .map(parse_mark)
            .transpose()?,
        origin: origin.into(),
        revision: line("revision", revision, ID_MAX)?,
    })
}
