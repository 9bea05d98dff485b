//! The role machine: who may write, and until when. Pure: it reads no clock and does nothing.
//!
//! Invariants, kept as laws in the tests: at most one epoch is accepted at any time; nothing is writable at or after
//! the end of the last grant; within one lease an epoch that ended never comes back.

use std::cmp::Ordering;

/// One term of leadership. Terms of different leases cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// UID of the Lease object.
    pub lease: String,
    /// How often the Lease has changed hands.
    pub transitions: i64,
}

/// A `Lead` as the host sent it, its echo already checked against the session.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    /// Of no grant: the first of a session, or one whose echo this session never got.
    Announce,
    /// Writes may start before this time (nanoseconds of the boot clock).
    Grant { until: u64 },
    /// Zero: the term is over.
    Stop,
}

/// What a `Lead` changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    /// The term that was granted until now is over.
    pub(crate) ended: bool,
    /// The epoch of this `Lead` got its first grant.
    pub(crate) began: bool,
}

/// Why a `Lead` is answered `NOT_LEADING`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LeadRefusal {
    #[error("transitions {told} of the lease are older than the accepted {accepted}")]
    LowerEpoch { told: i64, accepted: i64 },
    #[error("transitions {transitions} of the lease have ended")]
    Ended { transitions: i64 },
    #[error("lease {lease} holds a lead for another {nanos} ns")]
    OtherLease { lease: String, nanos: u64 },
}

/// Why a request is answered `NOT_LEADING`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("the plugin is standby: send Lead first")]
    Standby,
    #[error("the request is of another epoch than the accepted one")]
    OtherEpoch,
    #[error("the lead ran out: send Lead again")]
    RanOut,
}

#[derive(Clone, Debug)]
struct Lead {
    epoch: Epoch,
    until: u64,
    granted: bool,
    ended: bool,
}

impl Lead {
    fn new(epoch: Epoch) -> Self {
        Self {
            epoch,
            until: 0,
            granted: false,
            ended: false,
        }
    }

    fn is_valid(&self, now: u64) -> bool {
        !self.ended && now < self.until
    }
}

/// The accepted epoch and its grant.
#[derive(Debug, Default)]
pub(crate) struct Role {
    lead: Option<Lead>,
}

impl Role {
    /// Takes one `Lead`.
    pub(crate) fn lead(&mut self, epoch: &Epoch, told: &Told, now: u64) -> Result<Change, LeadRefusal> {
        let Some(lead) = &self.lead else {
            return Ok(self.accept(epoch, told, now));
        };
        if lead.epoch.lease != epoch.lease {
            if lead.is_valid(now) {
                let lease = lead.epoch.lease.clone();
                return Err(LeadRefusal::OtherLease {
                    lease,
                    nanos: lead.until.saturating_sub(now),
                });
            }
            return Ok(self.accept(epoch, told, now));
        }
        match epoch.transitions.cmp(&lead.epoch.transitions) {
            Ordering::Less => Err(LeadRefusal::LowerEpoch {
                told: epoch.transitions,
                accepted: lead.epoch.transitions,
            }),
            Ordering::Greater => Ok(self.accept(epoch, told, now)),
            Ordering::Equal => self.renew(told, now),
        }
    }

    /// Replaces what was accepted.
    fn accept(&mut self, epoch: &Epoch, told: &Told, now: u64) -> Change {
        let ended = self.leads();
        let mut lead = Lead::new(epoch.clone());
        let began = apply(&mut lead, told, now);
        self.lead = Some(lead);
        Change { ended, began }
    }

    fn renew(&mut self, told: &Told, now: u64) -> Result<Change, LeadRefusal> {
        let was_leading = self.leads();
        let Some(lead) = &mut self.lead else {
            return Ok(Change::default());
        };
        match told {
            Told::Stop => {
                apply(lead, told, now);
                Ok(Change {
                    ended: was_leading,
                    began: false,
                })
            }
            _ if lead.ended => Err(LeadRefusal::Ended {
                transitions: lead.epoch.transitions,
            }),
            Told::Announce | Told::Grant { .. } => Ok(Change {
                ended: false,
                began: apply(lead, told, now),
            }),
        }
    }

    /// Whether a term is granted and not ended. It may have run out.
    pub(crate) fn leads(&self) -> bool {
        self.lead.as_ref().is_some_and(|lead| lead.granted && !lead.ended)
    }

    /// Until when writes may start, in nanoseconds of the boot clock; 0: not at all.
    pub(crate) fn until(&self) -> u64 {
        self.lead
            .as_ref()
            .filter(|lead| !lead.ended)
            .map_or(0, |lead| lead.until)
    }

    /// Whether reads are answered.
    pub(crate) fn admit_read(&self) -> Result<(), Refusal> {
        if self.leads() {
            Ok(())
        } else {
            Err(Refusal::Standby)
        }
    }

    /// Whether a write of `epoch` may start.
    pub(crate) fn admit_write(&self, epoch: &Epoch, now: u64) -> Result<(), Refusal> {
        match &self.lead {
            Some(lead) if lead.granted && !lead.ended => match () {
                () if lead.epoch != *epoch => Err(Refusal::OtherEpoch),
                () if !lead.is_valid(now) => Err(Refusal::RanOut),
                () => Ok(()),
            },
            _ => Err(Refusal::Standby),
        }
    }
}

/// Applies a `Lead` to its own epoch; true for the first grant.
fn apply(lead: &mut Lead, told: &Told, now: u64) -> bool {
    match told {
        Told::Announce => false,
        Told::Stop => {
            lead.ended = true;
            lead.until = 0;
            false
        }
        Told::Grant { until } => {
            lead.until = *until;
            let first = !lead.granted && now < *until;
            lead.granted |= first;
            first
        }
    }
}

#[cfg(test)]
mod tests;
