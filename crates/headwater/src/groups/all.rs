//! Groups over all topics: found by topic, state or a part of the name, page by page.

use std::sync::Arc;

use super::GroupHealth;
use crate::error::Result;
use crate::name::{TopicName, check_name};
use crate::store::{Store, SurveyedGroup};
use crate::subscription::{SubscriptionId, SubscriptionState};

/// The groups of all topics; from [`crate::Headwater::all_groups`]. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
/// # use headwater::{Headwater, Start};
/// let headwater = Headwater::in_memory().await?;
/// for (topic, group) in [("orders", "email"), ("payments", "mail-audit")] {
///     headwater.topic(topic).create().await?;
///     headwater.groups(topic).subscribe(group, Start::Beginning).await?;
/// }
/// let groups = headwater.all_groups();
/// let first = groups.list(1, |all| all.contains("mail")).await?;
/// assert_eq!((first[0].topic.as_str(), first[0].health.status.group.as_str()), ("orders", "email"));
/// let next = groups.list(10, |all| all.contains("mail").after(first[0].place())).await?;
/// assert_eq!(next[0].topic.as_str(), "payments");
/// # headwater.close().await }
/// ```
#[derive(Clone, Debug)]
pub struct AllGroups {
    store: Arc<dyn Store>,
}

/// A group with its topic.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundGroup {
    /// The topic.
    pub topic: TopicName,
    /// Its status and health issues.
    pub health: GroupHealth,
}

impl FoundGroup {
    /// Its place in lists, from which the next page follows.
    pub fn place(&self) -> GroupPlace {
        let status = &self.health.status;
        GroupPlace {
            topic: self.topic.as_str().to_owned(),
            group: status.group.as_str().to_owned(),
            subscription_id: status.subscription_id,
        }
    }
}

/// The place of a group in lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPlace {
    /// The topic.
    pub topic: String,
    /// The group.
    pub group: String,
    /// Its subscription: a name that was cancelled and taken again has several.
    pub subscription_id: SubscriptionId,
}

/// A selection of groups: all, cancelled ones too, or those that match every field that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupSelection {
    pub(crate) topic: Option<String>,
    pub(crate) group: Option<String>,
    pub(crate) state: Option<SubscriptionState>,
    pub(crate) contains: Option<String>,
    pub(crate) after: Option<GroupPlace>,
}

impl GroupSelection {
    /// Only those of this topic.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = Some(topic.into());
        self
    }

    /// Only those of this name.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Only those in this state.
    #[must_use]
    pub fn state(mut self, state: SubscriptionState) -> Self {
        self.state = Some(state);
        self
    }

    /// Only those whose name or topic contains this text; upper and lower case are the same in ASCII.
    #[must_use]
    pub fn contains(mut self, text: impl Into<String>) -> Self {
        self.contains = Some(text.into());
        self
    }

    /// Only those after this place: the next page.
    #[must_use]
    pub fn after(mut self, place: GroupPlace) -> Self {
        self.after = Some(place);
        self
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let after = self.after.as_ref();
        for (field, value) in [
            ("topic", self.topic.as_deref()),
            ("group", self.group.as_deref()),
            ("search", self.contains.as_deref()),
            ("after", after.map(|place| place.topic.as_str())),
            ("after", after.map(|place| place.group.as_str())),
        ] {
            value.map_or(Ok(()), |value| check_name(field, value))?;
        }
        Ok(())
    }
}

impl AllGroups {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        AllGroups { store }
    }

    /// The groups of a selection by topic and name, at most `limit`. A topic that does not exist has none.
    pub async fn list(
        &self,
        limit: u32,
        choose: impl FnOnce(GroupSelection) -> GroupSelection,
    ) -> Result<Vec<FoundGroup>> {
        let (now, found) = self.store.find_subscriptions(&choose(GroupSelection::default()), limit).await?;
        let judged =
            |SurveyedGroup { topic, status }| FoundGroup { topic, health: GroupHealth::new(status, now) };
        Ok(found.into_iter().map(judged).collect())
    }
}
