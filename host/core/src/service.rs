//! Services of type LoadBalancer: what the host reads of them, which nodes serve them, and what each needs next.

pub mod field;
pub mod node_set;
pub mod plan;
pub mod request;
pub mod spec;
pub mod targets;
pub mod view;
