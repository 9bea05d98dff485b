//! Assembles the host from its configuration, runs it, and takes it down in order.
//!
//! Stages, each stopped before the next: the controllers' workers; what they work with (sessions, stores, election);
//! the admin server, which answers until the end.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_core::election::Timing;
use prometheus_client::registry::Registry;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use self::assemble::{Clients, Watching};
use self::end::{Deadline, hand_over};
use self::rooms::Plugins;
use crate::admin::{self, Reviewers, Sources};
use crate::config::follow::{Load, Means};
use crate::config::{AdminConfig, ApiConfig, Config, RateConfig};
use crate::exit::Exit;
use crate::kube::client::{ConnectError, Connection, KubeOptions, connect};
use crate::leader::{self, Leadership};
use crate::metrics::Metrics;
use crate::readiness::Health;
use crate::shutdown::Signals;
use crate::status::Source;
use crate::tasks::Tasks;
use crate::telemetry::{Chain, Detail};

mod assemble;
mod end;
mod room;
mod rooms;
mod show;
mod strays;
mod wanted;

/// Announcements of the election that wait to become Events.
const ANNOUNCEMENTS: usize = 16;

/// The sets of tasks, in the order in which they are stopped.
#[derive(Debug)]
struct Stages {
    workers: Tasks,
    base: Tasks,
    admin: Tasks,
    all: Tasks,
}

/// Runs the host until it is told to end, or fails. What `config` was made from is followed: `load` makes it anew.
pub async fn run(config: Config, load: Load, detail: Detail) -> Exit {
    let installed = Signals::install().and_then(|signals| Ok((signals, signal(SignalKind::hangup())?)));
    let (mut signals, hangups) = match installed {
        Ok(installed) => installed,
        Err(error) => {
            tracing::error!(error = %Chain(&error), "cannot listen for signals");
            return Exit::Failure;
        }
    };
    let all = Tasks::new();
    let stages = Stages {
        workers: all.below(),
        base: all.below(),
        admin: all.below(),
        all,
    };
    let grace = config.shutdown_grace;
    let host = tokio::select! {
        started = start(config, Means { load, detail, hangups }, &stages) => match started {
            Ok(host) => host,
            Err(exit) => return exit,
        },
        death = stages.all.died() => return died(&death),
        signal = signals.next() => {
            // Nothing was won yet: there is nothing to give back.
            tracing::info!("{signal} while starting: ending");
            return Exit::Done;
        }
    };
    tokio::select! {
        death = stages.all.died() => return died(&death),
        signal = signals.next() => tracing::info!("{signal}: ending in order, within {}s", grace.as_secs()),
    }
    tokio::select! {
        exit = end(&host, &stages, grace) => exit,
        death = stages.all.died() => died(&death),
        signal = signals.next() => {
            tracing::warn!("{signal} again: ending at once, without releasing the lease");
            Exit::Forced
        }
    }
}

/// The host's parts that its end needs.
#[derive(Debug)]
struct Host {
    leadership: Leadership,
    plugins: Plugins,
}

fn died(_death: &crate::tasks::Death) -> Exit {
    // The set that noticed it has logged it.
    Exit::TaskDied
}

/// Starts everything, in the order in which users can see it: first the port, last the controllers.
async fn start(config: Config, means: Means, stages: &Stages) -> Result<Host, Exit> {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let health = Health::default();
    let watching = Watching::new(metrics, health.clone());
    let listener = match config.admin.clone() {
        Some(admin) => Some(bind(admin).await?),
        None => None,
    };
    let status = Source::new();
    admin::local::start(&config.admin_socket, status.clone(), &stages.admin)
        .await
        .map_err(|error| {
            tracing::error!("{}", Chain(&error));
            Exit::Bind
        })?;
    let api = reach(&config.api, "bulkhead", config.api.rate).await?;
    if let (Some(listener), Some(admin)) = (listener, &config.admin) {
        let reviewers = Reviewers {
            tokens: Some(reviewer(&api, admin.access.authentication_kubeconfig.as_ref()).await?),
            access: Some(reviewer(&api, admin.access.authorization_kubeconfig.as_ref()).await?),
        };
        let sources = Sources {
            health: health.clone(),
            registry: Arc::new(registry),
        };
        listener.serve(sources, reviewers, &stages.admin);
    }
    // Election has a client of its own, and no rate: a flood of other requests must not cost the lease.
    let election = reach(&config.api, "bulkhead/leader-election", None).await?;
    let clients = Clients { api, election };
    let host = assemble::assemble(config, means, clients, watching, stages).await;
    status.assembled(host.leadership.clone(), host.plugins.subscribe());
    Ok(host)
}

async fn bind(admin: AdminConfig) -> Result<admin::Listener, Exit> {
    admin::bind(admin).await.map_err(|error| {
        tracing::error!("{}", Chain(&error));
        error.exit()
    })
}

async fn reach(api: &ApiConfig, user_agent: &str, rate: Option<RateConfig>) -> Result<Connection, Exit> {
    let options = KubeOptions {
        kubeconfig: api.kubeconfig.clone(),
        master: api.master.clone(),
        rate,
        user_agent: format!("{user_agent}/{}", env!("CARGO_PKG_VERSION")),
    };
    connect(&options).await.map_err(|error| refused(&error))
}

/// The client for one kind of review: a kubeconfig of its own, else the host's.
async fn reviewer(api: &Connection, kubeconfig: Option<&std::path::PathBuf>) -> Result<::kube::Client, Exit> {
    let Some(path) = kubeconfig else {
        return Ok(api.client.clone());
    };
    let options = KubeOptions {
        kubeconfig: Some(path.clone()),
        master: None,
        rate: None,
        user_agent: format!("bulkhead/{}", env!("CARGO_PKG_VERSION")),
    };
    connect(&options)
        .await
        .map(|connection| connection.client)
        .map_err(|error| refused(&error))
}

fn refused(error: &ConnectError) -> Exit {
    tracing::error!("{}", Chain(error));
    Exit::Usage
}

/// Takes part in the election, or leads at once without one.
fn elect(
    config: &Config,
    connection: Connection,
    announcements: mpsc::Sender<leader::Announcement>,
) -> (Leadership, futures::future::BoxFuture<'static, ()>) {
    let identity = leader::identity();
    match &config.election {
        Some(election) => {
            let settings = leader::Settings {
                namespace: election.namespace.clone(),
                name: election.name.clone(),
                identity,
                timing: election.timing,
            };
            leader::start(settings, connection.client, announcements)
        }
        None => leader::start_alone(leader::Settings {
            namespace: String::new(),
            name: "none".to_owned(),
            identity,
            timing: Timing::default(),
        }),
    }
}

/// The order of an end: no new work; `Lead(0)` to plugins; the answers of running calls; the lease; the rest. All of it
/// within `grace`.
async fn end(host: &Host, stages: &Stages, grace: Duration) -> Exit {
    let deadline = Deadline::after(grace);
    host.leadership.begin_drain();
    let workers = stages.workers.stop(deadline.left_to_hand_over());
    let release = host.leadership.release();
    if let Err(why) = hand_over(deadline, workers, host.plugins.stood_down(), release).await {
        tracing::error!("ending without releasing the lease: {why}");
        return Exit::Forced;
    }
    for stage in [&stages.base, &stages.admin] {
        if let Err(running) = stage.stop(deadline.left()).await {
            tracing::warn!("ending although tasks have not: {running}");
        }
    }
    Exit::Done
}
