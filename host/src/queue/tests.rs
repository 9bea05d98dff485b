use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use proptest::prelude::*;
use rstest::rstest;
use tokio::time::advance;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const FAILED: Next = Next::RETRY;

#[derive(Clone, Debug, Default)]
struct Counts(Arc<[AtomicUsize; 4]>);

impl Counts {
    fn bump(&self, index: usize) {
        self.0[index].fetch_add(1, Ordering::Relaxed);
    }

    fn all(&self) -> [usize; 4] {
        [0, 1, 2, 3].map(|index| self.0[index].load(Ordering::Relaxed))
    }
}

impl QueueObserver for Counts {
    fn added(&self) {
        self.bump(0);
    }

    fn taken(&self, _: Duration) {
        self.bump(1);
    }

    fn finished(&self, _: Duration) {
        self.bump(2);
    }

    fn retried(&self) {
        self.bump(3);
    }
}

fn queue() -> Queue<u32> {
    Queue::new(Counts::default())
}

/// The next turn, if there is one now.
fn poll(queue: &Queue<u32>) -> Option<Turn<u32>> {
    queue.next().now_or_never().flatten()
}

fn poll_key(queue: &Queue<u32>) -> Option<u32> {
    poll(queue).map(|turn| {
        let key = *turn.key();
        turn.done(Next::AwaitChange);
        key
    })
}

/// Takes `key`, which must be due, and fails.
fn fail(queue: &Queue<u32>, key: u32) {
    let turn = poll(queue).expect("nothing is due");
    assert_eq!(*turn.key(), key);
    turn.done(FAILED);
}

#[tokio::test(start_paused = true)]
async fn a_key_added_twice_is_handed_out_once() {
    let queue = queue();
    queue.add(1);
    queue.add(1);
    assert_eq!((poll_key(&queue), poll_key(&queue)), (Some(1), None));
}

#[tokio::test(start_paused = true)]
async fn one_by_one_the_next_key_waits_for_the_end_of_the_one_before() {
    let queue = queue();
    queue.set_flow(Flow::OneByOne);
    queue.add(1);
    queue.add(2);
    let first = poll(&queue).unwrap();
    assert!(poll(&queue).is_none());
    let (second, ()) = tokio::join!(queue.next(), async { first.done(Next::AwaitChange) });
    assert_eq!(*second.unwrap().key(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_hands_out_nothing_forgets_nothing() {
    let queue = queue();
    queue.add(1);
    fail(&queue, 1);
    queue.add(2);
    queue.set_flow(Flow::Nothing);
    queue.add_now(3);
    advance(SECOND * 60).await;
    assert!(poll(&queue).is_none());
    queue.set_flow(Flow::Freely);
    let turns: Vec<_> = std::iter::from_fn(|| poll(&queue)).collect();
    let failures: BTreeSet<_> = turns.iter().map(|turn| (*turn.key(), turn.failures())).collect();
    assert_eq!(failures, BTreeSet::from([(1, 1), (2, 0), (3, 0)]));
}

#[tokio::test(start_paused = true)]
async fn keys_come_in_the_order_in_which_they_became_due() {
    let queue = queue();
    queue.add_after(3, SECOND);
    for key in [2, 1] {
        queue.add(key);
        advance(SECOND * 2).await;
    }
    assert_eq!(
        [(); 4].map(|()| poll_key(&queue)),
        [Some(2), Some(3), Some(1), None]
    );
}

/// In which order keys come if so long after many became due something is wanted now.
#[rstest]
#[case::users_before_upkeep(4, [9, 1, 2])]
#[case::upkeep_does_not_wait_for_ever(6, [1, 2, 9])]
#[tokio::test(start_paused = true)]
async fn what_is_wanted_now_goes_ahead_of_what_became_due_shortly_before(
    #[case] seconds: u32,
    #[case] order: [u32; 3],
) {
    let queue = queue();
    queue.add(1);
    queue.add(2);
    advance(SECOND * seconds).await;
    queue.add_now(9);
    assert_eq!(order.map(Some), [(); 3].map(|()| poll_key(&queue)));
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_tried_again_waits_for_no_time_but_goes_ahead_of_nobody() {
    let queue = queue();
    queue.add(9);
    fail(&queue, 9);
    queue.add(1);
    advance(Duration::from_millis(1)).await;
    queue.retry(9);
    assert_eq!([(); 2].map(|()| poll_key(&queue)), [Some(1), Some(9)]);
}

#[tokio::test(start_paused = true)]
async fn only_one_turn_is_ahead_of_others() {
    let queue = queue();
    queue.add_now(9);
    let turn = poll(&queue).unwrap();
    for key in [1, 9] {
        queue.add(key);
        advance(SECOND).await;
    }
    turn.done(Next::AwaitChange);
    assert_eq!([(); 2].map(|()| poll_key(&queue)), [Some(1), Some(9)]);
}

#[tokio::test(start_paused = true)]
async fn a_key_added_while_in_work_runs_once_more_and_never_twice_at_once() {
    let queue = queue();
    queue.add(1);
    let turn = poll(&queue).unwrap();
    queue.add(1);
    queue.add(1);
    assert!(poll(&queue).is_none());
    turn.done(Next::AwaitChange);
    assert_eq!((poll_key(&queue), poll_key(&queue)), (Some(1), None));
}

#[tokio::test(start_paused = true)]
async fn the_earliest_of_several_wishes_counts() {
    let queue = queue();
    queue.add_after(1, SECOND * 5);
    queue.add_after(1, SECOND);
    queue.add_after(1, SECOND * 9);
    advance(SECOND).await;
    assert_eq!(poll_key(&queue), Some(1));
    advance(SECOND * 60).await;
    assert_eq!(poll_key(&queue), None);
}

#[rstest]
#[case::an_event_does_not_shorten_a_backoff(|queue: &Queue<u32>| queue.add(1), false)]
#[case::nor_does_a_timer(|queue: &Queue<u32>| queue.add_after(1, Duration::from_millis(1)), false)]
#[case::add_now_does(|queue: &Queue<u32>| queue.add_now(1), true)]
#[tokio::test(start_paused = true)]
async fn a_backoff_is_a_floor(#[case] event: fn(&Queue<u32>), #[case] at_once: bool) {
    let queue = queue();
    queue.add(1);
    fail(&queue, 1);
    event(&queue);
    advance(Duration::from_millis(700)).await;
    assert_eq!(poll_key(&queue).is_some(), at_once);
    advance(Duration::from_millis(600)).await;
    assert_eq!(poll_key(&queue).is_some(), !at_once);
}

#[tokio::test(start_paused = true)]
async fn an_event_brings_a_planned_return_forward() {
    let queue = queue();
    queue.add(1);
    poll(&queue).unwrap().done(Next::After(SECOND * 60));
    assert_eq!(poll_key(&queue), None);
    queue.add(1);
    assert_eq!(poll_key(&queue), Some(1));
}

#[tokio::test(start_paused = true)]
async fn what_is_wanted_now_runs_after_the_turn_that_fails() {
    let queue = queue();
    queue.add(1);
    let turn = poll(&queue).unwrap();
    queue.add_now(1);
    turn.done(FAILED);
    assert_eq!(poll(&queue).unwrap().failures(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_event_during_a_turn_that_fails_waits_for_the_backoff() {
    let queue = queue();
    queue.add(1);
    let turn = poll(&queue).unwrap();
    queue.add(1);
    turn.done(FAILED);
    assert_eq!(poll_key(&queue), None);
    advance(SECOND * 2).await;
    assert_eq!(poll_key(&queue), Some(1));
}

#[tokio::test(start_paused = true)]
async fn pauses_grow_with_failures_until_a_turn_succeeds() {
    let queue = queue();
    queue.add(1);
    let mut turn = poll(&queue).unwrap();
    for failures in 0..12 {
        assert_eq!(turn.failures(), failures);
        let failed_at = now();
        turn.done(FAILED);
        turn = queue.next().await.unwrap();
        let (waited, plain) = (now() - failed_at, SECOND * 2_u32.pow(failures).min(300));
        assert!(
            waited >= plain.mul_f64(0.79) && waited <= plain.mul_f64(1.21),
            "{waited:?} after {failures}"
        );
    }
    turn.done(Next::AwaitChange);
    queue.add(1);
    assert_eq!(poll(&queue).unwrap().failures(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_backoff_lasts_at_least_what_is_asked_for() {
    let queue = queue();
    queue.add(1);
    poll(&queue).unwrap().done(Next::retry_after(SECOND * 30));
    advance(SECOND * 29).await;
    assert_eq!(poll_key(&queue), None);
    advance(SECOND).await;
    assert_eq!(poll_key(&queue), Some(1));
}

#[tokio::test(start_paused = true)]
async fn what_failed_is_due_once_its_cause_is_mended_and_what_waits_by_itself_is_not() {
    let queue = queue();
    queue.add_after(3, SECOND * 30);
    queue.add(1);
    poll(&queue).unwrap().done(Next::retry_after(SECOND * 300));
    queue.add(2);
    let failing = poll(&queue).unwrap();
    queue.retry_failed();
    failing.done(Next::retry_after(SECOND * 300));
    let again = poll(&queue).unwrap();
    assert_eq!((*again.key(), again.failures()), (1, 1));
    again.done(Next::AwaitChange);
    assert_eq!(poll_key(&queue), Some(2));
    assert_eq!(poll_key(&queue), None);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_turn_counts_as_failed() {
    let queue = queue();
    queue.add(1);
    drop(poll(&queue).unwrap());
    assert_eq!(poll_key(&queue), None);
    advance(SECOND * 2).await;
    assert_eq!(poll(&queue).unwrap().failures(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_closed_queue_takes_nothing_and_forgets_everything() {
    let queue = queue();
    queue.add(1);
    queue.add_after(2, SECOND);
    queue.close();
    queue.add(3);
    queue.add_now(4);
    assert_eq!(queue.stats(), Stats::default());
    let waiting = queue.next();
    queue.open();
    queue.add(5);
    assert_eq!(*waiting.await.unwrap().key(), 5);
}

#[tokio::test(start_paused = true)]
async fn how_a_turn_ends_that_began_before_the_queue_closed_is_not_remembered() {
    let queue = queue();
    queue.add(1);
    let turn = poll(&queue).unwrap();
    queue.close();
    turn.done(FAILED);
    queue.open();
    assert_eq!(queue.stats(), Stats::default());
}

#[tokio::test(start_paused = true)]
async fn a_key_in_work_that_is_added_after_the_queue_reopened_runs_again_when_the_work_has_ended() {
    let queue = queue();
    queue.add(1);
    let turn = poll(&queue).unwrap();
    queue.close();
    queue.open();
    queue.add(1);
    assert!(poll(&queue).is_none());
    turn.done(FAILED);
    assert_eq!(poll(&queue).unwrap().failures(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_shut_down_queue_ends_everybody_who_waits() {
    let queue = queue();
    queue.add_after(1, SECOND);
    let waiting = queue.next();
    queue.shutdown();
    assert!(waiting.await.is_none());
    queue.add(2);
    assert!(queue.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_woken_by_a_key_that_is_due_earlier() {
    let queue = queue();
    queue.add_after(1, SECOND * 100);
    let other = queue.clone();
    let (turn, ()) = tokio::join!(queue.next(), async move { other.add_after(2, SECOND) });
    assert_eq!(*turn.unwrap().key(), 2);
}

#[tokio::test(start_paused = true)]
async fn figures_tell_what_waits_and_what_is_in_work() {
    let queue = queue();
    for key in 1..=4 {
        queue.add(key);
    }
    queue.add_after(5, SECOND * 60);
    let _first = poll(&queue).unwrap();
    advance(SECOND).await;
    let _second = poll(&queue).unwrap();
    advance(SECOND).await;
    let expected = Stats {
        depth: 2,
        delayed: 1,
        in_work: 2,
        unfinished: SECOND * 3,
        longest: SECOND * 2,
    };
    assert_eq!(queue.stats(), expected);
}

#[tokio::test(start_paused = true)]
async fn the_observer_sees_every_step() {
    let counts = Counts::default();
    let queue = Queue::new(counts.clone());
    queue.add(1);
    queue.add(1);
    fail(&queue, 1);
    queue.add_now(1);
    assert_eq!(poll_key(&queue), Some(1));
    assert_eq!(counts.all(), [1, 2, 2, 1]);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Add(u32),
    AddAfter(u32, u64),
    AddNow(u32),
    Retry(u32),
    Take,
    End(usize, u8),
    Advance(u64),
    Close,
    Open,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0_u32..4;
    let step = prop_oneof![
        key.clone().prop_map(Step::Add),
        (key.clone(), 0_u64..5_000).prop_map(|(key, delay)| Step::AddAfter(key, delay)),
        key.clone().prop_map(Step::AddNow),
        key.prop_map(Step::Retry),
        Just(Step::Take),
        Just(Step::Take),
        (0_usize..4, 0_u8..4).prop_map(|(index, how)| Step::End(index, how)),
        (0_u64..10_000).prop_map(Step::Advance),
        Just(Step::Close),
        Just(Step::Open),
    ];
    proptest::collection::vec(step, 0..80)
}

/// Runs `steps`, then lets everything end well. Fails if a key is in work twice or an added key never comes.
async fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let queue = queue();
    let mut in_work: Vec<Turn<u32>> = Vec::new();
    let mut owed = BTreeSet::new();
    let mut is_open = true;
    for step in steps {
        match step {
            Step::Add(key) => queue.add(key),
            Step::AddAfter(key, delay) => queue.add_after(key, Duration::from_millis(delay)),
            Step::AddNow(key) => queue.add_now(key),
            Step::Retry(key) => queue.retry(key),
            Step::Take => {
                if let Some(turn) = poll(&queue) {
                    prop_assert!(
                        in_work.iter().all(|other| other.key() != turn.key()),
                        "{turn:?} twice"
                    );
                    owed.remove(turn.key());
                    in_work.push(turn);
                }
            }
            Step::End(index, how) if index < in_work.len() => {
                let turn = in_work.swap_remove(index);
                let next = [Next::AwaitChange, Next::After(SECOND), FAILED];
                match next.get(usize::from(how)) {
                    Some(next) => turn.done(*next),
                    None => drop(turn),
                }
            }
            Step::End(..) => {}
            Step::Advance(millis) => advance(Duration::from_millis(millis)).await,
            Step::Close => {
                queue.close();
                owed.clear();
                is_open = false;
            }
            Step::Open => {
                queue.open();
                is_open = true;
            }
        }
        if let Step::Add(key) | Step::AddAfter(key, _) | Step::AddNow(key) | Step::Retry(key) = step
            && is_open
        {
            owed.insert(key);
        }
    }
    queue.open();
    for turn in in_work {
        turn.done(Next::AwaitChange);
    }
    for _ in 0..100 {
        advance(SECOND * 60).await;
        while let Some(key) = poll_key(&queue) {
            owed.remove(&key);
        }
    }
    prop_assert!(owed.is_empty(), "never handed out: {owed:?}");
    prop_assert_eq!(queue.stats(), Stats::default());
    Ok(())
}

proptest! {
    #[test]
    fn every_added_key_comes_and_none_is_in_work_twice(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(run(steps))?;
    }
}
