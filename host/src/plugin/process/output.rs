//! What a child writes goes into the host's log: line by line, cut, cleaned, and not faster than a log is read.

use std::time::Duration;

use bulkhead_core::clock::Instant;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};

use crate::clock;
use crate::plugin::convert::text::is_unprintable;

/// Longest line that is kept; the rest of a longer one is dropped.
const LINE_BYTES: usize = 8 << 10;
/// Lines that may come at once.
const BURST: u32 = 500;
/// How often one more line may come, for good: 50 a second.
const PACE: Duration = Duration::from_millis(20);

/// Hands out lines, cut and cleaned, until the pipe ends. The pipe is always read: a plugin never waits for its log.
pub(super) async fn forward(pipe: impl AsyncRead + Unpin, emit: impl Fn(&str)) {
    let mut reader = BufReader::new(pipe);
    let mut line = Vec::new();
    let mut budget = Budget::new(clock::now());
    loop {
        let (used, is_whole) = match reader.fill_buf().await {
            Ok([]) | Err(_) => break,
            Ok(chunk) => {
                let end = chunk.iter().position(|byte| *byte == b'\n');
                let text = chunk.get(..end.unwrap_or(chunk.len())).unwrap_or_default();
                let room = LINE_BYTES.saturating_sub(line.len());
                line.extend_from_slice(text.get(..room).unwrap_or(text));
                (text.len() + usize::from(end.is_some()), end.is_some())
            }
        };
        reader.consume(used);
        if is_whole {
            if budget.admits(clock::now()) {
                tell_dropped(budget.take_dropped(), &emit);
                emit(&printable(&line));
            }
            line.clear();
        }
    }
    tell_dropped(budget.take_dropped(), &emit);
    if !line.is_empty() {
        emit(&printable(&line));
    }
}

fn tell_dropped(lines: u64, emit: impl Fn(&str)) {
    if lines > 0 {
        emit(&format!(
            "({lines} lines were dropped: the plugin writes too much)"
        ));
    }
}

/// A line without control characters; JSON stays JSON.
fn printable(line: &[u8]) -> String {
    String::from_utf8_lossy(line)
        .chars()
        .map(|c| if is_unprintable(c) { ' ' } else { c })
        .collect()
}

/// Writes lines into the log, as the plugin's.
pub(super) fn logger(plugin: &str) -> impl Fn(&str) + use<> {
    let plugin = plugin.to_owned();
    move |line| tracing::info!(target: "plugin", plugin, "{line}")
}

/// How many more lines may come, and how many were too many.
#[derive(Debug)]
struct Budget {
    /// When it will be full again.
    full_at: Instant,
    dropped: u64,
}

impl Budget {
    const fn new(now: Instant) -> Self {
        Self {
            full_at: now,
            dropped: 0,
        }
    }

    /// Whether one more line may come now.
    fn admits(&mut self, now: Instant) -> bool {
        let full_at = self.full_at.max(now) + PACE;
        if full_at.saturating_since(now) > PACE * BURST {
            self.dropped += 1;
            return false;
        }
        self.full_at = full_at;
        true
    }

    fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use rstest::rstest;

    use super::*;

    async fn lines(output: Vec<u8>) -> Vec<String> {
        let lines = Mutex::new(Vec::new());
        forward(output.as_slice(), |line| {
            lines.lock().unwrap().push(line.to_owned());
        })
        .await;
        lines.into_inner().unwrap()
    }

    #[rstest]
    #[case::lines(b"one\ntwo\n", &["one", "two"])]
    #[case::the_last_line_may_be_open(b"one\ntw", &["one", "tw"])]
    #[case::no_utf8(b"a\xffb\n", &["a\u{fffd}b"])]
    #[case::colours(b"\x1b[31mred\n", &[" [31mred"])]
    #[case::nothing(b"", &[])]
    #[tokio::test]
    async fn output_becomes_lines(#[case] output: &[u8], #[case] expected: &[&str]) {
        assert_eq!(lines(output.to_vec()).await, expected);
    }

    #[tokio::test]
    async fn an_endless_line_is_cut_and_the_next_one_is_whole() {
        let output = [vec![b'x'; 100_000], b"\nnext\n".to_vec()].concat();
        let lines = lines(output).await;
        assert_eq!((lines[0].len(), lines[1].as_str()), (LINE_BYTES, "next"));
    }

    #[tokio::test]
    async fn a_flood_is_cut_and_counted() {
        let lines = lines(b"flood\n".repeat(100_000)).await;
        let (told, kept): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line.starts_with('('));
        assert!(kept.len() < 1000, "{}", kept.len());
        let count = |line: &&String| -> usize {
            line.trim_start_matches('(')
                .split(' ')
                .next()
                .unwrap()
                .parse()
                .unwrap()
        };
        let dropped: usize = told.iter().map(count).sum();
        assert_eq!(kept.len() + dropped, 100_000);
    }

    #[test]
    fn a_budget_fills_up_again() {
        let start = Instant::ORIGIN;
        let mut budget = Budget::new(start);
        let admitted = (0..1000).filter(|_| budget.admits(start)).count();
        assert_eq!(admitted, BURST as usize);
        assert!(!budget.admits(start) && budget.admits(start + PACE));
        let later = start + PACE * BURST * 10;
        let admitted = (0..1000).filter(|_| budget.admits(later)).count();
        assert_eq!(admitted, BURST as usize);
    }
}
