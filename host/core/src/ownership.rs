//! Which nodes and Services are ours: computed from configuration each time, never remembered, and never decided by
//! who answers.

use crate::cloud::Description;
use crate::ids::ProviderId;
use crate::node::view::NodeView;
use crate::service::view::{CLASS_FINALIZER, CLEANUP_FINALIZER, ServiceView};

/// Whose a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeOwner {
    /// The plugin's, by the scheme of its provider ID, or because it waits to be initialised.
    Ours,
    /// Another provider's, by the scheme of its provider ID.
    Foreign,
    /// Its provider ID has no scheme at all.
    Unreadable,
    /// It has neither a provider ID nor the uninitialized taint: nobody ever handed it to a cloud.
    Nobody,
}

/// Whose `node` is, for the plugin described.
pub fn of_node(node: &NodeView, plugin: &Description) -> NodeOwner {
    match &node.provider_id {
        None if node.is_uninitialized() => NodeOwner::Ours,
        None => NodeOwner::Nobody,
        Some(text) => match ProviderId::parse(text.as_str()) {
            Ok(id) if plugin.schemes.iter().any(|scheme| scheme == id.scheme()) => NodeOwner::Ours,
            Ok(_) => NodeOwner::Foreign,
            Err(_) => NodeOwner::Unreadable,
        },
    }
}

/// Whose a Service's load balancer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceOwner {
    /// It asks for a load balancer of a class of ours; this finalizer keeps it.
    Wants(&'static str),
    /// It is to have none any more, but still carries this finalizer of ours.
    Leaves(&'static str),
    /// It is being deleted, and no finalizer of ours is on it any more: whatever holds it now, it is not us.
    Released,
    /// It carries upstream's finalizer and no longer says which class it had: ours only if the plugin knows it.
    MayLeave,
    /// Nothing of ours.
    Foreign,
}

/// Whose the load balancer of `service` is, for the plugin described.
pub fn of_service(service: &ServiceView, plugin: &Description) -> ServiceOwner {
    let serves = |class: &str| plugin.classes.iter().any(|served| served == class);
    if service.is_load_balancer {
        if !serves(&service.spec.class) {
            return ServiceOwner::Foreign;
        }
        let finalizer = if service.spec.class.is_empty() {
            CLEANUP_FINALIZER
        } else {
            CLASS_FINALIZER
        };
        return match (service.is_deleting(), service.has_finalizer(finalizer)) {
            (false, _) => ServiceOwner::Wants(finalizer),
            (true, true) => ServiceOwner::Leaves(finalizer),
            (true, false) => ServiceOwner::Released,
        };
    }
    if service.has_finalizer(CLASS_FINALIZER) {
        ServiceOwner::Leaves(CLASS_FINALIZER)
    } else if service.has_finalizer(CLEANUP_FINALIZER) && serves("") {
        ServiceOwner::MayLeave
    } else {
        ServiceOwner::Foreign
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{NodeOwner, ServiceOwner, of_node, of_service};
    use crate::fixtures::{description, node, service};
    use crate::service::view::{CLASS_FINALIZER, CLEANUP_FINALIZER};

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
        assert_eq!(of_node(&node, &description()), owner);
    }

    #[rstest]
    #[case::classless(true, "", &[], false, ServiceOwner::Wants(CLEANUP_FINALIZER))]
    #[case::our_class(true, "ours", &[], false, ServiceOwner::Wants(CLASS_FINALIZER))]
    #[case::lb_class_of_another(true, "example.com/other", &[CLEANUP_FINALIZER], false, ServiceOwner::Foreign)]
    #[case::lb_class_of_another_deleted(true, "example.com/other", &[CLEANUP_FINALIZER], true, ServiceOwner::Foreign)]
    #[case::deleted(true, "", &[CLEANUP_FINALIZER], true, ServiceOwner::Leaves(CLEANUP_FINALIZER))]
    #[case::finalizer_readd(true, "", &["example.com/holds"], true, ServiceOwner::Released)]
    #[case::type_change(false, "", &[CLEANUP_FINALIZER], false, ServiceOwner::MayLeave)]
    #[case::type_change_of_our_class(false, "", &[CLASS_FINALIZER], false, ServiceOwner::Leaves(CLASS_FINALIZER))]
    #[case::never_had_one(false, "", &[], false, ServiceOwner::Foreign)]
    fn a_service_belongs_to_its_class_and_finalizer(
        #[case] is_load_balancer: bool,
        #[case] class: &str,
        #[case] finalizers: &[&str],
        #[case] deleting: bool,
        #[case] owner: ServiceOwner,
    ) {
        let mut service = service("s");
        service.is_load_balancer = is_load_balancer;
        service.spec.class = class.to_owned();
        service.circumstances.finalizers = finalizers.iter().map(|&f| f.to_owned()).collect();
        service.circumstances.deleted_at = deleting.then_some(crate::clock::Timestamp(1));
        assert_eq!(of_service(&service, &description()), owner);
    }
}
