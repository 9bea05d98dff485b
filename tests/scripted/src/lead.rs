//! The role of one plugin process: `proto/SPEC.md` 4.2 and 4.3, written a second time beside the SDK's.

use bulkhead_proto::v1;

/// What the plugin was told last.
#[derive(Debug, Default)]
pub(crate) struct Lead {
    accepted: Option<v1::Epoch>,
    until: u64,
    ended: bool,
    stamps: Vec<u64>,
}

/// A `Lead` or a write that must not be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotLeading;

impl Lead {
    /// Takes a `Lead` that arrived at `now` and returns until when writes may start.
    pub(crate) fn take(&mut self, request: &v1::LeadRequest, now: u64) -> Result<u64, NotLeading> {
        let epoch = request.epoch.clone().unwrap_or_default();
        let valid_for = nanos(request.valid_for.as_ref());
        let same_lease = self
            .accepted
            .as_ref()
            .filter(|accepted| accepted.lease_uid == epoch.lease_uid);
        match (&self.accepted, same_lease) {
            (_, Some(accepted)) if epoch.transitions < accepted.transitions => return Err(NotLeading),
            (_, Some(accepted)) if epoch.transitions == accepted.transitions => {
                if self.ended && valid_for > 0 {
                    return Err(NotLeading);
                }
            }
            (Some(_), None) if !self.ended && now < self.until => return Err(NotLeading),
            _ => {
                *self = Self {
                    accepted: Some(epoch),
                    stamps: std::mem::take(&mut self.stamps),
                    ..Self::default()
                }
            }
        }
        if valid_for == 0 {
            (self.ended, self.until) = (true, 0);
        } else if let Some(echo) = request.echo.filter(|echo| self.stamps.contains(echo)) {
            self.until = echo.saturating_add(valid_for);
        }
        self.stamps.push(now);
        Ok(self.until)
    }

    /// Whether a cloud write of this epoch may start.
    pub(crate) fn may_write(&self, epoch: Option<&v1::Epoch>, now: u64) -> Result<(), NotLeading> {
        let is_accepted = epoch.is_some() && epoch == self.accepted.as_ref();
        if is_accepted && !self.ended && now < self.until {
            Ok(())
        } else {
            Err(NotLeading)
        }
    }

    /// Whether a read is answered: from the first accepted `Lead` on.
    pub(crate) fn may_read(&self) -> Result<(), NotLeading> {
        self.accepted.as_ref().map(|_| ()).ok_or(NotLeading)
    }
}

fn nanos(duration: Option<&prost_types::Duration>) -> u64 {
    let duration = duration.copied().unwrap_or_default();
    let seconds = u64::try_from(duration.seconds).unwrap_or_default();
    let nanos = u64::try_from(duration.nanos).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(lease: &str, transitions: i64, seconds: i64, echo: Option<u64>) -> v1::LeadRequest {
        v1::LeadRequest {
            cluster: None,
            epoch: Some(v1::Epoch {
                lease_uid: lease.to_owned(),
                transitions,
            }),
            valid_for: Some(prost_types::Duration { seconds, nanos: 0 }),
            echo,
        }
    }

    #[test]
    fn the_first_lead_grants_nothing_and_the_second_counts_from_the_stamp() {
        let mut lead = Lead::default();
        let epoch = told("l", 1, 10, None).epoch;
        assert_eq!(lead.take(&told("l", 1, 10, None), 5), Ok(0));
        assert_eq!(lead.may_write(epoch.as_ref(), 6), Err(NotLeading));
        assert_eq!(
            lead.take(&told("l", 1, 10, Some(4)), 6),
            Ok(0),
            "a stamp it never gave"
        );
        assert_eq!(lead.take(&told("l", 1, 10, Some(5)), 7), Ok(10_000_000_005));
        assert_eq!(lead.may_write(epoch.as_ref(), 10_000_000_004), Ok(()));
        assert_eq!(lead.may_write(epoch.as_ref(), 10_000_000_005), Err(NotLeading));
    }

    #[test]
    fn what_has_ended_or_been_overtaken_never_comes_back() {
        let mut lead = Lead::default();
        lead.take(&told("l", 1, 10, None), 1).unwrap();
        lead.take(&told("l", 1, 10, Some(1)), 2).unwrap();
        assert_eq!(lead.take(&told("other", 0, 10, None), 3), Err(NotLeading));
        lead.take(&told("l", 1, 0, None), 4).unwrap();
        assert_eq!(lead.take(&told("l", 1, 10, Some(4)), 5), Err(NotLeading));
        lead.take(&told("l", 2, 10, Some(4)), 6).unwrap();
        assert_eq!(lead.take(&told("l", 1, 10, Some(6)), 7), Err(NotLeading));
    }
}
