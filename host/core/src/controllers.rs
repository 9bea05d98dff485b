//! Which controllers run: the meaning of `--controllers`, and what a plugin's capabilities leave of it.
//!
//! The list holds `*`, `name` and `-name`. As in upstream the first entry that *names* a controller decides,
//! wherever `*` stands; `*` decides for those that no entry names. Canonical names and old aliases are equal.

use std::fmt;

/// A controller that users may name, built or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Controller {
    /// Initialises nodes and keeps their addresses and metadata.
    CloudNode,
    /// Decides whether a missing or stopped instance costs its node anything.
    CloudNodeLifecycle,
    /// Gives `LoadBalancer` Services their load balancers.
    ServiceLb,
    /// Keeps the cloud's routes to pod CIDRs.
    NodeRoute,
    /// Assigns pod CIDRs to nodes.
    NodeIpam,
}

impl Controller {
    /// Every controller, in the order in which they are listed to users.
    pub const ALL: [Self; 5] = [
        Self::CloudNode,
        Self::CloudNodeLifecycle,
        Self::ServiceLb,
        Self::NodeRoute,
        Self::NodeIpam,
    ];

    /// The canonical name, as in `--controllers`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CloudNode => "cloud-node-controller",
            Self::CloudNodeLifecycle => "cloud-node-lifecycle-controller",
            Self::ServiceLb => "service-lb-controller",
            Self::NodeRoute => "node-route-controller",
            Self::NodeIpam => "node-ipam-controller",
        }
    }

    /// The old short name: accepted in `--controllers`, and the label in `running_managed_controllers`.
    pub const fn alias(self) -> &'static str {
        match self {
            Self::CloudNode => "cloud-node",
            Self::CloudNodeLifecycle => "cloud-node-lifecycle",
            Self::ServiceLb => "service",
            Self::NodeRoute => "route",
            Self::NodeIpam => "nodeipam",
        }
    }

    /// Whether this version has the controller.
    pub const fn is_built(self) -> bool {
        match self {
            Self::CloudNode | Self::ServiceLb => true,
            Self::CloudNodeLifecycle | Self::NodeRoute | Self::NodeIpam => false,
        }
    }

    /// The controller with this canonical name or alias.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|controller| controller.name() == name || controller.alias() == name)
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a `--controllers` list is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// An entry names no controller.
    #[error("{entry:?} is no controller; known are *, {}", known())]
    Unknown {
        /// The entry as given.
        entry: String,
    },
    /// An entry asks for a controller that this version does not have.
    #[error("{controller} is not built yet; take it off the list or write -{controller}")]
    NotBuilt {
        /// The controller asked for.
        controller: Controller,
    },
}

fn known() -> String {
    let names = Controller::ALL.map(|controller| format!("{} ({})", controller.name(), controller.alias()));
    names.join(", ")
}

/// What becomes of one controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It runs.
    On,
    /// The list leaves it out or switches it off: nothing to say.
    Deselected,
    /// `*` covers it, but this version does not have it: worth one line.
    NotBuilt,
}

impl Verdict {
    /// The one line that tells the operator why `controller` does not run; `None` if there is nothing to say.
    pub fn explain(self, controller: Controller) -> Option<String> {
        match self {
            Self::On | Self::Deselected => None,
            Self::NotBuilt => Some(format!("{controller} is off: not built yet")),
        }
    }
}

/// A parsed `--controllers` list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    others: Choice,
    named: Vec<(Controller, Choice)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    On,
    Off,
}

impl Selection {
    /// Reads the entries of a `--controllers` list.
    ///
    /// # Errors
    /// An entry that names no controller, or one whose decision is to run a controller that is not built.
    pub fn parse<'a>(entries: impl IntoIterator<Item = &'a str>) -> Result<Self, SelectionError> {
        let mut selection = Self {
            others: Choice::Off,
            named: Vec::new(),
        };
        for entry in entries {
            if entry == "*" {
                selection.others = Choice::On;
                continue;
            }
            let (name, choice) = match entry.strip_prefix('-') {
                Some(name) => (name, Choice::Off),
                None => (entry, Choice::On),
            };
            let controller = Controller::from_name(name).ok_or_else(|| SelectionError::Unknown {
                entry: entry.to_owned(),
            })?;
            if selection.named(controller).is_none() {
                selection.named.push((controller, choice));
            }
        }
        selection.refuse_unbuilt()?;
        Ok(selection)
    }

    fn refuse_unbuilt(&self) -> Result<(), SelectionError> {
        let unbuilt = self
            .named
            .iter()
            .find(|(controller, choice)| *choice == Choice::On && !controller.is_built());
        match unbuilt {
            Some((controller, _)) => Err(SelectionError::NotBuilt {
                controller: *controller,
            }),
            None => Ok(()),
        }
    }

    fn named(&self, controller: Controller) -> Option<Choice> {
        self.named
            .iter()
            .find(|(named, _)| *named == controller)
            .map(|(_, choice)| *choice)
    }

    /// What becomes of `controller`. Whether the plugin can do what it needs is known only when there is one.
    pub fn verdict(&self, controller: Controller) -> Verdict {
        match self.named(controller).unwrap_or(self.others) {
            Choice::Off => Verdict::Deselected,
            Choice::On if controller.is_built() => Verdict::On,
            Choice::On => Verdict::NotBuilt,
        }
    }
}

#[cfg(test)]
mod tests;
