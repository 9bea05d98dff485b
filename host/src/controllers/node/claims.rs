//! Which node is about to get which provider ID: two nodes that are worked on at the same time must not both get the
//! one instance that a confused cloud answers for both, since a provider ID can never be taken back.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bulkhead_core::ids::{NodeName, ProviderId};

/// The claims of the nodes in work.
#[derive(Debug, Default)]
pub(super) struct Claims(Mutex<HashMap<ProviderId, NodeName>>);

/// One node's claim, until it is dropped: by then the store knows the node's provider ID, or the node got none.
#[derive(Debug)]
pub(super) struct Claim<'a> {
    claims: &'a Claims,
    provider_id: ProviderId,
}

impl Claims {
    /// Claims `provider_id` for `node`, or says which node has claimed it before.
    pub(super) fn claim(&self, provider_id: &ProviderId, node: &NodeName) -> Result<Claim<'_>, NodeName> {
        let mut claims = self.lock();
        if let Some(other) = claims.get(provider_id) {
            return Err(other.clone());
        }
        claims.insert(provider_id.clone(), node.clone());
        Ok(Claim {
            claims: self,
            provider_id: provider_id.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ProviderId, NodeName>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claims.lock().remove(&self.provider_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_instance_is_claimed_by_one_node_at_a_time() {
        let claims = Claims::default();
        let id = ProviderId::parse("local://i-1").unwrap();
        let (one, other) = (NodeName("n1".to_owned()), NodeName("n2".to_owned()));
        let claim = claims.claim(&id, &one).unwrap();
        assert_eq!(claims.claim(&id, &other).unwrap_err(), one);
        drop(claim);
        assert!(claims.claim(&id, &other).is_ok());
    }
}
