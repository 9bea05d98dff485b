//! What controllers hold of a plugin: its state, and its verbs as functions over the core's values.

mod balancers;
mod instances;

use std::sync::Arc;

use bulkhead_core::cloud::{Certainty, Description, Failure, Reason};
use bulkhead_core::endpoint::Endpoint;
use bulkhead_core::gate::GateView;
use bulkhead_proto::v1;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

pub use self::balancers::{Ensure, Right};

use super::Settings;
use super::access::{Access, LinkUse};
use super::activity::{Activity, Calls};
use super::call::own_failure;
use super::convert::text::clean;
use super::front::Front;
use super::link::Work;
use super::session::SessionView;
use crate::clock;

/// A plugin, whatever its state. Clones are the same plugin.
#[derive(Clone, Debug)]
pub struct PluginHandle {
    settings: Arc<Settings>,
    view: watch::Receiver<SessionView>,
    gates: watch::Receiver<GateView>,
    access: watch::Receiver<Access>,
    activity: Arc<Activity>,
}

impl PluginHandle {
    pub(crate) fn new(settings: Arc<Settings>, front: &Front) -> Self {
        Self {
            settings,
            view: front.subscribe(),
            gates: front.gatekeeper().subscribe(),
            access: front.access(),
            activity: Arc::clone(&front.gatekeeper().activity),
        }
    }

    /// The plugin's name in metrics and logs.
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// The state of the session, now and in future.
    pub fn subscribe(&self) -> watch::Receiver<SessionView> {
        self.view.clone()
    }

    /// What the plugin says of itself; `None` without a session.
    pub fn description(&self) -> Option<Arc<Description>> {
        self.view.borrow().description.clone()
    }

    /// The gates, now and in future. They are the same from session to session.
    pub fn gates(&self) -> watch::Receiver<GateView> {
        self.gates.clone()
    }

    /// Where it listens.
    pub fn endpoint(&self) -> &Endpoint {
        &self.settings.endpoint
    }

    /// What the calls to it come to lately.
    pub fn calls(&self) -> Calls {
        self.activity.calls(clock::now())
    }

    /// Waits until no process may write by a `Lead` of this host: each has answered `Lead(0)`, or was a child and is
    /// dead, or its time is over.
    pub async fn stood_down(&self) {
        let mut view = self.view.clone();
        loop {
            let Some(until) = view.borrow_and_update().led.until() else {
                return;
            };
            let left = until.saturating_since(clock::now());
            if left.is_zero() {
                return;
            }
            tokio::select! {
                () = sleep(left) => {}
                // Without an owner nothing changes any more.
                Ok(()) = view.changed() => {}
            }
        }
    }

    /// The session, if it takes work: a plugin that is not ready, or not led by this host, is only asked how it is.
    /// While one process replaces another, calls wait for it as long as they might take themselves.
    async fn link(&self, work: Work) -> Result<LinkUse, Failure> {
        let patience = work.verb.class.deadline(&self.settings.timing);
        let link = timeout(patience, Access::pass(self.access.clone()))
            .await
            .ok()
            .flatten();
        let state = self.view.borrow().state;
        link.filter(|_| state.takes_work()).ok_or_else(|| {
            let message = format!("no {}: plugin {} is {state}", work.verb.name, self.name());
            own_failure(Reason::Disconnected, Certainty::NotApplied, clean(&message))
        })
    }

    fn cluster(&self) -> v1::Cluster {
        let cluster = &self.settings.cluster;
        v1::Cluster {
            uid: cluster.uid.clone(),
            name: cluster.name.clone(),
        }
    }
}

/// The only one, if there is one only.
const fn only<T>(items: &[T]) -> Option<&T> {
    match items {
        [only] => Some(only),
        _ => None,
    }
}
