use std::fmt::Display;

use rstest::rstest;

use super::*;

const ENDPOINT: &str = "--endpoint=unix:///run/bulkhead/local/local.sock";

fn resolve(arguments: &[&str]) -> Result<Config, Vec<String>> {
    let told = |error: &dyn Display| error.to_string();
    let flags = Flags::try_parse_from(["bulkhead-local"].iter().chain(arguments));
    let flags = flags.map_err(|error| vec![told(&error)])?;
    flags
        .resolve(1024)
        .map_err(|errors| errors.iter().map(|error| told(error)).collect())
}

#[test]
fn an_endpoint_is_enough() {
    let config = resolve(&[ENDPOINT]).unwrap();
    assert_eq!(config.settings.pool.to_string(), "127.0.10.0/24, ::1/128");
    assert_eq!(config.settings.state_dir, PathBuf::from(DEFAULT_STATE_DIR));
    assert_eq!(config.metrics_address, None);
    assert_eq!(config.inventory, None);
}

#[test]
fn flags_win_over_the_cloud_config() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("local.yaml");
    let text =
        "stateDir: /from/file\ninventory: /inventory\npool: [127.0.20.0/24]\nmetricsAddress: 127.0.0.1:9\n";
    std::fs::write(&path, text).unwrap();
    let file = format!("--cloud-config={}", path.display());
    let config = resolve(&[ENDPOINT, &file, "--pool=127.0.30.0/24", "--pool=127.0.31.9"]).unwrap();
    assert_eq!(config.settings.pool.to_string(), "127.0.30.0/24, 127.0.31.9/32");
    assert_eq!(config.settings.state_dir, PathBuf::from("/from/file"));
    assert_eq!(config.metrics_address, Some("127.0.0.1:9".parse().unwrap()));
    assert_eq!(config.inventory, Some(PathBuf::from("/inventory")));
}

#[rstest]
#[case::an_endpoint_of_another_kind(&["--endpoint=/run/a.sock"], &["endpoint \"/run/a.sock\" is neither unix:///absolute/path.sock nor https://ADDRESS:PORT"])]
#[case::host_bits(&[ENDPOINT, "--pool=127.0.10.1/24"], &["pool: \"127.0.10.1/24\" has host bits set: did you mean 127.0.10.0/24?"])]
#[case::overlap(&[ENDPOINT, "--pool=127.0.10.0/24", "--pool=127.0.10.9"], &["address pool: 127.0.10.0/24 and 127.0.10.9/32 overlap"])]
#[case::several_at_once(&["--endpoint=x", "--pool=y", "--exclude=z"], &[
    "pool: \"y\" is not an IP address or a CIDR such as 127.0.10.0/24",
    "exclude: \"z\" is not an IP address",
    "endpoint \"x\" is neither unix:///absolute/path.sock nor https://ADDRESS:PORT",
])]
fn each_wrong_input_is_one_line(#[case] arguments: &[&str], #[case] lines: &[&str]) {
    assert_eq!(resolve(arguments).unwrap_err(), lines);
}

#[test]
fn every_bound_can_be_set_and_is_as_usual_otherwise() {
    let file = CloudConfig {
        max_connections: Some(7),
        flow_idle_seconds: Some(8),
        drain_seconds: Some(0),
        ..CloudConfig::default()
    };
    let mut errors = Vec::new();
    let limits = Limits {
        connections: 7,
        flow_idle: Duration::from_secs(8),
        drain: Duration::ZERO,
        ..Limits::default()
    };
    assert_eq!(file.limits(&mut errors), limits);
    assert!(errors.is_empty(), "{errors:?}");
}

#[rstest]
#[case::unknown_field("statedir: /x\n", "line 1")]
#[case::no_room("maxFlows: 0\n", "maxFlows is 0: nobody would be served")]
fn a_wrong_cloud_config_is_one_line(#[case] text: &str, #[case] part: &str) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("local.yaml");
    std::fs::write(&path, text).unwrap();
    let errors = resolve(&[ENDPOINT, &format!("--cloud-config={}", path.display())]).unwrap_err();
    assert!(
        errors.len() == 1 && errors[0].contains(part) && !errors[0].contains('\n'),
        "{errors:?}"
    );
}
