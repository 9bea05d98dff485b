//! Text from plugins: bounded, and without anything that could forge a line of a log.

use bulkhead_proto::MAX_ERROR_TEXT_BYTES;

use super::{Parsed, Violation};

/// Longest id in bytes.
pub(crate) const ID_MAX: usize = 512;
/// Longest name in bytes.
pub(crate) const NAME_MAX: usize = 253;

/// Text for people: what could break or reorder a line becomes a blank, and it is cut at 1 KiB.
pub(crate) fn clean(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len().min(MAX_ERROR_TEXT_BYTES));
    for c in text.chars().map(|c| if is_unprintable(c) { ' ' } else { c }) {
        if cleaned.len() + c.len_utf8() > MAX_ERROR_TEXT_BYTES {
            break;
        }
        cleaned.push(c);
    }
    cleaned.trim().to_owned()
}

/// Text for machines, of at most `max` bytes, blanks allowed; may be empty.
pub(crate) fn line(field: &'static str, text: String, max: usize) -> Parsed<String> {
    if text.len() > max {
        return Err(Violation::new(field, "is too long"));
    }
    if text.chars().any(is_unprintable) {
        return Err(Violation::new(field, "has a character that cannot be printed"));
    }
    Ok(text)
}

/// A [`line`] without white space.
pub(crate) fn word(field: &'static str, text: String, max: usize) -> Parsed<String> {
    if text.chars().any(char::is_whitespace) {
        return Err(Violation::new(field, "has white space"));
    }
    line(field, text, max)
}

/// A DNS label: 1 to 63 of `a-z0-9-`, no hyphen at either end.
pub(crate) fn is_dns_label(text: &str) -> bool {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&text.len())
        && text.chars().all(legal)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// A host name as the API server takes it in a Service's status.
pub(crate) fn is_dns_name(text: &str) -> bool {
    text.len() <= NAME_MAX && text.split('.').all(is_dns_label)
}

/// Control characters, line and paragraph separators, and what changes the direction of writing.
pub(crate) fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::plain("quota of 5 reached", "quota of 5 reached")]
    #[case::a_second_line("a\nERROR forged", "a ERROR forged")]
    #[case::terminal_colours("\u{1b}[31mred", "[31mred")]
    #[case::direction("a\u{202e}b", "a b")]
    #[case::nothing_left("\n\t", "")]
    fn text_for_people_is_cleaned(#[case] text: &str, #[case] cleaned: &str) {
        assert_eq!(clean(text), cleaned);
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        let cut = clean(&"ä".repeat(2000));
        assert_eq!((cut.len(), cut.chars().all(|c| c == 'ä')), (1024, true));
        assert_eq!(clean(&format!("x{}", "ä".repeat(2000))).len(), 1023);
    }

    #[rstest]
    #[case::label("aws", true)]
    #[case::digits_and_hyphens("a-1", true)]
    #[case::empty("", false)]
    #[case::upper("AWS", false)]
    #[case::hyphen_first("-a", false)]
    #[case::dot("a.b", false)]
    fn a_dns_label_is_told(#[case] text: &str, #[case] legal: bool) {
        assert_eq!(is_dns_label(text), legal);
    }

    #[rstest]
    #[case::name("lb-1.eu.example.com", true)]
    #[case::empty_part("a..b", false)]
    #[case::final_dot("a.", false)]
    #[case::space("a b", false)]
    fn a_dns_name_is_told(#[case] text: &str, #[case] legal: bool) {
        assert_eq!(is_dns_name(text), legal);
    }
}
