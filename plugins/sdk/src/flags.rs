//! Flags and environment of every plugin: where it serves, and to whom.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::options::{EndpointError, ServeOptions};
use crate::tls::TlsFiles;

/// Environment variable with the endpoint, where no flag gives it.
pub const ENDPOINT_VARIABLE: &str = "BULKHEAD_ENDPOINT";
/// Environment variable with the file of the plugin's certificate, where no flag gives it.
pub const CERT_VARIABLE: &str = "BULKHEAD_TLS_CERT_FILE";
/// Environment variable with the file of the certificate's key, where no flag gives it.
pub const KEY_VARIABLE: &str = "BULKHEAD_TLS_PRIVATE_KEY_FILE";
/// Environment variable with the file of the hosts' certificate authorities, where no flag gives it.
pub const CLIENT_CA_VARIABLE: &str = "BULKHEAD_CLIENT_CA_FILE";

/// What flags and environment say of where a plugin serves, and to whom. With feature `clap` these are arguments to be
/// flattened into a command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct ServeFlags {
    /// Where to serve: `unix:///absolute/path.sock` or `https://ADDRESS:PORT`
    #[cfg_attr(feature = "clap", arg(long, env = ENDPOINT_VARIABLE, value_name = "URL"))]
    pub endpoint: Option<String>,
    /// The plugin's certificate with its chain, in PEM; for https, read again when it changes
    #[cfg_attr(feature = "clap", arg(long, env = CERT_VARIABLE, value_name = "FILE"))]
    pub tls_cert_file: Option<PathBuf>,
    /// The certificate's key, in PEM; for https, read again when it changes
    #[cfg_attr(feature = "clap", arg(long, env = KEY_VARIABLE, value_name = "FILE"))]
    pub tls_private_key_file: Option<PathBuf>,
    /// The authorities that sign the certificates of hosts, in PEM; for https, read again when it changes
    #[cfg_attr(feature = "clap", arg(long, env = CLIENT_CA_VARIABLE, value_name = "FILE"))]
    pub client_ca_file: Option<PathBuf>,
    /// A uid that may connect, beside this process' own and 0; for unix, repeatable
    #[cfg_attr(feature = "clap", arg(long, value_name = "UID"))]
    pub allow_uid: Vec<u32>,
}

impl ServeFlags {
    /// Takes what concerns serving from this process' arguments, else from its environment. For plugins without a
    /// command line of their own; other arguments are left alone.
    ///
    /// # Errors
    ///
    /// An argument of these is no text, has no value, or one that is no uid.
    pub fn from_process() -> Result<Self, EndpointError> {
        let file = |name| std::env::var_os(name).map(PathBuf::from);
        let environment = Self {
            endpoint: std::env::var_os(ENDPOINT_VARIABLE).map(text).transpose()?,
            tls_cert_file: file(CERT_VARIABLE),
            tls_private_key_file: file(KEY_VARIABLE),
            client_ca_file: file(CLIENT_CA_VARIABLE),
            allow_uid: Vec::new(),
        };
        environment.with_arguments(std::env::args_os().skip(1))
    }

    fn with_arguments(mut self, arguments: impl Iterator<Item = OsString>) -> Result<Self, EndpointError> {
        let mut arguments = arguments.filter_map(|argument| argument.into_string().ok());
        while let Some(argument) = arguments.next() {
            let (name, value) = match argument.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (argument, None),
            };
            let mut value = || value.clone().or_else(|| arguments.next());
            match name.as_str() {
                "--endpoint" => self.endpoint = value(),
                "--tls-cert-file" => self.tls_cert_file = value().map(PathBuf::from),
                "--tls-private-key-file" => self.tls_private_key_file = value().map(PathBuf::from),
                "--client-ca-file" => self.client_ca_file = value().map(PathBuf::from),
                "--allow-uid" => self.allow_uid.push(uid(value())?),
                _ => {}
            }
        }
        Ok(self)
    }

    /// What they come to.
    ///
    /// # Errors
    ///
    /// There is no endpoint, it is none, or the others do not fit it.
    pub fn resolve(self) -> Result<ServeOptions, EndpointError> {
        let given = |file: Option<PathBuf>| file.filter(|path| !path.as_os_str().is_empty());
        let endpoint = self.endpoint.filter(|endpoint| !endpoint.is_empty());
        let endpoint = endpoint.ok_or(EndpointError::Missing)?;
        let files = match (
            given(self.tls_cert_file),
            given(self.tls_private_key_file),
            given(self.client_ca_file),
        ) {
            (None, None, None) => None,
            (Some(cert), Some(key), Some(client_ca)) => Some(TlsFiles { cert, key, client_ca }),
            _ => return Err(EndpointError::IncompleteTls),
        };
        let options = match files {
            Some(_) if !self.allow_uid.is_empty() => return Err(EndpointError::UidOfNetwork),
            Some(files) => ServeOptions::over_tls(&endpoint, files)?,
            None => ServeOptions::new(&endpoint)?,
        };
        Ok(self.allow_uid.into_iter().fold(options, ServeOptions::allow_uid))
    }
}

fn text(value: OsString) -> Result<String, EndpointError> {
    value.into_string().map_err(|endpoint| EndpointError::Form {
        endpoint: endpoint.to_string_lossy().into_owned(),
    })
}

fn uid(value: Option<String>) -> Result<u32, EndpointError> {
    let text = value.unwrap_or_default();
    text.parse().map_err(|_| EndpointError::Uid { text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Listen;

    fn flags(line: &str) -> ServeFlags {
        let words = line.split(' ').map(OsString::from);
        ServeFlags::default().with_arguments(words).expect("legal")
    }

    #[test]
    fn arguments_are_taken_in_both_forms_and_others_left_alone() {
        let all = flags(
            "--mine --endpoint=https://[::1]:7443 --tls-cert-file c --tls-private-key-file=k --client-ca-file ca rest",
        );
        let options = all.resolve().expect("legal");
        let Listen::Port { address, files } = options.listen else {
            panic!("{options:?}");
        };
        assert_eq!(address, "[::1]:7443".parse().expect("an address"));
        assert_eq!(
            files,
            TlsFiles {
                cert: "c".into(),
                key: "k".into(),
                client_ca: "ca".into()
            }
        );
        let options = flags("--endpoint unix:///run/x/a.sock --allow-uid 7 --allow-uid=8").resolve();
        assert!(options.expect("legal").allowed_uids.ends_with(&[7, 8]));
    }

    #[rstest::rstest]
    #[case::nothing("", "no endpoint")]
    #[case::https_without_files(
        "--endpoint=https://127.0.0.1:1",
        "needs --tls-cert-file, --tls-private-key-file"
    )]
    #[case::an_empty_one("--endpoint=https://127.0.0.1:1 --tls-cert-file=", "needs --tls-cert-file")]
    #[case::one_file("--endpoint=https://127.0.0.1:1 --tls-cert-file=c", "go together")]
    #[case::files_at_a_socket(
        "--endpoint=unix:///a.sock --tls-cert-file=c --tls-private-key-file=k --client-ca-file=ca",
        "are for https"
    )]
    #[case::uid_at_a_port(
        "--endpoint=https://127.0.0.1:1 --tls-cert-file=c --tls-private-key-file=k --client-ca-file=ca --allow-uid=1",
        "--allow-uid is for unix"
    )]
    #[case::name(
        "--endpoint=https://localhost:1 --tls-cert-file=c --tls-private-key-file=k --client-ca-file=ca",
        "is neither unix"
    )]
    fn what_does_not_fit_together_is_named(#[case] line: &str, #[case] part: &str) {
        let error = flags(line).resolve().expect_err("refused").to_string();
        assert!(error.contains(part), "{error}");
    }

    #[test]
    fn a_uid_that_is_none_is_named() {
        let words = ["--allow-uid", "root"].map(OsString::from).into_iter();
        let error = ServeFlags::default().with_arguments(words).expect_err("refused");
        assert!(error.to_string().contains("\"root\""), "{error}");
    }
}
