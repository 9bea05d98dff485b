//! The way from what is there to what should be: pure.

use std::collections::BTreeMap;

use super::observed::Observed;
use super::wanted::{FIREWALL, POOL, Part, Value, Wanted};
use crate::cloud::{Kind, Object};

/// One cloud write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Deletes objects of one kind that are no parts with a role: rules, targets.
    Drop { kind: Kind, names: Vec<String> },
    /// Deletes the part with this role.
    Delete { role: String },
    /// Makes a part.
    Create(Part),
    /// Makes a part what it should be.
    Update(Part),
    /// Makes objects of one kind inside the part with this role: rules, targets.
    Fill {
        kind: Kind,
        parent: &'static str,
        names: Vec<String>,
    },
}

impl Step {
    /// What an observer would say that differs.
    pub(super) fn field(&self) -> String {
        match self {
            Self::Drop { kind, .. } | Self::Fill { kind, .. } if *kind == Kind::FirewallRule => {
                "spec.source_ranges".to_owned()
            }
            Self::Drop { .. } | Self::Fill { .. } => "targets".to_owned(),
            Self::Delete { role } => format!("resource:{role}"),
            Self::Create(part) | Self::Update(part) => format!("resource:{}", part.role),
        }
    }
}

/// The steps, in their order: nobody gets through whom the spec does not let, not even meanwhile, and traffic begins
/// when all behind it is there.
pub(super) fn plan(wanted: &Wanted, observed: &Observed) -> Vec<Step> {
    let mut steps = Vec::new();
    let obsolete = |name: &&String| !wanted.rules.contains(*name);
    push_drop(
        &mut steps,
        Kind::FirewallRule,
        observed.rules.keys().filter(obsolete),
    );
    let roles: BTreeMap<&str, &Part> = wanted
        .parts
        .iter()
        .map(|part| (part.role.as_str(), part))
        .collect();
    let gone = || {
        observed
            .parts
            .iter()
            .filter(|(role, _)| !roles.contains_key(role.as_str()))
    };
    let delete = |(role, _): (&String, &Object)| Step::Delete { role: role.clone() };
    steps.extend(
        gone()
            .filter(|(_, object)| object.kind == Kind::Listener)
            .map(delete),
    );
    for part in &wanted.parts {
        match observed.parts.get(&part.role) {
            None => steps.push(Step::Create(part.clone())),
            Some(object) if !changes(part, object, observed).is_empty() => {
                steps.push(Step::Update(part.clone()));
            }
            Some(_) => {}
        }
        if part.role == FIREWALL {
            let missing = wanted
                .rules
                .iter()
                .filter(|name| !observed.rules.contains_key(*name));
            push_fill(&mut steps, Kind::FirewallRule, FIREWALL, missing);
        }
        if let (POOL, Some(targets)) = (part.role.as_str(), &wanted.targets) {
            let obsolete = observed.targets.keys().filter(|name| !targets.contains(*name));
            push_drop(&mut steps, Kind::Target, obsolete);
            let missing = targets
                .iter()
                .filter(|name| !observed.targets.contains_key(*name));
            push_fill(&mut steps, Kind::Target, POOL, missing);
        }
    }
    steps.extend(
        gone()
            .filter(|(_, object)| object.kind != Kind::Listener)
            .map(delete),
    );
    steps
}

/// The steps that leave nothing but, where that is wanted, the addresses: children first.
pub(super) fn removal(observed: &Observed, keep_addresses: bool) -> Vec<Step> {
    let mut steps = Vec::new();
    let delete = |steps: &mut Vec<Step>, kind: Kind| {
        let of_kind = observed.parts.iter().filter(|(_, object)| object.kind == kind);
        steps.extend(of_kind.map(|(role, _)| Step::Delete { role: role.clone() }));
    };
    delete(&mut steps, Kind::Listener);
    delete(&mut steps, Kind::LoadBalancer);
    push_drop(&mut steps, Kind::Target, observed.targets.keys());
    delete(&mut steps, Kind::Pool);
    delete(&mut steps, Kind::HealthCheck);
    push_drop(&mut steps, Kind::FirewallRule, observed.rules.keys());
    delete(&mut steps, Kind::Firewall);
    if !keep_addresses {
        delete(&mut steps, Kind::Address);
    }
    steps
}

/// The attributes of a part that are to become others; empty values take away.
pub(super) fn changes(part: &Part, object: &Object, observed: &Observed) -> BTreeMap<String, String> {
    let differs = |(key, value): (&&'static str, &Value)| {
        let wanted = match value {
            Value::Text(text) => text.as_str(),
            // Not there yet: it will be, with another id.
            Value::IdOf(role) => observed.parts.get(role).map_or("?", |object| object.id.as_str()),
        };
        (object.attribute(key) != wanted).then(|| ((*key).to_owned(), wanted.to_owned()))
    };
    part.attributes.iter().filter_map(differs).collect()
}

fn push_drop<'a>(steps: &mut Vec<Step>, kind: Kind, names: impl Iterator<Item = &'a String>) {
    let names: Vec<String> = names.cloned().collect();
    if !names.is_empty() {
        steps.push(Step::Drop { kind, names });
    }
}

fn push_fill<'a>(
    steps: &mut Vec<Step>,
    kind: Kind,
    parent: &'static str,
    names: impl Iterator<Item = &'a String>,
) {
    let names: Vec<String> = names.cloned().collect();
    if !names.is_empty() {
        steps.push(Step::Fill { kind, parent, names });
    }
}
