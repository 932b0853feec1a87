//! Settings as JSON: stored, compared, shown and audited in one form, so that a new setting is defined once.
//!
//! Programs of two versions can share a store. A program ignores a name it does not know when it reads settings, and
//! keeps it when it alters the topic; a missing name takes its default.

use std::fmt;
use std::time::Duration;

use jiff::fmt::friendly::{Designator, FractionalUnit, Spacing, SpanPrinter};
use jiff::{Span, SpanRound, Unit};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::TopicSettings;
use crate::error::{Error, ErrorKind};
use crate::name::TopicName;

impl TopicSettings {
    /// Every setting, in order: its stored name (`lease_ms`), its stored value (`300000`) and the value as the command
    /// line takes it (`5m`).
    pub fn described(&self) -> Vec<(String, Value, String)> {
        let json = serde_json::to_string(self).expect("settings are JSON");
        let Entries(entries) = serde_json::from_str(&json).expect("it was written here");
        let described = |(name, value): (String, Value)| {
            let words = words(&name, &value);
            (name, value, words)
        };
        entries.into_iter().map(described).collect()
    }

    /// Each setting that is not as wanted, in words: `lease 5m, not 30s`.
    pub(crate) fn differences(&self, wanted: &TopicSettings) -> Vec<String> {
        let both = self.described().into_iter().zip(wanted.described());
        both.filter(|((_, is, _), (_, wanted, _))| is != wanted)
            .map(|((name, _, is), (_, _, wanted))| {
                format!("{} {is}, not {wanted}", name.strip_suffix("_ms").unwrap_or(&name))
            })
            .collect()
    }

    /// The settings as they are stored, by name.
    #[cfg(feature = "sqlite")]
    pub(crate) fn to_map(&self) -> serde_json::Map<String, Value> {
        self.described().into_iter().map(|(name, value, _)| (name, value)).collect()
    }

    /// The settings as they read back: durations are stored in whole milliseconds, rounded up.
    pub(crate) fn as_stored(&self) -> Self {
        let json = serde_json::to_value(self).expect("settings are JSON");
        serde_json::from_value(json).expect("it was written here")
    }
}

/// The error of creating a topic that exists with other settings: each difference, and what to do. The same on every
/// engine.
pub(crate) fn exists_otherwise(topic: &TopicName, there: &TopicSettings, wanted: &TopicSettings) -> Error {
    let differ = there.differences(wanted).join("; ");
    Error::new(
        ErrorKind::Conflict,
        format!(
            "topic {topic} exists with other settings: {differ}; nothing was changed: alter it with `headwater topic alter {topic}`"
        ),
    )
}

/// A stored value as the command line takes it.
fn words(name: &str, value: &Value) -> String {
    match (value, name.strip_suffix("_ms")) {
        (Value::Null, Some("message_retention")) => "forever".into(),
        (Value::Null, _) => "none".into(),
        (Value::Number(ms), Some(_)) => written(Duration::from_millis(ms.as_u64().unwrap_or(u64::MAX))),
        (Value::String(word), _) => word.clone(),
        (other, _) => other.to_string(),
    }
}

/// A duration exactly as the command line takes and shows it: `1d12h`, `1.5s`, `250ms`.
pub(crate) fn written(duration: Duration) -> String {
    let printer = SpanPrinter::new().designator(Designator::HumanTime).spacing(Spacing::None);
    let days = SpanRound::new().largest(Unit::Day).days_are_24_hours();
    match Span::try_from(duration).and_then(|span| span.round(days)) {
        Ok(span) if duration.as_secs() == 0 => printer.span_to_string(&span),
        Ok(span) => printer.fractional(Some(FractionalUnit::Second)).span_to_string(&span),
        // Longer than 20,000 years: no setting allows it, and it is shown all the same.
        Err(_) => format!("{}s", duration.as_secs()),
    }
}

/// The entries of a JSON object in the order they were written; `serde_json::Map` sorts them by name.
struct Entries(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// Durations in whole milliseconds, rounded up: a lease is never shorter than requested.
pub(crate) mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(whole(*duration))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }

    fn whole(duration: Duration) -> u64 {
        u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }

    /// The same for an optional duration: null is `None`.
    pub(crate) mod optional {
        use std::time::Duration;

        use serde::{Deserialize, Deserializer, Serialize, Serializer};

        pub(crate) fn serialize<S: Serializer>(
            duration: &Option<Duration>,
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            duration.map(super::whole).serialize(serializer)
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
            deserializer: D,
        ) -> Result<Option<Duration>, D::Error> {
            Ok(Option::deserialize(deserializer)?.map(Duration::from_millis))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::topic::{Partition, Storage};

    const DAY: Duration = Duration::from_secs(24 * 3_600);

    #[test]
    fn a_conflict_names_what_differs_and_nothing_else() {
        let there = TopicSettings { max_retention: Some(DAY * 30), ..TopicSettings::default() };
        let wanted = TopicSettings {
            lease: Duration::from_secs(30),
            max_retention: None,
            storage: Storage::Dedicated(Partition::Rows(5_000)),
            gap_patience: Duration::from_millis(1_500),
            ..TopicSettings::pub_sub()
        };
        let error = exists_otherwise(&TopicName::new("orders").unwrap(), &there, &wanted);
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert_eq!(
            error.to_string(),
            "topic orders exists with other settings: semantics queue, not pub_sub; max_retention 30d, not none; \
             lease 5m, not 30s; storage shared, not dedicated by rows:5000; gap_patience 50ms, not 1.5s; \
             nothing was changed: alter it with `headwater topic alter orders`"
        );
    }

    #[test]
    fn settings_read_back_in_whole_milliseconds() {
        let odd = TopicSettings {
            lease: Duration::from_nanos(1_000_001),
            max_retention: Some(Duration::from_micros(1)),
            ..TopicSettings::default()
        };
        let stored = odd.as_stored();
        let millis = Duration::from_millis;
        assert_eq!((stored.lease, stored.max_retention), (millis(2), Some(millis(1))));
        assert_eq!(TopicSettings { lease: odd.lease, max_retention: odd.max_retention, ..stored }, odd);
    }

    #[test]
    fn unknown_names_are_ignored_and_missing_ones_take_their_default() {
        let stored = json!({ "lease_ms": 5, "max_retention_ms": null, "of_a_later_version": [1] });
        let read: TopicSettings = serde_json::from_value(stored).unwrap();
        assert_eq!(read, TopicSettings { lease: Duration::from_millis(5), ..TopicSettings::default() });
        let wrong = serde_json::from_value::<TopicSettings>(json!({ "lease_ms": "5s" }));
        assert!(wrong.is_err(), "a value of the wrong type is refused, not defaulted");
    }

    #[test]
    fn storage_is_a_word_or_two() {
        let partitions =
            [Partition::None, Partition::Rows(1_000), Partition::Hour, Partition::Day, Partition::Month];
        for storage in partitions.map(Storage::Dedicated).into_iter().chain([Storage::Shared]) {
            let stored = serde_json::to_value(storage).unwrap();
            assert_eq!(stored, json!(storage.to_string()));
            assert_eq!(serde_json::from_value::<Storage>(stored).unwrap(), storage);
        }
        for wrong in ["", "dedicated by", "dedicated by week", "dedicated by rows:-1", "shared by day"] {
            assert!(wrong.parse::<Storage>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_are_written_exactly() {
        let written = |ms| written(Duration::from_millis(ms));
        let texts =
            [0, 1, 1_500, 30_000, 90_000, 300_000, 7_200_000, 36 * 3_600_000, 7 * 86_400_000].map(written);
        assert_eq!(texts, ["0s", "1ms", "1.5s", "30s", "1m30s", "5m", "2h", "1d12h", "7d"]);
    }
}
