//! The driver: the election's machine between the API server and the stage.

use std::pin::pin;

use ::kube::Api;
use bulkhead_core::clock::Instant;
use bulkhead_core::election::{Answer, Candidate, Effect, Ending, Event, Machine};
use futures::future::{BoxFuture, pending};
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};

use super::Settings;
use super::lease::LeaseClient;
use super::sight;
use super::stage::Stage;
use crate::clock;
use crate::kube::error::ApiError;

/// A request under way.
type Call = BoxFuture<'static, Result<Answer, ApiError>>;

/// Takes part in the election until the release.
pub(super) async fn run(
    settings: Settings,
    api: Api<Lease>,
    stage: Stage,
    ended: watch::Sender<Option<Ending>>,
) {
    let timing = settings.timing;
    let mut changes = pin!(sight::changes(
        api.clone(),
        &settings.name,
        timing.request_timeout(),
        timing.retry_period()
    ));
    let mut driver = Driver::new(settings, api, stage);
    let mut event = Event::Woken;
    let (mut draining, mut releasing) = (false, false);
    loop {
        if let Some(ending) = driver.step(event) {
            ended.send_replace(Some(ending));
            return;
        }
        event = tokio::select! {
            biased;
            () = driver.stage.drain_wanted(), if !draining => {
                draining = true;
                Event::Drain
            }
            () = driver.stage.release_wanted(), if !releasing => {
                releasing = true;
                Event::Release
            }
            answer = answered(&mut driver.call) => Event::Answered(driver.heard(answer)),
            Some(lease) = changes.next() => driver.noticed(lease),
            () = reached(driver.wake) => Event::Woken,
        };
    }
}

/// The answer of the request under way; endless without one.
async fn answered(call: &mut Option<Call>) -> Result<Answer, ApiError> {
    let Some(running) = call else {
        return pending().await;
    };
    let answer = running.await;
    *call = None;
    answer
}

async fn reached(time: Option<Instant>) {
    match time {
        Some(time) => sleep(time.saturating_since(clock::now())).await,
        None => pending().await,
    }
}

struct Driver {
    settings: Settings,
    lease: LeaseClient,
    machine: Machine,
    stage: Stage,
    call: Option<Call>,
    wake: Option<Instant>,
    /// The API server does not answer as it should, and the log says so.
    away: bool,
}

impl Driver {
    fn new(settings: Settings, api: Api<Lease>, stage: Stage) -> Self {
        let candidate = Candidate {
            identity: settings.identity.clone(),
            timing: settings.timing,
            poll_period: settings.timing.poll_period(rand::random()),
        };
        Self {
            lease: LeaseClient::new(api, &settings),
            machine: Machine::new(candidate),
            settings,
            stage,
            call: None,
            wake: None,
            away: false,
        }
    }

    /// Lets the machine take in `event` and does what it says; how it ended, if it did.
    fn step(&mut self, event: Event) -> Option<Ending> {
        self.wake = None;
        let effects = self.machine.step(event, clock::now());
        effects.into_iter().find_map(|effect| self.perform(effect))
    }

    fn perform(&mut self, effect: Effect) -> Option<Ending> {
        match effect {
            Effect::Read => {
                let lease = self.lease.clone();
                self.call = Some(async move { lease.read().await.map(Answer::Read) }.boxed());
            }
            Effect::Create(claim) => {
                let (lease, record) = (self.lease.clone(), claim.stamped(clock::wall()));
                self.call = Some(async move { lease.create(&record).await.map(Answer::Written) }.boxed());
            }
            Effect::Update { guard, claim } => {
                let (lease, record) = (self.lease.clone(), claim.stamped(clock::wall()));
                let update = async move { lease.update(&guard, &record).await.map(Answer::Written) };
                self.call = Some(update.boxed());
            }
            Effect::WakeAt(time) => self.wake = Some(time),
            Effect::Won(leading) | Effect::Renewed(leading) => {
                self.stage.lead(leading, self.settings.timing.lease_duration());
            }
            Effect::Lost(why) => {
                self.stage.stand_by();
                info!(lease = self.settings.name, "lost leadership: {why}");
            }
            Effect::StandingBy { holder } => {
                info!(lease = self.settings.name, "standing by: {holder} leads");
                self.stage.led_by(holder);
            }
            Effect::Ended(ending) => {
                self.stage.stand_by();
                return Some(ending);
            }
        }
        None
    }

    /// Takes in how a request ended; one line in the log when requests begin to fail, one when they succeed
    /// again.
    fn heard(&mut self, answer: Result<Answer, ApiError>) -> Answer {
        let lease = format!("{}/{}", self.settings.namespace, self.settings.name);
        // A guard that did not hold is an answer like others.
        let conflict = matches!(answer, Err(ApiError::Conflict));
        match answer {
            Err(error) if !conflict => {
                if !std::mem::replace(&mut self.away, true) {
                    warn!("cannot use lease {lease}, trying on: {error}");
                }
                Answer::Failed
            }
            answer => {
                if std::mem::take(&mut self.away) {
                    warn!("lease {lease} can be used again");
                }
                answer.unwrap_or(Answer::Conflict)
            }
        }
    }

    /// What the watch told; a Lease that cannot be read is left to the polls.
    fn noticed(&self, lease: Option<Lease>) -> Event {
        let version = lease.map(|lease| self.lease.version(lease)).transpose();
        version.map_or(Event::Woken, Event::Noticed)
    }
}
