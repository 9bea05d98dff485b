//! What was measured, as a table or as JSON, and what is promised of it.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use super::figures::{Bound, Measure, Spread, spread};

/// All rounds' figures; the first contestant is ours.
#[derive(Debug)]
pub(crate) struct Rounds {
    contestants: Vec<String>,
    values: BTreeMap<(Measure, usize), Vec<f64>>,
}

/// What is shown.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    /// The machine and how it was measured.
    pub(crate) conditions: String,
    contestants: Vec<String>,
    lines: Vec<Line>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    measure: Measure,
    /// One each of the contestants; none for what it cannot do.
    figures: Vec<Option<Spread>>,
    /// Ours in relation to each of the others'.
    ratios: Vec<Option<f64>>,
    #[serde(flatten)]
    verdict: Option<Verdict>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Verdict {
    bound: Bound,
    holds: bool,
}

impl Rounds {
    pub(crate) fn new(contestants: Vec<String>) -> Self {
        Self {
            contestants,
            values: BTreeMap::new(),
        }
    }

    /// One round's figure of a contestant, by its number.
    pub(crate) fn add(&mut self, contestant: usize, measure: Measure, value: f64) {
        self.values.entry((measure, contestant)).or_default().push(value);
    }

    /// Sums up.
    pub(crate) fn report(self, conditions: String) -> Report {
        let line = |measure| {
            let values = |number| self.values.get(&(measure, number));
            let figures: Vec<_> = (0..self.contestants.len())
                .map(|number| values(number).and_then(|values| spread(values)))
                .collect();
            Line::new(measure, figures)
        };
        Report {
            conditions,
            lines: Measure::ALL.into_iter().map(line).collect(),
            contestants: self.contestants,
        }
    }
}

impl Line {
    fn new(measure: Measure, figures: Vec<Option<Spread>>) -> Self {
        let ours = figures.first().copied().flatten();
        let ratio = |other: &Option<Spread>| Some(ours?.median / other.as_ref()?.median);
        let ratios: Vec<_> = figures.iter().skip(1).map(ratio).collect();
        let verdict = measure.bound().map(|bound| Verdict {
            bound,
            holds: ratios.iter().flatten().all(|ratio| bound.holds(*ratio)),
        });
        Self {
            measure,
            figures,
            ratios,
            verdict,
        }
    }
}

impl Report {
    /// How many promises were checked, and how many of them do not hold.
    pub(crate) fn missed(&self) -> (usize, usize) {
        let verdicts = self.lines.iter().filter_map(|line| line.verdict);
        let (held, missed): (Vec<_>, Vec<_>) = verdicts.partition(|verdict| verdict.holds);
        (held.len() + missed.len(), missed.len())
    }
}

const NAME: usize = 31;
const FIGURE: usize = 26;
const RATIO: usize = 6;

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.conditions)?;
        write!(f, "{:NAME$}", "")?;
        for (number, contestant) in self.contestants.iter().enumerate() {
            write!(f, "{contestant:>FIGURE$}")?;
            if number > 0 {
                write!(f, "{:>RATIO$}", "ratio")?;
            }
        }
        writeln!(f, "  bound")?;
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl Display for Line {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:NAME$}", self.measure.name())?;
        for (number, figure) in self.figures.iter().enumerate() {
            let text = figure.map_or_else(|| "-".to_owned(), |figure| figure.to_string());
            write!(f, "{text:>FIGURE$}")?;
            if let Some(ratio) = number.checked_sub(1).and_then(|other| self.ratios.get(other)) {
                let text = ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
                write!(f, "{text:>RATIO$}")?;
            }
        }
        if let Some(Verdict { bound, holds }) = self.verdict {
            write!(f, "  {bound} {}", if holds { "holds" } else { "MISSED" })?;
        }
        Ok(())
    }
}

impl Display for Bound {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(bound) => write!(f, ">= {bound:.2}"),
            Self::AtMost(bound) => write!(f, "<= {bound:.2}"),
        }
    }
}

impl Display for Spread {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (median, min, max) = (number(self.median), number(self.min), number(self.max));
        write!(f, "{median} ({min}-{max})")
    }
}

/// Three digits at least, thousands apart: `12,345`, `12.3`.
fn number(value: f64) -> String {
    if value < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::small(1.25, "1.2")]
    #[case::hundreds(999.4, "999")]
    #[case::thousands(12_345.0, "12,345")]
    #[case::millions(1_234_567.0, "1,234,567")]
    fn numbers(#[case] value: f64, #[case] want: &str) {
        assert_eq!(number(value), want);
    }

    fn rounds(ours: f64, first: f64, second: Option<f64>) -> Report {
        let mut rounds = Rounds::new(["ours", "one", "two"].map(str::to_owned).into());
        rounds.add(0, Measure::DatagramsPerSecond, ours);
        rounds.add(1, Measure::DatagramsPerSecond, first);
        if let Some(second) = second {
            rounds.add(2, Measure::DatagramsPerSecond, second);
        }
        rounds.report("here".to_owned())
    }

    #[rstest]
    #[case::beside_both(100.0, 100.0, Some(142.0), true)]
    #[case::slower_than_one(100.0, 100.0, Some(143.0), false)]
    #[case::where_one_cannot(100.0, 140.0, None, true)]
    fn a_bound_holds_beside_every_contestant(
        #[case] ours: f64,
        #[case] first: f64,
        #[case] second: Option<f64>,
        #[case] holds: bool,
    ) {
        let report = rounds(ours, first, second);
        let verdicts = report
            .lines
            .iter()
            .filter(|line| line.measure == Measure::DatagramsPerSecond);
        let verdicts: Vec<_> = verdicts.filter_map(|line| line.verdict).collect();
        assert_eq!(verdicts.first().map(|verdict| verdict.holds), Some(holds));
    }

    #[test]
    fn a_line_shows_medians_ranges_ratio_and_verdict() {
        let text = rounds(12_000.0, 24_000.0, None).to_string();
        let line = text.lines().find(|line| line.starts_with("UDP")).unwrap();
        let words: Vec<_> = line.split_whitespace().skip(4).collect();
        let want = "12,000 (12,000-12,000) 24,000 (24,000-24,000) 0.50 - >= 0.70 MISSED";
        assert_eq!(words.join(" "), want);
    }
}
