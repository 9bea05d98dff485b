//! An object's metadata.

use std::collections::BTreeMap;

use bulkhead_core::clock::Timestamp;
use serde::Deserialize;

use super::lenient;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Metadata {
    #[serde(deserialize_with = "lenient::value")]
    pub(super) name: String,
    #[serde(deserialize_with = "lenient::value")]
    pub(super) namespace: String,
    #[serde(deserialize_with = "lenient::value")]
    pub(super) uid: String,
    #[serde(deserialize_with = "lenient::value")]
    pub(super) resource_version: String,
    #[serde(deserialize_with = "lenient::value")]
    creation_timestamp: String,
    /// Its presence counts, whatever it says.
    deletion_timestamp: Deletion,
    #[serde(deserialize_with = "lenient::map")]
    pub(super) labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "lenient::map")]
    pub(super) annotations: BTreeMap<String, String>,
    #[serde(deserialize_with = "lenient::list")]
    pub(super) finalizers: Vec<String>,
}

/// A deletion timestamp: an odd one is still one.
#[derive(Default)]
struct Deletion(Option<Timestamp>);

impl<'de> Deserialize<'de> for Deletion {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(from)?;
        Ok(Self((!value.is_null()).then(|| {
            time(value.as_str().unwrap_or_default()).unwrap_or(UNKNOWN)
        })))
    }
}

/// What stands for a time that cannot be read.
const UNKNOWN: Timestamp = Timestamp(0);

fn time(text: &str) -> Option<Timestamp> {
    match text.parse::<jiff::Timestamp>() {
        Ok(time) => Some(Timestamp(time.as_microsecond())),
        Err(error) => {
            tracing::debug!(%error, text, "left out of an object: it is no time");
            None
        }
    }
}

impl Metadata {
    pub(super) fn created_at(&self) -> Option<Timestamp> {
        time(&self.creation_timestamp)
    }

    pub(super) const fn deleted_at(&self) -> Option<Timestamp> {
        self.deletion_timestamp.0
    }
}
