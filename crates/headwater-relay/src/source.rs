//! Where records come from: a topic, through a group of its own, or the outbox.

pub(crate) mod outbox;
pub(crate) mod topic;
