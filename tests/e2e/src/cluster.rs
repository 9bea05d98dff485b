//! One API server with the shipped manifests applied, and what tests ask of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use bulkhead_harness::{
    ApiServer, AuditedRequest, HOST_USER, Host, HostOptions, UNINITIALIZED_TAINT, User, Workspace,
    eventually, node,
};
use k8s_openapi::api::{
    authorization::v1::SelfSubjectAccessReview,
    coordination::v1::Lease,
    core::v1::{LoadBalancerIngress, Node, Service},
    events::v1::Event,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::SOON;

/// A cluster in which the host has the rights of the manifests and no others.
#[derive(Debug)]
pub struct Cluster {
    server: ApiServer,
}

impl Cluster {
    /// Starts the API server, applies the manifests and waits until they are in force.
    ///
    /// # Errors
    ///
    /// If either fails.
    pub async fn start(workspace: &Workspace) -> Result<Self> {
        let cluster = Self::without_rights(workspace).await?;
        cluster.grant().await?;
        Ok(cluster)
    }

    /// Starts the API server only: the host has no rights yet.
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub async fn without_rights(workspace: &Workspace) -> Result<Self> {
        let server = ApiServer::start(workspace).await?;
        Ok(Self { server })
    }

    /// Applies the manifests, and waits until the authoriser has learned of them by the watches of its own.
    ///
    /// # Errors
    ///
    /// If one is refused, or they do not come into force soon.
    pub async fn grant(&self) -> Result<()> {
        self.server.apply_manifests().await?;
        // The last of each kind: it learns of one kind's objects in their order.
        self.host_may("patch", "", "services/status", None).await?;
        self.host_may("list", "", "services", None).await?;
        self.host_may("create", "coordination.k8s.io", "leases", Some("kube-system"))
            .await
    }

    /// Waits until the host may do something: `resource` with its subresource, as `nodes/status`.
    ///
    /// # Errors
    ///
    /// If it may not soon.
    pub async fn host_may(
        &self,
        verb: &str,
        group: &str,
        resource: &str,
        namespace: Option<&str>,
    ) -> Result<()> {
        eventually(
            SOON,
            &format!("the host's right to {verb} {resource}"),
            async || {
                let allowed = self.host_is_allowed(verb, group, resource, namespace).await?;
                ensure!(allowed, "it has none");
                Ok(())
            },
        )
        .await
    }

    /// Whether the host may do something now: `resource` with its subresource, as `nodes/status`.
    ///
    /// # Errors
    ///
    /// If the API server does not say.
    pub async fn host_is_allowed(
        &self,
        verb: &str,
        group: &str,
        resource: &str,
        namespace: Option<&str>,
    ) -> Result<bool> {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let review: SelfSubjectAccessReview = serde_json::from_value(
            json!({ "spec": { "resourceAttributes": {
            "verb": verb, "group": group, "resource": resource, "subresource": subresource, "namespace": namespace,
        } } }),
        )?;
        let reviews = Api::all(self.server.client(User::Host).await?);
        let answer = reviews.create(&PostParams::default(), &review).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }

    /// The API server.
    pub fn server(&self) -> &ApiServer {
        &self.server
    }

    /// A host with a plugin at this endpoint, as the user that the manifests give rights to.
    ///
    /// # Errors
    ///
    /// If its kubeconfig cannot be written.
    pub fn host(&self, plugin: &str) -> Result<HostOptions> {
        Ok(HostOptions::new(self.server.kubeconfig(User::Host)?).plugin(plugin))
    }

    /// A host whose plugins are in a configuration file.
    ///
    /// # Errors
    ///
    /// If its kubeconfig cannot be written.
    pub fn configured_host(&self, config: &Path) -> Result<HostOptions> {
        let options = HostOptions::new(self.server.kubeconfig(User::Host)?);
        Ok(options.argument("--config").argument(config))
    }

    /// A host whose plugins are those of a plugins directory.
    ///
    /// # Errors
    ///
    /// If its kubeconfig cannot be written.
    pub fn discovering_host(&self, root: &Path) -> Result<HostOptions> {
        let options = HostOptions::new(self.server.kubeconfig(User::Host)?);
        Ok(options.argument("--plugins-directory").argument(root))
    }

    /// All nodes.
    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.server.admin())
    }

    /// The Services of namespace `default`.
    pub fn services(&self) -> Api<Service> {
        Api::default_namespaced(self.server.admin())
    }

    /// The Leases of leader election.
    pub fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.server.admin(), "kube-system")
    }

    /// Registers a node as its kubelet does.
    ///
    /// # Errors
    ///
    /// If the server refuses.
    pub async fn add_node(&self, name: &str) -> Result<Node> {
        Ok(self.nodes().create(&PostParams::default(), &node(name)).await?)
    }

    /// Waits until a node is initialised.
    ///
    /// # Errors
    ///
    /// If it is not soon.
    pub async fn initialised(&self, name: &str) -> Result<Node> {
        eventually(SOON, &format!("node {name} to be initialised"), async || {
            let node = self.nodes().get(name).await?;
            ensure!(!is_uninitialised(&node), "it has the taint");
            Ok(node)
        })
        .await
    }

    /// Creates a Service.
    ///
    /// # Errors
    ///
    /// If the server refuses.
    pub async fn add_service(&self, service: &Service) -> Result<Service> {
        Ok(self.services().create(&PostParams::default(), service).await?)
    }

    /// Changes a Service by a JSON merge patch.
    ///
    /// # Errors
    ///
    /// If the server refuses.
    pub async fn patch_service(&self, name: &str, patch: Value) -> Result<Service> {
        Ok(self
            .services()
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?)
    }

    /// Asks for a Service's deletion; finalizers may hold it.
    ///
    /// # Errors
    ///
    /// If the server refuses.
    pub async fn delete_service(&self, name: &str) -> Result<()> {
        self.services().delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Waits until a Service is gone.
    ///
    /// # Errors
    ///
    /// If it is not soon.
    pub async fn service_gone(&self, name: &str) -> Result<()> {
        eventually(SOON, &format!("Service {name} to be gone"), async || {
            match self.services().get_opt(name).await? {
                None => Ok(()),
                Some(service) => anyhow::bail!("finalizers {:?}", service.finalizers()),
            }
        })
        .await
    }

    /// Deletes the Service `name` and then the node `name`.
    ///
    /// # Errors
    ///
    /// If the server refuses, or the Service is not gone soon.
    pub async fn remove(&self, name: &str) -> Result<()> {
        self.delete_service(name).await?;
        self.service_gone(name).await?;
        self.nodes().delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// The versions of the node `name` and the Service `name`.
    ///
    /// # Errors
    ///
    /// If one does not exist.
    pub async fn versions(&self, name: &str) -> Result<[Option<String>; 2]> {
        let node = self.nodes().get(name).await?;
        let service = self.services().get(name).await?;
        Ok([node.resource_version(), service.resource_version()])
    }

    /// Waits until a Service's status has one IP address, and returns it.
    ///
    /// # Errors
    ///
    /// If it has none soon.
    pub async fn address(&self, name: &str) -> Result<IpAddr> {
        self.address_within(name, SOON).await
    }

    /// As [`Cluster::address`], within another time.
    ///
    /// # Errors
    ///
    /// If it has none by then.
    pub async fn address_within(&self, name: &str, within: Duration) -> Result<IpAddr> {
        eventually(
            within,
            &format!("Service {name} to have an address"),
            async || {
                let service = self.services().get(name).await?;
                let ingress = ingress(&service);
                let ip = ingress.first().and_then(|first| first.ip.as_deref());
                Ok(ip
                    .with_context(|| format!("its ingress is {ingress:?}"))?
                    .parse()?)
            },
        )
        .await
    }

    /// Waits for an Event about an object, with this reason and a note that contains `note`.
    ///
    /// # Errors
    ///
    /// If there is none soon; with those that there are.
    pub async fn event(&self, kind: &str, name: &str, reason: &str, note: &str) -> Result<Event> {
        let what = format!("an Event {reason} on {kind} {name} with '{note}'");
        eventually(SOON, &what, async || {
            let events = self.events(kind, name).await?;
            let matches = |event: &&Event| {
                event.reason.as_deref() == Some(reason)
                    && event.note.as_deref().unwrap_or_default().contains(note)
            };
            let found = events.iter().find(matches).cloned();
            found.with_context(|| format!("{:?}", events.iter().map(summary).collect::<Vec<_>>()))
        })
        .await
    }

    /// The Events about an object so far.
    ///
    /// # Errors
    ///
    /// If they cannot be listed.
    pub async fn events(&self, kind: &str, name: &str) -> Result<Vec<Event>> {
        let events: Api<Event> = Api::default_namespaced(self.server.admin());
        let mut events = events.list(&ListParams::default()).await?.items;
        events.retain(|event| {
            let about = event.regarding.clone().unwrap_or_default();
            about.kind.as_deref() == Some(kind) && about.name.as_deref() == Some(name)
        });
        Ok(events)
    }

    /// The Warning Events so far, of whomever but the API server, which tells what it repairs: its allocator of cluster IPs
    /// learns of a Service that was just created as of one that has an address unknown to it.
    ///
    /// # Errors
    ///
    /// If they cannot be listed.
    pub async fn warnings(&self) -> Result<Vec<Event>> {
        let events: Api<Event> = Api::all(self.server.admin());
        let mut events = events.list(&ListParams::default()).await?.items;
        events.retain(|event| {
            let by = event.reporting_controller.as_deref().unwrap_or_default();
            event.type_.as_deref() == Some("Warning") && !by.ends_with("-repair-controller")
        });
        Ok(events)
    }

    /// The different warnings about each object, as `Node/NAME`. The cloud's request is no difference.
    ///
    /// # Errors
    ///
    /// If they cannot be listed.
    pub async fn warnings_by_object(&self) -> Result<BTreeMap<String, BTreeSet<String>>> {
        let mut notes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for event in self.warnings().await? {
            let about = event.regarding.unwrap_or_default();
            let object = format!(
                "{}/{}",
                about.kind.unwrap_or_default(),
                about.name.unwrap_or_default()
            );
            let note = event.note.unwrap_or_default();
            let text = note.split(", request call-").next().unwrap_or_default();
            let reason = event.reason.unwrap_or_default();
            notes
                .entry(object)
                .or_default()
                .insert(format!("{reason}: {text}"));
        }
        Ok(notes)
    }

    /// The changes that hosts asked for, without those of Leases and Events.
    ///
    /// # Errors
    ///
    /// If the audit log cannot be read.
    pub fn host_writes(&self) -> Result<Vec<AuditedRequest>> {
        let mut requests = self.server.audited_requests()?;
        requests.retain(|request| {
            request.user == HOST_USER
                && request.is_write()
                && ["nodes", "services"].contains(&request.resource.as_str())
        });
        Ok(requests)
    }
}

fn summary(event: &Event) -> String {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    format!(
        "{} {}: {}",
        text(&event.type_),
        text(&event.reason),
        text(&event.note)
    )
}

/// Whether a node waits to be initialised.
pub fn is_uninitialised(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.is_some_and(|taints| taints.iter().any(|taint| taint.key == UNINITIALIZED_TAINT))
}

/// What a Service's status says of its load balancer.
pub fn ingress(service: &Service) -> Vec<LoadBalancerIngress> {
    let status = service
        .status
        .as_ref()
        .and_then(|status| status.load_balancer.as_ref());
    status
        .and_then(|balancer| balancer.ingress.clone())
        .unwrap_or_default()
}

/// Whether upstream's finalizer is on a Service.
pub fn has_finalizer(service: &Service) -> bool {
    service
        .finalizers()
        .iter()
        .any(|finalizer| finalizer == "service.kubernetes.io/load-balancer-cleanup")
}

/// Whether a host says that it leads.
///
/// # Errors
///
/// If it does not answer, or shows no plugin.
pub async fn leads(host: &Host) -> Result<bool> {
    let answer = host.get("/readyz/plugins", None).await?;
    let page: Value = serde_json::from_str(&answer.body).with_context(|| answer.body.clone())?;
    let leads = page.pointer("/plugins/0/details/host_leads");
    leads
        .and_then(Value::as_bool)
        .with_context(|| json!(page).to_string())
}
