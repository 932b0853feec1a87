//! Removing a topic or its messages: what it holds, and when that is refused.

use crate::error::{Error, ErrorKind, Result};
use crate::name::GroupName;

/// Whether a topic is deleted or purged, or only what that would remove is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Changes nothing: the result shows what would be removed.
    DryRun,
    /// Refused while a process serves a group of the topic.
    Unserved,
    /// Also while processes serve its groups: they lose their leases.
    Forced,
}

/// What a topic holds: what was removed with it, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicContents {
    /// Stored messages. They are counted up to a million offsets; beyond that it is the number of offsets from the first
    /// message to the last, which is never too low.
    pub messages: u64,
    /// Scheduled messages that are not due.
    pub scheduled: u64,
    /// Groups that are not cancelled.
    pub groups: u64,
    /// Leases that have not expired.
    pub leases: u64,
    /// Dead letters of all groups.
    pub dead_letters: u64,
    /// The groups that processes serve, by name, and by how many: those that sent a heartbeat within the timeout.
    pub served: Vec<(GroupName, u32)>,
}

impl Removal {
    /// Refuses an act on a topic that processes serve, unless it is forced. To be called in the transaction of the act.
    pub(crate) fn check(self, act: &str, topic: &str, served: &[(GroupName, u32)]) -> Result<()> {
        if self == Removal::Forced || served.is_empty() {
            return Ok(());
        }
        let processes =
            |count: u32| if count == 1 { "1 process".into() } else { format!("{count} processes") };
        let groups: Vec<_> =
            served.iter().map(|(group, count)| format!("{group} by {}", processes(*count))).collect();
        let text = format!(
            "invalid transition: {act} needs a topic that no process serves; topic {topic} is served: group {}; stop them, or \
             force it; nothing was changed",
            groups.join(", group ")
        );
        Err(Error::new(ErrorKind::InvalidTransition, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_forced_removal_passes_processes_that_serve_the_topic() {
        let group = |name: &str| GroupName::new(name).unwrap();
        let served = [(group("audit"), 1), (group("email"), 2)];
        let refused = Removal::Unserved.check("delete", "orders", &served).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidTransition);
        let text = refused.to_string();
        assert!(
            text.contains("topic orders is served: group audit by 1 process, group email by 2 processes"),
            "{text}"
        );
        assert!(Removal::Forced.check("delete", "orders", &served).is_ok());
        assert!(Removal::Unserved.check("delete", "orders", &[]).is_ok());
    }
}
