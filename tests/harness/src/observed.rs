//! Processes by their id, our own children or not: what the kernel tells of them, and their end.

use std::{
    collections::BTreeSet,
    fs,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    path::Path,
};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};

/// How the kernel writes the state of a TCP socket that listens.
const LISTENS: &str = "0A";
/// How it writes the address of no peer.
const NO_PEER: &str = "00000000:0000";

/// The transport of a [`Listener`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// Takes connections.
    Tcp,
    /// Takes datagrams of anybody.
    Udp,
}

/// An IPv4 socket that waits for clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Listener {
    /// Its transport.
    pub protocol: Protocol,
    /// Where.
    pub at: SocketAddr,
}

/// Resident memory of a process, in bytes.
///
/// # Errors
///
/// If it has ended.
pub fn resident_memory(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kibibytes: u64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|value| value.trim().strip_suffix(" kB"))
        .ok_or_else(|| anyhow!("process {pid} has no resident memory: it has ended"))?
        .trim()
        .parse()?;
    Ok(kibibytes * 1024)
}

/// How many file descriptors a process has open.
///
/// # Errors
///
/// If it has ended.
pub fn open_files(pid: u32) -> Result<usize> {
    let folder = format!("/proc/{pid}/fd");
    Ok(fs::read_dir(&folder)
        .with_context(|| format!("list {folder}"))?
        .count())
}

/// The IPv4 sockets at which a process waits for clients; not those that only it talks over.
///
/// # Errors
///
/// If it has ended.
pub fn listeners(pid: u32) -> Result<BTreeSet<Listener>> {
    let own = sockets(pid)?;
    let mut found = BTreeSet::new();
    for (protocol, file) in [(Protocol::Tcp, "tcp"), (Protocol::Udp, "udp")] {
        let path = format!("/proc/{pid}/net/{file}");
        let table = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        found.extend(
            table
                .lines()
                .filter_map(|line| listener(line, protocol))
                .filter(|(inode, _)| own.contains(*inode))
                .map(|(_, listener)| listener),
        );
    }
    Ok(found)
}

/// The inodes of a process's sockets.
fn sockets(pid: u32) -> Result<BTreeSet<String>> {
    let folder = format!("/proc/{pid}/fd");
    let mut inodes = BTreeSet::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("list {folder}"))? {
        // One that is closed meanwhile is none any more.
        let Ok(target) = fs::read_link(entry?.path()) else {
            continue;
        };
        let inode = target
            .to_str()
            .and_then(|name| name.strip_prefix("socket:[")?.strip_suffix(']'));
        inodes.extend(inode.map(ToOwned::to_owned));
    }
    Ok(inodes)
}

/// A line of `/proc/PID/net/tcp` or `udp`, if it is of a socket that waits for clients; with its inode.
fn listener(line: &str, protocol: Protocol) -> Option<(&str, Listener)> {
    const INODE_AFTER_STATE: usize = 5;
    let mut fields = line.split_whitespace().skip(1);
    let (local, peer, state) = (fields.next()?, fields.next()?, fields.next()?);
    let waits = match protocol {
        Protocol::Tcp => state == LISTENS,
        Protocol::Udp => peer == NO_PEER,
    };
    let inode = fields.nth(INODE_AFTER_STATE)?;
    let (address, port) = local.split_once(':')?;
    // The kernel prints the four bytes of the wire as one number of this machine.
    let address = Ipv4Addr::from(u32::from_str_radix(address, 16).ok()?.to_ne_bytes());
    let at = SocketAddrV4::new(address, u16::from_str_radix(port, 16).ok()?).into();
    waits.then_some((inode, Listener { protocol, at }))
}

/// The one child process of a process.
///
/// # Errors
///
/// If it has none, or several.
pub fn only_child(parent: u32) -> Result<u32> {
    let mut children = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path();
        // One that ends meanwhile is no child any more.
        if let Some((pid, state, of)) = stat(&path)
            && of == parent
            && state != "Z"
        {
            children.push(pid);
        }
    }
    let &[child] = children.as_slice() else {
        bail!("children {children:?}, not one")
    };
    Ok(child)
}

/// Ends a process as a crash would.
///
/// # Errors
///
/// If there is none.
pub fn kill(pid: u32) -> Result<()> {
    let id = Pid::from_raw(i32::try_from(pid)?).context("process id 0")?;
    kill_process(id, Signal::KILL).with_context(|| format!("kill process {pid}"))
}

/// Whether there is such a process and it has not ended.
pub fn runs(pid: u32) -> bool {
    stat(Path::new(&format!("/proc/{pid}"))).is_some_and(|(_, state, _)| state != "Z")
}

/// Process id, state and parent of the process at `/proc/PID`.
fn stat(path: &Path) -> Option<(u32, String, u32)> {
    let pid = path.file_name()?.to_str()?.parse().ok()?;
    let text = fs::read_to_string(path.join("stat")).ok()?;
    // The name may hold anything, but after its last bracket come fields.
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    Some((pid, fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;
    use crate::Workspace;

    #[test]
    fn sockets_that_wait_for_clients_are_seen_and_those_that_talk_are_not() {
        let workspace = Workspace::new("observed").unwrap();
        let here = (workspace.loopback(1), 0);
        let (tcp, udp) = (TcpListener::bind(here).unwrap(), UdpSocket::bind(here).unwrap());
        let client = TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
        let flow = UdpSocket::bind(here).unwrap();
        flow.connect(udp.local_addr().unwrap()).unwrap();
        let mine = || {
            let mut all = listeners(std::process::id()).unwrap();
            // Other tests of this process have sockets of their own.
            all.retain(|listener| listener.at.ip() == workspace.loopback(1));
            all
        };
        let expected = BTreeSet::from([
            Listener {
                protocol: Protocol::Tcp,
                at: tcp.local_addr().unwrap(),
            },
            Listener {
                protocol: Protocol::Udp,
                at: udp.local_addr().unwrap(),
            },
        ]);
        assert_eq!(mine(), expected);
        drop((tcp, udp));
        assert_eq!(mine(), BTreeSet::new());
        drop((client, flow));
    }
}
