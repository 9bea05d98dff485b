//! The header of the PROXY protocol, version 2: <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>.

use std::net::SocketAddr;

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// Version 2, command PROXY.
const VERSION_AND_COMMAND: u8 = 0x21;

const TCP_OVER_IPV4: u8 = 0x11;
const TCP_OVER_IPV6: u8 = 0x21;

/// Tells that a connection of `client` was made to `at`. Both are of one family.
pub(super) fn header(client: SocketAddr, at: SocketAddr) -> Vec<u8> {
    let mut header = SIGNATURE.to_vec();
    header.push(VERSION_AND_COMMAND);
    match (client, at) {
        (SocketAddr::V4(client), SocketAddr::V4(at)) => {
            header.extend([TCP_OVER_IPV4, 0, 12]);
            header.extend(client.ip().octets());
            header.extend(at.ip().octets());
        }
        (client, at) => {
            header.extend([TCP_OVER_IPV6, 0, 36]);
            header.extend(v6(client));
            header.extend(v6(at));
        }
    }
    header.extend(client.port().to_be_bytes());
    header.extend(at.port().to_be_bytes());
    header
}

fn v6(address: SocketAddr) -> [u8; 16] {
    match address {
        SocketAddr::V4(v4) => v4.ip().to_ipv6_mapped().octets(),
        SocketAddr::V6(v6) => v6.ip().octets(),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::ipv4("192.0.2.1:256", "127.0.10.1:80", "21 11 000c c0000201 7f000a01 0100 0050")]
    #[case::ipv6(
        "[2001:db8::1]:256",
        "[::1]:80",
        "21 21 0024 20010db8000000000000000000000001 00000000000000000000000000000001 0100 0050"
    )]
    fn says(#[case] client: &str, #[case] at: &str, #[case] want: &str) {
        let header = header(client.parse().unwrap(), at.parse().unwrap());
        assert_eq!(header[..12], *b"\x0D\x0A\x0D\x0A\x00\x0D\x0A\x51\x55\x49\x54\x0A");
        let digits = want.replace(' ', "");
        let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        let want: Vec<u8> = digits.as_bytes().chunks(2).map(byte).collect();
        assert_eq!(header[12..], want);
    }
}
