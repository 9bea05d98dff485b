//! The command line: upstream's flags where upstream has one, and one clear line when it is wrong.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::{Config, SocketConfig, file};
use crate::exit::Exit;
use crate::status;
use crate::telemetry::Chain;

pub mod flags;
pub mod values;

use flags::{RunFlags, StatusFlags};

/// Kubernetes cloud-controller-manager whose clouds live in plugin processes
///
/// Bulkhead runs the cloud controllers and leader election in this process, and each cloud's code in a plugin
/// process of its own behind a versioned gRPC service.
#[derive(Debug, Parser)]
#[command(
    name = "bulkhead",
    bin_name = "bulkhead",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    max_term_width = 110
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the controllers until told to end
    ///
    /// Flags have upstream's names, meaning and defaults where the upstream cloud-controller-manager has one; a
    /// better default is stated with its reason. Durations are written as in Go: 15s, 500ms, 1h2m3s.
    /// Underscores may stand for hyphens in names of flags.
    Run(Box<RunFlags>),
    /// Show how the host of this machine is: leadership, plugins, queues
    ///
    /// Asks the host over its admin socket, as its user or as root. A host that stands by says who leads.
    Status(StatusFlags),
    /// Print the JSON Schema of the configuration file, for editors and checks before a roll-out
    Schema,
}

/// What to print instead of running, and how to exit.
#[derive(Debug, PartialEq, Eq)]
pub struct Stop {
    /// Goes to stdout if `exit` is [`Exit::Done`], to stderr otherwise.
    pub text: String,
    /// How to exit.
    pub exit: Exit,
}

impl Stop {
    /// One line about a wrong command line or a file that it names.
    pub fn usage(line: impl std::fmt::Display) -> Self {
        Self {
            text: format!("bulkhead: {line}\n"),
            exit: Exit::Usage,
        }
    }

    /// The text as one line, without the program's name.
    pub fn line(&self) -> &str {
        let line = self.text.trim_end();
        line.strip_prefix("bulkhead: ").unwrap_or(line)
    }

    /// Prints the text.
    #[must_use = "the process must end with this"]
    pub fn print(self) -> Exit {
        let text = self.text.as_bytes();
        let printed = match self.exit {
            Exit::Done => io::stdout().write_all(text),
            Exit::Failure | Exit::Usage | Exit::Bind | Exit::TaskDied | Exit::Forced => {
                io::stderr().write_all(text)
            }
        };
        // A closed pipe is no reason for another exit code.
        drop(printed);
        self.exit
    }
}

/// Reads the command line, program name first, and checks everything that can be checked without the cluster.
/// `environment` looks a variable up.
///
/// # Errors
/// Help and version to print, or the one line that says what is wrong.
pub fn configure(
    args: impl IntoIterator<Item = OsString>,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Config, Stop> {
    let matches = command().try_get_matches_from(args.into_iter().scan(Reading::Flags, hyphenate));
    let matches = matches.map_err(|error| stop(&error))?;
    let cli = Cli::from_arg_matches(&matches).map_err(|error| stop(&error))?;
    let flags = match cli.command {
        Command::Run(flags) => flags,
        Command::Status(flags) => return Err(status(flags, environment)),
        Command::Schema => {
            return Err(Stop {
                text: file::schema(),
                exit: Exit::Done,
            });
        }
    };
    let is_given = |flag: &str| {
        let source = matches.subcommand().and_then(|(_, run)| run.value_source(flag));
        source == Some(ValueSource::CommandLine)
    };
    Config::new(*flags, &is_given, environment).map_err(|error| Stop::usage(Chain(&error)))
}

/// What `bulkhead status` prints.
fn status(flags: StatusFlags, environment: impl Fn(&str) -> Option<String>) -> Stop {
    let socket = SocketConfig::new(flags.admin_socket, environment);
    match status::answer(socket.places(), flags.output) {
        Ok(text) => Stop {
            text,
            exit: Exit::Done,
        },
        Err(error) => Stop {
            text: format!("bulkhead: {}\n", Chain(&error)),
            exit: Exit::Failure,
        },
    }
}

/// The whole command line, for help and for the generated reference.
pub fn command() -> clap::Command {
    Cli::command()
        .after_help(Exit::table())
        .mut_subcommand("run", |run| {
            run.after_help(Exit::table()).args_override_self(true)
        })
}

enum Reading {
    Flags,
    Rest,
}

/// Takes `--some_flag=a_b` for `--some-flag=a_b`.
#[expect(clippy::unnecessary_wraps, reason = "the signature that `scan` takes")]
fn hyphenate(reading: &mut Reading, arg: OsString) -> Option<OsString> {
    if matches!(reading, Reading::Rest) || !arg.as_bytes().starts_with(b"--") {
        return Some(arg);
    }
    if arg == OsStr::new("--") {
        *reading = Reading::Rest;
        return Some(arg);
    }
    let mut bytes = arg.into_vec();
    bytes
        .iter_mut()
        .take_while(|byte| **byte != b'=')
        .filter(|byte| **byte == b'_')
        .for_each(|byte| {
            *byte = b'-';
        });
    Some(OsString::from_vec(bytes))
}

fn stop(error: &clap::Error) -> Stop {
    let text = error.render().to_string();
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the other kinds all say what is wrong"
    )]
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Stop {
            text,
            exit: Exit::Done,
        },
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Stop {
            text,
            exit: Exit::Usage,
        },
        _ => Stop::usage(one_line(&text)),
    }
}

/// What clap says, without its usage text, in one line.
fn one_line(text: &str) -> String {
    let said = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"));
    let mut whole = String::new();
    for line in said.filter(|line| !line.is_empty()) {
        let line = line.strip_prefix("error: ").unwrap_or(line);
        let separator = match whole.chars().last() {
            None => "",
            Some(':') => " ",
            Some(_) => "; ",
        };
        whole.push_str(separator);
        whole.push_str(line);
    }
    whole
}

#[cfg(test)]
mod tests;
