//! Whether targets answer.
//!
//! One [`Board`] per load balancer asks every node now and then, all in the same way. A new or restored
//! target is *unknown* until its first check has ended: it serves only while no healthy one exists, so
//! that a restarted plugin forwards at once. Connections that the forwarder fails to make count as
//! failed checks where they went to the port that is checked.
//!
//! Checks are cheap one by one and many together: all boards share [`CHECKS_AT_ONCE`], each permit is
//! kept for [`CHECK_SLOT`] at least, and a target that stays down is asked ever less often.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep_until, timeout};

use crate::clock;

/// How long a target may take to accept a connection.
pub const CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// Between two checks of a target that is up.
const INTERVAL_UP: Duration = Duration::from_secs(5);

/// Between two checks of one that is not: its return should be seen soon.
const INTERVAL_NOT_UP: Duration = Duration::from_secs(1);

/// The longest pause before a target that stays down is asked again; every pause until then is twice
/// the one before.
const INTERVAL_DOWN_AT_MOST: Duration = Duration::from_secs(30);

/// Failures in a row that take a target out; one success brings it back.
const FALL: u8 = 3;

/// Checks under way at once in this process: bounds sockets when thousands of targets hang. Boards
/// that wait for a permit get one in turn.
pub static CHECKS_AT_ONCE: Semaphore = Semaphore::const_new(64);

/// How long a check keeps its permit at least: 64 permits make 512 checks a second, some percent of one
/// core, whatever the number of Services and nodes. (200 Services on 300 nodes have a round of two
/// minutes then; failed connections bring single checks forward.)
pub const CHECK_SLOT: Duration = Duration::from_millis(125);

/// How the targets of a load balancer are asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// One is up if it accepts a connection on this port.
    Connect {
        /// The node port.
        port: u16,
    },
    /// One is up if it answers 200 to a request for this path on this port.
    Http {
        /// The node port.
        port: u16,
        /// From the slash on.
        path: String,
    },
}

impl Probe {
    fn port(&self) -> u16 {
        match self {
            Self::Connect { port } | Self::Http { port, .. } => *port,
        }
    }
}

/// What is known of one target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Standing {
    /// It answered last time, or has failed too seldom since.
    Up,
    /// No check of it has ended yet.
    Unknown,
    /// It failed its first check, or several in a row.
    Down,
}

impl Standing {
    fn load(from: &AtomicU8) -> Self {
        const UP: u8 = Standing::Up as u8;
        const UNKNOWN: u8 = Standing::Unknown as u8;
        match from.load(Ordering::Relaxed) {
            UP => Self::Up,
            UNKNOWN => Self::Unknown,
            _ => Self::Down,
        }
    }
}

/// The history of one target, and when to look again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Record {
    standing: Standing,
    failures: u8,
    checking: bool,
    due: Instant,
    /// The next pause if it is still down then.
    pause: Duration,
}

impl Record {
    fn new(now: Instant) -> Self {
        Self {
            standing: Standing::Unknown,
            failures: 0,
            checking: false,
            due: now,
            pause: INTERVAL_NOT_UP,
        }
    }

    fn succeeded(&mut self) {
        self.standing = Standing::Up;
        self.failures = 0;
        self.pause = INTERVAL_NOT_UP;
    }

    fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
        if self.failures >= FALL || self.standing == Standing::Unknown {
            self.standing = Standing::Down;
        }
    }

    /// A check ended. Only checks lengthen the pause: failed connections come as often as clients do.
    fn conclude(&mut self, answered: bool, now: Instant) {
        if answered {
            self.succeeded();
        } else {
            self.failed();
        }
        self.checking = false;
        self.due = now + self.take_interval();
    }

    fn take_interval(&mut self) -> Duration {
        match self.standing {
            Standing::Up if self.failures == 0 => INTERVAL_UP,
            Standing::Up | Standing::Unknown => INTERVAL_NOT_UP,
            Standing::Down if self.failures < FALL => INTERVAL_NOT_UP,
            Standing::Down => {
                let pause = self.pause;
                self.pause = (pause * 2).min(INTERVAL_DOWN_AT_MOST);
                pause
            }
        }
    }
}

/// Which targets are to be checked when, soonest first. An entry that is not what the target's record
/// says is out of date and means nothing; it goes when its time comes.
#[derive(Debug, Default)]
struct Agenda {
    entries: Mutex<BTreeSet<(Instant, IpAddr)>>,
    /// There is a new first entry.
    changed: Notify,
    /// A check has ended.
    concluded: Notify,
}

impl Agenda {
    fn add(&self, due: Instant, address: IpAddr) {
        let entry = (due, address);
        let mut entries = self.lock();
        entries.insert(entry);
        let first = entries.first() == Some(&entry);
        drop(entries);
        if first {
            self.changed.notify_one();
        }
    }

    /// Removes the first entry if its time has come.
    fn take(&self, now: Instant) -> Option<(Instant, IpAddr)> {
        let mut entries = self.lock();
        entries.first().filter(|(due, _)| *due <= now)?;
        entries.pop_first()
    }

    /// Waits until the time of the first entry has come.
    async fn due(&self) {
        loop {
            let first = self.lock().first().map(|(due, _)| *due);
            if first.is_some_and(|due| due <= clock::now()) {
                return;
            }
            tokio::select! {
                () = self.changed.notified() => {}
                () = at(first) => return,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<(Instant, IpAddr)>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pulse of one target, shared by those who check it and those who use it.
#[derive(Debug, Clone)]
pub struct Pulse {
    address: IpAddr,
    /// The port that is checked.
    port: u16,
    heart: Arc<Heart>,
    agenda: Arc<Agenda>,
}

#[derive(Debug)]
struct Heart {
    /// The record's: read for every connection, without its lock.
    standing: AtomicU8,
    record: Mutex<Record>,
}

impl Pulse {
    fn new(address: IpAddr, port: u16, agenda: &Arc<Agenda>) -> Self {
        let record = Record::new(clock::now());
        agenda.add(record.due, address);
        Self {
            address,
            port,
            heart: Arc::new(Heart {
                standing: AtomicU8::new(record.standing as u8),
                record: Mutex::new(record),
            }),
            agenda: Arc::clone(agenda),
        }
    }

    /// What is known now.
    pub fn standing(&self) -> Standing {
        Standing::load(&self.heart.standing)
    }

    /// The forwarder could connect: proves less than a check does, so one that seemed down is only
    /// checked at once.
    pub fn hint_success(&self) {
        if self.standing() == Standing::Down {
            let mut record = self.lock();
            record.pause = INTERVAL_NOT_UP;
            self.hasten(record);
        }
    }

    /// The forwarder could not connect to `port`: one that was up is checked at once, and if that port is
    /// the one that is checked, it counts as a failed check.
    pub fn hint_failure(&self, port: u16) {
        let mut record = self.lock();
        let was_up = record.standing == Standing::Up;
        if port == self.port {
            record.failed();
            self.show(&record);
        }
        if was_up {
            self.hasten(record);
        }
    }

    /// Makes it due now, unless it already is or is being checked.
    fn hasten(&self, mut record: MutexGuard<'_, Record>) {
        let now = clock::now();
        if record.checking || record.due <= now {
            return;
        }
        record.due = now;
        drop(record);
        self.agenda.add(now, self.address);
    }

    /// Whether a check may begin that was to begin at `due`.
    fn begin(&self, due: Instant) -> bool {
        let mut record = self.lock();
        let begins = !record.checking && record.due == due;
        record.checking |= begins;
        begins
    }

    /// A check ended.
    pub(crate) fn conclude(&self, answered: bool, now: Instant) {
        let mut record = self.lock();
        record.conclude(answered, now);
        self.show(&record);
        let due = record.due;
        drop(record);
        self.agenda.add(due, self.address);
        self.agenda.concluded.notify_waiters();
    }

    fn show(&self, record: &Record) {
        self.heart
            .standing
            .store(record.standing as u8, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.heart.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pulses of one load balancer's targets.
#[derive(Debug, Default)]
pub struct Board {
    watched: Mutex<Watched>,
    agenda: Arc<Agenda>,
}

#[derive(Debug, Default)]
struct Watched {
    pulses: BTreeMap<IpAddr, Pulse>,
    probe: Option<Probe>,
}

impl Board {
    /// Checks exactly `wanted` from now on, in this way, or none without one; what is known of those
    /// that stay is kept while they are asked the same.
    pub fn watch(&self, wanted: &BTreeSet<IpAddr>, probe: Option<&Probe>) {
        let mut watched = self.lock();
        let same = watched.probe.as_ref() == probe;
        watched
            .pulses
            .retain(|address, _| same && wanted.contains(address));
        watched.probe = probe.cloned();
        let Some(port) = probe.map(Probe::port) else {
            return;
        };
        for address in wanted {
            watched
                .pulses
                .entry(*address)
                .or_insert_with(|| Pulse::new(*address, port, &self.agenda));
        }
    }

    /// The pulse of a target that is watched.
    pub fn pulse(&self, address: IpAddr) -> Option<Pulse> {
        self.lock().pulses.get(&address).cloned()
    }

    /// How many targets are watched, and how many of them are up.
    pub fn count(&self) -> (usize, usize) {
        let watched = self.lock();
        let up = watched
            .pulses
            .values()
            .filter(|pulse| pulse.standing() == Standing::Up);
        (watched.pulses.len(), up.count())
    }

    /// Returns when `holds` does, looking again whenever a check has ended.
    pub async fn until(&self, holds: impl Fn() -> bool) {
        loop {
            let concluded = self.agenda.concluded.notified();
            tokio::pin!(concluded);
            concluded.as_mut().enable();
            if holds() {
                return;
            }
            concluded.await;
        }
    }

    /// Checks targets for ever, each check with one of `permits`; other tasks get their turn between
    /// any two.
    pub async fn run(&self, permits: &'static Semaphore) {
        let mut checks = JoinSet::new();
        loop {
            while checks.try_join_next().is_some() {}
            self.agenda.due().await;
            let Ok(permit) = permits.acquire().await else {
                return;
            };
            if let Some((pulse, probe)) = self.begin(clock::now()) {
                checks.spawn(async move {
                    let slot = sleep_until(clock::now() + CHECK_SLOT);
                    check(&pulse, probe).await;
                    slot.await;
                    drop(permit);
                });
            }
            yield_now().await;
        }
    }

    /// Marks the target that has been due for longest as being checked, if any is due.
    fn begin(&self, now: Instant) -> Option<(Pulse, Probe)> {
        while let Some((due, address)) = self.agenda.take(now) {
            let watched = self.lock();
            if let Some(pulse) = watched.pulses.get(&address)
                && pulse.begin(due)
            {
                return Some((pulse.clone(), watched.probe.clone()?));
            }
        }
        None
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

async fn check(pulse: &Pulse, probe: Probe) {
    let address = SocketAddr::new(pulse.address, probe.port());
    let asked = timeout(CHECK_TIMEOUT, async {
        let stream = TcpStream::connect(address).await?;
        match probe {
            Probe::Connect { .. } => Ok(true),
            Probe::Http { path, .. } => answers_ok(stream, address, &path).await,
        }
    });
    let answered = matches!(asked.await, Ok(Ok(true)));
    pulse.conclude(answered, clock::now());
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
mod tests;
