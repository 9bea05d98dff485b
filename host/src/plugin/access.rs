//! The way to the process that calls go to, which may change underneath them.

use std::ops::Deref;
use std::sync::Arc;

use tokio::sync::watch;

use super::link::Link;

/// Where calls go now.
#[derive(Clone, Debug)]
pub(crate) enum Access {
    /// There is no session.
    Away,
    /// Wait: a process that takes them comes soon.
    Held,
    /// Over this link.
    Open(Arc<Link>),
}

impl Access {
    /// Waits while calls are held. Whoever gets a link is counted as its user before the link could be left for another.
    pub(crate) async fn pass(mut access: watch::Receiver<Self>) -> Option<LinkUse> {
        loop {
            let now = access.borrow_and_update().clone();
            match now {
                Self::Away => return None,
                Self::Held => access.changed().await.ok()?,
                Self::Open(link) => {
                    let user = LinkUse::new(link);
                    if !access.has_changed().unwrap_or(false) {
                        return Some(user);
                    }
                }
            }
        }
    }

    /// Whether this is what `other` is.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Away, Self::Away) | (Self::Held, Self::Held) => true,
            (Self::Open(one), Self::Open(other)) => Arc::ptr_eq(one, other),
            (Self::Away | Self::Held | Self::Open(_), _) => false,
        }
    }
}

/// A link in use: a call of several steps makes them all over one.
#[derive(Debug)]
pub(crate) struct LinkUse(Arc<Link>);

impl LinkUse {
    fn new(link: Arc<Link>) -> Self {
        // Who waits waits for the last to go.
        link.users.send_if_modified(|users| {
            *users += 1;
            false
        });
        Self(link)
    }
}

impl Drop for LinkUse {
    fn drop(&mut self) {
        self.0.users.send_if_modified(|users| {
            *users = users.saturating_sub(1);
            *users == 0
        });
    }
}

impl Deref for LinkUse {
    type Target = Link;

    fn deref(&self) -> &Link {
        &self.0
    }
}
