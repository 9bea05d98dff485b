//! What plugins say, parsed: whatever is in one of these types has been checked at the border.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::ids::{Mark, NodeName, ProviderId, Uid};
use crate::node::view::NodeAddress;
use crate::service::spec::Protocol;
use crate::service::view::Ingress;

/// A capability that a plugin declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Capability {
    /// Reads instances by node.
    Instances,
    /// Lists all instances.
    InstancesList,
    /// Makes, updates, reads and deletes load balancers.
    Lb,
    /// Takes node sets by digest.
    LbNodesets,
    /// Lists and applies routes.
    Routes,
    /// Lists what carries our marks.
    ResourcesList,
    /// Deletes what carries our marks.
    ResourcesDelete,
}

impl Capability {
    /// Every capability.
    pub const ALL: [Self; 7] = [
        Self::Instances,
        Self::InstancesList,
        Self::Lb,
        Self::LbNodesets,
        Self::Routes,
        Self::ResourcesList,
        Self::ResourcesDelete,
    ];

    /// Its name in the protocol, as `instances.list`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Instances => "instances",
            Self::InstancesList => "instances.list",
            Self::Lb => "lb",
            Self::LbNodesets => "lb.nodesets",
            Self::Routes => "routes",
            Self::ResourcesList => "resources.list",
            Self::ResourcesDelete => "resources.delete",
        }
    }
}

/// Keys that a plugin declared it reads; one that ends in `/` or `*` stands for all with that prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySet(pub Vec<String>);

impl KeySet {
    /// Whether `key` is declared.
    pub fn contains(&self, key: &str) -> bool {
        crate::digest::is_declared(key, self.0.iter().map(String::as_str))
    }

    /// Those of `pairs` whose keys are declared.
    pub fn of(&self, pairs: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        pairs
            .iter()
            .filter(|(key, _)| self.contains(key))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    }
}

/// How a plugin names targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// By provider ID.
    Instance,
    /// By an address of the node.
    Address,
}

/// What a plugin said of itself when the session began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The provider's name, a DNS label.
    pub provider: String,
    /// The plugin's version.
    pub version: String,
    /// Random per process start.
    pub instance_id: String,
    /// What it can do.
    pub capabilities: Vec<Capability>,
    /// Schemes of its provider IDs.
    pub schemes: Vec<String>,
    /// Classes it serves; an empty name stands for Services without one.
    pub classes: Vec<String>,
    /// How it names targets.
    pub targets: TargetKind,
    /// Whether it serves TCP and UDP in one Service.
    pub mixed_protocols: bool,
    /// Whether it works without node ports.
    pub without_node_ports: bool,
    /// Annotation keys it reads from Services.
    pub annotation_keys: KeySet,
    /// Label keys it reads from nodes and Services.
    pub label_keys: KeySet,
    /// Most nodes in one `GetInstances`.
    pub max_batch_nodes: usize,
    /// Most targets of one load balancer; `None`: unknown.
    pub max_targets: Option<usize>,
    /// Changes whenever the plugin would translate the same spec differently.
    pub behaviour_digest: String,
}

impl Description {
    /// Whether the plugin declared `capability`.
    pub fn can(&self, capability: Capability) -> bool {
        self.capabilities.contains(&capability)
    }
}

/// An instance's power state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PowerState {
    /// Being made.
    Pending,
    /// Runs.
    Running,
    /// About to stop.
    Stopping,
    /// Off, and can be started again.
    Stopped,
    /// Suspended, and can be resumed.
    Suspended,
    /// About to end for ever.
    Terminating,
    /// Can never run again.
    Terminated,
    /// Broken.
    Faulted,
    /// The provider cannot say.
    Unknown,
}

/// Who has the say on a node's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressSource {
    /// The cloud: its list replaces the node's.
    Cloud,
    /// The node: the kubelet's list is kept.
    Node,
}

/// An instance, as the cloud has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Its provider ID.
    pub provider_id: ProviderId,
    /// The cloud's own key.
    pub instance_id: String,
    /// Its name in the cloud.
    pub name: String,
    /// Its type; empty if the cloud has no such thing.
    pub instance_type: String,
    /// Its zone; empty if the cloud has no such thing.
    pub zone: String,
    /// Its region; empty if the cloud has no such thing.
    pub region: String,
    /// Its addresses, in the order in which they are to appear on the node.
    pub addresses: Vec<NodeAddress>,
    /// Who has the say on addresses.
    pub address_source: AddressSource,
    /// Its power state; `None` if that was not asked.
    pub power: Option<PowerState>,
    /// Labels that the provider wants on the node.
    pub extra_labels: BTreeMap<String, String>,
}

/// What a plugin says of one node's instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstanceAnswer {
    /// It exists.
    Found(Box<Instance>),
    /// It does not exist.
    Absent(AbsenceProof),
    /// It belongs to another provider.
    NotMine {
        /// Why, for people.
        reason: String,
    },
    /// The cloud cannot say yet.
    Pending {
        /// When to ask again.
        retry_after: Option<Duration>,
        /// Why, for people.
        reason: String,
    },
    /// Asking failed for this node.
    Failed(Failure),
}

/// What an absence rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbsenceProof {
    /// Every scope in which it could be was read completely.
    pub complete: bool,
    /// The scopes that were read.
    pub scopes: Vec<String>,
    /// How fresh the answer is.
    pub freshness: Freshness,
}

/// How much time lies between the cloud and an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// The cloud was asked for this answer.
    Direct,
    /// A cache that was complete at this time.
    CachedAsOf(Timestamp),
    /// The plugin cannot say.
    Unknown,
}

/// Why a call, or one item of it, failed, in the protocol's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The protocol's reason. `None`: unattributed; some library or proxy made it up.
    pub reason: Option<Reason>,
    /// Whether the cloud applied the change.
    pub certainty: Certainty,
    /// For people, cleaned and cut.
    pub message: String,
    /// Where waiting is the cure, how long.
    pub retry_after: Option<Duration>,
}

/// Whether a change was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Certainty {
    /// It was not.
    NotApplied,
    /// It was, and something failed after it.
    Applied,
    /// Nobody knows.
    Unknown,
}

/// The protocol's reasons, and those that the host itself gives a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(
    missing_docs,
    reason = "the names are the protocol's; SPEC.md section 3 defines each"
)]
pub enum Reason {
    InvalidSpec,
    BatchTooLarge,
    BadPageToken,
    NotConfigured,
    NotLeading,
    ForeignOwner,
    InUse,
    Protected,
    NodeSetUnknown,
    OperationInProgress,
    Conflict,
    ReferencedObjectMissing,
    PermissionMissing,
    CredentialsInvalid,
    CredentialsExpired,
    RateLimited,
    QuotaExceeded,
    LimitReached,
    MessageTooLarge,
    CloudUnavailable,
    Draining,
    ProviderError,
    PluginBug,
    Panic,
    SnapshotExpired,
    Unimplemented,
    /// The host's own deadline passed.
    DeadlineExceeded,
    /// The host cancelled the call: it no longer leads.
    Cancelled,
    /// The plugin broke the protocol: an answer without an answer, somebody else's object.
    ProtocolViolation,
    /// There is no live session to the plugin.
    Disconnected,
    /// The plugin's gate is shut: nothing was sent.
    Shut,
}

/// What a load balancer call came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything is as asked.
    Done,
    /// A slice of the work is done; ask again.
    InProgress {
        /// What is being waited for.
        progress: String,
        /// When to ask again.
        retry_after: Option<Duration>,
    },
    /// Another controller does it.
    Elsewhere,
    /// A person is needed.
    Blocked(Failure),
    /// A protection that the user set forbids it.
    Protected(Failure),
}

/// An answer to `EnsureLoadBalancer`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ensured {
    /// What it came to.
    pub outcome: Outcome,
    /// Digest of the spec that the answer is about.
    pub spec_digest: Digest,
    /// The addresses. With [`Outcome::Done`] always; the border refuses an answer without.
    pub ingress: Option<Vec<Ingress>>,
    /// Everything that exists in the cloud for this Service.
    pub resources: Vec<Resource>,
    /// Nodes that are no targets, and why.
    pub target_problems: Vec<TargetProblem>,
    /// Ports that are not served, and why.
    pub port_problems: Vec<PortProblem>,
    /// What failed beside a partial result.
    pub failure: Option<Failure>,
}

/// An answer to one item of `UpdateTargets`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetsAnswer {
    /// The load balancer exists; what came of it.
    Outcome {
        /// What it came to.
        outcome: Outcome,
        /// Nodes that are no targets, and why.
        target_problems: Vec<TargetProblem>,
    },
    /// There is no load balancer to update.
    Absent(AbsenceProof),
    /// It failed.
    Failed(Failure),
}

/// An answer to `DeleteLoadBalancer`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deleted {
    /// What it came to.
    pub outcome: Outcome,
    /// What is left in the cloud.
    pub remaining: Vec<Resource>,
}

/// What reading one load balancer showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadBalancerAnswer {
    /// It is as the fingerprint says.
    InSync,
    /// It differs in these fields.
    Drifted(Vec<String>),
    /// It exists; the plugin cannot compare it.
    Unverified,
    /// It does not exist.
    Absent(AbsenceProof),
    /// It belongs to somebody else.
    NotMine {
        /// Why, for people.
        reason: String,
    },
    /// Asking failed for this one.
    Failed(Failure),
}

/// A cloud resource of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// The cloud's id.
    pub id: String,
    /// The provider's word for its type.
    pub kind: String,
    /// The protocol's class, as its number.
    pub class: i32,
    /// A stable slot, as `listener/tcp/443`.
    pub role: String,
    /// Its mark, if it carries one.
    pub mark: Option<(Mark, i32)>,
    /// Created, adopted or referenced, as the protocol's number.
    pub origin: i32,
    /// Its revision, where the cloud has such a thing.
    pub revision: String,
}

/// A node that is no target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetProblem {
    /// The node.
    pub node: NodeName,
    /// Its UID.
    pub uid: Uid,
    /// CamelCase.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// A port that is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortProblem {
    /// The port.
    pub port: u16,
    /// Its protocol.
    pub protocol: Protocol,
    /// CamelCase.
    pub reason: String,
    /// For people.
    pub message: String,
}
