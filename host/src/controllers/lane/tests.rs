//! Lanes of two capabilities of one plugin.

use std::sync::Mutex;

use bulkhead_core::clock::Instant;
use bulkhead_core::cloud::TargetKind;
use bulkhead_core::gate::{Gate, Why};
use bulkhead_core::territory::Territory;
use prometheus_client::registry::Registry;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::*;
use crate::leader::Term;
use crate::metrics::Metrics;
use crate::plugin::{Led, SessionState};
use crate::readiness::Health;
use crate::{clock, queue::Queue};

const SOON: Duration = Duration::from_secs(10);

/// A controller that has something to do for each key, for as long as it is told to.
struct Busy<const LB: bool> {
    queue: Queue<u32>,
    passes: watch::Sender<Vec<u32>>,
    /// A pass ends when there is a permit for it.
    ends: Semaphore,
    terms: Mutex<u32>,
}

impl<const LB: bool> Controller for Busy<LB> {
    type Key = u32;

    const NAME: &'static str = "busy";
    const CAPABILITY: Capability = if LB { Capability::Lb } else { Capability::Instances };

    fn queue(&self) -> &Queue<u32> {
        &self.queue
    }

    fn begin_term(&self, _epoch: &Epoch) {
        *self.terms.lock().unwrap() += 1;
    }

    fn add_all(&self) {
        (0..4).for_each(|key| self.queue.add(key));
    }

    async fn pass(&self, key: &u32) -> Next {
        self.passes.send_modify(|passes| passes.push(*key));
        self.ends.acquire().await.unwrap().forget();
        Next::AwaitChange
    }
}

/// A host that leads, with a plugin that works.
struct Fixture {
    gates: watch::Sender<GateView>,
    territory: watch::Sender<Option<Arc<Territory>>>,
    session: watch::Sender<SessionView>,
    standing: watch::Sender<Standing>,
    metrics: Metrics,
    health: Health,
    tasks: Tasks,
}

impl Fixture {
    fn new() -> Self {
        let description = Description {
            provider: "test".to_owned(),
            version: String::new(),
            instance_id: "1".to_owned(),
            capabilities: vec![Capability::Instances, Capability::Lb],
            schemes: Vec::new(),
            classes: Vec::new(),
            targets: TargetKind::Address,
            mixed_protocols: false,
            without_node_ports: false,
            annotation_keys: bulkhead_core::cloud::KeySet::default(),
            label_keys: bulkhead_core::cloud::KeySet::default(),
            max_batch_nodes: 1,
            max_targets: None,
            behaviour_digest: String::new(),
        };
        let view = SessionView {
            state: SessionState::Active,
            since: clock::now(),
            reason: String::new(),
            description: Some(Arc::new(description)),
            session: 1,
            led: Led::default(),
        };
        let term = Term {
            epoch: Epoch {
                lease_uid: "lease".to_owned(),
                transitions: 1,
            },
            renewed: clock::now(),
            lease_duration: Duration::from_secs(15),
            lost: CancellationToken::new(),
        };
        Self {
            gates: watch::Sender::default(),
            territory: watch::Sender::new(Some(Arc::new(Territory::nothing("a")))),
            session: watch::Sender::new(view),
            standing: watch::Sender::new(Standing::Leading(term)),
            metrics: Metrics::register(&mut Registry::default()),
            health: Health::default(),
            tasks: Tasks::new(),
        }
    }

    fn start<const LB: bool>(&self) -> Arc<Busy<LB>> {
        let figures = self.metrics.workqueues.queue("test", "a");
        let controller = Arc::new(Busy {
            queue: Queue::new(figures.clone()),
            passes: watch::Sender::default(),
            ends: Semaphore::new(0),
            terms: Mutex::default(),
        });
        let conditions = Conditions {
            plugin: "a".to_owned(),
            territory: self.territory.subscribe(),
            standing: self.standing.subscribe(),
            session: self.session.subscribe(),
            gates: self.gates.subscribe(),
            stores: Vec::new(),
            heartbeat: self.health.heartbeat("test", HEARTBEAT),
            running: Gauge::default(),
            queue: figures,
        };
        start(Arc::clone(&controller), 2, conditions, &self.tasks);
        controller
    }

    fn set(&self, capability: Capability, gate: Gate) {
        self.gates.send_modify(|view| {
            view.gates.insert(capability, gate);
        });
    }
}

impl<const LB: bool> Busy<LB> {
    /// Waits until so many passes have begun.
    async fn begins(&self, count: usize) -> Vec<u32> {
        let mut passes = self.passes.subscribe();
        let seen = timeout(SOON, passes.wait_for(|passes| passes.len() == count)).await;
        let in_vain = || panic!("in vain: {:?}", self.passes.borrow());
        seen.unwrap_or_else(|_| in_vain()).unwrap().clone()
    }

    /// Waits until so many keys are in work and so many are due.
    async fn has(&self, in_work: usize, due: usize) {
        let look = async {
            while (self.queue.stats().in_work, self.queue.stats().depth) != (in_work, due) {
                tokio::task::yield_now().await;
            }
        };
        let seen = timeout(SOON, look).await;
        assert!(seen.is_ok(), "in vain: {:?}", self.queue.stats());
    }
}

fn shut(why: Why) -> Gate {
    Gate::Shut {
        why,
        until: Some(Instant::ORIGIN),
    }
}

#[tokio::test]
async fn a_breaker_closes_the_lane_of_its_capability_and_a_trial_lets_one_key_through() {
    let fixture = Fixture::new();
    let (nodes, services) = (fixture.start::<false>(), fixture.start::<true>());
    nodes.begins(2).await;
    services.begins(2).await;

    fixture.set(Capability::Lb, shut(Why::Unreached));
    services.has(2, 0).await;
    nodes.ends.add_permits(2);
    services.ends.add_permits(2);
    nodes.begins(4).await;
    services.has(0, 0).await;
    services.queue.add_now(7);
    services.has(0, 0).await;
    services.begins(2).await;

    fixture.set(Capability::Lb, Gate::Trial { why: Why::Unreached });
    services.begins(3).await;
    services.has(1, 3).await;

    fixture.set(Capability::Lb, Gate::Open);
    services.begins(4).await;
    services.has(2, 2).await;
    assert_eq!(*services.terms.lock().unwrap(), 1);
}

#[tokio::test]
async fn a_pause_holds_keys_back_and_forgets_none() {
    let fixture = Fixture::new();
    fixture.set(Capability::Lb, shut(Why::Throttled));
    let services = fixture.start::<true>();
    services.has(0, 4).await;
    services.queue.add(7);
    services.has(0, 5).await;
    fixture.set(Capability::Lb, Gate::Open);
    let mut passes = services.begins(2).await;
    passes.sort_unstable();
    assert_eq!(passes, [0, 1], "in the order in which they became due");
    services.has(2, 3).await;
}
