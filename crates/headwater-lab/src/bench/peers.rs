//! The systems and limits that Headwater is compared with. Each is installed by name at run time; none of their code is
//! kept in this repository.

pub(crate) mod copy;
pub(crate) mod pgmq;
pub(crate) mod pgq;
pub(crate) mod python;

use super::report::Beside;

/// An installed peer, or the reason why it is missing.
pub(crate) type Peer<P> = Result<P, String>;

/// Turns a failed installation into a reason for the table: a missing peer is listed, never omitted.
pub(crate) fn or_reason<P>(name: &str, installed: anyhow::Result<P>) -> Peer<P> {
    installed.map_err(|error| {
        let reason = format!("{error:#}");
        eprintln!("  {name} is left out: {reason}");
        reason.lines().next().unwrap_or_default().chars().take(160).collect()
    })
}

/// The row's other side for a peer that is missing.
pub(crate) fn missing(name: &str, why: &str) -> Beside {
    Beside::Missing { name: name.to_owned(), why: why.to_owned() }
}
