use rstest::rstest;

use super::*;
use crate::status::{API_VERSION, Described, HostProcess, KIND};

fn gate(capability: &str, state: &str, opens_in_seconds: Option<u64>) -> GateStatus {
    let why = (state != OPEN).then_some("unreached");
    GateStatus {
        capability: capability.into(),
        state: state.into(),
        why: why.map(Into::into),
        message: why.map(|_| "its calls come to nothing".into()),
        opens_in_seconds,
    }
}

fn well() -> PluginStatus {
    PluginStatus {
        name: "local".into(),
        endpoint: "unix:///run/local.sock".into(),
        state: "active".into(),
        state_seconds: 7265,
        message: String::new(),
        is_leaving: false,
        sessions: 1,
        description: Some(Described {
            provider: "local".into(),
            version: "1.2.0".into(),
            instance: "a".into(),
        }),
        gates: vec![gate("instances", OPEN, None), gate("lb", OPEN, None)],
        is_unsound: false,
        calls_in_flight: 0,
        calls_last_minute: 34,
        last_error: None,
    }
}

fn ill() -> PluginStatus {
    PluginStatus {
        name: "east".into(),
        state: "degraded".into(),
        state_seconds: 59,
        message: "its API answers nothing".into(),
        is_leaving: true,
        gates: vec![gate("instances", "trial", None), gate("lb", "shut", Some(20))],
        calls_in_flight: 3,
        last_error: Some(ErrorStatus {
            seconds_ago: 61,
            verb: "EnsureLoadBalancer".into(),
            result: "cloud_unavailable".into(),
            message: "503 from the cloud".into(),
        }),
        ..well()
    }
}

fn gone() -> PluginStatus {
    PluginStatus {
        name: "w".into(),
        state: "gone".into(),
        state_seconds: 200_000,
        description: None,
        gates: Vec::new(),
        calls_last_minute: 0,
        ..well()
    }
}

fn leads() -> LeadershipStatus {
    LeadershipStatus {
        state: LeadershipState::Leading,
        lease: Some("kube-system/ccm".into()),
        identity: Some("me".into()),
        holder: Some("me".into()),
        renewed_seconds_ago: Some(1),
    }
}

fn status(plugins: Vec<PluginStatus>, queues: Vec<QueueStatus>) -> HostStatus {
    HostStatus {
        api_version: API_VERSION.into(),
        kind: KIND.into(),
        time: "2026-01-01T00:00:00Z".into(),
        host: HostProcess {
            version: "0.1.0".into(),
            pid: 7,
            up_seconds: 90_000,
        },
        leadership: leads(),
        plugins,
        queues,
    }
}

#[test]
fn everything_that_there_is_stands_in_columns() {
    let queue = QueueStatus {
        plugin: "local".into(),
        name: "service".into(),
        due: 12,
        delayed: 1,
        in_work: 8,
        longest_seconds: 61,
    };
    assert_eq!(
        render(&status(vec![well(), ill(), gone()], vec![queue])),
        "\
Host: bulkhead 0.1.0, process 7, up 1d1h
Leadership: leading by Lease kube-system/ccm, renewed 1s ago

PLUGIN  STATE               FOR   PROVIDER  VERSION  GATES                     IN FLIGHT  CALLS/MIN
local   active              2h1m  local     1.2.0    open                      0          34
east    degraded (leaving)  59s   local     1.2.0    instances trial, lb shut  3          34
w       gone                2d7h  -         -        -                         0          0

PLUGIN  WHY IN ITS STATE
east    its API answers nothing

PLUGIN  GATE       STATE  OPENS IN  WHY
east    instances  trial  -         its calls come to nothing
east    lb         shut   20s       its calls come to nothing

PLUGIN  LAST ERROR  CALL                RESULT             MESSAGE
east    1m1s ago    EnsureLoadBalancer  cloud_unavailable  503 from the cloud

PLUGIN  QUEUE    DUE  DELAYED  IN WORK  LONGEST
local   service  12   1        8        1m1s
"
    );
}

#[test]
fn what_there_is_not_has_no_section() {
    let text = render(&status(Vec::new(), Vec::new()));
    assert_eq!(text.lines().count(), 2, "{text}");
}

#[rstest]
#[case::starting(LeadershipState::Starting, None, None, "none yet: waiting for the API server")]
#[case::alone(LeadershipState::Leading, None, None, "leading, without an election")]
#[case::standby(
    LeadershipState::Standby,
    Some("ns/l"),
    Some("other"),
    "standing by: other leads by Lease ns/l"
)]
#[case::nobody(
    LeadershipState::Standby,
    Some("ns/l"),
    None,
    "standing by: nobody is known to hold Lease ns/l"
)]
#[case::draining(
    LeadershipState::Draining,
    Some("ns/l"),
    Some("me"),
    "about to give up Lease ns/l, renewed 1s ago"
)]
fn leadership_is_a_sentence(
    #[case] state: LeadershipState,
    #[case] lease: Option<&str>,
    #[case] holder: Option<&str>,
    #[case] expected: &str,
) {
    let status = LeadershipStatus {
        state,
        lease: lease.map(Into::into),
        holder: holder.map(Into::into),
        ..leads()
    };
    assert_eq!(leadership(&status), expected);
}
