//! Names of a Service's fields: the protocol's paths, as plugins name them in errors, in Kubernetes' spelling, as users
//! write them.

use std::collections::BTreeMap;

use super::spec::Spec;

/// The annotation by which a Service asks for addresses: one, or more with commas between them.
pub const REQUESTED_ADDRESSES: &str = "bulkhead.dev/load-balancer-ips";
/// Where a Service may ask for addresses, when nobody knows which Service it is.
const EITHER_REQUEST: &str = "annotation bulkhead.dev/load-balancer-ips (or .spec.loadBalancerIP)";

/// The addresses that annotations ask for; if there are any, no other place counts.
pub fn requested_by_annotation(annotations: &BTreeMap<String, String>) -> Vec<String> {
    comma_list(annotations.get(REQUESTED_ADDRESSES))
}

/// The words between the commas; none of no text.
pub fn comma_list(text: Option<&String>) -> Vec<String> {
    let parts = text.map_or("", String::as_str).split(',').map(str::trim);
    parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// `text` about the Service that `spec` is of: where it asks for addresses is named as the one place which counts.
pub fn in_service(text: &str, spec: &Spec) -> String {
    if spec.requested_addresses.is_empty() {
        return text.to_owned();
    }
    let place = if requested_by_annotation(&spec.annotations).is_empty() {
        ".spec.loadBalancerIP".to_owned()
    } else {
        format!("annotation {REQUESTED_ADDRESSES}")
    };
    text.replace(EITHER_REQUEST, &place)
}

/// Fields of the protocol's `Spec` and where a Service has them.
const SPELLINGS: &[(&str, &str)] = &[
    ("annotations", ".metadata.annotations"),
    ("labels", ".metadata.labels"),
    ("finalizers", ".metadata.finalizers"),
    ("class", ".spec.loadBalancerClass"),
    ("ports", ".spec.ports"),
    ("ip_families", ".spec.ipFamilies"),
    ("ip_family_policy", ".spec.ipFamilyPolicy"),
    ("cluster_ips", ".spec.clusterIPs"),
    ("external_ips", ".spec.externalIPs"),
    ("requested_addresses", EITHER_REQUEST),
    ("source_ranges", ".spec.loadBalancerSourceRanges"),
    ("session_affinity", ".spec.sessionAffinity"),
    (
        "session_affinity_timeout",
        ".spec.sessionAffinityConfig.clientIP.timeoutSeconds",
    ),
    ("external_traffic_policy", ".spec.externalTrafficPolicy"),
    ("internal_traffic_policy", ".spec.internalTrafficPolicy"),
    ("traffic_distribution", ".spec.trafficDistribution"),
    ("publish_not_ready_addresses", ".spec.publishNotReadyAddresses"),
    ("health_check", ".spec.healthCheckNodePort"),
    ("allocate_node_ports", ".spec.allocateLoadBalancerNodePorts"),
    ("current_status", ".status.loadBalancer"),
];

/// Fields of the protocol's `Port`.
const PORT_SPELLINGS: &[(&str, &str)] = &[
    ("node_port", "nodePort"),
    ("target_port", "targetPort"),
    ("app_protocol", "appProtocol"),
];

/// A field's path in the protocol, as `spec.ports[1].node_port`, in Kubernetes' spelling, as `.spec.ports[1].nodePort`.
/// Paths that are of no Service's field stay as they are.
pub fn in_kubernetes(path: &str) -> String {
    let Some(rest) = path.strip_prefix("spec.") else {
        return path.to_owned();
    };
    let (first, below) = rest
        .split_once('.')
        .map_or((rest, None), |(first, below)| (first, Some(below)));
    let (name, index) = first.find('[').map_or((first, ""), |at| first.split_at(at));
    let Some((_, spelling)) = SPELLINGS.iter().find(|(known, _)| *known == name) else {
        return path.to_owned();
    };
    match (name, below) {
        ("ports", Some(below)) => {
            let known = PORT_SPELLINGS.iter().find(|(known, _)| *known == below);
            format!(
                "{spelling}{index}.{}",
                known.map_or(below, |(_, spelling)| spelling)
            )
        }
        // What the host reads from an annotation, or makes from one number, has no places of its own.
        ("requested_addresses" | "health_check", _) => (*spelling).to_owned(),
        (_, Some(below)) => format!("{spelling}{index}.{below}"),
        (_, None) => format!("{spelling}{index}"),
    }
}

/// `text` with the path `path` in Kubernetes' spelling wherever it stands as a whole, not as a part of another.
pub fn translate(text: &str, path: &str) -> String {
    let name = in_kubernetes(path);
    let mut translated = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = Some(path)
        .filter(|path| !path.is_empty())
        .and_then(|path| rest.split_once(path))
    {
        let is_part = before.ends_with(is_of_a_path) || continues(after);
        translated.push_str(before);
        translated.push_str(if is_part { path } else { &name });
        rest = after;
    }
    translated + rest
}

const fn is_of_a_path(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '[')
}

/// Whether a path goes on in `after`; a full stop may also end a sentence.
fn continues(after: &str) -> bool {
    let after = after.strip_prefix('.').unwrap_or(after);
    after.starts_with(|c| is_of_a_path(c) && c != '.')
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("spec.session_affinity", ".spec.sessionAffinity")]
    #[case(
        "spec.session_affinity_timeout",
        ".spec.sessionAffinityConfig.clientIP.timeoutSeconds"
    )]
    #[case("spec.ports", ".spec.ports")]
    #[case("spec.ports[0].port", ".spec.ports[0].port")]
    #[case("spec.ports[12].node_port", ".spec.ports[12].nodePort")]
    #[case("spec.ports[1].app_protocol", ".spec.ports[1].appProtocol")]
    #[case(
        "spec.requested_addresses[0]",
        "annotation bulkhead.dev/load-balancer-ips (or .spec.loadBalancerIP)"
    )]
    #[case("spec.source_ranges[2]", ".spec.loadBalancerSourceRanges[2]")]
    #[case("spec.ip_family_policy", ".spec.ipFamilyPolicy")]
    #[case("spec.ip_families[1]", ".spec.ipFamilies[1]")]
    #[case("spec.cluster_ips", ".spec.clusterIPs")]
    #[case("spec.class", ".spec.loadBalancerClass")]
    #[case("spec.annotations", ".metadata.annotations")]
    #[case("spec.health_check.node_port", ".spec.healthCheckNodePort")]
    #[case("spec.external_traffic_policy", ".spec.externalTrafficPolicy")]
    #[case("spec.allocate_node_ports", ".spec.allocateLoadBalancerNodePorts")]
    #[case("spec.current_status.ingress[0]", ".status.loadBalancer.ingress[0]")]
    #[case("spec.something_new", "spec.something_new")]
    #[case("ref.mark", "ref.mark")]
    #[case("", "")]
    fn a_field_has_the_name_that_users_know(#[case] path: &str, #[case] expected: &str) {
        assert_eq!(in_kubernetes(path), expected);
    }

    #[rstest]
    #[case::alone("spec.ports: is empty", "spec.ports", ".spec.ports: is empty")]
    #[case::twice("spec.ports, spec.ports", "spec.ports", ".spec.ports, .spec.ports")]
    #[case::at_the_end_of_a_sentence("See spec.ports.", "spec.ports", "See .spec.ports.")]
    #[case::in_quotes(
        "`spec.source_ranges`",
        "spec.source_ranges",
        "`.spec.loadBalancerSourceRanges`"
    )]
    #[case::beginning_of_another("spec.ports[0].node_port", "spec.ports", "spec.ports[0].node_port")]
    #[case::of_a_longer_word(
        "spec.session_affinity_timeout",
        "spec.session_affinity",
        "spec.session_affinity_timeout"
    )]
    #[case::translated_already(".spec.ports: is empty", "spec.ports", ".spec.ports: is empty")]
    #[case::nothing("spec.ports", "", "spec.ports")]
    fn a_text_has_the_names_that_users_know(#[case] text: &str, #[case] path: &str, #[case] expected: &str) {
        assert_eq!(translate(text, path), expected);
    }

    #[rstest]
    #[case::annotation(Some("192.0.2.1"), 1, "annotation bulkhead.dev/load-balancer-ips: is taken")]
    #[case::annotation_without_a_word(Some(" , "), 1, ".spec.loadBalancerIP: is taken")]
    #[case::field(None, 1, ".spec.loadBalancerIP: is taken")]
    #[case::none(
        None,
        0,
        "annotation bulkhead.dev/load-balancer-ips (or .spec.loadBalancerIP): is taken"
    )]
    fn of_the_places_to_ask_for_an_address_the_one_that_counts_is_named(
        #[case] annotation: Option<&str>,
        #[case] requested: usize,
        #[case] expected: &str,
    ) {
        let mut spec = Spec {
            requested_addresses: vec!["192.0.2.1".to_owned(); requested],
            ..Spec::default()
        };
        spec.annotations
            .extend(annotation.map(|value| (REQUESTED_ADDRESSES.to_owned(), value.to_owned())));
        let text = format!("{}: is taken", in_kubernetes("spec.requested_addresses[0]"));
        assert_eq!(in_service(&text, &spec), expected);
    }
}
