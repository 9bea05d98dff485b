//! Label selectors with Kubernetes' meaning, and whether two of them select one node.

use std::collections::{BTreeMap, BTreeSet};

/// Selects by labels; the default selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(Vec<Requirement>);

/// What one label must be. All requirements of a selector must be met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// The label's key.
    pub key: String,
    /// What its value must be.
    pub test: Test,
}

/// What a label's value must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// There, and one of these.
    In(BTreeSet<String>),
    /// Missing, or none of these.
    NotIn(BTreeSet<String>),
    /// There.
    Exists,
    /// Missing.
    DoesNotExist,
}

/// Why a requirement is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequirementError {
    /// Not a label's key.
    #[error("{0:?} is no key of a label; write name or prefix.example.com/name")]
    Key(String),
    /// Not a label's value.
    #[error(
        "{0:?} is no value of a label: up to 63 letters, digits, '-', '_' and '.', a letter or digit first and last"
    )]
    Value(String),
    /// Not one of the four operators.
    #[error("operator {0:?} is none of In, NotIn, Exists and DoesNotExist")]
    Operator(String),
    /// `In` or `NotIn` without values.
    #[error("operator {0} needs values")]
    NoValues(&'static str),
    /// `Exists` or `DoesNotExist` with values.
    #[error("operator {0} takes no values")]
    Values(&'static str),
}

impl Requirement {
    /// The label `key` is there and has this value.
    pub fn equals(key: &str, value: &str) -> Result<Self, RequirementError> {
        Self::new(key, "In", &[value.to_owned()])
    }

    /// What Kubernetes writes as `{key, operator, values}`.
    pub fn new(key: &str, operator: &str, values: &[String]) -> Result<Self, RequirementError> {
        if !is_label_key(key) {
            return Err(RequirementError::Key(key.to_owned()));
        }
        if let Some(bad) = values.iter().find(|value| !is_label_value(value)) {
            return Err(RequirementError::Value(bad.clone()));
        }
        let some = |operator| match values {
            [] => Err(RequirementError::NoValues(operator)),
            _ => Ok(values.iter().cloned().collect()),
        };
        let none = |operator, test| match values {
            [] => Ok(test),
            _ => Err(RequirementError::Values(operator)),
        };
        let test = match operator {
            "In" => Test::In(some("In")?),
            "NotIn" => Test::NotIn(some("NotIn")?),
            "Exists" => none("Exists", Test::Exists)?,
            "DoesNotExist" => none("DoesNotExist", Test::DoesNotExist)?,
            _ => return Err(RequirementError::Operator(operator.to_owned())),
        };
        let key = key.to_owned();
        Ok(Self { key, test })
    }
}

impl Test {
    /// Whether a label meets it; `None`: it is missing.
    fn is_met_by(&self, value: Option<&str>) -> bool {
        match self {
            Self::In(values) => value.is_some_and(|value| values.contains(value)),
            Self::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Self::Exists => value.is_some(),
            Self::DoesNotExist => value.is_none(),
        }
    }
}

impl Selector {
    /// Selects what meets all of `requirements`.
    pub const fn new(requirements: Vec<Requirement>) -> Self {
        Self(requirements)
    }

    /// Whether it selects what has these labels.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0
            .iter()
            .all(|it| it.test.is_met_by(labels.get(&it.key).map(String::as_str)))
    }

    /// Labels that this selector and `other` both select; `None`: there are none. Each key can be decided alone.
    pub fn common(&self, other: &Self) -> Option<BTreeMap<String, String>> {
        let mut by_key: BTreeMap<&str, Vec<&Test>> = BTreeMap::new();
        for it in self.0.iter().chain(&other.0) {
            by_key.entry(&it.key).or_default().push(&it.test);
        }
        let mut labels = BTreeMap::new();
        for (key, tests) in by_key {
            if let Label::Value(value) = meeting(&tests)? {
                labels.insert(key.to_owned(), value);
            }
        }
        Some(labels)
    }
}

/// What a label may be.
enum Label {
    Missing,
    Value(String),
}

/// What one label may be to meet all `tests`; `None`: they contradict each other.
fn meeting(tests: &[&Test]) -> Option<Label> {
    let meets = |value: Option<&str>| tests.iter().all(|test| test.is_met_by(value));
    if meets(None) {
        return Some(Label::Missing);
    }
    let asked = tests.iter().find_map(|test| match test {
        Test::In(values) => Some(values.iter().cloned().collect()),
        Test::NotIn(_) | Test::Exists | Test::DoesNotExist => None,
    });
    // One value more than can be forbidden: one of them is not.
    let forbidden = tests.iter().map(|test| match test {
        Test::NotIn(values) => values.len(),
        Test::In(_) | Test::Exists | Test::DoesNotExist => 0,
    });
    let candidates: Vec<String> =
        asked.unwrap_or_else(|| (0..=forbidden.sum()).map(|n| format!("any-{n}")).collect());
    candidates
        .into_iter()
        .find(|value| meets(Some(value)))
        .map(Label::Value)
}

/// Whether `text` is a key of a label: a name of up to 63 characters, a DNS name and a slash before it if wanted.
fn is_label_key(text: &str) -> bool {
    let is_dns_name = |name: &str| name.len() <= 253 && name.split('.').all(is_dns_label);
    match text.split_once('/') {
        Some((prefix, name)) => is_dns_name(prefix) && !name.is_empty() && is_label_value(name),
        None => !text.is_empty() && is_label_value(text),
    }
}

fn is_label_value(text: &str) -> bool {
    let is_end = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && is_end(text.chars().next())
        && is_end(text.chars().next_back())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// Whether `text` is a DNS label: up to 63 lower-case letters, digits and `-`, a letter or digit first and last.
pub fn is_dns_label(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=63).contains(&text.len())
        && text.starts_with(is_plain)
        && text.ends_with(is_plain)
        && text.chars().all(|c| is_plain(c) || c == '-')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    /// `a=x`, `a in x y`, `a notin x`, `a`, `!a`.
    fn requirement(text: &str) -> Requirement {
        let words: Vec<&str> = text.split(' ').collect();
        let values = |from: &[&str]| from.iter().map(ToString::to_string).collect::<Vec<_>>();
        match words.as_slice() {
            [key, "in", rest @ ..] => Requirement::new(key, "In", &values(rest)),
            [key, "notin", rest @ ..] => Requirement::new(key, "NotIn", &values(rest)),
            [one] => match one.strip_prefix('!') {
                Some(key) => Requirement::new(key, "DoesNotExist", &[]),
                None => Requirement::new(one, "Exists", &[]),
            },
            _ => panic!("no requirement: {text}"),
        }
        .unwrap()
    }

    fn selector(texts: &[&str]) -> Selector {
        Selector::new(texts.iter().map(|text| requirement(text)).collect())
    }

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[rstest]
    #[case::everything(&[], &[], true)]
    #[case::in_it(&["a in x y"], &[("a", "y")], true)]
    #[case::not_in_it(&["a in x y"], &[("a", "z")], false)]
    #[case::in_needs_the_key(&["a in x"], &[], false)]
    #[case::notin_takes_the_missing(&["a notin x"], &[], true)]
    #[case::notin(&["a notin x"], &[("a", "x")], false)]
    #[case::exists(&["a"], &[("a", "")], true)]
    #[case::exists_not(&["a"], &[], false)]
    #[case::must_not_exist(&["!a"], &[("a", "x")], false)]
    #[case::all_must_be_met(&["a in x", "b in y"], &[("a", "x")], false)]
    fn a_selector_selects(#[case] texts: &[&str], #[case] pairs: &[(&str, &str)], #[case] selects: bool) {
        assert_eq!(selector(texts).matches(&labels(pairs)), selects);
    }

    #[rstest]
    #[case::everything_and_everything(&[], &[], Some(&[][..]))]
    #[case::everything_and_some(&[], &["a in x"], Some(&[("a", "x")][..]))]
    #[case::two_values(&["a in x"], &["a in y"], None)]
    #[case::a_shared_value(&["a in x y"], &["a in y z"], Some(&[("a", "y")][..]))]
    #[case::two_keys(&["a in x"], &["b in y"], Some(&[("a", "x"), ("b", "y")][..]))]
    #[case::the_rest(&["a in x"], &["a notin x"], None)]
    #[case::there_and_missing(&["a"], &["!a"], None)]
    #[case::missing_is_enough(&["a notin x"], &["a notin y"], Some(&[][..]))]
    #[case::there_but_not_these(&["a"], &["a notin any-0 any-1"], Some(&[("a", "any-2")][..]))]
    #[case::contradicts_itself(&["a in x", "!a"], &[], None)]
    fn two_selectors_have_in_common(
        #[case] one: &[&str],
        #[case] other: &[&str],
        #[case] example: Option<&[(&str, &str)]>,
    ) {
        assert_eq!(selector(one).common(&selector(other)), example.map(labels));
    }

    #[rstest]
    #[case::key(Requirement::new("a b", "Exists", &[]), "\"a b\" is no key")]
    #[case::empty_name(Requirement::new("example.com/", "Exists", &[]), "is no key")]
    #[case::prefix(Requirement::new("Example.com/x", "Exists", &[]), "is no key")]
    #[case::value(Requirement::equals("a", "x y"), "\"x y\" is no value")]
    #[case::operator(Requirement::new("a", "in", &[]), "operator \"in\" is none of")]
    #[case::no_values(Requirement::new("a", "NotIn", &[]), "NotIn needs values")]
    #[case::values(Requirement::new("a", "Exists", &["x".to_owned()]), "Exists takes no values")]
    fn a_wrong_requirement_says_why(#[case] made: Result<Requirement, RequirementError>, #[case] part: &str) {
        let why = made.unwrap_err().to_string();
        assert!(why.contains(part), "{why}");
    }

    fn any_selector() -> impl Strategy<Value = Selector> {
        let values = prop::collection::btree_set("[xyz]", 1..3);
        let test = prop_oneof![
            values.clone().prop_map(Test::In),
            values.prop_map(Test::NotIn),
            Just(Test::Exists),
            Just(Test::DoesNotExist),
        ];
        prop::collection::vec(
            ("[ab]", test).prop_map(|(key, test)| Requirement { key, test }),
            0..4,
        )
        .prop_map(Selector::new)
    }

    proptest! {
        #[test]
        fn an_example_is_selected_by_both_and_without_one_nothing_is(
            one in any_selector(),
            other in any_selector(),
            tried in prop::collection::btree_map("[ab]", "[wxyz]", 0..3),
        ) {
            match one.common(&other) {
                Some(example) => prop_assert!(one.matches(&example) && other.matches(&example)),
                None => prop_assert!(!(one.matches(&tried) && other.matches(&tried))),
            }
        }
    }
}
