//! The survey: reads figures of all groups and topics, exports them, and warns of topics that no group gets.

use std::collections::HashSet;
use std::sync::Mutex;

use super::jobs::Worker;
use crate::error::Result;
use crate::limits::SURVEYED_GROUPS_MAX;
use crate::name::TopicName;
use crate::topic::{TopicId, TopicIssue, TopicStatus};

/// The topics without a subscription that were logged: each is logged once, until it has one again.
#[derive(Debug, Default)]
pub(super) struct ZeroSubscriptions(Mutex<HashSet<TopicId>>);

impl ZeroSubscriptions {
    fn log(&self, topics: &[TopicStatus]) {
        for (topic, begins) in self.changes(topics) {
            if begins {
                tracing::warn!(%topic, "topic without subscriptions, its messages reach no group");
            } else {
                tracing::info!(%topic, "topic has a subscription again");
            }
        }
    }

    /// The topics for which that changed since the last call, and whether it begins or ends.
    fn changes<'t>(&self, topics: &'t [TopicStatus]) -> Vec<(&'t TopicName, bool)> {
        let mut logged = self.0.lock().expect("no panic while held");
        let change = |status: &'t TopicStatus| {
            let id = status.topic.topic_id;
            let is_so = status.health_issues().contains(&TopicIssue::ZeroSubscriptions);
            let changed = if is_so { logged.insert(id) } else { logged.remove(&id) };
            changed.then_some((&status.topic.name, is_so))
        };
        topics.iter().filter_map(change).collect()
    }
}

impl Worker {
    /// Three bounded queries, and the topics as last read.
    pub(super) async fn survey(&self) -> Result<()> {
        let topics = self.topics().await?;
        self.zero_subscriptions.log(&topics);
        let survey = self.store.survey(SURVEYED_GROUPS_MAX).await?;
        let backfills = self.store.backfills().await?;
        self.surveyed.show(&topics, survey, backfills);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maintenance::tests::topic;
    use crate::topic::TopicSettings;

    #[test]
    fn a_topic_without_subscriptions_is_logged_once_until_it_has_one() {
        let of = |counting: u64| {
            let mut status = topic(1);
            (status.topic.settings, status.counting) = (TopicSettings::pub_sub(), counting);
            [status, topic(2)]
        };
        let zero = ZeroSubscriptions::default();
        let changes = |counting: u64| {
            let changed: Vec<bool> = zero.changes(&of(counting)).iter().map(|(_, begins)| *begins).collect();
            changed
        };
        assert_eq!(changes(0), [true]);
        assert_eq!(changes(0), [] as [bool; 0], "it was logged");
        assert_eq!(changes(1), [false]);
        assert_eq!(changes(1), [] as [bool; 0]);
        assert_eq!(changes(0), [true]);
    }
}
