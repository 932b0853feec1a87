//! The sink: fields, order, refusals, outages.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use headwater_relay::kafka::{
    CONTENT_TYPE_HEADER, CORRELATION_ID_HEADER, KafkaSink, MESSAGE_ID_HEADER, TYPE_HEADER,
};
use headwater_relay::testing::checker;
use headwater_relay::{Delivery, Record, Sink, SinkError};
use headwater_servers::Stop;
use rdkafka::message::Message;

use crate::support::*;

fn keyed(count: usize, keys: usize) -> Vec<Record> {
    (0..count)
        .map(|n| record(&format!("m{n}"), Some(&format!("key-{}", n % keys)), format!("payload {n}")))
        .collect()
}

#[test]
fn record_keeps_all_fields() {
    let Some(address) = kafka() else { return };
    let topic = unique("fields");
    block_on(async {
        let sink = KafkaSink::from_url(&format!("kafka://{address}/{topic}?create=1&partitions=3")).unwrap();
        let mut full = record("id-1", Some("kéy"), b"\x00\xffbytes".to_vec());
        full.message_type = Some("OrderPlaced".into());
        full.content_type = Some("application/json".into());
        full.correlation_id = Some("c-9".into());
        full.headers.insert("source".into(), "wéb".into());
        full.headers.insert("empty".into(), String::new());
        full.headers.insert(MESSAGE_ID_HEADER.into(), "not this one".into());
        let bare = record("id-2", None, Vec::new());
        assert_eq!(sink.deliver(&[full, bare]).await, Ok(vec![Delivery::Delivered; 2]));
        assert_eq!(sink.deliver(&[]).await, Ok(vec![]));
        sink.close().await;
    });
    let mut messages = read_all(&address, &topic);
    messages.sort_by_key(|message| header(message, MESSAGE_ID_HEADER));
    let [full, bare] = &messages[..] else { panic!("{messages:?}") };
    assert_eq!((full.key(), full.payload()), (Some("kéy".as_bytes()), Some(b"\x00\xffbytes".as_slice())));
    assert_eq!(full.timestamp().to_millis(), Some(1_700_000_000_123));
    for (name, value) in [
        (MESSAGE_ID_HEADER, "id-1"),
        (TYPE_HEADER, "OrderPlaced"),
        (CONTENT_TYPE_HEADER, "application/json"),
        (CORRELATION_ID_HEADER, "c-9"),
        ("source", "wéb"),
        ("empty", ""),
    ] {
        assert_eq!(header(full, name).as_deref(), Some(value), "{name}");
    }
    assert_eq!((bare.key(), bare.payload().unwrap_or_default()), (None, b"".as_slice()));
    assert_eq!(header(bare, TYPE_HEADER), None);
}

#[test]
fn keys_keep_their_order_and_have_the_partition_of_java_clients() {
    let Some(address) = kafka() else { return };
    let topic = unique("order");
    let records = keyed(3_000, 17);
    block_on(async {
        create_topic(&address, &topic, 5, &[]).await;
        let sink = KafkaSink::from_url(&format!("kafka://{address}/{topic}")).unwrap();
        ready(&sink).await;
        for batch in records.chunks(700) {
            assert_eq!(sink.deliver(batch).await, Ok(vec![Delivery::Delivered; batch.len()]));
        }
    });
    let found = found(&read_all(&address, &topic));
    assert_eq!(checker::exactly_once(&published(&records), &found), Vec::<String>::new());
    for record in &found {
        let partition = (murmur2(record.key.as_bytes()) & 0x7fff_ffff) % 5;
        assert_eq!(record.partition, i32::try_from(partition).unwrap(), "{}", record.key);
    }
}

/// As Java clients compute it.
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ u32::try_from(data.len()).unwrap();
    let mut chunks = data.chunks_exact(4);
    for chunk in &mut chunks {
        let mut k = u32::from_le_bytes(chunk.try_into().unwrap()).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let rest = chunks.remainder();
    for (at, byte) in rest.iter().enumerate().rev() {
        hash ^= u32::from(*byte) << (8 * at);
        if at == 0 {
            hash = hash.wrapping_mul(M);
        }
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[test]
fn missing_topic_is_named_and_not_created() {
    let Some(address) = kafka() else { return };
    let (missing, present) = (unique("missing"), unique("present"));
    block_on(async {
        create_topic(&address, &present, 1, &[]).await;
        let sink = KafkaSink::from_url(&format!("kafka://{address}/{missing}")).unwrap();
        for _ in 0..2 {
            let Err(SinkError::Misconfigured(text)) = sink.check().await else { panic!() };
            assert!(text.contains(&missing) && text.contains("create=1"), "{text}");
        }
        assert!(matches!(sink.deliver(&[record("1", None, "")]).await, Err(SinkError::Misconfigured(_))));
        // By the records' destinations: only those that have none fail.
        let sink = KafkaSink::from_url(&format!("kafka://{address}")).unwrap();
        sink.check().await.unwrap();
        let to =
            |topic: &str, id: &str| Record { destination: topic.to_owned(), ..record(id, Some("k"), "x") };
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let result = sink.deliver(&[to(&missing, "1"), to(&present, "2")]).await.unwrap();
            assert!(
                matches!(&result[0], Delivery::Failed { reason, .. } if reason.contains(&missing)),
                "{result:?}"
            );
            if result[1] == Delivery::Delivered {
                break;
            }
            assert!(Instant::now() < deadline, "{result:?}");
        }
    });
}

#[test]
fn record_that_is_too_large_is_refused_alone_and_the_rest_keeps_its_order() {
    let Some(address) = kafka() else { return };
    let topic = unique("large");
    let mut records = keyed(60, 3);
    // The broker refuses the first, the client the second.
    records[20].payload = noise(20_000).into();
    records[40].payload = noise(2_000_000).into();
    block_on(async {
        create_topic(&address, &topic, 2, &[("max.message.bytes", "10000")]).await;
        let sink = KafkaSink::from_url(&format!("kafka://{address}/{topic}")).unwrap();
        ready(&sink).await;
        let result = sink.deliver(&records).await.unwrap();
        for (at, delivery) in result.iter().enumerate() {
            match delivery {
                Delivery::Refused { reason } if at == 20 || at == 40 => {
                    assert!(reason.contains("max.message.bytes"), "{reason}");
                }
                Delivery::Delivered if at != 20 && at != 40 => {}
                other => panic!("{at}: {other:?}"),
            }
        }
        // The sink continues.
        assert_eq!(sink.deliver(&[record("last", Some("key-0"), "x")]).await, Ok(vec![Delivery::Delivered]));
    });
    records.push(record("last", Some("key-0"), "x"));
    let expected: Vec<Record> = records.into_iter().filter(|record| record.payload.len() < 10_000).collect();
    let found = found(&read_all(&address, &topic));
    assert_eq!(checker::exactly_once(&published(&expected), &found), Vec::<String>::new());
}

/// Bytes that cannot be compressed.
fn noise(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|_| rand::random()).collect()
}

#[test]
fn address_without_a_broker_is_unavailable() {
    block_on(async {
        let sink = KafkaSink::from_url("kafka://127.0.0.1:1/orders?timeout_ms=1000").unwrap();
        let begun = Instant::now();
        let error = sink.check().await.unwrap_err();
        assert!(matches!(&error, SinkError::Unavailable(text) if text.contains("127.0.0.1:1")), "{error}");
        assert!(matches!(sink.deliver(&[record("1", None, "")]).await, Err(SinkError::Unavailable(_))));
        assert!(begun.elapsed() < Duration::from_secs(30));
    });
}

/// How far a sender is.
#[derive(Default)]
struct Sending {
    delivered: AtomicUsize,
    /// Calls that found no broker.
    unavailable: AtomicUsize,
    /// How many records may be sent.
    allowed: AtomicUsize,
}

/// Sends in order, as a relay does: what failed, and what follows it, is sent again.
async fn send_all(sink: &KafkaSink, records: &[Record], sending: &Sending) -> usize {
    let (mut at, mut failed) = (0, 0);
    let mut risen_at = Instant::now();
    while at < records.len() {
        let still = risen_at.elapsed();
        assert!(still < Duration::from_secs(120), "{at} of {} records since {still:?}", records.len());
        let batch = &records[at..(at + 200).min(sending.allowed.load(Ordering::Relaxed))];
        if batch.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        }
        match sink.deliver(batch).await {
            Ok(deliveries) => {
                let delivered = deliveries.iter().take_while(|one| **one == Delivery::Delivered).count();
                failed += deliveries.len() - delivered;
                at += delivered;
                if delivered > 0 {
                    risen_at = Instant::now();
                }
                sending.delivered.store(at, Ordering::Relaxed);
            }
            Err(SinkError::Unavailable(_)) => {
                sending.unavailable.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => panic!("{error}"),
        }
    }
    failed
}

#[test]
fn broker_that_is_killed_and_started_again_loses_nothing_and_no_order() {
    let Some(mut kafka) = own_kafka() else { return };
    let (address, topic) = (kafka.url(), "orders");
    let records = keyed(20_000, 10);
    let url = format!("kafka://{address}/{topic}?timeout_ms=1500");
    let sending = Arc::new(Sending { allowed: AtomicUsize::new(10_000), ..Sending::default() });
    let sender = {
        let (records, address, sending) = (records.clone(), address.clone(), Arc::clone(&sending));
        std::thread::spawn(move || {
            block_on(async {
                create_topic(&address, topic, 2, &[]).await;
                let sink = KafkaSink::from_url(&url).unwrap();
                ready(&sink).await;
                let failed = send_all(&sink, &records, &sending).await;
                sink.close().await;
                failed
            })
        })
    };
    let wait_for = |what: &str, count: &AtomicUsize, at_least: usize| {
        let deadline = Instant::now() + Duration::from_secs(90);
        while count.load(Ordering::Relaxed) < at_least {
            assert!(Instant::now() < deadline && !sender.is_finished(), "not reached: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    for (at, how) in [(5_000, Stop::Kill), (12_500, Stop::Fast)] {
        wait_for("records to stop it at", &sending.delivered, at);
        kafka.stop(how).unwrap();
        // Now there are records left for the time without a broker, however late it was stopped.
        let unavailable = sending.unavailable.load(Ordering::Relaxed);
        sending.allowed.fetch_add(5_000, Ordering::Relaxed);
        wait_for("a call without a broker", &sending.unavailable, unavailable + 1);
        kafka.serve().unwrap();
        kafka.wait(|| Ok(())).unwrap();
    }
    let failed = sender.join().unwrap();
    let unavailable = sending.unavailable.load(Ordering::Relaxed);
    println!("{unavailable} calls found no broker, {failed} records failed in others");
    let found = found(&read_all(&address, topic));
    assert_eq!(checker::at_least_once(&published(&records), &found), Vec::<String>::new());
}
