//! An honest plugin on the SDK whose cloud needs many writes for one load balancer, one each 300 ms: `bulkhead-patient
//! --endpoint unix:///PATH --journal FILE --name NAME`.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::Result;
use bulkhead_plugin::{
    Call, CloudProvider, Description, PluginError, ServeOptions, logging, serve,
    v1::{self, Capability, Outcome, SchemeUse},
};
use bulkhead_scripted::{Change, Cloud, Journal, argument, boot_nanos, instance, provider_id};
use tokio::time::sleep;

const BETWEEN_WRITES: Duration = Duration::from_millis(300);
const WRITES: usize = 200;

struct Patient {
    name: String,
    cloud: Cloud,
}

impl CloudProvider for Patient {
    fn describe(&self) -> Description {
        Description::new("patient", env!("CARGO_PKG_VERSION"))
            .capability(Capability::Instances)
            .capability(Capability::Lb)
            .scheme("scripted", SchemeUse::Unique)
            .class("")
            .targets(v1::TargetKind::Instance)
    }

    async fn get_instances(
        &self,
        _call: &Call,
        request: v1::GetInstancesRequest,
    ) -> Result<v1::GetInstancesResponse, PluginError> {
        let results = request.nodes.into_iter().map(|node| v1::InstanceResult {
            result: Some(v1::instance_result::Result::Found(instance(&node.name))),
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
        nodes: Arc<v1::NodeSet>,
    ) -> Result<v1::EnsureLoadBalancerResponse, PluginError> {
        let reference = request.r#ref.unwrap_or_default();
        let bug = |error: anyhow::Error| PluginError::plugin_bug(format!("{error:#}"));
        let known = self.cloud.balancers().map_err(bug)?.remove(&reference.mark);
        if known.is_none() {
            call.writing()?;
            self.cloud
                .create(&self.name, boot_nanos(), &reference.mark)
                .map_err(bug)?;
        }
        let targets: Vec<_> = nodes.nodes.iter().map(|node| provider_id(&node.name)).collect();
        for write in 0..WRITES {
            if call.remaining().is_zero() {
                break;
            }
            call.writing()?;
            let change = Change::Configured {
                mark: reference.mark.clone(),
                ports: vec![format!("write {write}")],
                targets: targets.clone(),
            };
            self.cloud.write(&self.name, boot_nanos(), change).map_err(bug)?;
            sleep(BETWEEN_WRITES).await;
        }
        Ok(v1::EnsureLoadBalancerResponse {
            outcome: Outcome::InProgress.into(),
            spec_digest: request.spec_digest,
            progress: "the cloud takes its time".to_owned(),
            ..Default::default()
        })
    }

    async fn delete_load_balancer(
        &self,
        call: &Call,
        request: v1::DeleteLoadBalancerRequest,
    ) -> Result<v1::DeleteLoadBalancerResponse, PluginError> {
        call.writing()?;
        let mark = request.r#ref.unwrap_or_default().mark;
        let deleted = self
            .cloud
            .write(&self.name, boot_nanos(), Change::Deleted { mark });
        deleted.map_err(|error| PluginError::plugin_bug(format!("{error:#}")))?;
        Ok(v1::DeleteLoadBalancerResponse {
            outcome: Outcome::Done.into(),
            ..Default::default()
        })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    logging::init()?;
    let (name, journal) = (argument("--name")?, argument("--journal")?);
    let cloud = Cloud::new(Journal::at(Path::new(&journal)));
    serve(Patient { name, cloud }, ServeOptions::from_process()?).await?;
    Ok(())
}
