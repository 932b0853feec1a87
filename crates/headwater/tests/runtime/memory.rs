//! Memory of consumers with large messages, measured in separate processes.
#![cfg(target_os = "linux")]

use std::process::Command;
use std::time::Duration;

use headwater::settle::Verdict;
use headwater::{Handling, Headwater, Message, NewMessage, OpenOptions};

use crate::each::{DEADLINE, Place, Seen, on_each, settled};

on_each!(
    a_running_consumer_holds_no_more_than_it_may,
    a_running_consumer_with_lanes_holds_no_more_than_it_may,
    a_pulled_consumer_holds_no_more_than_it_may,
);

const MIB: usize = 1024 * 1024;

/// What is consumed, and how much memory that may take.
#[derive(Clone, Copy)]
struct Load {
    messages: usize,
    payload_bytes: usize,
    buffer_bytes_max: usize,
    peak_mib_max: usize,
}

/// 160 MiB in total. A process may take 16 MiB of messages, those that a busy machine reads and frees late, and its own memory.
const MODERATE: Load =
    Load { messages: 20, payload_bytes: 8 * MIB, buffer_bytes_max: 16 * MIB, peak_mib_max: 128 };
/// 1.5 GB in total.
const LARGE: Load =
    Load { messages: 30, payload_bytes: 50_000_000, buffer_bytes_max: 64 * MIB, peak_mib_max: 200 };

/// The environment variables of a child process.
const JOB: &str = "HEADWATER_MEMORY_JOB";
const URL: &str = "HEADWATER_MEMORY_URL";

async fn a_running_consumer_holds_no_more_than_it_may(place: Place) {
    peak_of(place, "running", 1, MODERATE).await;
}

async fn a_running_consumer_with_lanes_holds_no_more_than_it_may(place: Place) {
    peak_of(place, "running", 2, MODERATE).await;
}

async fn a_pulled_consumer_holds_no_more_than_it_may(place: Place) {
    peak_of(place, "pulled", 1, MODERATE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "writes 1.5 GB four times"]
async fn large_messages_take_no_more_than_200_mib() {
    for job in ["running", "pulled"] {
        for place in [Place::sqlite(), Place::postgres()].into_iter().flatten() {
            println!("{}", if place.url().starts_with("sqlite") { "sqlite" } else { "postgres" });
            peak_of(place, job, 1, LARGE).await;
        }
    }
}

/// Publishes, lets a child process consume everything, and checks its peak memory.
async fn peak_of(place: Place, job: &str, lanes: u16, load: Load) {
    let headwater = place.open().await;
    let mut builder = headwater.topic("large").payload_bytes_max(load.payload_bytes);
    if lanes > 1 {
        builder = builder.ordered_by_key().lanes(lanes);
    }
    builder.create().await.unwrap();
    // Hard to compress: a payload that compresses well would be small in transit.
    let payload: Vec<u8> =
        (0..load.payload_bytes as u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    let producer = headwater.store();
    for n in 0..load.messages {
        // With lanes some messages share a key, and are delivered in order.
        let key = if lanes > 1 { n % 4 } else { n };
        let message = NewMessage { key: Some(key.to_string()), ..NewMessage::new(payload.clone()) };
        producer.publish(&headwater::TopicName::new("large").unwrap(), &[message]).await.unwrap();
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "memory::child", "--nocapture"])
        .env(JOB, format!("{job} {} {} {}", load.messages, load.payload_bytes, load.buffer_bytes_max))
        .env(URL, place.url())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&child.stdout).into_owned();
    assert!(child.status.success(), "{printed}{}", String::from_utf8_lossy(&child.stderr));
    let peak = printed.split_once("peak ").expect("its peak is printed").1.split_whitespace().next().unwrap();
    let peak_mib = peak.parse::<usize>().unwrap() / 1024;
    println!("{job}: peak {peak_mib} MiB");
    assert!(peak_mib < load.peak_mib_max, "{peak_mib} MiB");
    settled(&headwater, "large", "g").await;
    place.leave(&headwater).await;
}

/// The body of a child process; without a job it does nothing, so that a test runner may list it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let Ok(job) = std::env::var(JOB) else { return };
    let (job, load) = job.split_once(' ').unwrap();
    let load: Vec<usize> = load.split(' ').map(|number| number.parse().unwrap()).collect();
    let [messages, payload_bytes, buffer_bytes_max] = load[..] else { panic!("three numbers: {load:?}") };
    let check = move |message: &Message| assert_eq!(message.payload.len(), payload_bytes);
    let options = OpenOptions::default().maintenance(false);
    let headwater = Headwater::open_with(&std::env::var(URL).unwrap(), options).await.unwrap();
    let consumer = headwater.consumer("large", "g").buffer_bytes_max(buffer_bytes_max);
    if job == "pulled" {
        let mut consumer = consumer.open().await.unwrap();
        let mut count = 0;
        while count < messages {
            let batch = consumer.next(DEADLINE).await.unwrap().expect("more waits");
            count += batch.messages().len();
            let handle = |message: Message, _| {
                check(&message);
                std::future::ready(Verdict::Done)
            };
            batch.handle(handle).await.unwrap();
        }
        consumer.close().await.unwrap();
    } else {
        let seen: Seen<(Option<String>, i64)> = Seen::default();
        let noted = seen.clone();
        let member = Handling::one(move |message: Message, _| {
            let noted = noted.clone();
            async move {
                check(&message);
                noted.add((message.key.clone(), message.offset.0));
                Ok(())
            }
        });
        let running = consumer.handling("one", member).run().await.unwrap();
        let mut all = seen.reach(messages).await;
        // A stable sort: per key in the order of delivery.
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        assert!(all.is_sorted(), "in order: {all:?}");
        let mut offsets: Vec<i64> = all.into_iter().map(|(_, offset)| offset).collect();
        offsets.sort_unstable();
        assert!(offsets.into_iter().eq(1..=messages as i64), "each once");
        // Every message is handled, but a lane may still have to claim the last offsets, which are another lane's messages.
        settled(&headwater, "large", "g").await;
        running.shutdown(Duration::from_secs(10)).await.unwrap();
    }
    headwater.close().await.unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    println!("\npeak {}", peak.trim());
}
