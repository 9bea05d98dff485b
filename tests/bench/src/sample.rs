//! Times that were measured, and what they come to.

use std::time::Duration;

/// Measured times, at least one.
#[derive(Clone, Debug)]
pub(crate) struct Sample(Vec<Duration>);

impl Sample {
    /// `None` without any time.
    pub(crate) fn new(mut times: Vec<Duration>) -> Option<Self> {
        times.sort_unstable();
        (!times.is_empty()).then_some(Self(times))
    }

    /// How many times there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The time that so many of a thousand do not exceed (nearest rank).
    pub(crate) fn per_mille(&self, rank: usize) -> Duration {
        let index = (self.0.len() * rank).div_ceil(1000).saturating_sub(1);
        let found = self.0.get(index).or_else(|| self.0.last());
        found.copied().unwrap_or_default()
    }
}

/// The middle value, of an even number the upper of the two; `None` of nothing.
pub(crate) fn median<T: Copy + PartialOrd>(values: impl IntoIterator<Item = T>) -> Option<T> {
    let mut values: Vec<T> = values.into_iter().collect();
    values.sort_by(|one, other| one.partial_cmp(other).unwrap_or(std::cmp::Ordering::Equal));
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::half(500, 500)]
    #[case::almost_all(990, 990)]
    #[case::the_worst_of_a_thousand(999, 999)]
    #[case::all(1000, 1000)]
    #[case::none(0, 1)]
    fn a_percentile_is_the_value_that_so_many_do_not_exceed(#[case] rank: usize, #[case] expected: u64) {
        let times = (1..=1000).rev().map(Duration::from_micros).collect();
        let sample = Sample::new(times).unwrap();
        assert_eq!(sample.per_mille(rank), Duration::from_micros(expected));
    }

    #[test]
    fn few_values_have_percentiles_too() {
        let sample = Sample::new(vec![Duration::from_millis(7), Duration::from_millis(3)]).unwrap();
        let at = |rank| sample.per_mille(rank).as_millis();
        assert_eq!((at(500), at(501), at(999), sample.len()), (3, 7, 7, 2));
        assert!(Sample::new(Vec::new()).is_none());
    }

    #[rstest]
    #[case::odd(vec![5.0, 1.0, 3.0], Some(3.0))]
    #[case::even(vec![4.0, 1.0], Some(4.0))]
    #[case::nothing(vec![], None)]
    fn the_median_is_the_one_in_the_middle(#[case] values: Vec<f64>, #[case] expected: Option<f64>) {
        assert_eq!(median(values), expected);
    }
}
