//! What a soak says while it runs, and what it remembers for a failure.

use std::{collections::VecDeque, time::Duration};

use bulkhead_harness::Stopwatch;

use super::{
    books::{Balance, Vitals},
    clients::Tally,
    model::Event,
};

/// Events that a failure tells.
const REMEMBERED: usize = 30;

pub(crate) struct Report<'a> {
    seed: u64,
    watch: Stopwatch,
    say: &'a mut dyn FnMut(&str),
    last: VecDeque<String>,
    events: usize,
    ends: usize,
    comparisons: usize,
    /// From a burst until all worked.
    longest: Duration,
}

impl<'a> Report<'a> {
    pub(crate) fn begin(seed: u64, say: &'a mut dyn FnMut(&str)) -> Self {
        say(&format!("seed {seed}"));
        Self {
            seed,
            watch: Stopwatch::start(),
            say,
            last: VecDeque::new(),
            events: 0,
            ends: 0,
            comparisons: 0,
            longest: Duration::ZERO,
        }
    }

    /// Remembers a line; says it too if it is `loud`.
    pub(crate) fn note(&mut self, line: impl AsRef<str>, loud: bool) {
        let line = format!("{:6.1} s  {}", self.watch.elapsed().as_secs_f64(), line.as_ref());
        if loud {
            (self.say)(&line);
        }
        if self.last.len() >= REMEMBERED {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }

    pub(crate) fn event(&mut self, event: &Event) {
        self.events += 1;
        if matches!(event, Event::KillHost | Event::KillPlugin | Event::StopHost) {
            self.ends += 1;
        }
        self.note(event.to_string(), false);
    }

    pub(crate) fn settled(&mut self, took: Duration) {
        self.longest = self.longest.max(took);
        self.note(format!("all works after {} ms", took.as_millis()), false);
    }

    pub(crate) fn balance(&mut self, balance: &Balance, services: usize, nodes: usize, tally: Tally) {
        self.comparisons += 1;
        let Balance {
            host,
            plugin,
            listeners,
        } = balance;
        let line = format!(
            "balanced: {services} Services, {nodes} nodes, {listeners} listeners; host {}; plugin {}; {} events, \
             {} answers",
            shown(host),
            shown(plugin),
            self.events,
            tally.answered
        );
        self.note(line, true);
    }

    pub(crate) fn sum(&mut self, tally: Tally) {
        let line = format!(
            "{} events, {} of them ends of a process; {} comparisons, nothing leaked; all worked again after {:.1} s \
             at most; {} answers to clients, {} connections failed, all while processes were ended; seed {}",
            self.events,
            self.ends,
            self.comparisons,
            self.longest.as_secs_f64(),
            tally.answered,
            tally.failed,
            self.seed
        );
        self.note(line, true);
    }

    /// For an error.
    pub(crate) fn last_events(&self) -> String {
        let lines: Vec<_> = self.last.iter().map(String::as_str).collect();
        format!(
            "seed {}, after {:.1} s; what happened last:\n{}\n",
            self.seed,
            self.watch.elapsed().as_secs_f64(),
            lines.join("\n")
        )
    }
}

fn shown(vitals: &Vitals) -> String {
    // To the nearest tenth of a MiB; no process has so much that more digits would tell anything.
    let tenths = vitals.memory * 10 / (1 << 20);
    format!(
        "{}: {} files, {}.{} MiB",
        vitals.pid,
        vitals.files,
        tenths / 10,
        tenths % 10
    )
}
