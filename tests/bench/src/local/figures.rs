//! From runs to figures, and from figures to verdicts.

use serde::Serialize;

use super::load::{Load, Run};

/// Of several rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// How a figure is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Measure {
    ConnectsPerSecond,
    RequestsPerSecond,
    DownloadMebibytesPerSecond,
    UploadMebibytesPerSecond,
    DatagramsPerSecond,
    /// PSS while 1,000 connections are held.
    HeldMebibytes,
    /// The same as RSS, where pages that processes share count for each.
    HeldResidentMebibytes,
    IdleMebibytes,
    ConnectMicrosP50,
    ConnectMicrosP99,
    RequestMicrosP50,
    RequestMicrosP99,
    DatagramMicrosP50,
    DatagramMicrosP99,
    LostDatagramsPerMillion,
    ConnectCpuMicros,
    RequestCpuMicros,
    DownloadCpuMicrosPerMebibyte,
    UploadCpuMicrosPerMebibyte,
    DatagramCpuMicros,
}

/// What is promised of a figure, in relation to that of another balancer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// The documentation's promises.
const FAST_ENOUGH: Bound = Bound::AtLeast(0.7);
const SMALL_ENOUGH: Bound = Bound::AtMost(2.0);

impl Bound {
    pub(crate) fn holds(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(bound) => ratio >= bound,
            Self::AtMost(bound) => ratio <= bound,
        }
    }
}

impl Measure {
    /// In the order in which people read them.
    pub(crate) const ALL: [Self; 20] = [
        Self::ConnectsPerSecond,
        Self::ConnectMicrosP50,
        Self::ConnectMicrosP99,
        Self::ConnectCpuMicros,
        Self::RequestsPerSecond,
        Self::RequestMicrosP50,
        Self::RequestMicrosP99,
        Self::RequestCpuMicros,
        Self::DownloadMebibytesPerSecond,
        Self::DownloadCpuMicrosPerMebibyte,
        Self::UploadMebibytesPerSecond,
        Self::UploadCpuMicrosPerMebibyte,
        Self::DatagramsPerSecond,
        Self::DatagramMicrosP50,
        Self::DatagramMicrosP99,
        Self::DatagramCpuMicros,
        Self::LostDatagramsPerMillion,
        Self::IdleMebibytes,
        Self::HeldMebibytes,
        Self::HeldResidentMebibytes,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ConnectsPerSecond => "TCP connections, 1/s",
            Self::RequestsPerSecond => "TCP requests, 1/s",
            Self::DownloadMebibytesPerSecond => "TCP to clients, MiB/s",
            Self::UploadMebibytesPerSecond => "TCP from clients, MiB/s",
            Self::DatagramsPerSecond => "UDP round trips, 1/s",
            Self::HeldMebibytes => "memory, 1,000 connections, MiB",
            Self::HeldResidentMebibytes => "  the same as RSS, MiB",
            Self::IdleMebibytes => "memory, none yet, MiB",
            Self::ConnectMicrosP50 | Self::RequestMicrosP50 | Self::DatagramMicrosP50 => "  p50, µs",
            Self::ConnectMicrosP99 | Self::RequestMicrosP99 | Self::DatagramMicrosP99 => "  p99, µs",
            Self::LostDatagramsPerMillion => "  lost of a million",
            Self::ConnectCpuMicros | Self::RequestCpuMicros | Self::DatagramCpuMicros => "  its CPU each, µs",
            Self::DownloadCpuMicrosPerMebibyte | Self::UploadCpuMicrosPerMebibyte => "  its CPU per MiB, µs",
        }
    }

    /// What is promised, for those of which something is.
    pub(crate) fn bound(self) -> Option<Bound> {
        match self {
            Self::ConnectsPerSecond
            | Self::RequestsPerSecond
            | Self::DownloadMebibytesPerSecond
            | Self::UploadMebibytesPerSecond
            | Self::DatagramsPerSecond => Some(FAST_ENOUGH),
            Self::HeldMebibytes => Some(SMALL_ENOUGH),
            Self::IdleMebibytes
            | Self::HeldResidentMebibytes
            | Self::ConnectMicrosP50
            | Self::ConnectMicrosP99
            | Self::RequestMicrosP50
            | Self::RequestMicrosP99
            | Self::DatagramMicrosP50
            | Self::DatagramMicrosP99
            | Self::LostDatagramsPerMillion
            | Self::ConnectCpuMicros
            | Self::RequestCpuMicros
            | Self::DownloadCpuMicrosPerMebibyte
            | Self::UploadCpuMicrosPerMebibyte
            | Self::DatagramCpuMicros => None,
        }
    }
}

/// The figures of one run, during which the balancer took so much CPU time.
pub(crate) fn figures(load: Load, mut run: Run, cpu: std::time::Duration) -> Vec<(Measure, f64)> {
    let done = real(run.done);
    let per_second = done / run.took.as_secs_f64();
    let each = cpu.as_secs_f64() * 1e6 / done;
    run.latencies.sort_unstable();
    let p50 = f64::from(percentile(&run.latencies, 50));
    let p99 = f64::from(percentile(&run.latencies, 99));
    match load {
        Load::Connects => vec![
            (Measure::ConnectsPerSecond, per_second),
            (Measure::ConnectMicrosP50, p50),
            (Measure::ConnectMicrosP99, p99),
            (Measure::ConnectCpuMicros, each),
        ],
        Load::Requests => vec![
            (Measure::RequestsPerSecond, per_second),
            (Measure::RequestMicrosP50, p50),
            (Measure::RequestMicrosP99, p99),
            (Measure::RequestCpuMicros, each),
        ],
        Load::Download => vec![
            (Measure::DownloadMebibytesPerSecond, per_second / MEBIBYTE),
            (Measure::DownloadCpuMicrosPerMebibyte, each * MEBIBYTE),
        ],
        Load::Upload => vec![
            (Measure::UploadMebibytesPerSecond, per_second / MEBIBYTE),
            (Measure::UploadCpuMicrosPerMebibyte, each * MEBIBYTE),
        ],
        Load::Datagrams => vec![
            (Measure::DatagramsPerSecond, per_second),
            (Measure::DatagramMicrosP50, p50),
            (Measure::DatagramMicrosP99, p99),
            (Measure::DatagramCpuMicros, each),
            (
                Measure::LostDatagramsPerMillion,
                1e6 * real(run.lost) / (done + real(run.lost)),
            ),
        ],
    }
}

const MEBIBYTE: f64 = 1_048_576.0;

/// Bytes as MiB.
pub(crate) fn mebibytes(bytes: u64) -> f64 {
    real(bytes) / MEBIBYTE
}

#[expect(
    clippy::cast_precision_loss,
    reason = "exact to 2^53, and a count beyond would still be right to 15 digits"
)]
fn real(count: u64) -> f64 {
    count as f64
}

/// The nearest-rank percentile of sorted values; 0 of none.
fn percentile(sorted: &[u32], percent: usize) -> u32 {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

/// Of the rounds' values; none of none.
pub(crate) fn spread(values: &[f64]) -> Option<Spread> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    let lower = *sorted.get((sorted.len() - 1) / 2)?;
    Some(Spread {
        median: f64::midpoint(lower, upper),
        min: *sorted.first()?,
        max: *sorted.last()?,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::none(&[], 50, 0)]
    #[case::one(&[7], 99, 7)]
    #[case::half_of_four(&[1, 2, 3, 4], 50, 2)]
    #[case::nearly_all(&[1, 2, 3, 4], 99, 4)]
    fn percentiles(#[case] sorted: &[u32], #[case] percent: usize, #[case] want: u32) {
        assert_eq!(percentile(sorted, percent), want);
    }

    #[rstest]
    #[case::odd(&[3.0, 1.0, 9.0], 3.0, 1.0, 9.0)]
    #[case::even(&[4.0, 1.0, 2.0, 9.0], 3.0, 1.0, 9.0)]
    #[case::one(&[5.0], 5.0, 5.0, 5.0)]
    fn spreads(#[case] values: &[f64], #[case] median: f64, #[case] min: f64, #[case] max: f64) {
        assert_eq!(spread(values), Some(Spread { median, min, max }));
    }

    #[test]
    fn nothing_has_no_spread() {
        assert_eq!(spread(&[]), None);
    }

    #[rstest]
    #[case::as_fast(FAST_ENOUGH, 0.7, true)]
    #[case::slower(FAST_ENOUGH, 0.699, false)]
    #[case::twice(SMALL_ENOUGH, 2.0, true)]
    #[case::larger(SMALL_ENOUGH, 2.001, false)]
    #[case::no_figure(FAST_ENOUGH, f64::NAN, false)]
    fn verdicts(#[case] bound: Bound, #[case] ratio: f64, #[case] want: bool) {
        assert_eq!(bound.holds(ratio), want);
    }

    #[test]
    fn bulk_is_in_mebibytes_and_its_cost_per_mebibyte() {
        let run = Run {
            done: 4 << 20,
            took: Duration::from_secs(2),
            ..Run::default()
        };
        assert_eq!(
            figures(Load::Upload, run, Duration::from_millis(1)),
            [
                (Measure::UploadMebibytesPerSecond, 2.0),
                (Measure::UploadCpuMicrosPerMebibyte, 250.0)
            ]
        );
    }

    #[test]
    fn every_measure_is_listed_once() {
        let all: std::collections::BTreeSet<Measure> = Measure::ALL.into();
        assert_eq!(all.len(), Measure::ALL.len());
    }
}
