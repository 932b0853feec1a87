//! The sink for NATS JetStream, on a real server.
#![cfg(feature = "nats")]

#[path = "queues/place.rs"]
mod place;

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use async_nats::jetstream::{self, stream};
use futures_util::StreamExt;
use headwater_relay::nats::{IN_FLIGHT_MAX, NatsSink};
use headwater_relay::{Delivery, Sink, SinkError};
use headwater_servers::Stop;
use headwater_servers::brokers::NatsKind;
use place::{broker, eventually, own, record, unique};

const VARIABLE: &str = "HEADWATER_TEST_NATS";

async fn context(url: &str) -> jetstream::Context {
    jetstream::new(async_nats::connect(url).await.expect("connected"))
}

/// A stream for `name.>`.
async fn stream(context: &jetstream::Context, name: &str, max_message_size: i32) -> stream::Stream {
    let config = stream::Config {
        name: name.to_owned(),
        subjects: vec![format!("{name}.>")],
        max_message_size,
        ..stream::Config::default()
    };
    context.create_stream(config).await.expect("created")
}

async fn messages(stream: &stream::Stream) -> Vec<jetstream::Message> {
    let count = stream.get_info().await.expect("info").state.messages;
    let ack_policy = jetstream::consumer::AckPolicy::None;
    let config =
        jetstream::consumer::pull::Config { ack_policy, ..jetstream::consumer::pull::Config::default() };
    let consumer = stream.create_consumer(config).await.expect("a consumer");
    let mut found = Vec::new();
    let mut batch =
        consumer.fetch().max_messages(usize::try_from(count).expect("fits")).messages().await.expect("read");
    while let Some(message) = batch.next().await {
        found.push(message.expect("a message"));
    }
    found
}

fn misconfigured(result: Result<impl std::fmt::Debug, SinkError>) -> String {
    match result {
        Err(SinkError::Misconfigured(text)) => text,
        other => panic!("not misconfigured: {other:?}"),
    }
}

#[tokio::test]
async fn a_record_arrives_with_all_its_fields() {
    let Some(url) = broker(VARIABLE) else { return };
    let name = unique("fields");
    let context = context(&url).await;
    let stream = stream(&context, &name, -1).await;
    let subject = format!("{name}.placed");
    for (n, url, destination) in
        [(1, format!("{url}/{subject}"), "ignored"), (2, url.clone(), subject.as_str())]
    {
        let sink = NatsSink::from_url(&url).expect("a URL");
        sink.check().await.expect("there");
        assert_eq!(sink.deliver(&[record(n, destination)]).await, Ok(vec![Delivery::Delivered]));
        sink.close().await;
    }
    for (n, got) in messages(&stream).await.iter().enumerate() {
        let sent = record(n + 1, "-");
        let headers: BTreeMap<String, String> = got
            .headers
            .as_ref()
            .expect("headers")
            .iter()
            .map(|(name, values)| (name.to_string(), values[0].to_string()))
            .collect();
        let mut expected = sent.headers.clone();
        for (name, value) in [
            ("Nats-Msg-Id", Some(sent.message_id.clone())),
            ("headwater-key", sent.key.clone()),
            ("headwater-type", sent.message_type.clone()),
            ("headwater-content-type", sent.content_type.clone()),
            ("headwater-correlation-id", sent.correlation_id.clone()),
            ("headwater-created-at", Some("2026-01-31T12:00:00.123456Z".to_owned())),
        ] {
            expected.insert(name.to_owned(), value.expect("set"));
        }
        assert_eq!(
            (headers, got.payload.clone(), got.subject.as_str()),
            (expected, sent.payload, subject.as_str())
        );
    }
    context.delete_stream(&name).await.expect("deleted");
}

#[tokio::test]
async fn a_subject_without_a_stream_is_named_and_found_once_there_is_one() {
    let Some(url) = broker(VARIABLE) else { return };
    let name = unique("later");
    let sink = NatsSink::from_url(&format!("{url}/{name}.a")).expect("a URL");
    let records = [record(1, "-"), record(2, "-")];
    for text in [misconfigured(sink.check().await), misconfigured(sink.deliver(&records).await)] {
        assert!(text.contains(&format!("{name}.a")) && text.contains("create one"), "{text}");
    }
    let context = context(&url).await;
    let stored = stream(&context, &name, -1).await;
    sink.check().await.expect("there now");
    assert_eq!(sink.deliver(&records).await, Ok(vec![Delivery::Delivered; 2]));
    assert_eq!(messages(&stored).await.len(), 2);

    // Of a batch with its own destinations only those without a stream fail.
    let sink = NatsSink::from_url(&url).expect("a URL");
    let there = format!("{name}.b");
    let delivered = sink.deliver(&[record(3, &there), record(4, &unique("missing")), record(5, "a b")]).await;
    let delivered = delivered.expect("answered");
    assert!(
        matches!(&delivered[1], Delivery::Failed { reason, .. } if reason.contains("no stream for subject missing"))
    );
    assert!(
        matches!(&delivered[2], Delivery::Refused { reason } if reason.contains("subject")),
        "{delivered:?}"
    );
    assert_eq!((&delivered[0], messages(&stored).await.len()), (&Delivery::Delivered, 3));
    context.delete_stream(&name).await.expect("deleted");
}

#[tokio::test]
async fn a_record_that_is_sent_again_is_stored_once() {
    let Some(url) = broker(VARIABLE) else { return };
    let name = unique("again");
    let context = context(&url).await;
    let stored = stream(&context, &name, -1).await;
    let sink = NatsSink::from_url(&format!("{url}/{name}.a")).expect("a URL");
    // More than are in flight at a time.
    let records: Vec<_> = (0..IN_FLIGHT_MAX * 2 + 7).map(|n| record(n, "-")).collect();
    for _ in 0..2 {
        assert_eq!(sink.deliver(&records).await, Ok(vec![Delivery::Delivered; records.len()]));
    }
    assert_eq!(stored.get_info().await.expect("info").state.messages, records.len() as u64);
    context.delete_stream(&name).await.expect("deleted");
}

#[tokio::test]
async fn what_is_too_large_for_the_server_or_its_stream_is_refused_alone() {
    let Some(url) = broker(VARIABLE) else { return };
    let name = unique("large");
    let context = context(&url).await;
    let stored = stream(&context, &name, 10_000).await;
    let sink = NatsSink::from_url(&format!("{url}/{name}.a")).expect("a URL");
    let (mut server, mut stream, mut header) = (record(2, "-"), record(3, "-"), record(4, "-"));
    server.payload = vec![b'x'; 2 * 1024 * 1024].into();
    stream.payload = vec![b'x'; 20_000].into();
    header.headers.insert("Nats-Rollup".into(), "all".into());
    let delivered =
        sink.deliver(&[record(1, "-"), server, stream, header, record(5, "-")]).await.expect("answered");
    let refused = |at: usize, says: &str| matches!(&delivered[at], Delivery::Refused { reason } if reason.contains(says));
    assert!(refused(1, "max_payload") && refused(2, "max_msg_size") && refused(3, "Nats-"), "{delivered:?}");
    assert_eq!((&delivered[0], &delivered[4]), (&Delivery::Delivered, &Delivery::Delivered));
    assert_eq!(messages(&stored).await.len(), 2);
    context.delete_stream(&name).await.expect("deleted");
}

/// A server that asks for a login, and lets one user publish only below `allowed`.
struct Guarded {
    child: Child,
    port: u16,
    _directory: tempfile::TempDir,
}

impl Guarded {
    async fn start() -> Option<Self> {
        own::<NatsKind>()?;
        let directory = tempfile::tempdir().expect("a directory");
        let port =
            std::net::TcpListener::bind("127.0.0.1:0").expect("bound").local_addr().expect("a port").port();
        let config = format!(
            "listen: 127.0.0.1:{port}\njetstream {{ store_dir: {:?} }}\nauthorization {{ users: [\n\
             {{ user: admin, password: \"s3cret\" }}\n\
             {{ user: relay, password: \"hunter2\", permissions: {{ publish: [\"allowed.>\", \"$JS.API.>\"], subscribe: [\"_INBOX.>\"] }} }}\n] }}\n",
            directory.path().join("data")
        );
        let file = directory.path().join("nats.conf");
        std::fs::write(&file, config).expect("written");
        let mut command = Command::new("nats-server");
        command.arg("-c").arg(file).stdout(Stdio::null()).stderr(Stdio::null());
        let guarded = Guarded { child: command.spawn().expect("started"), port, _directory: directory };
        eventually("the server", async || tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok())
            .await;
        Some(guarded)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn wrong_credentials_and_missing_rights_are_named_without_the_password() {
    let Some(guarded) = Guarded::start().await else { return };
    let host = format!("127.0.0.1:{}", guarded.port);
    for user in ["", "relay:wrong-word@", "wrong-word@"] {
        let sink = NatsSink::from_url(&format!("nats://{user}{host}/allowed.a")).expect("a URL");
        for text in [misconfigured(sink.check().await), misconfigured(sink.deliver(&[record(1, "-")]).await)]
        {
            assert!(text.contains(&host) && text.contains("check user and password"), "{text}");
            assert!(!text.contains("wrong-word") && !format!("{sink:?}").contains("wrong-word"), "{text}");
        }
    }
    let options = async_nats::ConnectOptions::with_user_and_password("admin".to_owned(), "s3cret".to_owned());
    let admin = jetstream::new(options.connect(&host).await.expect("connected"));
    for name in ["allowed", "closed"] {
        stream(&admin, name, -1).await;
    }
    let allowed = NatsSink::from_url(&format!("nats://relay:hunter2@{host}/allowed.a")).expect("a URL");
    assert_eq!(allowed.deliver(&[record(1, "-")]).await, Ok(vec![Delivery::Delivered]));
    let closed = NatsSink::from_url(&format!("nats://relay:hunter2@{host}/closed.a")).expect("a URL");
    let text = misconfigured(closed.deliver(&[record(1, "-")]).await);
    assert!(text.contains("closed.a") && text.contains("grant") && !text.contains("hunter2"), "{text}");

    let nowhere = NatsSink::from_url("nats://127.0.0.1:1/a").expect("a URL");
    let refused = nowhere.deliver(&[record(1, "-")]).await;
    assert!(
        matches!(&refused, Err(SinkError::Unavailable(text)) if text.contains("127.0.0.1:1")),
        "{refused:?}"
    );
}

/// Killed under load, the stream has each record once: what is sent again is known by its id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_record_is_stored_once_although_the_server_is_killed_under_load() {
    const BATCHES: usize = 300;
    const BATCH: usize = 100;
    let Some(mut nats) = own::<NatsKind>() else { return };
    let url = nats.url();
    stream(&context(&url).await, "load", -1).await;
    let sink = NatsSink::from_url(&format!("{url}/load.a")).expect("a URL");
    let (progress, seen) = tokio::sync::watch::channel(0);
    let load = tokio::spawn(async move {
        let mut unknown = 0;
        for batch in 0..BATCHES {
            let records: Vec<_> = (0..BATCH).map(|n| record(batch * BATCH + n, "-")).collect();
            loop {
                let is_unknown = match sink.deliver(&records).await {
                    Ok(delivered) => {
                        let is_away = |one: &Delivery| matches!(one, Delivery::Unconfirmed { .. });
                        let failed =
                            delivered.iter().find(|one| **one != Delivery::Delivered && !is_away(one));
                        assert_eq!(failed, None, "an outage costs no record an attempt");
                        delivered.iter().any(is_away)
                    }
                    Err(SinkError::Unavailable(_)) => true,
                    Err(error) => panic!("{error}"),
                };
                if !is_unknown {
                    break;
                }
                unknown += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            progress.send_replace(batch);
        }
        unknown
    });
    // A server that ends first ends JetStream: then it says of some records that no stream answers.
    let fast = (6..26).map(|n| (n * 10, Stop::Fast));
    for (at, how) in [(30, Stop::Kill)].into_iter().chain(fast).chain([(270, Stop::Kill)]) {
        eventually("the load", async || *seen.borrow() >= at).await;
        nats.stop(how).expect("stopped");
        nats.serve().expect("started");
        nats.wait(|| Ok(())).expect("ready");
    }
    assert!(load.await.expect("sent") >= 1, "the server was away");
    let stored = context(&url).await.get_stream("load").await.expect("there");
    let ids: BTreeSet<String> = messages(&stored)
        .await
        .iter()
        .map(|message| {
            message.headers.as_ref().expect("headers").get("Nats-Msg-Id").expect("an id").to_string()
        })
        .collect();
    let count = stored.get_info().await.expect("info").state.messages;
    assert_eq!((ids.len(), count), (BATCHES * BATCH, (BATCHES * BATCH) as u64), "each is there once");
}
