//! Settings of a relay, and their rules.

use std::time::Duration;

use headwater::{Error, Result, Start};
use serde::{Deserialize, Serialize};

use super::Source;

/// How a relay delivers. It is stored as JSON with a registered relay: what is not there has its default.
///
/// ```
/// use headwater_relay::RelaySettings;
///
/// let settings = RelaySettings { group: Some("to-kafka".into()), ..RelaySettings::default() };
/// assert!(settings.key_order);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RelaySettings {
    /// The group of a topic; `relay-` and the kind of the sink if absent.
    pub group: Option<String>,
    /// Whether records of a key are delivered in order, and a failed one holds back the later ones. On by default.
    pub key_order: bool,
    /// The most records that one claim of a lane, or one sweep, takes.
    pub batch: u32,
    /// How long a call of the sink may take before it counts as unavailable.
    #[serde(rename = "timeout_ms", with = "millis")]
    pub timeout: Duration,
    /// How often a record is tried before it becomes a dead letter; the topic's setting, or 10 for the outbox, if absent.
    pub max_attempts: Option<u32>,
    /// How long a failed record waits before its first retry, and at most; as the topic says if absent.
    #[serde(rename = "backoff_ms", with = "maybe_millis_pair")]
    pub backoff: Option<(Duration, Duration)>,
    /// How long a claim of an outbox entry lasts before another relay takes the entry.
    #[serde(rename = "claim_timeout_ms", with = "millis")]
    pub claim_timeout: Duration,
    /// The first pause before an unavailable sink is probed, and the longest one.
    #[serde(skip, default = "probe_pace")]
    pub probe_pace: (Duration, Duration),
    /// How often a sink that stays unavailable is reported again.
    #[serde(skip, default = "alarm_every")]
    pub alarm_every: Duration,
    /// Where a new group of a topic starts; an existing one keeps its position.
    #[serde(skip)]
    pub start: Start,
}

fn probe_pace() -> (Duration, Duration) {
    (Duration::from_millis(100), Duration::from_secs(30))
}

fn alarm_every() -> Duration {
    Duration::from_secs(60)
}

impl Default for RelaySettings {
    fn default() -> Self {
        RelaySettings {
            group: None,
            key_order: true,
            batch: 2_000,
            timeout: Duration::from_secs(60),
            max_attempts: None,
            backoff: None,
            claim_timeout: headwater::limits::OUTBOX_CLAIM_TIMEOUT,
            probe_pace: probe_pace(),
            alarm_every: alarm_every(),
            start: Start::Beginning,
        }
    }
}

impl RelaySettings {
    /// The group that serves a topic for a sink of this kind.
    pub fn group_for(&self, kind: &str) -> String {
        self.group.clone().unwrap_or_else(|| format!("relay-{kind}"))
    }

    /// Checks each setting against its rule.
    pub fn check(&self, source: &Source) -> Result<()> {
        if let Some(group) = &self.group {
            headwater::GroupName::new(group)?;
        }
        if self.batch == 0 || self.batch > headwater::limits::OUTBOX_ENTRIES_MAX {
            let rule = format!("{} is not from 1 to {}", self.batch, headwater::limits::OUTBOX_ENTRIES_MAX);
            return Err(Error::invalid("batch", rule));
        }
        if self.timeout.is_zero() || self.probe_pace.0.is_zero() || self.alarm_every.is_zero() {
            return Err(Error::invalid(
                "timeout",
                "must be above zero, as the pauses between probes and alarms",
            ));
        }
        if self.max_attempts == Some(0) {
            return Err(Error::invalid("max_attempts", "0 would give up every record; use 1 or more"));
        }
        if self.backoff.is_some_and(|(initial, longest)| initial > longest) {
            return Err(Error::invalid("backoff", "the first delay is longer than the longest one"));
        }
        // Otherwise another relay would send an entry while this one still does, and the order of its key would be lost.
        if *source == Source::Outbox && self.timeout >= self.claim_timeout {
            let (timeout, claim) = (self.timeout, self.claim_timeout);
            let rule = format!(
                "{timeout:?} is not below the claim timeout, {claim:?}; shorten it, or raise claim_timeout"
            );
            return Err(Error::invalid("timeout", rule));
        }
        Ok(())
    }
}

/// Durations in whole milliseconds, rounded up.
mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn whole(duration: Duration) -> u64 {
        u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }

    pub(super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(whole(*duration))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

mod maybe_millis_pair {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::millis::whole;

    pub(super) fn serialize<S: Serializer>(
        pair: &Option<(Duration, Duration)>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        pair.map(|(initial, longest)| (whole(initial), whole(longest))).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<(Duration, Duration)>, D::Error> {
        let pair: Option<(u64, u64)> = Option::deserialize(deserializer)?;
        Ok(pair.map(|(initial, longest)| (Duration::from_millis(initial), Duration::from_millis(longest))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_their_json_and_what_is_missing_has_its_default() {
        let backoff = Some((Duration::from_millis(200), Duration::from_secs(9)));
        let settings =
            RelaySettings { group: Some("g".into()), key_order: false, backoff, ..RelaySettings::default() };
        let json = serde_json::to_string(&settings).unwrap();
        assert_eq!(serde_json::from_str::<RelaySettings>(&json).unwrap(), settings);
        assert_eq!(serde_json::from_str::<RelaySettings>("{}").unwrap(), RelaySettings::default());
    }

    #[test]
    fn settings_have_limits() {
        let bad = [
            RelaySettings { batch: 0, ..RelaySettings::default() },
            RelaySettings { timeout: Duration::ZERO, ..RelaySettings::default() },
            RelaySettings { max_attempts: Some(0), ..RelaySettings::default() },
            RelaySettings { timeout: Duration::from_secs(300), ..RelaySettings::default() },
            RelaySettings { group: Some(String::new()), ..RelaySettings::default() },
        ];
        for settings in bad {
            let error = settings.check(&Source::Outbox).unwrap_err();
            assert_eq!(error.kind(), headwater::ErrorKind::InvalidInput, "{settings:?}");
        }
        RelaySettings::default().check(&Source::Outbox).unwrap();
    }
}
