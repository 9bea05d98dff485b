//! What a pass comes to, whatever the controller.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::cloud::Failure;

/// When a key is to be looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// When something about it changes.
    AwaitChange,
    /// After this time, or when something changes.
    After(Duration),
    /// With growing pauses.
    Backoff(Backoff),
}

impl Next {
    /// It failed: with the pauses that objects get.
    pub const RETRY: Self = Self::Backoff(Backoff::OBJECT);

    /// It failed, and nothing is gained before `pause` is over.
    pub const fn retry_after(pause: Duration) -> Self {
        Self::Backoff(Backoff::OBJECT.at_least(pause))
    }
}

/// Something to tell people: an Event on the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Whether it is a warning.
    pub severity: Severity,
    /// CamelCase; upstream's where upstream has one.
    pub reason: &'static str,
    /// What happened, and what to do.
    pub note: String,
}

/// An Event's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// As intended.
    Normal,
    /// Somebody should look.
    Warning,
}

impl Notice {
    /// Tells that something went as intended.
    pub fn normal(reason: &'static str, note: impl Into<String>) -> Self {
        Self {
            severity: Severity::Normal,
            reason,
            note: note.into(),
        }
    }

    /// Tells that somebody should look.
    pub fn warning(reason: &'static str, note: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            reason,
            note: note.into(),
        }
    }
}

/// Remembers what was last told about an object, so that nothing is told twice in a row. What differs only in an id
/// that the cloud made up for the one request is the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told(Vec<Gist>);

/// A notice without what is new in each request.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Gist {
    severity: Severity,
    reason: &'static str,
    note: String,
}

/// A word that is so long and has a digit is an id.
const ID_LENGTH: usize = 16;

/// The word before the cloud's id of one request.
const REQUEST: &str = "request";

/// Where to look in the cloud, as the end of a text for people; empty where nothing is known.
pub fn in_cloud(code: &str, request_id: &str) -> String {
    match (code, request_id) {
        ("", "") => String::new(),
        (code, "") => format!(" (cloud code {code})"),
        ("", id) => format!(" (cloud {REQUEST} {id})"),
        (code, id) => format!(" (cloud code {code}, {REQUEST} {id})"),
    }
}

impl Gist {
    fn of(notice: &Notice) -> Self {
        let is_long_id =
            |word: &str| word.len() >= ID_LENGTH && word.contains(|letter: char| letter.is_ascii_digit());
        let mut follows_request = false;
        let is_kept = |word: &&str| {
            let is_request_id =
                std::mem::replace(&mut follows_request, *word == REQUEST) && word.ends_with(')');
            !is_request_id && !is_long_id(word)
        };
        let words = notice.note.split_whitespace().filter(is_kept);
        Self {
            severity: notice.severity,
            reason: notice.reason,
            note: words.collect::<Vec<_>>().join(" "),
        }
    }
}

impl Told {
    /// Those of `notices` that are news: what repeats what was last told with its reason is not, until [`Told::clear`].
    pub fn news(&mut self, notices: &[Notice]) -> Vec<Notice> {
        let now: Vec<Gist> = notices.iter().map(Gist::of).collect();
        let is_news = |gist: &Gist| !self.0.contains(gist);
        let news = notices
            .iter()
            .zip(&now)
            .filter(|(_, gist)| is_news(gist))
            .map(|(notice, _)| notice.clone())
            .collect();
        self.0
            .retain(|told| !now.iter().any(|gist| gist.reason == told.reason));
        self.0.extend(now);
        news
    }

    /// Everything is well again: whatever comes next is news.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// Why the API server did not take a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteFailure {
    /// Somebody else wrote first (409).
    Conflict,
    /// The object is gone (404).
    Gone,
    /// Another object has its name now (422 whose cause is `metadata.uid`).
    AnotherObject,
    /// The API server refuses the value (422).
    Invalid {
        /// The field it names.
        field: String,
        /// What it says.
        message: String,
    },
    /// A right is missing (403).
    Forbidden {
        /// What it says.
        message: String,
    },
    /// It did not answer, or not in time, or asked to be left alone.
    Unavailable {
        /// What happened.
        message: String,
        /// How long it asked to be left alone.
        retry_after: Option<Duration>,
    },
    /// This process may not write now: it does not lead, or is about to stop.
    NotLeading,
}

/// What a write that failed means for the pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AfterWrite {
    /// Read the object from the API server and decide again from the start.
    Reread,
    /// Come back later.
    Rest {
        /// What to tell people.
        notices: Vec<Notice>,
        /// When to come back.
        next: Next,
    },
}

/// What a failed write of `what` (for people, as "its addresses") means.
pub fn after_write(failure: &WriteFailure, reason: &'static str, what: &str) -> AfterWrite {
    let (notices, floor) = match failure {
        WriteFailure::Conflict | WriteFailure::Gone | WriteFailure::AnotherObject => {
            return AfterWrite::Reread;
        }
        WriteFailure::NotLeading => {
            // The next term begins anew; but a permit may also be missing for a moment only.
            return AfterWrite::Rest {
                notices: Vec::new(),
                next: Next::After(PERMIT_PAUSE),
            };
        }
        WriteFailure::Invalid { field, message } => {
            let note = format!("The API server refuses {what}, field {field}: {message}");
            (vec![Notice::warning(reason, note)], SLOW)
        }
        WriteFailure::Forbidden { message } => {
            let note =
                format!("The host may not write {what}: {message}. Grant the right, see deploy/manifests");
            (vec![Notice::warning(reason, note)], Duration::ZERO)
        }
        WriteFailure::Unavailable { retry_after, .. } => (Vec::new(), retry_after.unwrap_or_default()),
    };
    AfterWrite::Rest {
        notices,
        next: Next::retry_after(floor),
    }
}

/// Pause where no permit was given.
pub const PERMIT_PAUSE: Duration = Duration::from_secs(1);

/// Pause where only a person, or a change of the object, can help.
pub const SLOW: Duration = Duration::from_secs(300);

/// What to tell people about a failure: its message, never empty.
pub fn message_of(failure: &Failure) -> &str {
    if failure.message.is_empty() {
        "the plugin gave no reason"
    } else {
        &failure.message
    }
}

#[cfg(test)]
mod tests {
    use super::{Notice, Told, in_cloud};

    #[test]
    fn nothing_is_told_twice_in_a_row_until_all_is_well() {
        let mut told = Told::default();
        let quota = || [Notice::warning("SyncLoadBalancerFailed", "quota")];
        assert_eq!(told.news(&quota()).len(), 1);
        assert_eq!(told.news(&quota()).len(), 0);
        assert_eq!(
            told.news(&[Notice::warning("SyncLoadBalancerFailed", "other")])
                .len(),
            1
        );
        assert_eq!(told.news(&quota()).len(), 1, "back again is news");
        told.clear();
        assert_eq!(told.news(&quota()).len(), 1);
    }

    #[test]
    fn another_request_id_is_no_news_but_another_port_is() {
        let mut told = Told::default();
        let failed = |text: &str| [Notice::warning("SyncLoadBalancerFailed", text)];
        let first = "no room on port 80 (cloud request 6f0c9ab1-2d3e-4c5b-8a7f-001122334455)";
        let second = "no room on port 80 (cloud request 7a1d0bc2-3e4f-4d6c-9b80-112233445566)";
        let other = "no room on port 443 (cloud request 7a1d0bc2-3e4f-4d6c-9b80-112233445566)";
        let counts = [first, second, other].map(|text| told.news(&failed(text)).len());
        assert_eq!(counts, [1, 0, 1]);
        let short = |id: &str| format!("no room on port 443{}", in_cloud("Full", id));
        let counts = ["call-345", "call-346"].map(|id| told.news(&failed(&short(id))).len());
        assert_eq!(counts, [1, 0]);
    }

    #[test]
    fn two_notices_with_one_reason_do_not_make_each_other_news() {
        let mut told = Told::default();
        let both = [
            Notice::warning("SyncLoadBalancerFailed", "a"),
            Notice::warning("SyncLoadBalancerFailed", "b"),
        ];
        assert_eq!(told.news(&both).len(), 2);
        assert_eq!(told.news(&both).len(), 0);
    }
}
