//! The service controller: keeps one load balancer for each Service that asks for one.
//!
//! Reads the Service and node stores; decides in `bulkhead_core::service::plan`. One key has one owner: two calls for
//! one Service never overlap.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bulkhead_core::cloud::{Capability, LoadBalancerAnswer};
use bulkhead_core::election::Epoch;
use bulkhead_core::ids::{Mark, ServiceKey, Uid};
use bulkhead_core::node::view::NodeView;
use bulkhead_core::outcome::{Next, Notice, PERMIT_PAUSE, Severity};
use bulkhead_core::service::plan::{
    Observed, Standing, Step, Then, concerns, conclude, is_another_wish, plan,
};
use bulkhead_core::service::targets::{self, Selection};
use bulkhead_core::service::view::ServiceView;
use bulkhead_proto::mark::mark;
use uuid::Uuid;

use self::memories::Memories;
use super::lane::Controller;
use super::{CONFLICTS, Effects, STEPS, Sight};
use crate::clock;
use crate::kube::events::{EventSpec, Regarding};
use crate::kube::stores::{Store, Subscription};
use crate::metrics::ServiceMetrics;
use crate::queue::Queue;

mod memories;
mod perform;

/// How long node changes are gathered before load balancers hear of them.
const DEBOUNCE: Duration = Duration::from_millis(200);

/// Keeps one load balancer for each Service that asks for one.
#[derive(Debug)]
pub struct ServiceController {
    services: Store<ServiceView>,
    nodes: Store<NodeView>,
    effects: Effects,
    queue: Queue<ServiceKey>,
    cluster_uid: String,
    metrics: ServiceMetrics,
    memories: Memories,
    targets: Mutex<Option<Cached>>,
    /// Keep the queue up to date.
    _follow: [Subscription; 2],
}

/// The selection of one state of the node store, for one plugin.
#[derive(Debug)]
struct Cached {
    generation: u64,
    plugin: Sight,
    selection: Arc<Selection>,
}

impl ServiceController {
    /// A controller whose queue follows `services` and `nodes` from now on.
    pub fn new(
        services: Store<ServiceView>,
        nodes: Store<NodeView>,
        effects: Effects,
        queue: Queue<ServiceKey>,
        cluster_uid: String,
        metrics: ServiceMetrics,
    ) -> Arc<Self> {
        let (keys, sights) = (queue.clone(), effects.clone());
        let follow_services = services.on_change(move |old, new| {
            let (Some(service), Some(plugin)) = (new.or(old), sights.sight()) else {
                return;
            };
            // One that was ours may have left something.
            if !old
                .into_iter()
                .chain(new)
                .any(|view| concerns(view, &plugin.territory))
            {
                return;
            }
            // What failed before is not what is wanted now.
            if is_another_wish(
                old.map(|view| &**view),
                new.map(|view| &**view),
                &plugin.description,
            ) {
                keys.add_now(service.key.clone());
            } else {
                keys.add(service.key.clone());
            }
        });
        let (keys, all, sights) = (queue.clone(), services.clone(), effects.clone());
        let follow_nodes = nodes.on_change(move |old, new| {
            let Some(Sight {
                description,
                territory,
            }) = sights.sight()
            else {
                return;
            };
            let (old, new) = (old.map(|view| &**view), new.map(|view| &**view));
            if targets::matters(old, new, &description, &territory) {
                for service in all.snapshot().iter().filter(|view| concerns(view, &territory)) {
                    keys.add_after(service.key.clone(), DEBOUNCE);
                }
            }
        });
        Arc::new(Self {
            services,
            nodes,
            effects,
            queue,
            cluster_uid,
            metrics,
            memories: Memories::default(),
            targets: Mutex::default(),
            _follow: [follow_services, follow_nodes],
        })
    }

    /// The nodes to send traffic to, as the store has them now.
    fn selection(&self, plugin: &Sight) -> Arc<Selection> {
        let generation = self.nodes.generation();
        let mut cached = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        match &*cached {
            Some(known) if known.generation == generation && known.plugin.is(plugin) => {
                Arc::clone(&known.selection)
            }
            _ => {
                let selection = Arc::new(targets::select(
                    &self.nodes.snapshot(),
                    &plugin.description,
                    &plugin.territory,
                ));
                *cached = Some(Cached {
                    generation,
                    plugin: plugin.clone(),
                    selection: Arc::clone(&selection),
                });
                selection
            }
        }
    }

    /// Works on one object of one key until there is nothing left to do now.
    async fn converge(&self, mut object: Object, plugin: &Sight) -> Next {
        let mut conflicts = 0;
        for _ in 0..STEPS {
            match Box::pin(self.step(&mut object, plugin)).await {
                Then::Again => {}
                Then::Reread if conflicts == CONFLICTS => return Next::RETRY,
                Then::Reread => match self.reread(&object).await {
                    Some(service) => {
                        conflicts += 1;
                        object.service = service;
                    }
                    None => return Next::RETRY,
                },
                Then::Rest(next) => return next,
            }
        }
        Next::RETRY
    }

    /// Observes, plans one step, performs it, concludes and records.
    async fn step(&self, object: &mut Object, plugin: &Sight) -> Then {
        let selection = self.selection(plugin);
        let (epoch, memory) = self.memories.get(&object.key, &object.uid);
        let mark = Mark(mark(&self.cluster_uid, &object.uid.0, ""));
        let observed = Observed {
            service: object.service.as_deref(),
            key: &object.key,
            uid: &object.uid,
            mark: &mark,
            memory: &memory,
            plugin: &plugin.description,
            territory: &plugin.territory,
            targets: &selection,
            looked: object.looked.as_ref(),
            fresh_request_id: &Uuid::new_v4().to_string(),
            now: clock::now(),
        };
        let planned = plan(&observed);
        let mut memory = memory.clone();
        let news = memory.announce(&planned);
        self.emit(object, news);
        let Some(done) = self
            .perform(object, &planned.step, &selection, epoch.as_ref())
            .await
        else {
            // The next term begins anew; but a permit may also be missing for a moment only.
            return Then::Rest(Next::After(PERMIT_PAUSE));
        };
        let looked = done.looked().cloned();
        let conclusion = conclude(
            &Observed {
                memory: &memory,
                ..observed
            },
            &planned.step,
            done.performed,
        );
        let has_made_room = matches!(planned.step, Step::Delete { .. })
            && conclusion
                .memory
                .as_ref()
                .is_some_and(|memory| memory.standing == Standing::Nothing);
        self.memories
            .put(&object.key, &object.uid, epoch.as_ref(), conclusion.memory);
        if has_made_room {
            for key in self.memories.starved() {
                self.queue.retry(key);
            }
        }
        self.emit(object, conclusion.notices);
        if let Some(service) = done.service {
            object.service = Some(service);
        }
        if looked.is_some() {
            object.looked = looked;
        }
        conclusion.then
    }

    /// The object as the API server has it now: `Some(None)` if it is gone, `None` if the API server does not say.
    async fn reread(&self, object: &Object) -> Option<Option<Arc<ServiceView>>> {
        match self.effects.writer.read_service(&object.key).await {
            Ok(Some(view)) if view.uid == object.uid => {
                self.services.absorb(view.clone());
                Some(Some(Arc::new(view)))
            }
            Ok(_) => Some(None),
            Err(error) => {
                tracing::debug!(service = %object.key, %error, "reading the Service failed");
                None
            }
        }
    }

    fn emit(&self, object: &Object, notices: Vec<Notice>) {
        for notice in notices {
            match notice.severity {
                Severity::Warning => {
                    tracing::warn!(service = %object.key, reason = notice.reason, "{}", notice.note);
                }
                Severity::Normal => {
                    tracing::info!(service = %object.key, reason = notice.reason, "{}", notice.note);
                }
            }
            // A Service that is gone has nobody left to read its Events.
            if object.service.is_some() {
                let regarding = Regarding::service(&object.key, &object.uid);
                self.effects
                    .events
                    .emit(EventSpec::from_notice(regarding, "Sync", notice));
            }
        }
    }
}

/// One object of a key: a Service that was deleted and made again has two.
#[derive(Debug)]
struct Object {
    key: ServiceKey,
    uid: Uid,
    /// `None`: it is gone.
    service: Option<Arc<ServiceView>>,
    /// What the plugin said of its load balancer in this pass, if it was asked.
    looked: Option<LoadBalancerAnswer>,
}

impl Controller for ServiceController {
    type Key = ServiceKey;

    const NAME: &'static str = "service-lb-controller";
    const CAPABILITY: Capability = Capability::Lb;

    fn queue(&self) -> &Queue<ServiceKey> {
        &self.queue
    }

    fn begin_term(&self, epoch: &Epoch) {
        self.memories.begin(epoch);
    }

    fn add_all(&self) {
        let Some(Sight { territory, .. }) = self.effects.sight() else {
            return;
        };
        for service in self
            .services
            .snapshot()
            .iter()
            .filter(|view| concerns(view, &territory))
        {
            self.queue.add(service.key.clone());
        }
        // Those whose Service is gone or is no LoadBalancer any more, but not what was made for it.
        for key in self.memories.keys() {
            self.queue.add(key);
        }
    }

    async fn pass(&self, key: &ServiceKey) -> Next {
        let Some(plugin) = self.effects.sight() else {
            return Next::RETRY;
        };
        let service = self.services.get(key);
        let current = service.as_ref().map(|service| service.uid.clone());
        for uid in self.memories.others(key, current.as_ref()) {
            let object = Object {
                key: key.clone(),
                uid: uid.clone(),
                service: None,
                looked: None,
            };
            let next = self.converge(object, &plugin).await;
            // What an earlier object left in the cloud goes before its successor gets anything.
            if self.memories.has(key, &uid) {
                return next;
            }
        }
        match (service, current) {
            (Some(service), Some(uid)) => {
                self.converge(
                    Object {
                        key: key.clone(),
                        uid,
                        service: Some(service),
                        looked: None,
                    },
                    &plugin,
                )
                .await
            }
            _ => Next::AwaitChange,
        }
    }
}
