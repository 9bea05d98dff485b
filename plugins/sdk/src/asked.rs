//! What requests have in common: the cluster, the intent of those that write, the size of those that are batches.

use crate::describe::Batch;
use crate::v1;

/// A request that speaks for a cluster.
pub(crate) trait Asked {
    /// The cluster that asks.
    fn cluster(&self) -> Option<&v1::Cluster>;
    /// The intent; none in reads.
    fn intent(&self) -> Option<&v1::Intent> {
        None
    }
    /// Of what, and how many, in a batch.
    fn batch(&self) -> Option<(Batch, usize)> {
        None
    }
}

macro_rules! asked {
    ($request:ty $(, intent $intent:ident)? $(, batch $batch:ident $items:ident)?) => {
        impl Asked for $request {
            fn cluster(&self) -> Option<&v1::Cluster> {
                self.cluster.as_ref()
            }

            $(fn intent(&self) -> Option<&v1::Intent> {
                self.$intent.as_ref()
            })?

            $(fn batch(&self) -> Option<(Batch, usize)> {
                Some((Batch::$batch, self.$items.len()))
            })?
        }
    };
}

asked!(v1::GetInstancesRequest, batch Nodes nodes);
asked!(v1::ListInstancesRequest);
asked!(v1::PutNodeSetRequest);
asked!(v1::EnsureLoadBalancerRequest, intent intent);
asked!(v1::UpdateTargetsRequest, intent intent, batch LoadBalancers items);
asked!(v1::GetLoadBalancersRequest, batch LoadBalancers queries);
asked!(v1::DeleteLoadBalancerRequest, intent intent);
asked!(v1::ListRoutesRequest);
asked!(v1::ApplyRoutesRequest, intent intent, batch Operations operations);
asked!(v1::ListOwnedResourcesRequest);
asked!(v1::DeleteOwnedResourcesRequest, intent intent, batch Operations resources);
