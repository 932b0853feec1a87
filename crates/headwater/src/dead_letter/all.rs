//! Dead letters across groups and topics.

use std::sync::Arc;

use uuid::Uuid;

use super::pace::Pace;
use super::{DeadLetter, DeadLetterSelection, Redriven};
use crate::error::{Error, Result};
use crate::name::{GroupName, TopicName};
use crate::store::Store;
use crate::subscription::{SubscriptionId, SubscriptionState};

/// The dead letters of all groups; from [`crate::Headwater::all_dead_letters`]. Narrowed to a topic or a group by name.
/// Cancelled groups are included until they are removed, except in redrives.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
/// # use std::time::Duration;
/// # use headwater::{Headwater, settle::Verdict};
/// # let headwater = Headwater::in_memory().await?;
/// # headwater.producer("orders").send(&1).await?;
/// # let mut consumer = headwater.consumer("orders", "email").open().await?;
/// # let batch = consumer.next(Duration::from_secs(1)).await?.expect("one message waits");
/// # batch.handle(|_, _| async { Verdict::Bury("cannot be parsed".into()) }).await?;
/// let everywhere = headwater.all_dead_letters();
/// for found in everywhere.list(10, |all| all).await? {
///     println!("{} {}: {}", found.topic, found.group, found.dead_letter.error);
/// }
/// // What a redrive would do, by topic and group; then the redrive.
/// let orders = everywhere.topic("orders");
/// assert_eq!(orders.counts(|all| all.error_contains("parsed")).await?[0].2.redriven, 1);
/// assert_eq!(orders.redrive(None, |all| all.error_contains("parsed")).await?[0].2.redriven, 1);
/// # headwater.close().await }
/// ```
#[derive(Clone, Debug)]
pub struct AllDeadLetters {
    store: Arc<dyn Store>,
    topic: Option<String>,
    group: Option<String>,
}

/// A dead letter with its topic and group.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundDeadLetter {
    /// The topic.
    pub topic: TopicName,
    /// The group that gave up on it.
    pub group: GroupName,
    /// The dead letter.
    pub dead_letter: DeadLetter,
}

/// A group that has dead letters.
struct Of {
    topic: TopicName,
    group: GroupName,
    subscription_id: SubscriptionId,
    state: SubscriptionState,
}

impl AllDeadLetters {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        AllDeadLetters { store, topic: None, group: None }
    }

    /// Only those of this topic. `NoSuchTopic` later if it does not exist.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = Some(topic.into());
        self
    }

    /// Only those of groups of this name. `NoSuchSubscription` later if the topic is named too and has no such group.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// The oldest of a selection, of all groups together, at most `limit`.
    pub async fn list(
        &self,
        limit: u32,
        choose: impl Fn(DeadLetterSelection) -> DeadLetterSelection,
    ) -> Result<Vec<FoundDeadLetter>> {
        let mut found = Vec::new();
        for of in self.groups().await? {
            let selection = choose(DeadLetterSelection::all(of.subscription_id));
            for dead_letter in self.store.dead_letters(&selection, limit).await? {
                found.push(FoundDeadLetter { topic: of.topic.clone(), group: of.group.clone(), dead_letter });
            }
        }
        // Stable: those of one group stay in their order.
        found.sort_by_key(|found| found.dead_letter.buried_at);
        found.truncate(limit as usize);
        Ok(found)
    }

    /// One dead letter; `None` if no group has one with that id.
    pub async fn show(&self, id: Uuid) -> Result<Option<FoundDeadLetter>> {
        Ok(self.list(1, |all| all.ids([id])).await?.pop())
    }

    /// How many of a selection each group has: those that a redrive would hand out, and those whose message is gone.
    /// Groups without any are left out.
    pub async fn counts(
        &self,
        choose: impl Fn(DeadLetterSelection) -> DeadLetterSelection,
    ) -> Result<Vec<(TopicName, GroupName, Redriven)>> {
        let mut counts = Vec::new();
        for of in self.groups().await? {
            let selection = choose(DeadLetterSelection::all(of.subscription_id));
            let count = self.store.count_dead_letters(&selection).await?;
            if count != Redriven::default() {
                counts.push((of.topic, of.group, count));
            }
        }
        Ok(counts)
    }

    /// Hands a selection to their groups again, group by group, no more than `rate` a second if one is given: see
    /// [`GroupDeadLetters::redrive`](super::GroupDeadLetters::redrive) and
    /// [`GroupDeadLetters::redrive_at`](super::GroupDeadLetters::redrive_at). Those of cancelled groups stay.
    pub async fn redrive(
        &self,
        rate: Option<f64>,
        choose: impl Fn(DeadLetterSelection) -> DeadLetterSelection,
    ) -> Result<Vec<(TopicName, GroupName, Redriven)>> {
        let pace = rate.map(Pace::new).transpose()?;
        let mut done = Vec::new();
        for of in self.groups().await? {
            if of.state == SubscriptionState::Cancelled {
                continue;
            }
            let selection = choose(DeadLetterSelection::all(of.subscription_id));
            let redriven = match &pace {
                Some(pace) => pace.redrive(&*self.store, selection).await?,
                None => self.store.redrive(&selection).await?,
            };
            done.push((of.topic, of.group, redriven));
        }
        Ok(done)
    }

    /// Deletes a selection permanently; returns how many there were of each group.
    pub async fn purge(
        &self,
        choose: impl Fn(DeadLetterSelection) -> DeadLetterSelection,
    ) -> Result<Vec<(TopicName, GroupName, u64)>> {
        let mut done = Vec::new();
        for of in self.groups().await? {
            let selection = choose(DeadLetterSelection::all(of.subscription_id));
            done.push((of.topic, of.group, self.store.purge(&selection).await?));
        }
        Ok(done)
    }

    /// The groups that have dead letters, by topic and name.
    async fn groups(&self) -> Result<Vec<Of>> {
        let topics = match &self.topic {
            Some(topic) => vec![TopicName::new(topic)?],
            None => self.store.topics().await?.into_iter().map(|status| status.topic.name).collect(),
        };
        let name = self.group.as_ref().map(GroupName::new).transpose()?;
        let mut groups = Vec::new();
        for topic in topics {
            let all = match self.store.subscriptions(&topic).await {
                // Deleted since the topics were listed.
                Err(error) if self.topic.is_none() && error.kind() == crate::ErrorKind::NoSuchTopic => {
                    continue;
                }
                all => all?,
            };
            let named = |group: &GroupName| name.as_ref().is_none_or(|name| name == group);
            if let (Some(name), Some(_)) = (&name, &self.topic)
                && !all.iter().any(|status| status.group == *name)
            {
                return Err(Error::no_such_subscription(topic.as_str(), name.as_str()));
            }
            let with_some = all.into_iter().filter(|status| status.dead_letters > 0 && named(&status.group));
            groups.extend(with_some.map(|status| Of {
                topic: topic.clone(),
                group: status.group,
                subscription_id: status.subscription_id,
                state: status.state,
            }));
        }
        Ok(groups)
    }
}
