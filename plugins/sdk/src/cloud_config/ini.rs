//! INI as Go's gcfg has it: `[section]`, `[section "name"]`, `key = value`, comments with `#` and `;`, quotes with
//! escapes, a bare key for true.

use serde::de::DeserializeOwned;

use super::ini_value::{IniError, Node, Value};

/// Parses and deserialises.
pub(super) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, IniError> {
    let mut root = Node::section(0, "");
    let mut section: Option<(String, Option<String>)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start_matches('\u{feff}').trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if line.starts_with('[') {
            let (name, sub) = header(line).ok_or(IniError::Header { line: number })?;
            place(&mut root, number, &name, sub.as_deref())?;
            section = Some((name, sub));
            continue;
        }
        let (name, sub) = section
            .as_ref()
            .ok_or(IniError::OutsideSection { line: number })?;
        let (key, value) = assignment(line, number)?;
        place(&mut root, number, name, sub.as_deref())?.add(number, key, value)?;
    }
    T::deserialize(&root)
}

/// Whether a line is a section's header.
pub(super) fn is_section(line: &str) -> bool {
    header(line).is_some()
}

fn place<'a>(root: &'a mut Node, line: u64, name: &str, sub: Option<&str>) -> Result<&'a mut Node, IniError> {
    let section = root.enter(line, name)?;
    match sub {
        Some(sub) => section.enter(line, sub),
        None => Ok(section),
    }
}

/// The section and, if it has one, the name in quotes.
fn header(line: &str) -> Option<(String, Option<String>)> {
    let (inner, rest) = line.strip_prefix('[')?.rsplit_once(']')?;
    if !(rest.trim().is_empty() || rest.trim_start().starts_with(['#', ';'])) {
        return None;
    }
    let inner = inner.trim();
    let (name, sub) = match inner.split_once(char::is_whitespace) {
        Some((name, quoted)) => {
            let sub = quoted.trim().strip_prefix('"')?.strip_suffix('"')?;
            (name, Some(sub.to_owned()))
        }
        None => (inner, None),
    };
    let legal = |character: char| character.is_alphanumeric() || matches!(character, '-' | '_' | '.');
    (!name.is_empty() && name.chars().all(legal)).then(|| (name.to_owned(), sub))
}

fn assignment(line: &str, number: u64) -> Result<(&str, Value), IniError> {
    let (key, value) = match line.split_once('=') {
        Some((key, value)) => (key.trim(), Some(value.trim())),
        None => (line.split(['#', ';']).next().unwrap_or_default().trim(), None),
    };
    let legal = |character: char| character.is_alphanumeric() || matches!(character, '-' | '_' | '.');
    if key.is_empty() || !key.chars().all(legal) {
        return Err(IniError::Key { line: number });
    }
    // A key alone is how gcfg writes true.
    let text = value.map_or_else(|| Ok("true".to_owned()), |value| unquoted(value, number))?;
    Ok((
        key,
        Value {
            line: number,
            key: key.to_owned(),
            text,
        },
    ))
}

/// Takes quotes, escapes and a comment behind the value away.
fn unquoted(value: &str, line: u64) -> Result<String, IniError> {
    let mut text = String::with_capacity(value.len());
    let mut kept = 0;
    let mut inside = false;
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => inside = !inside,
            '\\' => text.push(escaped(characters.next()).ok_or(IniError::Escape { line })?),
            '#' | ';' if !inside => break,
            other => text.push(other),
        }
        if inside || !character.is_whitespace() {
            kept = text.len();
        }
    }
    if inside {
        return Err(IniError::Quote { line });
    }
    text.truncate(kept);
    Ok(text)
}

fn escaped(character: Option<char>) -> Option<char> {
    match character? {
        'n' => Some('\n'),
        't' => Some('\t'),
        same @ ('"' | '\\') => Some(same),
        _ => None,
    }
}
