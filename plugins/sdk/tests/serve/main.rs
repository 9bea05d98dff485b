//! The SDK on real sockets, as a host meets it.

#[cfg(test)]
mod calls;
#[cfg(test)]
mod certificates;
#[cfg(test)]
mod cloud;
#[cfg(test)]
mod drain;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod network;
#[cfg(test)]
mod process;
#[cfg(test)]
mod roles;
#[cfg(test)]
mod sockets;
