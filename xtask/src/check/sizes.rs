//! Files that have grown too long to be read in one go. A compass, not a gate.

use std::fs;
use std::path::{Path, PathBuf};

/// Lines beyond which a file is worth a thought.
const SOFT: usize = 400;

/// Lines beyond which it should be split.
const HARD: usize = 600;

pub(super) fn warnings(root: &Path, files: &[PathBuf]) -> Vec<String> {
    files
        .iter()
        .filter(|file| is_written_by_hand(file))
        .filter_map(|file| warning(root, file))
        .collect()
}

fn is_written_by_hand(file: &Path) -> bool {
    let code = file
        .extension()
        .is_some_and(|ending| ["rs", "go", "py"].iter().any(|known| ending == *known));
    code && !file.components().any(|part| part.as_os_str() == "gen")
}

fn warning(root: &Path, file: &Path) -> Option<String> {
    let lines = fs::read_to_string(root.join(file)).ok()?.lines().count();
    let advice = if lines > HARD {
        "should be split"
    } else {
        "is long"
    };
    (lines > SOFT).then(|| format!("{} has {lines} lines and {advice}", file.display()))
}
