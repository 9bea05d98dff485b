//! Marks: the owner's name on a cloud resource.

use data_encoding::{BASE32_NOPAD, Encoding};
use sha2::{Digest, Sha256};

/// Length of a mark in bytes: `bh-` and 26 characters.
pub const LENGTH: usize = 29;

/// Characters of the encoded digest that a mark keeps.
const KEPT: usize = LENGTH - PREFIX.len();
const PREFIX: &str = "bh-";

/// The mark of one resource of one Service in one cluster: `bh-` and the first 26 characters of lower-case
/// base32 (RFC 4648) of sha256(cluster uid "/" service uid "/" role). `role` is empty for the load balancer itself.
///
/// ```
/// let mark = bulkhead_proto::mark::mark("c", "s", "");
/// assert_eq!(mark.len(), bulkhead_proto::mark::LENGTH);
/// assert_ne!(mark, bulkhead_proto::mark::mark("c", "s", "listener/tcp/80"));
/// ```
pub fn mark(cluster_uid: &str, service_uid: &str, role: &str) -> String {
    let digest = Sha256::digest(format!("{cluster_uid}/{service_uid}/{role}"));
    let mut mark = String::with_capacity(LENGTH);
    mark.push_str(PREFIX);
    mark.extend(base32(&digest).chars().take(KEPT));
    mark
}

fn base32(bytes: &[u8]) -> String {
    let encoding: &Encoding = &BASE32_NOPAD;
    encoding.encode(bytes).to_ascii_lowercase()
}

#[cfg(test)]
mod tests;
