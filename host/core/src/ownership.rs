//! Which nodes and Services are ours: computed from configuration each time, never remembered, and never decided by
//! who answers.

use crate::ids::ProviderId;
use crate::node::view::NodeView;
use crate::service::view::{CLEANUP_FINALIZER, ServiceView};
use crate::territory::Territory;

/// Whose a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeOwner {
    /// The plugin's, by its provider ID, or because it waits to be initialised and the plugin selects it.
    Ours,
    /// Another's: by its provider ID, or because it waits to be initialised and the plugin does not select it.
    Foreign,
    /// Its provider ID has no scheme at all.
    Unreadable,
    /// It has neither a provider ID nor the uninitialized taint: nobody ever handed it to a cloud.
    Nobody,
}

/// Whose `node` is, for the plugin that owns `territory`.
pub fn of_node(node: &NodeView, territory: &Territory) -> NodeOwner {
    match &node.provider_id {
        None if !node.is_uninitialized() => NodeOwner::Nobody,
        None if territory.selects(node) => NodeOwner::Ours,
        None => NodeOwner::Foreign,
        Some(text) => match ProviderId::parse(text.as_str()) {
            Ok(id) if territory.owns(&id) => NodeOwner::Ours,
            Ok(_) => NodeOwner::Foreign,
            Err(_) => NodeOwner::Unreadable,
        },
    }
}

/// Whose a Service's load balancer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceOwner<'a> {
    /// It asks for a load balancer of a class of ours; this finalizer keeps it.
    Wants(&'a str),
    /// It is to have none any more, and a finalizer that is surely ours is still on.
    Leaves,
    /// It carries upstream's finalizer and no longer says which class it had: ours only if the plugin knows it.
    MayLeave,
    /// Nothing of ours keeps it.
    Foreign,
}

/// Whose the load balancer of `service` is, for the plugin that owns `territory`.
pub fn of_service<'a>(service: &ServiceView, territory: &'a Territory) -> ServiceOwner<'a> {
    let class = service.spec.class.as_str();
    if service.is_load_balancer && territory.serves(class) {
        let finalizer = if class.is_empty() {
            CLEANUP_FINALIZER
        } else {
            territory.class_finalizer()
        };
        return if !service.is_deleting() {
            ServiceOwner::Wants(finalizer)
        } else if our_finalizers(service, territory).is_empty() {
            // Whatever holds it now, it is not us: never put a finalizer on what is being deleted.
            ServiceOwner::Foreign
        } else {
            ServiceOwner::Leaves
        };
    }
    if service.has_finalizer(territory.class_finalizer()) {
        ServiceOwner::Leaves
    } else if !service.is_load_balancer && service.has_finalizer(CLEANUP_FINALIZER) && territory.serves("") {
        ServiceOwner::MayLeave
    } else {
        ServiceOwner::Foreign
    }
}

/// The finalizers on `service` that may have been put there for the plugin that owns `territory`; never another
/// plugin's. A Service that was of two classes in turn has both.
pub fn our_finalizers<'a>(service: &ServiceView, territory: &'a Territory) -> Vec<&'a str> {
    let cleanup = territory.serves("").then_some(CLEANUP_FINALIZER);
    let candidates = [Some(territory.class_finalizer()), cleanup];
    let ours = candidates.into_iter().flatten();
    ours.filter(|finalizer| service.has_finalizer(finalizer))
        .collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{NodeOwner, ServiceOwner, of_node, of_service};
    use crate::fixtures::{CLASS_FINALIZER, node, service, territory};
    use crate::service::view::CLEANUP_FINALIZER;

    #[rstest]
    #[case::waits_for_its_cloud(None, true, NodeOwner::Ours)]
    #[case::already_untainted_is_nobodys(None, false, NodeOwner::Nobody)]
    #[case::our_scheme(Some("local://i-1"), false, NodeOwner::Ours)]
    #[case::unknown_prefix(Some("talos://hcloud/10.0.0.78"), true, NodeOwner::Foreign)]
    #[case::k3s_embedded(Some("k3s://name"), false, NodeOwner::Foreign)]
    #[case::missing_prefix(Some("6407101"), false, NodeOwner::Unreadable)]
    fn a_node_belongs_to_whom_its_provider_id_names(
        #[case] provider_id: Option<&str>,
        #[case] tainted: bool,
        #[case] owner: NodeOwner,
    ) {
        let mut node = node("n1");
        node.provider_id = provider_id.map(str::to_owned);
        if !tainted {
            node.taints.clear();
        }
        assert_eq!(of_node(&node, &territory()), owner);
    }

    #[rstest]
    #[case::classless(true, "", &[], false, ServiceOwner::Wants(CLEANUP_FINALIZER))]
    #[case::our_class(true, "ours", &[], false, ServiceOwner::Wants(CLASS_FINALIZER))]
    #[case::lb_class_of_another(true, "example.com/other", &[CLEANUP_FINALIZER], false, ServiceOwner::Foreign)]
    #[case::lb_class_of_another_deleted(true, "example.com/other", &[CLEANUP_FINALIZER], true, ServiceOwner::Foreign)]
    #[case::deleted(true, "", &[CLEANUP_FINALIZER], true, ServiceOwner::Leaves)]
    #[case::finalizer_readd(true, "", &["example.com/holds"], true, ServiceOwner::Foreign)]
    #[case::type_change(false, "", &[CLEANUP_FINALIZER], false, ServiceOwner::MayLeave)]
    #[case::of_another_plugins_class(true, "theirs", &["other.bulkhead.dev/load-balancer"], true, ServiceOwner::Foreign)]
    #[case::type_change_of_another_plugins_class(
        false, "", &["other.bulkhead.dev/load-balancer"], false, ServiceOwner::Foreign
    )]
    #[case::type_change_of_our_class(false, "", &[CLASS_FINALIZER], false, ServiceOwner::Leaves)]
    #[case::never_had_one(false, "", &[], false, ServiceOwner::Foreign)]
    fn a_service_belongs_to_its_class_and_finalizer(
        #[case] is_load_balancer: bool,
        #[case] class: &str,
        #[case] finalizers: &[&str],
        #[case] deleting: bool,
        #[case] owner: ServiceOwner<'static>,
    ) {
        let mut service = service("s");
        service.is_load_balancer = is_load_balancer;
        service.spec.class = class.to_owned();
        service.circumstances.finalizers = finalizers.iter().map(|&f| f.to_owned()).collect();
        service.circumstances.deleted_at = deleting.then_some(crate::clock::Timestamp(1));
        assert_eq!(of_service(&service, &territory()), owner);
    }
}
