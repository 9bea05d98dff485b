//! What is compared, and what it must come to.

use std::time::Duration;

use super::fault::Fault;
use crate::sample::Sample;

/// How many times as long it may take under the fault.
const MOST: f64 = 2.0;

/// The same work without and with a fault.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    /// Without.
    pub(super) calm: Sample,
    /// With.
    pub(super) faulty: Sample,
    /// What the host says of the plugin that has the fault.
    pub(super) met: String,
}

impl Trial {
    /// How many times as long the slowest hundredth takes.
    fn ratio(&self) -> f64 {
        let p99 = |sample: &Sample| sample.per_mille(990).as_secs_f64();
        p99(&self.faulty) / p99(&self.calm).max(f64::MIN_POSITIVE)
    }

    /// That of the smallest ratio; `None` of none.
    pub(super) fn best(trials: Vec<Self>) -> Option<Self> {
        let closer = |one: &Self, other: &Self| one.ratio().total_cmp(&other.ratio());
        trials.into_iter().min_by(closer)
    }

    pub(super) fn holds(&self) -> bool {
        self.ratio() <= MOST
    }

    /// A line of the table.
    pub(super) fn line(&self, fault: Fault) -> String {
        let millis = |sample: &Sample, rank| format!("{:.0} ms", millis(sample.per_mille(rank)));
        let [calm, faulty] =
            [&self.calm, &self.faulty].map(|sample| (sample.len(), millis(sample, 500), millis(sample, 990)));
        format!(
            "{:15} {:>5} {:>7} {:>7}  {:>5} {:>7} {:>7} {:>6.2} {}  {}",
            fault.name(),
            calm.0,
            calm.1,
            calm.2,
            faulty.0,
            faulty.1,
            faulty.2,
            self.ratio(),
            if self.holds() { '✓' } else { '✗' },
            self.met
        )
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The table's first lines.
pub(super) fn heading() -> String {
    format!(
        "{:15} {:^21}  {:^21}\n{:15} {:>5} {:>7} {:>7}  {:>5} {:>7} {:>7} {:>6}    {}",
        "",
        "without the fault",
        "with it",
        "fault",
        "done",
        "p50",
        "p99",
        "done",
        "p50",
        "p99",
        "ratio",
        "how the faulty plugin is, seen by the host"
    )
}

/// What the table's marks mean.
pub(super) fn rule() -> String {
    format!(
        "✓: the p99 of the two others is at most {MOST} times that without the fault, and nothing of theirs failed"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(p99: u64) -> Sample {
        let mut times = vec![Duration::from_millis(1); 98];
        times.extend([Duration::from_millis(p99); 2]);
        Sample::new(times).unwrap()
    }

    fn trial(calm: u64, faulty: u64) -> Trial {
        Trial {
            calm: sample(calm),
            faulty: sample(faulty),
            met: String::new(),
        }
    }

    #[rstest::rstest]
    #[case::faster(10, 5, true)]
    #[case::twice_as_long(10, 20, true)]
    #[case::longer(10, 21, false)]
    fn twice_the_time_is_the_most(#[case] calm: u64, #[case] faulty: u64, #[case] holds: bool) {
        assert_eq!(trial(calm, faulty).holds(), holds);
    }

    #[test]
    fn the_trial_that_was_disturbed_least_counts() {
        let best = Trial::best(vec![trial(10, 40), trial(10, 15), trial(10, 30)]).unwrap();
        assert!(best.holds());
        assert!((best.ratio() - 1.5).abs() < 1e-9);
        assert!(Trial::best(Vec::new()).is_none());
    }
}
