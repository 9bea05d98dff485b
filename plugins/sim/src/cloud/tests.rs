//! The cloud's rules, and its laws.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use rstest::rstest;

use super::*;

const START: Duration = Duration::from_secs(1000);

fn cloud() -> Cloud {
    let mut cloud = Cloud::new(1, Settings::default());
    for number in 1..=3 {
        let instance = Instance::new(
            format!("i-{number}"),
            format!("node-{number}"),
            format!("10.0.0.{number}"),
        );
        cloud.put(instance.object(), START).expect("room");
    }
    cloud
}

fn ask(cloud: &mut Cloud, op: &Op, now: Duration) -> Option<Result<Answer, CloudError>> {
    cloud.call(&Caller::default(), op, now).answer
}

fn new(kind: Kind, name: &str, parent: Option<&str>, attributes: &[(&str, &str)]) -> Op {
    let attributes = attributes
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    Op::Create(vec![New {
        kind,
        name: name.to_owned(),
        parent: parent.map(str::to_owned),
        tags: BTreeMap::new(),
        attributes: attributes.collect(),
    }])
}

fn made(cloud: &mut Cloud, op: &Op) -> String {
    match ask(cloud, op, START) {
        Some(Ok(Answer::Written(written))) => written.objects.first().expect("one").id.clone(),
        other => panic!("{op:?}: {other:?}"),
    }
}

fn code(answer: Option<Result<Answer, CloudError>>) -> Option<ErrorCode> {
    match answer {
        Some(Err(error)) => Some(error.code),
        _ => None,
    }
}

fn delete(kind: Kind, id: &str) -> Op {
    Op::Delete {
        kind,
        ids: vec![id.to_owned()],
    }
}

fn list(kind: Kind) -> Op {
    Op::List(Query {
        kinds: vec![kind],
        ..Query::default()
    })
}

fn listed(answer: Option<Result<Answer, CloudError>>) -> Page {
    match answer {
        Some(Ok(Answer::Page(page))) => page,
        other => panic!("no page: {other:?}"),
    }
}

/// A cloud with one of everything; ids by kind.
fn full() -> (Cloud, BTreeMap<Kind, String>) {
    let mut cloud = cloud();
    let mut ids = BTreeMap::new();
    let mut put = |kind: Kind, parent: Option<Kind>, references: &[(&str, Kind)], name: &str| {
        let of = |kind: &Kind, ids: &BTreeMap<Kind, String>| ids.get(kind).cloned().unwrap_or_default();
        let attributes: Vec<(&str, String)> = references
            .iter()
            .map(|(key, kind)| (*key, of(kind, &ids)))
            .collect();
        let attributes: Vec<(&str, &str)> = attributes
            .iter()
            .map(|(key, value)| (*key, value.as_str()))
            .collect();
        let parent = parent.map(|parent| of(&parent, &ids));
        let id = made(&mut cloud, &new(kind, name, parent.as_deref(), &attributes));
        ids.insert(kind, id);
    };
    put(Kind::Firewall, None, &[], "fw");
    put(Kind::FirewallRule, Some(Kind::Firewall), &[], "tcp/80/0.0.0.0/0");
    put(Kind::Address, None, &[], "ip");
    put(Kind::HealthCheck, None, &[], "hc");
    put(Kind::Pool, None, &[("health_check", Kind::HealthCheck)], "pool");
    put(Kind::Target, Some(Kind::Pool), &[], "i-1");
    let references = [("address_ipv4", Kind::Address), ("firewall", Kind::Firewall)];
    put(Kind::LoadBalancer, None, &references, "lb");
    put(
        Kind::Listener,
        Some(Kind::LoadBalancer),
        &[("pool", Kind::Pool)],
        "ls",
    );
    (cloud, ids)
}

#[rstest]
#[case::listeners_before_their_load_balancer(Kind::LoadBalancer, Kind::Listener)]
#[case::targets_before_their_pool(Kind::Pool, Kind::Target)]
#[case::rules_before_their_firewall(Kind::Firewall, Kind::FirewallRule)]
#[case::a_pool_after_its_listener(Kind::Pool, Kind::Listener)]
#[case::a_health_check_after_its_pool(Kind::HealthCheck, Kind::Pool)]
#[case::an_address_after_its_load_balancer(Kind::Address, Kind::LoadBalancer)]
#[case::a_firewall_after_its_load_balancer(Kind::Firewall, Kind::LoadBalancer)]
fn what_is_used_is_not_deleted_and_its_user_is_named(#[case] used: Kind, #[case] user: Kind) {
    let (mut cloud, ids) = full();
    let answer = ask(&mut cloud, &delete(used, &ids[&used]), START);
    let Some(Err(error)) = answer else {
        panic!("deleted")
    };
    assert_eq!(error.code, ErrorCode::InUse);
    assert!(error.names.contains(&ids[&user]), "{error:?}");
}

#[test]
fn nothing_cascades_and_in_the_right_order_everything_goes() {
    let (mut cloud, ids) = full();
    let order = [
        Kind::Listener,
        Kind::LoadBalancer,
        Kind::Target,
        Kind::Pool,
        Kind::HealthCheck,
        Kind::FirewallRule,
        Kind::Firewall,
        Kind::Address,
    ];
    for (gone, kind) in order.into_iter().enumerate() {
        assert_eq!(cloud.inventory(START).len(), 3 + order.len() - gone);
        assert_eq!(
            code(ask(&mut cloud, &delete(kind, &ids[&kind]), START)),
            None,
            "{kind:?}"
        );
    }
    assert_eq!(cloud.inventory(START).len(), 3);
}

#[rstest]
#[case::the_name_is_taken(new(Kind::Pool, "pool", None, &[]), ErrorCode::AlreadyExists)]
#[case::no_such_parent(new(Kind::Listener, "x", Some("lb-none"), &[]), ErrorCode::NotFound)]
#[case::a_parent_where_there_is_none(new(Kind::Pool, "x", Some("lb-none"), &[]), ErrorCode::Invalid)]
#[case::no_such_reference(new(Kind::Pool, "x", None, &[("health_check", "hc-none")]), ErrorCode::NotFound)]
#[case::an_address_of_others(new(Kind::Address, "x", None, &[("ip", "192.0.2.1")]), ErrorCode::Invalid)]
#[case::an_address_that_is_taken(new(Kind::Address, "x", None, &[("ip", "198.18.0.1")]), ErrorCode::InUse)]
#[case::only_people_make_instances(new(Kind::Instance, "x", None, &[]), ErrorCode::Invalid)]
#[case::what_is_not_there(delete(Kind::Pool, "pool-none"), ErrorCode::NotFound)]
fn what_cannot_be_is_refused_and_changes_nothing(#[case] op: Op, #[case] expected: ErrorCode) {
    let (mut cloud, _) = full();
    let before = cloud.inventory(START);
    assert_eq!(code(ask(&mut cloud, &op, START)), Some(expected));
    assert_eq!(cloud.inventory(START), before);
    assert_eq!(cloud.records().counts()[&op.name()].failed, 1);
}

#[rstest]
#[case::error(
    Effect::Error { code: ErrorCode::Refused, message: String::new(), retry_after: None },
    Some("refused"), false
)]
#[case::lost_answer(Effect::LostAnswer, Some("unavailable"), true)]
#[case::hang(Effect::Hang, None, false)]
#[case::done_then_hang(Effect::DoneThenHang, None, true)]
#[case::delay(Effect::Delay(Span(Duration::from_secs(3))), Some("ok"), true)]
#[case::wrong_ids(Effect::WrongIds, Some("ok"), true)]
fn a_fault_on_a_write_does_what_it_says_once(
    #[case] effect: Effect,
    #[case] told: Option<&str>,
    #[case] done: bool,
) {
    let mut cloud = cloud();
    cloud
        .faults()
        .add(Fault::new("create/pool", effect).times(1), START)
        .expect("legal");
    let before = cloud.inventory(START).len();
    let turn = cloud.call(&Caller::default(), &new(Kind::Pool, "a", None, &[]), START);
    assert_eq!(cloud.inventory(START).len() - before, usize::from(done));
    let record = cloud.records().after(0).last().expect("recorded").clone();
    assert_eq!((record.answer, record.wrote), (told.unwrap_or("never"), done));
    assert_eq!(turn.answer.is_none(), told.is_none());
    assert_eq!(
        code(ask(&mut cloud, &new(Kind::Pool, "b", None, &[]), START)),
        None
    );
}

#[test]
fn a_lost_answer_says_that_nobody_knows() {
    let mut cloud = cloud();
    cloud
        .faults()
        .add(Fault::new("*", Effect::LostAnswer), START)
        .expect("legal");
    let Some(Err(error)) = ask(&mut cloud, &new(Kind::Pool, "a", None, &[]), START) else {
        panic!("good")
    };
    assert_eq!(error.applied, Applied::Unknown);
    let Some(Err(error)) = ask(&mut cloud, &list(Kind::Pool), START) else {
        panic!("good")
    };
    assert_eq!(error.applied, Applied::No);
}

#[test]
fn an_empty_answer_looks_complete_and_wrong_ids_name_nothing_that_exists() {
    let mut cloud = cloud();
    cloud
        .faults()
        .add(Fault::new("list", Effect::Empty).times(1), START)
        .expect("legal");
    cloud
        .faults()
        .add(Fault::new("list", Effect::WrongIds).times(1), START)
        .expect("legal");
    let page = listed(ask(&mut cloud, &list(Kind::Instance), START));
    assert!(page.objects.is_empty() && page.failed.is_empty() && page.next.is_empty());
    let page = listed(ask(&mut cloud, &list(Kind::Instance), START));
    assert!(page.objects.iter().all(|object| object.id.ends_with("-wrong")));
}

#[test]
fn a_throttled_cloud_says_when_to_come_back_and_takes_calls_then() {
    let mut cloud = cloud();
    let throttle = Some(Throttle { rate: 2.0, burst: 1 });
    cloud
        .configure(SettingsChange::default().throttle(throttle))
        .expect("legal");
    assert_eq!(code(ask(&mut cloud, &Op::Account, START)), None);
    let Some(Err(error)) = ask(&mut cloud, &Op::Account, START) else {
        panic!("taken")
    };
    assert_eq!(
        (error.code, error.retry_after),
        (ErrorCode::Throttled, Some(Duration::from_millis(500)))
    );
    assert_eq!(
        code(ask(&mut cloud, &Op::Account, START + Duration::from_millis(500))),
        None
    );
}

#[test]
fn quotas_hold_and_a_route_table_has_one_of_its_own() {
    let mut cloud = cloud();
    let quotas = BTreeMap::from([(Kind::Pool, 1), (Kind::Route, 1)]);
    cloud
        .configure(SettingsChange::default().quotas(quotas))
        .expect("legal");
    let table = Object {
        kind: Kind::RouteTable,
        id: "rt-1".to_owned(),
        ..Instance::new("", "main", "").object()
    };
    cloud.put(table, START).expect("room");
    assert_eq!(
        code(ask(&mut cloud, &new(Kind::Pool, "a", None, &[]), START)),
        None
    );
    assert_eq!(
        code(ask(&mut cloud, &new(Kind::Pool, "b", None, &[]), START)),
        Some(ErrorCode::QuotaExceeded)
    );
    assert_eq!(
        code(ask(
            &mut cloud,
            &new(Kind::Route, "10.0.0.0/24", Some("rt-1"), &[]),
            START
        )),
        None
    );
    assert_eq!(
        code(ask(
            &mut cloud,
            &new(Kind::Route, "10.0.1.0/24", Some("rt-1"), &[]),
            START
        )),
        Some(ErrorCode::LimitReached)
    );
    let Some(Ok(Answer::Account(account))) = ask(&mut cloud, &Op::Account, START) else {
        panic!("no account")
    };
    assert_eq!(account.used_up, [Kind::Pool]);
}

#[test]
fn a_zone_that_is_away_is_named_and_hides_its_machines_only() {
    let mut cloud = cloud();
    let elsewhere = Instance {
        zone: "zone-b".to_owned(),
        ..Instance::new("i-9", "node-9", "10.0.0.9")
    };
    cloud.put(elsewhere.object(), START).expect("room");
    cloud
        .configure(SettingsChange::default().outages(vec!["zone-b".to_owned()]))
        .expect("legal");
    let page = listed(ask(&mut cloud, &list(Kind::Instance), START));
    assert_eq!((page.objects.len(), page.failed), (3, vec!["zone-b".to_owned()]));
    assert_eq!(
        code(ask(&mut cloud, &new(Kind::Pool, "a", None, &[]), START)),
        None
    );
    cloud
        .configure(SettingsChange::default().outages(vec!["region-1".to_owned()]))
        .expect("legal");
    assert_eq!(
        code(ask(&mut cloud, &new(Kind::Pool, "b", None, &[]), START)),
        Some(ErrorCode::Unavailable)
    );
}

#[rstest]
#[case(Credentials::Invalid, ErrorCode::CredentialsInvalid)]
#[case(Credentials::Expired, ErrorCode::CredentialsExpired)]
fn with_bad_credentials_nothing_is_answered(#[case] credentials: Credentials, #[case] expected: ErrorCode) {
    let mut cloud = cloud();
    cloud
        .configure(SettingsChange::default().credentials(credentials))
        .expect("legal");
    for op in [Op::Account, list(Kind::Pool), new(Kind::Pool, "a", None, &[])] {
        assert_eq!(code(ask(&mut cloud, &op, START)), Some(expected));
    }
}

#[test]
fn a_lagging_read_misses_a_write_until_it_has_settled() {
    let mut cloud = cloud();
    let lag = Duration::from_secs(5);
    cloud
        .configure(SettingsChange::default().lag(Distribution::always(lag)))
        .expect("legal");
    let id = made(&mut cloud, &new(Kind::Pool, "a", None, &[]));
    let seen = |cloud: &mut Cloud, now| listed(ask(cloud, &list(Kind::Pool), now)).objects.len();
    assert_eq!(seen(&mut cloud, START + Duration::from_secs(4)), 0);
    assert_eq!(seen(&mut cloud, START + lag), 1);
    let deleted = START + Duration::from_secs(10);
    assert_eq!(code(ask(&mut cloud, &delete(Kind::Pool, &id), deleted)), None);
    assert_eq!(seen(&mut cloud, deleted + Duration::from_secs(4)), 1);
    assert_eq!(seen(&mut cloud, deleted + lag), 0);
}

#[test]
fn what_takes_time_is_busy_until_it_is_there_and_until_it_is_gone() {
    let mut cloud = cloud();
    let slow = BTreeMap::from([(Kind::LoadBalancer, Span(Duration::from_secs(5)))]);
    cloud
        .configure(
            SettingsChange::default()
                .provisioning(slow.clone())
                .deletion(slow),
        )
        .expect("legal");
    let id = made(&mut cloud, &new(Kind::LoadBalancer, "lb", None, &[]));
    let listener = new(Kind::Listener, "ls", Some(&id), &[]);
    assert_eq!(
        code(ask(&mut cloud, &listener, START + Duration::from_secs(4))),
        Some(ErrorCode::Busy)
    );
    let ready = START + Duration::from_secs(5);
    assert_eq!(
        code(ask(&mut cloud, &delete(Kind::LoadBalancer, &id), ready)),
        None
    );
    assert_eq!(
        code(ask(&mut cloud, &delete(Kind::LoadBalancer, &id), ready)),
        Some(ErrorCode::Busy)
    );
    let page = listed(ask(&mut cloud, &list(Kind::LoadBalancer), ready));
    assert_eq!(
        page.objects.first().map(|object| object.state),
        Some(State::Deleting)
    );
    let page = listed(ask(
        &mut cloud,
        &list(Kind::LoadBalancer),
        ready + Duration::from_secs(5),
    ));
    assert_eq!(page.objects, []);
}

#[rstest]
fn the_union_of_pages_is_the_same_for_every_page_size(#[values(1, 2, 3, 7, 500)] size: u32) {
    let (mut cloud, _) = full();
    let mut query = Query {
        kinds: Kind::ALL.to_vec(),
        page_size: size,
        ..Query::default()
    };
    let mut all = Vec::new();
    loop {
        let page = listed(ask(&mut cloud, &Op::List(query.clone()), START));
        assert!(page.objects.len() <= size as usize);
        all.extend(page.objects);
        if page.next.is_empty() {
            break;
        }
        query.page_token = page.next;
    }
    assert_eq!(all, cloud.inventory(START));
}

fn any_op() -> impl Strategy<Value = Op> {
    let name = prop::sample::select(vec!["a", "b", "c"]);
    let kind = prop::sample::select(vec![Kind::Pool, Kind::Address, Kind::HealthCheck, Kind::Firewall]);
    let id =
        (kind.clone(), 1_u64..12).prop_map(|(kind, number)| (kind, format!("{}-{number:08}", kind.prefix())));
    prop_oneof![
        3 => (kind.clone(), name).prop_map(|(kind, name)| new(kind, name, None, &[])),
        2 => id.prop_map(|(kind, id)| delete(kind, &id)),
        2 => kind.prop_map(list),
        1 => Just(Op::Account),
    ]
}

proptest! {
    #[test]
    fn the_same_calls_with_the_same_seed_have_the_same_outcome(
        seed in any::<u64>(),
        ops in prop::collection::vec((any_op(), 0_u64..2000), 1..60),
        likely in 0.0..1.0_f64,
    ) {
        let run = || {
            let settings = SettingsChange::default()
                .latency(Distribution::between(Duration::ZERO, Duration::from_secs(1)))
                .lag(Distribution::between(Duration::ZERO, Duration::from_secs(3)))
                .throttle(Some(Throttle { rate: 5.0, burst: 3 }))
                .applied(&Settings::default());
            let mut cloud = Cloud::new(seed, settings);
            cloud.faults().add(Fault::new("write", Effect::LostAnswer).likely(likely), START).expect("legal");
            let mut now = START;
            let mut turns = Vec::new();
            for (op, millis) in &ops {
                now += Duration::from_millis(*millis);
                turns.push(cloud.call(&Caller::default(), op, now));
            }
            let records: Vec<Record> = cloud.records().after(0).cloned().collect();
            (turns, records, cloud.inventory(now))
        };
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn counts_say_what_the_inventory_shows(ops in prop::collection::vec(any_op(), 1..80)) {
        let mut cloud = Cloud::new(1, Settings::default());
        for op in &ops {
            ask(&mut cloud, op, START);
        }
        let sum = |verb: &str| -> u64 {
            let of_verb = cloud.records().counts().iter().filter(|(name, _)| name.starts_with(verb));
            of_verb.map(|(_, count)| count.writes).sum()
        };
        let (created, deleted) = (sum("create"), sum("delete"));
        let exist = cloud.inventory(START).len() as u64;
        prop_assert_eq!(created - deleted, exist);
        prop_assert_eq!(cloud.records().total().calls, ops.len() as u64);
    }
}
