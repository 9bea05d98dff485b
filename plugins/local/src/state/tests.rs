use std::num::NonZeroU16;

use rstest::rstest;

use super::*;

fn store(dir: &Path) -> Store {
    match Lock::attempt(dir).unwrap() {
        Attempt::Held(lock) => Store::new(dir, lock),
        Attempt::Busy(holder) => panic!("held by {holder}"),
    }
}

fn balancer(mark: &str, address: &str) -> Balancer {
    let targets = Targets::from([("a".to_owned(), "10.0.0.1".parse::<IpAddr>().unwrap().into())]);
    Balancer {
        mark: mark.to_owned(),
        cluster: "c".to_owned(),
        service: ServiceKey {
            namespace: "d".to_owned(),
            name: "s".to_owned(),
            uid: mark.to_owned(),
        },
        spec_digest: "1".to_owned(),
        addresses: address.split(',').map(|text| text.parse().unwrap()).collect(),
        ports: [("udp/53".parse().unwrap(), NonZeroU16::new(30053).unwrap())].into(),
        targets: targets.into(),
        sources: ["10.0.0.0/8".parse().unwrap()].into(),
        health_check: Some(HealthCheck {
            node_port: NonZeroU16::new(30999).unwrap(),
            path: "/healthz".to_owned(),
        }),
        affinity: Some(Duration::from_secs(7)),
        proxy_protocol: ProxyProtocol::V2,
    }
}

#[test]
fn what_was_written_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    assert_eq!(store.load().unwrap(), []);
    let mut all = [
        balancer("bh-a", "127.0.10.1,::1"),
        balancer("bh-b", "fd00::1"),
        balancer("bh-c", "127.0.10.2"),
    ];
    all[2].targets = Arc::default();
    store.write(&encode(&all).unwrap()).unwrap();
    assert_eq!(store.load().unwrap(), all);
    let names: BTreeSet<String> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(
        names,
        BTreeSet::from([FILE.to_owned(), "lock".to_owned()]),
        "nothing else is left"
    );
}

#[test]
fn a_write_that_never_was_renamed_does_not_count() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let all = [balancer("bh-a", "127.0.10.1")];
    store.write(&encode(&all).unwrap()).unwrap();
    fs::write(dir.path().join(".balancers.json.tmp"), b"{ half").unwrap();
    assert_eq!(store.load().unwrap(), all);
}

#[rstest]
#[case::half_a_file("{\"version\": 2, \"balancers\": [", "EOF")]
#[case::empty("", "EOF")]
#[case::unknown_field(
    "{\"version\": 2, \"nodeSets\": [], \"balancers\": [], \"more\": 1}",
    "unknown field `more`"
)]
fn a_corrupt_file_stays_and_is_copied_once(#[case] content: &str, #[case] problem: &str) {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let path = dir.path().join(FILE);
    fs::write(&path, content).unwrap();
    for _ in 0..3 {
        let message = store.load().unwrap_err().to_string();
        assert!(message.contains(problem), "{message}");
        assert!(message.contains("balancers.json.corrupt-1"), "{message}");
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), content);
    assert_eq!(
        fs::read_to_string(dir.path().join("balancers.json.corrupt-1")).unwrap(),
        content
    );
    assert!(!dir.path().join("balancers.json.corrupt-2").exists());

    fs::write(&path, "other rubbish").unwrap();
    assert!(
        store
            .load()
            .unwrap_err()
            .to_string()
            .contains("balancers.json.corrupt-2")
    );
}

#[rstest]
#[case::mark(&[("bh-a", "127.0.10.1"), ("bh-a", "127.0.10.2")], "mark \"bh-a\" is there twice")]
#[case::address(&[("bh-a", "127.0.10.1"), ("bh-b", "127.0.10.1")], "address \"127.0.10.1\" is there twice")]
fn what_can_be_one_balancers_only_is_there_once(#[case] all: &[(&str, &str)], #[case] problem: &str) {
    let all: Vec<Balancer> = all
        .iter()
        .map(|(mark, address)| balancer(mark, address))
        .collect();
    let error = decode(&encode(&all).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), problem);
}

#[test]
fn hundreds_of_balancers_with_the_same_nodes_cost_one_list_of_nodes() {
    let nodes: Targets = (0..250_u8)
        .map(|last| (format!("node-{last}"), IpAddr::from([10, 0, 0, last]).into()))
        .collect();
    let all = |count: u8| {
        let one = |last| Balancer {
            targets: Arc::new(nodes.clone()),
            ..balancer(&format!("bh-{last}"), &format!("127.0.10.{last}"))
        };
        encode(&(0..count).map(one).collect::<Vec<_>>()).unwrap()
    };
    let (one, many) = (all(1).len(), all(200).len());
    assert!(many - one < 200 * 400, "{one} bytes for one, {many} for 200");
    assert!(decode(&all(200)).is_ok());
}

#[test]
fn a_node_set_that_is_not_there_is_corruption() {
    let content = encode(&[balancer("bh-a", "127.0.10.1")]).unwrap();
    let text = String::from_utf8(content)
        .unwrap()
        .replace("\"nodes\":0", "\"nodes\":1");
    let error = decode(text.as_bytes()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "load balancer \"bh-a\" has node set 1, and there is none"
    );
}

#[test]
fn a_document_of_another_version_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    fs::write(dir.path().join(FILE), "{\"version\": 3, \"things\": []}").unwrap();
    assert!(matches!(store.load(), Err(LoadError::Version { found: 3, .. })));
    assert!(!dir.path().join("balancers.json.corrupt-1").exists());
}
