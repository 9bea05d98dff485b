//! What one node needs next: the whole policy of the node controller, readable top to bottom.
//!
//! Initialising a node is two passes under one key: first its addresses, then in one guarded write provider ID,
//! labels and the removal of the taint. So nobody ever sees a node without the taint that is not complete.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::cloud::{AbsenceProof, Instance, InstanceAnswer};
use crate::disposition::{CallKind, after_failure, deserves_notice};
use crate::ids::{Guard, NodeName, ProviderId, Uid};
use crate::node::addresses::{self, AddressError};
use crate::node::labels;
use crate::node::view::{NodeAddress, NodeView, Taint, UNINITIALIZED_TAINT};
use crate::outcome::{AfterWrite, Next, Notice, SLOW, WriteFailure, after_write, message_of};
use crate::ownership::{NodeOwner, of_node};
use crate::territory::Territory;

/// Event reason, as upstream's, when a node has been initialised.
const SYNCED: &str = "Synced";
/// Event reason for what goes wrong between a node and its cloud.
pub(crate) const CLOUD_PROVIDER_ERROR: &str = "CloudProviderError";

/// Whether the plugin must be asked about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// There is nothing to do for it until it changes.
    Nothing,
    /// It waits to be initialised: ask for its instance.
    Initialise,
    /// It is initialised: compare it with its instance now and then.
    Refresh,
}

/// What `node` needs of the plugin that owns `territory`.
pub fn need(node: &NodeView, territory: &Territory) -> Need {
    if node.deleting {
        return Need::Nothing;
    }
    match (of_node(node, territory), node.is_uninitialized()) {
        (NodeOwner::Ours, true) => Need::Initialise,
        (NodeOwner::Ours, false) => Need::Refresh,
        (NodeOwner::Foreign | NodeOwner::Unreadable | NodeOwner::Nobody, _) => Need::Nothing,
    }
}

/// What to tell about a node that waits to be initialised and never will be, because its provider ID cannot be read or
/// only looks like the plugin's. Nodes of other providers wait for those, silently.
pub fn complaint(node: &NodeView, territory: &Territory) -> Option<Notice> {
    let own = node
        .provider_id
        .as_deref()
        .filter(|_| node.is_uninitialized() && !node.deleting)?;
    let looks_like_ours = || {
        own.split_once("://").is_some_and(|(scheme, _)| {
            territory
                .schemes()
                .any(|owned| owned.eq_ignore_ascii_case(scheme.trim()) && owned != scheme)
        })
    };
    let why = match of_node(node, territory) {
        NodeOwner::Unreadable => "which is no provider ID (scheme://id, without white space)",
        NodeOwner::Foreign if looks_like_ours() => "whose scheme is not spelt as the plugin's",
        NodeOwner::Ours | NodeOwner::Foreign | NodeOwner::Nobody => return None,
    };
    let shown: String = own.chars().take(80).collect();
    let text = format!(
        "The node was registered with provider ID {shown:?}, {why}. It is not initialised. A provider ID never \
         changes: start the kubelet with the right --provider-id, or without one, and delete the Node"
    );
    Some(Notice::warning(CLOUD_PROVIDER_ERROR, text))
}

/// Whether a change from `old` to `new` is worth a look: what a kubelet's heartbeat writes is not.
pub fn wakes(old: Option<&NodeView>, new: &NodeView) -> bool {
    old.is_none_or(|old| {
        old.uid != new.uid
            || old.provider_id != new.provider_id
            || old.is_uninitialized() != new.is_uninitialized()
            || old.labels != new.labels
            || old.annotations.get(addresses::PROVIDED_NODE_IP)
                != new.annotations.get(addresses::PROVIDED_NODE_IP)
            || old.addresses != new.addresses
    })
}

/// What a plan is made from.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The node, one that [`need`] said must be asked about.
    pub node: &'a NodeView,
    /// What the plugin says of its instance.
    pub answer: &'a InstanceAnswer,
    /// What the plugin owns.
    pub territory: &'a Territory,
    /// Another node, initialised before, that has the provider ID that the plugin gives for this one.
    pub claimed_by: Option<&'a NodeName>,
    /// How often an initialised node is compared with its instance.
    pub refresh: Duration,
    /// How long ago the node was created.
    pub age: Duration,
}

/// What to do now. At most one write: what it returns is the next observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Do this, then look again.
    Write(Action),
    /// Nothing to do.
    Rest {
        /// What to tell people.
        notices: Vec<Notice>,
        /// When to come back.
        next: Next,
    },
}

/// One write to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Replaces `status.addresses`.
    WriteAddresses {
        /// The object it was decided for.
        uid: Uid,
        /// The whole list.
        addresses: Vec<NodeAddress>,
    },
    /// Writes provider ID and labels and takes the taint off, in one.
    Initialise {
        /// The version it was decided on.
        guard: Guard,
        /// Set where the node has none yet.
        provider_id: Option<ProviderId>,
        /// Labels to set.
        labels: BTreeMap<String, String>,
        /// All taints but the uninitialized one.
        taints: Vec<Taint>,
    },
    /// Sets labels of ours that were lost.
    RepairLabels {
        /// The version it was decided on.
        guard: Guard,
        /// Labels to set.
        labels: BTreeMap<String, String>,
    },
}

/// Decides what to do about one node.
pub fn plan(observed: &Observed<'_>) -> Plan {
    match observed.answer {
        InstanceAnswer::Found(instance) => match suspicion(observed, instance) {
            Some(why) => rest(why, Next::After(SLOW)),
            None => converge(observed, instance),
        },
        InstanceAnswer::Absent(proof) => absent(observed, proof),
        InstanceAnswer::NotMine { reason } => rest(
            format!("The provider says that this node is not one of its own: {reason}"),
            Next::After(SLOW),
        ),
        InstanceAnswer::Pending { retry_after, .. } => {
            silent(Next::After(retry_after.unwrap_or(SOON).clamp(SHORTEST, SLOW)))
        }
        InstanceAnswer::Failed(failure) => {
            let next = after_failure(failure, CallKind::Read);
            if deserves_notice(failure) {
                rest(
                    format!("Reading the instance failed: {}", message_of(failure)),
                    next,
                )
            } else {
                silent(next)
            }
        }
    }
}

/// Why the instance found cannot be this node's, in which case nothing is written.
fn suspicion(observed: &Observed<'_>, instance: &Instance) -> Option<String> {
    let given = &instance.provider_id;
    if !observed.territory.owns(given) {
        return Some(format!(
            "Plugin {} answers with provider ID {given}, which is not one of its own. If the machine is that plugin's, \
             its providerIDs in the configuration must match; if it is another's, so must the nodes of both",
            observed.territory.plugin()
        ));
    }
    match (&observed.node.provider_id, observed.claimed_by) {
        (Some(own), _) if own != given.as_str() => Some(format!(
            "The node has provider ID {own}, but the cloud's instance for it is {given}. A provider ID never \
             changes: if the machine was replaced, delete the Node so that its kubelet registers anew"
        )),
        (None, Some(other)) => Some(format!(
            "Instance {given} already belongs to node {other}. Two nodes cannot be one instance: give this machine \
             a name or address of its own, or delete node {other} if it is gone"
        )),
        (Some(_) | None, _) => None,
    }
}

/// The instance is the node's: makes the node what it should be, addresses first.
fn converge(observed: &Observed<'_>, instance: &Instance) -> Plan {
    let node = observed.node;
    match addresses::desired(node, instance) {
        Ok(Some(addresses)) if addresses != node.addresses => Plan::Write(Action::WriteAddresses {
            uid: node.uid.clone(),
            addresses,
        }),
        Ok(_) if node.is_uninitialized() => Plan::Write(initialise(node, instance)),
        Ok(_) => repair(observed, instance),
        Err(error) => {
            let next = match error {
                AddressError::Empty => Next::RETRY,
                AddressError::Annotation { .. } | AddressError::NotProvided { .. } => {
                    Next::retry_after(BY_A_PERSON)
                }
            };
            rest(sentence(&error), next)
        }
    }
}

/// Pause while a machine is on its way and nobody said how long that takes.
const SOON: Duration = Duration::from_secs(5);
/// No plugin makes the host ask about a node more often.
const SHORTEST: Duration = Duration::from_secs(1);
/// A cloud's API may lag behind a machine that has just been made; a node older than this is looked at less often.
const YOUNG: Duration = Duration::from_secs(600);

/// Pause where only a person can help, but may do so at any time without the node changing.
const BY_A_PERSON: Duration = Duration::from_secs(30);

fn initialise(node: &NodeView, instance: &Instance) -> Action {
    Action::Initialise {
        guard: node.guard(),
        provider_id: node.provider_id.is_none().then(|| instance.provider_id.clone()),
        labels: labels::to_initialise(&node.labels, instance),
        taints: node
            .taints
            .iter()
            .filter(|taint| taint.key != UNINITIALIZED_TAINT)
            .cloned()
            .collect(),
    }
}

/// An initialised node: only what was lost comes back.
fn repair(observed: &Observed<'_>, instance: &Instance) -> Plan {
    let labels = labels::lost(&observed.node.labels, instance);
    if labels.is_empty() {
        silent(Next::After(observed.refresh))
    } else {
        Plan::Write(Action::RepairLabels {
            guard: observed.node.guard(),
            labels,
        })
    }
}

/// The cloud has no instance for the node. What that may cost an initialised one is not decided here.
fn absent(observed: &Observed<'_>, proof: &AbsenceProof) -> Plan {
    if !observed.node.is_uninitialized() {
        return silent(Next::After(observed.refresh));
    }
    let scopes = if proof.scopes.is_empty() {
        "the cloud".to_owned()
    } else {
        proof.scopes.join(", ")
    };
    let sought = match &observed.node.provider_id {
        Some(id) => format!("provider ID {id}"),
        None => format!("name {}", observed.node.name),
    };
    rest(
        format!(
            "No instance for this node in {scopes}, looked for by {sought}: the taint {UNINITIALIZED_TAINT} stays. If \
             the machine is there, give instance and node one name, or start the kubelet with the instance's provider \
             ID as --provider-id; if it is gone, delete the Node"
        ),
        if observed.age < YOUNG {
            Next::After(SOON)
        } else {
            Next::After(BY_A_PERSON)
        },
    )
}

/// What a write came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conclusion {
    /// Decide again, on what the write returned.
    Again {
        /// What to tell people.
        notices: Vec<Notice>,
    },
    /// Decide again, on what the API server has now.
    Reread,
    /// Come back later.
    Rest {
        /// What to tell people.
        notices: Vec<Notice>,
        /// When to come back.
        next: Next,
    },
}

/// Concludes from a write's result.
pub fn conclude(action: &Action, result: Result<(), &WriteFailure>) -> Conclusion {
    let (what, done) = match action {
        Action::WriteAddresses { .. } => ("the node's addresses", Vec::new()),
        Action::Initialise { .. } => (
            "the node's provider ID, labels and taints",
            vec![Notice::normal(SYNCED, "Node synced successfully")],
        ),
        Action::RepairLabels { .. } => ("the node's labels", Vec::new()),
    };
    match result {
        Ok(()) => Conclusion::Again { notices: done },
        Err(failure) => match after_write(failure, CLOUD_PROVIDER_ERROR, what) {
            AfterWrite::Reread => Conclusion::Reread,
            AfterWrite::Rest { notices, next } => Conclusion::Rest { notices, next },
        },
    }
}

fn rest(why: String, next: Next) -> Plan {
    Plan::Rest {
        notices: vec![Notice::warning(CLOUD_PROVIDER_ERROR, why)],
        next,
    }
}

fn silent(next: Next) -> Plan {
    Plan::Rest {
        notices: Vec::new(),
        next,
    }
}

/// An error as a sentence for people.
fn sentence(error: &AddressError) -> String {
    let text = error.to_string();
    let mut letters = text.chars();
    letters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests;
