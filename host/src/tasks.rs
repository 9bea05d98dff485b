//! Every task of the host has an owner here: the only place that spawns.
//!
//! A [`Tasks`] is a set with a stop token. Sets form a tree, so that a shutdown can stop one stage after
//! another. A permanent task that ends before its set is stopped, or any task that panics, is a [`Death`],
//! which ends the process: the supervisor above is Kubernetes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

tokio::task_local! {
    static NAME: TaskName;
}

type TaskName = Arc<str>;

/// The name of the task that runs this code; `None` outside of [`Tasks`].
pub fn current() -> Option<Arc<str>> {
    NAME.try_with(Arc::clone).ok()
}

/// A task ended that must not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Death {
    /// A permanent task returned although nobody stopped it.
    #[error("task {task} ended")]
    Ended {
        /// The task's name.
        task: Arc<str>,
    },
    /// A task panicked.
    #[error("task {task} panicked")]
    Panicked {
        /// The task's name.
        task: Arc<str>,
    },
}

/// Tasks that did not end in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("still running: {}", tasks.join(", "))]
pub struct StillRunning {
    /// Their names, oldest first.
    pub tasks: Vec<String>,
}

/// A set of running tasks. Clones are the same set.
#[derive(Clone, Debug)]
pub struct Tasks {
    stop: CancellationToken,
    /// What runs in this set, then in each set above it.
    lineage: Vec<Roster>,
    ids: Arc<AtomicU64>,
    death: watch::Sender<Option<Death>>,
}

impl Default for Tasks {
    fn default() -> Self {
        Self::new()
    }
}

impl Tasks {
    /// The root of a new tree.
    pub fn new() -> Self {
        Self {
            stop: CancellationToken::new(),
            lineage: vec![Roster::default()],
            ids: Arc::default(),
            death: watch::Sender::new(None),
        }
    }

    /// A set below this one: stopped with it or before it, and waited for with it.
    #[must_use]
    pub fn below(&self) -> Self {
        let mut lineage = vec![Roster::default()];
        lineage.extend(self.lineage.iter().cloned());
        Self {
            stop: self.stop.child_token(),
            lineage,
            ids: Arc::clone(&self.ids),
            death: self.death.clone(),
        }
    }

    /// Cancelled when the set's tasks must end. Every permanent task watches it.
    pub const fn stop_token(&self) -> &CancellationToken {
        &self.stop
    }

    /// Runs a task that lives until the set is stopped: its end before that is a [`Death`].
    pub fn spawn(&self, name: impl Into<Cow<'static, str>>, task: impl Future<Output = ()> + Send + 'static) {
        let name = TaskName::from(name.into());
        let guard = Permanent {
            name: Arc::clone(&name),
            stop: self.stop.clone(),
            death: self.death.clone(),
        };
        drop(self.start(name, async move {
            task.await;
            guard.ended();
        }));
    }

    /// Runs a task that has an end of its own, such as one call or one connection. Only its panic is a
    /// [`Death`]. The task goes on when the handle is dropped.
    pub fn spawn_finite<T: Send + 'static>(
        &self,
        name: impl Into<Cow<'static, str>>,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.start(TaskName::from(name.into()), task)
    }

    fn start<T: Send + 'static>(
        &self,
        name: TaskName,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let entries: Vec<_> = self
            .lineage
            .iter()
            .map(|roster| roster.enter(id, &name))
            .collect();
        let death = self.death.clone();
        let run = NAME.scope(Arc::clone(&name), async move {
            let end = AssertUnwindSafe(task).catch_unwind().await;
            if end.is_err() {
                report(&death, Death::Panicked { task: name });
            }
            drop(entries);
            end.unwrap_or_else(|panic| resume_unwind(panic))
        });
        #[expect(
            clippy::disallowed_methods,
            reason = "the one place that spawns: every task has its owner here"
        )]
        tokio::task::spawn(run)
    }

    /// Waits for the first [`Death`] anywhere in the tree.
    pub async fn died(&self) -> Death {
        let mut death = self.death.subscribe();
        let first = death
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|death| death.clone());
        match first {
            Some(first) => first,
            // The sender lives in `self`, so that waiting ends with a death only.
            None => std::future::pending().await,
        }
    }

    /// Stops this set and those below it, and waits until every task has ended, at most `grace`.
    ///
    /// # Errors
    /// The tasks that still run.
    pub async fn stop(&self, grace: Duration) -> Result<(), StillRunning> {
        self.stop.cancel();
        self.ended(grace).await
    }

    /// Waits until no task runs in this set or below it, at most `grace`, without stopping anything.
    ///
    /// # Errors
    /// The tasks that still run.
    pub async fn ended(&self, grace: Duration) -> Result<(), StillRunning> {
        let Some(roster) = self.lineage.first() else {
            return Ok(());
        };
        let mut running = roster.0.subscribe();
        let empty = tokio::time::timeout(grace, running.wait_for(BTreeMap::is_empty))
            .await
            .is_ok();
        if empty {
            Ok(())
        } else {
            Err(StillRunning {
                tasks: roster.names(),
            })
        }
    }
}

/// The first death is the cause; what dies after it is a consequence.
fn report(death: &watch::Sender<Option<Death>>, new: Death) {
    death.send_if_modified(|first| {
        let is_first = first.is_none();
        first.get_or_insert(new);
        is_first
    });
}

/// Reports a permanent task that ended early.
struct Permanent {
    name: TaskName,
    stop: CancellationToken,
    death: watch::Sender<Option<Death>>,
}

impl Permanent {
    fn ended(self) {
        if self.stop.is_cancelled() {
            return;
        }
        tracing::error!(task = &*self.name, "a task ended that must not");
        report(&self.death, Death::Ended { task: self.name });
    }
}

/// The tasks that run in one set, by id.
#[derive(Clone, Debug, Default)]
struct Roster(watch::Sender<BTreeMap<u64, TaskName>>);

impl Roster {
    fn enter(&self, id: u64, name: &TaskName) -> Entry {
        self.0.send_modify(|running| {
            running.insert(id, Arc::clone(name));
        });
        Entry {
            roster: self.clone(),
            id,
        }
    }

    fn names(&self) -> Vec<String> {
        self.0.borrow().values().map(ToString::to_string).collect()
    }
}

/// A task's place in a roster; given back however the task ends, also by an abort.
struct Entry {
    roster: Roster,
    id: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.roster.0.send_modify(|running| {
            running.remove(&self.id);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    async fn first_death(tasks: &Tasks) -> Death {
        tokio::time::timeout(SOON, tasks.died())
            .await
            .expect("no death was reported")
    }

    #[tokio::test]
    async fn a_permanent_task_that_ends_is_a_death_by_name() {
        let tasks = Tasks::new();
        tasks.spawn("elector", async {});
        assert_eq!(
            first_death(&tasks).await,
            Death::Ended {
                task: "elector".into()
            }
        );
    }

    #[tokio::test]
    async fn a_panic_of_a_finite_task_below_is_a_death_above() {
        let tasks = Tasks::new();
        let call = tasks
            .below()
            .below()
            .spawn_finite("call", async { panic!("on purpose") });
        assert_eq!(first_death(&tasks).await, Death::Panicked { task: "call".into() });
        assert!(call.await.unwrap_err().is_panic());
    }

    #[tokio::test]
    async fn the_first_death_is_the_one_told() {
        let tasks = Tasks::new();
        tasks.spawn("first", async {});
        tasks.ended(SOON).await.unwrap();
        tasks.spawn("second", async {});
        tasks.ended(SOON).await.unwrap();
        assert_eq!(first_death(&tasks).await, Death::Ended { task: "first".into() });
    }

    #[tokio::test]
    async fn stopped_and_finished_tasks_are_no_deaths() {
        let tasks = Tasks::new();
        let stop = tasks.stop_token().clone();
        tasks.spawn("loop", async move { stop.cancelled().await });
        assert_eq!(tasks.spawn_finite("sum", async { 1 + 1 }).await.unwrap(), 2);
        assert_eq!(tasks.stop(SOON).await, Ok(()));
        assert!(tasks.died().now_or_never().is_none());
    }

    #[tokio::test]
    async fn a_set_stops_without_the_one_above_and_is_waited_for_by_it() {
        let above = Tasks::new();
        let below = above.below();
        for tasks in [&above, &below] {
            let stop = tasks.stop_token().clone();
            tasks.spawn("loop", async move { stop.cancelled().await });
        }
        below.stop(SOON).await.unwrap();
        assert!(!above.stop_token().is_cancelled());
        assert_eq!(
            above.ended(Duration::ZERO).await,
            Err(StillRunning {
                tasks: vec!["loop".into()]
            })
        );
        above.stop(SOON).await.unwrap();
    }

    #[tokio::test]
    async fn tasks_that_do_not_end_in_time_are_named() {
        let tasks = Tasks::new();
        tasks.spawn("deaf", pending());
        drop(tasks.below().spawn_finite("stuck", pending::<()>()));
        let error = tasks.stop(Duration::from_millis(1)).await.unwrap_err();
        assert_eq!(error.to_string(), "still running: deaf, stuck");
    }

    #[tokio::test]
    async fn an_aborted_task_leaves_its_set() {
        let tasks = Tasks::new();
        tasks.spawn_finite("call", pending::<()>()).abort();
        assert_eq!(tasks.ended(SOON).await, Ok(()));
        assert!(tasks.died().now_or_never().is_none());
    }

    #[tokio::test]
    async fn a_task_knows_its_name() {
        let name = Tasks::new()
            .spawn_finite("node-7", async { current() })
            .await
            .unwrap();
        assert_eq!(name.as_deref(), Some("node-7"));
        assert_eq!(current(), None);
    }
}
