//! Puts the parts together once the API server can be reached.

use std::time::Duration;

use bulkhead_core::controllers::{Controller as Kind, Verdict};
use bulkhead_core::ids::Uid;
use bulkhead_core::outcome::Severity;
use tokio::sync::{mpsc, watch};

use super::room::House;
use super::rooms::Rooms;
use super::{ANNOUNCEMENTS, Host, Stages, elect, show};
use crate::config::{Config, ControllerConfig};
use crate::kube::client::{Connection, cluster_uid, wait_for_api};
use crate::kube::events::{EventRecorder, EventSpec, Regarding, component, events};
use crate::kube::stores::Store;
use crate::kube::views::View;
use crate::kube::writer::Writer;
use crate::leader::{Announcement, EVENT_REASON, Leadership};
use crate::metrics::Metrics;
use crate::plugin;
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
    let counts = watching.metrics.api.clone();
    let writer = Writer::new(&api, config.api.writes_in_flight, move |verb, result| {
        counts.write(verb, result);
    });
    explain(&config.controllers);
    // Only what a controller reads: the rights of the others may not have been granted.
    let (nodes, services) = (Store::new(), Store::new());
    let mut stores = vec![follow(&nodes, &api, &stages.base)];
    if config.controllers.selection.verdict(Kind::ServiceLb) == Verdict::On {
        stores.push(follow(&services, &api, &stages.base));
    }
    let house = House {
        leadership: leadership.clone(),
        writer,
        events: recorder,
        notice_board: match &config.election {
            Some(election) => Regarding::lease(&election.namespace, &election.name, None),
            None => Regarding::namespace("kube-system"),
        },
        nodes,
        services,
        cluster: plugin::Cluster {
            uid: cluster_uid,
            name: config.cluster_name.clone(),
        },
        controllers: config.controllers.clone(),
        metrics: watching.metrics.clone(),
        health: watching.health.clone(),
        workers: stages.workers.clone(),
        base: stages.base.clone(),
    };
    let (rooms, plugins) = Rooms::new(house);
    let (_, wanted) = watch::channel(config.plugins);
    stages.base.spawn("plugins", rooms.run(wanted));
    stages.base.spawn(
        "show",
        show::run(show::Shown {
            leadership: leadership.clone(),
            stores,
            watching,
            stop: stages.base.stop_token().clone(),
        }),
    );
    Host { leadership, plugins }
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

/// Says why controllers that a user may expect do not run.
fn explain(config: &ControllerConfig) {
    if config.routes && !config.cluster_cidrs.is_empty() {
        tracing::info!(
            "--cluster-cidr is given, but node-route-controller is not built yet: no routes are written"
        );
    }
    for kind in Kind::ALL {
        if let Some(why) = config.selection.verdict(kind).explain(kind) {
            tracing::info!("{why}");
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
