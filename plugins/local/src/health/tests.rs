use rstest::rstest;
use tokio::net::TcpListener;

use super::*;

const PORT: u16 = 1;
const CONNECT: Probe = Probe::Connect { port: PORT };

fn targets(count: u16) -> BTreeSet<IpAddr> {
    let address = |number: u16| {
        let [high, low] = number.to_be_bytes();
        IpAddr::from([10, 0, high, low])
    };
    (1..=count).map(address).collect()
}

/// A board with one target, and its pulse.
fn one() -> (Board, Pulse) {
    let board = Board::default();
    board.watch(&targets(1), Some(&CONNECT));
    let pulse = board.pulse(*targets(1).first().unwrap()).unwrap();
    (board, pulse)
}

/// `+` a success, `-` a failure, of one check each.
#[rstest]
#[case::new("", Standing::Unknown, 0)]
#[case::one_success_is_enough("+", Standing::Up, 5)]
#[case::a_new_one_is_out_at_once("-", Standing::Down, 1)]
#[case::a_new_one_is_asked_often_at_first("--", Standing::Down, 1)]
#[case::three_failures_take_it_out("---", Standing::Down, 1)]
#[case::two_failures_do_not("+--", Standing::Up, 1)]
#[case::only_failures_in_a_row_count("+--+--", Standing::Up, 1)]
#[case::back_after_one_success("+---+", Standing::Up, 5)]
#[case::down_twice("----", Standing::Down, 2)]
#[case::down_for_some_time("-------", Standing::Down, 16)]
#[case::down_for_long("--------", Standing::Down, 30)]
#[case::never_less_often("-----------", Standing::Down, 30)]
#[case::a_success_forgets_it("--------+---", Standing::Down, 1)]
#[tokio::test(start_paused = true)]
async fn standing_and_seconds_to_the_next_check_after(
    #[case] history: &str,
    #[case] standing: Standing,
    #[case] seconds: u64,
) {
    let (_board, pulse) = one();
    for step in history.chars() {
        pulse.conclude(step == '+', clock::now());
    }
    let record = *pulse.lock();
    assert_eq!(
        (record.standing, record.due - clock::now()),
        (standing, Duration::from_secs(seconds))
    );
}

#[tokio::test(start_paused = true)]
async fn failure_hints_count_as_failures_and_bring_the_next_check_forward() {
    let (board, pulse) = one();
    assert!(board.begin(clock::now()).is_some(), "a new one is due");
    pulse.conclude(true, clock::now());
    assert!(board.begin(clock::now()).is_none());
    for _ in 0..FALL {
        pulse.hint_failure(PORT);
    }
    assert_eq!(pulse.standing(), Standing::Down);
    assert!(board.begin(clock::now()).is_some());
    assert!(
        board.begin(clock::now() + INTERVAL_UP).is_none(),
        "neither one that is being checked nor the entry from before"
    );
}

#[tokio::test(start_paused = true)]
async fn a_failure_on_another_port_only_brings_the_next_check_forward() {
    let (board, pulse) = one();
    assert!(board.begin(clock::now()).is_some());
    pulse.conclude(true, clock::now());
    for _ in 0..FALL {
        pulse.hint_failure(PORT + 1);
    }
    assert_eq!(pulse.standing(), Standing::Up);
    assert!(board.begin(clock::now()).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_success_hint_ends_a_long_pause_and_a_failure_hint_does_not() {
    let (board, pulse) = one();
    let now = clock::now();
    for _ in 0..10 {
        pulse.conclude(false, now);
    }
    while board.begin(now).is_some() {}
    pulse.hint_failure(PORT);
    assert!(board.begin(now).is_none());
    pulse.hint_success();
    assert_eq!(pulse.standing(), Standing::Down, "until a check says otherwise");
    assert!(board.begin(now).is_some());
    pulse.conclude(false, now);
    assert_eq!(pulse.lock().due, now + INTERVAL_NOT_UP);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_no_longer_watched_is_not_checked() {
    let (board, pulse) = one();
    board.watch(&BTreeSet::new(), Some(&CONNECT));
    pulse.conclude(true, clock::now());
    assert!(board.begin(clock::now() + INTERVAL_UP).is_none());
}

#[tokio::test(start_paused = true)]
async fn many_that_stay_down_are_seldom_checked() {
    const MANY: u16 = 5_000;
    let board = Board::default();
    board.watch(&targets(MANY), Some(&CONNECT));
    let start = clock::now();
    let checks_at = |second| {
        let now = start + Duration::from_secs(second);
        let begun = std::iter::from_fn(|| board.begin(now));
        begun.map(|(pulse, _)| pulse.conclude(false, now)).count()
    };
    // Three failures, then pauses of 1, 2, 4, 8 and 16 seconds.
    let first: usize = (0..60).map(checks_at).sum();
    assert_eq!(first, usize::from(MANY) * 8);
    let minutes = 10;
    let later: usize = (60..60 + 60 * minutes).map(checks_at).sum();
    assert_eq!(later, usize::from(MANY) * 20, "two a minute each");
}

#[tokio::test]
async fn all_boards_together_keep_the_bound() {
    const BOUND: usize = 3;
    let permits: &'static Semaphore = Box::leak(Box::new(Semaphore::new(BOUND)));
    let mut listeners = Vec::new();
    let first = TcpListener::bind("127.0.20.2:0").await.unwrap();
    let port = first.local_addr().unwrap().port();
    for last in 3..2 + 2 * u8::try_from(BOUND).unwrap() {
        // Connections are accepted by the kernel and never answered.
        let address = IpAddr::from([127, 0, 20, last]);
        listeners.push(TcpListener::bind((address, port)).await.unwrap());
    }
    listeners.push(first);
    let silent = listeners
        .iter()
        .map(|listener| listener.local_addr().unwrap().ip());
    let silent: BTreeSet<IpAddr> = silent.collect();
    let path = "/".to_owned();
    let boards = [Board::default(), Board::default()];
    for board in &boards {
        let probe = Probe::Http {
            port,
            path: path.clone(),
        };
        board.watch(&silent, Some(&probe));
    }
    let checking = |board: &Board| {
        let watched = board.lock();
        watched
            .pulses
            .values()
            .filter(|pulse| pulse.lock().checking)
            .count()
    };
    let [one, other] = &boards;
    let look = async {
        for _ in 0..1_000 {
            assert!(checking(one) + checking(other) <= BOUND);
            yield_now().await;
        }
        assert!(
            checking(one) > 0 && checking(other) > 0,
            "neither waits for the other"
        );
        assert_eq!(checking(one) + checking(other), BOUND);
    };
    tokio::select! {
        () = one.run(permits) => {}
        () = other.run(permits) => {}
        () = look => {}
    }
}

#[tokio::test]
async fn a_target_is_seen_up_then_down_then_up() {
    let listener = TcpListener::bind("127.0.20.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let board = Board::default();
    let port = address.port();
    board.watch(&BTreeSet::from([address.ip()]), Some(&Probe::Connect { port }));
    let pulse = board.pulse(address.ip()).unwrap();
    let until = |standing| {
        let pulse = pulse.clone();
        async move {
            while pulse.standing() != standing {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    };
    let story = async {
        until(Standing::Up).await;
        drop(listener);
        pulse.hint_failure(port);
        until(Standing::Down).await;
        let _again = TcpListener::bind(address).await.unwrap();
        until(Standing::Up).await;
    };
    tokio::select! {
        () = board.run(&CHECKS_AT_ONCE) => {}
        done = timeout(Duration::from_secs(10), story) => done.expect("every standing within ten seconds"),
    }
}
