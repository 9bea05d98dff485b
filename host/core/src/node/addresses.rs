//! Which addresses a node is to show.

use std::net::IpAddr;

use crate::cloud::{AddressSource, Instance};
use crate::node::view::{AddressType, NodeAddress, NodeView};

/// Annotation in which a kubelet started with `--node-ip` says which addresses it wants: one IP, or two of different
/// families, comma separated.
pub const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";

/// Why an instance's addresses cannot be given to its node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The cloud gave none: a good list is never overwritten by an empty one.
    #[error("the cloud gives no addresses for the instance; the node keeps those it has")]
    Empty,
    /// The annotation does not parse.
    #[error(
        "annotation {PROVIDED_NODE_IP} is {value:?}, which is neither one IP address nor one of each family"
    )]
    Annotation {
        /// The annotation's value.
        value: String,
    },
    /// The cloud does not know an address that the kubelet wants.
    #[error(
        "the kubelet's --node-ip {wanted} is not among the addresses the cloud gives: {given}. Start the kubelet \
         with one of those, or give the instance that address"
    )]
    NotProvided {
        /// What the annotation asks for.
        wanted: IpAddr,
        /// What the cloud gives, comma separated.
        given: String,
    },
}

/// The addresses that `node` is to show, in order; `None`: those it has, since the provider has no say on them.
pub fn desired(node: &NodeView, instance: &Instance) -> Result<Option<Vec<NodeAddress>>, AddressError> {
    if instance.address_source == AddressSource::Node {
        return Ok(None);
    }
    if instance.addresses.is_empty() {
        return Err(AddressError::Empty);
    }
    let mut addresses = instance.addresses.clone();
    if !addresses.iter().any(is_hostname) {
        addresses.extend(
            node.addresses
                .iter()
                .filter(|address| is_hostname(address))
                .cloned(),
        );
    }
    if let Some(value) = node.annotations.get(PROVIDED_NODE_IP) {
        addresses = pinned(addresses, value)?;
    }
    Ok(Some(without_repeats(addresses)))
}

fn is_hostname(address: &NodeAddress) -> bool {
    address.kind == AddressType::Hostname
}

/// Puts the addresses that the kubelet asked for first; others of the types they were found under disappear.
fn pinned(addresses: Vec<NodeAddress>, annotation: &str) -> Result<Vec<NodeAddress>, AddressError> {
    let mut chosen = Vec::new();
    let mut pinned_types = Vec::new();
    for wanted in parse(annotation)? {
        let matching: Vec<NodeAddress> = addresses
            .iter()
            .filter(|address| address.address.parse() == Ok(wanted))
            .cloned()
            .collect();
        if matching.is_empty() {
            let given: Vec<&str> = addresses.iter().map(|address| address.address.as_str()).collect();
            return Err(AddressError::NotProvided {
                wanted,
                given: given.join(", "),
            });
        }
        pinned_types.extend(matching.iter().map(|address| address.kind));
        chosen.extend(matching);
    }
    chosen.extend(
        addresses
            .into_iter()
            .filter(|address| !pinned_types.contains(&address.kind)),
    );
    Ok(chosen)
}

/// One IP address, or two of different families of which neither is unspecified.
fn parse(annotation: &str) -> Result<Vec<IpAddr>, AddressError> {
    let error = || AddressError::Annotation {
        value: annotation.to_owned(),
    };
    let wanted: Vec<IpAddr> = annotation
        .split(',')
        .map(str::parse)
        .collect::<Result<_, _>>()
        .map_err(|_| error())?;
    match wanted.as_slice() {
        [_] => Ok(wanted),
        [one, other]
            if one.is_ipv4() != other.is_ipv4() && !one.is_unspecified() && !other.is_unspecified() =>
        {
            Ok(wanted)
        }
        _ => Err(error()),
    }
}

/// The API server refuses a list with the same type and address twice.
fn without_repeats(addresses: Vec<NodeAddress>) -> Vec<NodeAddress> {
    let mut kept: Vec<NodeAddress> = Vec::with_capacity(addresses.len());
    for address in addresses {
        if !kept.contains(&address) {
            kept.push(address);
        }
    }
    kept
}

#[cfg(test)]
mod tests;
