//! The cloud's interface: few operations that work on all kinds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::kind::Kind;
use super::object::Object;

/// Who calls, for the record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    /// Provider name and process id.
    pub plugin: String,
    /// The protocol's call behind it.
    pub rpc: String,
    /// Of the intent; empty for reads.
    pub request_id: String,
    /// The term of leadership.
    pub epoch: String,
}

/// One call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Whose credentials these are, and how much of the quotas is used: cheap.
    Account,
    /// Reads objects in pages.
    List(Query),
    /// Makes objects of one kind; several at once only of kinds that are part of another and carry no tags.
    Create(Vec<New>),
    /// Changes attributes.
    Update(Change),
    /// Deletes objects of one kind; several at once as in `Create`.
    Delete {
        /// What they are.
        kind: Kind,
        /// Which.
        ids: Vec<String>,
    },
}

/// Which objects to read. What is not given does not narrow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Query {
    /// Of these kinds; empty: none.
    pub kinds: Vec<Kind>,
    /// With one of these ids.
    pub ids: Option<BTreeSet<String>>,
    /// With one of these names.
    pub names: Option<BTreeSet<String>>,
    /// Part of one of these.
    pub parents: Option<BTreeSet<String>>,
    /// For each key, with one of these values.
    pub tags: BTreeMap<String, BTreeSet<String>>,
    /// Zero: the cloud's own.
    pub page_size: u32,
    /// Empty: from the start.
    pub page_token: String,
}

impl Query {
    /// Whether an object is asked for.
    pub(crate) fn matches(&self, object: &Object) -> bool {
        let among =
            |set: &Option<BTreeSet<String>>, value: &str| set.as_ref().is_none_or(|set| set.contains(value));
        self.kinds.contains(&object.kind)
            && among(&self.ids, &object.id)
            && among(&self.names, &object.name)
            && among(&self.parents, object.parent.as_deref().unwrap_or_default())
            && self
                .tags
                .iter()
                .all(|(key, values)| object.tags.get(key).is_some_and(|value| values.contains(value)))
    }
}

/// An object to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct New {
    /// What.
    pub kind: Kind,
    /// Unique among its kind and parent.
    pub name: String,
    /// What it is part of.
    pub parent: Option<String>,
    /// Not for kinds that carry none.
    pub tags: BTreeMap<String, String>,
    /// What it is to be.
    pub attributes: BTreeMap<String, String>,
}

/// A change to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// What it is.
    pub kind: Kind,
    /// Which.
    pub id: String,
    /// Added or replaced; an empty value takes the attribute away.
    pub attributes: BTreeMap<String, String>,
    /// Only if it still has this revision.
    pub revision: Option<u64>,
}

/// A good answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To `Account`.
    Account(Account),
    /// To `List`.
    Page(Page),
    /// To everything that writes.
    Written(Written),
}

/// How the account is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Kinds of which no more can be made.
    pub used_up: Vec<Kind>,
    /// Scopes that are away.
    pub outages: Vec<String>,
    /// How old the state that a read sees can be.
    pub lag: Duration,
}

/// A part of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// In the order of kinds and ids.
    pub objects: Vec<Object>,
    /// Empty: this is the end.
    pub next: String,
    /// All scopes that the list covers.
    pub scopes: Vec<String>,
    /// Those that could not be read: what is there is missing.
    pub failed: Vec<String>,
}

/// What a write did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// What is there now, in the order of the request; empty after `Delete`.
    pub objects: Vec<Object>,
    /// From then on every read sees it.
    pub settles: Duration,
}

impl Op {
    /// The name of the operation.
    pub(crate) const fn verb(&self) -> &'static str {
        match self {
            Self::Account => "account",
            Self::List(_) => "list",
            Self::Create(_) => "create",
            Self::Update(_) => "update",
            Self::Delete { .. } => "delete",
        }
    }

    /// The kind that it is about; `List`: the first.
    pub(crate) fn kind(&self) -> Option<Kind> {
        match self {
            Self::Account => None,
            Self::List(query) => query.kinds.first().copied(),
            Self::Create(new) => new.first().map(|new| new.kind),
            Self::Update(change) => Some(change.kind),
            Self::Delete { kind, .. } => Some(*kind),
        }
    }

    /// Whether it would change the cloud.
    pub(crate) const fn writes(&self) -> bool {
        !matches!(self, Self::Account | Self::List(_))
    }

    /// As `create/load_balancer`.
    pub(crate) fn name(&self) -> String {
        match self.kind() {
            None => self.verb().to_owned(),
            Some(kind) => format!("{}/{}", self.verb(), kind.name()),
        }
    }
}
