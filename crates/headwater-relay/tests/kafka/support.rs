//! Brokers, topics, records and readers of the tests.

use std::time::{Duration, Instant};

use headwater_relay::kafka::MESSAGE_ID_HEADER;
use headwater_relay::testing::checker::{Found, Published};
use headwater_relay::{Record, Sink};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Headers, Message, OwnedMessage};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

/// The broker of the run; without one the test is skipped, which CI does not allow.
pub(crate) fn kafka() -> Option<String> {
    let given = std::env::var("HEADWATER_TEST_KAFKA").ok().filter(|address| !address.is_empty());
    if given.is_none() {
        assert!(std::env::var_os("HEADWATER_TEST_REQUIRE_ALL").is_none(), "HEADWATER_TEST_KAFKA is not set");
        println!("skipped: HEADWATER_TEST_KAFKA is not set");
    }
    given
}

/// A broker of the test's own, to be stopped and killed. Ends with the calling thread.
pub(crate) fn own_kafka() -> Option<headwater_servers::brokers::Kafka> {
    if let Err(error) = headwater_servers::brokers::Kafka::find() {
        assert!(std::env::var_os("HEADWATER_TEST_REQUIRE_ALL").is_none(), "{error:#}");
        println!("skipped: {error:#}");
        return None;
    }
    let mut kafka = headwater_servers::brokers::Kafka::start(&std::env::temp_dir()).unwrap();
    kafka.wait(|| Ok(())).unwrap();
    Some(kafka)
}

/// A name that no other test has.
pub(crate) fn unique(name: &str) -> String {
    format!("{name}-{:x}", rand::random::<u64>())
}

/// Runs a test on a thread of its own, which is also the one that starts brokers.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

pub(crate) async fn create_topic(address: &str, topic: &str, partitions: i32, settings: &[(&str, &str)]) {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", address).create().unwrap();
    let mut new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
    for (name, value) in settings {
        new = new.set(name, value);
    }
    let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(20)));
    for result in admin.create_topics([&new], &options).await.unwrap() {
        result.unwrap();
    }
}

pub(crate) fn record(id: &str, key: Option<&str>, payload: impl Into<Vec<u8>>) -> Record {
    Record {
        message_id: id.to_owned(),
        destination: String::new(),
        key: key.map(str::to_owned),
        message_type: None,
        content_type: None,
        correlation_id: None,
        headers: headwater::Headers::new(),
        payload: payload.into().into(),
        created_at: headwater::jiff::Timestamp::from_millisecond(1_700_000_000_123).unwrap(),
    }
}

/// Waits until the sink finds its topic.
pub(crate) async fn ready(sink: &impl Sink) {
    let deadline = Instant::now() + Duration::from_secs(90);
    while let Err(error) = sink.check().await {
        assert!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Everything that a reader at `read_committed` finds in a topic, by partition.
pub(crate) fn read_all(address: &str, topic: &str) -> Vec<OwnedMessage> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", address)
        .set("group.id", unique("reader"))
        .set("isolation.level", "read_committed")
        .set("enable.partition.eof", "true")
        .set("enable.auto.commit", "false")
        .create()
        .unwrap();
    let metadata = consumer.fetch_metadata(Some(topic), Duration::from_secs(20)).unwrap();
    let mut left = metadata.topics()[0].partitions().len();
    let mut from = TopicPartitionList::new();
    for partition in metadata.topics()[0].partitions() {
        from.add_partition_offset(topic, partition.id(), Offset::Beginning).unwrap();
    }
    consumer.assign(&from).unwrap();
    let (mut found, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(60));
    while left > 0 {
        assert!(Instant::now() < deadline, "{} records after a minute", found.len());
        match consumer.poll(Duration::from_millis(200)) {
            Some(Ok(message)) => found.push(message.detach()),
            Some(Err(KafkaError::PartitionEOF(_))) => left -= 1,
            Some(Err(error)) => println!("reader: {error}"),
            None => {}
        }
    }
    found.sort_by_key(|message| (message.partition(), message.offset()));
    found
}

pub(crate) fn header(message: &OwnedMessage, name: &str) -> Option<String> {
    let headers = message.headers()?;
    let found = headers.iter().find(|header| header.key == name)?;
    Some(String::from_utf8(found.value?.to_vec()).unwrap())
}

/// As the checker takes it.
pub(crate) fn found(messages: &[OwnedMessage]) -> Vec<Found> {
    messages
        .iter()
        .map(|message| Found {
            id: header(message, MESSAGE_ID_HEADER).expect("each record has its id"),
            key: String::from_utf8(message.key().unwrap_or_default().to_vec()).unwrap(),
            partition: message.partition(),
        })
        .collect()
}

pub(crate) fn published(records: &[Record]) -> Vec<Published> {
    let of = |record: &Record| Published {
        id: record.message_id.clone(),
        key: record.key.clone().unwrap_or_default(),
    };
    records.iter().map(of).collect()
}
