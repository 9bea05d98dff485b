//! Nodes: what the host reads of them, what an initialised node looks like, and what each needs next.

pub mod addresses;
pub mod labels;
pub mod plan;
pub mod view;
