//! A cloud as a value: calls go in with the time, answers come out. No I/O, no clock, no chance but a seed's.
//!
//! What makes it a cloud and not a map: children do not cascade, what is used is not deleted, names are unique, reads
//! may be old, and everything is counted. What makes it a bad cloud stands in [`settings`] and [`fault`].

mod address;
pub mod distribution;
pub mod error;
pub mod fault;
pub mod instance;
pub mod kind;
pub mod object;
pub mod op;
mod random;
mod read;
pub mod record;
pub mod settings;
mod store;
mod write;

use std::time::Duration;

pub use distribution::{Distribution, Span};
pub use error::{Applied, CloudError, ErrorCode};
pub use fault::{Effect, Fault, FaultError, FaultState};
pub use instance::{Instance, Power};
pub use kind::Kind;
pub use object::{Object, State};
pub use op::{Account, Answer, Caller, Change, New, Op, Page, Query, Written};
pub use record::{Count, Record, Records};
pub use settings::{Credentials, Settings, SettingsChange, Throttle};

use fault::{Called, Faults};
pub(crate) use random::Random;
use store::{Place, Store};

/// Longest time for which former states are kept.
const MAX_LAG: Duration = Duration::from_secs(60);

/// The whole cloud. Times are of one clock that never goes back, from any beginning.
#[derive(Clone, Debug)]
pub struct Cloud {
    store: Store,
    settings: Settings,
    faults: Faults,
    records: Records,
    random: Random,
    bucket: Bucket,
    addresses: u64,
}

/// What a call comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// How long the answer takes. What was asked is done at once.
    pub latency: Duration,
    /// The answer; none: there never is one.
    pub answer: Option<Result<Answer, CloudError>>,
}

impl Cloud {
    /// An empty cloud with one route table, `main`.
    pub fn new(seed: u64, settings: Settings) -> Self {
        Self {
            store: Store::default(),
            bucket: Bucket::full(settings.throttle),
            settings,
            faults: Faults::default(),
            records: Records::default(),
            random: Random::new(seed),
            addresses: 0,
        }
    }

    /// One call at `now`.
    pub fn call(&mut self, caller: &Caller, op: &Op, now: Duration) -> Turn {
        self.store.pass(now, self.lag());
        let name = op.name();
        let hit = Called {
            verb: op.verb(),
            name: &name,
            writes: op.writes(),
        };
        let effect = self.faults.strike(&hit, now, &mut self.random);
        let mut latency = self.settings.latency.at(self.random.fraction());
        if let Some(Effect::Delay(Span(delay))) = &effect {
            latency += *delay;
        }
        let (wrote, objects, mut answer) = self.answer(op, effect, now);
        let number = self.records.next();
        if let Some(Err(error)) = &mut answer {
            error.request_id = format!("call-{number}");
        }
        self.records.add(Record {
            number,
            at: now,
            operation: name,
            objects,
            wrote,
            answer: match &answer {
                None => "never",
                Some(Ok(_)) => "ok",
                Some(Err(error)) => error.code.name(),
            },
            caller: caller.clone(),
            latency,
        });
        Turn { latency, answer }
    }

    /// Whether the cloud changed, what it was about, and the answer.
    fn answer(
        &mut self,
        op: &Op,
        effect: Option<Effect>,
        now: Duration,
    ) -> (bool, Vec<String>, Option<Result<Answer, CloudError>>) {
        let refusal = match &effect {
            Some(Effect::Hang) => return (false, asked(op), None),
            Some(Effect::Error {
                code,
                message,
                retry_after,
            }) => {
                let mut error = CloudError::new(*code, message.as_str());
                error.retry_after = retry_after.map(|span| span.0);
                Err(error)
            }
            _ => self.admit(now),
        };
        let done = refusal.and_then(|()| self.apply(op, now));
        let wrote = done.is_ok() && op.writes();
        let objects = match &done {
            Ok(Answer::Written(Written { objects, .. })) if !objects.is_empty() => {
                objects.iter().map(|object| object.id.clone()).collect()
            }
            _ => asked(op),
        };
        let answer = match (effect, done) {
            (Some(Effect::DoneThenHang), _) => None,
            (Some(Effect::LostAnswer), Ok(_)) => {
                let mut error = CloudError::new(ErrorCode::Unavailable, "the answer was lost");
                if wrote {
                    error.applied = Applied::Unknown;
                }
                Some(Err(error))
            }
            (Some(Effect::Empty), Ok(Answer::Page(page))) => Some(Ok(Answer::Page(Page {
                objects: Vec::new(),
                next: String::new(),
                ..page
            }))),
            (Some(Effect::WrongIds), Ok(answer)) => Some(Ok(about_others(answer))),
            (_, done) => Some(done),
        };
        (wrote, objects, answer)
    }

    /// Whether any call is taken now.
    fn admit(&mut self, now: Duration) -> Result<(), CloudError> {
        match self.settings.credentials {
            Credentials::Valid => {}
            Credentials::Invalid => {
                return Err(CloudError::new(
                    ErrorCode::CredentialsInvalid,
                    "these credentials are not known",
                ));
            }
            Credentials::Expired => {
                return Err(CloudError::new(
                    ErrorCode::CredentialsExpired,
                    "these credentials have expired",
                ));
            }
        }
        let Some(throttle) = self.settings.throttle else {
            return Ok(());
        };
        self.bucket.take(throttle, now).map_err(|wait| CloudError {
            retry_after: Some(wait),
            ..CloudError::new(ErrorCode::Throttled, "too many calls")
        })
    }

    fn apply(&mut self, op: &Op, now: Duration) -> Result<Answer, CloudError> {
        let settles = self.lag();
        let written = |objects| Answer::Written(Written { objects, settles });
        match op {
            Op::Account => Ok(Answer::Account(self.account())),
            Op::List(query) => self.list(query, now).map(Answer::Page),
            Op::Create(new) => self.create(new, now).map(written),
            Op::Update(change) => self.update(change, now).map(|object| vec![object]).map(written),
            Op::Delete { kind, ids } => self.delete(*kind, ids, now).map(|()| written(Vec::new())),
        }
    }

    /// How old the state that a read sees can be.
    fn lag(&self) -> Duration {
        self.settings.lag.most().min(MAX_LAG)
    }
}

/// What people and tests do beside the calls of plugins.
impl Cloud {
    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes settings.
    ///
    /// # Errors
    ///
    /// What is wrong with the outcome; nothing is changed then.
    pub fn configure(&mut self, change: SettingsChange) -> Result<(), String> {
        let settings = change.applied(&self.settings);
        if let Some(problem) = settings.problem() {
            return Err(problem);
        }
        if settings.throttle != self.settings.throttle {
            self.bucket = Bucket::full(settings.throttle);
        }
        self.settings = settings;
        Ok(())
    }

    /// The faults of the cloud.
    pub fn faults(&mut self) -> &mut Faults {
        &mut self.faults
    }

    /// What was called.
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// Puts an object as somebody beside the plugin would, in place of one with the same id.
    ///
    /// # Errors
    ///
    /// The cloud is full.
    pub fn put(&mut self, object: Object, now: Duration) -> Result<Object, CloudError> {
        self.store.pass(now, self.lag());
        self.store.put(object, now, now)
    }

    /// Changes what an instance does; false if there is no such instance.
    pub fn set_power(&mut self, id: &str, power: Power, now: Duration) -> bool {
        let Some(mut object) = self.store.get(Kind::Instance, id, now) else {
            return false;
        };
        object
            .attributes
            .insert("power".to_owned(), power.name().to_owned());
        self.put(object, now).is_ok()
    }

    /// Removes an object at once, whatever uses it; false if there is none.
    pub fn remove(&mut self, id: &str, now: Duration) -> bool {
        self.store.pass(now, self.lag());
        let object = self.store.find(id, now);
        object.is_some_and(|object| self.store.remove(object.kind, id, now))
    }

    /// Everything that exists, in the order of kinds and ids.
    pub fn inventory(&mut self, now: Duration) -> Vec<Object> {
        self.store.pass(now, self.lag());
        self.store.all(now).collect()
    }

    /// A page of the same, and the token of the next.
    pub(crate) fn inventory_page(
        &mut self,
        kinds: Vec<Kind>,
        token: &str,
        size: usize,
        now: Duration,
    ) -> Option<(Vec<Object>, String)> {
        self.store.pass(now, self.lag());
        let query = Query {
            kinds,
            ..Query::default()
        };
        let mut found = self.store.list(&query, &Place::read(token)?, size, now, now);
        Some(read::cut(&mut found, size)).map(|next| (found, next))
    }
}

/// The ids in a call.
fn asked(op: &Op) -> Vec<String> {
    match op {
        Op::Account => Vec::new(),
        Op::List(query) => query.ids.iter().flatten().cloned().collect(),
        Op::Create(new) => new.iter().map(|new| new.name.clone()).collect(),
        Op::Update(change) => vec![change.id.clone()],
        Op::Delete { ids, .. } => ids.clone(),
    }
}

/// The answer with other ids than those that exist.
fn about_others(mut answer: Answer) -> Answer {
    let objects = match &mut answer {
        Answer::Account(_) => return answer,
        Answer::Page(page) => &mut page.objects,
        Answer::Written(written) => &mut written.objects,
    };
    for object in objects {
        object.id = format!("{}-wrong", object.id);
    }
    answer
}

/// Tokens, and when they were counted.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    counted: Duration,
}

impl Bucket {
    fn full(throttle: Option<Throttle>) -> Self {
        Self {
            tokens: throttle.map_or(0.0, |throttle| throttle.burst.max(1).into()),
            counted: Duration::ZERO,
        }
    }

    /// Takes a token, or says how long until there is one.
    fn take(&mut self, throttle: Throttle, now: Duration) -> Result<(), Duration> {
        let most = f64::from(throttle.burst.max(1));
        let grown = now.saturating_sub(self.counted).as_secs_f64() * throttle.rate;
        self.tokens = (self.tokens + grown).min(most);
        self.counted = now;
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        let seconds = (1.0 - self.tokens) / throttle.rate;
        Err(Duration::try_from_secs_f64(seconds).unwrap_or(MAX_LAG))
    }
}

#[cfg(test)]
mod tests;
