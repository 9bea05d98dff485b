//! Which plugin owns what, for what all of them last said of themselves.
//!
//! `bulkhead_core::territory` decides; here is kept what that rests on.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bulkhead_core::cloud::Description;
use bulkhead_core::territory::{Claimant, Claims, Complaint, Incumbents, Territory, divide};

/// The territories of all plugins. Clones share them.
#[derive(Clone, Debug)]
pub struct Router(Arc<Mutex<State>>);

#[derive(Debug)]
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
        let plugins = plugins.into_iter().map(|(name, claims)| Plugin {
            territory: Arc::new(Territory::nothing(&name)),
            name,
            claims,
            description: None,
        });
        let mut state = State {
            plugins: plugins.collect(),
            incumbents: Incumbents::default(),
            complaints: BTreeSet::new(),
        };
        state.divide();
        Self(Arc::new(Mutex::new(state)))
    }

    /// What `plugin` owns, which says `description` of itself.
    pub fn territory(&self, plugin: &str, description: &Arc<Description>) -> Arc<Territory> {
        let mut state = self.lock();
        let Some(known) = state.plugins.iter_mut().find(|known| known.name == plugin) else {
            return Arc::new(Territory::nothing(plugin));
        };
        let is_news = !known
            .description
            .as_ref()
            .is_some_and(|old| Arc::ptr_eq(old, description));
        if is_news {
            known.description = Some(Arc::clone(description));
            state.divide();
        }
        let known = state.plugins.iter().find(|known| known.name == plugin);
        known.map_or_else(
            || Arc::new(Territory::nothing(plugin)),
            |known| Arc::clone(&known.territory),
        )
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn divide(&mut self) {
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
        for (plugin, territory) in self.plugins.iter_mut().zip(division.territories) {
            if *plugin.territory != territory {
                plugin.territory = Arc::new(territory);
            }
        }
    }
}
