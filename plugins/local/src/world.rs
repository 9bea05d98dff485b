//! The load balancers of this machine: the one owner of pool, state and listeners.
//!
//! A [`World`] exists only while the state directory's lock is held, so that whoever has one may
//! listen and write. Every change is on disk before it is answered. Forwarding goes on from the
//! moment of [`World::open`], whoever leads and whether or not anybody asks.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::balancer::{Balancer, Listen, ServiceKey, Targets, plan};
use crate::cidr::Family;
use crate::forward::{BindError, Losses, Machine, Traffic};
use crate::pool::{Pool, PoolError};
use crate::state::{Attempt, Holder, LoadError, Lock, LockError, SaveError, Store, encode};

mod running;
mod wanted;

#[cfg(test)]
mod tests;

use running::Running;
pub use wanted::Wanted;

/// Between two attempts to take the lock: a successor is there that soon.
const LOCK_PACE: Duration = Duration::from_millis(200);

/// Between two attempts to read a state that is unreadable, and to open listeners that could not be.
const RETRY_PACE: Duration = Duration::from_secs(1);

/// Between two reports of what was refused, in retries.
const REPORT_EVERY: u32 = 60;

/// Where this plugin is on its way to serving.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Nothing was tried yet.
    Starting,
    /// Another process has the state directory.
    Waiting(Holder),
    /// The state cannot be used, and why; nothing is served until it can.
    Unreadable(String),
    /// Everything is restored.
    Serving,
}

/// What a world is made of.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where the state is.
    pub state_dir: PathBuf,
    /// The addresses, nobody's yet.
    pub pool: Pool,
    /// What all load balancers share.
    pub machine: Machine,
}

/// Why a load balancer is not as it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum EnsureError {
    /// There is no address for it.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// It cannot listen.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// It cannot be stored.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// The mark is on the load balancer of another Service.
    #[error("mark {mark} is on the load balancer of Service {owner} (uid {uid})")]
    ForeignOwner {
        /// The mark.
        mark: String,
        /// Namespace and name of the owner.
        owner: String,
        /// UID of the owner.
        uid: String,
    },
}

/// One load balancer as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// What is stored.
    pub balancer: Balancer,
    /// Listeners that are not open, and why; tried again every second.
    pub unbound: BTreeMap<(IpAddr, Listen), BindError>,
}

/// What was counted of one load balancer since this process serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    /// The Service.
    pub service: ServiceKey,
    /// What was forwarded.
    pub traffic: Traffic,
    /// What was refused and lost.
    pub losses: Losses,
    /// Target addresses.
    pub targets: usize,
    /// Those that are up.
    pub up: usize,
    /// Listeners that are not open.
    pub unbound: usize,
}

/// What was counted of everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Measures {
    /// Each load balancer.
    pub balancers: Vec<Measured>,
    /// Addresses of each family: how many the pool holds, and how many are taken.
    pub addresses: Vec<(Family, u128, usize)>,
}

/// All load balancers. See the module.
#[derive(Debug)]
pub struct World {
    inner: Arc<Mutex<Inner>>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Inner {
    store: Arc<Store>,
    pool: Pool,
    machine: Machine,
    running: BTreeMap<String, Running>,
}

impl World {
    /// Takes the lock, reads the state and listens again; waits as long as either is impossible, and
    /// tells `phase` why (that it is [`Phase::Serving`] is the caller's to tell). Fails if the state directory can never be used.
    pub async fn open(settings: Settings, phase: &watch::Sender<Phase>) -> Result<Self, LockError> {
        let Settings {
            state_dir,
            pool,
            machine,
        } = settings;
        let lock = loop {
            match Lock::attempt(&state_dir)? {
                Attempt::Held(lock) => break lock,
                Attempt::Busy(holder) => report(phase, Phase::Waiting(holder)),
            }
            sleep(LOCK_PACE).await;
        };
        let store = Arc::new(Store::new(&state_dir, lock));
        let (pool, balancers) = loop {
            match restore(&store, pool.clone()) {
                Ok(restored) => break restored,
                Err(error) => report(phase, Phase::Unreadable(error.to_string())),
            }
            sleep(RETRY_PACE).await;
        };
        let running = balancers.into_iter().map(|balancer| {
            let running = Running::resume(balancer, &machine);
            (running.balancer().mark.clone(), running)
        });
        let running: BTreeMap<String, Running> = running.collect();
        tracing::info!(balancers = running.len(), %pool, "load balancers restored");
        let inner = Arc::new(Mutex::new(Inner {
            store,
            pool,
            machine,
            running,
        }));
        let mut tasks = JoinSet::new();
        tasks.spawn(upkeep(Arc::clone(&inner)));
        Ok(Self { inner, tasks })
    }

    /// Makes a load balancer exist as wanted. On an error a new one leaves nothing behind and an old
    /// one is as it was. Nothing is written if it is as wanted already.
    pub async fn ensure(&self, wanted: Wanted) -> Result<Seen, EnsureError> {
        // On the heap: callers' own futures would have to hold it whole.
        Box::pin(async { self.inner.lock().await.ensure(wanted).await }).await
    }

    /// Puts other targets behind load balancers, by mark, with one write for all. None for those that
    /// do not exist.
    pub async fn update_targets(
        &self,
        updates: BTreeMap<String, Targets>,
    ) -> Result<BTreeMap<String, Option<Seen>>, SaveError> {
        self.inner.lock().await.update_targets(updates).await
    }

    /// Removes a load balancer: its listeners and connections are closed and its address is free
    /// when this returns. Says whether there was one.
    pub async fn delete(&self, mark: &str) -> Result<bool, SaveError> {
        self.inner.lock().await.delete(mark).await
    }

    /// The load balancer with this mark.
    pub async fn get(&self, mark: &str) -> Option<Seen> {
        self.inner.lock().await.running.get(mark).map(Running::seen)
    }

    /// All of one cluster, by mark.
    pub async fn list(&self, cluster: &str) -> Vec<Seen> {
        let inner = self.inner.lock().await;
        let of_cluster = inner
            .running
            .values()
            .filter(|running| running.balancer().cluster == cluster);
        of_cluster.map(Running::seen).collect()
    }

    /// Every listener that is not open, and why.
    pub async fn unbound(&self) -> Vec<BindError> {
        let inner = self.inner.lock().await;
        let unbound = inner.running.values().flat_map(Running::unbound);
        unbound.map(|(_, error)| error.clone()).collect()
    }

    /// What was counted.
    pub async fn measures(&self) -> Measures {
        let inner = self.inner.lock().await;
        let addresses = Family::ALL.map(|family| (family, inner.pool.size(family), inner.pool.taken(family)));
        Measures {
            balancers: inner.running.values().map(Running::measured).collect(),
            addresses: addresses.to_vec(),
        }
    }

    /// Closes all listeners, then gives the lock back. Nothing stored changes.
    pub async fn close(mut self) {
        self.tasks.shutdown().await;
        let running = std::mem::take(&mut self.inner.lock().await.running);
        for running in running.into_values() {
            running.close().await;
        }
    }
}

/// Logs a phase when it is news, and tells those who watch.
fn report(phase: &watch::Sender<Phase>, now: Phase) {
    phase.send_if_modified(|known| {
        if *known == now {
            return false;
        }
        match &now {
            Phase::Waiting(holder) => tracing::warn!(%holder, "waiting for the lock of the state directory"),
            Phase::Unreadable(error) => tracing::error!(error, "nothing is served"),
            Phase::Starting | Phase::Serving => {}
        }
        *known = now;
        true
    });
}

/// Reads the state and gives every load balancer its address back.
fn restore(store: &Store, mut pool: Pool) -> Result<(Pool, Vec<Balancer>), LoadError> {
    let balancers = store.load()?;
    for balancer in &balancers {
        for address in &balancer.addresses {
            if !pool.offers(*address) {
                tracing::warn!(
                    service = %balancer.service, %address, %pool,
                    "keeps an address that is outside the pool"
                );
            }
            if let Err(error) = pool.restore(&balancer.service, *address) {
                // The state was checked for this when it was read.
                tracing::error!(%error, service = %balancer.service, "two load balancers have one address");
            }
        }
    }
    Ok((pool, balancers))
}

/// Opens what could not be opened, for ever, and reports what was refused.
#[expect(clippy::infinite_loop, reason = "the world that owns it ends it")]
async fn upkeep(inner: Arc<Mutex<Inner>>) {
    let mut ticks = interval(RETRY_PACE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut until_report = REPORT_EVERY;
    loop {
        ticks.tick().await;
        until_report = until_report.checked_sub(1).unwrap_or(REPORT_EVERY);
        let mut inner = inner.lock().await;
        for running in inner.running.values_mut() {
            running.retry();
            if until_report == 0 {
                running.report();
            }
        }
    }
}

impl Inner {
    async fn ensure(&mut self, mut wanted: Wanted) -> Result<Seen, EnsureError> {
        let current = self.running.get(&wanted.mark).map(Running::balancer);
        if let Some(current) = current
            && current.service.uid != wanted.service.uid
        {
            let (owner, uid) = (current.service.to_string(), current.service.uid.clone());
            return Err(EnsureError::ForeignOwner {
                mark: wanted.mark,
                owner,
                uid,
            });
        }
        let held = current
            .map(|current| current.addresses.clone())
            .unwrap_or_default();
        let targets = self.shared(std::mem::take(&mut wanted.targets));
        let addresses = self.pool.assign(&wanted.service, &wanted.wish, &held)?;
        let reached = self.reach(wanted.at(addresses.clone(), targets)).await;
        match &reached {
            Ok(_) => self.pool.release_all(&held, &addresses),
            Err(_) => self.pool.release_all(&addresses, &held),
        }
        reached
    }

    async fn reach(&mut self, desired: Balancer) -> Result<Seen, EnsureError> {
        if self.running.contains_key(&desired.mark) {
            self.change(desired).await
        } else {
            self.serve(desired).await
        }
    }

    async fn serve(&mut self, balancer: Balancer) -> Result<Seen, EnsureError> {
        let running = Running::start(balancer, &self.machine)?;
        let balancer = running.balancer();
        if let Err(error) = self.save(&[(&balancer.mark, Some(balancer))]).await {
            running.close().await;
            return Err(error.into());
        }
        let seen = running.seen();
        tracing::info!(service = %seen.balancer.service, addresses = ?seen.balancer.addresses, "load balancer made");
        self.running.insert(seen.balancer.mark.clone(), running);
        Ok(seen)
    }

    /// Changes a load balancer in place; its new addresses are served before old ones end.
    async fn change(&mut self, desired: Balancer) -> Result<Seen, EnsureError> {
        let Some(running) = self.running.get(&desired.mark) else {
            return self.serve(desired).await;
        };
        let plan = plan(running.balancer(), &desired);
        let opened = running.open_missing(&desired)?;
        if !plan.is_empty()
            && let Err(error) = self.save(&[(&desired.mark, Some(&desired))]).await
        {
            for (_, listener) in opened {
                listener.close().await;
            }
            return Err(error.into());
        }
        match self.running.get_mut(&desired.mark) {
            Some(running) => Ok(running.turn_into(desired, opened).await),
            None => self.serve(desired).await,
        }
    }

    /// The same targets as another load balancer has, if one has them: hundreds of Services share the
    /// nodes of one cluster.
    fn shared(&self, targets: Targets) -> Arc<Targets> {
        let mut known = self.running.values().map(|running| &running.balancer().targets);
        let known = known.find(|known| ***known == targets).cloned();
        known.unwrap_or_else(|| Arc::new(targets))
    }

    async fn update_targets(
        &mut self,
        updates: BTreeMap<String, Targets>,
    ) -> Result<BTreeMap<String, Option<Seen>>, SaveError> {
        let mut desired = BTreeMap::new();
        let mut last = Arc::new(Targets::new());
        for (mark, targets) in updates {
            if *last != targets {
                last = self.shared(targets);
            }
            let running = self.running.get(&mark);
            let next = running.map(|running| Balancer {
                targets: Arc::clone(&last),
                ..running.balancer().clone()
            });
            desired.insert(mark, next);
        }
        let changed: Vec<(&String, Option<&Balancer>)> = desired
            .iter()
            .filter_map(|(mark, next)| Some((mark, next.as_ref()?)))
            .filter(|(mark, next)| self.running.get(*mark).is_some_and(|old| old.balancer() != *next))
            .map(|(mark, next)| (mark, Some(next)))
            .collect();
        if !changed.is_empty() {
            self.save(&changed).await?;
        }
        let mut seen = BTreeMap::new();
        for (mark, next) in desired {
            let now = match (self.running.get_mut(&mark), next) {
                (Some(running), Some(next)) => Some(running.turn_into(next, Vec::new()).await),
                (_, _) => None,
            };
            seen.insert(mark, now);
        }
        Ok(seen)
    }

    async fn delete(&mut self, mark: &str) -> Result<bool, SaveError> {
        if !self.running.contains_key(mark) {
            return Ok(false);
        }
        self.save(&[(&mark.to_owned(), None)]).await?;
        if let Some(old) = self.running.remove(mark) {
            let (service, addresses) = (&old.balancer().service, old.balancer().addresses.clone());
            tracing::info!(%service, ?addresses, "load balancer removed");
            old.close().await;
            self.pool.release_all(&addresses, &[]);
        }
        Ok(true)
    }

    /// Stores all load balancers with some changed or (none) left out.
    async fn save(&self, changes: &[(&String, Option<&Balancer>)]) -> Result<(), SaveError> {
        let mut all: BTreeMap<&String, &Balancer> = self
            .running
            .iter()
            .map(|(mark, running)| (mark, running.balancer()))
            .collect();
        for (mark, change) in changes {
            match change {
                Some(balancer) => all.insert(mark, balancer),
                None => all.remove(mark),
            };
        }
        let content = encode(all.into_values())?;
        let store = Arc::clone(&self.store);
        // A disk that takes its time must not stop the forwarding on this thread.
        tokio::task::spawn_blocking(move || store.write(&content)).await?
    }
}
