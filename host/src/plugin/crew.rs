//! The processes of one plugin: a session with each, and one of them leads, as `bulkhead_core::handover` decides.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_core::clock::Instant;
use bulkhead_core::handover::{Calls, Fitness, Handover, News, Plan, Process, Seen, World};
use bulkhead_core::supervise::Restarts;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::access::Access;
use super::call::Wire;
use super::connect::connect;
use super::front::Front;
use super::link::Link;
use super::owner::chain;
use super::place::{Address, Place, Places, Stamp};
use super::session::{Board, End, SessionState, name_of_term, serve};
use super::{Observer, Settings};
use crate::clock;
use crate::leader::{Standing, Term};

/// Most processes of one plugin that the host connects to at once.
const CREW_MAX: usize = 8;

/// What an attempt at a session came to.
enum Outcome {
    /// There is no connection.
    Away(String),
    /// The session ended, or did not begin.
    Ended(End),
    /// It was given up: another session is with the same process, or the process is of no use any more.
    Left,
}

/// An attempt at a session, and the session.
struct Member {
    address: Address,
    /// Which file was there when it was sought; which one it was reached by, its board knows.
    sought: Option<Stamp>,
    board: Arc<Board>,
    /// What it is told of who leads.
    gate: watch::Sender<Standing>,
    told: Told,
    leave: CancellationToken,
}

/// What a member's gate says: sent again only when it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    /// What the host is, as of so many changes, in this round.
    Lead {
        change: u64,
        round: u64,
    },
    /// Another process leads.
    Stop {
        change: u64,
    },
}

/// When an address is tried again.
struct Dial {
    pauses: Restarts,
    not_before: Instant,
    /// What was said last about it.
    told: String,
}

/// What a process, to which there is no session any more, may still do.
struct Departed {
    instance: String,
    until: Instant,
}

type Running = FuturesUnordered<Pin<Box<dyn Future<Output = (Process, Outcome)> + Send>>>;

/// The processes of one plugin.
pub(crate) struct Crew {
    settings: Arc<Settings>,
    observer: Arc<dyn Observer>,
    front: Arc<Front>,
    standing: watch::Receiver<Standing>,
    host: Standing,
    host_changes: u64,
    handover: Handover,
    members: BTreeMap<Process, Member>,
    running: Running,
    dials: BTreeMap<Address, Dial>,
    departed: Vec<Departed>,
    changed: Arc<Notify>,
}

impl Crew {
    pub(crate) fn new(
        settings: Arc<Settings>,
        observer: Arc<dyn Observer>,
        front: Arc<Front>,
        mut standing: watch::Receiver<Standing>,
    ) -> Self {
        let host = standing.borrow_and_update().clone();
        Self {
            settings,
            observer,
            front,
            standing,
            host,
            host_changes: 0,
            handover: Handover::default(),
            members: BTreeMap::new(),
            running: FuturesUnordered::new(),
            dials: BTreeMap::new(),
            departed: Vec::new(),
            changed: Arc::default(),
        }
    }

    /// Keeps sessions with whatever is at `places`. Returns when a session has ended, if `once`.
    pub(crate) async fn attend(mut self, mut places: Places, once: bool) {
        loop {
            let redial = self.dial(&places.borrow_and_update().clone());
            let plan = self.arrange();
            self.release(&plan, &places.borrow().clone());
            let wake = [redial, plan.wake].into_iter().flatten().min();
            let idle = self.idle(&plan);
            tokio::select! {
                Some((process, outcome)) = self.running.next(), if !self.running.is_empty() => {
                    let served = self.ended(process, &outcome);
                    if served && once {
                        return;
                    }
                }
                () = self.changed.notified() => {}
                () = changed(&mut self.standing) => {
                    self.host = self.standing.borrow_and_update().clone();
                    self.host_changes += 1;
                }
                () = changed(&mut places) => {}
                () = idle => {}
                () = until(wake) => {}
            }
        }
    }

    /// Tries every place at which there is no session, unless it was tried a moment ago; when to try again.
    fn dial(&mut self, places: &BTreeSet<Place>) -> Option<Instant> {
        let now = clock::now();
        self.dials
            .retain(|address, _| places.iter().any(|place| place.address == *address));
        let mut next: Option<Instant> = None;
        for place in places {
            let is_served = self.members.values().any(|member| member.serves(place));
            if is_served || self.members.len() >= CREW_MAX {
                continue;
            }
            let intensity = self.settings.timing.reconnect;
            let dial = self.dials.entry(place.address.clone()).or_insert_with(|| Dial {
                pauses: Restarts::new(intensity),
                not_before: now,
                told: String::new(),
            });
            if dial.not_before <= now {
                self.begin(place);
            } else {
                next = Some(next.map_or(dial.not_before, |next| next.min(dial.not_before)));
            }
        }
        next
    }

    fn begin(&mut self, place: &Place) {
        let process = self.front.next_process();
        let (gate, standing) = watch::channel(Standing::Standby);
        let member = Member {
            address: place.address.clone(),
            sought: place.stamp,
            board: Arc::new(Board::new(
                Arc::clone(&self.settings),
                Arc::clone(&self.observer),
                Arc::clone(&self.changed),
                Arc::clone(self.front.gatekeeper()),
                place.stamp,
            )),
            gate,
            told: Told::Nothing,
            leave: CancellationToken::new(),
        };
        let session = session(
            Arc::clone(&self.settings),
            Arc::clone(&self.observer),
            Arc::clone(&member.board),
            member.address.clone(),
            standing,
        );
        let leave = member.leave.clone();
        self.members.insert(process, member);
        self.running.push(Box::pin(async move {
            tokio::select! {
                biased;
                () = leave.cancelled() => (process, Outcome::Left),
                outcome = session => (process, outcome),
            }
        }));
    }

    /// Does what the handover says.
    fn arrange(&mut self) -> Plan {
        self.recognise();
        let now = clock::now();
        self.departed.retain(|departed| departed.until > now);
        let seen = self.seen();
        let world = World {
            seen: &seen,
            departed: self.departed.iter().map(|departed| departed.until).max(),
            host_leads: matches!(self.host, Standing::Leading(_)),
        };
        let (plan, news) = self.handover.step(now, &world);
        for news in news {
            self.log(news);
        }
        for (process, member) in &mut self.members {
            let told = if plan.lead == Some(*process) {
                Told::Lead {
                    change: self.host_changes,
                    round: plan.round,
                }
            } else {
                // Renewals are no news for those that do not lead.
                let change = if world.host_leads { 0 } else { self.host_changes };
                Told::Stop { change }
            };
            member.tell(told, &self.host);
        }
        self.show(&plan, &seen);
        plan
    }

    /// Lets go of processes whose socket another process has taken over for good: they end without a session.
    fn release(&self, plan: &Plan, places: &BTreeSet<Place>) {
        let is_settled = plan.is_settled && matches!(plan.calls, Calls::To(_));
        for (process, member) in self.members.iter().filter(|_| is_settled) {
            let stamp = member.board.stamp();
            let is_replaced = places.iter().any(|place| {
                place.address == member.address && place.stamp.is_some() && place.stamp != stamp
            });
            let is_used = plan.calls == Calls::To(*process) || plan.lead == Some(*process);
            if is_replaced && !is_used && stamp.is_some() && member.board.view().description.is_some() {
                member.leave.cancel();
            }
        }
    }

    /// A process that is reached twice needs one session, and what it was granted in a lost one it may still use.
    fn recognise(&mut self) {
        let mut known: BTreeMap<String, Process> = BTreeMap::new();
        let mut moved = Vec::new();
        for (process, member) in &self.members {
            let Some(description) = member.board.view().description else {
                continue;
            };
            let instance = &description.instance_id;
            self.departed.retain(|departed| {
                let is_this = departed.instance == *instance;
                if is_this {
                    member.board.inherit(departed.until);
                }
                !is_this
            });
            if let Some(first) = known.get(instance) {
                member.leave.cancel();
                moved.push((*first, member.address.clone(), member.board.stamp()));
            } else {
                known.insert(instance.clone(), *process);
            }
        }
        for (process, address, stamp) in moved {
            if let Some(first) = self.members.get(&process).filter(|it| it.address == address) {
                first.board.reached_by(stamp);
            }
        }
    }

    /// The processes that have a session, oldest first.
    fn seen(&self) -> Vec<Seen> {
        let is_in = |member: &&Member| !member.leave.is_cancelled();
        let mut seen: Vec<_> = self
            .members
            .iter()
            .filter(|(_, member)| is_in(member) && member.board.view().description.is_some())
            .map(|(process, member)| (member.board.started(), member.seen(*process)))
            .collect();
        seen.sort_by_key(|(started, seen)| (*started, seen.process));
        seen.into_iter().map(|(_, seen)| seen).collect()
    }

    fn show(&self, plan: &Plan, seen: &[Seen]) {
        for (process, member) in &self.members {
            member.board.set_front(plan.calls == Calls::To(*process));
        }
        let led = seen.iter().filter_map(|seen| seen.may_write).max();
        match plan.calls {
            Calls::Nowhere => {}
            Calls::Wait => self.front.hold(led),
            Calls::To(process) => {
                if let Some(member) = self.members.get(&process) {
                    let access = member.board.link().map_or(Access::Away, Access::Open);
                    self.front.show(process, member.board.view(), access, led);
                }
            }
        }
    }

    /// Resolves when the process that is left has ended its calls.
    fn idle(&self, plan: &Plan) -> impl Future<Output = ()> + use<> {
        let waits = plan.calls == Calls::Wait;
        let busy: Vec<Arc<Link>> = self
            .members
            .values()
            .filter_map(|member| member.board.link())
            .filter(|link| waits && *link.users.borrow() > 0)
            .collect();
        async move {
            match busy.first() {
                Some(link) => {
                    let mut users = link.users.subscribe();
                    // Its sender lives as long as the link.
                    drop(users.wait_for(|users| *users == 0).await);
                }
                None => std::future::pending().await,
            }
        }
    }

    /// An attempt or a session has ended; whether there was a session.
    fn ended(&mut self, process: Process, outcome: &Outcome) -> bool {
        let Some(member) = self.members.remove(&process) else {
            return false;
        };
        let view = member.board.view();
        let served = matches!(
            outcome,
            Outcome::Ended(End::Stream | End::Health { .. } | End::AnotherProcess)
        );
        self.front.remember(view.led.until());
        if let (Some(until), false) = (view.led.until(), is_certain_end(&member.address, outcome)) {
            self.departed.push(Departed {
                instance: member.board.instance(),
                until,
            });
        }
        let is_reached = self.members.values().any(|it| it.address == member.address);
        let dial = self.dials.get_mut(&member.address);
        let reason = match outcome {
            Outcome::Left => {
                // A second way to the same process is not worth a try soon; a newer process is.
                if let Some(dial) = dial.filter(|_| !is_reached) {
                    dial.not_before = clock::now() + self.settings.timing.reconnect.cap;
                }
                return false;
            }
            Outcome::Away(why) => why.clone(),
            Outcome::Ended(end) => end.to_string(),
        };
        if let Some(dial) = dial {
            if served {
                dial.pauses.reset();
            }
            dial.not_before = clock::now() + dial.pauses.ended_after(Duration::ZERO);
        }
        self.tell_end(&member.address, outcome, reason);
        served
    }

    /// The end of a session is the plugin's state, unless another process of it is there.
    fn tell_end(&mut self, address: &Address, outcome: &Outcome, reason: String) {
        if self.seen().is_empty() {
            self.front.left();
            if matches!(outcome, Outcome::Ended(End::Incompatible(_))) {
                self.front.incompatible(reason);
            } else {
                self.front.away(reason);
            }
        } else if let Some(dial) = self.dials.get_mut(address).filter(|dial| dial.told != reason) {
            let plugin = &self.settings.name;
            tracing::info!(plugin, "the other process at {address} is no successor: {reason}");
            dial.told = reason;
        }
    }

    fn log(&self, news: News) {
        let plugin = &self.settings.name;
        let who = |process: Process| {
            let description = self
                .members
                .get(&process)
                .and_then(|member| member.board.view().description);
            description.map_or_else(
                || "a process that is gone".to_owned(),
                |it| format!("version {} (instance {})", it.version, it.instance_id),
            )
        };
        match news {
            News::Begins { from, to } => {
                tracing::info!(plugin, "{} is replaced by {}", who(from), who(to));
            }
            News::Works(process) => tracing::info!(plugin, "{} has taken over", who(process)),
            News::Back { from, to } => {
                tracing::warn!(plugin, "{} failed: back to {}", who(from), who(to));
            }
            News::Done(process) => tracing::debug!(plugin, "{} has stood its trial", who(process)),
        }
    }
}

/// Whether the end of a session was the end of all that its process may do. The kernel closes a unix socket when its
/// process ends; a connection by network ends for many reasons.
fn is_certain_end(address: &Address, outcome: &Outcome) -> bool {
    matches!(
        (address, outcome),
        (Address::Socket(_), Outcome::Ended(End::Stream))
    )
}

impl Member {
    /// Whether it is what listens there, or about to find out.
    fn serves(&self, place: &Place) -> bool {
        let is_file = |stamp: Option<Stamp>| place.stamp.is_none() || stamp == place.stamp;
        self.address == place.address && (is_file(self.sought) || is_file(self.board.stamp()))
    }

    fn tell(&mut self, told: Told, standing: &Standing) {
        if self.told == told {
            return;
        }
        self.told = told;
        let standing = match (told, standing) {
            (Told::Lead { round, .. }, Standing::Leading(term)) => {
                if let Some(link) = self.board.link() {
                    link.name_of_terms.set_round(round);
                }
                Standing::Leading(Term {
                    epoch: name_of_term(&term.epoch, round),
                    ..term.clone()
                })
            }
            (_, Standing::Leading(_)) => Standing::Standby,
            (_, other) => other.clone(),
        };
        self.gate.send_replace(standing);
    }

    fn seen(&self, process: Process) -> Seen {
        let view = self.board.view();
        let fitness = match view.state {
            SessionState::Active | SessionState::Degraded => Fitness::Works,
            SessionState::Standby => Fitness::Ready,
            // A host that drains is no fault of the process.
            SessionState::Draining if self.board.link().is_some() => Fitness::Ready,
            SessionState::Draining => Fitness::Ends,
            SessionState::Warming
            | SessionState::Discovered
            | SessionState::Incompatible
            | SessionState::Gone => Fitness::Warms,
        };
        Seen {
            process,
            fitness,
            is_busy: self.board.link().is_some_and(|link| *link.users.borrow() > 0),
            may_write: view.led.until().filter(|until| *until > clock::now()),
        }
    }
}

/// Connects, and serves the session.
async fn session(
    settings: Arc<Settings>,
    observer: Arc<dyn Observer>,
    board: Arc<Board>,
    address: Address,
    standing: watch::Receiver<Standing>,
) -> Outcome {
    let connection = match connect(&settings, &address).await {
        Ok(connection) => connection,
        Err(error) => return Outcome::Away(chain(&error)),
    };
    if connection.stamp.is_some() {
        board.reached_by(connection.stamp);
    }
    let activity = Arc::clone(&board.gatekeeper().activity);
    let wire = Wire::new(Arc::from(settings.name.as_str()), connection, observer, activity);
    // A session's future is large.
    Outcome::Ended(Box::pin(serve(&settings, &board, wire, standing)).await)
}

async fn changed<T>(receiver: &mut watch::Receiver<T>) {
    // Without a sender nothing changes any more.
    if receiver.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn until(wake: Option<Instant>) {
    match wake {
        Some(at) => sleep(at.saturating_since(clock::now())).await,
        None => std::future::pending().await,
    }
}
