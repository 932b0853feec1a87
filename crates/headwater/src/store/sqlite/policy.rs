//! Delivery policies: what a group does differently from its topic.

use rusqlite::{Connection, Row, params};

use super::fault::Attempt;
use super::work::Work;
use super::{audit, decode, group, millis, topic};
use crate::name::{GroupName, TopicName};
use crate::subscription::DeliveryPolicy;
use crate::topic::TopicSettings;

/// The policy of a subscription.
pub(super) fn of(connection: &Connection, subscription_id: i32) -> Attempt<DeliveryPolicy> {
    let mut statement = connection.prepare_cached(super::sql!("policy/get.sql"))?;
    Ok(statement.query_row([subscription_id], policy_of)?)
}

fn policy_of(row: &Row<'_>) -> rusqlite::Result<DeliveryPolicy> {
    Ok(DeliveryPolicy {
        lease: decode::optional_duration(row, 0)?,
        max_attempts: row.get(1)?,
        backoff_initial: decode::optional_duration(row, 2)?,
        backoff_max: decode::optional_duration(row, 3)?,
    })
}

/// The settings of a topic as a group with a policy of its own sees them.
pub(super) fn applied(settings: &TopicSettings, policy: &DeliveryPolicy) -> TopicSettings {
    TopicSettings {
        lease: policy.lease.unwrap_or(settings.lease),
        max_attempts: policy.max_attempts.unwrap_or(settings.max_attempts),
        backoff_initial: policy.backoff_initial.unwrap_or(settings.backoff_initial),
        backoff_max: policy.backoff_max.unwrap_or(settings.backoff_max),
        ..settings.clone()
    }
}

/// The policies of a topic's groups that are not cancelled.
pub(super) fn list(connection: &Connection, name: &TopicName) -> Attempt<Vec<(GroupName, DeliveryPolicy)>> {
    let topic = topic::get(connection, name)?;
    let mut statement = connection.prepare_cached(super::sql!("policy/list.sql"))?;
    let policies = decode::all(&mut statement, [topic.topic_id.0], |row| {
        Ok((row.get::<_, String>(4)?, policy_of(row)?))
    })?;
    policies.into_iter().map(|(group, policy)| Ok((GroupName::new(group)?, policy))).collect()
}

/// Gives a group a policy.
pub(super) fn set(
    work: &mut Work<'_>,
    name: &TopicName,
    group: &GroupName,
    policy: &DeliveryPolicy,
    actor: &str,
) -> Attempt<()> {
    let (topic, found) = group::get_alive(work.connection, name, group, "set_policy")?;
    // The rules of a topic's settings are those of a policy.
    applied(&topic.settings, policy).validate()?;
    let lease_ms = policy.lease.map(millis);
    let backoff_ms = [policy.backoff_initial, policy.backoff_max].map(|time| time.map(millis));
    work.connection.prepare_cached(super::sql!("policy/set.sql"))?.execute(params![
        found.subscription_id,
        lease_ms,
        policy.max_attempts,
        backoff_ms[0],
        backoff_ms[1]
    ])?;
    let detail = serde_json::json!({
        "lease_ms": lease_ms,
        "max_attempts": policy.max_attempts,
        "backoff_initial_ms": backoff_ms[0],
        "backoff_max_ms": backoff_ms[1],
    });
    audit::note(work, actor, "set_policy", Some(name.as_str()), Some(group.as_str()), &detail)
}
