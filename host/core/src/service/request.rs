//! What the host asks of a plugin about one Service.

use std::sync::Arc;

use crate::cloud::Resource;
use crate::ids::{Mark, ServiceKey, Uid};
use crate::service::spec::{Circumstances, Spec};
use crate::service::view::Ingress;

/// Everything that identifies one Service's load balancer, and all the host knows of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalancerRef {
    /// Namespace and name.
    pub service: ServiceKey,
    /// The Service's UID.
    pub uid: Uid,
    /// The mark of role "".
    pub mark: Mark,
    /// What was last sent to Ensure; `None`: never, or unknown.
    pub applied: Option<Arc<Spec>>,
    /// What the Service says now; `None`: it is gone.
    pub current: Option<Current>,
    /// What is on record in the cloud.
    pub resources: Vec<Resource>,
}

/// A Service as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Current {
    /// What it asks for.
    pub spec: Arc<Spec>,
    /// What else the wire carries.
    pub circumstances: Circumstances,
    /// Its status.
    pub ingress: Vec<Ingress>,
}

/// An intent: one wish to write, until it is concluded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// UUID v4, kept until the intent is concluded.
    pub request_id: String,
    /// Why the host writes.
    pub reason: IntentReason,
}

/// Why the host writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntentReason {
    /// A user changed the object.
    Changed,
    /// The cloud no longer is as it was left.
    Drift,
    /// The host has no memory of the object.
    Takeover,
    /// An earlier attempt did not conclude.
    Retry,
}
