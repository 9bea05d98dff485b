//! What requests have in common: the cluster, and the intent of those that write.

use crate::v1;

/// A request that speaks for a cluster.
pub(crate) trait Asked {
    /// The cluster that asks.
    fn cluster(&self) -> Option<&v1::Cluster>;
    /// The intent; none in reads.
    fn intent(&self) -> Option<&v1::Intent> {
        None
    }
}

macro_rules! reads {
    ($($request:ty),* $(,)?) => {$(
        impl Asked for $request {
            fn cluster(&self) -> Option<&v1::Cluster> {
                self.cluster.as_ref()
            }
        }
    )*};
}

macro_rules! writes {
    ($($request:ty),* $(,)?) => {$(
        impl Asked for $request {
            fn cluster(&self) -> Option<&v1::Cluster> {
                self.cluster.as_ref()
            }

            fn intent(&self) -> Option<&v1::Intent> {
                self.intent.as_ref()
            }
        }
    )*};
}

reads!(
    v1::GetInstancesRequest,
    v1::ListInstancesRequest,
    v1::PutNodeSetRequest,
    v1::GetLoadBalancersRequest,
    v1::ListRoutesRequest,
    v1::ListOwnedResourcesRequest,
);

writes!(
    v1::EnsureLoadBalancerRequest,
    v1::UpdateTargetsRequest,
    v1::DeleteLoadBalancerRequest,
    v1::ApplyRoutesRequest,
    v1::DeleteOwnedResourcesRequest,
);
