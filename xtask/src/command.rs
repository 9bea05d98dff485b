//! Child processes: shown before they run, their output passed through or captured, their failure an error that
//! names the command.

use std::env;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, ExitStatus, Output};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::clock::{Stopwatch, readable};
use crate::say;

/// How often a long silent command is said to be still at work.
const HEARTBEAT: Duration = Duration::from_secs(20);

/// A command run in `folder`.
pub(crate) fn command(program: impl AsRef<OsStr>, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder);
    // Cargo sets these for this program. Build scripts of some dependencies watch them: passed on, they would
    // make every build from here rebuild what a build from the shell has built, and back.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_")
            || text.starts_with("CARGO_MANIFEST_")
            || text == "CARGO_PRIMARY_PACKAGE"
        {
            command.env_remove(&name);
        }
    }
    command
}

/// Cargo, the one that runs this program.
pub(crate) fn cargo(root: &Path, args: &[&str]) -> Command {
    let mut cargo = command(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), root);
    cargo.args(args);
    cargo
}

/// Runs to success, output passed through.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = run_for_status(command)?;
    if !status.success() {
        bail!("`{}` failed: {status}", shown(command));
    }
    Ok(())
}

/// Runs to the end, output passed through.
pub(crate) fn run_for_status(command: &mut Command) -> Result<ExitStatus> {
    say(format!("    $ {}", shown(command)));
    command.status().map_err(|error| cannot_start(command, error))
}

/// Runs to success like [`run`], and says from time to time that a command without output is at work.
pub(crate) fn run_with_heartbeat(command: &mut Command, what: &str) -> Result<()> {
    let (ended, end) = mpsc::channel::<()>();
    let watch = Stopwatch::start();
    let what = what.to_owned();
    let heartbeat = thread::spawn(move || {
        while end.recv_timeout(HEARTBEAT) == Err(RecvTimeoutError::Timeout) {
            say(format!("    {what}: {} so far", readable(watch.elapsed())));
        }
    });
    let result = run(command);
    drop(ended);
    if heartbeat.join().is_err() {
        bail!("the progress thread panicked");
    }
    result
}

/// Runs silently to success and returns what it wrote to its output; its errors go into the error.
pub(crate) fn capture(command: &mut Command) -> Result<String> {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().map_err(|error| cannot_start(command, error))?;
    if !status.success() {
        let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        bail!("`{}` failed: {status}\n{stdout}{stderr}", shown(command));
    }
    String::from_utf8(stdout).with_context(|| format!("read the output of `{}`", shown(command)))
}

/// The command as it could be typed, cut where it is long.
fn shown(command: &Command) -> String {
    const MOST: usize = 160;
    let program = Path::new(command.get_program())
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    let mut line = program.into_owned();
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&arg.to_string_lossy());
    }
    if line.chars().count() > MOST {
        line = line.chars().take(MOST).chain(" ...".chars()).collect();
    }
    line
}

fn cannot_start(command: &Command, error: std::io::Error) -> anyhow::Error {
    let program = command.get_program().to_string_lossy().into_owned();
    if error.kind() == ErrorKind::NotFound {
        return anyhow::anyhow!("{program} is not installed, or not in PATH");
    }
    anyhow::Error::new(error).context(format!("start {program}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_in_one_line() {
        let error =
            run(&mut command("no-such-program-anywhere", Path::new("/"))).expect_err("it does not exist");
        assert_eq!(
            format!("{error:#}"),
            "no-such-program-anywhere is not installed, or not in PATH"
        );
    }

    #[test]
    fn a_captured_failure_carries_the_command_and_its_output() {
        let mut failing = command("sh", Path::new("/"));
        failing.args(["-c", "echo seen; echo why >&2; exit 3"]);
        let text = format!("{:#}", capture(&mut failing).expect_err("it fails"));
        for part in ["`sh -c", "exit status: 3", "seen", "why"] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }

    #[test]
    fn output_of_a_success_is_returned() {
        let mut echo = command("sh", Path::new("/"));
        echo.args(["-c", "echo text"]);
        assert_eq!(capture(&mut echo).expect("it succeeds"), "text\n");
    }
}
