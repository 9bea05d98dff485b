//! Bulkhead's embedded default plugin: the cloud of one machine.
//!
//! ```text
//!   main -> config
//!     |
//!     +-- metrics   what Prometheus reads
//!     +-- plugin    the protocol's calls
//!           |-- inventory   instances, from a file that is followed
//!           `-- world       load balancers: the one owner of
//!                 |-- pool      addresses and who has them
//!                 |-- state     what is on disk, under a lock
//!                 |-- balancer  what one is, and the plan from one to another (pure)
//!                 |-- forward   sockets: TCP connections, UDP flows
//!                 `-- health    which targets answer
//! ```
//!
//! Invariants: it listens only while it holds the state directory's lock; what it answers to a change is
//! on disk before the answer; forwarding never waits for a host, a role or a call.

pub mod balancer;
pub mod cidr;
mod clock;
pub mod config;
pub mod forward;
pub mod health;
pub mod inventory;
pub mod metrics;
pub mod plugin;
pub mod pool;
pub mod state;
pub mod world;
