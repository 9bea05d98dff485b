//! For how long the plugin is to be left alone.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::clock::Instant;
use crate::disposition::RETRY_AFTER_MAX;

/// Pauses that a cloud's refusals cost the whole plugin, and those that the plugin asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Throttle {
    /// Refusals in a row: those of one pause are one.
    refusals: u32,
    /// When the last pause began.
    since: Option<Instant>,
    /// When it ends.
    until: Option<Instant>,
    /// What the plugin itself asked for in its last status.
    asked: Option<Instant>,
}

impl Throttle {
    /// A call begun at `begun` was refused because there were too many.
    pub(super) fn refused(&mut self, begun: Instant, pace: Backoff, now: Instant) {
        if self.is_news(begun) {
            self.refusals = self.refusals.saturating_add(1);
            self.since = Some(now);
        }
        let until = now + pace.delay(self.refusals, 0.0);
        self.until = self.until.max(Some(until));
    }

    /// A call begun at `begun` was answered.
    pub(super) fn reached(&mut self, begun: Instant) {
        if self.is_news(begun) {
            self.refusals = 0;
        }
    }

    /// The plugin said how long it wants to be left alone.
    pub(super) fn reported(&mut self, pause: Option<Duration>, now: Instant) {
        self.asked = pause.map(|pause| now + pause.min(RETRY_AFTER_MAX));
    }

    /// Another process speaks for itself; the cloud is the same.
    pub(super) const fn session_began(&mut self) {
        self.asked = None;
    }

    /// When the plugin may be asked again, if that is not now.
    pub(super) fn until(&self, now: Instant) -> Option<Instant> {
        self.until.max(self.asked).filter(|until| now < *until)
    }

    /// Whether a call begun at `begun` knew of the last pause.
    fn is_news(&self, begun: Instant) -> bool {
        self.since.is_none_or(|since| since < begun)
    }
}
