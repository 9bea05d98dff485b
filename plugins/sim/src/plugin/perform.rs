//! Steps, one cloud write each. What was done is remembered in what was observed, so that it is reported also when a
//! later step fails.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_plugin::error::PluginError;
use bulkhead_plugin::{Result, v1};

use super::asking::{Asking, SOON, WriteError};
use super::observed::{self, Observed};
use super::steps::{Step, changes};
use super::wanted::{Part, Value};
use crate::cloud::{Change, CloudError, ErrorCode, Kind, New, Object, Op, Query};

/// Most objects in one write.
const BATCH: usize = 1000;

/// The Service that is worked for.
#[derive(Clone, Debug)]
pub(super) struct Work<'a> {
    pub(super) asking: Asking<'a>,
    pub(super) service: v1::ServiceKey,
    pub(super) observed: Observed,
    /// Instances that the cloud does not know and that therefore are no targets.
    pub(super) unknown: BTreeSet<String>,
    /// Whether anything was changed.
    pub(super) wrote: bool,
}

impl<'a> Work<'a> {
    pub(super) fn new(asking: Asking<'a>, service: v1::ServiceKey, observed: Observed) -> Self {
        Self {
            asking,
            service,
            observed,
            unknown: BTreeSet::new(),
            wrote: false,
        }
    }

    /// All steps, as far as slice and term go.
    pub(super) async fn perform(&mut self, steps: Vec<Step>) -> Result<()> {
        for step in steps {
            if self.asking.call.remaining().is_zero() {
                return Err(PluginError::operation_in_progress("the slice is used up", SOON));
            }
            match step {
                Step::Drop { kind, names } => self.drop_named(kind, &names).await?,
                Step::Delete { role } => self.delete(&role).await?,
                Step::Create(part) => self.create(&part).await?,
                Step::Update(part) => self.update(&part).await?,
                Step::Fill { kind, parent, names } => self.fill(kind, parent, names).await?,
            }
        }
        Ok(())
    }

    async fn write(&mut self, op: Op) -> std::result::Result<Vec<Object>, WriteError> {
        let written = self.asking.write(&self.service.uid, op).await;
        self.wrote |= written.is_ok();
        written
    }

    fn tags(&self, role: &str) -> BTreeMap<String, String> {
        let cluster = &self.asking.call.cluster().uid;
        BTreeMap::from([
            (
                observed::MARK.to_owned(),
                self.asking.call.mark(&self.service.uid, role),
            ),
            (observed::CLUSTER.to_owned(), cluster.clone()),
            (observed::SERVICE.to_owned(), self.service.uid.clone()),
            (
                observed::OWNER.to_owned(),
                format!("{}/{}", self.service.namespace, self.service.name),
            ),
            (observed::ROLE.to_owned(), role.to_owned()),
        ])
    }

    fn id(&self, role: &str) -> Result<String> {
        let part = self.observed.parts.get(role);
        part.map(|part| part.id.clone())
            .ok_or_else(|| PluginError::plugin_bug(format!("there is no part {role:?} yet")))
    }

    async fn create(&mut self, part: &Part) -> Result<()> {
        let mut attributes = BTreeMap::new();
        for (key, value) in &part.attributes {
            let value = match value {
                Value::Text(text) => text.clone(),
                Value::IdOf(role) => self.id(role)?,
            };
            if !value.is_empty() {
                attributes.insert((*key).to_owned(), value);
            }
        }
        let new = New {
            kind: part.kind,
            // The mark as a name too: where a lagging read hides what exists, the name is taken.
            name: self.asking.call.mark(&self.service.uid, &part.role),
            parent: part.parent.as_deref().map(|role| self.id(role)).transpose()?,
            tags: self.tags(&part.role),
            attributes,
        };
        let made = match self.write(Op::Create(vec![new])).await {
            Ok(made) => made.into_iter().next(),
            Err(WriteError::Cloud(error)) if error.code == ErrorCode::AlreadyExists => {
                Some(self.holder(part.kind, &error).await?)
            }
            Err(error) => return Err(refusal(part, error)),
        };
        let made =
            made.ok_or_else(|| PluginError::plugin_bug("the cloud made something and does not say what"))?;
        self.observed.parts.insert(part.role.clone(), made);
        Ok(())
    }

    /// Who has our name: ours, if it carries our mark.
    async fn holder(&self, kind: Kind, error: &CloudError) -> Result<Object> {
        let query = Query {
            kinds: vec![kind],
            ids: Some(error.names.iter().cloned().collect()),
            ..Query::default()
        };
        match self.asking.read(query).await?.objects.into_iter().next() {
            Some(object) if observed::is_marked(&object, &self.asking.call.cluster().uid) => Ok(object),
            Some(object) => {
                let text = format!("{} has the name of ours and carries no mark of ours", object.id);
                Err(PluginError::foreign_owner(text))
            }
            None => Err(PluginError::operation_in_progress(
                "the cloud does not show yet what it has",
                SOON,
            )),
        }
    }

    async fn update(&mut self, part: &Part) -> Result<()> {
        let Some(object) = self.observed.parts.get(&part.role) else {
            return self.create(part).await;
        };
        let change = Change {
            kind: part.kind,
            id: object.id.clone(),
            attributes: changes(part, object, &self.observed),
            revision: Some(object.revision),
        };
        if change.attributes.is_empty() {
            return Ok(());
        }
        let written = self
            .write(Op::Update(change))
            .await
            .map_err(|error| refusal(part, error))?;
        let changed = written.into_iter().next();
        self.observed
            .parts
            .extend(changed.map(|object| (part.role.clone(), object)));
        Ok(())
    }

    async fn delete(&mut self, role: &str) -> Result<()> {
        let Some(object) = self.observed.parts.get(role) else {
            return Ok(());
        };
        let (kind, ids) = (object.kind, vec![object.id.clone()]);
        match self.write(Op::Delete { kind, ids }).await {
            Ok(_) => {}
            Err(WriteError::Cloud(error)) if error.code == ErrorCode::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        self.observed.parts.remove(role);
        Ok(())
    }

    fn named(&mut self, kind: Kind) -> &mut BTreeMap<String, Object> {
        if kind == Kind::Target {
            &mut self.observed.targets
        } else {
            &mut self.observed.rules
        }
    }

    async fn drop_named(&mut self, kind: Kind, names: &[String]) -> Result<()> {
        for batch in names.chunks(BATCH) {
            let known = self.named(kind);
            let mut ids: Vec<String> = batch
                .iter()
                .filter_map(|name| known.get(name))
                .map(|it| it.id.clone())
                .collect();
            while !ids.is_empty() {
                let op = Op::Delete {
                    kind,
                    ids: ids.clone(),
                };
                match self.write(op).await {
                    Ok(_) => break,
                    // Somebody else was faster with one of them; each round has one less.
                    Err(WriteError::Cloud(error)) if error.code == ErrorCode::NotFound => {
                        let before = ids.len();
                        ids.retain(|id| !error.names.contains(id));
                        if ids.len() == before {
                            return Err(super::failure(error));
                        }
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            let known = self.named(kind);
            known.retain(|name, _| !batch.contains(name));
        }
        Ok(())
    }

    async fn fill(&mut self, kind: Kind, parent: &str, names: Vec<String>) -> Result<()> {
        let parent = self.id(parent)?;
        for batch in names.chunks(BATCH) {
            let made = self.fill_batch(kind, &parent, batch.to_vec()).await?;
            self.named(kind)
                .extend(made.into_iter().map(|object| (object.name.clone(), object)));
        }
        Ok(())
    }

    /// Makes what can be made: an instance that the cloud does not know costs the others one more call.
    async fn fill_batch(&mut self, kind: Kind, parent: &str, names: Vec<String>) -> Result<Vec<Object>> {
        let new = |name: &String| New {
            kind,
            name: name.clone(),
            parent: Some(parent.to_owned()),
            tags: BTreeMap::new(),
            attributes: BTreeMap::new(),
        };
        match self.write(Op::Create(names.iter().map(new).collect())).await {
            Ok(made) => Ok(made),
            Err(WriteError::Cloud(error)) if error.code == ErrorCode::Invalid && !error.names.is_empty() => {
                let (unknown, known): (Vec<_>, Vec<_>) =
                    names.into_iter().partition(|it| error.names.contains(it));
                self.unknown.extend(unknown);
                if known.is_empty() {
                    return Ok(Vec::new());
                }
                Ok(self.write(Op::Create(known.iter().map(new).collect())).await?)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// What a part could not become. An address that cannot be given is the user's to change.
fn refusal(part: &Part, error: WriteError) -> PluginError {
    match error {
        WriteError::Cloud(error) if part.kind == Kind::Address && error.code == ErrorCode::Invalid => {
            PluginError::invalid_spec("spec.requested_addresses", error.message)
        }
        WriteError::Cloud(error) => super::failure(error),
        WriteError::NotStarted(error) => error,
    }
}
