//! The URL of a Kafka sink, and the settings of librdkafka that follow from it.

use std::fmt;
use std::time::Duration;

use headwater::{Error, Result};
use rdkafka::ClientConfig;

use crate::broker_url::{BrokerUrl, host_and_port};
use crate::sink::Record;

const OPTIONS: &str = "create, partitions, compression, linger_ms, timeout_ms, and properties of librdkafka, whose names have a dot";
/// What the promises of the sink depend on.
const OWN_PROPERTIES: [&str; 9] = [
    "bootstrap.servers",
    "enable.idempotence",
    "enable.gapless.guarantee",
    "message.timeout.ms",
    "delivery.timeout.ms",
    "transactional.id",
    "request.required.acks",
    "isolation.level",
    "group.id",
];

/// Where records go, and how.
#[derive(Clone)]
pub(super) struct Address {
    /// The scheme and the hosts, for errors.
    place: String,
    brokers: String,
    /// `None` for the destination of each record.
    pub(super) topic: Option<String>,
    pub(super) creates: bool,
    /// `None` for the broker's default.
    pub(super) partitions: Option<i32>,
    pub(super) timeout: Duration,
    compression: String,
    linger_ms: u64,
    /// Properties of librdkafka; may have passwords.
    properties: Vec<(String, String)>,
}

impl Address {
    pub(super) fn from_url(url: &str) -> Result<Self> {
        let mut url = BrokerUrl::parse(url, &["kafka"], 9092)?;
        let creates = match url.take("create").as_deref() {
            None | Some("0") => false,
            Some("1") => true,
            Some(_) => return Err(Error::invalid("url", "create: must be 0 or 1")),
        };
        let partitions = number(&mut url, "partitions", 1, 10_000)?;
        if partitions.is_some() && !creates {
            return Err(Error::invalid("url", "partitions: only with create=1; add it or remove this"));
        }
        let compression = url.take("compression").unwrap_or_else(|| "lz4".into());
        if !matches!(compression.as_str(), "lz4" | "none") {
            return Err(Error::invalid("url", "compression: must be lz4 or none"));
        }
        let linger_ms = number(&mut url, "linger_ms", 0, 1_000)?.unwrap_or(5);
        let timeout_ms = number(&mut url, "timeout_ms", 100, 300_000)?.unwrap_or(10_000);
        let mut properties = login(&url);
        for (name, value) in url.take_rest() {
            if !name.contains('.') {
                return Err(Error::invalid(
                    "url",
                    format!("unknown option {name}; there are {OPTIONS}; remove it"),
                ));
            }
            if OWN_PROPERTIES.contains(&name.as_str()) {
                return Err(Error::invalid(
                    "url",
                    format!("option {name}: is set by the sink itself; remove it"),
                ));
            }
            properties.push((name, value));
        }
        let hosts: Vec<String> = url.hosts.iter().map(host_and_port).collect();
        let address = Address {
            place: url.place(),
            brokers: hosts.join(","),
            topic: url.path.clone(),
            creates,
            partitions: partitions.map(|count| i32::try_from(count).expect("it is small")),
            timeout: Duration::from_millis(timeout_ms),
            compression,
            linger_ms,
            properties,
        };
        address.check_topic()?;
        address.check_properties()?;
        Ok(address)
    }

    /// The rule of Kafka for names of topics.
    fn check_topic(&self) -> Result<()> {
        let Some(topic) = &self.topic else { return Ok(()) };
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if topic.len() > 249 || matches!(topic.as_str(), "." | "..") || !topic.chars().all(is_allowed) {
            let rule = "topic: must have at most 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-', as in kafka://host:9092/orders";
            return Err(Error::invalid("url", rule));
        }
        Ok(())
    }

    /// Unknown properties are found now and not when the sink is first used. The value may be a password: it is not shown.
    fn check_properties(&self) -> Result<()> {
        for (name, value) in &self.properties {
            let alone = ClientConfig::new().set(name, value).create_native_config();
            if alone.is_err() {
                let rule = format!(
                    "option {name}: librdkafka has no such property, or not with this value; correct it"
                );
                return Err(Error::invalid("url", rule));
            }
        }
        Ok(())
    }

    /// Settings that all clients share.
    pub(super) fn common(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers).set("client.id", "headwater-relay");
        config.set("topic.metadata.propagation.max.ms", "5000");
        // A broker that is back must be found soon.
        config.set("reconnect.backoff.max.ms", "1000");
        for (name, value) in &self.properties {
            config.set(name, value);
        }
        config
    }

    /// Settings of a producer; a careful one sends each record in a request of its own.
    pub(super) fn producer(&self, careful: bool) -> ClientConfig {
        let mut config = self.common();
        config.set("enable.idempotence", "true").set("acks", "all");
        config.set("partitioner", "murmur2_random").set("compression.type", &self.compression);
        config.set("linger.ms", self.linger_ms.to_string());
        if careful {
            config.set("linger.ms", "0").set("batch.num.messages", "1");
        }
        config
    }

    /// The topic of a record, for errors.
    pub(super) fn name(&self, record: &Record) -> String {
        self.topic_name(self.topic.as_ref().unwrap_or(&record.destination))
    }

    /// A topic with its place, for errors.
    pub(super) fn topic_name(&self, topic: &str) -> String {
        format!("topic {topic} of {}", self.place)
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    pub(super) fn missing_topic(&self, topic: &str) -> String {
        format!(
            "{} does not exist, or may not be seen: create it, allow it to be described, or add create=1 to the URL",
            self.topic_name(topic)
        )
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address")
            .field("place", &self.place)
            .field("topic", &self.topic)
            .finish_non_exhaustive()
    }
}

/// The properties for a user and a password of the URL.
fn login(url: &BrokerUrl) -> Vec<(String, String)> {
    let (Some(user), Some(password)) = (&url.user, &url.password) else { return Vec::new() };
    let properties = [
        ("security.protocol", "sasl_plaintext"),
        ("sasl.mechanisms", "PLAIN"),
        ("sasl.username", user),
        ("sasl.password", password),
    ];
    properties.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
}

fn number(url: &mut BrokerUrl, name: &str, least: u64, most: u64) -> Result<Option<u64>> {
    let Some(text) = url.take(name) else { return Ok(None) };
    match text.parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(Some(number)),
        _ => Err(Error::invalid("url", format!("{name}: must be a number from {least} to {most}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_settings() {
        let url = "kafka://u:p%40ss@one,two:1/orders?create=1&partitions=6&compression=none&linger_ms=0&timeout_ms=500\
                   &message.max.bytes=2000000";
        let address = Address::from_url(url).unwrap();
        assert_eq!(
            (address.topic.as_deref(), address.creates, address.partitions),
            (Some("orders"), true, Some(6))
        );
        let config = address.producer(false);
        for (name, value) in [
            ("bootstrap.servers", "one:9092,two:1"),
            ("sasl.password", "p@ss"),
            ("security.protocol", "sasl_plaintext"),
            ("compression.type", "none"),
            ("linger.ms", "0"),
            ("message.max.bytes", "2000000"),
            ("enable.idempotence", "true"),
            ("acks", "all"),
            ("partitioner", "murmur2_random"),
        ] {
            assert_eq!(config.get(name), Some(value), "{name}");
        }
        assert_eq!(address.producer(true).get("batch.num.messages"), Some("1"));
        assert!(!format!("{address:?}").contains("p@ss"));
        assert_eq!(Address::from_url("kafka://h").unwrap().topic, None);
    }

    #[test]
    fn what_is_wrong_is_named_without_secrets() {
        for (url, says) in [
            ("http://h/t", "must begin with kafka://"),
            ("kafka://h/or%20ders", "topic: must have"),
            ("kafka://h/t?create=yes", "create: must be 0 or 1"),
            ("kafka://h/t?partitions=3", "only with create=1"),
            ("kafka://h/t?compression=zip", "compression: must be lz4 or none"),
            ("kafka://h/t?timeout_ms=1", "timeout_ms: must be a number from 100 to 300000"),
            ("kafka://h/t?acks=0", "unknown option acks"),
            ("kafka://h/t?enable.idempotence=false", "is set by the sink itself"),
            ("kafka://h/t?sasl.pasword=hunter2", "librdkafka has no such property"),
        ] {
            let error = Address::from_url(url).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains("hunter2"), "{url}: {error}");
        }
    }
}
