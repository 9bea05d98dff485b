//! Reads: they may be old, and a part of the cloud may be away.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Cloud;
use super::error::{CloudError, ErrorCode};
use super::kind::Kind;
use super::object::Object;
use super::op::{Account, Page, Query};
use super::store::Place;

impl Cloud {
    pub(super) fn account(&self) -> Account {
        let full = |(kind, most): (&Kind, &u32)| {
            let exist = self.store.count(*kind);
            // A table's quota says nothing about another table.
            let counts = *kind != Kind::Route;
            (counts && u32::try_from(exist).unwrap_or(u32::MAX) >= *most).then_some(*kind)
        };
        Account {
            used_up: self.settings.quotas.iter().filter_map(full).collect(),
            outages: self.settings.outages.clone(),
            lag: self.lag(),
        }
    }

    pub(super) fn list(&mut self, query: &Query, now: Duration) -> Result<Page, CloudError> {
        let wrong = || CloudError::new(ErrorCode::BadPageToken, "this cloud made no such page token");
        let place = Place::read(&query.page_token).ok_or_else(wrong)?;
        let most = match query.page_size {
            0 => self.settings.page_size,
            asked => asked.min(self.settings.page_size),
        };
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let age = self.settings.lag.at(self.random.fraction()).min(self.lag());
        let mut objects = self.store.list(query, &place, most, now.saturating_sub(age), now);
        let next = cut(&mut objects, most);
        let away: BTreeSet<&str> = self.settings.outages.iter().map(String::as_str).collect();
        objects.retain(|object| !away.contains(object.scope.as_str()));
        let scopes = self.scopes(query);
        Ok(Page {
            failed: scopes
                .iter()
                .filter(|scope| away.contains(scope.as_str()))
                .cloned()
                .collect(),
            scopes: scopes.into_iter().collect(),
            objects,
            next,
        })
    }

    /// Where what is asked for can be: instances in zones, everything else in the region.
    fn scopes(&self, query: &Query) -> BTreeSet<String> {
        let mut scopes = BTreeSet::new();
        if query.kinds.contains(&Kind::Instance) {
            // A zone that is away is one whether or not a machine is left in it.
            scopes.extend(
                self.settings
                    .outages
                    .iter()
                    .filter(|it| **it != self.settings.region)
                    .cloned(),
            );
            scopes.extend(self.store.zones().cloned());
        }
        if query.kinds.iter().any(|kind| *kind != Kind::Instance) || scopes.is_empty() {
            scopes.insert(self.settings.region.clone());
        }
        scopes
    }
}

/// Cuts a list that has one more than a page; the token of the next page.
pub(super) fn cut(objects: &mut Vec<Object>, most: usize) -> String {
    if objects.len() <= most {
        return String::new();
    }
    objects.truncate(most);
    let last = objects.last();
    last.map_or_else(String::new, |last| {
        let place = Place {
            kind: last.kind,
            id: last.id.clone(),
        };
        place.token()
    })
}
