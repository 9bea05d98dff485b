//! Paths that exist on the machine of whoever wrote them and nowhere else.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// Where people's files are, on any system.
const HOMES: &[&str] = &["/root/", "/home/", "/Users/"];

pub(super) fn findings(root: &Path, files: &[PathBuf]) -> Vec<String> {
    let mut forbidden: Vec<String> = HOMES.iter().map(|home| (*home).to_owned()).collect();
    forbidden.push(format!("{}/", root.display()));
    forbidden.extend(
        env::var("HOME")
            .ok()
            .map(|home| format!("{}/", home.trim_end_matches('/'))),
    );
    // A home that is the root folder would forbid every path.
    forbidden.retain(|prefix| prefix.len() > 1);
    let of_file = |file: &PathBuf| {
        let content = fs::read_to_string(root.join(file)).unwrap_or_default();
        let line = content
            .lines()
            .position(|line| forbidden.iter().any(|prefix| mentions(line, prefix)))?;
        Some(format!(
            "{}:{} names a path of one machine",
            file.display(),
            line + 1
        ))
    };
    let checked = |file: &&PathBuf| !file.ends_with(Path::new(file!()));
    files.iter().filter(checked).filter_map(of_file).collect()
}

/// Whether `prefix` begins a path in `line`: inside a longer path or an address it means something else.
fn mentions(line: &str, prefix: &str) -> bool {
    line.match_indices(prefix).any(|(at, _)| {
        let before = line.get(..at).and_then(|text| text.chars().next_back());
        !before.is_some_and(|char| char.is_alphanumeric() || "}>)_-.*".contains(char))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_beginning_of_a_path_counts() {
        let cases = [
            ("cd /home/me/src", true),
            ("open(\"/home/me\")", true),
            ("https://example.com/docs/home/", false),
            ("${prefix}/home/x", false),
            ("/homes/x", false),
        ];
        for (line, expected) in cases {
            assert_eq!(mentions(line, "/home/"), expected, "{line}");
        }
    }
}
