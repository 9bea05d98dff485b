//! Patterns over whole provider IDs, and whether two of them have one in common.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::str::FromStr;

use crate::ids::{PROVIDER_ID_MAX, ProviderId};

/// A pattern over a whole provider ID: `*` stands for any run of characters, also none and also with slashes in it;
/// every other character stands for itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern(String);

/// Why a text is no pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// A character that no pattern has.
    #[error("is no pattern: a pattern has printable ASCII characters without white space")]
    Character,
    /// Over the length of a provider ID.
    #[error("is too long: a pattern has at most {PROVIDER_ID_MAX} bytes")]
    Long,
    /// No provider ID matches it.
    #[error("matches no provider ID; those have the form scheme://id, and * stands for any characters")]
    Vain,
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(PatternError::Character);
        }
        if text.len() > PROVIDER_ID_MAX {
            return Err(PatternError::Long);
        }
        let pattern = Self(text.to_owned());
        match common(&[&pattern]) {
            Some(_) => Ok(pattern),
            None => Err(PatternError::Vain),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl Pattern {
    /// Every provider ID of `scheme`.
    pub fn of_scheme(scheme: &str) -> Self {
        Self(format!("{scheme}://*"))
    }

    /// Whether it matches `id`, from the first character to the last.
    pub fn matches(&self, id: &ProviderId) -> bool {
        let (pattern, text) = (self.0.as_bytes(), id.as_str().as_bytes());
        let (mut at, mut seen) = (0, 0);
        // Where to go on with one character more under the last star, if it goes wrong from here.
        let mut retry: Option<(usize, usize)> = None;
        while let Some(byte) = text.get(seen) {
            match pattern.get(at) {
                Some(b'*') => {
                    at += 1;
                    retry = Some((at, seen));
                }
                Some(wanted) if wanted == byte => {
                    at += 1;
                    seen += 1;
                }
                _ => match retry {
                    Some((after_star, from)) => {
                        (at, seen) = (after_star, from + 1);
                        retry = Some((after_star, from + 1));
                    }
                    None => return false,
                },
            }
        }
        self.is_past(at)
    }

    /// Whether nothing but stars is left at `at`.
    fn is_past(&self, at: usize) -> bool {
        self.0.bytes().skip(at).all(|byte| byte == b'*')
    }

    /// The character that must come at `at`, if one must, and whether any other may.
    fn ahead(&self, at: usize) -> (Option<u8>, bool) {
        let rest = self.0.as_bytes().get(at..).unwrap_or_default();
        let literal = rest.iter().copied().find(|byte| *byte != b'*');
        (literal, rest.first() == Some(&b'*'))
    }

    /// Everywhere that `byte` at `at` can lead.
    fn step(&self, at: usize, byte: u8) -> impl Iterator<Item = usize> {
        let rest = self.0.as_bytes().get(at..).unwrap_or_default();
        let run = rest.iter().take_while(|it| **it == b'*').count();
        let stays = (run > 0).then_some(at);
        let goes = (rest.get(run) == Some(&byte)).then_some(at + run + 1);
        stays.into_iter().chain(goes)
    }
}

/// How far a text is on its way to be a provider ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Form {
    Empty,
    Scheme,
    Colon,
    Slash,
    Separator,
    Whole,
}

impl Form {
    const fn step(self, byte: u8) -> Option<Self> {
        match (self, byte) {
            (Self::Empty | Self::Scheme, b'a'..=b'z' | b'A'..=b'Z')
            | (Self::Scheme, b'0'..=b'9' | b'+' | b'-' | b'.') => Some(Self::Scheme),
            (Self::Scheme, b':') => Some(Self::Colon),
            (Self::Colon, b'/') => Some(Self::Slash),
            (Self::Slash, b'/') => Some(Self::Separator),
            (Self::Separator | Self::Whole, _) => Some(Self::Whole),
            _ => None,
        }
    }

    /// What may come where patterns leave it open: enough to get on from every state.
    const fn fillers(self) -> &'static [u8] {
        match self {
            Self::Empty | Self::Separator | Self::Whole => b"i",
            Self::Scheme => b"i:",
            Self::Colon | Self::Slash => b"/",
        }
    }
}

/// Where a search is: in every pattern, and in the form of a provider ID.
type State = (Vec<usize>, Form);

/// The shortest provider ID that all `patterns` match, or nearly; `None`: there is none. Decided exactly, by walking all
/// patterns at once.
pub(super) fn common(patterns: &[&Pattern]) -> Option<ProviderId> {
    let start: State = (vec![0; patterns.len()], Form::Empty);
    let mut from: HashMap<State, Option<(State, u8)>> = HashMap::from([(start.clone(), None)]);
    let mut waiting = VecDeque::from([start]);
    while let Some(state) = waiting.pop_front() {
        let is_end = state.1 == Form::Whole && patterns.iter().zip(&state.0).all(|(it, at)| it.is_past(*at));
        if is_end {
            return example(&walked(&from, &state), patterns);
        }
        for byte in choices(patterns, &state) {
            for next in successors(patterns, &state, byte) {
                from.entry(next.clone()).or_insert_with(|| {
                    waiting.push_back(next);
                    Some((state.clone(), byte))
                });
            }
        }
    }
    None
}

/// The characters worth trying: all that some pattern asks for, and one that none asks for where all allow it.
fn choices(patterns: &[&Pattern], state: &State) -> Vec<u8> {
    let ahead: Vec<_> = patterns
        .iter()
        .zip(&state.0)
        .map(|(it, at)| it.ahead(*at))
        .collect();
    let mut bytes: Vec<u8> = ahead.iter().filter_map(|(literal, _)| *literal).collect();
    bytes.extend(state.1.fillers());
    bytes.sort_unstable();
    bytes.dedup();
    // Where a pattern leaves no choice, nothing else can come.
    let forced = ahead
        .iter()
        .find(|(_, is_open)| !is_open)
        .map(|(literal, _)| *literal);
    if let Some(forced) = forced {
        bytes.retain(|byte| Some(*byte) == forced);
    }
    bytes
}

/// The states that `byte` leads to.
fn successors(patterns: &[&Pattern], (places, form): &State, byte: u8) -> Vec<State> {
    let Some(form) = form.step(byte) else {
        return Vec::new();
    };
    let mut all = vec![Vec::with_capacity(places.len())];
    for (pattern, at) in patterns.iter().zip(places) {
        let onward: Vec<usize> = pattern.step(*at, byte).collect();
        all = all
            .into_iter()
            .flat_map(|done| {
                onward.iter().map(move |next| {
                    let mut places = done.clone();
                    places.push(*next);
                    places
                })
            })
            .collect();
    }
    all.into_iter().map(|places| (places, form)).collect()
}

/// The text that led to `state`.
fn walked(from: &HashMap<State, Option<(State, u8)>>, state: &State) -> String {
    let mut bytes = Vec::new();
    let mut at = state;
    while let Some(Some((before, byte))) = from.get(at) {
        bytes.push(char::from(*byte));
        at = before;
    }
    bytes.iter().rev().collect()
}

/// `shortest` as a provider ID that looks like one, if it is not too long for one.
fn example(shortest: &str, patterns: &[&Pattern]) -> Option<ProviderId> {
    let tail = if shortest.ends_with('/') { "i-1" } else { "-1" };
    let is_open = patterns.iter().all(|it| it.0.ends_with('*'));
    let longer = is_open.then(|| ProviderId::parse(format!("{shortest}{tail}")).ok());
    longer.flatten().or_else(|| ProviderId::parse(shortest).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn pattern(text: &str) -> Pattern {
        text.parse().unwrap()
    }

    #[rstest]
    #[case::whole("aws:///eu/i-1", "aws:///eu/i-1", true)]
    #[case::no_prefix("aws:///eu/i-1", "aws:///eu/i-10", false)]
    #[case::star_at_the_end("aws:///eu-*", "aws:///eu-west-1a/i-1", true)]
    #[case::star_takes_nothing("aws:///eu*/i-1", "aws:///eu/i-1", true)]
    #[case::star_takes_slashes("aws://*/i-1", "aws:///eu/x/i-1", true)]
    #[case::star_tries_again("a://*b*c", "a://bbcbc", true)]
    #[case::another_region("aws:///eu-*/*", "aws:///us-east-1a/i-1", false)]
    #[case::case_matters("aws://I*", "aws://i-1", false)]
    fn a_pattern_matches_the_whole_id(#[case] text: &str, #[case] id: &str, #[case] matches: bool) {
        assert_eq!(pattern(text).matches(&ProviderId::parse(id).unwrap()), matches);
    }

    #[rstest]
    #[case::white_space("aws://a b", PatternError::Character)]
    #[case::umlaut("aws://ä", PatternError::Character)]
    #[case::empty("", PatternError::Vain)]
    #[case::no_separator("aws:i-1", PatternError::Vain)]
    #[case::no_scheme("://*", PatternError::Vain)]
    #[case::bad_scheme("a_b://*", PatternError::Vain)]
    #[case::no_id("aws://", PatternError::Vain)]
    fn other_texts_are_no_patterns(#[case] text: &str, #[case] why: PatternError) {
        assert_eq!(text.parse::<Pattern>(), Err(why));
    }

    #[test]
    fn an_endless_pattern_is_refused() {
        let text = format!("a://{}", "x".repeat(600));
        assert_eq!(text.parse::<Pattern>(), Err(PatternError::Long));
    }

    #[rstest]
    #[case::two_regions("aws:///eu-*", "aws:///us-*", None)]
    #[case::two_schemes("aws://*", "gce://*", None)]
    #[case::region_and_zone("aws:///eu-*", "aws:///*-1a/*", Some("aws:///eu-1a/i-1"))]
    #[case::whole_scheme("aws://*", "aws:///eu-west-1*/*", Some("aws:///eu-west-1/i-1"))]
    #[case::one_and_itself("aws:///eu/i-7", "aws:///eu/i-7", Some("aws:///eu/i-7"))]
    #[case::everything("*", "*", Some("i://i-1"))]
    #[case::ends_differ("a://*x", "a://*y", None)]
    #[case::overlapping_ends("a://*ab", "a://ab*", Some("a://ab"))]
    #[case::any_scheme("*://one/*", "gce://*", Some("gce://one/i-1"))]
    #[case::separator_under_a_star("a*b", "*b", Some("a://b"))]
    fn two_patterns_have_in_common(#[case] one: &str, #[case] other: &str, #[case] id: Option<&str>) {
        let found = common(&[&pattern(one), &pattern(other)]);
        assert_eq!(found.as_ref().map(ProviderId::as_str), id);
    }

    #[test]
    fn what_is_common_only_beyond_the_longest_provider_id_is_not_common() {
        let half = "x".repeat(300);
        let (one, other) = (pattern(&format!("a://{half}y*")), pattern(&format!("*z{half}")));
        assert!(common(&[&one]).is_some() && common(&[&other]).is_some());
        assert_eq!(common(&[&one, &other]), None);
    }

    proptest! {
        #[test]
        fn an_example_matches_both(one in "a://[ab*]{0,6}|[a*]{0,3}[ab*]{0,3}", other in "a://[ab*]{0,6}") {
            let (Ok(one), Ok(other)) = (one.parse::<Pattern>(), other.parse::<Pattern>()) else { return Ok(()) };
            if let Some(id) = common(&[&one, &other]) {
                prop_assert!(one.matches(&id) && other.matches(&id), "{id}");
            }
        }

        #[test]
        fn without_an_example_no_id_matches_both(
            one in "a://[ab*]{1,5}", other in "a://[ab*]{1,5}", id in "a://[ab]{1,6}",
        ) {
            let (Ok(one), Ok(other)) = (one.parse::<Pattern>(), other.parse::<Pattern>()) else { return Ok(()) };
            let id = ProviderId::parse(id).unwrap();
            if one.matches(&id) && other.matches(&id) {
                prop_assert!(common(&[&one, &other]).is_some());
            }
        }
    }
}
