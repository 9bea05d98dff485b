//! Where the admin socket is: for the host that serves it, and for the command that asks there.

use std::path::PathBuf;

/// Where the admin socket is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketConfig {
    is_given: bool,
    places: Vec<PathBuf>,
}

impl SocketConfig {
    /// At `given`, or at a usual place. `environment` looks a variable up.
    pub fn new(given: Option<PathBuf>, environment: impl Fn(&str) -> Option<String>) -> Self {
        let is_given = given.is_some();
        let own_folder = environment("XDG_RUNTIME_DIR").map(PathBuf::from);
        let usual = || {
            own_folder
                .filter(|folder| folder.is_absolute())
                .into_iter()
                .chain([PathBuf::from("/run")])
                .map(|folder| folder.join("bulkhead/admin.sock"))
                .collect()
        };
        Self {
            is_given,
            places: given.map_or_else(usual, |given| vec![given]),
        }
    }

    /// Whether the user named the place.
    pub const fn is_given(&self) -> bool {
        self.is_given
    }

    /// Where it may be, the best place first.
    pub fn places(&self) -> &[PathBuf] {
        &self.places
    }
}
