//! Fields that may hold what nobody expects. The functions are for serde's `deserialize_with`.

use std::any::type_name;
use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A value, or the default where there is none that can be understood.
pub(super) fn value<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(
    from: D,
) -> Result<T, D::Error> {
    Ok(understood(Value::deserialize(from)?).unwrap_or_default())
}

/// A list without the elements that cannot be understood.
pub(super) fn list<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<Vec<T>, D::Error> {
    let elements: Vec<Value> = value(from)?;
    Ok(elements.into_iter().filter_map(understood).collect())
}

/// A map without the entries whose values cannot be understood.
pub(super) fn map<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    let entries: BTreeMap<String, Value> = value(from)?;
    Ok(entries
        .into_iter()
        .filter_map(|(key, value)| Some((key, understood(value)?)))
        .collect())
}

fn understood<T: DeserializeOwned>(value: Value) -> Option<T> {
    if value.is_null() {
        return None;
    }
    match serde_json::from_value(value) {
        Ok(value) => Some(value),
        Err(error) => {
            tracing::debug!(%error, expected = type_name::<T>(), "left out of an object: it cannot be understood");
            None
        }
    }
}
