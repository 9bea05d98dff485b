//! The vectors of `SPEC.md` section 7.1, which `vectors/check.py` computes a second time.

use serde_json::Value;

use super::{LENGTH, mark};

fn vectors() -> Vec<Value> {
    let document: Value =
        serde_json::from_str(include_str!("../../vectors/marks.json")).expect("marks.json is JSON");
    document["marks"]
        .as_array()
        .expect("marks.json has a list of marks")
        .clone()
}

fn text<'a>(vector: &'a Value, field: &str) -> &'a str {
    vector[field]
        .as_str()
        .unwrap_or_else(|| panic!("{vector} has no text {field}"))
}

#[test]
fn marks_equal_the_vectors() {
    let vectors = vectors();
    assert!(vectors.len() >= 5);
    for vector in &vectors {
        let computed = mark(
            text(vector, "cluster_uid"),
            text(vector, "service_uid"),
            text(vector, "role"),
        );
        assert_eq!(computed, text(vector, "mark"), "{}", text(vector, "name"));
    }
}

#[test]
fn a_mark_is_a_dns_label_of_fixed_length() {
    for vector in &vectors() {
        let mark = text(vector, "mark");
        assert_eq!(mark.len(), LENGTH);
        assert!(
            mark.bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'),
            "{mark}"
        );
    }
}
