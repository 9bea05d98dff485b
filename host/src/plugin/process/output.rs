//! What a child writes goes into the host's log: line by line, cut, cleaned, and not faster than a log is read.

use std::num::NonZeroUsize;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};

use crate::bucket::Bucket;
use crate::clock;
use crate::config::RateConfig;
use crate::plugin::convert::text::is_unprintable;

/// Longest line that is kept; the rest of a longer one is dropped.
const LINE_BYTES: usize = 8 << 10;
/// How many lines may come: what a person can still follow, and a start that says a lot.
const RATE: RateConfig = RateConfig {
    per_second: 50.0,
    burst: NonZeroUsize::new(500).unwrap(),
};

/// Hands out lines, cut and cleaned, until the pipe ends. The pipe is always read: a plugin never waits for its log.
pub(super) async fn forward(pipe: impl AsyncRead + Unpin, emit: impl Fn(&str)) {
    let mut reader = BufReader::new(pipe);
    let mut line = Vec::new();
    let mut bucket = Bucket::new(RATE);
    let mut dropped = 0;
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
            if bucket.try_take(clock::now()) {
                tell_dropped(std::mem::take(&mut dropped), &emit);
                emit(&printable(&line));
            } else {
                dropped += 1;
            }
            line.clear();
        }
    }
    tell_dropped(dropped, &emit);
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
}
