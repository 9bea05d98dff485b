//! IP families and networks, as address pools and source ranges are written.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// A network of either family; the host bits are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Cidr {
    network: IpAddr,
    prefix: u8,
}

/// Why a text is not a [`Cidr`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CidrError {
    /// The part before the slash is not an IP address.
    #[error("{text:?} is not an IP address or a CIDR such as 127.0.10.0/24")]
    Address {
        /// The text as given.
        text: String,
    },
    /// The part after the slash is not a prefix length of the address's family.
    #[error("{text:?} has a prefix length that is not between 0 and {longest}")]
    Prefix {
        /// The text as given.
        text: String,
        /// 32 or 128.
        longest: u8,
    },
    /// Bits after the prefix are set, so that it is unclear which network was meant.
    #[error("{text:?} has host bits set: did you mean {network}?")]
    HostBits {
        /// The text as given.
        text: String,
        /// The network with the host bits cleared.
        network: String,
    },
}

impl Cidr {
    /// The network of one address.
    pub fn single(address: IpAddr) -> Self {
        Self {
            network: address,
            prefix: longest(address),
        }
    }

    /// Reads as [`Cidr::from_str`], but takes an address inside for its network, as Kubernetes does in
    /// source ranges.
    pub fn covering(text: &str) -> Result<Self, CidrError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let inside: IpAddr = address.parse().map_err(|_| CidrError::Address {
            text: text.to_owned(),
        })?;
        let Some(prefix) = prefix else {
            return Ok(Self::single(inside));
        };
        let longest = longest(inside);
        let prefix: u8 = prefix
            .parse()
            .ok()
            .filter(|prefix| *prefix <= longest)
            .ok_or_else(|| CidrError::Prefix {
                text: text.to_owned(),
                longest,
            })?;
        let network = self::address(inside.is_ipv4(), bits(inside) & mask(longest, prefix));
        Ok(Self { network, prefix })
    }

    /// Whether `address` lies in this network; never for the other family.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.network.is_ipv4() == address.is_ipv4()
            && bits(address) & mask(longest(address), self.prefix) == bits(self.network)
    }

    /// Whether the two networks share an address.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.network) || other.contains(self.network)
    }

    /// The first and last address that may be given to somebody: without the network address (in
    /// IPv6 the subnet routers' anycast address) and IPv4's broadcast address, except in networks
    /// of one or two addresses (RFC 3021, RFC 6164).
    pub fn assignable(&self) -> (IpAddr, IpAddr) {
        let hosts = !mask(longest(self.network), self.prefix) & ones(longest(self.network));
        let (first, last) = (bits(self.network), bits(self.network) | hosts);
        if hosts <= 1 {
            return (self.address(first), self.address(last));
        }
        let broadcast = u128::from(self.network.is_ipv4());
        (self.address(first + 1), self.address(last - broadcast))
    }

    fn address(&self, bits: u128) -> IpAddr {
        address(self.network.is_ipv4(), bits)
    }
}

/// The address after this one in its family; none after the last.
pub(crate) fn successor(of: IpAddr) -> Option<IpAddr> {
    let next = bits(of).checked_add(1)?;
    (next <= ones(longest(of))).then(|| address(of.is_ipv4(), next))
}

/// How many addresses lie between the two (both included).
pub(crate) fn span(first: IpAddr, last: IpAddr) -> u128 {
    bits(last).saturating_sub(bits(first)).saturating_add(1)
}

fn address(v4: bool, bits: u128) -> IpAddr {
    match u32::try_from(bits) {
        Ok(bits) if v4 => IpAddr::V4(Ipv4Addr::from_bits(bits)),
        _ => IpAddr::V6(Ipv6Addr::from_bits(bits)),
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn longest(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn ones(width: u8) -> u128 {
    u128::MAX.checked_shr(128 - u32::from(width)).unwrap_or(0)
}

fn mask(width: u8, prefix: u8) -> u128 {
    let host_bits = u32::from(width - prefix);
    u128::MAX.checked_shl(host_bits).unwrap_or(0) & ones(width)
}

impl FromStr for Cidr {
    type Err = CidrError;

    /// Reads `address/prefix`, or an address alone as a network of one.
    fn from_str(text: &str) -> Result<Self, CidrError> {
        let cidr = Self::covering(text)?;
        let address = text.split_once('/').map_or(text, |(address, _)| address);
        if address.parse() == Ok(cidr.network) {
            Ok(cidr)
        } else {
            Err(CidrError::HostBits {
                text: text.to_owned(),
                network: cidr.to_string(),
            })
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

impl From<Cidr> for String {
    fn from(cidr: Cidr) -> Self {
        cidr.to_string()
    }
}

impl TryFrom<String> for Cidr {
    type Error = CidrError;

    fn try_from(text: String) -> Result<Self, CidrError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::a_network_loses_both_ends("127.0.10.0/24", "127.0.10.1", "127.0.10.254")]
    #[case::a_pair_keeps_both("10.0.0.4/31", "10.0.0.4", "10.0.0.5")]
    #[case::an_address_alone_is_itself("127.0.10.9", "127.0.10.9", "127.0.10.9")]
    #[case::everything("0.0.0.0/0", "0.0.0.1", "255.255.255.254")]
    #[case::ipv6_has_no_broadcast("fd00::/120", "fd00::1", "fd00::ff")]
    #[case::ipv6_everything("::/0", "::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")]
    fn assignable_addresses(#[case] cidr: &str, #[case] first: &str, #[case] last: &str) {
        let cidr: Cidr = cidr.parse().unwrap();
        assert_eq!(cidr.assignable(), (first.parse().unwrap(), last.parse().unwrap()));
    }

    #[rstest]
    #[case::not_an_address("ten", "\"ten\" is not an IP address or a CIDR such as 127.0.10.0/24")]
    #[case::too_long(
        "10.0.0.0/33",
        "\"10.0.0.0/33\" has a prefix length that is not between 0 and 32"
    )]
    #[case::no_prefix("10.0.0.0/", "\"10.0.0.0/\" has a prefix length that is not between 0 and 32")]
    #[case::host_bits("10.0.0.7/24", "\"10.0.0.7/24\" has host bits set: did you mean 10.0.0.0/24?")]
    fn refuses(#[case] text: &str, #[case] message: &str) {
        assert_eq!(text.parse::<Cidr>().unwrap_err().to_string(), message);
    }

    proptest! {
        #[test]
        fn a_network_survives_its_own_text(bits in any::<u32>(), prefix in 0_u8..=32) {
            let network = IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(u128::from(bits) & mask(32, prefix)).unwrap()));
            let cidr = Cidr { network, prefix };
            prop_assert_eq!(cidr.to_string().parse::<Cidr>().unwrap(), cidr);
        }

        #[test]
        fn every_assignable_end_is_contained(bits in any::<u128>(), prefix in 0_u8..=128) {
            let network = IpAddr::V6(Ipv6Addr::from_bits(bits & mask(128, prefix)));
            let cidr = Cidr { network, prefix };
            let (first, last) = cidr.assignable();
            prop_assert!(cidr.contains(first) && cidr.contains(last) && first <= last);
        }
    }
}
