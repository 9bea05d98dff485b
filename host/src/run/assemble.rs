//! Puts the parts together once the API server can be reached.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_core::controllers::{Controller as Kind, Verdict};
use bulkhead_core::ids::Uid;
use bulkhead_core::node::view::NodeView;
use bulkhead_core::outcome::Severity;
use bulkhead_core::service::view::ServiceView;
use tokio::sync::{mpsc, watch};

use super::{ANNOUNCEMENTS, Host, Stages, elect, show};
use crate::config::{Config, ControllerConfig};
use crate::controllers::Effects;
use crate::controllers::lane::{self, Conditions, Controller};
use crate::controllers::node::NodeController;
use crate::controllers::service::ServiceController;
use crate::kube::client::{Connection, cluster_uid, wait_for_api};
use crate::kube::events::{EventRecorder, EventSpec, Regarding, component, events};
use crate::kube::stores::Store;
use crate::kube::views::View;
use crate::kube::writer::Writer;
use crate::leader::{Announcement, EVENT_REASON, Leadership};
use crate::loader::loader;
use crate::metrics::{Metrics, QueueMetrics};
use crate::plugin::{self, PluginHandle};
use crate::queue::Queue;
use crate::readiness::{Condition, Health};
use crate::tasks::Tasks;

/// How the host is watched.
#[derive(Debug)]
pub(super) struct Watching {
    pub(super) metrics: Metrics,
    pub(super) health: Health,
    /// Every store that a controller reads is complete.
    pub(super) synced: Condition,
    /// This process takes part in the election, or needs none.
    pub(super) elected: Condition,
}

impl Watching {
    /// From here on `/readyz` says that the host is not ready yet.
    pub(super) fn new(metrics: Metrics, health: Health) -> Self {
        let synced = health.condition("stores");
        let elected = health.condition("leader-election");
        Self {
            metrics,
            health,
            synced,
            elected,
        }
    }
}

/// What controllers are made from.
struct Parts<'a> {
    effects: Effects,
    nodes: Store<NodeView>,
    services: Store<ServiceView>,
    cluster_uid: String,
    watching: &'a Watching,
}

/// Waits for the API server, then starts everything else.
pub(super) async fn assemble(
    config: Config,
    api: Connection,
    election: Connection,
    watching: Watching,
    stages: &Stages,
) -> Host {
    wait_for_api(&api).await;
    let cluster_uid = cluster_uid(&api, config.cluster_id.as_deref()).await;

    let (sender, announcements) = mpsc::channel(ANNOUNCEMENTS);
    let (leadership, driver) = elect(&config, election, sender);
    let stop = stages.base.stop_token().clone();
    stages.base.spawn("leader election", async move {
        driver.await;
        // The lease was released: what is left of the host ends soon.
        stop.cancelled().await;
    });
    let recorder = start_events(&api, &leadership, announcements, &watching, &stages.base);
    let plugin = start_plugin(&config, &cluster_uid, &leadership, &watching, &stages.base);
    let counts = watching.metrics.api.clone();
    let writer = Writer::new(&api, config.api.writes_in_flight, move |verb, result| {
        counts.write(verb, result);
    });
    let parts = Parts {
        effects: Effects {
            leadership: leadership.clone(),
            plugin: plugin.clone(),
            writer,
            events: recorder,
        },
        nodes: Store::new(),
        services: Store::new(),
        cluster_uid,
        watching: &watching,
    };
    start_controllers(&config.controllers, &parts, stages);
    // Only now: the controllers' handlers are on the stores, and no change may be missed.
    // Only what a controller reads: the rights of the others may not have been granted.
    let mut stores = vec![follow(&parts.nodes, &api, &stages.base)];
    if config.controllers.selection.verdict(Kind::ServiceLb) == Verdict::On {
        stores.push(follow(&parts.services, &api, &stages.base));
    }
    stages.base.spawn(
        "show",
        show::run(show::Shown {
            leadership: leadership.clone(),
            plugin: plugin.clone(),
            stores,
            watching,
            stop: stages.base.stop_token().clone(),
        }),
    );
    Host { leadership, plugin }
}

/// Events of all components are written by one task.
fn start_events(
    api: &Connection,
    leadership: &Leadership,
    mut announcements: mpsc::Receiver<Announcement>,
    watching: &Watching,
    tasks: &Tasks,
) -> EventRecorder {
    let dropped = watching.metrics.api.events_dropped.clone();
    let (recorder, writer) = events(api.client.clone(), leadership.identity(), move || {
        dropped.inc();
    });
    let stop = tasks.stop_token().clone();
    tasks.spawn("events", async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = writer.run() => stop.cancelled().await,
        }
    });
    let manager = recorder.with_component(component::MANAGER);
    let stop = tasks.stop_token().clone();
    tasks.spawn("leader election events", async move {
        loop {
            let next = tokio::select! {
                () = stop.cancelled() => return,
                next = announcements.recv() => next,
            };
            match next {
                Some(news) => manager.emit(EventSpec {
                    regarding: Regarding::lease(&news.namespace, &news.name, Some(Uid(news.uid))),
                    severity: Severity::Normal,
                    reason: EVENT_REASON.into(),
                    note: news.message,
                    action: "LeaderElection",
                }),
                None => return stop.cancelled().await,
            }
        }
    });
    recorder
}

fn start_plugin(
    config: &Config,
    cluster_uid: &str,
    leadership: &Leadership,
    watching: &Watching,
    tasks: &Tasks,
) -> PluginHandle {
    let run_dir = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let settings = plugin::Settings {
        name: config
            .plugin
            .provider
            .clone()
            .unwrap_or_else(|| "default".to_owned()),
        endpoint: config.plugin.endpoint.clone(),
        allowed_uids: config.plugin.allowed_uids.clone(),
        provider: config.plugin.provider.clone(),
        cluster: plugin::Cluster {
            uid: cluster_uid.to_owned(),
            name: config.cluster_name.clone(),
        },
        host_name: leadership.identity().to_owned(),
        run_root: plugin::run_root(run_dir.as_deref()),
        memory_limit: None,
        timing: plugin::Timing::DEFAULT,
    };
    plugin::start(
        settings,
        leadership.subscribe(),
        Arc::new(watching.metrics.plugins.clone()),
        tasks,
    )
}

/// Starts the controllers that are wanted and built; the others each say why not.
fn start_controllers(config: &ControllerConfig, parts: &Parts<'_>, stages: &Stages) {
    if config.routes && !config.cluster_cidrs.is_empty() {
        tracing::info!(
            "--cluster-cidr is given, but node-route-controller is not built yet: no routes are written"
        );
    }
    for kind in Kind::ALL {
        let verdict = config.selection.verdict(kind);
        match (verdict, kind) {
            (Verdict::On, Kind::CloudNode) => start_nodes(config, parts, stages),
            (Verdict::On, Kind::ServiceLb) => start_services(config, parts, &stages.workers),
            _ => {
                if let Some(why) = verdict.explain(kind) {
                    tracing::info!("{why}");
                }
            }
        }
    }
}

fn start_nodes(config: &ControllerConfig, parts: &Parts<'_>, stages: &Stages) {
    let (loader, batches) = loader(parts.effects.plugin.clone(), parts.nodes.clone());
    stages
        .base
        .spawn("instance loader", batches.run(stages.base.stop_token().clone()));
    let queue = parts.watching.metrics.workqueues.queue("Nodes");
    let controller = NodeController::new(
        parts.nodes.clone(),
        loader,
        parts.effects_as(component::NODE),
        Queue::new(queue.clone()),
        config.node_refresh,
        parts.watching.metrics.nodes.clone(),
    );
    let conditions = parts.conditions::<NodeController>(Kind::CloudNode, queue, vec![parts.nodes.ready()]);
    lane::start(controller, config.node_workers.get(), conditions, &stages.workers);
}

fn start_services(config: &ControllerConfig, parts: &Parts<'_>, workers: &Tasks) {
    let queue = parts.watching.metrics.workqueues.queue("service");
    let controller = ServiceController::new(
        parts.services.clone(),
        parts.nodes.clone(),
        parts.effects_as(component::SERVICE),
        Queue::new(queue.clone()),
        parts.cluster_uid.clone(),
        parts.watching.metrics.services.clone(),
    );
    let stores = vec![parts.nodes.ready(), parts.services.ready()];
    let conditions = parts.conditions::<ServiceController>(Kind::ServiceLb, queue, stores);
    lane::start(controller, config.service_workers.get(), conditions, workers);
}

impl Parts<'_> {
    fn effects_as(&self, component: &'static str) -> Effects {
        Effects {
            events: self.effects.events.with_component(component),
            ..self.effects.clone()
        }
    }

    fn conditions<C: Controller>(
        &self,
        kind: Kind,
        queue: QueueMetrics,
        stores: Vec<watch::Receiver<bool>>,
    ) -> Conditions {
        Conditions {
            standing: self.effects.leadership.subscribe(),
            session: self.effects.plugin.subscribe(),
            stores,
            heartbeat: self.watching.health.heartbeat(C::NAME, lane::HEARTBEAT),
            running: self.watching.metrics.leadership.running(kind.alias()),
            queue,
        }
    }
}

/// Keeps a store up to date until the host ends; whether it is complete.
fn follow<V: View>(store: &Store<V>, api: &Connection, tasks: &Tasks) -> watch::Receiver<bool> {
    let ready = store.ready();
    let (store, client, stop) = (store.clone(), api.client.clone(), tasks.stop_token().clone());
    tasks.spawn(format!("watch of {}", V::PLURAL), async move {
        store.run(client, stop).await;
    });
    ready
}

/// How often what is shown is refreshed even if nothing changes.
pub(super) const REFRESH: Duration = Duration::from_secs(5);
