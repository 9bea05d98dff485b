//! Writes: they see the truth, and are refused whole or done whole.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::error::{CloudError, ErrorCode};
use super::kind::Kind;
use super::object::{Object, State};
use super::op::{Change, New};
use super::{Cloud, address};

/// Most objects in one call.
const MAX_BATCH: usize = 1000;

/// The attribute that protects an object from deletion when it is `true`.
const PROTECTED: &str = "deletion_protection";

type Result<T> = std::result::Result<T, CloudError>;

fn refuse<T>(code: ErrorCode, message: impl Into<String>) -> Result<T> {
    Err(CloudError::new(code, message))
}

impl Cloud {
    pub(super) fn create(&mut self, new: &[New], now: Duration) -> Result<Vec<Object>> {
        let Some(kind) = new.first().map(|first| first.kind) else {
            return refuse(ErrorCode::Invalid, "nothing to create");
        };
        batch(kind, new.len())?;
        self.reachable()?;
        let mut unknown = BTreeSet::new();
        let mut names = BTreeSet::new();
        for one in new {
            if one.kind != kind || !names.insert((&one.parent, &one.name)) {
                return refuse(
                    ErrorCode::Invalid,
                    "the objects of one call are of one kind and differ by name",
                );
            }
            self.check_new(one, now, &mut unknown)?;
        }
        if !unknown.is_empty() {
            let error = CloudError::new(ErrorCode::Invalid, "there are no such instances");
            return Err(error.about(unknown));
        }
        self.check_quota(kind, new)?;
        let ready_at = now
            + self
                .settings
                .provisioning
                .get(&kind)
                .copied()
                .unwrap_or_default()
                .0;
        let mut made = Vec::with_capacity(new.len());
        for one in new {
            let mut attributes = one.attributes.clone();
            if kind == Kind::Address {
                let ip = self.choose_address(&attributes)?;
                attributes.insert("ip".to_owned(), ip.to_string());
            }
            let object = Object {
                id: String::new(),
                kind,
                name: one.name.clone(),
                parent: one.parent.clone(),
                scope: self.settings.region.clone(),
                tags: one.tags.clone(),
                attributes,
                revision: 0,
                state: State::Active,
            };
            made.push(self.store.put(object, now, ready_at)?);
        }
        Ok(made)
    }

    pub(super) fn update(&mut self, change: &Change, now: Duration) -> Result<Object> {
        self.reachable()?;
        let mut object = self.present(change.kind, &change.id, now)?;
        if change
            .revision
            .is_some_and(|revision| revision != object.revision)
        {
            return refuse(ErrorCode::Conflict, format!("{} has changed", object.id));
        }
        if object.state != State::Active {
            return refuse(
                ErrorCode::Busy,
                format!("{} is {}", object.id, object.state.name()),
            );
        }
        self.check_references(change.kind, &change.attributes, now)?;
        for (key, value) in &change.attributes {
            if value.is_empty() {
                object.attributes.remove(key);
            } else {
                object.attributes.insert(key.clone(), value.clone());
            }
        }
        self.store.put(object, now, now)
    }

    pub(super) fn delete(&mut self, kind: Kind, ids: &[String], now: Duration) -> Result<()> {
        batch(kind, ids.len())?;
        self.reachable()?;
        for id in ids {
            let object = self.present(kind, id, now)?;
            if object.state == State::Deleting {
                return refuse(ErrorCode::Busy, format!("{id} is being deleted"));
            }
            if object.attribute(PROTECTED) == "true" {
                return refuse(ErrorCode::Protected, format!("{id} is protected from deletion"));
            }
            let users = self.store.users(kind, id);
            if let Some(first) = users.first() {
                let text = format!("{id} is used by {first} and {} more", users.len() - 1);
                return Err(CloudError::new(ErrorCode::InUse, text).about(users));
            }
        }
        let takes = self.settings.deletion.get(&kind).copied().unwrap_or_default().0;
        for id in ids {
            if takes.is_zero() {
                self.store.remove(kind, id, now);
            } else {
                self.store.end(kind, id, now + takes);
            }
        }
        Ok(())
    }

    fn check_new(&self, new: &New, now: Duration, unknown: &mut BTreeSet<String>) -> Result<()> {
        if new.name.is_empty() || matches!(new.kind, Kind::Instance | Kind::RouteTable) {
            let text = format!(
                "a {} without a name, or one that only people make",
                new.kind.name()
            );
            return refuse(ErrorCode::Invalid, text);
        }
        if !new.kind.carries_tags() && !new.tags.is_empty() {
            return refuse(
                ErrorCode::Invalid,
                format!("a {} carries no tags", new.kind.name()),
            );
        }
        match (new.kind.parent(), &new.parent) {
            (None, None) => {}
            (Some(kind), Some(parent)) => {
                let parent = self.present(kind, parent, now)?;
                if parent.state != State::Active {
                    return refuse(
                        ErrorCode::Busy,
                        format!("{} is {}", parent.id, parent.state.name()),
                    );
                }
            }
            _ => {
                return refuse(
                    ErrorCode::Invalid,
                    format!("the parent of a {} is wrong", new.kind.name()),
                );
            }
        }
        if let Some(holder) = self.store.named(new.kind, new.parent.as_deref(), &new.name) {
            let error = CloudError::new(
                ErrorCode::AlreadyExists,
                format!("{} is called {}", holder, new.name),
            );
            return Err(error.about([holder.to_owned()]));
        }
        if new.kind == Kind::Target && self.store.get(Kind::Instance, &new.name, now).is_none() {
            unknown.insert(new.name.clone());
        }
        self.check_references(new.kind, &new.attributes, now)
    }

    /// What the attributes name must exist.
    fn check_references(
        &self,
        kind: Kind,
        attributes: &BTreeMap<String, String>,
        now: Duration,
    ) -> Result<()> {
        for (key, of) in kind.references() {
            if let Some(id) = attributes.get(*key).filter(|id| !id.is_empty()) {
                self.present(*of, id, now)?;
            }
        }
        Ok(())
    }

    fn check_quota(&self, kind: Kind, new: &[New]) -> Result<()> {
        let Some(&most) = self.settings.quotas.get(&kind) else {
            return Ok(());
        };
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        if kind == Kind::Route {
            let table = new
                .first()
                .and_then(|new| new.parent.as_deref())
                .unwrap_or_default();
            if self.store.parts(kind, table).count() >= most {
                return refuse(
                    ErrorCode::LimitReached,
                    format!("{table} holds {most} routes and takes no more"),
                );
            }
        } else if self.store.count(kind) + new.len() > most {
            let text = format!("the quota of {} is {most}", kind.name());
            return refuse(ErrorCode::QuotaExceeded, text);
        }
        Ok(())
    }

    /// The address that is asked for, or one that nobody has.
    fn choose_address(&mut self, attributes: &BTreeMap<String, String>) -> Result<IpAddr> {
        let taken: BTreeSet<IpAddr> = {
            let addresses = self.store.of_kind(Kind::Address);
            addresses
                .filter_map(|object| object.attribute("ip").parse().ok())
                .collect()
        };
        let ipv6 = attributes.get("family").is_some_and(|family| family == "ipv6");
        if let Some(asked) = attributes.get("ip").filter(|asked| !asked.is_empty()) {
            let ours = asked
                .parse()
                .ok()
                .filter(|ip: &IpAddr| ip.is_ipv6() == ipv6 && address::is_ours(*ip));
            return match ours {
                None => refuse(ErrorCode::Invalid, format!("{asked} is no address of this cloud")),
                Some(ip) if taken.contains(&ip) => refuse(ErrorCode::InUse, format!("{asked} is somebody's")),
                Some(ip) => Ok(ip),
            };
        }
        loop {
            self.addresses += 1;
            let next = address::numbered(self.addresses, ipv6);
            if !taken.contains(&next) {
                return Ok(next);
            }
        }
    }

    fn present(&self, kind: Kind, id: &str, now: Duration) -> Result<Object> {
        let missing = || {
            let error = CloudError::new(ErrorCode::NotFound, format!("there is no {} {id}", kind.name()));
            error.about([id.to_owned()])
        };
        self.store.get(kind, id, now).ok_or_else(missing)
    }

    /// Everything that is written is in the region.
    fn reachable(&self) -> Result<()> {
        let region = &self.settings.region;
        if self.settings.outages.contains(region) {
            return refuse(ErrorCode::Unavailable, format!("{region} is away"));
        }
        Ok(())
    }
}

fn batch(kind: Kind, size: usize) -> Result<()> {
    match size {
        1 => Ok(()),
        2..=MAX_BATCH if kind.comes_in_batches() => Ok(()),
        _ => refuse(
            ErrorCode::Invalid,
            format!("{size} objects of kind {} in one call", kind.name()),
        ),
    }
}
