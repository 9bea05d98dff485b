//! Sockets that listen, and why one cannot.
//!
//! Linux lets a socket be bound to an IPv6 address of a range that is local by a route only if the
//! socket asks for it; asking always would also bind addresses that no packet can reach. So an address
//! that no interface has is bound if a local route has it.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use tokio::net::{TcpListener, TcpSocket, UdpSocket};

use crate::balancer::Protocol;
use crate::cidr::Cidr;

/// Connections that wait to be accepted; Linux' own default maximum is higher since 5.4.
const BACKLOG: u32 = 4096;

/// What may wait to be read from a UDP socket, in bytes: a burst of thousands of datagrams. The system
/// cuts it to `net.core.rmem_max`.
const DATAGRAM_BACKLOG: usize = 1 << 20;

/// Every local route of IPv6: what `ip -6 route show table local` shows.
const ROUTES: &str = "/proc/net/ipv6_route";

/// The flag of a route to this machine itself (`RTF_LOCAL`).
const LOCAL_ROUTE: u32 = 0x8000_0000;

/// Why a listener cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// Another process has this address and port, or the port on all addresses.
    #[error(
        "{protocol} {at} is in use by another process of the machine where bulkhead-local runs: stop that one (`ss -tulnp sport = :{}` shows it there), or give the Service another port or address; it is tried again by itself",
        .at.port()
    )]
    InUse {
        /// The protocol.
        protocol: Protocol,
        /// Address and port.
        at: SocketAddr,
    },
    /// Ports under 1024 (by default) need a right that this process lacks.
    #[error(
        "{protocol} {at} needs the right to bind low ports: give bulkhead-local CAP_NET_BIND_SERVICE, lower the sysctl net.ipv4.ip_unprivileged_port_start, or use a higher port"
    )]
    Privileged {
        /// The protocol.
        protocol: Protocol,
        /// Address and port.
        at: SocketAddr,
    },
    /// No interface of the machine has the address.
    #[error("{protocol} {at}: no interface of the machine where bulkhead-local runs has this address: {}", made_local_by(.at, .range.as_ref()))]
    NoSuchAddress {
        /// The protocol.
        protocol: Protocol,
        /// Address and port.
        at: SocketAddr,
        /// The pool's range that it is from, if it still is from one.
        range: Option<Cidr>,
    },
    /// The process has as many open files as it may.
    #[error(
        "cannot listen on {protocol} {at}: too many open files: raise the limit (`LimitNOFILE=`, `ulimit -n`)"
    )]
    OpenFiles {
        /// The protocol.
        protocol: Protocol,
        /// Address and port.
        at: SocketAddr,
    },
    /// Anything else.
    #[error("cannot listen on {protocol} {at}: {kind}")]
    Other {
        /// The protocol.
        protocol: Protocol,
        /// Address and port.
        at: SocketAddr,
        /// What the system said.
        kind: io::ErrorKind,
    },
}

impl BindError {
    pub(super) fn new(protocol: Protocol, at: SocketAddr, ranges: &[Cidr], source: &io::Error) -> Self {
        // One row per cause that a person can act on.
        if source.kind() == io::ErrorKind::AddrInUse {
            Self::InUse { protocol, at }
        } else if source.kind() == io::ErrorKind::PermissionDenied {
            Self::Privileged { protocol, at }
        } else if source.kind() == io::ErrorKind::AddrNotAvailable {
            let range = ranges.iter().find(|range| range.contains(at.ip())).copied();
            Self::NoSuchAddress { protocol, at, range }
        } else if source.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) {
            Self::OpenFiles { protocol, at }
        } else {
            Self::Other {
                protocol,
                at,
                kind: source.kind(),
            }
        }
    }

    /// The protocol.
    pub fn protocol(&self) -> Protocol {
        match self {
            Self::InUse { protocol, .. }
            | Self::Privileged { protocol, .. }
            | Self::NoSuchAddress { protocol, .. }
            | Self::OpenFiles { protocol, .. }
            | Self::Other { protocol, .. } => *protocol,
        }
    }

    /// Address and port that could not be had.
    pub fn at(&self) -> SocketAddr {
        match self {
            Self::InUse { at, .. }
            | Self::Privileged { at, .. }
            | Self::NoSuchAddress { at, .. }
            | Self::OpenFiles { at, .. }
            | Self::Other { at, .. } => *at,
        }
    }
}

fn made_local_by(at: &SocketAddr, range: Option<&Cidr>) -> String {
    let address = Cidr::single(at.ip());
    let range = range.unwrap_or(&address);
    let ip = if at.is_ipv4() { "ip" } else { "ip -6" };
    format!(
        "add it (`{ip} address add {address} dev INTERFACE`) or make its range local (`{ip} route add local {range} dev lo`)"
    )
}

/// A listening socket. `SO_REUSEADDR`: connections of a process that was killed linger in
/// `TIME_WAIT` and must not keep its successor from listening (two listeners stay impossible).
pub(super) fn tcp(at: SocketAddr) -> io::Result<TcpListener> {
    let open = |freely: bool| {
        let socket = if at.is_ipv4() {
            TcpSocket::new_v4()?
        } else {
            TcpSocket::new_v6()?
        };
        socket.set_reuseaddr(true)?;
        if freely {
            sockopt::set_ipv6_freebind(&socket, true)?;
        }
        socket.bind(at)?;
        socket.listen(BACKLOG)
    };
    bound(at, open)
}

/// A receiving socket. Without `SO_REUSEADDR`: it is not needed after a restart, and with it two
/// processes could share the port and steal each other's datagrams.
pub(super) fn udp(at: SocketAddr) -> io::Result<UdpSocket> {
    let open = |freely: bool| {
        let family = if at.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
        if freely {
            sockopt::set_ipv6_freebind(&socket, true)?;
        }
        sockopt::set_socket_recv_buffer_size(&socket, DATAGRAM_BACKLOG)?;
        rustix::net::bind(&socket, &at)?;
        UdpSocket::from_std(std::net::UdpSocket::from(socket))
    };
    bound(at, open)
}

/// Binds, the second time freely if that is what a local route asks for.
fn bound<T>(at: SocketAddr, open: impl Fn(bool) -> io::Result<T>) -> io::Result<T> {
    match (open(false), at.ip()) {
        (Err(error), IpAddr::V6(v6))
            if error.kind() == io::ErrorKind::AddrNotAvailable && has_local_route(v6) =>
        {
            open(true)
        }
        (opened, _) => opened,
    }
}

fn has_local_route(address: Ipv6Addr) -> bool {
    let routes = fs::read_to_string(ROUTES).unwrap_or_default();
    routes
        .lines()
        .filter_map(local_route)
        .any(|range| range.contains(IpAddr::V6(address)))
}

/// Reads one line: destination, its prefix length, source, its prefix length, gateway, metric, two
/// counters, flags, interface; all numbers in hexadecimal digits.
fn local_route(line: &str) -> Option<Cidr> {
    let mut fields = line.split_ascii_whitespace();
    let network = u128::from_str_radix(fields.next()?, 16).ok()?;
    let prefix = u8::from_str_radix(fields.next()?, 16).ok()?;
    let flags = u32::from_str_radix(fields.nth(6)?, 16).ok()?;
    let range = Cidr::covering(&format!("{}/{prefix}", Ipv6Addr::from_bits(network))).ok()?;
    (flags & LOCAL_ROUTE != 0).then_some(range)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::a_range_made_local(
        "fd00bbbb000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000400 00000001 00000000 80200001       lo",
        Some("fd00:bbbb::/64")
    )]
    #[case::a_network_of_others(
        "fd000000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0",
        None
    )]
    #[case::half_a_line("fd00000000000000000000", None)]
    fn local_routes(#[case] line: &str, #[case] want: Option<&str>) {
        assert_eq!(local_route(line), want.map(|text| text.parse().unwrap()));
    }

    #[rstest]
    #[case::in_use(
        io::ErrorKind::AddrInUse,
        "192.0.2.1:80",
        "TCP 192.0.2.1:80 is in use by another process of the machine where bulkhead-local runs: stop that one (`ss -tulnp sport = :80` shows it there), or give the Service another port or address; it is tried again by itself"
    )]
    #[case::privileged(
        io::ErrorKind::PermissionDenied,
        "192.0.2.1:80",
        "TCP 192.0.2.1:80 needs the right to bind low ports: give bulkhead-local CAP_NET_BIND_SERVICE, lower the sysctl net.ipv4.ip_unprivileged_port_start, or use a higher port"
    )]
    #[case::not_here(
        io::ErrorKind::AddrNotAvailable,
        "192.0.2.1:80",
        "TCP 192.0.2.1:80: no interface of the machine where bulkhead-local runs has this address: add it (`ip address add 192.0.2.1/32 dev INTERFACE`) or make its range local (`ip route add local 192.0.2.0/24 dev lo`)"
    )]
    #[case::not_here_over_ipv6(
        io::ErrorKind::AddrNotAvailable,
        "[fd00:bbbb::1]:80",
        "TCP [fd00:bbbb::1]:80: no interface of the machine where bulkhead-local runs has this address: add it (`ip -6 address add fd00:bbbb::1/128 dev INTERFACE`) or make its range local (`ip -6 route add local fd00:bbbb::/64 dev lo`)"
    )]
    #[case::anything_else(
        io::ErrorKind::OutOfMemory,
        "192.0.2.1:80",
        "cannot listen on TCP 192.0.2.1:80: out of memory"
    )]
    fn says(#[case] kind: io::ErrorKind, #[case] at: &str, #[case] message: &str) {
        let ranges = ["192.0.2.0/24", "fd00:bbbb::/64"].map(|text| text.parse().unwrap());
        let error = BindError::new(Protocol::Tcp, at.parse().unwrap(), &ranges, &kind.into());
        assert_eq!(error.to_string(), message);
    }
}
