//! What happens in a soak, chosen from a seed, and what must exist after it. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bulkhead_harness::observed::Protocol;
use rand::{RngExt as _, rngs::StdRng};

/// The machines that may become nodes.
pub(crate) const MACHINES: [&str; 6] = ["node-1", "node-2", "node-3", "node-4", "node-5", "node-6"];
/// Some nodes are always left: without any there is no traffic to look at.
const FEWEST_NODES: usize = 2;
const FEWEST_SERVICES: usize = 2;
const MOST_SERVICES: usize = 8;
/// Few, so that TCP and UDP often share one. Above 1023: no privilege is needed.
const PORTS: std::ops::Range<u16> = 8000..8004;
const MOST_PORTS: usize = 3;

/// What a Service asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shape {
    /// At least one.
    pub(crate) ports: BTreeSet<(Protocol, u16)>,
    /// `sessionAffinity: ClientIP`
    pub(crate) affinity: bool,
}

/// One thing that happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    AddService(String, Shape),
    /// The ports become others.
    ChangeService(String, Shape),
    DeleteService(String),
    AddNode(String),
    DeleteNode(String),
    KillPlugin,
    KillHost,
    /// The host is told to end, and does in order.
    StopHost,
}

/// What exists, if everything that happened was done.
#[derive(Debug, Default, Clone)]
pub(crate) struct Model {
    pub(crate) services: BTreeMap<String, Shape>,
    pub(crate) nodes: BTreeSet<String>,
    made: u32,
}

impl Model {
    /// What happens next; processes are ended only with `kills`.
    pub(crate) fn choose(&self, rng: &mut StdRng, kills: bool) -> Event {
        let mut choices: Vec<fn(&Self, &mut StdRng) -> Option<Event>> = vec![
            Self::add_service,
            Self::add_service,
            Self::delete_service,
            Self::change_service,
            Self::add_node,
            Self::delete_node,
        ];
        if kills {
            choices.push(|_, _| Some(Event::KillPlugin));
            choices.push(|_, rng| {
                Some(if rng.random() {
                    Event::KillHost
                } else {
                    Event::StopHost
                })
            });
        }
        loop {
            if let Some(event) = one_of(&choices, rng).and_then(|choice| choice(self, rng)) {
                return event;
            }
        }
    }

    /// Whether there is as much as deletions leave.
    pub(crate) fn has_enough(&self) -> bool {
        self.services.len() >= FEWEST_SERVICES && self.nodes.len() >= FEWEST_NODES
    }

    /// Does it.
    pub(crate) fn apply(&mut self, event: &Event) {
        match event {
            Event::AddService(name, shape) => {
                self.made += 1;
                self.services.insert(name.clone(), shape.clone());
            }
            Event::ChangeService(name, shape) => drop(self.services.insert(name.clone(), shape.clone())),
            Event::DeleteService(name) => drop(self.services.remove(name)),
            Event::AddNode(name) => drop(self.nodes.insert(name.clone())),
            Event::DeleteNode(name) => {
                self.nodes.remove(name);
            }
            Event::KillPlugin | Event::KillHost | Event::StopHost => {}
        }
    }

    fn add_service(&self, rng: &mut StdRng) -> Option<Event> {
        let name = format!("soak-{}", self.made);
        (self.services.len() < MOST_SERVICES).then(|| Event::AddService(name, Shape::random(rng)))
    }

    fn delete_service(&self, rng: &mut StdRng) -> Option<Event> {
        let names: Vec<_> = self.services.keys().collect();
        let name = (names.len() > FEWEST_SERVICES).then(|| one_of(&names, rng))??;
        Some(Event::DeleteService(name.clone()))
    }

    fn change_service(&self, rng: &mut StdRng) -> Option<Event> {
        let all: Vec<_> = self.services.iter().collect();
        let (name, before) = one_of(&all, rng)?;
        let shape = Shape {
            affinity: before.affinity,
            ..Shape::random(rng)
        };
        (shape != *before).then(|| Event::ChangeService(name.clone(), shape))
    }

    fn add_node(&self, rng: &mut StdRng) -> Option<Event> {
        let absent: Vec<_> = MACHINES
            .iter()
            .filter(|name| !self.nodes.contains(**name))
            .collect();
        one_of(&absent, rng).map(|name| Event::AddNode((*name).to_owned()))
    }

    fn delete_node(&self, rng: &mut StdRng) -> Option<Event> {
        let names: Vec<_> = self.nodes.iter().collect();
        let name = (names.len() > FEWEST_NODES).then(|| one_of(&names, rng))??;
        Some(Event::DeleteNode(name.clone()))
    }
}

impl Shape {
    fn random(rng: &mut StdRng) -> Self {
        let count = rng.random_range(1..=MOST_PORTS);
        let port = |rng: &mut StdRng| {
            let protocol = if rng.random() {
                Protocol::Tcp
            } else {
                Protocol::Udp
            };
            (protocol, rng.random_range(PORTS))
        };
        Self {
            ports: (0..count).map(|_| port(rng)).collect(),
            affinity: rng.random_ratio(1, 4),
        }
    }
}

fn one_of<T: Copy>(all: &[T], rng: &mut StdRng) -> Option<T> {
    if all.is_empty() {
        return None;
    }
    all.get(rng.random_range(0..all.len())).copied()
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddService(name, shape) => write!(f, "add Service {name} ({shape})"),
            Self::ChangeService(name, shape) => write!(f, "change Service {name} to {shape}"),
            Self::DeleteService(name) => write!(f, "delete Service {name}"),
            Self::AddNode(name) => write!(f, "add Node {name}"),
            Self::DeleteNode(name) => write!(f, "delete Node {name}"),
            Self::KillPlugin => f.write_str("kill the plugin"),
            Self::KillHost => f.write_str("kill the host"),
            Self::StopHost => f.write_str("stop the host"),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports: Vec<_> = self
            .ports
            .iter()
            .map(|(protocol, port)| format!("{protocol:?}/{port}").to_lowercase())
            .collect();
        let affinity = if self.affinity { ", affinity" } else { "" };
        write!(f, "{}{affinity}", ports.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    const EVENTS: usize = 2000;

    fn play(seed: u64, kills: bool) -> (Vec<Event>, Model) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut model = Model::default();
        let events = (0..EVENTS)
            .map(|_| {
                let event = model.choose(&mut rng, kills);
                model.apply(&event);
                assert!(model.services.len() <= MOST_SERVICES && model.nodes.len() <= MACHINES.len());
                event
            })
            .collect();
        (events, model)
    }

    #[test]
    fn one_seed_is_one_story() {
        assert_eq!(play(7, true).0, play(7, true).0);
        assert_ne!(play(7, true).0, play(8, true).0);
    }

    #[test]
    fn everything_happens_and_processes_end_only_when_asked() {
        let kinds = |kills| {
            let (events, model) = play(7, kills);
            assert!(model.has_enough());
            let kind = |event: &Event| event.to_string().split(' ').take(2).collect::<Vec<_>>().join(" ");
            let mut counts = BTreeMap::new();
            for event in &events {
                let name = if matches!(event, Event::KillHost | Event::KillPlugin) {
                    event.to_string()
                } else {
                    kind(event)
                };
                *counts.entry(name).or_insert(0) += 1;
            }
            counts
        };
        let calm = [
            "add Node",
            "add Service",
            "change Service",
            "delete Node",
            "delete Service",
        ];
        assert!(kinds(false).keys().map(String::as_str).eq(calm));
        let all = kinds(true);
        assert_eq!(all.len(), calm.len() + 3, "{all:?}");
        assert!(all.values().all(|count| *count > EVENTS / 50), "{all:?}");
    }
}
