//! Clients that never stop asking, wherever something is to be had.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bulkhead_harness::observed::{Listener, Protocol};
use tokio::{io::AsyncReadExt as _, net::TcpStream, task::JoinSet, time::sleep};

use crate::traffic;

const CLIENTS: usize = 4;
/// Between two questions of a client.
const PAUSE: Duration = Duration::from_millis(15);
/// One in so many connections is kept open after its answer, so that ends meet open connections.
const HELD_EVERY: usize = 20;
const HELD_FOR: Duration = Duration::from_millis(700);

/// What clients have seen.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Tally {
    /// Questions with an answer.
    pub(crate) answered: u64,
    /// TCP questions without, where something was to be had from before until after.
    pub(crate) failed: u64,
}

/// Where something is to be had, and what came of it.
#[derive(Debug, Default, Clone)]
pub(crate) struct Fronts(Arc<Mutex<Shared>>);

#[derive(Debug, Default)]
struct Shared {
    fronts: Vec<Listener>,
    tally: Tally,
}

/// The clients; they end when it is dropped, and close what they hold.
#[derive(Debug)]
pub(crate) struct Clients {
    _tasks: JoinSet<()>,
}

impl Fronts {
    /// From now on clients ask here and nowhere else.
    pub(crate) fn set(&self, fronts: BTreeSet<Listener>) {
        self.lock().fronts = fronts.into_iter().collect();
    }

    /// What was seen so far.
    pub(crate) fn tally(&self) -> Tally {
        self.lock().tally
    }

    fn nth(&self, number: usize) -> Option<Listener> {
        let shared = self.lock();
        let number = number.checked_rem(shared.fronts.len())?;
        shared.fronts.get(number).copied()
    }

    fn count(&self, front: Listener, answered: bool) {
        let mut shared = self.lock();
        if answered {
            shared.tally.answered += 1;
        } else if front.protocol == Protocol::Tcp && shared.fronts.contains(&front) {
            shared.tally.failed += 1;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clients {
    pub(crate) fn start(fronts: &Fronts) -> Self {
        let mut tasks = JoinSet::new();
        for number in 0..CLIENTS {
            tasks.spawn(ask(fronts.clone(), number));
        }
        Self { _tasks: tasks }
    }
}

async fn ask(fronts: Fronts, first: usize) {
    let mut held = JoinSet::new();
    for number in first.. {
        while held.try_join_next().is_some() {}
        if let Some(front) = fronts.nth(number) {
            let answer = match front.protocol {
                Protocol::Tcp => traffic::tcp(front.at).await,
                Protocol::Udp => traffic::udp(front.at).await,
            };
            fronts.count(front, answer.is_ok());
            if front.protocol == Protocol::Tcp && number.is_multiple_of(HELD_EVERY) {
                held.spawn(hold(front));
            }
        }
        sleep(PAUSE).await;
    }
}

async fn hold(front: Listener) {
    if let Ok(mut stream) = TcpStream::connect(front.at).await {
        // Whatever comes, until its end or the time is over.
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.ok();
        sleep(HELD_FOR).await;
    }
}
