//! Where a plugin listens, as users write it: `unix:///path`, `https://host:port` or `spawn:COMMAND LINE`.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// The longest path of a unix socket: `sun_path` has 108 bytes, one of them ends the text.
pub const SOCKET_PATH_LIMIT: usize = 107;

/// A plugin's endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A socket that a plugin, started by somebody else, listens on: absolute, at most
    /// [`SOCKET_PATH_LIMIT`] bytes.
    Unix(PathBuf),
    /// A plugin on a network, also on another machine.
    Https {
        /// A DNS name, or an IP address (IPv6 without brackets).
        host: String,
        /// Its port; not 0.
        port: u16,
    },
    /// A child process that the host starts and supervises.
    Spawn {
        /// The program: a path, or a name to be found in `PATH`.
        program: String,
        /// Its arguments.
        args: Vec<String>,
    },
}

/// Why a text is no endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// None of the forms.
    #[error("is no endpoint; write unix:///path/to/plugin.sock, https://host:port or spawn:COMMAND LINE")]
    UnknownForm,
    /// The socket's path does not start at the root.
    #[error("has a relative socket path; write unix:/// and the path from the root")]
    RelativePath,
    /// The path names a folder or contains a NUL.
    #[error("has a path that cannot be a socket's")]
    BadPath,
    /// The path does not fit the kernel's address.
    #[error("has a socket path of {length} bytes; {SOCKET_PATH_LIMIT} is the most that a unix socket takes")]
    LongPath {
        /// The path's length in bytes.
        length: usize,
    },
    /// `https://` without a host, without a port, or with more.
    #[error("is no address of a plugin; write https://host:port, and an IPv6 address in brackets")]
    NoAddress,
    /// `spawn:` without a program.
    #[error("names no program to spawn")]
    NoProgram,
    /// A quote is opened and not closed.
    #[error("has an unclosed {quote} in its command line")]
    UnclosedQuote {
        /// The quote.
        quote: char,
    },
    /// The last character is a backslash.
    #[error("ends with a lone backslash")]
    LoneBackslash,
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if let Some(path) = text.strip_prefix("unix://") {
            return parse_socket(path);
        }
        if let Some(address) = text.strip_prefix("https://") {
            return parse_address(address).ok_or(EndpointError::NoAddress);
        }
        let command = text.strip_prefix("spawn:").ok_or(EndpointError::UnknownForm)?;
        let mut words = split_words(command)?.into_iter();
        match words.next() {
            Some(program) if !program.is_empty() => Ok(Self::Spawn {
                program,
                args: words.collect(),
            }),
            _ => Err(EndpointError::NoProgram),
        }
    }
}

fn parse_socket(path: &str) -> Result<Endpoint, EndpointError> {
    if !path.starts_with('/') {
        return Err(EndpointError::RelativePath);
    }
    if path.ends_with('/') || path.contains('\0') {
        return Err(EndpointError::BadPath);
    }
    if path.len() > SOCKET_PATH_LIMIT {
        return Err(EndpointError::LongPath { length: path.len() });
    }
    Ok(Endpoint::Unix(PathBuf::from(path)))
}

fn parse_address(text: &str) -> Option<Endpoint> {
    let (host, port) = text.strip_suffix('/').unwrap_or(text).rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port != 0)?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let host = match host.strip_prefix('[') {
        Some(rest) => rest
            .strip_suffix(']')
            .filter(|it| it.parse::<std::net::Ipv6Addr>().is_ok())?,
        None => Some(host).filter(|it| !it.is_empty() && it.chars().all(is_name))?,
    };
    let host = host.to_ascii_lowercase();
    Some(Endpoint::Https { host, port })
}

impl Endpoint {
    /// Whether it is a port of this machine that no other machine reaches.
    pub fn is_loopback(&self) -> bool {
        match self {
            Self::Https { host, .. } => {
                host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
            }
            Self::Unix(_) | Self::Spawn { .. } => false,
        }
    }
}

/// Splits a command line as a shell would: blanks separate, `'…'` is taken as it is, in `"…"` a backslash
/// takes the next `"` or `\` as it is, elsewhere any character. Nothing is expanded.
fn split_words(line: &str) -> Result<Vec<String>, EndpointError> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        match c {
            ' ' | '\t' | '\n' => words.extend(word.take()),
            '\'' | '"' => take_quoted(c, &mut rest, word.get_or_insert_default())?,
            '\\' => word
                .get_or_insert_default()
                .push(rest.next().ok_or(EndpointError::LoneBackslash)?),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

/// Moves the characters up to the closing `quote` into `word`.
fn take_quoted(
    quote: char,
    rest: &mut impl Iterator<Item = char>,
    word: &mut String,
) -> Result<(), EndpointError> {
    let unclosed = || EndpointError::UnclosedQuote { quote };
    loop {
        let c = rest.next().ok_or_else(unclosed)?;
        if c == quote {
            return Ok(());
        }
        if c != '\\' || quote == '\'' {
            word.push(c);
            continue;
        }
        let escaped = rest.next().ok_or_else(unclosed)?;
        if escaped != '"' && escaped != '\\' {
            word.push('\\');
        }
        word.push(escaped);
    }
}

impl fmt::Display for Endpoint {
    /// A text that parses to this endpoint again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Https { host, port } if host.contains(':') => write!(f, "https://[{host}]:{port}"),
            Self::Https { host, port } => write!(f, "https://{host}:{port}"),
            Self::Spawn { program, args } => {
                write!(f, "spawn:{}", Quoted(program))?;
                args.iter().try_for_each(|arg| write!(f, " {}", Quoted(arg)))
            }
        }
    }
}

/// A word, quoted only where a shell would need it.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%".contains(c);
        if !self.0.is_empty() && self.0.chars().all(is_plain) {
            return f.write_str(self.0);
        }
        write!(f, "'{}'", self.0.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn spawn(program: &str, args: &[&str]) -> Endpoint {
        Endpoint::Spawn {
            program: program.into(),
            args: args.iter().map(ToString::to_string).collect(),
        }
    }

    fn https(host: &str, port: u16) -> Endpoint {
        let host = host.to_owned();
        Endpoint::Https { host, port }
    }

    #[rstest]
    #[case::name("https://localhost:1", true)]
    #[case::v4("https://127.1.2.3:1", true)]
    #[case::v6("https://[::1]:1", true)]
    #[case::other("https://10.0.0.1:1", false)]
    #[case::looks_like_it("https://localhost.example.com:1", false)]
    #[case::socket("unix:///s", false)]
    fn loopback_is_known(#[case] endpoint: Endpoint, #[case] is_loopback: bool) {
        assert_eq!(endpoint.is_loopback(), is_loopback);
    }

    #[rstest]
    #[case::socket("unix:///run/p/local/a.sock", Endpoint::Unix("/run/p/local/a.sock".into()))]
    #[case::name("https://plugin.example.com:7443", https("plugin.example.com", 7443))]
    #[case::ipv4("https://10.0.0.1:1/", https("10.0.0.1", 1))]
    #[case::ipv6("https://[::1]:1", https("::1", 1))]
    #[case::program("spawn:bulkhead-local", spawn("bulkhead-local", &[]))]
    #[case::arguments("spawn:./a  --x=1\t-v ", spawn("./a", &["--x=1", "-v"]))]
    #[case::single_quotes(r"spawn:a 'b c\' d", spawn("a", &[r"b c\", "d"]))]
    #[case::double_quotes(r#"spawn:"my dir/a" "say \"x\" \n \\""#, spawn("my dir/a", &[r#"say "x" \n \"#]))]
    #[case::quotes_inside_a_word("spawn:a --name='b c'd", spawn("a", &["--name=b cd"]))]
    #[case::an_empty_argument("spawn:a ''", spawn("a", &[""]))]
    #[case::backslash(r"spawn:a b\ c", spawn("a", &["b c"]))]
    #[case::nothing_is_expanded("spawn:a $HOME ~ *", spawn("a", &["$HOME", "~", "*"]))]
    fn endpoints_are_read(#[case] text: &str, #[case] expected: Endpoint) {
        assert_eq!(text.parse(), Ok(expected));
    }

    #[rstest]
    #[case::a_bare_path("/run/a.sock", EndpointError::UnknownForm)]
    #[case::plain_http("http://host:1", EndpointError::UnknownForm)]
    #[case::no_port("https://host", EndpointError::NoAddress)]
    #[case::port_0("https://host:0", EndpointError::NoAddress)]
    #[case::no_host("https://:1", EndpointError::NoAddress)]
    #[case::a_path("https://host:1/x", EndpointError::NoAddress)]
    #[case::no_brackets("https://::1:1", EndpointError::NoAddress)]
    #[case::a_user("https://me@host:1", EndpointError::NoAddress)]
    #[case::relative("unix://run/a.sock", EndpointError::RelativePath)]
    #[case::no_path("unix://", EndpointError::RelativePath)]
    #[case::a_folder("unix:///run/", EndpointError::BadPath)]
    #[case::nul("unix:///run/a\0b", EndpointError::BadPath)]
    #[case::no_program("spawn: ", EndpointError::NoProgram)]
    #[case::an_empty_program("spawn:'' x", EndpointError::NoProgram)]
    #[case::open_single("spawn:a 'b", EndpointError::UnclosedQuote { quote: '\'' })]
    #[case::open_double("spawn:a \"b\\\"", EndpointError::UnclosedQuote { quote: '"' })]
    #[case::lone_backslash("spawn:a\\", EndpointError::LoneBackslash)]
    fn other_texts_are_refused(#[case] text: &str, #[case] expected: EndpointError) {
        assert_eq!(text.parse::<Endpoint>(), Err(expected));
    }

    #[test]
    fn a_socket_path_may_have_107_bytes_and_no_more() {
        let path = |length: usize| format!("unix:///{}", "x".repeat(length - 1));
        assert!(path(107).parse::<Endpoint>().is_ok());
        assert_eq!(
            path(108).parse::<Endpoint>(),
            Err(EndpointError::LongPath { length: 108 })
        );
    }

    proptest! {
        #[test]
        fn a_printed_command_is_read_back(program in ".{1,20}", args in proptest::collection::vec(".{0,20}", 0..4)) {
            let endpoint = Endpoint::Spawn { program, args };
            prop_assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
        }

        #[test]
        fn every_text_is_refused_or_printed_so_that_it_is_read_back(text in "(spawn:|unix:///|https://)?.{0,60}") {
            if let Ok(endpoint) = text.parse::<Endpoint>() {
                prop_assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
            }
        }
    }
}
