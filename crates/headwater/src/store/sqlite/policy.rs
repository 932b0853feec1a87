//! Delivery policies: the settings in which a group differs from its topic.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::fault::Attempt;
use super::work::Work;
use super::{audit, decode, group, millis};
use crate::error::Error;
use crate::name::{GroupName, TopicName};
use crate::subscription::{DeliveryPolicy, SubscriptionId, SubscriptionState};
use crate::topic::TopicSettings;

/// The policy of a subscription.
pub(super) fn of(connection: &Connection, subscription_id: i32) -> Attempt<DeliveryPolicy> {
    let mut statement = connection.prepare_cached(super::sql!(policy.get))?;
    Ok(statement.query_row([subscription_id], policy_of)?)
}

fn policy_of(row: &Row<'_>) -> rusqlite::Result<DeliveryPolicy> {
    Ok(DeliveryPolicy {
        lease: decode::optional_duration(row, 0)?,
        max_attempts: row.get(1)?,
        backoff_initial: decode::optional_duration(row, 2)?,
        backoff_max: decode::optional_duration(row, 3)?,
        heartbeat_interval: decode::optional_duration(row, 4)?,
        heartbeat_timeout: decode::optional_duration(row, 5)?,
    })
}

/// The policy of a group that is not cancelled.
pub(super) fn get(connection: &Connection, name: &TopicName, group: &GroupName) -> Attempt<DeliveryPolicy> {
    let (topic, found) = group::get(connection, name, group)?;
    if found.state == SubscriptionState::Cancelled {
        return Err(Error::no_such_subscription(topic.name.as_str(), group.as_str()).into());
    }
    of(connection, found.subscription_id)
}

/// The settings of subscriptions that are not cancelled, with their policies applied.
pub(super) fn settings_of(
    connection: &Connection,
    subscriptions: &[SubscriptionId],
) -> Attempt<Vec<(SubscriptionId, TopicSettings)>> {
    let mut statement = connection.prepare_cached(super::sql!(policy.settings))?;
    let mut found = Vec::with_capacity(subscriptions.len());
    for subscription in subscriptions {
        let settings = statement
            .query_row([subscription.0], |row| {
                Ok(policy_of(row)?.apply_to(&decode::json::<TopicSettings>(row, 6)?))
            })
            .optional()?;
        found.extend(settings.map(|settings| (*subscription, settings)));
    }
    Ok(found)
}

/// Sets the policy of a group.
pub(super) fn set(
    work: &mut Work<'_>,
    name: &TopicName,
    group: &GroupName,
    policy: &DeliveryPolicy,
    actor: &str,
) -> Attempt<()> {
    let (topic, found) = group::get_alive(work.connection, name, group, "set_policy")?;
    policy.validate_for(&topic.settings)?;
    store(work.connection, found.subscription_id, policy)?;
    let detail = serde_json::json!(policy);
    audit::note(work, actor, "set_policy", Some(name.as_str()), Some(group.as_str()), &detail)
}

/// Stores the policy of a subscription.
pub(super) fn store(connection: &Connection, subscription_id: i32, policy: &DeliveryPolicy) -> Attempt<()> {
    connection.prepare_cached(super::sql!(policy.set))?.execute(params![
        subscription_id,
        policy.lease.map(millis),
        policy.max_attempts,
        policy.backoff_initial.map(millis),
        policy.backoff_max.map(millis),
        policy.heartbeat_interval.map(millis),
        policy.heartbeat_timeout.map(millis)
    ])?;
    Ok(())
}
