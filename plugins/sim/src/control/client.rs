//! For tests: what a process of the simulation is told, and what it tells.

use std::collections::BTreeMap;
use std::path::Path;

use tonic::Status;
use tonic::transport::Channel;

use crate::cloud::{Distribution, Fault, Instance, Power, SettingsChange};
use crate::endpoint::{self, MAX_MESSAGE_BYTES};
use crate::v1;
use crate::v1::sim_control_client::SimControlClient;

/// A control at a socket. Cheap to clone; connects when it is first used, and again after the process came back.
#[derive(Clone, Debug)]
pub struct Client(SimControlClient<Channel>);

/// Why a control did not do what it was told.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The process says no, or is not there.
    #[error("{}: {}", .0.code(), .0.message())]
    Refused(#[from] Box<Status>),
    /// What was asked cannot be written down.
    #[error("cannot write the request: {0}")]
    Encode(#[from] serde_json::Error),
    /// The endpoint is none.
    #[error(transparent)]
    Endpoint(#[from] bulkhead_plugin::options::EndpointError),
}

impl From<Status> for ControlError {
    fn from(status: Status) -> Self {
        Self::Refused(Box::new(status))
    }
}

type Result<T> = std::result::Result<T, ControlError>;

impl Client {
    /// The control that listens at `path`, now or later.
    pub fn at(path: &Path) -> Self {
        let client = SimControlClient::new(endpoint::channel(path))
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        Self(client)
    }

    /// The control at `unix:///path.sock`.
    ///
    /// # Errors
    ///
    /// The endpoint is of another form.
    pub fn new(endpoint: &str) -> Result<Self> {
        Ok(Self::at(&bulkhead_plugin::options::socket_path(endpoint)?))
    }

    /// The generated client, for everything that has no function here.
    pub fn raw(&self) -> SimControlClient<Channel> {
        self.0.clone()
    }

    /// Sets a fault; its id.
    ///
    /// # Errors
    ///
    /// The fault cannot be, belongs to another process, or there is none.
    pub async fn add_fault(&self, fault: &Fault) -> Result<u64> {
        let ids = self.add_faults(std::slice::from_ref(fault)).await?;
        Ok(ids.first().copied().unwrap_or_default())
    }

    /// Sets faults; their ids.
    ///
    /// # Errors
    ///
    /// As [`add_fault`](Self::add_fault); those before the one that was refused are set.
    pub async fn add_faults(&self, faults: &[Fault]) -> Result<Vec<u64>> {
        let faults = serde_json::to_string(faults)?;
        Ok(self
            .raw()
            .add_faults(v1::AddFaultsRequest { faults })
            .await?
            .into_inner()
            .ids)
    }

    /// Takes a fault away; how often it happened.
    ///
    /// # Errors
    ///
    /// The process is not there.
    pub async fn clear_fault(&self, id: u64) -> Result<u64> {
        let gone = self
            .raw()
            .clear_faults(v1::ClearFaultsRequest { ids: vec![id] })
            .await?;
        Ok(gone.into_inner().faults.iter().map(|fault| fault.fired).sum())
    }

    /// Takes all faults of this process away.
    ///
    /// # Errors
    ///
    /// The process is not there.
    pub async fn clear_faults(&self) -> Result<()> {
        self.raw().clear_faults(v1::ClearFaultsRequest::default()).await?;
        Ok(())
    }

    /// Changes settings of the cloud.
    ///
    /// # Errors
    ///
    /// A setting cannot be, or the cloud is in another process.
    pub async fn configure(&self, change: &SettingsChange) -> Result<()> {
        let settings = serde_json::to_string(change)?;
        self.raw().configure(v1::ConfigureRequest { settings }).await?;
        Ok(())
    }

    /// Lets scopes be away, in place of those that were.
    ///
    /// # Errors
    ///
    /// As [`configure`](Self::configure).
    pub async fn set_outages(&self, scopes: &[&str]) -> Result<()> {
        let scopes = scopes.iter().map(|&scope| scope.to_owned()).collect();
        self.configure(&SettingsChange::default().outages(scopes)).await
    }

    /// Sets how long answers take.
    ///
    /// # Errors
    ///
    /// As [`configure`](Self::configure).
    pub async fn set_latency(&self, latency: Distribution) -> Result<()> {
        self.configure(&SettingsChange::default().latency(latency)).await
    }

    /// Puts an instance, in place of one with the same id.
    ///
    /// # Errors
    ///
    /// The cloud is full or in another process.
    pub async fn put_instance(&self, instance: &Instance) -> Result<()> {
        self.put_instances(std::slice::from_ref(instance)).await
    }

    /// Puts instances, in place of those with the same ids.
    ///
    /// # Errors
    ///
    /// As [`put_instance`](Self::put_instance).
    pub async fn put_instances(&self, instances: &[Instance]) -> Result<()> {
        let instances = serde_json::to_string(instances)?;
        self.raw()
            .put_instances(v1::PutInstancesRequest { instances })
            .await?;
        Ok(())
    }

    /// Lets an instance do something.
    ///
    /// # Errors
    ///
    /// There is no such instance, or the cloud is in another process.
    pub async fn set_power(&self, id: &str, power: Power) -> Result<()> {
        let request = v1::SetPowerRequest {
            id: id.to_owned(),
            power: power.name().to_owned(),
        };
        self.raw().set_power(request).await?;
        Ok(())
    }

    /// Removes objects, instances among them, as somebody beside the plugin would; how many there were.
    ///
    /// # Errors
    ///
    /// The cloud is in another process.
    pub async fn remove(&self, ids: &[&str]) -> Result<u32> {
        let ids = ids.iter().map(|&id| id.to_owned()).collect();
        let removed = self
            .raw()
            .remove_objects(v1::RemoveObjectsRequest { ids })
            .await?;
        Ok(removed.into_inner().removed)
    }

    /// Puts an object as somebody beside the plugin would; as the cloud has it now.
    ///
    /// # Errors
    ///
    /// The kind is none, the cloud is full or in another process.
    pub async fn put_object(&self, object: v1::Object) -> Result<v1::Object> {
        let request = v1::PutObjectRequest { object: Some(object) };
        Ok(self
            .raw()
            .put_object(request)
            .await?
            .into_inner()
            .object
            .unwrap_or_default())
    }

    /// How often each operation was called, as `create/load_balancer`.
    ///
    /// # Errors
    ///
    /// The cloud is in another process.
    pub async fn counts(&self) -> Result<BTreeMap<String, v1::Count>> {
        Ok(self
            .raw()
            .get_counts(v1::GetCountsRequest {})
            .await?
            .into_inner()
            .operations)
    }

    /// All calls and all writes since the cloud began.
    ///
    /// # Errors
    ///
    /// The cloud is in another process.
    pub async fn total(&self) -> Result<v1::Count> {
        Ok(self
            .raw()
            .get_counts(v1::GetCountsRequest {})
            .await?
            .into_inner()
            .total
            .unwrap_or_default())
    }

    /// The calls after the one with this number that are still on record.
    ///
    /// # Errors
    ///
    /// The cloud is in another process.
    pub async fn calls_after(&self, number: u64) -> Result<Vec<v1::CallRecord>> {
        self.listed(number, false).await
    }

    /// The writes after the call with this number that are still on record.
    ///
    /// # Errors
    ///
    /// The cloud is in another process.
    pub async fn writes_after(&self, number: u64) -> Result<Vec<v1::CallRecord>> {
        self.listed(number, true).await
    }

    async fn listed(&self, number: u64, writes_only: bool) -> Result<Vec<v1::CallRecord>> {
        let mut all: Vec<v1::CallRecord> = Vec::new();
        loop {
            let request = v1::ListCallsRequest {
                after: all.last().map_or(number, |last| last.number),
                limit: 0,
                writes_only,
            };
            let page = self.raw().list_calls(request).await?.into_inner().calls;
            if page.is_empty() {
                return Ok(all);
            }
            all.extend(page);
        }
    }

    /// Everything that exists, of these kinds (none: all), in the order of kinds and ids.
    ///
    /// # Errors
    ///
    /// A kind is none, or the cloud is in another process.
    pub async fn inventory(&self, kinds: &[&str]) -> Result<Vec<v1::Object>> {
        let mut request = v1::GetInventoryRequest {
            kinds: kinds.iter().map(|&kind| kind.to_owned()).collect(),
            ..v1::GetInventoryRequest::default()
        };
        let mut all = Vec::new();
        loop {
            let page = self.raw().get_inventory(request.clone()).await?.into_inner();
            all.extend(page.objects);
            if page.next_page_token.is_empty() {
                return Ok(all);
            }
            request.page_token = page.next_page_token;
        }
    }
}
