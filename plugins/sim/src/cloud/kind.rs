//! What a cloud is made of: the types of objects, and how they hang together.

use serde::{Deserialize, Serialize};

/// A type of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A machine.
    Instance,
    /// Refers to its firewall and its addresses; its listeners go before it.
    LoadBalancer,
    /// A port of a load balancer; refers to a pool.
    Listener,
    /// Where traffic goes; survives load balancer and listener. Refers to a health check; its targets go before it.
    Pool,
    /// One instance in a pool. Carries no tags.
    Target,
    /// How targets are probed; survives its pool.
    HealthCheck,
    /// An IP address; survives its load balancer.
    Address,
    /// A security group; survives its load balancer. Its rules go before it.
    Firewall,
    /// Who may reach which port. Carries no tags.
    FirewallRule,
    /// Holds routes, up to a quota; they go before it.
    RouteTable,
    /// A CIDR and the instance behind it.
    Route,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Instance,
        Self::LoadBalancer,
        Self::Listener,
        Self::Pool,
        Self::Target,
        Self::HealthCheck,
        Self::Address,
        Self::Firewall,
        Self::FirewallRule,
        Self::RouteTable,
        Self::Route,
    ];

    /// The name on the wire and in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Instance => "instance",
            Self::LoadBalancer => "load_balancer",
            Self::Listener => "listener",
            Self::Pool => "pool",
            Self::Target => "target",
            Self::HealthCheck => "health_check",
            Self::Address => "address",
            Self::Firewall => "firewall",
            Self::FirewallRule => "firewall_rule",
            Self::RouteTable => "route_table",
            Self::Route => "route",
        }
    }

    /// The kind of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// What the ids of this kind begin with.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Instance => "i",
            Self::LoadBalancer => "lb",
            Self::Listener => "ls",
            Self::Pool => "pool",
            Self::Target => "tg",
            Self::HealthCheck => "hc",
            Self::Address => "ip",
            Self::Firewall => "fw",
            Self::FirewallRule => "fr",
            Self::RouteTable => "rt",
            Self::Route => "r",
        }
    }

    /// What an object of this kind is part of. A parent is not deleted while it has such a part.
    pub const fn parent(self) -> Option<Self> {
        match self {
            Self::Listener => Some(Self::LoadBalancer),
            Self::Target => Some(Self::Pool),
            Self::FirewallRule => Some(Self::Firewall),
            Self::Route => Some(Self::RouteTable),
            Self::Instance
            | Self::LoadBalancer
            | Self::Pool
            | Self::HealthCheck
            | Self::Address
            | Self::Firewall
            | Self::RouteTable => None,
        }
    }

    /// The kinds of which objects of this kind are part of.
    pub(crate) fn children(self) -> impl Iterator<Item = Self> {
        Self::ALL
            .into_iter()
            .filter(move |kind| kind.parent() == Some(self))
    }

    /// The attributes that name another object, and its kind. That one is not deleted while it is named.
    pub const fn references(self) -> &'static [(&'static str, Self)] {
        match self {
            Self::LoadBalancer => &[
                ("address_ipv4", Self::Address),
                ("address_ipv6", Self::Address),
                ("firewall", Self::Firewall),
            ],
            Self::Listener => &[("pool", Self::Pool)],
            Self::Pool => &[("health_check", Self::HealthCheck)],
            Self::Instance
            | Self::Target
            | Self::HealthCheck
            | Self::Address
            | Self::Firewall
            | Self::FirewallRule
            | Self::RouteTable
            | Self::Route => &[],
        }
    }

    /// Whether objects of this kind can carry tags, and so a mark.
    pub const fn carries_tags(self) -> bool {
        !matches!(self, Self::Target | Self::FirewallRule)
    }

    /// Whether several are made or deleted in one call: what can only exist inside another.
    pub(crate) const fn comes_in_batches(self) -> bool {
        matches!(self, Self::Target | Self::FirewallRule)
    }

    /// Whether two objects of one parent may have one name.
    pub(crate) const fn shares_names(self) -> bool {
        matches!(self, Self::Instance)
    }
}
