//! The rooms of all plugins: opened and closed as the configuration says; `divide_beside` says what each plugin owns.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bulkhead_core::cloud::Description;
use bulkhead_core::controllers::{Controller as Kind, Verdict};
use bulkhead_core::territory::{Claimant, Claims, Complaint, Incumbents, divide_beside};
use futures::future::{join_all, select_all};
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::room::{House, Room};
use super::strays;
use super::wanted::{Directory, Wanted};
use crate::config::Config;
use crate::status::Presence;

/// The plugins that this host has now.
#[derive(Clone, Debug)]
pub(super) struct Plugins(watch::Receiver<Vec<Presence>>);

impl Plugins {
    /// Waits until no process may write by a `Lead` of this host.
    pub(super) async fn stood_down(&self) {
        let handles = self.0.borrow().clone();
        join_all(handles.iter().map(|it| it.plugin.stood_down())).await;
    }

    /// All of them, now and in future.
    pub(super) fn subscribe(&self) -> watch::Receiver<Vec<Presence>> {
        self.0.clone()
    }
}

/// A plugin whose room closes.
#[derive(Debug)]
struct Leaving {
    presence: Presence,
    claims: Claims,
    description: Option<Arc<Description>>,
}

/// The rooms of one host.
#[derive(Debug)]
pub(super) struct Rooms {
    house: Arc<House>,
    /// In the order of the configuration.
    open: Vec<Room>,
    /// Plugins whose last calls end, by name; a name is used again only after that.
    closing: BTreeMap<String, Leaving>,
    closed: FuturesUnordered<JoinHandle<String>>,
    directory: Directory,
    incumbents: Incumbents,
    complaints: BTreeSet<Complaint>,
    claims: watch::Sender<Vec<Claims>>,
    handles: watch::Sender<Vec<Presence>>,
}

impl Rooms {
    /// No rooms yet.
    pub(super) fn new(house: House) -> (Self, Plugins) {
        let (handles, plugins) = watch::channel(Vec::new());
        let rooms = Self {
            house: Arc::new(house),
            open: Vec::new(),
            closing: BTreeMap::new(),
            closed: FuturesUnordered::new(),
            directory: Directory::new(),
            incumbents: Incumbents::default(),
            complaints: BTreeSet::new(),
            claims: watch::Sender::default(),
            handles,
        };
        (rooms, Plugins(plugins))
    }

    /// Keeps a room for each plugin that is wanted, until the host ends.
    pub(super) async fn run(mut self, mut config: watch::Receiver<Arc<Config>>) {
        let stop = self.house.base.stop_token().clone();
        if self.house.controllers.selection.verdict(Kind::CloudNode) == Verdict::On {
            let strays = strays::tell(Arc::clone(&self.house), self.claims.subscribe());
            self.house.base.spawn("nodes that nobody selects", strays);
        }
        loop {
            let wanted = Arc::clone(&config.borrow_and_update());
            self.house.refresh_nodes(wanted.controllers.node_refresh);
            self.directory
                .look_in(wanted.plugins_directory.as_deref(), &self.house.base);
            self.furnish(&self.directory.with(&wanted.plugins));
            let described = self.divide();
            tokio::select! {
                () = stop.cancelled() => return,
                Ok(()) = config.changed() => {}
                () = self.directory.changed() => {}
                () = is_described_otherwise(&self.open, &described) => {}
                Some(name) = self.closed.next() => {
                    drop(self.closing.remove(&name.unwrap_or_default()));
                }
            }
        }
    }

    /// Opens and closes rooms until they are as `plugins` says.
    fn furnish(&mut self, plugins: &[Wanted]) {
        let unwanted = self
            .open
            .extract_if(.., |room| !plugins.iter().any(|plugin| room.becomes(plugin)));
        for room in unwanted.collect::<Vec<_>>() {
            let name = room.config().name.clone();
            let leaving = Leaving {
                presence: Presence {
                    is_leaving: true,
                    ..room.presence()
                },
                claims: room.config().claims.clone(),
                description: room.last_description(),
            };
            self.closing.insert(name.clone(), leaving);
            let closed = async move {
                room.close().await;
                name
            };
            self.closed
                .push(self.house.base.spawn_finite("closing a plugin's room", closed));
        }
        for plugin in plugins {
            let name = &plugin.config.name;
            let is_open = self.open.iter().any(|room| room.config().name == *name);
            if !is_open && !self.closing.contains_key(name) {
                self.open.push(Room::open(&self.house, plugin.clone()));
            }
        }
        let place = |room: &Room| plugins.iter().position(|it| it.config.name == room.config().name);
        self.open.sort_by_key(place);
        // Those that close may write for a while yet.
        let open = self.open.iter().map(Room::presence);
        let handles = open
            .chain(self.closing.values().map(|it| it.presence.clone()))
            .collect();
        self.handles.send_replace(handles);
    }

    /// Tells every room what is its plugin's own; from which descriptions that follows.
    fn divide(&mut self) -> Vec<Option<Arc<Description>>> {
        let described: Vec<_> = self.open.iter().map(Room::last_description).collect();
        // They work on what they own until their last calls have ended.
        let leaving: Vec<Claimant<'_>> = self
            .closing
            .iter()
            .map(|(name, leaving)| Claimant {
                name,
                claims: &leaving.claims,
                description: leaving.description.as_deref(),
            })
            .collect();
        let claimants: Vec<Claimant<'_>> = self
            .open
            .iter()
            .zip(&described)
            .map(|(room, description)| Claimant {
                name: &room.config().name,
                claims: &room.config().claims,
                description: description.as_deref(),
            })
            .collect();
        let claims = leaving.iter().chain(&claimants).map(|it| it.claims.clone());
        self.claims.send_replace(claims.collect());
        let division = divide_beside(&leaving, &claimants, &self.incumbents);
        for (room, territory) in self.open.iter().zip(division.territories) {
            room.own(territory);
        }
        self.incumbents = division.incumbents;
        let complaints: BTreeSet<Complaint> = division.complaints.into_iter().collect();
        for complaint in complaints.difference(&self.complaints) {
            self.house.complain(complaint);
        }
        self.complaints = complaints;
        described
    }
}

/// Becomes ready once a plugin says of itself something else than `described`.
async fn is_described_otherwise(rooms: &[Room], described: &[Option<Arc<Description>>]) {
    let changes = rooms.iter().zip(described).map(|(room, known)| {
        let mut session = room.plugin().subscribe();
        async move {
            let is_other =
                |view: &crate::plugin::SessionView| view.description.is_some() && view.description != *known;
            if session.wait_for(is_other).await.is_err() {
                // Its owner has ended; so does the host.
                std::future::pending::<()>().await;
            }
        }
        .boxed()
    });
    let changes: Vec<_> = changes.collect();
    if changes.is_empty() {
        std::future::pending::<()>().await;
    } else {
        select_all(changes).await;
    }
}
