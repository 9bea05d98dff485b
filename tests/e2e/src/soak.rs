//! A long day in a short time: Services and nodes come, change and go, host and plugin are ended at any moment, and
//! clients never stop. After each burst everything that exists answers; from time to time what is there is compared
//! with what should be, and whatever is too much is a leak.

mod books;
mod clients;
mod model;
mod report;
mod stage;

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, Result, ensure};
use bulkhead_harness::Stopwatch;
use bulkhead_harness::{
    Workspace, eventually,
    observed::{Listener, Protocol},
    port, service_lb,
};
use k8s_openapi::api::core::v1::{Service, ServicePort};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::json;

use crate::traffic;
use books::{Balance, Books, Services};
use clients::{Clients, Fronts};
use model::{Event, Model, Shape};
use report::Report;
use stage::{Stage, Style};

/// How long what exists may be unreachable after a burst, or what is deleted be there. A crash of the host costs the
/// 6 seconds of its Lease.
const SETTLED_WITHIN: Duration = Duration::from_secs(30);
/// The most events at once: the next begins before the one before has had its effect.
const BURST: usize = 3;
/// Bursts from one comparison to the next.
const BURSTS: usize = 6;
/// How much more memory a process may have at the end of a quiet stretch than after its first third. An allocator
/// keeps pages of the largest burst so far; a leak of one of the hundreds of events grows without end.
const MEMORY_GROWTH: u64 = 2 << 20;
/// A shorter stretch says nothing about growth.
const TELLING: Duration = Duration::from_secs(60);

/// Who starts the plugin, and whether processes are ended. Memory is compared in stretches without such ends: a
/// process must live to grow.
const STRETCHES: [(Style, bool); 4] = [
    (Style::Spawned, true),
    (Style::Spawned, false),
    (Style::Beside, true),
    (Style::Beside, false),
];

/// What is to be played.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Decides what happens; how much of it, the time does.
    pub seed: u64,
    /// For all stretches together; starting and ending come on top.
    pub length: Duration,
}

/// Plays a soak. `say` gets a line for every comparison, and what the whole was at the end.
///
/// # Errors
///
/// What was leaked, lost or out of reach; with the seed and the last events.
pub async fn run(workspace: &Workspace, options: Options, say: &mut dyn FnMut(&str)) -> Result<()> {
    let mut report = Report::begin(options.seed, say);
    let played = play(workspace, options, &mut report).await;
    played.with_context(|| report.last_events())
}

async fn play(workspace: &Workspace, options: Options, report: &mut Report<'_>) -> Result<()> {
    let mut soak = Soak {
        stage: Stage::set(workspace).await?,
        model: Model::default(),
        rng: StdRng::seed_from_u64(options.seed),
        services: Services::new(),
        deleted: BTreeSet::new(),
        fronts: Fronts::default(),
        books: Books::default(),
        report,
    };
    let length = options.length / u32::try_from(STRETCHES.len())?;
    for (style, kills) in STRETCHES {
        let what = if kills {
            "ended at any moment"
        } else {
            "left alone"
        };
        soak.report
            .note(format!("plugin {style:?}, processes {what}"), true);
        soak.stage.change_to(style).await?;
        soak.people().await?;
        soak.stretch(length, kills).await?;
    }
    soak.empty().await?;
    soak.report.sum(soak.fronts.tally());
    Ok(())
}

struct Soak<'a, 'r, 's> {
    stage: Stage<'a>,
    model: Model,
    rng: StdRng,
    /// As they were when all was settled last.
    services: Services,
    /// To be gone when all is settled next.
    deleted: BTreeSet<String>,
    fronts: Fronts,
    books: Books,
    report: &'r mut Report<'s>,
}

impl Soak<'_, '_, '_> {
    /// As much as there is always.
    async fn people(&mut self) -> Result<()> {
        while !self.model.has_enough() {
            self.happen(false).await?;
        }
        Ok(())
    }

    async fn stretch(&mut self, length: Duration, kills: bool) -> Result<()> {
        let watch = Stopwatch::start();
        let failed = self.fronts.tally().failed;
        let mut seen = Vec::new();
        self.settle().await?;
        loop {
            seen.push(self.compare().await?);
            if watch.elapsed() >= length {
                break;
            }
            let _clients = Clients::start(&self.fronts);
            for _ in 0..BURSTS {
                self.burst(kills).await?;
            }
        }
        if kills {
            return Ok(());
        }
        let failed = self.fronts.tally().failed - failed;
        ensure!(
            failed == 0,
            "{failed} connections to Services that nobody touched failed, and no process was ended"
        );
        if length >= TELLING { flat(&seen) } else { Ok(()) }
    }

    /// Several things at once, then until all is as it should be.
    async fn burst(&mut self, kills: bool) -> Result<()> {
        for _ in 0..self.rng.random_range(1..=BURST) {
            self.happen(kills).await?;
        }
        self.settle().await
    }

    async fn happen(&mut self, kills: bool) -> Result<()> {
        let event = self.model.choose(&mut self.rng, kills);
        self.report.event(&event);
        self.model.apply(&event);
        self.perform(event).await
    }

    async fn perform(&mut self, event: Event) -> Result<()> {
        let cluster = &self.stage.cluster;
        match event {
            Event::AddService(name, shape) => {
                let service = cluster.add_service(&service(&name, &shape)).await?;
                self.stage.machine.serve(&service).await?;
            }
            Event::ChangeService(name, shape) => {
                self.forget(&name);
                let patch = json!({ "spec": { "ports": ports(&shape) } });
                let service = self.stage.cluster.patch_service(&name, patch).await?;
                self.stage.machine.serve(&service).await?;
            }
            Event::DeleteService(name) => {
                self.forget(&name);
                self.stage.cluster.delete_service(&name).await?;
                self.deleted.insert(name);
            }
            Event::AddNode(name) => drop(cluster.add_node(&name).await?),
            Event::DeleteNode(name) => {
                cluster.nodes().delete(&name, &DeleteParams::default()).await?;
            }
            Event::KillPlugin => self.stage.kill_plugin().await?,
            Event::KillHost => self.stage.kill_host().await?,
            Event::StopHost => self.stage.restart_host().await?,
        }
        Ok(())
    }

    /// Clients ask a Service no more.
    fn forget(&mut self, name: &str) {
        self.services.remove(name);
        self.show_fronts();
    }

    fn show_fronts(&self) {
        let all = self.services.values();
        self.fronts.set(
            all.flat_map(|(address, shape)| books::fronts(*address, shape))
                .collect(),
        );
    }

    /// Waits until what is deleted is gone, and all that exists works.
    async fn settle(&mut self) -> Result<()> {
        let watch = Stopwatch::start();
        let cluster = &self.stage.cluster;
        for name in std::mem::take(&mut self.deleted) {
            cluster.service_gone(&name).await?;
        }
        for name in &self.model.nodes {
            cluster.initialised(name).await?;
        }
        for (name, shape) in &self.model.services {
            let address = cluster.address_within(name, SETTLED_WITHIN).await?;
            for front in books::fronts(address, shape) {
                self.reach(front)
                    .await
                    .with_context(|| format!("Service {name}"))?;
            }
            self.services.insert(name.clone(), (address, shape.clone()));
        }
        self.show_fronts();
        let took = watch.elapsed();
        ensure!(
            took <= SETTLED_WITHIN,
            "it took {took:?} until all worked, more than {SETTLED_WITHIN:?}"
        );
        self.report.settled(took);
        self.stage.ensure_running()?;
        self.close_node_ports().await
    }

    /// Until one of the nodes answers.
    async fn reach(&self, front: Listener) -> Result<()> {
        let what = format!("an answer of a node at {front:?}");
        eventually(SETTLED_WITHIN, &what, async || {
            let answer = match front.protocol {
                Protocol::Tcp => traffic::tcp(front.at).await?,
                Protocol::Udp => traffic::udp(front.at).await?,
            };
            ensure!(
                self.model.nodes.contains(&answer),
                "{answer} answered, and it is no node any more"
            );
            Ok(())
        })
        .await
    }

    /// The Services are those of the model, and machines serve their node ports and no others.
    async fn close_node_ports(&mut self) -> Result<()> {
        let all = self.stage.cluster.services().list(&ListParams::default()).await?;
        let balanced = |service: &Service| {
            let spec = service.spec.as_ref();
            spec.is_some_and(|spec| spec.type_.as_deref() == Some("LoadBalancer"))
        };
        let balanced: Vec<_> = all.items.into_iter().filter(balanced).collect();
        let names: BTreeSet<_> = balanced.iter().map(ResourceExt::name_any).collect();
        ensure!(
            names.iter().eq(self.model.services.keys()),
            "the API server has Services {names:?}"
        );
        self.stage.machine.serve_only(&balanced).await
    }

    async fn compare(&mut self) -> Result<Balance> {
        let nodes = self.model.nodes.len();
        let balance = self.books.compare(&self.stage, &self.services, nodes).await?;
        self.report
            .balance(&balance, self.services.len(), nodes, self.fronts.tally());
        Ok(balance)
    }

    /// All Services go, and with them all that was made for them.
    async fn empty(&mut self) -> Result<()> {
        for name in self.model.services.keys().cloned().collect::<Vec<_>>() {
            let event = Event::DeleteService(name);
            self.report.event(&event);
            self.model.apply(&event);
            self.perform(event).await?;
        }
        self.settle().await?;
        self.compare().await.map(drop)
    }
}

/// Fails if a process has grown since the first third of these looks.
fn flat(seen: &[Balance]) -> Result<()> {
    let (Some(early), Some(late)) = (seen.get(seen.len() / 3), seen.last()) else {
        return Ok(());
    };
    for (who, early, late) in [
        ("host", early.host, late.host),
        ("plugin", early.plugin, late.plugin),
    ] {
        ensure!(
            late.memory <= early.memory + MEMORY_GROWTH,
            "the {who} has grown from {} to {} bytes, by more than {MEMORY_GROWTH}",
            early.memory,
            late.memory
        );
    }
    Ok(())
}

fn service(name: &str, shape: &Shape) -> Service {
    let mut service = service_lb(name);
    if let Some(spec) = &mut service.spec {
        spec.ports = Some(ports(shape));
        spec.session_affinity = shape.affinity.then(|| "ClientIP".to_owned());
    }
    service
}

fn ports(shape: &Shape) -> Vec<ServicePort> {
    let named = |&(protocol, number): &(Protocol, u16)| {
        let protocol = match protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
        };
        port(&format!("{}-{number}", protocol.to_lowercase()), protocol, number)
    };
    shape.ports.iter().map(named).collect()
}
