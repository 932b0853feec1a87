//! Delivery policies that groups have of their own.

use std::time::Duration;

use tokio_postgres::Row;

use super::time::{millis, stored};
use super::{PostgresStore, topic};
use crate::error::{Error, Result};
use crate::name::{GroupName, TopicName};
use crate::subscription::DeliveryPolicy;
use crate::topic::TopicSettings;

pub(super) async fn set(
    store: &PostgresStore,
    name: &TopicName,
    group: &GroupName,
    policy: &DeliveryPolicy,
) -> Result<()> {
    // What holds for a topic holds for a group.
    let mut settings = topic::get(store, name).await?.settings;
    put_into(policy, &mut settings);
    settings.validate()?;
    let rows = store
        .connections
        .query(
            &format!("giving group {group} of topic {name} a policy"),
            &store.statements.policy_set,
            &[
                &name.as_str(),
                &group.as_str(),
                &policy.lease.map(millis),
                &policy.max_attempts.map(u32::cast_signed),
                &policy.backoff_initial.map(millis),
                &policy.backoff_max.map(millis),
                &store.actor,
                &store.clock.injected(),
            ],
        )
        .await?;
    match stored::<_, &str>(&rows[0], "state")? {
        "cancelled" => Err(Error::no_such_subscription(name.as_str(), group.as_str())),
        _ => Ok(()),
    }
}

pub(super) async fn list(
    store: &PostgresStore,
    name: &TopicName,
) -> Result<Vec<(GroupName, DeliveryPolicy)>> {
    let doing = format!("reading the policies of topic {name}");
    let rows = store.connections.query(&doing, &store.statements.policy_list, &[&name.as_str()]).await?;
    if rows.is_empty() {
        return Err(Error::no_such_topic(name.as_str()));
    }
    // A topic without groups is one row without a group.
    let of_group = |row: &Row| {
        let group: Option<&str> = stored(row, "group_name")?;
        group.map(|group| Ok((GroupName::new(group)?, policy_of(row)?))).transpose()
    };
    rows.iter().filter_map(|row| of_group(row).transpose()).collect()
}

pub(super) fn policy_of(row: &Row) -> Result<DeliveryPolicy> {
    let millis = |column: &str| -> Result<Option<Duration>> {
        let millis: Option<i64> = stored(row, column)?;
        Ok(millis.map(|ms| Duration::from_millis(u64::try_from(ms).expect("the schema checks durations"))))
    };
    let attempts: Option<i32> = stored(row, "max_attempts")?;
    Ok(DeliveryPolicy {
        lease: millis("lease_ms")?,
        max_attempts: attempts.map(|count| u32::try_from(count).expect("the schema checks numbers")),
        backoff_initial: millis("backoff_initial_ms")?,
        backoff_max: millis("backoff_max_ms")?,
    })
}

/// Settings as a group with this policy has them.
pub(super) fn put_into(policy: &DeliveryPolicy, settings: &mut TopicSettings) {
    settings.lease = policy.lease.unwrap_or(settings.lease);
    settings.max_attempts = policy.max_attempts.unwrap_or(settings.max_attempts);
    settings.backoff_initial = policy.backoff_initial.unwrap_or(settings.backoff_initial);
    settings.backoff_max = policy.backoff_max.unwrap_or(settings.backoff_max);
}
