//! The addresses that this cloud gives: 198.18.0.0/15 and `2001:db8::/32`, which nobody has.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// 198.18.0.0/15 has so many.
const IPV4: u32 = 1 << 17;
const FIRST_IPV4: u32 = u32::from_be_bytes([198, 18, 0, 0]);

/// The address of this number; there are more numbers than objects ever live.
pub(crate) fn numbered(number: u64, ipv6: bool) -> IpAddr {
    if ipv6 {
        let first = u128::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0));
        return Ipv6Addr::from(first + u128::from(number)).into();
    }
    let within = u32::try_from(number % u64::from(IPV4)).unwrap_or_default();
    Ipv4Addr::from(FIRST_IPV4 + within).into()
}

/// Whether it is this cloud's to give.
pub(crate) fn is_ours(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => (FIRST_IPV4..FIRST_IPV4 + IPV4).contains(&u32::from(address)),
        IpAddr::V6(address) => address.segments().starts_with(&[0x2001, 0xdb8]),
    }
}
