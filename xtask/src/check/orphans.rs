//! Rust files that no `mod` reaches: cargo ignores them silently, and so does every lint.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{list, members, text};

pub(super) fn findings(root: &Path, metadata: &Value, files: &[PathBuf]) -> Result<Vec<String>> {
    let mut reached = BTreeSet::new();
    for package in members(metadata)? {
        for target in list(package, "targets")? {
            reach(Path::new(text(target, "src_path")?), Place::Root, &mut reached)?;
        }
    }
    let sources = files
        .iter()
        .filter(|file| file.extension().is_some_and(|ending| ending == "rs"));
    let orphans = sources.filter(|file| !reached.contains(&root.join(file)));
    Ok(orphans
        .map(|file| {
            format!(
                "{} is reached by no `mod`: declare it or remove it",
                file.display()
            )
        })
        .collect())
}

/// Where a file stands: the modules of a crate's root lie beside it, those of another file in a folder of its name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Root,
    Module,
}

fn reach(file: &Path, place: Place, reached: &mut BTreeSet<PathBuf>) -> Result<()> {
    if !reached.insert(file.to_path_buf()) {
        return Ok(());
    }
    let beside = file.parent().unwrap_or_else(|| Path::new("")).to_path_buf();
    let folder = if place == Place::Root {
        beside.clone()
    } else {
        file.with_extension("")
    };
    let source = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    for mention in mentions(&source) {
        let (named, place) = match mention {
            Mention::Module(name) => (folder.join(format!("{name}.rs")), Place::Module),
            Mention::Path(path) => (beside.join(path), Place::Root),
        };
        // One that is not there is the compiler's business: it may be behind a `cfg`.
        if named.is_file() {
            reach(&named, place, reached)?;
        }
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum Mention<'a> {
    /// `mod name;`
    Module(&'a str),
    /// `#[path = "..."]` or `include!("...")`.
    Path(&'a str),
}

/// The files that a source file names. Read line by line: formatted code has one item on a line.
fn mentions(source: &str) -> impl Iterator<Item = Mention<'_>> {
    source.lines().map(str::trim).filter_map(|line| {
        if let Some(rest) = line
            .strip_prefix("#[path = \"")
            .or_else(|| line.strip_prefix("include!(\""))
        {
            return rest.split_once('"').map(|(path, _)| Mention::Path(path));
        }
        let item = line
            .strip_prefix("pub")
            .map_or(line, |rest| match rest.split_once(") ") {
                Some((scope, item)) if scope.starts_with('(') => item,
                _ => rest.trim_start(),
            });
        item.strip_prefix("mod ")?.strip_suffix(';').map(Mention::Module)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_declaration_is_read() {
        let source = "//! mod comment;\nmod a;\npub mod b;\npub(crate) mod c;\n    #[path = \"x/d.rs\"]\n\
                      include!(\"gen/e.rs\");\nmod inline {\nlet modern = 1;\n";
        let found: Vec<_> = mentions(source).collect();
        let expected = [
            Mention::Module("a"),
            Mention::Module("b"),
            Mention::Module("c"),
            Mention::Path("x/d.rs"),
            Mention::Path("gen/e.rs"),
        ];
        assert_eq!(found, expected);
    }
}
