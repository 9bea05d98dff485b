//! The provider's own configuration: the file behind `--cloud-config`, in YAML or in the INI form that Go providers
//! have always read.
//!
//! ```no_run
//! #[derive(serde::Deserialize)]
//! struct Config { global: Global }
//! #[derive(serde::Deserialize)]
//! struct Global { zone: String, retries: u32 }
//!
//! let config: Config = bulkhead_plugin::cloud_config::load("cloud.conf".as_ref())?;
//! # Ok::<(), bulkhead_plugin::cloud_config::CloudConfigError>(())
//! ```
//!
//! In the INI form a section is a struct, `[ServiceOverride "1"]` an entry of a map in the field of that name, and a
//! key given several times a list. Names are compared without case, `-` and `_`, as the Go library does.

mod ini;
mod ini_value;

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

/// Largest file in bytes: a configuration, not a log.
const MAX_BYTES: u64 = 1 << 20;

/// Why a configuration cannot be used. No message quotes a value, which may be a secret.
#[derive(Debug, thiserror::Error)]
pub enum CloudConfigError {
    /// The file cannot be read.
    #[error("cannot read the cloud config {path:?}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is too large.
    #[error("the cloud config {path:?} has {bytes} bytes, at most 1 MiB is read")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// Not YAML, or not what the plugin expects.
    #[error("the cloud config {path:?}, line {line}: {message}")]
    Yaml {
        /// The file.
        path: PathBuf,
        /// The line, from 1; 0 if unknown.
        line: u64,
        /// What is wrong.
        message: String,
    },
    /// Not INI, or not what the plugin expects.
    #[error("the cloud config {path:?}, {source}")]
    Ini {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the line.
        source: IniError,
    },
}

pub use ini_value::IniError;

/// Reads `path` into `T`: YAML or INI by the name's ending, else by the first line that says something.
///
/// # Errors
///
/// With the file and, where it is known, the line.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<T, CloudConfigError> {
    let read = |source| CloudConfigError::Read {
        path: path.to_owned(),
        source,
    };
    let bytes = std::fs::metadata(path).map_err(read)?.len();
    if bytes > MAX_BYTES {
        return Err(CloudConfigError::TooLarge {
            path: path.to_owned(),
            bytes,
        });
    }
    let text = std::fs::read_to_string(path).map_err(read)?;
    parse(path, &text)
}

/// As [`load`], from text; `path` decides the form and is named in errors.
///
/// # Errors
///
/// As [`load`].
pub fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, CloudConfigError> {
    match Form::of(path, text) {
        Form::Ini => ini::parse(text).map_err(|source| CloudConfigError::Ini {
            path: path.to_owned(),
            source,
        }),
        Form::Yaml => serde_saphyr::from_str(text).map_err(|error| yaml_error(path, &error)),
    }
}

/// The library's full text shows the lines around; those may hold secrets, so its first line must do.
fn yaml_error(path: &Path, error: &serde_saphyr::Error) -> CloudConfigError {
    let line = error.location().map_or(0, |location| location.line());
    let message = error.without_snippet().to_string();
    let message = message.lines().next().unwrap_or_default().to_owned();
    CloudConfigError::Yaml {
        path: path.to_owned(),
        line,
        message,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Yaml,
    Ini,
}

impl Form {
    fn of(path: &Path, text: &str) -> Self {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("yaml" | "yml" | "json") => Self::Yaml,
            Some("ini" | "gcfg") => Self::Ini,
            _ => {
                let says = |line: &&str| !line.is_empty() && !line.starts_with(['#', ';']);
                let first = text.lines().map(str::trim).find(says).unwrap_or_default();
                if ini::is_section(first) {
                    Self::Ini
                } else {
                    Self::Yaml
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
