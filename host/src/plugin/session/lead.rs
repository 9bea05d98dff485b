//! Telling the plugin who leads.
//!
//! A `Lead` grants the right to start writes for a time that the plugin counts from a stamp of its own clock,
//! which the host only echoes. So the first of a session, which has nothing to echo, grants nothing, and the
//! second follows at once.

use std::convert::Infallible;
use std::time::Duration;

use bulkhead_core::clock::Instant;
use bulkhead_core::cloud::Reason;
use bulkhead_core::election::Epoch;
use bulkhead_proto::v1;
use tokio::sync::watch;
use tokio::time::sleep;

use super::board::Board;
use super::state::LeadFact;
use crate::clock;
use crate::leader::{Standing, Term};
use crate::plugin::Settings;
use crate::plugin::call::{CallError, Class, Verb, Wire, rpc};
use crate::plugin::convert::requests;

const LEAD: Verb = Verb {
    name: "Lead",
    class: Class::Handshake,
};
/// Pause before a `Lead` that was not taken is sent again, unless a renewal comes first.
const AGAIN: Duration = Duration::from_secs(1);

/// A `Lead` of this much is over as soon as it is taken: its time counts from a stamp that is older.
const OVER: Duration = Duration::from_nanos(1);

/// A stamp older than this part of the lease makes a grant too short: a `Lead` that only fetches a new one goes first.
const OLD: u32 = 4;

/// Whether the plugin has taken what it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Yes,
    No,
}

/// A stamp of the plugin's clock.
#[derive(Clone, Copy)]
struct Stamp {
    value: u64,
    /// The plugin made it after this point of the host's clock.
    after: Instant,
}

/// A term that the plugin was told of and that may be in force there.
struct Granted {
    epoch: Epoch,
    /// Until when at least it may start writes, as far as the plugin has said so.
    ends: Option<Instant>,
}

/// What the plugin was told in this session.
pub(crate) struct Told<'a> {
    settings: &'a Settings,
    board: &'a Board,
    wire: &'a Wire,
    stamp: Option<Stamp>,
    /// Mostly one; two while the plugin does not take a Lease that was made anew for the one that it knows.
    granted: Vec<Granted>,
}

impl<'a> Told<'a> {
    /// Nothing yet.
    pub(crate) const fn new(settings: &'a Settings, board: &'a Board, wire: &'a Wire) -> Self {
        Self {
            settings,
            board,
            wire,
            stamp: None,
            granted: Vec::new(),
        }
    }

    /// Follows `standing` as long as the session lives.
    pub(crate) async fn follow(&mut self, mut standing: watch::Receiver<Standing>) -> Infallible {
        loop {
            let now = standing.borrow_and_update().clone();
            self.board.update(|facts| {
                facts.host_drains = matches!(now, Standing::Draining(_) | Standing::Retired(_));
            });
            let taken = match now {
                Standing::Leading(term) => self.grant(&term).await,
                Standing::Standby | Standing::Draining(_) => self.stand_down().await,
                Standing::Retired(_) => self.lapse().await,
            };
            let changed = async {
                // Without an elector nothing changes any more.
                if standing.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = changed => {}
                () = sleep(AGAIN), if taken == Taken::No => {}
            }
        }
    }

    /// Grants what is left of `term`.
    async fn grant(&mut self, term: &Term) -> Taken {
        self.end_other_leases(&term.epoch.lease_uid).await;
        let age = |stamp: &Stamp| clock::now().saturating_since(stamp.after);
        if self
            .stamp
            .as_ref()
            .is_none_or(|stamp| age(stamp) > term.lease_duration / OLD)
        {
            let Some(valid_for) = remaining(term) else {
                return Taken::No;
            };
            if let Err(error) = self.send(&term.epoch, valid_for).await {
                return self.not_taken(&error);
            }
        }
        let (Some(stamp), Some(valid_for)) = (self.stamp, remaining(term)) else {
            return Taken::No;
        };
        match self.send(&term.epoch, valid_for).await {
            Ok(()) => {
                let ends = Some(stamp.after + valid_for);
                // The term that was taken has ended all others.
                self.granted = vec![Granted {
                    epoch: term.epoch.clone(),
                    ends,
                }];
                self.board.update(|facts| facts.lead.take(&term.epoch));
                Taken::Yes
            }
            Err(error) => self.not_taken(&error),
        }
    }

    /// A Lease that was deleted and made again has epochs that the plugin cannot compare with those before: until their
    /// right has run out it would take none, unless it is told that they are over.
    async fn end_other_leases(&mut self, lease_uid: &str) {
        let of_others = |granted: &&Granted| granted.epoch.lease_uid != lease_uid;
        let others: Vec<Epoch> = self
            .granted
            .iter()
            .filter(of_others)
            .map(|it| it.epoch.clone())
            .collect();
        for epoch in others {
            // What cannot be ended runs out.
            if self.send(&epoch, Duration::ZERO).await.is_ok() {
                self.granted.retain(|granted| granted.epoch != epoch);
            }
        }
    }

    /// Takes back every right that the plugin may have, and ends the terms that they are of.
    pub(crate) async fn stand_down(&mut self) -> Taken {
        self.take_back(Duration::ZERO).await
    }

    /// Takes back every right that the plugin may have, but ends no term: the same process may be configured again
    /// while this host leads, and takes no `Lead` of a term that has ended.
    async fn lapse(&mut self) -> Taken {
        self.take_back(OVER).await
    }

    async fn take_back(&mut self, valid_for: Duration) -> Taken {
        self.board.update(|facts| facts.lead = LeadFact::None);
        while let Some(granted) = self.granted.last() {
            let epoch = granted.epoch.clone();
            match self.send(&epoch, valid_for).await {
                // NOT_LEADING: another epoch has ended this one, or it was never taken.
                Err(error) if error.failure.reason != Some(Reason::NotLeading) => return Taken::No,
                Ok(()) | Err(_) => self.granted.retain(|granted| granted.epoch != epoch),
            }
        }
        self.board.stood_down();
        Taken::Yes
    }

    /// The plugin did not take a `Lead`. An earlier one goes on until its time is over.
    fn not_taken(&self, error: &CallError) -> Taken {
        let now = clock::now();
        let goes_on = self
            .granted
            .iter()
            .any(|granted| granted.ends.is_some_and(|ends| now < ends));
        if error.failure.reason == Some(Reason::NotLeading) || !goes_on {
            let why = format!("it does not take the lead: {}", error.failure.message);
            self.board.update(|facts| facts.lead = LeadFact::Refused(why));
        }
        Taken::No
    }

    async fn send(&mut self, epoch: &Epoch, valid_for: Duration) -> Result<(), CallError> {
        let (after, deadline) = (clock::now(), self.settings.timing.handshake);
        if !valid_for.is_zero() {
            // From here on it may be in force, whatever becomes of the answer. The stamp that it counts from is older.
            self.board.led(after + valid_for);
            if !self.granted.iter().any(|granted| granted.epoch == *epoch) {
                self.granted.push(Granted {
                    epoch: epoch.clone(),
                    ends: None,
                });
            }
        }
        let cluster = &self.settings.cluster;
        let request = v1::LeadRequest {
            cluster: Some(v1::Cluster {
                uid: cluster.uid.clone(),
                name: cluster.name.clone(),
            }),
            epoch: Some(requests::epoch(epoch)),
            valid_for: Some(requests::duration(valid_for)),
            echo: self.stamp.map(|stamp| stamp.value),
        };
        let call = self.wire.send(deadline, request, rpc!(lead));
        let answer = self.wire.within(LEAD, deadline, call).await?;
        self.stamp = Some(Stamp {
            value: answer.clock_stamp,
            after,
        });
        Ok(())
    }
}

/// How long the plugin may start writes from now; `None` if that is over. Zero is never sent for it: that would
/// mean the end of the term.
fn remaining(term: &Term) -> Option<Duration> {
    Some(term.valid_for(clock::now())).filter(|left| !left.is_zero())
}
