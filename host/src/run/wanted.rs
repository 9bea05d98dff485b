//! The plugins that are to have a room: those of the configuration, and those that appear in the plugins directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bulkhead_core::endpoint::Endpoint;
use bulkhead_core::territory::Claims;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::mpsc;

use crate::config::{BudgetConfig, DeadlineConfig, PluginConfig};
use crate::plugin::directory::{self, Appeared, Sockets};
use crate::tasks::Tasks;

/// Plugins that appeared and are not looked at yet; the directory waits with more.
const NEWS: usize = 16;

/// A plugin that is to have a room.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// How it is treated.
    pub(super) config: PluginConfig,
    /// Where its processes listen, if it was found in the plugins directory.
    pub(super) found: Option<Found>,
}

/// A plugin of the plugins directory, from when it appeared until it vanished.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// Another one each time that a plugin appears.
    pub(super) appearance: u64,
    /// Where its processes listen.
    pub(super) sockets: Sockets,
}

/// What is in the plugins directory.
#[derive(Debug)]
pub(super) struct Directory {
    root: Option<PathBuf>,
    news: mpsc::Receiver<Appeared>,
    plugins: BTreeMap<String, Found>,
    vanished: FuturesUnordered<BoxFuture<'static, (String, u64)>>,
    appearances: u64,
}

impl Directory {
    /// No directory yet.
    pub(super) fn new() -> Self {
        Self {
            root: None,
            news: mpsc::channel(NEWS).1,
            plugins: BTreeMap::new(),
            vanished: FuturesUnordered::new(),
            appearances: 0,
        }
    }

    /// Looks for plugins in `root` from now on, and nowhere else.
    pub(super) fn look_in(&mut self, root: Option<&Path>, tasks: &Tasks) {
        if self.root.as_deref() == root {
            return;
        }
        let (sender, news) = mpsc::channel(NEWS);
        // The search of the directory before ends with its receiver.
        self.news = news;
        self.plugins.clear();
        self.vanished.clear();
        self.root = root.map(Path::to_owned);
        if let Some(root) = self.root.clone() {
            let stop = tasks.stop_token().clone();
            drop(tasks.spawn_finite("plugins directory", async move {
                stop.run_until_cancelled(directory::watch(root, Vec::new(), sender))
                    .await;
            }));
        }
    }

    /// Becomes ready once a plugin has appeared or vanished. Dropping the future loses nothing.
    pub(super) async fn changed(&mut self) {
        tokio::select! {
            Some(Appeared { name, sockets }) = self.news.recv() => {
                self.appearances += 1;
                let appearance = self.appearances;
                let (followed, of) = (sockets.clone(), name.clone());
                self.vanished.push(
                    async move {
                        followed.vanished().await;
                        (of, appearance)
                    }
                    .boxed(),
                );
                self.plugins.insert(name, Found { appearance, sockets });
            }
            Some((name, appearance)) = self.vanished.next() => {
                // It may have appeared again meanwhile.
                if self.plugins.get(&name).is_some_and(|found| found.appearance == appearance) {
                    self.plugins.remove(&name);
                }
            }
            else => std::future::pending().await,
        }
    }

    /// The plugins that are to have a room, those of the configuration first. A name of the configuration is not taken from
    /// it.
    pub(super) fn with(&self, configured: &[PluginConfig]) -> Vec<Wanted> {
        let mut wanted: Vec<Wanted> = configured
            .iter()
            .map(|config| Wanted {
                config: config.clone(),
                found: None,
            })
            .collect();
        let root = self.root.clone().unwrap_or_default();
        for (name, found) in &self.plugins {
            if !configured.iter().any(|config| config.name == *name) {
                wanted.push(Wanted {
                    config: config_of(name, &root),
                    found: Some(found.clone()),
                });
            }
        }
        wanted
    }
}

/// How a plugin is treated of which only its folder is known.
fn config_of(name: &str, root: &Path) -> PluginConfig {
    PluginConfig {
        name: name.to_owned(),
        endpoint: Endpoint::Unix(root.join(name)),
        allowed_uids: Vec::new(),
        // The folder speaks for the plugin: whoever may make it may not take another one's name.
        provider: Some(name.to_owned()),
        claims: Claims::default(),
        budget: BudgetConfig::default(),
        deadlines: DeadlineConfig::default(),
        memory_limit: None,
        tls: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(plugins: &[&str]) -> Directory {
        let (_sender, news) = mpsc::channel(NEWS);
        let found = |(appearance, name): (u64, &&str)| {
            let sockets = Sockets::none();
            ((*name).to_owned(), Found { appearance, sockets })
        };
        Directory {
            root: Some("/plugins".into()),
            news,
            plugins: (1..).zip(plugins).map(found).collect(),
            vanished: FuturesUnordered::new(),
            appearances: 2,
        }
    }

    #[test]
    fn the_configuration_comes_first_and_keeps_its_names() {
        let configured = [config_of("b", Path::new("/elsewhere"))];
        let wanted = directory(&["a", "b"]).with(&configured);
        let names: Vec<_> = wanted
            .iter()
            .map(|it| (it.config.name.as_str(), it.found.is_some()))
            .collect();
        assert_eq!(names, [("b", false), ("a", true)]);
        assert_eq!(wanted[0].config, configured[0]);
    }
}
