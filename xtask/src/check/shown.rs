//! Tables whose rows are shown by tests: each row has one, and it exists.

use std::fs;
use std::path::Path;

/// The documents that have such tables.
const DOCUMENTS: &[&str] = &["docs/explanation/isolation.md"];

/// The head of the column with the tests.
const SHOWN_BY: &str = "shown by";

/// A link to a test: its name, and the file in which it is said to be.
#[derive(Debug, PartialEq, Eq)]
struct Link<'a> {
    test: &'a str,
    file: &'a str,
}

pub(super) fn findings(root: &Path) -> Vec<String> {
    let mut findings = Vec::new();
    for document in DOCUMENTS {
        let path = root.join(document);
        let text = fs::read_to_string(&path).unwrap_or_default();
        let read = |file: &str| fs::read_to_string(path.with_file_name("").join(file)).ok();
        let found = untrue(&text, read);
        findings.extend(found.into_iter().map(|what| format!("{document}: {what}")));
    }
    findings
}

/// What is wrong with the tables of `text`; `read` gives the files to which it links.
fn untrue(text: &str, read: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let rows = rows(text);
    if rows.is_empty() {
        return vec![format!("no table has a column `{SHOWN_BY}`")];
    }
    let mut found = Vec::new();
    for (row, cell) in rows {
        let links = links(cell);
        if links.is_empty() {
            found.push(format!("row `{row}` links to no test"));
        }
        for Link { test, file } in links {
            match read(file) {
                None => found.push(format!("row `{row}` links to {file}, which is not there")),
                Some(code) if code.contains(&format!("fn {test}(")) => {}
                Some(_) => found.push(format!("row `{row}` links to {test}, which {file} does not have")),
            }
        }
    }
    found
}

/// The first and the last cell of each row in tables with that column at the end.
fn rows(text: &str) -> Vec<(&str, &str)> {
    let mut rows = Vec::new();
    let mut is_inside = false;
    for line in text.lines() {
        let cells = line
            .strip_prefix('|')
            .and_then(|line| line.trim_end().strip_suffix('|'));
        let ends =
            cells.and_then(|cells| Some((cells.split_once('|')?.0.trim(), cells.rsplit_once('|')?.1.trim())));
        match ends {
            None => is_inside = false,
            Some((_, SHOWN_BY)) => is_inside = true,
            Some((first, _)) if first.starts_with("--") => {}
            Some(row) if is_inside => rows.push(row),
            Some(_) => {}
        }
    }
    rows
}

/// The links of a cell whose text is the name of a test.
fn links(cell: &str) -> Vec<Link<'_>> {
    cell.split("[`").skip(1).filter_map(link).collect()
}

/// What comes after the beginning of a link.
fn link(from_name_on: &str) -> Option<Link<'_>> {
    let (test, rest) = from_name_on.split_once("`](")?;
    let (file, _) = rest.split_once(')')?;
    Some(Link { test, file })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
text

| fault | shown by |
|---|---|
| killed | [`it_lives`](../a.rs), [`it_lasts`](../b.rs) |
| stopped | by nobody |

| other | table |
|---|---|
| not | looked at |
";

    #[test]
    fn every_row_needs_tests_that_exist() {
        let read = |file: &str| (file == "../a.rs").then(|| "async fn it_lives() {}".to_owned());
        assert_eq!(
            untrue(TEXT, read),
            [
                "row `killed` links to ../b.rs, which is not there",
                "row `stopped` links to no test"
            ]
        );
        let read = |_: &str| Some("fn it_lasts() {}".to_owned());
        assert_eq!(
            untrue(TEXT, read),
            [
                "row `killed` links to it_lives, which ../a.rs does not have",
                "row `stopped` links to no test"
            ]
        );
    }

    #[test]
    fn a_document_without_such_a_table_is_a_finding() {
        assert_eq!(untrue("text", |_| None), ["no table has a column `shown by`"]);
    }
}
