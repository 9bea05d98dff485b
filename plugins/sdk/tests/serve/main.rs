//! The SDK on real unix sockets, as a host meets it.

#[cfg(test)]
mod calls;
#[cfg(test)]
mod cloud;
#[cfg(test)]
mod drain;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod process;
#[cfg(test)]
mod roles;
#[cfg(test)]
mod sockets;
