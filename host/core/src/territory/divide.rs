//! Divides the world between plugins: the configuration first, then who was there first.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::{Claims, ClassName, Labels, Pattern, Territory, shared_id};
use crate::cloud::{Capability, Description};
use crate::ids::ProviderId;

/// One plugin, as far as its territory depends on it.
#[derive(Clone, Copy, Debug)]
pub struct Claimant<'a> {
    /// Its configured name; unique.
    pub name: &'a str,
    /// What the configuration says.
    pub claims: &'a Claims,
    /// What it last said of itself; `None`: it never did.
    pub description: Option<&'a Description>,
}

/// Who owns what the configuration does not say, as of the last [`divide`]. What is in here stays with its owner while
/// the owner describes it, or says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Incumbents {
    /// Plugin and scheme.
    schemes: BTreeSet<(String, String)>,
    /// Plugin by class.
    classes: BTreeMap<String, String>,
    /// Plugins that select nodes, those that came first in front.
    nodes: Vec<String>,
}

/// How the world is divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    /// One for each claimant, in their order.
    pub territories: Vec<Territory>,
    /// To be given to the next [`divide`].
    pub incumbents: Incumbents,
    /// What a plugin wants or should have, and does not get. The same again as long as it is so.
    pub complaints: Vec<Complaint>,
}

/// What a plugin does not get.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Complaint {
    /// A scheme that it describes is another's, in whole or in part.
    SchemeTaken {
        /// Who wants it.
        plugin: String,
        /// The scheme.
        scheme: String,
        /// Who keeps it.
        owner: String,
        /// One provider ID that would be both's.
        example: ProviderId,
    },
    /// A class that it describes is another's.
    ClassTaken {
        /// Who wants it.
        plugin: String,
        /// The class.
        class: String,
        /// Who keeps it.
        owner: String,
    },
    /// Some new nodes that it selects are another's.
    NodesTaken {
        /// Who wants them.
        plugin: String,
        /// Who keeps them.
        owner: String,
        /// Labels of one.
        example: BTreeMap<String, String>,
    },
    /// It is configured to own a scheme that it does not describe.
    SchemeUnknown {
        /// The plugin.
        plugin: String,
        /// The scheme.
        scheme: String,
    },
    /// It is configured to serve a class that it does not describe.
    ClassUnknown {
        /// The plugin.
        plugin: String,
        /// The class.
        class: String,
    },
}

impl Complaint {
    /// The plugin that it is about.
    pub fn plugin(&self) -> &str {
        match self {
            Self::SchemeTaken { plugin, .. }
            | Self::ClassTaken { plugin, .. }
            | Self::NodesTaken { plugin, .. }
            | Self::SchemeUnknown { plugin, .. }
            | Self::ClassUnknown { plugin, .. } => plugin,
        }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SchemeTaken {
                plugin,
                scheme,
                owner,
                example,
            } => write!(
                out,
                "plugin {plugin} offers scheme {scheme}, but provider IDs such as {example} are plugin {owner}'s, \
                 which keeps them: nodes of that scheme are not given to {plugin}. To share the scheme, give both \
                 plugins providerIDs in the configuration"
            ),
            Self::ClassTaken { plugin, class, owner } => write!(
                out,
                "plugin {plugin} offers to serve {0}, but plugin {owner} does, and keeps that: {0} are not given to \
                 {plugin}. To decide otherwise, give both plugins classes in the configuration",
                ClassName(class)
            ),
            Self::NodesTaken {
                plugin,
                owner,
                example,
            } => write!(
                out,
                "plugin {plugin} selects new nodes {}, but so does plugin {owner}, which keeps them. To decide \
                 otherwise, give both plugins nodes in the configuration",
                Labels(example)
            ),
            Self::SchemeUnknown { plugin, scheme } => write!(
                out,
                "plugin {plugin} is configured to own scheme {scheme}, which it does not know: nodes with such \
                 provider IDs are left alone"
            ),
            Self::ClassUnknown { plugin, class } => write!(
                out,
                "plugin {plugin} is configured to serve {}, which it does not offer: they are left alone",
                ClassName(class)
            ),
        }
    }
}

/// Gives every claimant its territory. Nothing is ever given to two. Of schemes and classes, what the configuration claims
/// comes first (of two that claim one thing, the one that stands first), then what an incumbent has, then what plugins
/// describe, in the order of `claimants`. Of nodes without provider ID, an incumbent comes first, then that order.
pub fn divide(claimants: &[Claimant<'_>], incumbents: &Incumbents) -> Division {
    let mut complaints = Vec::new();
    let schemes = schemes(claimants, incumbents, &mut complaints);
    let classes = classes(claimants, incumbents, &mut complaints);
    let ranked = ranked(claimants, incumbents);
    let territories = claimants.iter().map(|it| {
        let own_schemes = of(&schemes, it.name);
        let before: Vec<_> = ranked.iter().take_while(|other| other.name != it.name).collect();
        let selects = !own_schemes.is_empty() && ranked.iter().any(|other| other.name == it.name);
        if selects {
            complaints.extend(before.iter().filter_map(|owner| nodes_taken(it, owner)));
        }
        let own_classes = classes.iter().filter(|(_, owner)| **owner == it.name);
        Territory {
            provider_ids: it.claims.provider_ids.clone(),
            schemes: own_schemes,
            nodes: selects.then(|| it.claims.nodes.clone()),
            but_not: before.iter().map(|other| other.claims.nodes.clone()).collect(),
            classes: own_classes.map(|(class, _)| class.clone()).collect(),
            ..Territory::nothing(it.name)
        }
    });
    Division {
        territories: territories.collect(),
        incumbents: Incumbents {
            schemes: schemes
                .into_iter()
                .map(|it| (it.plugin.to_owned(), it.scheme))
                .collect(),
            classes: classes
                .into_iter()
                .map(|(class, owner)| (class, owner.to_owned()))
                .collect(),
            nodes: ranked.iter().map(|it| it.name.to_owned()).collect(),
        },
        complaints,
    }
}

/// As [`divide`] among `open`, while the last calls of `leaving` end, which the configuration no longer has: what those own
/// stays out of others' hands. It passes, so nobody is told.
pub fn divide_beside(leaving: &[Claimant<'_>], open: &[Claimant<'_>], incumbents: &Incumbents) -> Division {
    let mut division = divide(&[leaving, open].concat(), incumbents);
    if !leaving.is_empty() {
        division.territories.drain(..leaving.len());
        division.complaints = divide(open, incumbents).complaints;
    }
    division
}

/// A scheme, or a part of it, that is somebody's.
struct Held<'a> {
    plugin: &'a str,
    scheme: String,
    ids: Vec<Vec<Pattern>>,
    /// Whether the plugin can serve it; if not, it is only kept from others.
    is_known: bool,
}

/// What is held of schemes, while it is being divided.
struct Schemes<'a> {
    held: Vec<Held<'a>>,
    /// Patterns that are claimed whatever their scheme.
    reserved: Vec<(&'a str, Vec<Vec<Pattern>>)>,
}

impl<'a> Schemes<'a> {
    /// Who has some of `ids` already, and which.
    fn taken(&self, plugin: &str, ids: &[Vec<Pattern>]) -> Option<(&'a str, ProviderId)> {
        let held = self.held.iter().map(|it| (it.plugin, &it.ids));
        let reserved = self.reserved.iter().map(|(owner, ids)| (*owner, ids));
        held.chain(reserved)
            .filter(|(owner, _)| *owner != plugin)
            .find_map(|(owner, theirs)| Some((owner, shared_id(theirs, ids)?)))
    }

    fn has(&self, plugin: &str, scheme: &str) -> bool {
        self.held
            .iter()
            .any(|it| it.plugin == plugin && it.scheme == scheme)
    }

    /// Gives `scheme` to the claimant, or says who keeps it.
    fn give(&mut self, to: &Claimant<'a>, scheme: &str, is_known: bool) -> Result<(), Complaint> {
        let ids = to.claims.of_scheme(scheme);
        if let Some((owner, example)) = self.taken(to.name, &ids) {
            return Err(Complaint::SchemeTaken {
                plugin: to.name.to_owned(),
                scheme: scheme.to_owned(),
                owner: owner.to_owned(),
                example,
            });
        }
        let (plugin, scheme) = (to.name, scheme.to_owned());
        self.held.push(Held {
            plugin,
            scheme,
            ids,
            is_known,
        });
        Ok(())
    }
}

fn schemes<'a>(
    claimants: &[Claimant<'a>],
    incumbents: &Incumbents,
    complaints: &mut Vec<Complaint>,
) -> Vec<Held<'a>> {
    let mut all = Schemes {
        held: Vec::new(),
        reserved: Vec::new(),
    };
    for it in claimants {
        let configured = it.claims.schemes.iter().flatten();
        for scheme in configured {
            let is_known = it.description.is_none_or(|about| about.schemes.contains(scheme));
            if !is_known {
                let (plugin, scheme) = (it.name.to_owned(), scheme.clone());
                complaints.push(Complaint::SchemeUnknown { plugin, scheme });
            }
            complaints.extend(all.give(it, scheme, is_known).err());
        }
        if it.claims.schemes.is_none() {
            all.reserved.push((it.name, it.claims.provider_ids()));
        }
    }
    let silent = || claimants.iter().filter(|it| it.claims.schemes.is_none());
    for it in silent() {
        for (_, scheme) in incumbents.schemes.iter().filter(|(plugin, _)| plugin == it.name) {
            let still = it.description.is_none_or(|about| about.schemes.contains(scheme));
            if still {
                // What it loses it loses to the configuration; if it still wants it, that is told below.
                drop(all.give(it, scheme, true));
            }
        }
    }
    for it in silent() {
        for scheme in it.description.iter().flat_map(|about| &about.schemes) {
            if !all.has(it.name, scheme) {
                complaints.extend(all.give(it, scheme, true).err());
            }
        }
    }
    all.held.retain(|it| it.is_known);
    all.held
}

fn of(schemes: &[Held<'_>], plugin: &str) -> BTreeSet<String> {
    let own = schemes.iter().filter(|it| it.plugin == plugin);
    own.map(|it| it.scheme.clone()).collect()
}

/// The owner of every class that somebody serves.
fn classes<'a>(
    claimants: &[Claimant<'a>],
    incumbents: &Incumbents,
    complaints: &mut Vec<Complaint>,
) -> BTreeMap<String, &'a str> {
    let offers = |it: &Claimant<'a>, class: &String| {
        let offered = it
            .description
            .map(|about| about.can(Capability::Lb) && about.classes.contains(class));
        offered.unwrap_or(true)
    };
    let mut owners: BTreeMap<String, &'a str> = BTreeMap::new();
    let mut unknown = BTreeSet::new();
    for it in claimants {
        for class in it.claims.classes.iter().flatten() {
            let owner = *owners.entry(class.clone()).or_insert(it.name);
            if owner != it.name {
                complaints.push(class_taken(it, class, owner));
            } else if !offers(it, class) {
                unknown.insert(class.clone());
                let (plugin, class) = (it.name.to_owned(), class.clone());
                complaints.push(Complaint::ClassUnknown { plugin, class });
            }
        }
    }
    let silent = || claimants.iter().filter(|it| it.claims.classes.is_none());
    for it in silent() {
        let had = incumbents.classes.iter().filter(|(_, owner)| *owner == it.name);
        for (class, _) in had.filter(|(class, _)| offers(it, class)) {
            owners.entry(class.clone()).or_insert(it.name);
        }
    }
    for it in silent() {
        let described = it.description.iter().flat_map(|about| &about.classes);
        for class in described.filter(|class| offers(it, class)) {
            let owner = *owners.entry(class.clone()).or_insert(it.name);
            if owner != it.name {
                complaints.push(class_taken(it, class, owner));
            }
        }
    }
    owners.retain(|class, _| !unknown.contains(class));
    owners
}

fn class_taken(it: &Claimant<'_>, class: &str, owner: &str) -> Complaint {
    Complaint::ClassTaken {
        plugin: it.name.to_owned(),
        class: class.to_owned(),
        owner: owner.to_owned(),
    }
}

/// The claimants that may select nodes, in the order in which they do.
fn ranked<'a, 'b>(claimants: &'b [Claimant<'a>], incumbents: &Incumbents) -> Vec<&'b Claimant<'a>> {
    let rank = |it: &Claimant<'_>| {
        let known = incumbents.nodes.iter().position(|name| name == it.name);
        known.unwrap_or(incumbents.nodes.len())
    };
    let mut able: Vec<&Claimant<'a>> = claimants
        .iter()
        .filter(|it| it.claims.has_nodes())
        .filter(|it| {
            it.description
                .is_none_or(|about| about.can(Capability::Instances))
        })
        .collect();
    able.sort_by_key(|it| rank(it));
    able
}

fn nodes_taken(it: &Claimant<'_>, owner: &Claimant<'_>) -> Option<Complaint> {
    Some(Complaint::NodesTaken {
        plugin: it.name.to_owned(),
        owner: owner.name.to_owned(),
        example: it.claims.nodes.common(&owner.claims.nodes)?,
    })
}
