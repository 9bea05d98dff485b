//! The value as text for people.

use std::fmt::Write as _;

use super::{
    ErrorStatus, GateStatus, HostStatus, LeadershipState, LeadershipStatus, PluginStatus, QueueStatus,
};

/// Two lines about the host, then a table for each kind of thing that there is.
pub(super) fn render(status: &HostStatus) -> String {
    let host = &status.host;
    let mut text = format!(
        "Host: bulkhead {}, process {}, up {}\nLeadership: {}\n",
        host.version,
        host.pid,
        span(host.up_seconds),
        leadership(&status.leadership)
    );
    let plugins = &status.plugins;
    let not_open = |it: &&GateStatus| it.state != OPEN;
    table(
        &mut text,
        [
            "PLUGIN",
            "STATE",
            "FOR",
            "PROVIDER",
            "VERSION",
            "GATES",
            "IN FLIGHT",
            "CALLS/MIN",
        ],
        plugins.iter().map(plugin),
    );
    table(
        &mut text,
        ["PLUGIN", "WHY IN ITS STATE"],
        plugins
            .iter()
            .filter(|it| !it.message.is_empty())
            .map(|it| [it.name.clone(), it.message.clone()]),
    );
    table(
        &mut text,
        ["PLUGIN", "GATE", "STATE", "OPENS IN", "WHY"],
        plugins
            .iter()
            .flat_map(|plugin| plugin.gates.iter().filter(not_open).map(|it| gate(plugin, it))),
    );
    table(
        &mut text,
        ["PLUGIN", "LAST ERROR", "CALL", "RESULT", "MESSAGE"],
        plugins
            .iter()
            .filter_map(|plugin| Some(last_error(plugin, plugin.last_error.as_ref()?))),
    );
    table(
        &mut text,
        ["PLUGIN", "QUEUE", "DUE", "DELAYED", "IN WORK", "LONGEST"],
        status.queues.iter().map(queue),
    );
    text
}

/// The state of a gate that is not worth a line.
const OPEN: &str = "open";
/// What a cell shows of nothing.
const NOTHING: &str = "-";

fn leadership(status: &LeadershipStatus) -> String {
    let renewed = status
        .renewed_seconds_ago
        .map_or_else(String::new, |ago| format!(", renewed {} ago", span(ago)));
    let Some(lease) = &status.lease else {
        return match status.state {
            LeadershipState::Starting => "none yet: waiting for the API server".to_owned(),
            LeadershipState::Leading => "leading, without an election".to_owned(),
            LeadershipState::Standby | LeadershipState::Draining => "about to end".to_owned(),
        };
    };
    match (status.state, &status.holder) {
        (LeadershipState::Leading, _) => format!("leading by Lease {lease}{renewed}"),
        (LeadershipState::Draining, _) => format!("about to give up Lease {lease}{renewed}"),
        (LeadershipState::Standby | LeadershipState::Starting, Some(holder)) => {
            format!("standing by: {holder} leads by Lease {lease}")
        }
        (LeadershipState::Standby | LeadershipState::Starting, None) => {
            format!("standing by: nobody is known to hold Lease {lease}")
        }
    }
}

fn plugin(plugin: &PluginStatus) -> [String; 8] {
    let said = |field: fn(&super::Described) -> &String| {
        let described = plugin.description.as_ref();
        described.map_or_else(|| NOTHING.to_owned(), |it| field(it).clone())
    };
    let leaving = if plugin.is_leaving { " (leaving)" } else { "" };
    [
        plugin.name.clone(),
        format!("{}{leaving}", plugin.state),
        span(plugin.state_seconds),
        said(|it| &it.provider),
        said(|it| &it.version),
        gates(&plugin.gates),
        plugin.calls_in_flight.to_string(),
        plugin.calls_last_minute.to_string(),
    ]
}

/// Those that are not open; one word if all are.
fn gates(gates: &[GateStatus]) -> String {
    let not_open = gates.iter().filter(|it| it.state != OPEN);
    let named: Vec<String> = not_open
        .map(|it| format!("{} {}", it.capability, it.state))
        .collect();
    match (gates, named.as_slice()) {
        ([], _) => NOTHING.to_owned(),
        (_, []) => OPEN.to_owned(),
        (_, named) => named.join(", "),
    }
}

fn gate(plugin: &PluginStatus, gate: &GateStatus) -> [String; 5] {
    [
        plugin.name.clone(),
        gate.capability.clone(),
        gate.state.clone(),
        gate.opens_in_seconds.map_or_else(|| NOTHING.to_owned(), span),
        gate.message.clone().unwrap_or_default(),
    ]
}

fn last_error(plugin: &PluginStatus, error: &ErrorStatus) -> [String; 5] {
    [
        plugin.name.clone(),
        format!("{} ago", span(error.seconds_ago)),
        error.verb.clone(),
        error.result.clone(),
        error.message.clone(),
    ]
}

fn queue(queue: &QueueStatus) -> [String; 6] {
    [
        queue.plugin.clone(),
        queue.name.clone(),
        queue.due.to_string(),
        queue.delayed.to_string(),
        queue.in_work.to_string(),
        span(queue.longest_seconds),
    ]
}

/// A blank line, the heads and the rows in columns; nothing without rows.
fn table<const N: usize>(text: &mut String, heads: [&str; N], rows: impl Iterator<Item = [String; N]>) {
    let rows: Vec<[String; N]> = rows.collect();
    if rows.is_empty() {
        return;
    }
    let mut widths = heads.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let heads = heads.map(str::to_owned);
    text.push('\n');
    for row in std::iter::once(&heads).chain(&rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            // Writing to a String cannot fail.
            _ = write!(line, "{cell:width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

/// The two largest units of a span.
fn span(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{}s", seconds % 60),
        (0, ..) => format!("{hours}h{}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}

#[cfg(test)]
mod tests;
