//! Which node a client was last sent to.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

/// Whether making room cost another client its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    /// There was room.
    Room,
    /// The client that had been away for longest was forgotten.
    Evicted,
}

/// The clients of one load balancer, by address: all its ports, as those of one client belong together.
#[derive(Debug)]
pub(super) struct Affinity {
    timeout: Option<Duration>,
    limit: usize,
    clients: HashMap<IpAddr, (IpAddr, Instant)>,
    /// The same by the time of the last connection, longest ago first.
    by_age: BTreeSet<(Instant, IpAddr)>,
}

impl Affinity {
    pub(super) fn new(timeout: Option<Duration>, limit: usize) -> Self {
        Self {
            timeout,
            limit,
            clients: HashMap::new(),
            by_age: BTreeSet::new(),
        }
    }

    /// Keeps clients for so long from now on; forgets all if they are no longer to be kept.
    pub(super) fn keep_for(&mut self, timeout: Option<Duration>) {
        if timeout.is_none() {
            self.clients = HashMap::new();
            self.by_age = BTreeSet::new();
        }
        self.timeout = timeout;
    }

    /// Where the client's last connection went, unless that is too long ago.
    pub(super) fn target(&self, client: IpAddr, now: Instant) -> Option<IpAddr> {
        let timeout = self.timeout?;
        let (target, last) = self.clients.get(&client)?;
        (now.saturating_duration_since(*last) < timeout).then_some(*target)
    }

    /// Remembers where a connection of the client went.
    pub(super) fn bind(&mut self, client: IpAddr, target: IpAddr, now: Instant) -> Bound {
        let Some(timeout) = self.timeout else {
            return Bound::Room;
        };
        if let Some((_, last)) = self.clients.insert(client, (target, now)) {
            self.by_age.remove(&(last, client));
        }
        self.by_age.insert((now, client));
        let is_old = |(last, _): &&(Instant, IpAddr)| now.saturating_duration_since(*last) >= timeout;
        while let Some((_, old)) = self.by_age.first().filter(is_old).copied() {
            self.by_age.pop_first();
            self.clients.remove(&old);
        }
        if self.clients.len() <= self.limit {
            return Bound::Room;
        }
        let oldest = self.by_age.iter().find(|(_, other)| *other != client).copied();
        if let Some(oldest) = oldest {
            self.by_age.remove(&oldest);
            self.clients.remove(&oldest.1);
        }
        Bound::Evicted
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::clock;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn a_client_is_remembered_until_its_timeout_after_its_last_connection() {
        let start = clock::now();
        let mut affinity = Affinity::new(Some(TIMEOUT), 9);
        affinity.bind(ip(1), ip(101), start);
        let later = start + TIMEOUT - Duration::from_secs(1);
        assert_eq!(affinity.target(ip(1), later), Some(ip(101)));
        affinity.bind(ip(1), ip(101), later);
        assert_eq!(affinity.target(ip(1), start + TIMEOUT), Some(ip(101)));
        assert_eq!(affinity.target(ip(1), later + TIMEOUT), None);
        assert_eq!(affinity.target(ip(2), start), None);
    }

    #[test]
    fn without_affinity_nobody_is_remembered_and_old_clients_are_forgotten() {
        let now = clock::now();
        let mut affinity = Affinity::new(None, 9);
        affinity.bind(ip(1), ip(101), now);
        assert!(affinity.clients.is_empty());
        affinity.keep_for(Some(TIMEOUT));
        affinity.bind(ip(1), ip(101), now);
        affinity.keep_for(None);
        affinity.keep_for(Some(TIMEOUT));
        assert_eq!(affinity.target(ip(1), now), None);
    }

    proptest! {
        #[test]
        fn it_never_holds_more_than_its_limit_nor_loses_the_latest(steps in vec((0_u8..20, 0_u64..4), 1..200)) {
            let mut now = clock::now();
            let mut affinity = Affinity::new(Some(TIMEOUT), 5);
            for (client, seconds) in steps {
                now += Duration::from_secs(seconds);
                affinity.bind(ip(client), ip(client + 100), now);
                prop_assert!(affinity.clients.len() <= 5);
                prop_assert_eq!(affinity.clients.len(), affinity.by_age.len());
                prop_assert_eq!(affinity.target(ip(client), now), Some(ip(client + 100)));
            }
        }
    }
}
