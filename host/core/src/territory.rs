//! Which plugin owns what: provider IDs, nodes that have none yet, classes of load balancers.
//!
//! The configuration decides ([`Claims`]); where it is silent, what a plugin says of itself counts, as far as nobody
//! else owns it ([`divide`]). Who answers first never matters. What a plugin comes to own is its [`Territory`].

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::ProviderId;
use crate::node::view::NodeView;
use crate::service::view::CLASS_FINALIZER_SUFFIX;

mod divide;
mod pattern;
mod selector;
mod strays;

pub use divide::{Claimant, Complaint, Division, Incumbents, divide, divide_beside};
pub use pattern::{Pattern, PatternError};
pub use selector::{Requirement, RequirementError, Selector, Test, is_dns_label};
pub use strays::{PATIENCE, Strays};

/// What the configuration says that one plugin owns. The default is silent about everything but nodes without provider
/// ID, of which it claims all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// Schemes of provider IDs; `None`: those that the plugin describes. Empty: it has no nodes at all.
    pub schemes: Option<BTreeSet<String>>,
    /// Provider IDs of those schemes, by pattern; empty: all.
    pub provider_ids: Vec<Pattern>,
    /// Which nodes without a provider ID it initialises.
    pub nodes: Selector,
    /// Classes of load balancers, "" for Services without one; `None`: those that the plugin describes.
    pub classes: Option<BTreeSet<String>>,
}

impl Claims {
    /// Whether it may own any node.
    fn has_nodes(&self) -> bool {
        self.schemes.as_ref().is_none_or(|schemes| !schemes.is_empty())
    }

    /// Whether they select `node`, which has no provider ID.
    fn initialises(&self, node: &NodeView) -> bool {
        self.has_nodes() && self.nodes.matches(&node.labels)
    }

    /// The provider IDs that it claims, whatever any plugin describes: one list for each, all of which must match.
    fn provider_ids(&self) -> Vec<Vec<Pattern>> {
        match (&self.schemes, self.provider_ids.as_slice()) {
            (Some(schemes), _) => schemes.iter().flat_map(|scheme| self.of_scheme(scheme)).collect(),
            (None, patterns) => patterns.iter().map(|it| vec![it.clone()]).collect(),
        }
    }

    /// The provider IDs of `scheme` that would be its own, if the scheme is.
    fn of_scheme(&self, scheme: &str) -> Vec<Vec<Pattern>> {
        let whole = Pattern::of_scheme(scheme);
        match self.provider_ids.as_slice() {
            [] => vec![vec![whole]],
            some => some.iter().map(|it| vec![whole.clone(), it.clone()]).collect(),
        }
    }
}

/// A provider ID that is in both: of each, one list must match as a whole.
fn shared_id(one: &[Vec<Pattern>], other: &[Vec<Pattern>]) -> Option<ProviderId> {
    one.iter().find_map(|left| {
        other.iter().find_map(|right| {
            let all: Vec<&Pattern> = left.iter().chain(right).collect();
            pattern::common(&all)
        })
    })
}

/// What two plugins' configurations both claim.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("plugins {} and {} {shared}", plugins[0], plugins[1])]
pub struct Overlap {
    /// The plugins' names, in the order of the configuration.
    pub plugins: [String; 2],
    /// An example.
    pub shared: Shared,
}

/// An example of what two plugins both claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shared {
    /// A provider ID.
    ProviderId(ProviderId),
    /// A node without provider ID that has these labels.
    Node(BTreeMap<String, String>),
    /// A class of load balancers.
    Class(String),
}

impl std::fmt::Display for Shared {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ProviderId(id) => write!(
                out,
                "both claim provider ID {id}: their schemes and providerIDs must have none in common"
            ),
            Self::Node(labels) => {
                write!(out, "both select a new node {}", Labels(labels))?;
                out.write_str(": their nodes must select different ones")
            }
            Self::Class(class) => write!(
                out,
                "both claim {}: their classes must have none in common",
                ClassName(class)
            ),
        }
    }
}

/// Labels in words.
struct Labels<'a>(&'a BTreeMap<String, String>);

impl std::fmt::Display for Labels<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pairs: Vec<String> = self
            .0
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        match pairs.as_slice() {
            [] => out.write_str("without labels"),
            pairs => write!(out, "with {}", pairs.join(",")),
        }
    }
}

/// A class in words.
struct ClassName<'a>(&'a str);

impl std::fmt::Display for ClassName<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            "" => out.write_str("Services without a class"),
            class => write!(out, "class {class}"),
        }
    }
}

/// Everything that two plugins' configurations both claim, an example of each kind for each pair. Without any, no
/// configured thing has two owners.
pub fn overlaps(plugins: &[(&str, &Claims)]) -> Vec<Overlap> {
    let mut found = Vec::new();
    for (index, (name, claims)) in plugins.iter().enumerate() {
        for (other_name, other) in plugins.iter().skip(index + 1) {
            found.extend(shared(claims, other).into_iter().map(|shared| Overlap {
                plugins: [(*name).to_owned(), (*other_name).to_owned()],
                shared,
            }));
        }
    }
    found
}

fn shared(one: &Claims, other: &Claims) -> Vec<Shared> {
    let id = shared_id(&one.provider_ids(), &other.provider_ids());
    let node = (one.has_nodes() && other.has_nodes())
        .then(|| one.nodes.common(&other.nodes))
        .flatten();
    let class = match (&one.classes, &other.classes) {
        (Some(one), Some(other)) => one.intersection(other).next().cloned(),
        (None, _) | (_, None) => None,
    };
    let (id, node) = (id.map(Shared::ProviderId), node.map(Shared::Node));
    [id, node, class.map(Shared::Class)]
        .into_iter()
        .flatten()
        .collect()
}

/// What one plugin owns now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Territory {
    plugin: String,
    schemes: BTreeSet<String>,
    provider_ids: Vec<Pattern>,
    nodes: Option<Selector>,
    /// Nodes that others select before.
    but_not: Vec<Selector>,
    classes: BTreeSet<String>,
    class_finalizer: String,
}

impl Territory {
    /// That of a plugin which owns nothing yet.
    pub fn nothing(plugin: &str) -> Self {
        Self {
            plugin: plugin.to_owned(),
            schemes: BTreeSet::new(),
            provider_ids: Vec::new(),
            nodes: None,
            but_not: Vec::new(),
            classes: BTreeSet::new(),
            class_finalizer: format!("{plugin}{CLASS_FINALIZER_SUFFIX}"),
        }
    }

    /// The plugin's configured name.
    pub fn plugin(&self) -> &str {
        &self.plugin
    }

    /// Whether `id` is the plugin's.
    pub fn owns(&self, id: &ProviderId) -> bool {
        self.schemes.contains(id.scheme())
            && (self.provider_ids.is_empty() || self.provider_ids.iter().any(|it| it.matches(id)))
    }

    /// The schemes of which some provider IDs are the plugin's.
    pub fn schemes(&self) -> impl Iterator<Item = &str> {
        self.schemes.iter().map(String::as_str)
    }

    /// Whether `node`, while it has no provider ID, is the plugin's to initialise.
    pub fn selects(&self, node: &NodeView) -> bool {
        let selects = |selector: &Selector| selector.matches(&node.labels);
        self.nodes.as_ref().is_some_and(selects) && !self.but_not.iter().any(selects)
    }

    /// Whether load balancers of `class` are the plugin's; "": of Services without a class.
    pub fn serves(&self, class: &str) -> bool {
        self.classes.contains(class)
    }

    /// The classes of load balancers that are the plugin's.
    pub fn classes(&self) -> impl Iterator<Item = &str> {
        self.classes.iter().map(String::as_str)
    }

    /// The finalizer that this plugin's named classes put on a Service: once the API server has cleared the class, it
    /// alone says whose load balancer that was.
    pub fn class_finalizer(&self) -> &str {
        &self.class_finalizer
    }
}

#[cfg(test)]
mod tests;
