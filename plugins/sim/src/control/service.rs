//! The service: requests in, the cloud's and the faults' own functions behind.

use std::path::Path;
use std::time::Duration;

use bulkhead_plugin::cloud_config;
use serde::de::DeserializeOwned;
use tonic::{Request, Response, Status};

use crate::cloud::{
    Caller, Cloud, CloudError, Count, Fault, FaultState, Instance, Kind, Object, Power, Record,
    SettingsChange, State,
};
use crate::endpoint::MAX_MESSAGE_BYTES;
use crate::plugin::PluginFaults;
use crate::running::RunningCloud;
use crate::v1;
use crate::v1::sim_control_server::{SimControl, SimControlServer};

/// Most calls and objects in one answer.
const PAGE: usize = 1000;

/// What a process holds.
#[derive(Debug)]
pub(crate) struct ControlService {
    cloud: Option<RunningCloud>,
    faults: Option<PluginFaults>,
}

impl ControlService {
    pub(crate) fn new(cloud: Option<RunningCloud>, faults: Option<PluginFaults>) -> Self {
        Self { cloud, faults }
    }

    fn cloud<T>(&self, work: impl FnOnce(&mut Cloud, Duration) -> T) -> Result<T, Status> {
        let elsewhere =
            || Status::failed_precondition("the cloud is in another process: ask that one's control");
        Ok(self.cloud.as_ref().ok_or_else(elsewhere)?.with(work))
    }

    fn plugin(&self) -> Result<&PluginFaults, Status> {
        let none = || Status::failed_precondition("this process is no plugin: ask the plugin's control");
        self.faults.as_ref().ok_or_else(none)
    }

    fn add(&self, fault: Fault) -> Result<u64, Status> {
        let wrong = |error: crate::cloud::FaultError| Status::invalid_argument(error.to_string());
        if fault.is_of_plugin() {
            return self.plugin()?.add(fault).map_err(wrong);
        }
        self.cloud(|cloud, now| cloud.faults().add(fault, now))?
            .map_err(wrong)
    }
}

pub(crate) fn service(control: ControlService) -> SimControlServer<ControlService> {
    SimControlServer::new(control)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES)
}

/// A document in the form of scenario files.
fn document<T: DeserializeOwned>(field: &str, text: &str) -> Result<T, Status> {
    let name = Path::new(field).with_extension("yaml");
    cloud_config::parse(&name, text).map_err(|error| Status::invalid_argument(error.to_string()))
}

fn refused(error: &CloudError) -> Status {
    Status::resource_exhausted(error.to_string())
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl SimControl for ControlService {
    async fn add_faults(&self, request: Request<v1::AddFaultsRequest>) -> Answer<v1::AddFaultsResponse> {
        let faults: Vec<Fault> = document("faults", &request.get_ref().faults)?;
        for fault in &faults {
            fault
                .check()
                .map_err(|error| Status::invalid_argument(error.to_string()))?;
        }
        let ids: Result<Vec<u64>, Status> = faults.into_iter().map(|fault| self.add(fault)).collect();
        Ok(Response::new(v1::AddFaultsResponse { ids: ids? }))
    }

    async fn clear_faults(
        &self,
        request: Request<v1::ClearFaultsRequest>,
    ) -> Answer<v1::ClearFaultsResponse> {
        let ids = request.into_inner().ids;
        let mut gone = Vec::new();
        if let Some(faults) = &self.faults {
            gone.extend(faults.clear(&ids));
        }
        if let Some(cloud) = &self.cloud {
            gone.extend(cloud.with(|cloud, _| cloud.faults().clear(&ids)));
        }
        let faults = gone.into_iter().map(|state| fault_state(&state)).collect();
        Ok(Response::new(v1::ClearFaultsResponse { faults }))
    }

    async fn list_faults(&self, _request: Request<v1::ListFaultsRequest>) -> Answer<v1::ListFaultsResponse> {
        let mut all = Vec::new();
        if let Some(faults) = &self.faults {
            all.extend(faults.list());
        }
        if let Some(cloud) = &self.cloud {
            all.extend(cloud.with(|cloud, now| cloud.faults().list(now)));
        }
        let faults = all.into_iter().map(|state| fault_state(&state)).collect();
        Ok(Response::new(v1::ListFaultsResponse { faults }))
    }

    async fn configure(&self, request: Request<v1::ConfigureRequest>) -> Answer<v1::ConfigureResponse> {
        let change: SettingsChange = document("settings", &request.get_ref().settings)?;
        let settings = self.cloud(|cloud, _| cloud.configure(change).map(|()| cloud.settings().clone()))?;
        let settings = settings.map_err(Status::invalid_argument)?;
        let settings =
            serde_json::to_string(&settings).map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(v1::ConfigureResponse { settings }))
    }

    async fn put_instances(
        &self,
        request: Request<v1::PutInstancesRequest>,
    ) -> Answer<v1::PutInstancesResponse> {
        let instances: Vec<Instance> = document("instances", &request.get_ref().instances)?;
        if instances.iter().any(|instance| instance.id.is_empty()) {
            return Err(Status::invalid_argument("an instance without id"));
        }
        self.cloud(|cloud, now| {
            let mut put = instances
                .into_iter()
                .map(|instance| cloud.put(instance.object(), now).map(drop));
            put.try_for_each(|put| put.map_err(|error| refused(&error)))
        })??;
        Ok(Response::new(v1::PutInstancesResponse {}))
    }

    async fn set_power(&self, request: Request<v1::SetPowerRequest>) -> Answer<v1::SetPowerResponse> {
        let v1::SetPowerRequest { id, power } = request.into_inner();
        let wrong = || Status::invalid_argument(format!("{power:?} is no power state"));
        let power = Power::of_name(&power).ok_or_else(wrong)?;
        if self.cloud(|cloud, now| cloud.set_power(&id, power, now))? {
            Ok(Response::new(v1::SetPowerResponse {}))
        } else {
            Err(Status::not_found(format!("there is no instance {id:?}")))
        }
    }

    async fn put_object(&self, request: Request<v1::PutObjectRequest>) -> Answer<v1::PutObjectResponse> {
        let missing = || Status::invalid_argument("object is missing");
        let object = read_object(request.into_inner().object.ok_or_else(missing)?)?;
        let put = self.cloud(|cloud, now| cloud.put(object, now))?;
        let object = put.map_err(|error| refused(&error))?;
        Ok(Response::new(v1::PutObjectResponse {
            object: Some(wire_object(object)),
        }))
    }

    async fn remove_objects(
        &self,
        request: Request<v1::RemoveObjectsRequest>,
    ) -> Answer<v1::RemoveObjectsResponse> {
        let ids = request.into_inner().ids;
        let removed = self.cloud(|cloud, now| ids.iter().filter(|id| cloud.remove(id, now)).count())?;
        let removed = u32::try_from(removed).unwrap_or(u32::MAX);
        Ok(Response::new(v1::RemoveObjectsResponse { removed }))
    }

    async fn get_counts(&self, _request: Request<v1::GetCountsRequest>) -> Answer<v1::GetCountsResponse> {
        let answer = self.cloud(|cloud, _| {
            let records = cloud.records();
            let counts = records.counts().iter();
            v1::GetCountsResponse {
                operations: counts
                    .map(|(name, count)| (name.clone(), wire_count(*count)))
                    .collect(),
                total: Some(wire_count(records.total())),
            }
        })?;
        Ok(Response::new(answer))
    }

    async fn list_calls(&self, request: Request<v1::ListCallsRequest>) -> Answer<v1::ListCallsResponse> {
        let asked = request.into_inner();
        let limit = match usize::try_from(asked.limit) {
            Ok(limit) if (1..PAGE).contains(&limit) => limit,
            Ok(_) | Err(_) => PAGE,
        };
        let answer = self.cloud(|cloud, _| {
            let records = cloud.records();
            let wanted = records
                .after(asked.after)
                .filter(|record| record.wrote || !asked.writes_only);
            v1::ListCallsResponse {
                calls: wanted.take(limit).map(wire_record).collect(),
                forgotten: records.forgotten(),
            }
        })?;
        Ok(Response::new(answer))
    }

    async fn get_inventory(
        &self,
        request: Request<v1::GetInventoryRequest>,
    ) -> Answer<v1::GetInventoryResponse> {
        let asked = request.into_inner();
        let mut kinds = Vec::new();
        for name in &asked.kinds {
            kinds.push(kind(name)?);
        }
        if kinds.is_empty() {
            kinds.extend(Kind::ALL);
        }
        let size = match usize::try_from(asked.page_size) {
            Ok(size) if (1..PAGE).contains(&size) => size,
            Ok(_) | Err(_) => PAGE,
        };
        let page = self.cloud(|cloud, now| cloud.inventory_page(kinds, &asked.page_token, size, now))?;
        let (objects, next_page_token) =
            page.ok_or_else(|| Status::invalid_argument("no such page token"))?;
        Ok(Response::new(v1::GetInventoryResponse {
            objects: objects.into_iter().map(wire_object).collect(),
            next_page_token,
        }))
    }
}

fn kind(name: &str) -> Result<Kind, Status> {
    Kind::of_name(name).ok_or_else(|| Status::invalid_argument(format!("{name:?} is no kind of object")))
}

fn fault_state(state: &FaultState) -> v1::FaultState {
    v1::FaultState {
        id: state.id,
        fault: serde_json::to_string(&state.fault).unwrap_or_default(),
        fired: state.fired,
    }
}

fn wire_count(count: Count) -> v1::Count {
    v1::Count {
        calls: count.calls,
        writes: count.writes,
        failed: count.failed,
    }
}

fn wire_record(record: &Record) -> v1::CallRecord {
    let Caller {
        plugin,
        rpc,
        request_id,
        epoch,
    } = record.caller.clone();
    v1::CallRecord {
        number: record.number,
        boot_nanos: u64::try_from(record.at.as_nanos()).unwrap_or(u64::MAX),
        operation: record.operation.clone(),
        objects: record.objects.clone(),
        wrote: record.wrote,
        answer: record.answer.to_owned(),
        caller: Some(v1::Caller {
            plugin,
            rpc,
            request_id,
            epoch,
        }),
        latency: Some(bulkhead_plugin::time::duration(record.latency)),
    }
}

fn wire_object(object: Object) -> v1::Object {
    v1::Object {
        id: object.id,
        kind: object.kind.name().to_owned(),
        name: object.name,
        parent: object.parent.unwrap_or_default(),
        scope: object.scope,
        tags: object.tags,
        attributes: object.attributes,
        revision: object.revision,
        state: object.state.name().to_owned(),
    }
}

fn read_object(object: v1::Object) -> Result<Object, Status> {
    Ok(Object {
        kind: kind(&object.kind)?,
        id: object.id,
        name: object.name,
        parent: Some(object.parent).filter(|parent| !parent.is_empty()),
        scope: object.scope,
        tags: object.tags,
        attributes: object.attributes,
        revision: 0,
        state: State::Active,
    })
}
