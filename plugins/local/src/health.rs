//! Whether targets answer.
//!
//! One [`Board`] per load balancer asks every (node, TCP node port) now and then. A new or
//! restored target is *unknown*: it serves only while no healthy one exists, so that a restarted
//! plugin forwards before its first check ended. Connections that the forwarder fails to make count
//! as failed checks.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::clock;

/// How long a target may take to accept a connection.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// Between two checks of a target that is up.
const INTERVAL_UP: Duration = Duration::from_secs(5);

/// Between two checks of one that is not: its return should be seen soon.
const INTERVAL_NOT_UP: Duration = Duration::from_secs(1);

/// Failures in a row that take a target out; one success brings it back.
const FALL: u8 = 3;

/// Checks under way at once for one load balancer: bounds sockets when a thousand targets hang.
const CHECKS_AT_ONCE: usize = 64;

/// How a target is asked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Probe {
    /// It is up if it accepts a connection.
    #[default]
    Connect,
    /// It is up if it answers 200 to a request for this path.
    Http {
        /// From the slash on.
        path: String,
    },
}

/// What is known of one target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// It answered last time.
    Up,
    /// It has not been seen to answer, nor failed often enough.
    Unknown,
    /// It failed several times in a row.
    Down,
}

/// The history of one target, and when to look again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Record {
    standing: Standing,
    failures: u8,
    checking: bool,
    due: Instant,
}

impl Record {
    fn new(now: Instant) -> Self {
        Self {
            standing: Standing::Unknown,
            failures: 0,
            checking: false,
            due: now,
        }
    }

    fn succeeded(&mut self) {
        self.standing = Standing::Up;
        self.failures = 0;
    }

    fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
        if self.failures >= FALL {
            self.standing = Standing::Down;
        }
    }

    fn interval(&self) -> Duration {
        if self.standing == Standing::Up && self.failures == 0 {
            INTERVAL_UP
        } else {
            INTERVAL_NOT_UP
        }
    }
}

/// The pulse of one target, shared by those who check it and those who use it.
#[derive(Debug, Clone)]
pub struct Pulse {
    record: Arc<Mutex<Record>>,
    changed: Arc<Notify>,
}

impl Pulse {
    fn new(changed: &Arc<Notify>) -> Self {
        let record = Arc::new(Mutex::new(Record::new(clock::now())));
        Self {
            record,
            changed: Arc::clone(changed),
        }
    }

    /// What is known now.
    pub fn standing(&self) -> Standing {
        self.lock().standing
    }

    /// The forwarder could not connect: counts as a failed check, and one that was up is checked at once.
    pub fn hint_failure(&self) {
        let mut record = self.lock();
        if record.standing == Standing::Up {
            record.due = clock::now();
        }
        record.failed();
        drop(record);
        self.changed.notify_one();
    }

    fn conclude(&self, answered: bool) {
        let mut record = self.lock();
        if answered {
            record.succeeded();
        } else {
            record.failed();
        }
        record.checking = false;
        record.due = clock::now() + record.interval();
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pulses of one load balancer's targets.
#[derive(Debug, Default)]
pub struct Board {
    watched: Mutex<Watched>,
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Watched {
    pulses: BTreeMap<SocketAddr, Pulse>,
    probe: Probe,
}

impl Board {
    /// Checks exactly `wanted` from now on; what is known of those that stay is kept while they are
    /// asked the same.
    pub fn watch(&self, wanted: &BTreeSet<SocketAddr>, probe: &Probe) {
        let mut watched = self.lock();
        let same = watched.probe == *probe;
        watched
            .pulses
            .retain(|address, _| same && wanted.contains(address));
        for address in wanted {
            watched
                .pulses
                .entry(*address)
                .or_insert_with(|| Pulse::new(&self.changed));
        }
        watched.probe.clone_from(probe);
        drop(watched);
        self.changed.notify_one();
    }

    /// The pulse of a target that is watched.
    pub fn pulse(&self, address: SocketAddr) -> Option<Pulse> {
        self.lock().pulses.get(&address).cloned()
    }

    /// Checks targets for ever.
    pub async fn run(&self) {
        let mut checks = JoinSet::new();
        loop {
            let (due, next) = self.begin(CHECKS_AT_ONCE - checks.len());
            for (address, pulse, probe) in due {
                checks.spawn(check(address, pulse, probe));
            }
            tokio::select! {
                () = self.changed.notified() => {}
                Some(_) = checks.join_next() => {}
                () = at(next) => {}
            }
        }
    }

    /// Marks up to `room` targets that are due as being checked; also when the next one is due, none
    /// if the end of a check must be awaited anyway.
    fn begin(&self, room: usize) -> (Vec<(SocketAddr, Pulse, Probe)>, Option<Instant>) {
        let now = clock::now();
        let mut due = Vec::new();
        let mut next: Option<Instant> = None;
        let watched = self.lock();
        for (address, pulse) in &watched.pulses {
            let mut record = pulse.lock();
            if record.checking {
                continue;
            }
            if record.due > now {
                next = Some(next.map_or(record.due, |next| next.min(record.due)));
            } else if due.len() < room {
                record.checking = true;
                due.push((*address, pulse.clone(), watched.probe.clone()));
            }
        }
        (due, next)
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn at(when: Option<Instant>) {
    match when {
        Some(when) => sleep_until(when).await,
        None => std::future::pending().await,
    }
}

async fn check(address: SocketAddr, pulse: Pulse, probe: Probe) {
    let asked = timeout(CHECK_TIMEOUT, async {
        let stream = TcpStream::connect(address).await?;
        match probe {
            Probe::Connect => Ok(true),
            Probe::Http { path } => answers_ok(stream, address, &path).await,
        }
    });
    pulse.conclude(matches!(asked.await, Ok(Ok(true))));
}

/// Whether the status line of the answer says 200; nothing after it is read.
async fn answers_ok(mut stream: TcpStream, address: SocketAddr, path: &str) -> io::Result<bool> {
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: {address}\r\nuser-agent: bulkhead-local\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut line = [0; "HTTP/1.1 200".len()];
    stream.read_exact(&mut line).await?;
    Ok(line.starts_with(b"HTTP/1.") && line.ends_with(b" 200"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use tokio::net::TcpListener;

    use super::*;

    /// `+` a success, `-` a failure.
    #[rstest]
    #[case::new("", Standing::Unknown, INTERVAL_NOT_UP)]
    #[case::one_success_is_enough("+", Standing::Up, INTERVAL_UP)]
    #[case::a_new_one_is_not_out_at_once("--", Standing::Unknown, INTERVAL_NOT_UP)]
    #[case::three_failures_take_it_out("---", Standing::Down, INTERVAL_NOT_UP)]
    #[case::two_failures_do_not("+--", Standing::Up, INTERVAL_NOT_UP)]
    #[case::only_failures_in_a_row_count("+--+--", Standing::Up, INTERVAL_NOT_UP)]
    #[case::back_after_one_success("+---+", Standing::Up, INTERVAL_UP)]
    #[tokio::test(start_paused = true)]
    async fn standing_after(#[case] history: &str, #[case] standing: Standing, #[case] interval: Duration) {
        let pulse = Pulse::new(&Arc::default());
        for step in history.chars() {
            pulse.conclude(step == '+');
        }
        let record = *pulse.lock();
        assert_eq!((record.standing, record.interval()), (standing, interval));
    }

    #[tokio::test(start_paused = true)]
    async fn hints_count_as_failures_and_bring_the_next_check_forward() {
        let pulse = Pulse::new(&Arc::default());
        pulse.conclude(true);
        assert!(pulse.lock().due > clock::now());
        for _ in 0..FALL {
            pulse.hint_failure();
        }
        assert_eq!(pulse.standing(), Standing::Down);
        assert_eq!(pulse.lock().due, clock::now());
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_the_bound_is_checked_at_once() {
        let board = Board::default();
        board.watch(
            &(1..=200)
                .map(|port| SocketAddr::from(([127, 0, 20, 1], port)))
                .collect(),
            &Probe::Connect,
        );
        assert_eq!(board.begin(CHECKS_AT_ONCE).0.len(), CHECKS_AT_ONCE);
        assert_eq!(board.begin(5).0.len(), 5, "those under way are not begun again");
    }

    #[tokio::test]
    async fn a_target_is_seen_up_then_down_then_up() {
        let listener = TcpListener::bind("127.0.20.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let board = Board::default();
        board.watch(&BTreeSet::from([address]), &Probe::Connect);
        let pulse = board.pulse(address).unwrap();
        let until = |standing| {
            let pulse = pulse.clone();
            async move {
                while pulse.standing() != standing {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        };
        let story = async {
            until(Standing::Up).await;
            drop(listener);
            pulse.hint_failure();
            until(Standing::Down).await;
            let _again = TcpListener::bind(address).await.unwrap();
            until(Standing::Up).await;
        };
        tokio::select! {
            () = board.run() => {}
            done = timeout(Duration::from_secs(10), story) => done.expect("every standing within ten seconds"),
        }
    }
}
