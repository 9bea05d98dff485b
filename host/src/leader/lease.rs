//! The Lease on the wire: three requests, and the record as client-go writes it.

use std::time::Duration;

use ::kube::Api;
use ::kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use bulkhead_core::clock::Timestamp;
use bulkhead_core::election::{Record, Version};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff;
use serde_json::json;
use tokio::time::timeout;

use super::Settings;
use crate::kube::error::ApiError;

/// Who writes, in `metadata.managedFields`.
const FIELD_MANAGER: &str = "bulkhead";

/// Requests for one Lease, each with a deadline.
#[derive(Clone)]
pub(super) struct LeaseClient {
    api: Api<Lease>,
    name: String,
    deadline: Duration,
    /// Taken for a record that says no duration.
    default_duration: Duration,
}

impl LeaseClient {
    pub(super) fn new(api: Api<Lease>, settings: &Settings) -> Self {
        Self {
            api,
            name: settings.name.clone(),
            deadline: settings.timing.request_timeout(),
            default_duration: settings.timing.lease_duration(),
        }
    }

    /// The Lease, read from the API server's store and no cache.
    pub(super) async fn read(&self) -> Result<Option<Version>, ApiError> {
        let lease = self.within(self.api.get_opt(&self.name)).await?;
        lease.map(|lease| self.version(lease)).transpose()
    }

    /// Makes the Lease; a conflict if there is one.
    pub(super) async fn create(&self, record: &Record) -> Result<Version, ApiError> {
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(spec(record)),
        };
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let made = self.within(self.api.create(&params, &lease)).await?;
        self.version(made)
    }

    /// Writes `record` if the Lease still has the resource version `guard`; a conflict otherwise, also where it
    /// is gone.
    pub(super) async fn update(&self, guard: &str, record: &Record) -> Result<Version, ApiError> {
        let patch = json!({ "metadata": { "resourceVersion": guard }, "spec": spec(record) });
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        match self
            .within(self.api.patch(&self.name, &params, &Patch::Merge(patch)))
            .await
        {
            Ok(made) => self.version(made),
            Err(ApiError::Gone) => Err(ApiError::Conflict),
            Err(error) => Err(error),
        }
    }

    async fn within<T>(&self, call: impl Future<Output = ::kube::Result<T>>) -> Result<T, ApiError> {
        match timeout(self.deadline, call).await {
            Ok(answer) => answer.map_err(ApiError::from),
            Err(_) => Err(ApiError::Deadline { after: self.deadline }),
        }
    }

    /// What a Lease object says.
    pub(super) fn version(&self, lease: Lease) -> Result<Version, ApiError> {
        let (Some(uid), Some(resource_version)) = (lease.metadata.uid, lease.metadata.resource_version)
        else {
            let why = "the API server answers a lease without uid or resourceVersion".to_owned();
            return Err(ApiError::Unreachable { why });
        };
        let spec = lease.spec.unwrap_or_default();
        let seconds = spec
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok());
        let record = Record {
            holder: spec.holder_identity.unwrap_or_default(),
            lease_duration: seconds.map_or(self.default_duration, Duration::from_secs),
            acquired: spec.acquire_time.as_ref().map(from_micro_time),
            renewed: spec.renew_time.as_ref().map(from_micro_time),
            transitions: spec.lease_transitions.unwrap_or(0).into(),
        };
        Ok(Version {
            uid,
            resource_version,
            record,
        })
    }
}

/// The record as a Lease holds it.
fn spec(record: &Record) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(record.holder.clone()),
        lease_duration_seconds: Some(i32::try_from(record.lease_duration.as_secs()).unwrap_or(i32::MAX)),
        acquire_time: record.acquired.and_then(to_micro_time),
        renew_time: record.renewed.and_then(to_micro_time),
        lease_transitions: Some(i32::try_from(record.transitions).unwrap_or(i32::MAX)),
        ..LeaseSpec::default()
    }
}

fn from_micro_time(time: &MicroTime) -> Timestamp {
    Timestamp(time.0.as_microsecond())
}

/// `None` beyond the year 9999, which a Lease cannot hold.
fn to_micro_time(time: Timestamp) -> Option<MicroTime> {
    jiff::Timestamp::from_microsecond(time.0).ok().map(MicroTime)
}
