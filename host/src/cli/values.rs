//! Values of flags, parsed once.

use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use bulkhead_core::duration::{self, DurationError};
use bulkhead_core::territory::is_dns_label;
use http::Uri;

/// Why a value is refused: a phrase after the flag's name and the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Not one of Go's spellings.
    #[error("is neither true nor false")]
    Boolean,
    /// Zero where a span of time must be.
    #[error("must be longer than 0")]
    ZeroDuration,
    /// Not a duration.
    #[error(transparent)]
    Duration(#[from] DurationError),
    /// Empty.
    #[error("is empty")]
    Empty,
    /// Not a DNS label.
    #[error("is no name; write up to 63 lower-case letters, digits and -, a letter or digit first and last")]
    Name,
    /// Not a URL with a host.
    #[error("is no URL; write https://host:port")]
    Url,
    /// Not an address range.
    #[error("is no address range; write 10.0.0.0/16 or fd00::/56")]
    Cidr,
    /// Not a number of requests a second.
    #[error("is no rate; write a number such as 20 or 0.5")]
    Rate,
    /// Not a path of a URL.
    #[error("is no path; it begins with /, and * may only end it")]
    Path,
}

/// A boolean as Go spells it.
pub fn boolean(text: &str) -> Result<bool, ValueError> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(ValueError::Boolean),
    }
}

/// A duration in Go's syntax.
pub fn duration(text: &str) -> Result<Duration, ValueError> {
    Ok(duration::parse(text)?)
}

/// A duration in Go's syntax, longer than 0.
pub fn positive_duration(text: &str) -> Result<Duration, ValueError> {
    let span = duration(text)?;
    if span.is_zero() {
        Err(ValueError::ZeroDuration)
    } else {
        Ok(span)
    }
}

/// A text that is not empty.
pub fn nonempty(text: &str) -> Result<String, ValueError> {
    if text.is_empty() {
        Err(ValueError::Empty)
    } else {
        Ok(text.to_owned())
    }
}

/// The name of a provider or plugin, or nothing.
pub fn plugin_name(text: &str) -> Result<String, ValueError> {
    if text.is_empty() || is_dns_label(text) {
        Ok(text.to_owned())
    } else {
        Err(ValueError::Name)
    }
}

/// The URL of an API server.
pub fn server_url(text: &str) -> Result<Uri, ValueError> {
    let url: Uri = text.parse().map_err(|_| ValueError::Url)?;
    match (url.scheme_str(), url.host()) {
        (Some("http" | "https"), Some(host)) if !host.is_empty() => Ok(url),
        _ => Err(ValueError::Url),
    }
}

/// Requests a second; not positive means no limit, as for client-go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hertz(pub f64);

impl FromStr for Hertz {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        text.parse()
            .ok()
            .filter(|rate: &f64| rate.is_finite())
            .map(Self)
            .ok_or(ValueError::Rate)
    }
}

/// An address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    /// An address in the range.
    pub address: IpAddr,
    /// How many leading bits all its addresses share.
    pub prefix: u8,
}

impl FromStr for Cidr {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (address, prefix) = text.split_once('/').ok_or(ValueError::Cidr)?;
        let address: IpAddr = address.parse().map_err(|_| ValueError::Cidr)?;
        let prefix: u8 = prefix.parse().map_err(|_| ValueError::Cidr)?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        if prefix > bits {
            Err(ValueError::Cidr)
        } else {
            Ok(Self { address, prefix })
        }
    }
}

/// A path that needs no proof of who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedPath {
    /// This path.
    Exact(String),
    /// Every path that begins like this.
    Prefix(String),
}

impl AllowedPath {
    /// Whether `path` is meant.
    pub fn covers(&self, path: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == path,
            Self::Prefix(prefix) => path.starts_with(prefix),
        }
    }
}

impl FromStr for AllowedPath {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (path, is_prefix) = match text.strip_suffix('*') {
            Some(path) => (path, true),
            None => (text, false),
        };
        if !path.starts_with('/') || path.contains('*') {
            return Err(ValueError::Path);
        }
        let path = path.to_owned();
        Ok(if is_prefix {
            Self::Prefix(path)
        } else {
            Self::Exact(path)
        })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::short("t", Ok(true))]
    #[case::word("False", Ok(false))]
    #[case::number("1", Ok(true))]
    #[case::yaml("yes", Err(ValueError::Boolean))]
    #[case::empty("", Err(ValueError::Boolean))]
    fn booleans_are_go_s(#[case] text: &str, #[case] expected: Result<bool, ValueError>) {
        assert_eq!(boolean(text), expected);
    }

    #[rstest]
    #[case::url("https://10.0.0.1:6443", true)]
    #[case::plain("http://localhost:8080/base", true)]
    #[case::no_scheme("10.0.0.1:6443", false)]
    #[case::other_scheme("unix://x", false)]
    #[case::no_host("https://", false)]
    fn a_server_url_has_scheme_and_host(#[case] text: &str, #[case] is_url: bool) {
        assert_eq!(server_url(text).is_ok(), is_url);
    }

    #[rstest]
    #[case::v4("10.0.0.0/16", true)]
    #[case::v6("fd00::/56", true)]
    #[case::the_longest("::1/128", true)]
    #[case::too_long("10.0.0.0/33", false)]
    #[case::no_prefix("10.0.0.0", false)]
    #[case::a_name("pods/16", false)]
    fn ranges_have_an_address_and_a_prefix(#[case] text: &str, #[case] is_range: bool) {
        assert_eq!(text.parse::<Cidr>().is_ok(), is_range);
    }

    #[rstest]
    #[case::same("/livez", "/livez", true)]
    #[case::longer("/livez", "/livez/x", false)]
    #[case::prefix("/debug/*", "/debug/pprof", true)]
    #[case::not_the_prefix("/debug/*", "/debug", false)]
    #[case::everything("/*", "/metrics", true)]
    fn allowed_paths_cover(#[case] allowed: AllowedPath, #[case] path: &str, #[case] covers: bool) {
        assert_eq!(allowed.covers(path), covers);
    }

    #[rstest]
    #[case::relative("livez")]
    #[case::star_inside("/a*b")]
    #[case::star_alone("*")]
    fn other_paths_are_refused(#[case] text: &str) {
        assert_eq!(text.parse::<AllowedPath>(), Err(ValueError::Path));
    }

    #[rstest]
    #[case::none("0", Some(0.0))]
    #[case::fraction("0.5", Some(0.5))]
    #[case::negative("-1", Some(-1.0))]
    #[case::infinite("inf", None)]
    #[case::nan("NaN", None)]
    fn rates_are_finite(#[case] text: &str, #[case] rate: Option<f64>) {
        assert_eq!(text.parse().ok(), rate.map(Hertz));
    }
}
