//! A topic's settings in JSON, under the names that the store and the command use.

use headwater::{Preset, TopicSettings};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::problem::Problem;

/// Which messages a group gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum SemanticsName {
    /// One group; its members compete.
    Queue,
    /// Every group gets every message.
    PubSub,
}

/// How completion is recorded.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum TrackingName {
    /// By the cursor and the outstanding ranges of each group.
    OffsetWatermark,
    /// With a completion record for each message.
    ReferenceCounting,
}

/// In which order messages are handled.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum OrderingName {
    /// Concurrently.
    None,
    /// Strictly by offset among messages of one key.
    Key,
}

/// A named choice of retention and blocking.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum PresetName {
    /// Kept for a week; publishing fails while no group subscribes.
    Critical,
    /// Kept for ninety days; publishing fails while no group subscribes.
    Audit,
    /// Kept for a day.
    Standard,
    /// Kept for an hour.
    Ephemeral,
    /// Work for one group.
    Queue,
}

impl From<PresetName> for Preset {
    fn from(name: PresetName) -> Self {
        match name {
            PresetName::Critical => Preset::Critical,
            PresetName::Audit => Preset::Audit,
            PresetName::Standard => Preset::Standard,
            PresetName::Ephemeral => Preset::Ephemeral,
            PresetName::Queue => Preset::Queue,
        }
    }
}

/// The settings of a topic, as they are stored.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(super) struct Settings(pub(super) TopicSettings);

impl PartialSchema for Settings {
    /// That of a change, with every setting: what a setting means and may be is written once.
    fn schema() -> RefOr<Schema> {
        let mut schema = SettingsChange::schema();
        if let RefOr::T(Schema::Object(settings)) = &mut schema {
            settings.description = Some("The settings of a topic.".to_owned());
            settings.required = settings.properties.keys().cloned().collect();
            settings.additional_properties = None;
            settings.example = None;
            // A setting that is not given stays: in a change its default is null, and here it is always given.
            for setting in settings.properties.values_mut() {
                match setting {
                    RefOr::Ref(setting) => setting.default = None,
                    RefOr::T(Schema::Object(setting)) => setting.default = None,
                    RefOr::T(_) => {}
                }
            }
        }
        schema
    }
}

impl ToSchema for Settings {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        SettingsChange::schemas(schemas);
    }
}

/// Settings to change; those that are not given stay.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(example = json!({"max_attempts": 5, "message_retention_ms": 604_800_000, "max_retention_ms": null}))]
pub(super) struct SettingsChange {
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(nullable = false)]
    semantics: Option<SemanticsName>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(nullable = false)]
    tracking: Option<TrackingName>,
    /// How long a message is kept after every group is done with it; null for ever.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(value_type = Option<u64>)]
    message_retention_ms: Option<Option<u64>>,
    /// The age at which a message is removed even if groups are not done with it; null for never.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(value_type = Option<u64>)]
    max_retention_ms: Option<Option<u64>>,
    /// How long a message published while no group counted is kept at least.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(nullable = false)]
    zero_subscription_retention_ms: Option<u64>,
    /// Publishing fails while no group counts; only for `pub_sub`.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(nullable = false)]
    block_writes_on_zero_subscriptions: Option<bool>,
    /// A group that has been dead for longer gives up what was removed.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(nullable = false)]
    zombie_subscription_ttl_ms: Option<u64>,
    /// How long a lease lasts; 0 means that it never expires.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(nullable = false, maximum = 31_622_400_000u64)]
    lease_ms: Option<u64>,
    /// How often a message is handed out before it becomes a dead letter.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(nullable = false, minimum = 1, maximum = 1000)]
    max_attempts: Option<u32>,
    /// The first retry delay; it doubles with each attempt.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(nullable = false, maximum = 31_622_400_000u64)]
    backoff_initial_ms: Option<u64>,
    /// The longest retry delay.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(nullable = false, maximum = 31_622_400_000u64)]
    backoff_max_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(nullable = false)]
    ordering: Option<OrderingName>,
    /// Into how many lanes an ordered group is split; for groups that subscribe from now on.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(nullable = false, minimum = 1)]
    lanes: Option<u16>,
    /// `shared`, `dedicated`, or `dedicated by` `rows:N`, `hour`, `day` or `month`; changes only while no message is stored.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(nullable = false)]
    storage: Option<String>,
    /// The largest payload.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(nullable = false, minimum = 1, maximum = 67_108_864)]
    payload_bytes_max: Option<usize>,
    /// How long a dedup key is remembered.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(nullable = false, maximum = 31_622_400_000u64)]
    dedup_window_ms: Option<u64>,
    /// How often the processes of a group send a heartbeat.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(nullable = false, minimum = 100, maximum = 31_622_400_000u64)]
    heartbeat_interval_ms: Option<u64>,
    /// A group without a heartbeat for this long is dead.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(nullable = false, maximum = 31_622_400_000u64)]
    heartbeat_timeout_ms: Option<u64>,
    /// Whether each ack is logged.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(nullable = false)]
    ack_log: Option<bool>,
    /// How long the head waits at a missing offset.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[schema(nullable = false, maximum = 31_622_400_000u64)]
    gap_patience_ms: Option<u64>,
}

/// A field that is there: null is a value of its own, or refused.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(field: D) -> Result<Option<T>, D::Error> {
    T::deserialize(field).map(Some)
}

impl SettingsChange {
    pub(super) fn is_pub_sub(&self) -> bool {
        self.semantics == Some(SemanticsName::PubSub)
    }

    /// The settings with those changed that are given.
    pub(super) fn applied_to(&self, base: &TopicSettings) -> Result<TopicSettings, Problem> {
        let unwritable = |error: serde_json::Error| Problem::unwritable(&error);
        let mut settings = serde_json::to_value(base).map_err(unwritable)?;
        if let (Value::Object(all), Value::Object(changed)) =
            (&mut settings, serde_json::to_value(self).map_err(unwritable)?)
        {
            all.extend(changed);
        }
        // Of all settings only storage is a text with a rule of its own.
        let settings: TopicSettings =
            serde_json::from_value(settings).map_err(|error| Problem::invalid("storage", error))?;
        settings.validate().map_err(named)?;
        Ok(settings)
    }
}

/// The problem of a setting, under the setting's name in JSON.
pub(super) fn named(error: headwater::Error) -> Problem {
    let settings = TopicSettings::default().described();
    let names = settings.iter().map(|(name, ..)| (name.strip_suffix("_ms").unwrap_or(name), name.as_str()));
    let names: Vec<(&str, &str)> = names.chain([("partition_rows", "storage")]).collect();
    Problem::from(error).renamed(&names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_described_and_can_be_changed() {
        let settings = TopicSettings::preset(Preset::Critical);
        let stored = serde_json::to_value(&settings).expect("JSON");
        let schema = serde_json::to_value(Settings::schema()).expect("JSON");
        let names: Vec<&String> = stored.as_object().expect("an object").keys().collect();
        assert_eq!(schema["properties"].as_object().expect("an object").keys().collect::<Vec<_>>(), names);
        assert_eq!(schema["required"], serde_json::json!(names));
        for name in names {
            assert_eq!(schema["properties"][name].get("default"), None, "{name}");
            let change = |value: &Value| -> Result<SettingsChange, _> {
                serde_json::from_value(serde_json::json!({ name: value }))
            };
            assert!(change(&stored[name]).is_ok(), "{name}");
            let can_be_null = schema["properties"][name]["type"].as_array().is_some();
            assert_eq!(change(&Value::Null).is_ok(), can_be_null, "{name}");
        }
        let change: SettingsChange = serde_json::from_value(stored).expect("every setting has its field");
        assert_eq!(change.applied_to(&TopicSettings::default()).expect("valid"), settings);
    }

    #[test]
    fn null_removes_a_limit_and_is_refused_where_there_is_none() {
        let change: SettingsChange = serde_json::from_str(r#"{"max_retention_ms":null}"#).expect("a change");
        let changed = change.applied_to(&TopicSettings::pub_sub()).expect("valid");
        assert_eq!(changed.max_retention, None);
        assert!(serde_json::from_str::<SettingsChange>(r#"{"lanes":null}"#).is_err());
        let storage: SettingsChange = serde_json::from_str(r#"{"storage":"cloud"}"#).expect("a text");
        assert_eq!(
            storage.applied_to(&TopicSettings::default()).expect_err("refused").field(),
            Some("storage")
        );
    }
}
