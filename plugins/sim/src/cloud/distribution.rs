//! Spans of time as files write them, and how such spans are spread.

use std::fmt;
use std::time::Duration;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest span that anything here may take: what is longer is a mistake.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// A span of time, written as `250ms`, `5s` or `1m 30s`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl Span {
    fn read(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no span of time: write it as 250ms, 5s or 1m 30s, at most a day");
        let span: jiff::SignedDuration = text.parse().map_err(|_| wrong())?;
        let span = Duration::try_from(span).map_err(|_| wrong())?;
        if span > LONGEST {
            return Err(wrong());
        }
        Ok(Self(span))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = jiff::SignedDuration::try_from(self.0).unwrap_or(jiff::SignedDuration::MAX);
        write!(formatter, "{span:#}")
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Self::read(&text).map_err(D::Error::custom)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// How spans of time are spread: points of (percentile, span), with straight lines between them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Distribution(Vec<(f64, Duration)>);

impl Distribution {
    /// Always the same.
    pub fn always(span: Duration) -> Self {
        Self(vec![(0.0, span)])
    }

    /// Evenly between two spans.
    pub fn between(least: Duration, most: Duration) -> Self {
        Self(vec![(0.0, least), (100.0, most.max(least))])
    }

    /// The span at `fraction` of all, 0 to 1.
    pub(crate) fn at(&self, fraction: f64) -> Duration {
        let percent = fraction * 100.0;
        let mut before: Option<(f64, Duration)> = None;
        for &(point, span) in &self.0 {
            if percent < point {
                let Some((from, low)) = before else { return span };
                let part = (percent - from) / (point - from);
                return low + span.saturating_sub(low).mul_f64(part);
            }
            before = Some((point, span));
        }
        before.map_or(Duration::ZERO, |(_, span)| span)
    }

    /// The longest of all.
    pub(crate) fn most(&self) -> Duration {
        self.0.last().map_or(Duration::ZERO, |(_, span)| *span)
    }

    fn read(points: Vec<(String, Span)>) -> Result<Self, String> {
        let mut read = Vec::with_capacity(points.len());
        for (name, Span(span)) in points {
            let percent = name.strip_prefix('p').and_then(|text| text.parse::<f64>().ok());
            match percent.filter(|percent| (0.0..=100.0).contains(percent)) {
                Some(percent) => read.push((percent, span)),
                None => return Err(format!("{name:?} is no percentile: write p0 to p100")),
            }
        }
        read.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let falls = read.windows(2).any(|pair| match pair {
            [(one, low), (other, high)] => one >= other || low > high,
            _ => false,
        });
        if falls || read.is_empty() {
            return Err("a higher percentile needs a span that is at least as long".to_owned());
        }
        Ok(Self(read))
    }
}

impl<'de> Deserialize<'de> for Distribution {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Points;
        impl<'de> Visitor<'de> for Points {
            type Value = Distribution;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a span of time as 20ms, or percentiles as {p50: 20ms, p99: 1s}")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Distribution, E> {
                let Span(span) = Span::read(text).map_err(E::custom)?;
                Ok(Distribution::always(span))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Distribution, A::Error> {
                let mut points = Vec::new();
                while let Some(point) = map.next_entry::<String, Span>()? {
                    points.push(point);
                }
                Distribution::read(points).map_err(A::Error::custom)
            }
        }
        from.deserialize_any(Points)
    }
}

impl Serialize for Distribution {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [] => Span::default().serialize(to),
            [(_, only)] => Span(*only).serialize(to),
            points => to.collect_map(
                points
                    .iter()
                    .map(|(percent, span)| (format!("p{percent}"), Span(*span))),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn read(text: &str) -> Result<Distribution, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[rstest]
    #[case::always("\"20ms\"", 0.7, 20)]
    #[case::below_the_first_point(r#"{"p50": "20ms", "p100": "40ms"}"#, 0.1, 20)]
    #[case::half_way(r#"{"p50": "20ms", "p100": "40ms"}"#, 0.75, 30)]
    #[case::after_the_last_point(r#"{"p0": "0ms", "p50": "20ms"}"#, 0.9, 20)]
    fn a_span_lies_where_its_percentile_says(#[case] text: &str, #[case] fraction: f64, #[case] millis: u64) {
        let spread = read(text).expect("legal");
        assert_eq!(spread.at(fraction), Duration::from_millis(millis));
        let again = serde_json::to_string(&spread).expect("writable");
        assert_eq!(read(&again), Ok(spread));
    }

    #[rstest]
    #[case::falling(r#"{"p50": "20ms", "p99": "10ms"}"#)]
    #[case::no_percentile(r#"{"median": "20ms"}"#)]
    #[case::over_a_hundred(r#"{"p101": "20ms"}"#)]
    #[case::no_span("\"soon\"")]
    #[case::negative("\"-1s\"")]
    #[case::longer_than_a_day("\"25h\"")]
    #[case::empty("{}")]
    fn what_is_no_distribution_is_refused(#[case] text: &str) {
        assert!(read(text).is_err());
    }
}
