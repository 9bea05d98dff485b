//! A whole plugin: two instances, and load balancers that exist in memory only.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bulkhead_plugin::v1::{self, Capability, Outcome, SchemeUse, TargetKind, ingress, instance_result};
use bulkhead_plugin::{Call, CloudProvider, Description, PluginError, Result, ServeOptions, logging, serve};

/// Addresses of load balancers by mark.
#[derive(Default)]
struct Example {
    balancers: Mutex<BTreeMap<String, String>>,
}

impl CloudProvider for Example {
    fn describe(&self) -> Description {
        Description::new("example", env!("CARGO_PKG_VERSION"))
            .capability(Capability::Instances)
            .capability(Capability::Lb)
            .scheme("example", SchemeUse::Unique)
            .class("")
            .targets(TargetKind::Instance)
    }

    async fn get_instances(
        &self,
        _call: &Call,
        request: v1::GetInstancesRequest,
    ) -> Result<v1::GetInstancesResponse> {
        let results = request.nodes.into_iter().map(|node| v1::InstanceResult {
            result: Some(look_up(&node.name)),
            node_name: node.name,
            node_uid: node.uid,
        });
        Ok(v1::GetInstancesResponse {
            results: results.collect(),
        })
    }

    async fn ensure_load_balancer(
        &self,
        call: &Call,
        request: v1::EnsureLoadBalancerRequest,
        _nodes: Arc<v1::NodeSet>,
    ) -> Result<v1::EnsureLoadBalancerResponse> {
        let reference = request
            .r#ref
            .ok_or_else(|| PluginError::invalid_spec("ref", "is missing"))?;
        let mut balancers = self.balancers.lock().unwrap_or_else(PoisonError::into_inner);
        // First by mark: what exists is not made again.
        let next = format!("192.0.2.{}", balancers.len() + 1);
        if !balancers.contains_key(&reference.mark) {
            call.writing()?;
        }
        let address = balancers.entry(reference.mark).or_insert(next).clone();
        let ingress = v1::Ingress {
            address: Some(ingress::Address::Ip(address)),
            ..Default::default()
        };
        Ok(v1::EnsureLoadBalancerResponse {
            outcome: Outcome::Done.into(),
            spec_digest: request.spec_digest,
            status: Some(v1::LoadBalancerStatus {
                ingress: vec![ingress],
            }),
            ..Default::default()
        })
    }

    async fn delete_load_balancer(
        &self,
        call: &Call,
        request: v1::DeleteLoadBalancerRequest,
    ) -> Result<v1::DeleteLoadBalancerResponse> {
        let reference = request
            .r#ref
            .ok_or_else(|| PluginError::invalid_spec("ref", "is missing"))?;
        call.writing()?;
        self.balancers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&reference.mark);
        Ok(v1::DeleteLoadBalancerResponse {
            outcome: Outcome::Done.into(),
            ..Default::default()
        })
    }
}

/// Absence is a field of a good answer, with what it rests on.
fn look_up(name: &str) -> instance_result::Result {
    if !["one", "two"].contains(&name) {
        let freshness = v1::Freshness {
            kind: Some(v1::freshness::Kind::Direct(v1::freshness::Direct {})),
        };
        let scopes_checked = vec!["example".to_owned()];
        let proof = v1::AbsenceProof {
            complete: true,
            scopes_checked,
            freshness: Some(freshness),
        };
        return instance_result::Result::Absent(proof);
    }
    instance_result::Result::Found(v1::Instance {
        provider_id: format!("example://{name}"),
        instance_id: name.to_owned(),
        name: name.to_owned(),
        address_source: v1::AddressSource::Node.into(),
        power_state: v1::PowerState::Running.into(),
        ..Default::default()
    })
}

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    logging::init()?;
    serve(Example::default(), ServeOptions::from_process()?).await?;
    Ok(())
}
