//! The addresses that load balancers get, and who has which.
//!
//! Invariant: an address has at most one owner. The caller serialises (`&mut self`), so looking and
//! taking are one step.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use crate::balancer::ServiceKey;
use crate::cidr::{self, Cidr, CidrError, Family};

#[cfg(test)]
mod tests;

/// The pool used when none is configured: loopback addresses, which exist on every Linux machine.
pub const DEFAULT_RANGES: [&str; 2] = ["127.0.10.0/24", "::1"];

/// The addresses that a Service should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// One address of each, in this order.
    pub families: Vec<Family>,
    /// Which of them must be had.
    pub need: Need,
    /// Addresses it must have, at most one of a family.
    pub requested: Vec<IpAddr>,
    /// Addresses that it should have if they are free: what its Service was told before.
    pub preferred: Vec<IpAddr>,
}

/// Whether a load balancer may be without an address of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// It may not.
    Every,
    /// It may, if it has one of another family.
    Any,
}

/// Which address is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// The lowest free one of a family.
    Any(Family),
    /// This one if it is in the pool and free, else the lowest free one of its family.
    Preferably(IpAddr),
    /// This one or none.
    Exactly(IpAddr),
}

/// Why no address was given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// Every address of the family is taken.
    #[error(
        "the address pool {pool} has no free {family} address ({taken} taken): delete a Service of type LoadBalancer, or give the plugin another range with --pool"
    )]
    Exhausted {
        /// The family asked for.
        family: Family,
        /// The pool's ranges.
        pool: String,
        /// How many addresses are taken.
        taken: usize,
    },
    /// The requested address is outside every range, or a range's network or broadcast address, or
    /// excluded.
    #[error(
        "requested address {address} is not in the address pool {pool}: ask for one inside, or for none to be given a free one; its operator can add ranges with --pool"
    )]
    NotInPool {
        /// The address asked for.
        address: IpAddr,
        /// The pool's ranges.
        pool: String,
    },
    /// The requested address belongs to another Service.
    #[error(
        "requested address {address} is taken by Service {by}: ask for another one of the address pool {pool}, or for none to be given a free one"
    )]
    Taken {
        /// The address asked for.
        address: IpAddr,
        /// Who has it.
        by: ServiceKey,
        /// The pool's ranges.
        pool: String,
    },
}

/// Why a configuration is not a pool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolConfigError {
    /// A range or exclusion cannot be read.
    #[error("address pool: {0}")]
    Range(#[from] CidrError),
    /// Two ranges share addresses.
    #[error("address pool: {first} and {second} overlap")]
    Overlap {
        /// The range given first.
        first: Cidr,
        /// The range given later.
        second: Cidr,
    },
    /// There is no range.
    #[error("address pool: give at least one address or CIDR, such as 127.0.10.0/24")]
    Empty,
}

/// Ranges, exclusions, and the owner of each address taken.
#[derive(Debug, Clone)]
pub struct Pool {
    ranges: Vec<Cidr>,
    excluded: BTreeSet<IpAddr>,
    taken: BTreeMap<IpAddr, ServiceKey>,
}

impl Pool {
    /// A pool of `ranges` (CIDRs or single addresses), never handing out `excluded`.
    pub fn new(
        ranges: impl IntoIterator<Item = Cidr>,
        excluded: impl IntoIterator<Item = IpAddr>,
    ) -> Result<Self, PoolConfigError> {
        let mut known: Vec<Cidr> = Vec::new();
        for range in ranges {
            if let Some(first) = known.iter().find(|known| known.overlaps(&range)) {
                return Err(PoolConfigError::Overlap {
                    first: *first,
                    second: range,
                });
            }
            known.push(range);
        }
        if known.is_empty() {
            return Err(PoolConfigError::Empty);
        }
        Ok(Self {
            ranges: known,
            excluded: excluded.into_iter().collect(),
            taken: BTreeMap::new(),
        })
    }

    /// Gives an address to `owner`, atomically: it is the owner's when this returns.
    pub fn take(&mut self, owner: &ServiceKey, request: Request) -> Result<IpAddr, PoolError> {
        let address = match request {
            Request::Any(family) => self.lowest_free(family)?,
            Request::Exactly(address) => self.free(address)?,
            Request::Preferably(address) => match self.free(address) {
                Ok(address) => address,
                Err(_) => self.lowest_free(Family::of(address))?,
            },
        };
        self.taken.insert(address, owner.clone());
        Ok(address)
    }

    /// Gives to `owner` what it wishes, all or nothing: `held` are its addresses now, and those that it
    /// may keep it keeps. The caller releases what is no longer among its addresses.
    pub fn assign(
        &mut self,
        owner: &ServiceKey,
        wish: &Wish,
        held: &[IpAddr],
    ) -> Result<Vec<IpAddr>, PoolError> {
        let mut assigned = Vec::new();
        let mut missing = None;
        for family in &wish.families {
            match self.assign_one(owner, wish, *family, held) {
                Ok(address) => assigned.push(address),
                Err(exhausted @ PoolError::Exhausted { .. }) if wish.need == Need::Any => {
                    missing.get_or_insert(exhausted);
                }
                Err(error) => {
                    missing = Some(error);
                    self.release_all(&assigned, held);
                    assigned.clear();
                    break;
                }
            }
        }
        match missing {
            Some(error) if assigned.is_empty() => Err(error),
            Some(_) | None => Ok(assigned),
        }
    }

    fn assign_one(
        &mut self,
        owner: &ServiceKey,
        wish: &Wish,
        family: Family,
        held: &[IpAddr],
    ) -> Result<IpAddr, PoolError> {
        let its = |all: &[IpAddr]| all.iter().copied().find(|one| Family::of(*one) == family);
        let held = its(held);
        match (its(&wish.requested), held, its(&wish.preferred)) {
            (Some(requested), Some(held), _) if requested == held => Ok(held),
            (Some(requested), _, _) => self.take(owner, Request::Exactly(requested)),
            (None, Some(held), _) => Ok(held),
            (None, None, Some(preferred)) => self.take(owner, Request::Preferably(preferred)),
            (None, None, None) => self.take(owner, Request::Any(family)),
        }
    }

    /// Takes addresses back, but for those in `kept`.
    pub fn release_all(&mut self, addresses: &[IpAddr], kept: &[IpAddr]) {
        for address in addresses.iter().filter(|address| !kept.contains(address)) {
            self.release(*address);
        }
    }

    /// The ranges, in the order given.
    pub fn ranges(&self) -> &[Cidr] {
        &self.ranges
    }

    /// How many addresses of a family are taken.
    pub fn taken(&self, family: Family) -> usize {
        let its = |address: &&IpAddr| Family::of(**address) == family;
        self.taken.keys().filter(its).count()
    }

    /// Gives back to `owner` an address it had before. Unlike [`Pool::take`] it may lie outside the
    /// pool: ranges may have changed since, and a Service keeps its address.
    pub fn restore(&mut self, owner: &ServiceKey, address: IpAddr) -> Result<(), PoolError> {
        if let Some(by) = self.taken.get(&address) {
            return Err(self.is_taken(address, by));
        }
        self.taken.insert(address, owner.clone());
        Ok(())
    }

    /// Takes an address back; nothing happens if nobody has it.
    pub fn release(&mut self, address: IpAddr) {
        self.taken.remove(&address);
    }

    /// Whether `take` could ever hand out this address.
    pub fn offers(&self, address: IpAddr) -> bool {
        let in_range = self.ranges.iter().any(|range| {
            let (first, last) = range.assignable();
            Family::of(first) == Family::of(address) && (first..=last).contains(&address)
        });
        in_range && !self.excluded.contains(&address)
    }

    /// Who has an address.
    pub fn owner(&self, address: IpAddr) -> Option<&ServiceKey> {
        self.taken.get(&address)
    }

    /// The families that the pool can give.
    pub fn families(&self) -> Vec<Family> {
        let has = |family| {
            self.ranges
                .iter()
                .any(|range| Family::of(range.assignable().0) == family)
        };
        Family::ALL.into_iter().filter(|family| has(*family)).collect()
    }

    /// How many addresses of a family the ranges hold, exclusions and owners not considered.
    pub fn size(&self, family: Family) -> u128 {
        let ranges = self.ranges.iter().map(Cidr::assignable);
        let sizes = ranges
            .filter(|(first, _)| Family::of(*first) == family)
            .map(|(first, last)| cidr::span(first, last));
        sizes.fold(0, u128::saturating_add)
    }

    fn free(&self, address: IpAddr) -> Result<IpAddr, PoolError> {
        if !self.offers(address) {
            return Err(PoolError::NotInPool {
                address,
                pool: self.to_string(),
            });
        }
        match self.taken.get(&address) {
            Some(by) => Err(self.is_taken(address, by)),
            None => Ok(address),
        }
    }

    fn is_taken(&self, address: IpAddr, by: &ServiceKey) -> PoolError {
        PoolError::Taken {
            address,
            by: by.clone(),
            pool: self.to_string(),
        }
    }

    /// Walks at most as many addresses as are taken or excluded, plus one, in any size of range.
    fn lowest_free(&self, family: Family) -> Result<IpAddr, PoolError> {
        for (first, last) in self.ranges.iter().map(Cidr::assignable) {
            let mut next = (Family::of(first) == family).then_some(first);
            while let Some(address) = next.filter(|address| *address <= last) {
                if !self.excluded.contains(&address) && !self.taken.contains_key(&address) {
                    return Ok(address);
                }
                next = cidr::successor(address);
            }
        }
        Err(PoolError::Exhausted {
            family,
            pool: self.to_string(),
            taken: self.taken(family),
        })
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges: Vec<String> = self.ranges.iter().map(ToString::to_string).collect();
        f.write_str(&ranges.join(", "))
    }
}
