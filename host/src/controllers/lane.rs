//! The lane of one controller: its workers, and its queue, which `bulkhead_core::lane` opens and closes.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_core::cloud::{Capability, Description};
use bulkhead_core::election::Epoch;
use bulkhead_core::gate::GateView;
use bulkhead_core::lane::{Lane, Order, Situation};
use bulkhead_core::outcome::Next;
use bulkhead_core::territory::Territory;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::kube::stores::all_ready;
use crate::leader::Standing;
use crate::metrics::QueueMetrics;
use crate::plugin::{SessionState, SessionView};
use crate::queue::Queue;
use crate::readiness::Heartbeat;
use crate::tasks::Tasks;

/// How often a lane looks whether its workers get on.
const TICK: Duration = Duration::from_secs(5);
/// No pass takes so long: each has a bounded number of calls, and each call a deadline.
const STUCK: Duration = Duration::from_secs(15 * 60);
/// Longest time between two beats of a lane's heart.
pub const HEARTBEAT: Duration = Duration::from_secs(30);

/// A controller as its lane sees it.
pub trait Controller: Send + Sync + 'static {
    /// What it works on.
    type Key: Clone + Ord + Send + Sync + 'static;

    /// Its name, as in `--controllers`.
    const NAME: &'static str;
    /// What the plugin must be able to do.
    const CAPABILITY: Capability;

    /// Its queue.
    fn queue(&self) -> &Queue<Self::Key>;

    /// A term begins: forget what an earlier one remembered.
    fn begin_term(&self, epoch: &Epoch);

    /// Puts every object into the queue.
    fn add_all(&self);

    /// Called every few seconds, for metrics.
    fn tick(&self) {}

    /// One pass for one key. Never loops without bound, never sleeps.
    fn pass(&self, key: &Self::Key) -> impl Future<Output = Next> + Send;
}

/// What a lane depends on.
#[derive(Debug)]
pub struct Conditions {
    /// The plugin's name, for the names of tasks.
    pub plugin: String,
    /// Who leads.
    pub standing: watch::Receiver<Standing>,
    /// The plugin's session.
    pub session: watch::Receiver<SessionView>,
    /// What is the plugin's own; `None` until that is known.
    pub territory: watch::Receiver<Option<Arc<Territory>>>,
    /// The plugin's gates.
    pub gates: watch::Receiver<GateView>,
    /// The stores that a plan reads: nothing starts before all are complete.
    pub stores: Vec<watch::Receiver<bool>>,
    /// Beats while the workers get on.
    pub heartbeat: Heartbeat,
    /// Set to 1 while the controller runs.
    pub running: Gauge,
    /// Shows the queue's figures.
    pub queue: QueueMetrics,
}

/// Starts the lane and its workers. They end when `tasks` is stopped, each after the pass that it is in.
pub fn start<C: Controller>(controller: Arc<C>, workers: usize, conditions: Conditions, tasks: &Tasks) {
    controller.queue().close();
    let lane = format!("{} of {}", C::NAME, conditions.plugin);
    for worker in 0..workers {
        let name = format!("{lane}: worker {worker}");
        tasks.spawn(name, work(Arc::clone(&controller), tasks.stop_token().clone()));
    }
    let stop = tasks.stop_token().clone();
    tasks.spawn(lane, async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = keep(controller, conditions) => {}
        }
    });
}

async fn work<C: Controller>(controller: Arc<C>, stop: CancellationToken) {
    loop {
        let turn = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            turn = controller.queue().next() => turn,
        };
        let Some(turn) = turn else { return };
        let next = controller.pass(turn.key()).await;
        turn.done(next);
    }
}

async fn keep<C: Controller>(controller: Arc<C>, mut conditions: Conditions) {
    let mut tick = tokio::time::interval(TICK);
    let mut complete = pin!(all_ready(std::mem::take(&mut conditions.stores)));
    loop {
        tokio::select! {
            () = &mut complete => break,
            // Waiting for the API server is no reason to be restarted.
            _ = tick.tick() => conditions.heartbeat.beat(),
        }
    }
    let mut lane = Lane::default();
    let mut lacking = None;
    let mut territory = u64::from(conditions.territory.borrow_and_update().is_some());
    loop {
        let now = situation::<C>(&mut conditions, territory, &mut lacking);
        for order in lane.step(&now) {
            obey(&*controller, &order);
        }
        conditions.running.set(i64::from(lane.is_open()));
        tokio::select! {
            changed = conditions.standing.changed() => if changed.is_err() { return },
            changed = conditions.session.changed() => if changed.is_err() { return },
            changed = conditions.territory.changed() => {
                if changed.is_err() { return }
                territory += 1;
            }
            changed = conditions.gates.changed() => if changed.is_err() { return },
            _ = tick.tick() => {
                let stats = controller.queue().stats();
                if stats.longest < STUCK {
                    conditions.heartbeat.beat();
                }
                conditions.queue.show(stats);
                controller.tick();
            }
        }
    }
}

fn situation<C: Controller>(
    conditions: &mut Conditions,
    territory: u64,
    lacking: &mut Option<u64>,
) -> Situation {
    let standing = conditions.standing.borrow_and_update();
    let leading = standing.leading().map(|term| term.epoch.clone());
    let view = conditions.session.borrow_and_update();
    let is_able = view
        .description
        .as_deref()
        .is_some_and(|it| is_able::<C>(it, view.session, lacking));
    Situation {
        leading,
        session: view.session,
        territory,
        takes_work: view.state.takes_work() && is_able,
        is_troubled: view.state == SessionState::Degraded,
        gate: conditions.gates.borrow_and_update().of(C::CAPABILITY),
    }
}

fn obey<C: Controller>(controller: &C, order: &Order) {
    match order {
        Order::Close => controller.queue().close(),
        Order::BeginTerm(epoch) => controller.begin_term(epoch),
        Order::Let(flow) => controller.queue().set_flow(*flow),
        Order::Open => {
            controller.queue().open();
            controller.add_all();
        }
        Order::RetryFailed => controller.queue().retry_failed(),
    }
}

/// Whether the plugin declares what the controller needs; if not, one line says so for each session.
fn is_able<C: Controller>(description: &Description, session: u64, lacking: &mut Option<u64>) -> bool {
    let able = description.can(C::CAPABILITY);
    if !able && lacking.replace(session) != Some(session) {
        tracing::info!(
            controller = C::NAME,
            plugin = description.provider,
            "off: the plugin does not declare capability {}",
            C::CAPABILITY.name()
        );
    }
    able
}

#[cfg(test)]
mod tests;
