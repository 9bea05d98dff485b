//! A newer process of a running plugin takes over, and the way back.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use bulkhead_proto::v1;

use super::scripted::{Script, at_once};
use super::*;

/// Who was told what, in the order in which it came: the process, its epoch's lease uid, whether it may write.
type Log = Arc<Mutex<Vec<(&'static str, String, bool)>>>;

/// A process that writes down what it is told.
fn process(name: &'static str, log: &Log) -> Scripted {
    let log = Arc::clone(log);
    Scripted::new(|script: &mut Script| {
        script.describe.instance_id = name.to_owned();
        script.lead = at_once(move |lead: v1::LeadRequest| {
            let stops = lead.valid_for == Some(prost_types::Duration::default());
            let lease = lead.epoch.unwrap().lease_uid;
            log.lock().unwrap().push((name, lease, !stops));
            Ok(())
        });
    })
}

/// Asks about nodes all the time; says how often that was answered, and what went wrong.
fn load(host: &Host) -> watch::Receiver<(u64, Option<String>)> {
    let (sender, answered) = watch::channel((0, None));
    let plugin = host.plugin.clone();
    drop(host.tasks.spawn_finite("load", async move {
        loop {
            let answer = plugin
                .get_instances(&[fixtures::node("n1")], &[Aspect::Existence], Duration::ZERO)
                .await;
            sender.send_modify(|(count, wrong)| match answer {
                Ok(_) => *count += 1,
                Err(failure) => *wrong = Some(failure.message),
            });
            if sender.is_closed() || sender.borrow().1.is_some() {
                return;
            }
        }
    }));
    answered
}

async fn answers_go_on(load: &mut watch::Receiver<(u64, Option<String>)>) {
    let before = load.borrow().0;
    let seen = timeout(
        SOON,
        load.wait_for(|(count, wrong)| *count > before + 20 || wrong.is_some()),
    )
    .await
    .expect("in vain")
    .unwrap()
    .clone();
    assert_eq!(seen.1, None);
}

async fn is_led_by(host: &Host, instance: &str) {
    host.sees(|view| {
        let description = view.description.as_ref();
        view.state == SessionState::Active && description.is_some_and(|it| it.instance_id == instance)
    })
    .await;
}

/// A host that works with the first process at a path, where others may come.
struct Stage {
    host: Host,
    _first: Server,
    log: Log,
    path: PathBuf,
    _folder: TempDir,
}

impl Stage {
    async fn set() -> Self {
        let (folder, log) = (TempDir::new().unwrap(), Log::default());
        let path = folder.path().join("p.sock");
        let first = Server::start(&path, process("first", &log));
        let host = Host::at(&path, Standing::Leading(term(1)));
        is_led_by(&host, "first").await;
        Self {
            host,
            _first: first,
            log,
            path,
            _folder: folder,
        }
    }

    /// The next process, once it leads.
    async fn next(&self, name: &'static str) -> Server {
        let server = Server::start(&self.path, process(name, &self.log));
        is_led_by(&self.host, name).await;
        server
    }
}

#[tokio::test]
async fn a_newer_process_at_the_same_path_takes_over_and_no_call_fails() {
    let stage = Stage::set().await;
    let mut load = load(&stage.host);
    answers_go_on(&mut load).await;
    let second = stage.next("second").await;
    answers_go_on(&mut load).await;
    let third = stage.next("third").await;
    answers_go_on(&mut load).await;
    let told = stage.log.lock().unwrap().clone();
    let (lease, first_round, second_round) = ("lease".to_owned(), "lease/1".to_owned(), "lease/2".to_owned());
    assert_eq!(
        told,
        [
            ("first", lease.clone(), true),
            ("first", lease.clone(), true),
            ("first", lease, false),
            ("second", first_round.clone(), true),
            ("second", first_round.clone(), true),
            ("second", first_round, false),
            ("third", second_round.clone(), true),
            ("third", second_round, true),
        ]
    );
    assert_eq!(stage.host.plugin.subscribe().borrow().session, 3);
    drop((second, third));
}

#[tokio::test]
async fn a_newer_process_that_dies_goes_back_to_the_older_and_no_call_fails_for_good() {
    let stage = Stage::set().await;
    let second = stage.next("second").await;
    drop(second);
    is_led_by(&stage.host, "first").await;
    answers_go_on(&mut load(&stage.host)).await;
    let last = stage.log.lock().unwrap().last().cloned().unwrap();
    assert_eq!(
        last,
        ("first", "lease/1".to_owned(), true),
        "it takes its ended term under another name"
    );
}

#[tokio::test]
async fn writes_name_the_term_as_the_process_knows_it() {
    let stage = Stage::set().await;
    let second = stage.next("second").await;
    calls::ensure(&stage.host, 1).await.unwrap();
    let epoch = second.plugin.seen().ensures[0]
        .intent
        .clone()
        .unwrap()
        .epoch
        .unwrap();
    assert_eq!((epoch.lease_uid.as_str(), epoch.transitions), ("lease/1", 1));
}

#[tokio::test]
async fn a_newer_process_that_cannot_be_used_replaces_nobody() {
    let stage = Stage::set().await;
    let mut load = load(&stage.host);
    let second = process("second", &stage.log);
    second.adapt(|script| script.describe.protocol_revisions = vec![9]);
    let _second = Server::start(&stage.path, second);
    let mut counts = 0;
    while counts < 2 {
        answers_go_on(&mut load).await;
        counts = stage.host.results("Describe").len();
    }
    assert_eq!(stage.host.plugin.subscribe().borrow().session, 1);
    assert!(
        stage
            .log
            .lock()
            .unwrap()
            .iter()
            .all(|(who, _, leads)| *who == "first" && *leads)
    );
}

#[tokio::test]
async fn a_socket_whose_mode_changes_is_no_other_process() {
    let stage = Stage::set().await;
    std::fs::set_permissions(&stage.path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let mut load = load(&stage.host);
    while stage.host.results("Describe").len() < 2 {
        answers_go_on(&mut load).await;
    }
    answers_go_on(&mut load).await;
    assert_eq!(stage.host.plugin.subscribe().borrow().session, 1);
    assert!(stage.log.lock().unwrap().iter().all(|(_, _, leads)| *leads));
}
