//! How the cloud behaves: what can be set at the start and while it runs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::distribution::{Distribution, Span};
use super::kind::Kind;

/// How the cloud behaves. A document names only what is to change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct Settings {
    /// Where everything but instances is.
    pub region: String,
    /// How long answers take.
    pub latency: Distribution,
    /// How old the state is that a read sees.
    pub lag: Distribution,
    /// Most objects on a page.
    pub page_size: u32,
    /// How many calls are taken.
    pub throttle: Option<Throttle>,
    /// Most objects of a kind; of routes: most in one table.
    pub quotas: BTreeMap<Kind, u32>,
    /// Whether the cloud takes the plugin's credentials.
    pub credentials: Credentials,
    /// Zones and regions that are away.
    pub outages: Vec<String>,
    /// How long an object of a kind takes until it is ready.
    pub provisioning: BTreeMap<Kind, Span>,
    /// How long an object of a kind takes until it is gone.
    pub deletion: BTreeMap<Kind, Span>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            region: "region-1".to_owned(),
            latency: Distribution::default(),
            lag: Distribution::default(),
            page_size: 500,
            throttle: None,
            quotas: BTreeMap::new(),
            credentials: Credentials::Valid,
            outages: Vec::new(),
            provisioning: BTreeMap::new(),
            deletion: BTreeMap::new(),
        }
    }
}

impl Settings {
    /// What is wrong with them.
    pub(crate) fn problem(&self) -> Option<String> {
        if self.page_size == 0 || self.page_size > 1000 {
            return Some(format!("pageSize is {}: use 1 to 1000", self.page_size));
        }
        match self.throttle {
            Some(throttle) if !(throttle.rate > 0.0 && throttle.rate.is_finite()) => {
                Some(format!("throttle.rate is {}: use more than 0", throttle.rate))
            }
            _ => None,
        }
    }
}

/// A change of [`Settings`]: what is not named stays, and `null` for `throttle` takes it away.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct SettingsChange {
    #[serde(skip_serializing_if = "Option::is_none")]
    region: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency: Option<Distribution>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lag: Option<Distribution>,
    #[serde(skip_serializing_if = "Option::is_none")]
    page_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[expect(
        clippy::option_option,
        reason = "not named, taken away and set are three things"
    )]
    throttle: Option<Option<Throttle>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    quotas: Option<BTreeMap<Kind, u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    credentials: Option<Credentials>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outages: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    provisioning: Option<BTreeMap<Kind, Span>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deletion: Option<BTreeMap<Kind, Span>>,
}

#[expect(
    clippy::option_option,
    reason = "not named, taken away and set are three things"
)]
fn given<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Option<Throttle>>, D::Error> {
    Option::<Throttle>::deserialize(from).map(Some)
}

macro_rules! setters {
    ($($(#[$doc:meta])* $field:ident: $type:ty;)*) => {
        impl SettingsChange {
            $($(#[$doc])*
            #[must_use]
            pub fn $field(mut self, to: $type) -> Self {
                self.$field = Some(to);
                self
            })*

            /// The settings with this change.
            #[must_use]
            pub fn applied(self, to: &Settings) -> Settings {
                let mut settings = to.clone();
                $(if let Some(value) = self.$field {
                    settings.$field = value;
                })*
                settings
            }
        }
    };
}

setters! {
    /// Where everything but instances is; what exists stays where it is.
    region: String;
    /// How long answers take.
    latency: Distribution;
    /// How old the state is that a read sees.
    lag: Distribution;
    /// Most objects on a page.
    page_size: u32;
    /// How many calls are taken.
    throttle: Option<Throttle>;
    /// Most objects of a kind; replaces all quotas.
    quotas: BTreeMap<Kind, u32>;
    /// Whether the cloud takes the credentials.
    credentials: Credentials;
    /// Scopes that are away; replaces those that were.
    outages: Vec<String>;
    /// How long objects take until they are ready; replaces all.
    provisioning: BTreeMap<Kind, Span>;
    /// How long objects take until they are gone; replaces all.
    deletion: BTreeMap<Kind, Span>;
}

/// A bucket of tokens: each call takes one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Throttle {
    /// Tokens that come back in a second.
    pub rate: f64,
    /// Most tokens.
    pub burst: u32,
}

/// Whether the cloud takes the plugin's credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Credentials {
    /// It does.
    Valid,
    /// It never did.
    Invalid,
    /// It did.
    Expired,
}
