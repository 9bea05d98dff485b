//! What the host may do at the API server: the one table of its rights.
//!
//! `cargo xtask gen` renders the roles of `deploy/manifests` from it, and the host asks at its start for what it needs
//! of it. A right that is not in here is not granted; one that no test uses fails the tests.

use std::fmt;

use crate::controllers::Controller;

/// What a right is for: it is needed only where that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The cluster's id is read, because none is configured.
    ClusterId,
    /// Events are written.
    Events,
    /// The API server says who may read `/metrics`.
    Reviews,
    /// There is leader election.
    Election,
    /// This controller runs.
    Controller(Controller),
}

/// What may be done with a resource, as RBAC names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in RBAC")]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Patch,
}

/// One right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// What it is for.
    pub purpose: Purpose,
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The resource, as `nodes`.
    pub resource: &'static str,
    /// Its subresource, as `status`; empty for the object itself.
    pub subresource: &'static str,
    /// The one object that it is limited to, if it is.
    pub name: Option<&'static str>,
    /// The one namespace that it is limited to, if it is.
    pub namespace: Option<&'static str>,
    /// What may be done.
    pub verbs: &'static [Verb],
    /// What for, for people: continues "to".
    pub why: &'static str,
}

/// Upstream's namespace for the Lease of leader election.
pub const LEASE_NAMESPACE: &str = "kube-system";
/// Upstream's name of that Lease.
pub const LEASE_NAME: &str = "cloud-controller-manager";

/// Of which all others differ.
const NOTHING: Right = Right {
    purpose: Purpose::Events,
    group: "",
    resource: "",
    subresource: "",
    name: None,
    namespace: None,
    verbs: &[],
    why: "",
};

/// Every right of the host, grouped by purpose.
pub const RIGHTS: &[Right] = &[
    Right {
        purpose: Purpose::ClusterId,
        resource: "namespaces",
        name: Some("kube-system"),
        verbs: &[Verb::Get],
        why: "know the cluster's id, which is the UID of namespace kube-system",
        ..NOTHING
    },
    Right {
        purpose: Purpose::Events,
        group: "events.k8s.io",
        resource: "events",
        verbs: &[Verb::Create, Verb::Patch],
        why: "tell what happened; what repeats is counted in the Event's series, which is a patch",
        ..NOTHING
    },
    Right {
        purpose: Purpose::Reviews,
        group: "authentication.k8s.io",
        resource: "tokenreviews",
        verbs: &[Verb::Create],
        why: "know who asks for /metrics",
        ..NOTHING
    },
    Right {
        purpose: Purpose::Reviews,
        group: "authorization.k8s.io",
        resource: "subjectaccessreviews",
        verbs: &[Verb::Create],
        why: "know whether whoever asks for /metrics may",
        ..NOTHING
    },
    Right {
        purpose: Purpose::Election,
        group: "coordination.k8s.io",
        resource: "leases",
        namespace: Some(LEASE_NAMESPACE),
        verbs: &[Verb::Create],
        why: "make the Lease of leader election; a right to create cannot be limited to a name",
        ..NOTHING
    },
    Right {
        purpose: Purpose::Election,
        group: "coordination.k8s.io",
        resource: "leases",
        name: Some(LEASE_NAME),
        namespace: Some(LEASE_NAMESPACE),
        verbs: &[Verb::Get, Verb::Watch, Verb::Patch],
        why: "lead, or see who does",
        ..NOTHING
    },
    Right {
        purpose: Purpose::Controller(Controller::CloudNode),
        resource: "nodes",
        verbs: &[Verb::Get, Verb::List, Verb::Watch, Verb::Patch],
        why: "initialise nodes: provider ID, labels, taint",
        ..NOTHING
    },
    Right {
        purpose: Purpose::Controller(Controller::CloudNode),
        resource: "nodes",
        subresource: "status",
        verbs: &[Verb::Patch],
        why: "write the addresses of nodes",
        ..NOTHING
    },
    Right {
        purpose: Purpose::Controller(Controller::ServiceLb),
        resource: "services",
        verbs: &[Verb::Get, Verb::List, Verb::Watch],
        why: "see which Services want a load balancer",
        ..NOTHING
    },
    Right {
        purpose: Purpose::Controller(Controller::ServiceLb),
        resource: "services",
        subresource: "status",
        verbs: &[Verb::Patch],
        why: "write finalizers and addresses of Services; a right to change Services themselves is not needed",
        ..NOTHING
    },
    Right {
        purpose: Purpose::Controller(Controller::ServiceLb),
        resource: "nodes",
        verbs: &[Verb::List, Verb::Watch],
        why: "see which nodes take traffic",
        ..NOTHING
    },
];

impl Purpose {
    /// The name of the role that grants what it needs. A role of kind Role if its rights are limited to a namespace,
    /// else a `ClusterRole`.
    pub fn role(self) -> String {
        match self {
            Self::ClusterId | Self::Events | Self::Reviews => "bulkhead:host".to_owned(),
            Self::Election => "bulkhead:leader-election".to_owned(),
            Self::Controller(controller) => format!("bulkhead:{controller}"),
        }
    }

    /// The file with that role, below `deploy/manifests`.
    pub fn manifest(self) -> String {
        match self {
            Self::ClusterId | Self::Events | Self::Reviews | Self::Election => "20-host.yaml".to_owned(),
            Self::Controller(controller) => format!("30-{controller}.yaml"),
        }
    }
}

impl Right {
    /// The resource with its subresource, as RBAC names it.
    pub fn resource_name(&self) -> String {
        match self.subresource {
            "" => self.resource.to_owned(),
            subresource => format!("{}/{subresource}", self.resource),
        }
    }

    /// What to tell an operator whose host lacks these verbs of this right, in `namespace` if it is limited to one:
    /// one line that says what cannot be done and where it is granted.
    pub fn lacking(&self, verbs: &[Verb], namespace: Option<&str>) -> String {
        let verbs: Vec<_> = verbs.iter().map(ToString::to_string).collect();
        let place = namespace.map_or_else(String::new, |namespace| format!(" in namespace {namespace}"));
        format!(
            "the host may not {} {}{place}, which it needs to {}: grant what role {} has in deploy/manifests/{}",
            verbs.join(", "),
            self.resource_name(),
            self.why,
            self.purpose.role(),
            self.purpose.manifest(),
        )
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Patch => "patch",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_controller_that_is_built_has_rights_and_no_other() {
        for controller in Controller::ALL {
            let has = RIGHTS
                .iter()
                .any(|right| right.purpose == Purpose::Controller(controller));
            assert_eq!(has, controller.is_built(), "{controller}");
        }
    }

    #[test]
    fn sa_token_the_host_needs_no_token_but_its_own_and_no_secret() {
        for right in RIGHTS {
            assert!(
                !["serviceaccounts", "secrets", "*"].contains(&right.resource),
                "{right:?}"
            );
        }
    }

    #[test]
    fn no_right_is_in_the_table_twice() {
        for (number, right) in RIGHTS.iter().enumerate() {
            for other in RIGHTS.iter().skip(number + 1) {
                let same = right.purpose == other.purpose
                    && right.group == other.group
                    && right.resource_name() == other.resource_name();
                assert!(
                    !same || !right.verbs.iter().any(|verb| other.verbs.contains(verb)),
                    "{right:?} and {other:?}"
                );
            }
        }
    }

    #[test]
    fn what_is_lacking_is_told_with_its_reason_and_where_it_is_granted() {
        let status = RIGHTS
            .iter()
            .find(|right| right.resource_name() == "nodes/status")
            .unwrap();
        assert_eq!(
            status.lacking(status.verbs, None),
            "the host may not patch nodes/status, which it needs to write the addresses of nodes: grant what role \
             bulkhead:cloud-node-controller has in deploy/manifests/30-cloud-node-controller.yaml"
        );
    }
}
