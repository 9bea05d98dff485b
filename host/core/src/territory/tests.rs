use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use rstest::rstest;

use super::{
    Claimant, Claims, Complaint, Incumbents, PATIENCE, Requirement, Selector, Strays, Territory, divide,
    divide_beside, overlaps,
};
use crate::clock::Instant;
use crate::cloud::{Capability, Description};
use crate::fixtures::{description, node};
use crate::ids::ProviderId;
use crate::node::view::NodeView;

fn set(texts: &[&str]) -> BTreeSet<String> {
    texts.iter().map(ToString::to_string).collect()
}

fn claims() -> Claims {
    Claims::default()
}

impl Claims {
    fn schemes(self, schemes: &[&str]) -> Self {
        let schemes = Some(set(schemes));
        Self { schemes, ..self }
    }

    fn ids(self, patterns: &[&str]) -> Self {
        let provider_ids = patterns.iter().map(|it| it.parse().unwrap()).collect();
        Self { provider_ids, ..self }
    }

    fn zone(self, zone: &str) -> Self {
        let nodes = Selector::new(vec![Requirement::equals("zone", zone).unwrap()]);
        Self { nodes, ..self }
    }

    fn classes(self, classes: &[&str]) -> Self {
        let classes = Some(set(classes));
        Self { classes, ..self }
    }
}

#[rstest]
#[case::two_accounts_of_one_scheme(
    claims().schemes(&["aws"]).ids(&["aws:///eu-*"]).zone("eu"),
    claims().schemes(&["aws"]).ids(&["aws:///us-*"]).zone("us"), &[])]
#[case::two_clouds(claims().schemes(&["aws"]).zone("x"), claims().schemes(&["gce"]).zone("y"), &[])]
#[case::one_without_nodes(claims().schemes(&[]), claims().schemes(&["gce"]), &[])]
#[case::silent_about_schemes(claims().zone("x"), claims().zone("y"), &[])]
#[case::one_scheme(
    claims().schemes(&["aws", "x"]).zone("x"), claims().schemes(&["aws"]).zone("y"),
    &["plugins a and b both claim provider ID aws://i-1: their schemes and providerIDs must have none in common"])]
#[case::a_region_of_the_others_scheme(
    claims().schemes(&["aws"]).zone("x"), claims().ids(&["aws:///eu-west-1*"]).zone("y"),
    &["plugins a and b both claim provider ID aws:///eu-west-1-1: their schemes and providerIDs must have none in common"])]
#[case::pattern_outside_of_its_scheme(
    claims().schemes(&["gce"]).ids(&["aws://*", "gce://a*"]).zone("x"),
    claims().schemes(&["aws"]).ids(&["aws://*"]).zone("y"), &[])]
#[case::every_node_and_every_node(
    claims(), claims(),
    &["plugins a and b both select a new node without labels: their nodes must select different ones"])]
#[case::every_node_and_some(
    claims(), claims().zone("y"),
    &["plugins a and b both select a new node with zone=y: their nodes must select different ones"])]
#[case::no_class(
    claims().zone("x").classes(&["", "p"]), claims().zone("y").classes(&["", "q"]),
    &["plugins a and b both claim Services without a class: their classes must have none in common"])]
#[case::one_class(
    claims().zone("x").classes(&["", "p"]), claims().zone("y").classes(&["p"]),
    &["plugins a and b both claim class p: their classes must have none in common"])]
fn two_plugins_overlap(#[case] one: Claims, #[case] other: Claims, #[case] said: &[&str]) {
    let found = overlaps(&[("a", &one), ("b", &other)]);
    let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(texts, said);
}

/// What a plugin says that offers these.
fn offers(schemes: &[&str], classes: &[&str]) -> Description {
    Description {
        schemes: schemes.iter().map(ToString::to_string).collect(),
        classes: classes.iter().map(ToString::to_string).collect(),
        ..description()
    }
}

/// What plugin `n` of a list is called.
fn name(n: usize) -> String {
    format!("p{n}")
}

/// The plugins p0, p1 …, as they come to be described one after another.
struct World {
    plugins: Vec<(String, Claims, Option<Description>)>,
    incumbents: Incumbents,
    territories: Vec<Territory>,
    complaints: Vec<Complaint>,
}

impl World {
    fn new(claims: impl IntoIterator<Item = Claims>) -> Self {
        let plugins = claims
            .into_iter()
            .enumerate()
            .map(|(n, claims)| (name(n), claims, None));
        let mut world = Self {
            plugins: plugins.collect(),
            incumbents: Incumbents::default(),
            territories: Vec::new(),
            complaints: Vec::new(),
        };
        world.divide();
        world
    }

    fn divide(&mut self) {
        let claimants: Vec<_> = self
            .plugins
            .iter()
            .map(|(name, claims, description)| Claimant {
                name,
                claims,
                description: description.as_ref(),
            })
            .collect();
        let division = divide(&claimants, &self.incumbents);
        self.incumbents = division.incumbents;
        self.territories = division.territories;
        self.complaints = division.complaints;
    }

    fn describe(&mut self, plugin: usize, description: Description) {
        self.plugins[plugin].2 = Some(description);
        self.divide();
    }

    fn described(mut self, plugin: usize, description: Description) -> Self {
        self.describe(plugin, description);
        self
    }

    fn owners(&self, owns: impl Fn(&Territory) -> bool) -> Vec<usize> {
        (0..self.territories.len())
            .filter(|n| owns(&self.territories[*n]))
            .collect()
    }

    fn owners_of(&self, id: &str) -> Vec<usize> {
        let id = ProviderId::parse(id).unwrap();
        self.owners(|it| it.owns(&id))
    }
}

fn labelled(labels: &BTreeMap<String, String>) -> NodeView {
    NodeView {
        labels: labels.clone(),
        ..node("n")
    }
}

/// Whether people are told of a node that stays so.
#[rstest]
#[case::nobody_selects_it(node("n"), vec![claims().zone("x"), claims().zone("y")], true)]
#[case::there_is_no_plugin(node("n"), vec![], true)]
#[case::selected_by_a_plugin_without_nodes(node("n"), vec![claims().schemes(&[])], true)]
#[case::selected(node("n"), vec![claims().zone("x"), claims()], false)]
#[case::of_another_provider(NodeView { provider_id: Some("k3s://n".to_owned()), ..node("n") }, vec![], false)]
#[case::not_waiting(NodeView { taints: vec![], ..node("n") }, vec![], false)]
#[case::being_deleted(NodeView { deleting: true, ..node("n") }, vec![], false)]
fn a_new_node_is_told_once(#[case] node: NodeView, #[case] claims: Vec<Claims>, #[case] is_told: bool) {
    let mut strays = Strays::default();
    let mut told = Vec::new();
    for second in 0..PATIENCE.as_secs() * 3 {
        let now = Instant::from_origin(std::time::Duration::from_secs(second));
        let news = strays.step([&node], &claims, now).len();
        told.extend((news > 0).then_some(second));
    }
    let expected: &[u64] = if is_told { &[PATIENCE.as_secs()] } else { &[] };
    assert_eq!(told, expected);
}

#[test]
fn a_node_that_was_selected_meanwhile_waits_from_then() {
    let at = |seconds| Instant::from_origin(std::time::Duration::from_secs(seconds));
    let (patience, node) = (PATIENCE.as_secs(), node("n"));
    let mut strays = Strays::default();
    assert_eq!(strays.step([&node], &[], at(0)), []);
    assert_eq!(strays.step([&node], &[claims()], at(1)), []);
    assert_eq!(strays.step([&node], &[], at(2)), []);
    assert_eq!(strays.step([&node], &[], at(patience + 1)), []);
    let news = strays.step([&node], &[], at(patience + 2));
    assert!(
        news[0].1.note.starts_with("No plugin of this host is configured"),
        "{news:?}"
    );
}

#[test]
fn a_plugin_alone_owns_what_it_describes_and_every_new_node() {
    let world = World::new([claims()]).described(0, offers(&["aws", "x"], &["", "p"]));
    assert_eq!(world.complaints, []);
    let own = &world.territories[0];
    assert_eq!(own.schemes().collect::<Vec<_>>(), ["aws", "x"]);
    assert_eq!(own.classes().collect::<Vec<_>>(), ["", "p"]);
    assert!(own.selects(&node("n")));
    assert_eq!(own.class_finalizer(), "p0.bulkhead.dev/load-balancer");
}

#[test]
fn two_accounts_of_one_scheme_share_it_by_pattern() {
    let eu = claims().ids(&["aws:///eu-*"]).zone("eu").classes(&[""]);
    let us = claims().ids(&["aws:///us-*"]).zone("us").classes(&["us"]);
    let both = offers(&["aws"], &["", "us"]);
    let world = World::new([eu, us]).described(1, both.clone()).described(0, both);
    assert_eq!(world.complaints, []);
    assert_eq!(world.owners_of("aws:///eu-west-1a/i-1"), [0]);
    assert_eq!(world.owners_of("aws:///us-east-1a/i-1"), [1]);
    assert_eq!(world.owners_of("aws:///ap-south-1a/i-1"), [0; 0]);
    assert_eq!(world.owners(|it| it.serves("")), [0]);
    assert_eq!(world.owners(|it| it.serves("us")), [1]);
}

#[test]
fn what_is_configured_waits_for_its_plugin_whoever_describes_it_first() {
    let world = World::new([
        claims().zone("x"),
        claims().schemes(&["aws"]).classes(&["p"]).zone("y"),
    ])
    .described(0, offers(&["aws", "gce"], &["p", "q"]));
    assert_eq!(world.owners_of("aws://i-1"), [1]);
    assert_eq!(world.owners_of("gce://i-1"), [0]);
    assert_eq!(world.owners(|it| it.serves("p")), [1]);
    assert_eq!(world.owners(|it| it.serves("q")), [0]);
    let said: Vec<String> = world.complaints.iter().map(ToString::to_string).collect();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said[0]
            .starts_with("plugin p0 offers scheme aws, but provider IDs such as aws://i-1 are plugin p1's")
    );
    assert!(said[1].starts_with("plugin p0 offers to serve class p, but plugin p1 does"));
}

#[test]
fn an_incumbent_keeps_what_a_newcomer_offers_also_while_it_is_away() {
    let mut world =
        World::new([claims().zone("x"), claims().zone("y")]).described(1, offers(&["aws"], &[""]));
    // The one that stands first in the configuration comes second.
    world.describe(0, offers(&["aws"], &[""]));
    assert_eq!(
        (world.owners_of("aws://i"), world.owners(|it| it.serves(""))),
        (vec![1], vec![1])
    );
    assert_eq!(world.complaints.len(), 2);
    world.plugins[1].2 = None;
    world.divide();
    assert_eq!(world.owners_of("aws://i"), [1]);
    // Only when it says that it is not its own any more, another gets it.
    world.describe(1, offers(&["gce"], &[]));
    assert_eq!(
        (world.owners_of("aws://i"), world.owners(|it| it.serves(""))),
        (vec![0], vec![0])
    );
    assert_eq!(world.complaints, []);
}

#[test]
fn what_a_plugin_is_configured_to_own_and_does_not_know_is_nobodys() {
    let world = World::new([
        claims().schemes(&["awz"]).classes(&["p"]).zone("x"),
        claims().zone("y"),
    ])
    .described(0, offers(&["aws"], &[""]))
    .described(1, offers(&["awz"], &["p"]));
    assert_eq!(world.owners_of("awz://i"), [0; 0]);
    assert_eq!(world.owners(|it| it.serves("p")), [0; 0]);
    let about_first = world.complaints.iter().filter(|it| it.plugin() == "p0").count();
    assert_eq!((about_first, world.complaints.len()), (2, 4));
}

#[test]
fn a_plugin_without_the_capability_takes_nothing_from_others() {
    let unable = Description {
        capabilities: vec![Capability::InstancesList],
        ..offers(&["x"], &[""])
    };
    let world = World::new([claims(), claims()])
        .described(0, unable)
        .described(1, offers(&["aws"], &[""]));
    assert_eq!(world.owners(|it| it.selects(&node("n"))), [1]);
    assert_eq!(world.owners(|it| it.serves("")), [1]);
}

#[test]
fn of_two_that_select_a_node_the_later_does_without_and_it_is_told() {
    let world = World::new([claims().zone("x"), claims()])
        .described(1, offers(&["gce"], &[]))
        .described(0, offers(&["aws"], &[]));
    let zone = |zone: &str| labelled(&BTreeMap::from([("zone".to_owned(), zone.to_owned())]));
    assert_eq!(world.owners(|it| it.selects(&zone("x"))), [0]);
    assert_eq!(world.owners(|it| it.selects(&zone("y"))), [1]);
    let said = world.complaints[0].to_string();
    assert!(
        said.starts_with("plugin p1 selects new nodes with zone=x, but so does plugin p0"),
        "{said}"
    );
}

#[test]
fn what_a_leaving_plugin_owns_is_nobodys_until_it_is_gone_and_then_its_successors() {
    let (owned, offer) = (
        claims().schemes(&["aws"]).classes(&["c"]),
        offers(&["aws"], &["c"]),
    );
    let claimant = |name| Claimant {
        name,
        claims: &owned,
        description: Some(&offer),
    };
    let (old, new) = (claimant("old"), claimant("new"));
    let before = divide(&[old], &Incumbents::default()).incumbents;
    let id = ProviderId::parse("aws:///i-1").unwrap();
    let fresh = labelled(&BTreeMap::new());
    let takes = |division: &super::Division| {
        let [territory] = division.territories.as_slice() else {
            panic!("{division:?}")
        };
        [
            territory.owns(&id),
            territory.serves("c"),
            territory.selects(&fresh),
        ]
    };

    let meanwhile = divide_beside(&[old], &[new], &before);
    assert_eq!(takes(&meanwhile), [false; 3]);
    assert_eq!(meanwhile.complaints, []);
    let after = divide_beside(&[], &[new], &meanwhile.incumbents);
    assert_eq!(takes(&after), [true; 3]);
    assert_eq!(after.complaints, []);
}

fn some_of(texts: &'static [&'static str]) -> impl Strategy<Value = BTreeSet<String>> {
    prop::collection::btree_set(
        prop::sample::select(texts).prop_map(str::to_owned),
        0..=texts.len(),
    )
}

fn any_claims() -> impl Strategy<Value = Claims> {
    let requirement = ("[xy]", prop::sample::select(&["Exists", "DoesNotExist"][..]))
        .prop_map(|(key, operator)| Requirement::new(&key, operator, &[]).unwrap());
    (
        prop::option::of(some_of(&["a", "b"])),
        prop::collection::vec("[ab*]://[12*]{1,2}".prop_map(|it| it.parse().unwrap()), 0..3),
        prop::collection::vec(requirement, 0..2).prop_map(Selector::new),
        prop::option::of(some_of(&["", "p"])),
    )
        .prop_map(|(schemes, provider_ids, nodes, classes)| Claims {
            schemes,
            provider_ids,
            nodes,
            classes,
        })
}

fn any_description() -> impl Strategy<Value = Description> {
    let can = prop::sample::subsequence(vec![Capability::Instances, Capability::Lb], 1..=2);
    (some_of(&["a", "b"]), some_of(&["", "p"]), can).prop_map(|(schemes, classes, capabilities)| {
        Description {
            schemes: schemes.into_iter().collect(),
            classes: classes.into_iter().collect(),
            capabilities,
            ..description()
        }
    })
}

/// Everything that can be owned in these worlds: provider IDs, classes, labels of new nodes.
type Thing = Box<dyn Fn(&Territory) -> bool>;

fn things() -> Vec<Thing> {
    let mut all: Vec<Thing> = Vec::new();
    for scheme in ["a", "b"] {
        for rest in ["1", "2", "12", "21"] {
            let id = ProviderId::parse(format!("{scheme}://{rest}")).unwrap();
            all.push(Box::new(move |it| it.owns(&id)));
        }
    }
    for class in ["", "p"] {
        all.push(Box::new(move |it| it.serves(class)));
    }
    for keys in [&[][..], &["x"], &["y"], &["x", "y"]] {
        let labels = keys
            .iter()
            .map(|key| ((*key).to_owned(), String::new()))
            .collect();
        let node = labelled(&labels);
        all.push(Box::new(move |it| it.selects(&node)));
    }
    all
}

proptest! {
    #[test]
    fn nothing_ever_has_two_owners(
        plugins in prop::collection::vec((any_claims(), any_description()), 1..4),
        order in prop::collection::vec(0_usize..4, 0..8),
    ) {
        let mut world = World::new(plugins.iter().map(|(claims, _)| claims.clone()));
        for n in order.into_iter().filter(|n| *n < plugins.len()) {
            world.describe(n, plugins[n].1.clone());
            for thing in things() {
                prop_assert!(world.owners(&thing).len() <= 1);
            }
        }
    }

    #[test]
    fn whoever_comes_later_takes_no_scheme_and_no_class_from_an_incumbent(
        plugins in prop::collection::vec((any_claims(), any_description()), 1..4),
        order in Just(vec![0_usize, 1, 2, 3]).prop_shuffle(),
    ) {
        let mut world = World::new(plugins.iter().map(|(claims, _)| claims.clone()));
        for n in order.into_iter().filter(|n| *n < plugins.len()) {
            let before = world.territories.clone();
            world.describe(n, plugins[n].1.clone());
            for thing in things().iter().take(10) {
                for other in (0..plugins.len()).filter(|other| *other != n && thing(&before[*other])) {
                    prop_assert!(thing(&world.territories[other]));
                }
            }
        }
    }

    #[test]
    fn what_is_configured_without_overlap_does_not_depend_on_who_comes_first(
        plugins in prop::collection::vec((any_claims(), any_description()), 1..4),
        order in Just(vec![0_usize, 1, 2, 3]).prop_shuffle(),
    ) {
        // Every plugin says what it owns, and they do not overlap.
        let all: Vec<(String, Claims)> = plugins
            .iter()
            .enumerate()
            .map(|(n, (claims, about))| (name(n), Claims {
                schemes: claims.schemes.clone().or_else(|| Some(about.schemes.iter().cloned().collect())),
                classes: claims.classes.clone().or_else(|| Some(about.classes.iter().cloned().collect())),
                ..claims.clone()
            }))
            .collect();
        let named: Vec<(&str, &Claims)> = all.iter().map(|(name, claims)| (name.as_str(), claims)).collect();
        prop_assume!(overlaps(&named).is_empty());
        let world = |order: &[usize]| {
            let mut world = World::new(all.iter().map(|(_, claims)| claims.clone()));
            for n in order.iter().filter(|n| **n < plugins.len()) {
                world.describe(*n, plugins[*n].1.clone());
            }
            world.territories
        };
        let (one, other) = (world(&order), world(&[0, 1, 2, 3]));
        for thing in things() {
            for n in 0..plugins.len() {
                prop_assert_eq!(thing(&one[n]), thing(&other[n]));
            }
        }
    }

    #[test]
    fn dividing_again_changes_nothing(
        plugins in prop::collection::vec((any_claims(), any_description()), 1..4),
    ) {
        let mut world = World::new(plugins.iter().map(|(claims, _)| claims.clone()));
        for (n, (_, about)) in plugins.iter().enumerate() {
            world.describe(n, about.clone());
        }
        let before = (world.territories.clone(), world.incumbents.clone(), world.complaints.clone());
        world.divide();
        prop_assert_eq!(before, (world.territories, world.incumbents, world.complaints));
    }
}
