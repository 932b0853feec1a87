//! A topic's settings: as told on the command line, and as shown.

use anyhow::Result;
use headwater::{Partition, Storage, TopicSettings};
use serde_json::json;

use crate::args::SettingsArgs;
use crate::args::words::Retention;
use crate::human;
use crate::output::{Fields, Usage};

/// The settings with those changed that are named.
pub(super) fn changed(base: &TopicSettings, args: &SettingsArgs) -> Result<TopicSettings> {
    Ok(TopicSettings {
        semantics: args.semantics.unwrap_or(base.semantics),
        tracking: args.tracking.unwrap_or(base.tracking),
        message_retention: args.message_retention.map_or(base.message_retention, Retention::limit),
        max_retention: args.max_retention.map_or(base.max_retention, Retention::limit),
        zero_subscription_retention: args
            .zero_subscription_retention
            .unwrap_or(base.zero_subscription_retention),
        block_writes_on_zero_subscriptions: args
            .block_writes_on_zero_subscriptions
            .unwrap_or(base.block_writes_on_zero_subscriptions),
        zombie_subscription_ttl: args.zombie_subscription_ttl.unwrap_or(base.zombie_subscription_ttl),
        lease: args.lease.unwrap_or(base.lease),
        max_attempts: args.max_attempts.unwrap_or(base.max_attempts),
        backoff_initial: args.backoff_initial.unwrap_or(base.backoff_initial),
        backoff_max: args.backoff_max.unwrap_or(base.backoff_max),
        ordering: args.ordering.unwrap_or(base.ordering),
        lanes: args.lanes.unwrap_or(base.lanes),
        storage: chosen_storage(base.storage, args)?,
        payload_bytes_max: args.payload_bytes_max.unwrap_or(base.payload_bytes_max),
        dedup_window: args.dedup_window.unwrap_or(base.dedup_window),
        heartbeat_interval: args.heartbeat_interval.unwrap_or(base.heartbeat_interval),
        heartbeat_timeout: args.heartbeat_timeout.unwrap_or(base.heartbeat_timeout),
        ack_log: args.ack_log.unwrap_or(base.ack_log),
        gap_patience: args.gap_patience.unwrap_or(base.gap_patience),
    })
}

fn chosen_storage(base: Storage, args: &SettingsArgs) -> Result<Storage> {
    use crate::args::StorageWord;
    Ok(match (args.storage, args.partition) {
        (None, None) => base,
        (Some(StorageWord::Shared), None) => Storage::Shared,
        (Some(StorageWord::Shared), Some(_)) => {
            return Err(
                Usage("shared storage is not cut: --partition goes with --storage dedicated".into()).into()
            );
        }
        (Some(StorageWord::Dedicated), None) => match base {
            Storage::Dedicated(partition) => Storage::Dedicated(partition),
            Storage::Shared => Storage::Dedicated(Partition::None),
        },
        (_, Some(partition)) => Storage::Dedicated(partition),
    })
}

/// Whether no setting at all is named.
pub(super) fn names_nothing(args: &SettingsArgs) -> bool {
    // Every field is named here, so that a new one is not forgotten.
    let SettingsArgs {
        semantics,
        tracking,
        message_retention,
        max_retention,
        zero_subscription_retention,
        block_writes_on_zero_subscriptions,
        zombie_subscription_ttl,
        lease,
        max_attempts,
        backoff_initial,
        backoff_max,
        ordering,
        lanes,
        storage,
        partition,
        payload_bytes_max,
        dedup_window,
        heartbeat_interval,
        heartbeat_timeout,
        ack_log,
        gap_patience,
    } = args;
    let durations = [
        zero_subscription_retention,
        zombie_subscription_ttl,
        lease,
        backoff_initial,
        backoff_max,
        dedup_window,
        heartbeat_interval,
        heartbeat_timeout,
        gap_patience,
    ];
    semantics.is_none()
        && tracking.is_none()
        && message_retention.is_none()
        && max_retention.is_none()
        && block_writes_on_zero_subscriptions.is_none()
        && max_attempts.is_none()
        && ordering.is_none()
        && lanes.is_none()
        && storage.is_none()
        && partition.is_none()
        && payload_bytes_max.is_none()
        && ack_log.is_none()
        && durations.into_iter().all(Option::is_none)
}

/// Every setting, under the name the command line takes it by.
pub(super) fn push(fields: &mut Fields, settings: &TopicSettings) {
    let retention = |fields: &mut Fields, name, limit: Option<std::time::Duration>, endless: &str| {
        fields.said(name, json!(limit.map(human::ms)), human::limit(limit, endless));
    };
    let duration = |fields: &mut Fields, name, value| {
        fields.said(name, human::ms(value), human::duration(value));
    };
    fields.push("semantics", json!(settings.semantics.as_str()));
    fields.push("tracking", json!(settings.tracking.as_str()));
    retention(fields, "message_retention_ms", settings.message_retention, "forever");
    retention(fields, "max_retention_ms", settings.max_retention, "none");
    duration(fields, "zero_subscription_retention_ms", settings.zero_subscription_retention);
    fields.push("block_writes_on_zero_subscriptions", json!(settings.block_writes_on_zero_subscriptions));
    duration(fields, "zombie_subscription_ttl_ms", settings.zombie_subscription_ttl);
    duration(fields, "lease_ms", settings.lease);
    fields.push("max_attempts", json!(settings.max_attempts));
    duration(fields, "backoff_initial_ms", settings.backoff_initial);
    duration(fields, "backoff_max_ms", settings.backoff_max);
    fields.push("ordering", json!(settings.ordering.as_str()));
    fields.push("lanes", json!(settings.lanes));
    fields.push("storage", json!(storage(settings.storage)));
    fields.push("payload_bytes_max", json!(settings.payload_bytes_max));
    duration(fields, "dedup_window_ms", settings.dedup_window);
    duration(fields, "heartbeat_interval_ms", settings.heartbeat_interval);
    duration(fields, "heartbeat_timeout_ms", settings.heartbeat_timeout);
    fields.push("ack_log", json!(settings.ack_log));
    duration(fields, "gap_patience_ms", settings.gap_patience);
}

/// Where messages are stored, in a word or two.
pub(super) fn storage(storage: Storage) -> String {
    match storage {
        Storage::Shared => "shared".into(),
        Storage::Dedicated(Partition::None) => "dedicated".into(),
        Storage::Dedicated(Partition::Rows(rows)) => format!("dedicated, rows:{rows}"),
        Storage::Dedicated(Partition::Hour) => "dedicated, hour".into(),
        Storage::Dedicated(Partition::Day) => "dedicated, day".into(),
        Storage::Dedicated(Partition::Month) => "dedicated, month".into(),
    }
}
