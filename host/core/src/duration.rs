//! Durations in Go's syntax, as every Kubernetes flag takes them: `300ms`, `1h2m3s`, `1.5h`, `0`.

use std::time::Duration;

/// Why a text is no duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// Nothing was given.
    #[error("is empty; write a duration such as 15s, 500ms or 1h2m3s")]
    Empty,
    /// A span cannot be negative here.
    #[error("is negative")]
    Negative,
    /// A number was expected and not found.
    #[error("has no number where one is expected; write a duration such as 15s, 500ms or 1h2m3s")]
    NoNumber,
    /// A number has no unit after it.
    #[error("has a number without a unit; units are h, m, s, ms, us, ns")]
    NoUnit,
    /// The letters after a number are no unit.
    #[error("has an unknown unit; units are h, m, s, ms, us, ns")]
    UnknownUnit,
    /// Longer than Go can hold, about 292 years.
    #[error("is too long; 2562047h is the longest")]
    TooLong,
}

/// Go keeps a duration as signed 64-bit nanoseconds.
const LONGEST: u128 = i64::MAX as u128;

/// Reads a duration in Go's syntax. A leading `+` is legal, `-` is not.
///
/// # Errors
/// What is wrong with the text, as a phrase to put after the name of the flag and the text.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    if text.starts_with('-') {
        return Err(DurationError::Negative);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return Err(DurationError::Empty);
    }
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let (nanos, after) = parse_term(rest)?;
        total = total.saturating_add(nanos);
        if total > LONGEST {
            return Err(DurationError::TooLong);
        }
        rest = after;
    }
    u64::try_from(total)
        .map(Duration::from_nanos)
        .map_err(|_| DurationError::TooLong)
}

/// One number and its unit, in nanoseconds, and the text after them.
fn parse_term(text: &str) -> Result<(u128, &str), DurationError> {
    let (whole, rest) = take_while(text, |c| c.is_ascii_digit());
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => take_while(rest, |c| c.is_ascii_digit()),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(DurationError::NoNumber);
    }
    let (unit, rest) = take_while(rest, |c| c != '.' && !c.is_ascii_digit());
    let unit = nanos_in(unit)?;
    let whole = if whole.is_empty() {
        0
    } else {
        whole.parse::<u64>().map_err(|_| DurationError::TooLong)?
    };
    let nanos = u128::from(whole)
        .saturating_mul(unit)
        .saturating_add(fraction_of(fraction, unit));
    Ok((nanos, rest))
}

/// `0.fraction` of `unit`, cut to whole nanoseconds. Digits past the 18th are worth less than one.
fn fraction_of(fraction: &str, unit: u128) -> u128 {
    let mut scaled: u128 = 0;
    let mut scale: u128 = 1;
    for digit in fraction.chars().take(18).filter_map(|c| c.to_digit(10)) {
        scaled = scaled * 10 + u128::from(digit);
        scale *= 10;
    }
    scaled * unit / scale
}

fn nanos_in(unit: &str) -> Result<u128, DurationError> {
    match unit {
        "" => Err(DurationError::NoUnit),
        "ns" => Ok(1),
        "us" | "\u{b5}s" | "\u{3bc}s" => Ok(1_000),
        "ms" => Ok(1_000_000),
        "s" => Ok(1_000_000_000),
        "m" => Ok(60_000_000_000),
        "h" => Ok(3_600_000_000_000),
        _ => Err(DurationError::UnknownUnit),
    }
}

fn take_while(text: &str, accept: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|c| !accept(c)).unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::zero_needs_no_unit("0", 0)]
    #[case::seconds("15s", 15_000_000_000)]
    #[case::as_go_prints("5m0s", 300_000_000_000)]
    #[case::all_units("1h2m3s4ms5us6ns", 3_723_004_005_006)]
    #[case::fraction("1.5h", 5_400_000_000_000)]
    #[case::only_a_fraction(".5s", 500_000_000)]
    #[case::point_without_fraction("2.s", 2_000_000_000)]
    #[case::micro_sign("7\u{b5}s", 7_000)]
    #[case::plus("+1ms", 1_000_000)]
    #[case::below_a_nanosecond_is_cut("1.9ns", 1)]
    #[case::a_unit_twice_adds_up("1s1s", 2_000_000_000)]
    #[case::the_longest("9223372036854775807ns", i64::MAX.unsigned_abs())]
    fn go_durations_are_read(#[case] text: &str, #[case] nanos: u64) {
        assert_eq!(parse(text), Ok(Duration::from_nanos(nanos)));
    }

    #[rstest]
    #[case::empty("", DurationError::Empty)]
    #[case::a_sign_alone("+", DurationError::Empty)]
    #[case::negative("-1s", DurationError::Negative)]
    #[case::no_unit("15", DurationError::NoUnit)]
    #[case::the_second_has_no_unit("1s5", DurationError::NoUnit)]
    #[case::no_number("s", DurationError::NoNumber)]
    #[case::only_a_point(".s", DurationError::NoNumber)]
    #[case::days("1d", DurationError::UnknownUnit)]
    #[case::capital("1S", DurationError::UnknownUnit)]
    #[case::blank("1 s", DurationError::UnknownUnit)]
    #[case::one_too_many("9223372036854775808ns", DurationError::TooLong)]
    #[case::many_digits("99999999999999999999h", DurationError::TooLong)]
    fn other_texts_are_refused(#[case] text: &str, #[case] expected: DurationError) {
        assert_eq!(parse(text), Err(expected));
    }

    proptest! {
        #[test]
        fn whole_nanoseconds_come_back(nanos in 0..=i64::MAX.unsigned_abs()) {
            prop_assert_eq!(parse(&format!("{nanos}ns")), Ok(Duration::from_nanos(nanos)));
        }

        #[test]
        fn every_text_is_refused_or_within_go_s_range(text in "[-+]?[0-9.hmsnu \u{b5}]{0,40}") {
            let nanos = parse(&text).map_or(0, |span| span.as_nanos());
            prop_assert!(nanos <= LONGEST);
        }
    }
}
