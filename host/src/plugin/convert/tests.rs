//! Tables of what is refused, and the law that nothing panics.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_core::clock::Timestamp;
use bulkhead_core::cloud::{Certainty, Failure, Freshness, InstanceAnswer, Outcome, Reason};
use bulkhead_core::ids::Mark;
use bulkhead_core::node::view::{AddressType, ConditionStatus, NodeAddress, NodeCondition, NodeView, Taint};
use bulkhead_core::service::spec::{
    Circumstances, IpFamily, IpFamilyPolicy, Port, Protocol, Spec, TrafficPolicy,
};
use bulkhead_core::service::view::{Ingress, IngressAddress, IpMode, PortStatus};
use bulkhead_proto::v1;
use proptest::prelude::*;
use prost::Message;
use rstest::rstest;

use super::*;
use crate::plugin::Aspect;
use crate::plugin::tests::fixtures::{self, balancer, service};

const ALL: [Aspect; 3] = [Aspect::Existence, Aspect::Power, Aspect::Metadata];

fn node() -> Arc<NodeView> {
    Arc::new(NodeView {
        created_at: Timestamp(-1_500_000),
        labels: [("topology.kubernetes.io/zone".to_owned(), "z1".to_owned())].into(),
        taints: vec![Taint {
            key: "k".to_owned(),
            value: None,
            effect: "NoSchedule".to_owned(),
            time_added: Some("2026-01-01T00:00:00Z".to_owned()),
        }],
        pod_cidrs: vec!["10.1.0.0/24".to_owned()],
        unschedulable: true,
        addresses: vec![NodeAddress {
            kind: AddressType::InternalIp,
            address: "10.0.0.1".to_owned(),
        }],
        conditions: vec![NodeCondition {
            kind: "Ready".to_owned(),
            status: ConditionStatus::Unknown,
        }],
        ..NodeView::clone(&fixtures::node("n1"))
    })
}

fn instance() -> v1::Instance {
    v1::Instance {
        provider_id: "x://1".to_owned(),
        instance_id: "1".to_owned(),
        name: "n1".to_owned(),
        addresses: vec![v1::Address {
            r#type: v1::AddressType::InternalIp.into(),
            address: "10.0.0.1".to_owned(),
        }],
        address_source: v1::AddressSource::Cloud.into(),
        power_state: v1::PowerState::Running.into(),
        ..v1::Instance::default()
    }
}

fn answer(result: v1::instance_result::Result, aspects: &[Aspect]) -> InstanceAnswer {
    let result = v1::InstanceResult {
        node_name: "n1".to_owned(),
        node_uid: "uid-n1".to_owned(),
        result: Some(result),
    };
    let response = v1::GetInstancesResponse {
        results: vec![result],
    };
    instances::answers(&[node()], aspects, response)
        .unwrap()
        .pop()
        .unwrap()
}

/// The field that the failure names.
fn field_of(failure: &Failure) -> &str {
    assert_eq!(
        failure.reason,
        Some(Reason::ProtocolViolation),
        "{}",
        failure.message
    );
    let rest = failure
        .message
        .strip_prefix("the plugin broke the protocol: field ")
        .unwrap();
    rest.split(' ').next().unwrap()
}

type Spoil<T> = fn(&mut T);

#[rstest]
#[case::no_provider_id(|it: &mut v1::Instance| it.provider_id = "i-1".to_owned(), "provider_id")]
#[case::empty_instance_id(|it: &mut v1::Instance| it.instance_id.clear(), "instance_id")]
#[case::long_instance_id(|it: &mut v1::Instance| it.instance_id = "x".repeat(513), "instance_id")]
#[case::long_name(|it: &mut v1::Instance| it.name = "x".repeat(254), "name")]
#[case::newline_in_a_zone(|it: &mut v1::Instance| it.zone = "a\nb".to_owned(), "zone")]
#[case::no_ip(|it: &mut v1::Instance| it.addresses[0].address = "10.0.0".to_owned(), "addresses[0].address")]
#[case::unspecified_address_type(|it: &mut v1::Instance| it.addresses[0].r#type = 0, "addresses[0].type")]
#[case::unknown_address_type(|it: &mut v1::Instance| it.addresses[0].r#type = 99, "addresses[0].type")]
#[case::endless_addresses(
    |it: &mut v1::Instance| it.addresses = vec![it.addresses[0].clone(); 257],
    "addresses"
)]
#[case::unspecified_source(|it: &mut v1::Instance| it.address_source = 0, "address_source")]
#[case::unspecified_power(|it: &mut v1::Instance| it.power_state = 0, "power_state")]
#[case::unknown_power(|it: &mut v1::Instance| it.power_state = -1, "power_state")]
#[case::endless_labels(
    |it: &mut v1::Instance| it.extra_labels = (0..129).map(|n| (n.to_string(), String::new())).collect(),
    "extra_labels"
)]
fn an_impossible_instance_is_refused(#[case] spoil: Spoil<v1::Instance>, #[case] field: &str) {
    let mut instance = instance();
    spoil(&mut instance);
    let InstanceAnswer::Failed(failure) = answer(v1::instance_result::Result::Found(instance), &ALL) else {
        panic!("it was taken");
    };
    assert_eq!(field_of(&failure), format!("results[0].found.{field}"));
}

#[test]
fn what_was_not_asked_may_be_unset() {
    let bare = v1::Instance {
        address_source: 0,
        power_state: 0,
        ..instance()
    };
    let answer = answer(v1::instance_result::Result::Found(bare), &[Aspect::Existence]);
    assert!(matches!(answer, InstanceAnswer::Found(found) if found.power.is_none()));
}

#[rstest]
#[case::direct(Some(v1::freshness::Kind::Direct(v1::freshness::Direct {})), Some(Freshness::Direct))]
#[case::cached(
    Some(v1::freshness::Kind::CachedAsOf(prost_types::Timestamp { seconds: -1, nanos: 500_000_000 })),
    Some(Freshness::CachedAsOf(Timestamp(-500_000)))
)]
#[case::unknown(Some(v1::freshness::Kind::Unknown(v1::freshness::Unknown {})), Some(Freshness::Unknown))]
#[case::impossible_time(
    Some(v1::freshness::Kind::CachedAsOf(prost_types::Timestamp { seconds: i64::MAX, nanos: 0 })),
    None
)]
#[case::unset(None, None)]
fn an_absence_without_freshness_is_none(
    #[case] kind: Option<v1::freshness::Kind>,
    #[case] freshness: Option<Freshness>,
) {
    let proof = v1::AbsenceProof {
        complete: true,
        scopes_checked: vec!["eu".to_owned()],
        freshness: Some(v1::Freshness { kind }),
    };
    match answer(v1::instance_result::Result::Absent(proof), &ALL) {
        InstanceAnswer::Absent(proof) => assert_eq!(Some(proof.freshness), freshness),
        InstanceAnswer::Failed(failure) => {
            assert_eq!(freshness, None);
            assert!(field_of(&failure).starts_with("results[0].absent.freshness"));
        }
        other @ (InstanceAnswer::Found(_)
        | InstanceAnswer::NotMine { .. }
        | InstanceAnswer::Pending { .. }) => {
            panic!("{other:?}")
        }
    }
}

fn ensured() -> v1::EnsureLoadBalancerResponse {
    v1::EnsureLoadBalancerResponse {
        outcome: v1::Outcome::Done.into(),
        spec_digest: "d".to_owned(),
        status: Some(v1::LoadBalancerStatus {
            ingress: vec![v1::Ingress {
                address: Some(v1::ingress::Address::Ip("192.0.2.1".to_owned())),
                ip_mode: v1::IpMode::Proxy.into(),
                ports: vec![v1::PortStatus {
                    port: 80,
                    protocol: v1::Protocol::Tcp.into(),
                    error: "TooMany".to_owned(),
                }],
            }],
        }),
        resources: vec![v1::Resource {
            id: "lb-1".to_owned(),
            mark: Some(v1::Mark {
                value: "bh-x".to_owned(),
                kind: v1::MarkKind::Tag.into(),
            }),
            origin: v1::ResourceOrigin::Created.into(),
            ..v1::Resource::default()
        }],
        target_problems: vec![v1::TargetProblem {
            node_name: "n1".to_owned(),
            ..v1::TargetProblem::default()
        }],
        port_problems: vec![v1::PortProblem {
            port: 80,
            protocol: v1::Protocol::Udp.into(),
            ..v1::PortProblem::default()
        }],
        retry_after: Some(prost_types::Duration { seconds: 5, nanos: 0 }),
        ..v1::EnsureLoadBalancerResponse::default()
    }
}

fn first_ingress(answer: &mut v1::EnsureLoadBalancerResponse) -> &mut v1::Ingress {
    &mut answer.status.as_mut().unwrap().ingress[0]
}

#[rstest]
#[case::unspecified_outcome(|it: &mut v1::EnsureLoadBalancerResponse| it.outcome = 0, "outcome")]
#[case::unknown_outcome(|it: &mut v1::EnsureLoadBalancerResponse| it.outcome = 77, "outcome")]
#[case::done_without_status(|it: &mut v1::EnsureLoadBalancerResponse| it.status = None, "status")]
#[case::blocked_without_reason(
    |it: &mut v1::EnsureLoadBalancerResponse| it.outcome = v1::Outcome::Blocked.into(), "error"
)]
#[case::protected_without_reason(
    |it: &mut v1::EnsureLoadBalancerResponse| it.outcome = v1::Outcome::Protected.into(), "error"
)]
#[case::no_address(
    |it: &mut v1::EnsureLoadBalancerResponse| first_ingress(it).address = None, "status.ingress[0].address"
)]
#[case::no_ip(
    |it: &mut v1::EnsureLoadBalancerResponse| {
        first_ingress(it).address = Some(v1::ingress::Address::Ip("lb.example.com".to_owned()));
    },
    "status.ingress[0].ip"
)]
#[case::an_ip_for_a_name(
    |it: &mut v1::EnsureLoadBalancerResponse| {
        first_ingress(it).address = Some(v1::ingress::Address::Hostname("192.0.2.1".to_owned()));
    },
    "status.ingress[0].hostname"
)]
#[case::no_port(
    |it: &mut v1::EnsureLoadBalancerResponse| first_ingress(it).ports[0].port = 0, "status.ingress[0].ports[0].port"
)]
#[case::a_port_that_is_too_large(
    |it: &mut v1::EnsureLoadBalancerResponse| first_ingress(it).ports[0].port = 65536,
    "status.ingress[0].ports[0].port"
)]
#[case::a_sentence_for_a_port_error(
    |it: &mut v1::EnsureLoadBalancerResponse| first_ingress(it).ports[0].error = "too many".to_owned(),
    "status.ingress[0].ports[0].error"
)]
#[case::unspecified_protocol(
    |it: &mut v1::EnsureLoadBalancerResponse| it.port_problems[0].protocol = 0, "port_problems[0].protocol"
)]
#[case::resource_without_id(
    |it: &mut v1::EnsureLoadBalancerResponse| it.resources[0].id.clear(), "resources[0].id"
)]
#[case::resource_of_unspecified_origin(
    |it: &mut v1::EnsureLoadBalancerResponse| it.resources[0].origin = 0, "resources[0].origin"
)]
#[case::negative_span(
    |it: &mut v1::EnsureLoadBalancerResponse| it.retry_after.as_mut().unwrap().seconds = -1, "retry_after"
)]
#[case::endless_problems(
    |it: &mut v1::EnsureLoadBalancerResponse| it.target_problems = vec![it.target_problems[0].clone(); 20_001],
    "target_problems"
)]
fn an_impossible_load_balancer_is_refused(
    #[case] spoil: Spoil<v1::EnsureLoadBalancerResponse>,
    #[case] field: &str,
) {
    let mut answer = ensured();
    spoil(&mut answer);
    assert_eq!(balancers::ensured(answer).unwrap_err().field, field);
}

#[test]
fn a_good_load_balancer_is_taken_whole() {
    let taken = balancers::ensured(ensured()).unwrap();
    let ports = vec![PortStatus {
        port: 80,
        protocol: Protocol::Tcp,
        error: Some("TooMany".to_owned()),
    }];
    let address = IngressAddress::Ip("192.0.2.1".parse().unwrap(), IpMode::Proxy);
    assert_eq!(taken.ingress, Some(vec![Ingress { address, ports }]));
    assert_eq!(
        taken.resources[0].mark.as_ref().unwrap().0,
        Mark("bh-x".to_owned())
    );
    assert_eq!((taken.target_problems.len(), taken.port_problems.len()), (1, 1));
}

#[test]
fn retry_after_is_clamped() {
    let mut answer = ensured();
    answer.outcome = v1::Outcome::InProgress.into();
    answer.retry_after.as_mut().unwrap().seconds = i64::MAX;
    let Outcome::InProgress { retry_after, .. } = balancers::ensured(answer).unwrap().outcome else {
        panic!("not in progress");
    };
    assert_eq!(retry_after, Some(Duration::from_secs(900)));
}

#[test]
fn an_error_in_a_body_says_what_and_where() {
    let failure = failure::from_body(v1::Error {
        reason: v1::ErrorReason::InvalidSpec.into(),
        certainty: v1::Certainty::NotApplied.into(),
        message: "cannot do that".to_owned(),
        cloud_code: "E1".to_owned(),
        cloud_request_id: "r1".to_owned(),
        field_violations: vec![v1::FieldViolation {
            field: "spec.ports[1].protocol".to_owned(),
            description: "SCTP is not served".to_owned(),
        }],
        retry_after: None,
    });
    assert_eq!(
        (failure.reason, failure.certainty),
        (Some(Reason::InvalidSpec), Certainty::NotApplied)
    );
    let expected = "cannot do that; .spec.ports[1].protocol: SCTP is not served (cloud code E1, request r1)";
    assert_eq!(failure.message, expected);
}

#[rstest]
#[case::in_the_text_and_as_a_field(
    "spec.session_affinity: ClientIP is not served",
    &["spec.session_affinity"],
    ".spec.sessionAffinity: ClientIP is not served"
)]
#[case::one_path_is_the_beginning_of_another(
    "spec.ports and spec.ports[0].node_port do not go together",
    &["spec.ports", "spec.ports[0].node_port"],
    ".spec.ports and .spec.ports[0].nodePort do not go together"
)]
#[case::of_no_service("ref.mark: is not ours", &["ref.mark"], "ref.mark: is not ours")]
#[case::not_named_as_a_field("spec.ports is a word", &[], "spec.ports is a word")]
fn fields_have_the_names_that_users_know(
    #[case] message: &str,
    #[case] fields: &[&str],
    #[case] expected: &str,
) {
    let violation = |field: &&str| v1::FieldViolation {
        field: (*field).to_owned(),
        description: "is wrong".to_owned(),
    };
    let failure = failure::from_body(v1::Error {
        reason: v1::ErrorReason::InvalidSpec.into(),
        message: message.to_owned(),
        field_violations: fields.iter().map(violation).collect(),
        ..v1::Error::default()
    });
    assert_eq!(failure.message, expected);
}

#[rstest]
#[case::unspecified_reason(0, Some(Reason::ProtocolViolation))]
#[case::reason_of_a_later_revision(9999, None)]
#[case::quota(v1::ErrorReason::QuotaExceeded.into(), Some(Reason::QuotaExceeded))]
fn an_error_in_a_body_has_its_reason(#[case] number: i32, #[case] reason: Option<Reason>) {
    let error = v1::Error {
        reason: number,
        ..v1::Error::default()
    };
    assert_eq!(failure::from_body(error).reason, reason);
}

#[test]
fn a_node_goes_over_the_wire_whole() {
    let wire = requests::node(&node());
    assert_eq!(wire.zone, "z1");
    assert_eq!(
        wire.created_at,
        Some(prost_types::Timestamp {
            seconds: -2,
            nanos: 500_000_000
        })
    );
    assert_eq!(wire.conditions[0].status(), v1::ConditionStatus::Unknown);
    assert_eq!(wire.addresses[0].r#type(), v1::AddressType::InternalIp);
    let taint = v1::Taint {
        key: "k".to_owned(),
        value: String::new(),
        effect: "NoSchedule".to_owned(),
    };
    assert_eq!(wire.taints, [taint]);
    assert!(wire.unschedulable && wire.provider_id.is_empty() && wire.pod_cidrs.len() == 1);
}

#[test]
fn a_spec_goes_over_the_wire_whole() {
    let spec = Spec {
        name: "web".to_owned(),
        ports: vec![Port {
            name: "http".to_owned(),
            protocol: Protocol::Sctp,
            port: 80,
            node_port: None,
            target_port: "web".to_owned(),
            app_protocol: String::new(),
        }],
        ip_families: vec![IpFamily::V6, IpFamily::V4],
        ip_family_policy: Some(IpFamilyPolicy::RequireDualStack),
        client_ip_affinity: Some(Duration::from_secs(10_800)),
        external_traffic_policy: TrafficPolicy::Local,
        health_check_node_port: Some(32_000),
        ..Spec::default()
    };
    let circumstances = Circumstances {
        resource_version: "9".to_owned(),
        ..Circumstances::default()
    };
    let wire = requests::spec(&spec, &circumstances, Some(&[]));
    let check = v1::HealthCheck {
        node_port: 32_000,
        path: "/healthz".to_owned(),
    };
    assert_eq!(wire.health_check, Some(check));
    assert_eq!(wire.ports[0].protocol(), v1::Protocol::Sctp);
    assert_eq!(
        (wire.ports[0].node_port, wire.allocate_node_ports),
        (None, Some(false))
    );
    assert_eq!(
        wire.ip_families().collect::<Vec<_>>(),
        [v1::IpFamily::Ipv6, v1::IpFamily::Ipv4]
    );
    assert_eq!(wire.ip_family_policy(), v1::IpFamilyPolicy::RequireDualStack);
    assert_eq!(wire.session_affinity(), v1::SessionAffinity::ClientIp);
    assert_eq!(wire.session_affinity_timeout.unwrap().seconds, 10_800);
    assert_eq!(wire.external_traffic_policy(), v1::TrafficPolicy::Local);
    assert_eq!(wire.internal_traffic_policy(), v1::TrafficPolicy::Cluster);
    assert_eq!(wire.resource_version, "9");
    assert!(wire.current_status.is_some());
}

/// A valid message with some bytes changed, dropped or added: mostly one that still decodes.
fn mutated<M: Message + Default + fmt::Debug>(message: &M) -> impl Strategy<Value = Option<M>> + use<M> {
    let bytes = message.encode_to_vec();
    let edits = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..6);
    edits.prop_map(move |edits| {
        let mut bytes = bytes.clone();
        for (index, byte, kind) in edits {
            let at = index.index(bytes.len().max(1));
            match kind {
                _ if bytes.is_empty() => bytes.push(byte),
                0 => bytes[at] = byte,
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, byte),
            }
        }
        M::decode(bytes.as_slice()).ok()
    })
}

fn found_and_more() -> v1::GetInstancesResponse {
    use v1::instance_result::Result as Wire;
    let proof = v1::AbsenceProof {
        complete: true,
        scopes_checked: vec!["eu".to_owned()],
        freshness: Some(v1::Freshness {
            kind: Some(v1::freshness::Kind::CachedAsOf(prost_types::Timestamp {
                seconds: 9,
                nanos: 9,
            })),
        }),
    };
    let error = v1::Error {
        reason: 3,
        retry_after: Some(prost_types::Duration::default()),
        ..v1::Error::default()
    };
    let pending = v1::Pending {
        retry_after: error.retry_after,
        reason: "soon".to_owned(),
    };
    let results = [
        Wire::Found(instance()),
        Wire::Absent(proof),
        Wire::Pending(pending),
        Wire::Error(error),
    ];
    let result = |result| v1::InstanceResult {
        node_name: "n1".to_owned(),
        node_uid: "uid-n1".to_owned(),
        result: Some(result),
    };
    v1::GetInstancesResponse {
        results: results.map(result).to_vec(),
    }
}

fn targets_answer() -> v1::UpdateTargetsResponse {
    let result = v1::UpdateTargetsResult {
        service: Some(service()),
        outcome: v1::Outcome::Done.into(),
        target_problems: ensured().target_problems,
        ..v1::UpdateTargetsResult::default()
    };
    v1::UpdateTargetsResponse {
        results: vec![result],
    }
}

fn observation() -> v1::GetLoadBalancersResponse {
    use v1::load_balancer_observation::{Drifted, Observation};
    let drifted = Drifted {
        fields: vec!["spec.ports".to_owned()],
    };
    let observation = v1::LoadBalancerObservation {
        service: Some(service()),
        observation: Some(Observation::Drifted(drifted)),
        ..v1::LoadBalancerObservation::default()
    };
    v1::GetLoadBalancersResponse {
        observations: vec![observation],
    }
}

fn described() -> v1::DescribeResponse {
    v1::DescribeResponse {
        provider_name: "x".to_owned(),
        instance_id: "i".to_owned(),
        protocol_revisions: vec![1],
        capabilities: vec![1, 3],
        schemes: vec![v1::Scheme {
            name: "x".to_owned(),
            r#use: 1,
            ..v1::Scheme::default()
        }],
        features: Some(v1::Features {
            targets: 1,
            ..v1::Features::default()
        }),
        limits: Some(v1::Limits {
            max_batch_nodes: Some(5),
            ..v1::Limits::default()
        }),
        label_keys: vec![v1::KeyUse {
            key: "a/".to_owned(),
            effect: 1,
        }],
        ..v1::DescribeResponse::default()
    }
}

proptest! {
    #[test]
    fn no_instances_answer_panics(response in mutated(&found_and_more())) {
        if let Some(response) = response {
            let asked = vec![node(); response.results.len()];
            drop(instances::answers(&asked, &ALL, response));
        }
    }

    #[test]
    fn no_load_balancer_answer_panics(
        ensured in mutated(&ensured()), updated in mutated(&targets_answer()), looked in mutated(&observation()),
    ) {
        drop(ensured.map(balancers::ensured));
        drop(updated.map(|answer| balancers::updated(&[&balancer()], answer)));
        drop(looked.map(|answer| balancers::looked(&balancer(), answer)));
    }

    #[test]
    fn no_description_panics(answer in mutated(&described())) {
        drop(answer.map(|answer| description::description(answer, None)));
    }

    #[test]
    fn no_status_panics(code in 0..20, message in ".{0,40}", details in proptest::collection::vec(any::<u8>(), 0..80)) {
        let status = tonic::Status::with_details(tonic::Code::from_i32(code), message, details.into());
        let failure = failure::from_status(&status);
        prop_assert!(failure.message.len() <= 1024);
    }

    #[test]
    fn what_is_taken_is_what_was_echoed(name in "n[12]", uid in "(uid-)?n[12]") {
        let result = v1::InstanceResult {
            node_name: name.clone(),
            node_uid: uid.clone(),
            result: Some(v1::instance_result::Result::Found(instance())),
        };
        let response = v1::GetInstancesResponse { results: vec![result] };
        let is_taken = instances::answers(&[node()], &ALL, response).is_ok();
        prop_assert_eq!(is_taken, name == "n1" && uid == "uid-n1");
    }
}

/// The untouched messages pass, so that the laws above are about more than refusals.
#[test]
fn the_messages_that_are_mutated_are_good() {
    assert!(instances::answers(&vec![node(); 4], &ALL, found_and_more()).is_ok());
    assert!(balancers::updated(&[&balancer()], targets_answer()).is_ok());
    assert!(balancers::looked(&balancer(), observation()).is_ok());
    assert!(description::description(described(), None).is_ok());
}
