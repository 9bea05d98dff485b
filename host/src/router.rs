//! Which plugin owns what, for what all of them last said of themselves.
//!
//! `bulkhead_core::territory` decides; here is kept what that rests on.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bulkhead_core::cloud::Description;
use bulkhead_core::territory::{Claimant, Claims, Complaint, Incumbents, Territory, divide};
use tokio::sync::watch;

/// The territories of all plugins. Clones share them.
#[derive(Clone, Debug)]
pub struct Router {
    state: Arc<Mutex<State>>,
    moved: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    plugins: Vec<Plugin>,
    incumbents: Incumbents,
    complaints: BTreeSet<Complaint>,
}

#[derive(Debug)]
struct Plugin {
    name: String,
    claims: Claims,
    description: Option<Arc<Description>>,
    territory: Arc<Territory>,
}

impl Router {
    /// For these plugins, by name, in the order of the configuration.
    pub fn new(plugins: impl IntoIterator<Item = (String, Claims)>) -> Self {
        let router = Self {
            state: Arc::default(),
            moved: watch::Sender::new(0),
        };
        router.configure(plugins);
        router
    }

    /// From now on for these plugins; what those say that were there before is kept.
    pub fn configure(&self, plugins: impl IntoIterator<Item = (String, Claims)>) {
        let mut state = self.lock();
        let mut before = std::mem::take(&mut state.plugins);
        let now = plugins.into_iter().map(|(name, claims)| {
            let known = before.iter().position(|plugin| plugin.name == name);
            match known.map(|at| before.swap_remove(at)) {
                Some(known) => Plugin { claims, ..known },
                None => Plugin {
                    territory: Arc::new(Territory::nothing(&name)),
                    name,
                    claims,
                    description: None,
                },
            }
        });
        state.plugins = now.collect();
        self.divide(&mut state);
    }

    /// What `plugin` owns, which says `description` of itself.
    pub fn territory(&self, plugin: &str, description: &Arc<Description>) -> Arc<Territory> {
        let mut state = self.lock();
        let Some(at) = state.plugins.iter().position(|known| known.name == plugin) else {
            return Arc::new(Territory::nothing(plugin));
        };
        let is_news = |known: &Plugin| {
            let old = known.description.as_ref();
            !old.is_some_and(|old| Arc::ptr_eq(old, description))
        };
        if let Some(known) = state.plugins.get_mut(at).filter(|known| is_news(known)) {
            known.description = Some(Arc::clone(description));
            self.divide(&mut state);
        }
        match state.plugins.get(at) {
            Some(known) => Arc::clone(&known.territory),
            None => Arc::new(Territory::nothing(plugin)),
        }
    }

    /// Changes whenever a territory does: then every plugin's objects are worth a look.
    pub fn moved(&self) -> watch::Receiver<u64> {
        self.moved.subscribe()
    }

    /// What a plugin wants and does not get, for people.
    pub fn complaints(&self, plugin: &str) -> Vec<String> {
        let state = self.lock();
        let about = state.complaints.iter().filter(|it| it.plugin() == plugin);
        about.map(ToString::to_string).collect()
    }

    fn divide(&self, state: &mut State) {
        if state.divide() {
            self.moved.send_modify(|generation| *generation += 1);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Divides anew; whether any territory has changed.
    fn divide(&mut self) -> bool {
        let claimants: Vec<Claimant<'_>> = self
            .plugins
            .iter()
            .map(|plugin| Claimant {
                name: &plugin.name,
                claims: &plugin.claims,
                description: plugin.description.as_deref(),
            })
            .collect();
        let division = divide(&claimants, &self.incumbents);
        let complaints: BTreeSet<Complaint> = division.complaints.into_iter().collect();
        for complaint in complaints.difference(&self.complaints) {
            tracing::warn!("{complaint}");
        }
        self.complaints = complaints;
        self.incumbents = division.incumbents;
        let mut has_changed = false;
        for (plugin, territory) in self.plugins.iter_mut().zip(division.territories) {
            if *plugin.territory != territory {
                plugin.territory = Arc::new(territory);
                has_changed = true;
            }
        }
        has_changed
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_core::cloud::{Capability, KeySet, TargetKind};
    use bulkhead_core::ids::ProviderId;

    use super::*;

    fn offers(scheme: &str) -> Arc<Description> {
        Arc::new(Description {
            provider: "p".to_owned(),
            version: String::new(),
            instance_id: "1".to_owned(),
            capabilities: vec![Capability::Instances],
            schemes: vec![scheme.to_owned()],
            classes: Vec::new(),
            targets: TargetKind::Instance,
            mixed_protocols: false,
            without_node_ports: false,
            annotation_keys: KeySet::default(),
            label_keys: KeySet::default(),
            max_batch_nodes: 1,
            max_targets: None,
            behaviour_digest: String::new(),
        })
    }

    fn named(names: &[&str]) -> Vec<(String, Claims)> {
        names
            .iter()
            .map(|name| ((*name).to_owned(), Claims::default()))
            .collect()
    }

    #[test]
    fn what_a_plugin_says_counts_at_once_and_another_that_says_the_same_gets_nothing() {
        let router = Router::new(named(&["a", "b"]));
        let mut moved = router.moved();
        let id = ProviderId::parse("x://1").unwrap();
        let (one, other) = (offers("x"), offers("x"));
        assert!(router.territory("b", &one).owns(&id));
        assert!(moved.has_changed().unwrap());
        moved.mark_unchanged();
        assert!(!router.territory("a", &other).owns(&id));
        assert_eq!(
            (router.complaints("a").len(), router.complaints("b").len()),
            (1, 1)
        );
        // The same again is no news.
        drop((router.territory("a", &other), router.territory("b", &one)));
        assert!(!moved.has_changed().unwrap());
    }

    #[test]
    fn a_new_configuration_keeps_what_plugins_said_and_takes_from_those_that_are_gone() {
        let router = Router::new(named(&["a", "b"]));
        let id = ProviderId::parse("x://1").unwrap();
        let (one, other) = (offers("x"), offers("x"));
        assert!(router.territory("a", &one).owns(&id));
        assert!(!router.territory("b", &other).owns(&id));
        router.configure(named(&["b"]));
        assert!(!router.territory("a", &one).owns(&id));
        assert!(router.territory("b", &other).owns(&id));
    }
}
