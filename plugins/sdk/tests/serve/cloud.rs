//! A cloud that counts, and does what a load balancer's class says.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bulkhead_plugin::v1::{self, Capability, Outcome, SchemeUse};
use bulkhead_plugin::{Call, CloudProvider, Description, Ending, PluginError, Result, TargetUpdate, Term};

/// How long a create takes.
pub(crate) const CREATE: Duration = Duration::from_millis(400);
/// A class whose Ensure panics.
pub(crate) const PANICS: &str = "panics";
/// A class whose Ensure waits until it should answer, and says why in `progress`.
pub(crate) const WAITS: &str = "waits";
/// A class whose Ensure waits until it may not write any more, then tries to.
pub(crate) const WRITES_LATE: &str = "writes-late";

#[derive(Debug, Default)]
pub(crate) struct Cloud {
    pub(crate) creates: AtomicUsize,
    pub(crate) begun: AtomicUsize,
    pub(crate) initialised: AtomicUsize,
    pub(crate) stood_down: AtomicUsize,
    /// While above zero, initialising fails, and counts it down.
    pub(crate) failing: AtomicUsize,
    balancers: Mutex<BTreeSet<String>>,
    last_nodes: Mutex<Vec<String>>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct CountingProvider(pub(crate) Arc<Cloud>);

impl Cloud {
    pub(crate) fn has(&self, mark: &str) -> bool {
        self.balancers.lock().unwrap().contains(mark)
    }

    pub(crate) fn last_nodes(&self) -> Vec<String> {
        self.last_nodes.lock().unwrap().clone()
    }

    fn saw(&self, nodes: &v1::NodeSet) {
        *self.last_nodes.lock().unwrap() = nodes.nodes.iter().map(|node| node.name.clone()).collect();
    }
}

impl CloudProvider for CountingProvider {
    fn describe(&self) -> Description {
        Description::new("counting", "1.0.0")
            .capability(Capability::Instances)
            .capability(Capability::Lb)
            .targets(v1::TargetKind::Instance)
            .scheme("counting", SchemeUse::Unique)
            .limits(v1::Limits {
                max_batch_nodes: Some(2),
                ..Default::default()
            })
    }

    async fn initialise(&self, _term: &Term) -> Result<()> {
        if self.0.failing.load(Ordering::SeqCst) > 0 {
            self.0.failing.fetch_sub(1, Ordering::SeqCst);
            return Err(PluginError::cloud_unavailable("no route to the cloud"));
        }
        self.0.initialised.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    async fn stand_down(&self) {
        self.0.stood_down.fetch_add(1, Ordering::SeqCst);
    }

    async fn get_instances(
        &self,
        _call: &Call,
        request: v1::GetInstancesRequest,
    ) -> Result<v1::GetInstancesResponse> {
        let results = request.nodes.into_iter().map(|node| v1::InstanceResult {
            node_name: node.name,
            node_uid: node.uid,
            result: Some(v1::instance_result::Result::NotMine(v1::NotMine::default())),
        });
        Ok(v1::GetInstancesResponse {
            results: results.collect(),
        })
    }

    async fn ensure_load_balancer(
        &self,
        call: &Call,
        request: v1::EnsureLoadBalancerRequest,
        nodes: Arc<v1::NodeSet>,
    ) -> Result<v1::EnsureLoadBalancerResponse> {
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        self.0.saw(&nodes);
        let mark = request.r#ref.unwrap_or_default().mark;
        match request.spec.unwrap_or_default().class.as_str() {
            PANICS => panic!("as the test wants it"),
            WAITS => return Ok(in_progress(call.ending().await)),
            WRITES_LATE => {
                while call.may_write() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                call.writing()?;
            }
            _ => {}
        }
        if !self.0.has(&mark) {
            call.writing()?;
            tokio::time::sleep(CREATE).await;
            self.0.creates.fetch_add(1, Ordering::SeqCst);
            self.0.balancers.lock().unwrap().insert(mark);
        }
        Ok(v1::EnsureLoadBalancerResponse {
            outcome: Outcome::Done.into(),
            ..Default::default()
        })
    }

    async fn update_targets(
        &self,
        _call: &Call,
        updates: Vec<TargetUpdate>,
    ) -> Result<Vec<v1::UpdateTargetsResult>> {
        for update in &updates {
            self.0.saw(&update.nodes);
        }
        let done = |update: TargetUpdate| v1::UpdateTargetsResult {
            service: update.reference.service,
            outcome: Outcome::Done.into(),
            ..Default::default()
        };
        Ok(updates.into_iter().map(done).collect())
    }
}

fn in_progress(ending: Ending) -> v1::EnsureLoadBalancerResponse {
    v1::EnsureLoadBalancerResponse {
        outcome: Outcome::InProgress.into(),
        progress: format!("{ending:?}"),
        ..Default::default()
    }
}
