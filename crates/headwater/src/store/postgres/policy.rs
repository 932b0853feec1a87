//! Delivery policies of groups.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::{Json, ToSql};

use super::time::stored;
use super::{PostgresStore, topic};
use crate::error::{Error, Result};
use crate::name::{GroupName, TopicName};
use crate::subscription::{DeliveryPolicy, SubscriptionId, refused_cancelled};
use crate::topic::TopicSettings;

pub(super) async fn set(
    store: &PostgresStore,
    name: &TopicName,
    group: &GroupName,
    policy: &DeliveryPolicy,
) -> Result<()> {
    policy.validate_for(&topic::get(store, name).await?.settings)?;
    let rows = store
        .connections
        .query(
            &format!("setting the policy of group {group} of topic {name}"),
            &store.statements.policy_set,
            &[&name.as_str(), &group.as_str(), &Json(policy), &&*store.actor.now(), &store.clock.injected()],
        )
        .await?;
    match stored::<_, &str>(&rows[0], "state")? {
        "cancelled" => Err(refused_cancelled("set_policy", name.as_str(), group.as_str())),
        _ => Ok(()),
    }
}

pub(super) async fn get(
    store: &PostgresStore,
    name: &TopicName,
    group: &GroupName,
) -> Result<DeliveryPolicy> {
    let doing = format!("reading the policy of group {group} of topic {name}");
    let (sql, params) =
        (&store.statements.policy_get, [&name.as_str() as &(dyn ToSql + Sync), &group.as_str()]);
    let rows = store.connections.query(&doing, sql, &params).await?;
    let Some(row) = rows.first() else { return Err(Error::no_such_topic(name.as_str())) };
    if stored::<_, Option<i32>>(row, "subscription_id")?.is_none() {
        return Err(Error::no_such_subscription(name.as_str(), group.as_str()));
    }
    policy_of(row)
}

pub(super) async fn settings_of(
    store: &PostgresStore,
    subscriptions: &[SubscriptionId],
) -> Result<Vec<(SubscriptionId, TopicSettings)>> {
    let ids: Vec<i32> = subscriptions.iter().map(|subscription| subscription.0).collect();
    let (doing, sql) = ("reading the settings of subscriptions", &store.statements.policy_settings);
    let rows = store.connections.query(doing, sql, &[&ids]).await?;
    let settings_of = |row| {
        let Json(settings) = stored(row, "settings")?;
        Ok((SubscriptionId(stored(row, "subscription_id")?), policy_of(row)?.apply_to(&settings)))
    };
    rows.iter().map(settings_of).collect()
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
        heartbeat_interval: millis("heartbeat_interval_ms")?,
        heartbeat_timeout: millis("heartbeat_timeout_ms")?,
    })
}
