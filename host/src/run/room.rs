//! A room: all that this host runs for one plugin, apart from what it runs for others. What floods it stays in it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bulkhead_core::cloud::Description;
use bulkhead_core::controllers::{Controller as Kind, Verdict};
use bulkhead_core::node::view::NodeView;
use bulkhead_core::outcome::Severity;
use bulkhead_core::service::view::ServiceView;
use bulkhead_core::territory::{Complaint, Territory};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::show;
use super::wanted::Wanted;
use crate::announcer::{announce, led};
use crate::config::{ControllerConfig, DeadlineConfig, PluginConfig};
use crate::controllers::Effects;
use crate::controllers::lane::{self, Conditions, Controller};
use crate::controllers::node::NodeController;
use crate::controllers::service::ServiceController;
use crate::kube::events::{EventRecorder, EventSpec, Regarding, component};
use crate::kube::stores::Store;
use crate::kube::writer::Writer;
use crate::leader::{Leadership, Standing};
use crate::loader::loader;
use crate::metrics::{Metrics, NODES, QueueMetrics, SERVICES};
use crate::plugin::{self, PluginHandle};
use crate::queue::Queue;
use crate::readiness::Health;
use crate::status::{Presence, QueuePresence};
use crate::tasks::Tasks;

/// Longest wait for the running calls of a plugin that is taken out of the configuration: a write and its answer.
const LAST_CALLS: Duration = Duration::from_secs(70);

/// Event reason when a plugin offers what another one owns, or does not offer what it is configured to own.
const CLAIM_REFUSED: &str = "PluginClaimRefused";

/// What all rooms share.
#[derive(Debug)]
pub(super) struct House {
    pub(super) leadership: Leadership,
    pub(super) writer: Writer,
    pub(super) events: EventRecorder,
    /// The object that Events about plugins regard: plugins are no objects of the cluster.
    pub(super) notice_board: Regarding,
    pub(super) nodes: Store<NodeView>,
    pub(super) services: Store<ServiceView>,
    pub(super) cluster: plugin::Cluster,
    pub(super) controllers: ControllerConfig,
    /// How often initialised nodes are compared with their instances.
    pub(super) node_refresh: watch::Sender<Duration>,
    pub(super) metrics: Metrics,
    pub(super) health: Health,
    /// Ended first: whoever begins calls.
    pub(super) workers: Tasks,
    /// Ended after the lease is released.
    pub(super) base: Tasks,
}

impl House {
    /// Initialised nodes are compared with their instances every `pause` from their next comparison on.
    pub(super) fn refresh_nodes(&self, pause: Duration) {
        self.node_refresh
            .send_if_modified(|refresh| std::mem::replace(refresh, pause) != pause);
    }

    /// Tells people what a plugin does not get. The leader tells it; standbys see the same.
    pub(super) fn complain(&self, complaint: &Complaint) {
        tracing::warn!("{complaint}");
        let regarding = led(&self.notice_board, &self.leadership.subscribe().borrow());
        if let Some(regarding) = regarding {
            self.events.with_component(component::MANAGER).emit(EventSpec {
                regarding,
                severity: Severity::Warning,
                reason: CLAIM_REFUSED.into(),
                note: complaint.to_string(),
                action: "Divide",
            });
        }
    }
}

/// All that runs for one plugin.
#[derive(Debug)]
pub(super) struct Room {
    config: PluginConfig,
    /// Of a plugin of the plugins directory: which of its appearances this is.
    appearance: Option<u64>,
    handle: PluginHandle,
    territory: watch::Sender<Option<Arc<Territory>>>,
    /// Cancelled when the plugin is to have no part in this host's leadership any more.
    retired: CancellationToken,
    /// What the plugin said of itself when it last did.
    described: Mutex<Option<Arc<Description>>>,
    queues: Vec<QueuePresence>,
    workers: Tasks,
    base: Tasks,
    house: Arc<House>,
}

impl Room {
    /// Starts everything for the plugin `config`. Its controllers begin once they are told what is its own.
    pub(super) fn open(house: &Arc<House>, wanted: Wanted) -> Self {
        let appearance = appearance(&wanted);
        let Wanted { config, found } = wanted;
        let base = house.base.below();
        let retired = CancellationToken::new();
        let standing = standing(house.leadership.subscribe(), retired.clone(), &config.name, &base);
        let observer = Arc::new(house.metrics.plugins.clone());
        let settings = settings(house, &config);
        let handle = match found {
            None => plugin::start(settings, standing.clone(), observer, &base),
            Some(found) => plugin::start_found(settings, found.sockets, standing.clone(), observer, &base),
        };
        let mut room = Self {
            config,
            appearance,
            handle,
            territory: watch::Sender::new(None),
            retired,
            described: Mutex::default(),
            queues: Vec::new(),
            workers: house.workers.below(),
            base,
            house: Arc::clone(house),
        };
        for kind in Kind::ALL {
            match (house.controllers.selection.verdict(kind), kind) {
                (Verdict::On, Kind::CloudNode) => room.queues.push(room.start_nodes(&standing)),
                (Verdict::On, Kind::ServiceLb) => room.queues.push(room.start_services(&standing)),
                // Said once, for the whole host.
                _ => {}
            }
        }
        room.base.spawn(
            format!("Events of plugin {}", room.config.name),
            until_stopped(
                room.base.stop_token().clone(),
                announce(
                    room.handle.clone(),
                    house.events.with_component(component::MANAGER),
                    standing.clone(),
                    house.notice_board.clone(),
                ),
            ),
        );
        room.base.spawn(
            format!("show plugin {}", room.config.name),
            show::plugin(
                room.handle.clone(),
                house.leadership.subscribe(),
                (house.health.clone(), house.metrics.plugins.clone()),
                room.base.stop_token().clone(),
            ),
        );
        room
    }

    /// Takes over what `wanted` claims, if nothing else is different.
    pub(super) fn becomes(&mut self, wanted: &Wanted) -> bool {
        let claims = std::mem::replace(&mut self.config.claims, wanted.config.claims.clone());
        let is_same = self.config == wanted.config && self.appearance == appearance(wanted);
        if !is_same {
            self.config.claims = claims;
        }
        is_same
    }

    /// What the plugin is configured to be.
    pub(super) const fn config(&self) -> &PluginConfig {
        &self.config
    }

    /// The plugin.
    pub(super) const fn plugin(&self) -> &PluginHandle {
        &self.handle
    }

    /// The plugin, and what works for it.
    pub(super) fn presence(&self) -> Presence {
        Presence {
            plugin: self.handle.clone(),
            is_leaving: false,
            queues: self.queues.clone(),
        }
    }

    /// What the plugin said of itself when it last did.
    pub(super) fn last_description(&self) -> Option<Arc<Description>> {
        let mut described = self.described.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(now) = self.handle.description() {
            *described = Some(now);
        }
        described.clone()
    }

    /// Says what the plugin owns from now on.
    pub(super) fn own(&self, territory: Territory) {
        self.territory.send_if_modified(|known| {
            let is_news = known.as_deref() != Some(&territory);
            if is_news {
                *known = Some(Arc::new(territory));
            }
            is_news
        });
    }

    /// Takes no new work, lets running calls end, takes the plugin's right to write, and ends.
    pub(super) async fn close(self) {
        let name = &self.config.name;
        tracing::info!(
            plugin = name,
            "the plugin is no longer configured: its calls end, its objects stay as they are"
        );
        if let Err(running) = self.workers.stop(LAST_CALLS).await {
            tracing::warn!(plugin = name, "ending although calls have not: {running}");
        }
        self.retired.cancel();
        if tokio::time::timeout(LAST_CALLS, self.handle.stood_down())
            .await
            .is_err()
        {
            tracing::warn!(plugin = name, "the plugin has not answered that it stands down");
        }
        if let Err(running) = self.base.stop(LAST_CALLS).await {
            tracing::warn!(plugin = name, "ending although tasks have not: {running}");
        }
    }

    fn start_nodes(&self, standing: &watch::Receiver<Standing>) -> QueuePresence {
        let house = &self.house;
        let (loader, batches) = loader(self.effects(component::NODE), house.nodes.clone());
        self.base.spawn(
            format!("instance loader of {}", self.config.name),
            batches.run(self.base.stop_token().clone()),
        );
        let metrics = house.metrics.workqueues.queue(NODES, &self.config.name);
        let queue = Queue::new(metrics.clone());
        let controller = NodeController::new(
            house.nodes.clone(),
            loader,
            self.effects(component::NODE),
            queue.clone(),
            house.node_refresh.subscribe(),
            house.metrics.nodes.clone(),
        );
        let stores = vec![house.nodes.ready()];
        let conditions = self.conditions::<NodeController>(Kind::CloudNode, standing, metrics, stores);
        lane::start(
            controller,
            house.controllers.node_workers.get(),
            conditions,
            &self.workers,
        );
        QueuePresence::new(NODES, queue)
    }

    fn start_services(&self, standing: &watch::Receiver<Standing>) -> QueuePresence {
        let house = &self.house;
        let metrics = house.metrics.workqueues.queue(SERVICES, &self.config.name);
        let queue = Queue::new(metrics.clone());
        let controller = ServiceController::new(
            house.services.clone(),
            house.nodes.clone(),
            self.effects(component::SERVICE),
            queue.clone(),
            house.cluster.uid.clone(),
            house.metrics.services.clone(),
        );
        let stores = vec![house.nodes.ready(), house.services.ready()];
        let conditions = self.conditions::<ServiceController>(Kind::ServiceLb, standing, metrics, stores);
        lane::start(
            controller,
            house.controllers.service_workers.get(),
            conditions,
            &self.workers,
        );
        QueuePresence::new(SERVICES, queue)
    }

    fn effects(&self, component: &'static str) -> Effects {
        Effects {
            leadership: self.house.leadership.clone(),
            plugin: self.handle.clone(),
            territory: self.territory.subscribe(),
            writer: self.house.writer.clone(),
            events: self.house.events.with_component(component),
        }
    }

    fn conditions<C: Controller>(
        &self,
        kind: Kind,
        standing: &watch::Receiver<Standing>,
        queue: QueueMetrics,
        stores: Vec<watch::Receiver<bool>>,
    ) -> Conditions {
        let house = &self.house;
        Conditions {
            plugin: self.config.name.clone(),
            standing: standing.clone(),
            session: self.handle.subscribe(),
            gates: self.handle.gates(),
            territory: self.territory.subscribe(),
            stores,
            heartbeat: house
                .health
                .heartbeat(format!("{}-{}", C::NAME, self.config.name), lane::HEARTBEAT),
            running: house.metrics.leadership.running(kind.alias(), &self.config.name),
            queue,
        }
    }
}

fn appearance(wanted: &Wanted) -> Option<u64> {
    wanted.found.as_ref().map(|found| found.appearance)
}

/// Who leads, as the plugin is to see it: once `retired`, this host only waits for what runs.
fn standing(
    mut leader: watch::Receiver<Standing>,
    retired: CancellationToken,
    plugin: &str,
    tasks: &Tasks,
) -> watch::Receiver<Standing> {
    let (sender, receiver) = watch::channel(leader.borrow_and_update().clone());
    let stop = tasks.stop_token().clone();
    tasks.spawn(format!("standing for plugin {plugin}"), async move {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Ok(()) = leader.changed() => {}
                () = retired.cancelled(), if matches!(&*sender.borrow(), Standing::Leading(_)) => {}
            }
            let standing = match &*leader.borrow_and_update() {
                Standing::Leading(term) if retired.is_cancelled() => Standing::Retired(term.clone()),
                standing @ (Standing::Standby
                | Standing::Leading(_)
                | Standing::Draining(_)
                | Standing::Retired(_)) => standing.clone(),
            };
            sender.send_replace(standing);
        }
    });
    receiver
}

/// A task that has nothing to do once what it follows has ended.
async fn until_stopped(stop: CancellationToken, task: impl Future<Output = ()>) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = task => stop.cancelled().await,
    }
}

fn settings(house: &House, config: &PluginConfig) -> plugin::Settings {
    let run_dir = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    plugin::Settings {
        name: config.name.clone(),
        endpoint: config.endpoint.clone(),
        allowed_uids: config.allowed_uids.clone(),
        provider: config.provider.clone(),
        cluster: house.cluster.clone(),
        host_name: house.leadership.identity().to_owned(),
        run_root: plugin::run_root(run_dir.as_deref()),
        memory_limit: config.memory_limit,
        tls: config.tls.clone(),
        timing: timing(&config.deadlines),
        budget: config.budget,
    }
}

/// The protocol's deadlines, but where the configuration has its own.
fn timing(deadlines: &DeadlineConfig) -> plugin::Timing {
    let protocol = plugin::Timing::DEFAULT;
    plugin::Timing {
        handshake: deadlines.handshake.unwrap_or(protocol.handshake),
        status: deadlines.status.unwrap_or(protocol.status),
        read: deadlines.read.unwrap_or(protocol.read),
        look: deadlines.look.unwrap_or(protocol.look),
        write_soft: deadlines.write.map_or(protocol.write_soft, |write| write * 5 / 6),
        write: deadlines.write.unwrap_or(protocol.write),
        ..protocol
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.house.health.forget_plugin(&self.config.name);
        self.house.metrics.forget_plugin(&self.config.name);
    }
}
