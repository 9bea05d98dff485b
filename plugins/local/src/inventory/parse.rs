//! Reads the inventory's text (YAML, of which JSON is a part), strictly.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde_saphyr::Spanned;

use super::{Address, AddressKind, Instance, Inventory, Power};

#[cfg(test)]
mod tests;

/// IDs become part of provider IDs, names those of nodes: both fit Kubernetes' 253 bytes.
const LONGEST_NAME: usize = 253;

/// What is wrong with an inventory's text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Not YAML, an unknown or missing field, or a value of another type.
    #[error("{0}")]
    Syntax(String),
    /// A field's value is not one it may have.
    #[error("line {line}: {field} {value:?} {problem}")]
    Value {
        /// Line in the text, from 1.
        line: u64,
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Two instances share what is one machine's own.
    #[error("line {line}: {field} {value:?} is already that of the instance in line {first}")]
    Duplicate {
        /// Line of the second.
        line: u64,
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// Line of the first.
        first: u64,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    instances: Vec<InstanceText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct InstanceText {
    id: Spanned<String>,
    name: Spanned<String>,
    #[serde(default)]
    addresses: Vec<Spanned<AddressText>>,
    #[serde(default)]
    instance_type: String,
    #[serde(default)]
    zone: String,
    #[serde(default)]
    region: String,
    #[serde(default)]
    power: Power,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

/// `{type: ExternalIP, address: 192.0.2.1}`, or an IP address alone for an `InternalIP`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FullAddress {
    #[serde(rename = "type")]
    kind: AddressKind,
    address: String,
}

struct AddressText(FullAddress);

impl<'de> Deserialize<'de> for AddressText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = AddressText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an IP address or {type: ..., address: ...}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<AddressText, E> {
                Ok(AddressText(FullAddress {
                    kind: AddressKind::InternalIP,
                    address: text.to_owned(),
                }))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<AddressText, A::Error> {
                FullAddress::deserialize(MapAccessDeserializer::new(map)).map(AddressText)
            }
        }

        deserializer.deserialize_any(Either)
    }
}

/// Reads a whole inventory; one wrong entry refuses it all, so that a typing error never looks like
/// an instance that is gone.
pub fn parse(text: &str) -> Result<Inventory, ParseError> {
    let options = serde_saphyr::options! { with_snippet: false };
    let file: FileText = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| ParseError::Syntax(error.to_string()))?;
    let mut inventory = Inventory::default();
    let mut lines = Lines::default();
    for entry in file.instances {
        inventory.insert(instance(entry, &mut lines)?);
    }
    Ok(inventory)
}

/// Where each value that must be unique was first seen.
#[derive(Default)]
struct Lines {
    ids: BTreeMap<String, u64>,
    names: BTreeMap<String, u64>,
    ips: BTreeMap<IpAddr, (String, u64)>,
}

fn instance(entry: InstanceText, lines: &mut Lines) -> Result<Instance, ParseError> {
    let InstanceText {
        id,
        name,
        addresses,
        instance_type,
        zone,
        region,
        power,
        labels,
    } = entry;
    let (id_line, name_line) = (id.referenced.line(), name.referenced.line());
    let (id, name) = (id.value, name.value);
    if !is_id(&id) {
        let problem = "is not 1 to 253 of the characters A-Z a-z 0-9 . _ -";
        return Err(ParseError::Value {
            line: id_line,
            field: "id",
            value: id,
            problem,
        });
    }
    if !is_node_name(&name) {
        let problem = "is not a node name (letters, digits, '-' and '.', at most 253)";
        return Err(ParseError::Value {
            line: name_line,
            field: "name",
            value: name,
            problem,
        });
    }
    if let Some(first) = lines.ids.insert(id.clone(), id_line) {
        return Err(ParseError::Duplicate {
            line: id_line,
            field: "id",
            value: id,
            first,
        });
    }
    if let Some(first) = lines.names.insert(name.to_ascii_lowercase(), name_line) {
        return Err(ParseError::Duplicate {
            line: name_line,
            field: "name",
            value: name,
            first,
        });
    }
    let mut known: Vec<Address> = Vec::new();
    for text in addresses {
        let line = text.referenced.line();
        let address = address(text.value.0, line)?;
        claim_ip(&address, &id, line, lines)?;
        if known.contains(&address) {
            let problem = "is listed twice";
            return Err(ParseError::Value {
                line,
                field: "address",
                value: address.value,
                problem,
            });
        }
        known.push(address);
    }
    Ok(Instance {
        id,
        name,
        addresses: known,
        instance_type,
        zone,
        region,
        power,
        labels,
    })
}

fn address(text: FullAddress, line: u64) -> Result<Address, ParseError> {
    let FullAddress { kind, address } = text;
    let value = if kind.is_ip() {
        let problem = "is not an IP address";
        let ip: IpAddr = address.parse().map_err(|_| ParseError::Value {
            line,
            field: "address",
            value: address,
            problem,
        })?;
        ip.to_string()
    } else if is_node_name(&address) {
        address
    } else {
        let problem = "is not a DNS name";
        return Err(ParseError::Value {
            line,
            field: "address",
            value: address,
            problem,
        });
    };
    Ok(Address { kind, value })
}

/// An IP address is one instance's, under as many types as it likes.
fn claim_ip(address: &Address, id: &str, line: u64, lines: &mut Lines) -> Result<(), ParseError> {
    let Ok(ip) = address.value.parse::<IpAddr>() else {
        return Ok(());
    };
    match lines.ips.get(&ip) {
        Some((owner, first)) if owner != id => {
            let value = address.value.clone();
            Err(ParseError::Duplicate {
                line,
                field: "address",
                value,
                first: *first,
            })
        }
        Some(_) => Ok(()),
        None => {
            lines.ips.insert(ip, (id.to_owned(), line));
            Ok(())
        }
    }
}

/// Whether a text may be an instance ID.
pub(super) fn is_id(text: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=LONGEST_NAME).contains(&text.len()) && text.bytes().all(legal)
}

/// A DNS name, in upper case too: machines are often named so where their nodes are not.
fn is_node_name(text: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    text.len() <= LONGEST_NAME && text.split('.').all(label)
}
