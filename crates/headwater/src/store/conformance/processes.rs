//! Several real processes on one store: they share the work, and any of them may be killed at any moment.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::case::{Case, DEADLINE, Scene, group, offsets_of, owner, pause, take_over};
use super::effects::{self, Effects, Say};
use crate::error::{self, ErrorKind};
use crate::lease::{ClaimRequest, Want};
use crate::message::NewMessage;
use crate::name::TopicName;
use crate::settle::{Settlement, Verdict};
use crate::store::{OpenOptions, Store};
use crate::subscription::Start;
use crate::topic::TopicSettings;

/// The environment variables of a child process: its job, the store and how many messages.
const JOB: &str = "HEADWATER_WORKER_JOB";
const URL: &str = "HEADWATER_WORKER_URL";
const TOTAL: &str = "HEADWATER_WORKER_TOTAL";
/// The prefix of its lines, to distinguish them from those of a test runner.
const MARK: &str = "headwater-worker";

/// The body of a child process: does the job its environment names, and prints what it did. Without a job it does
/// nothing, so that a test runner may list it.
pub fn work() {
    let Ok(job) = std::env::var(JOB) else { return };
    let url = std::env::var(URL).expect("a worker has a URL");
    let total = std::env::var(TOTAL).ok().and_then(|total| total.parse().ok()).unwrap_or_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime starts").block_on(async {
        let store = crate::store::open(&url, OpenOptions::default()).await.expect("the store opens");
        let topic = TopicName::new("orders").expect("a valid name");
        match job.as_str() {
            "publish" => publish(store.as_ref(), &topic, total).await,
            "consume" => consume(store.as_ref(), &topic, total).await,
            "handle" => handle(&store, &topic, total).await,
            "claim and hang" => claim_and_hang(store.as_ref(), &topic).await,
            "prove, claim and hang" => {
                let holder = owner("hanging process");
                store
                    .heartbeat(&holder, Some(Duration::from_secs(15)), &[])
                    .await
                    .expect("the owner is known");
                take_over(store.as_ref(), &holder).await;
                claim_and_hang(store.as_ref(), &topic).await;
            }
            other => panic!("no such job: {other}"),
        }
        store.close().await.expect("the store closes");
    });
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // A line of its own: a test runner may have left its line open.
    writeln!(out, "\n{MARK} {line}").and_then(|()| out.flush()).expect("the parent reads");
}

/// Publishes `total` messages in batches of five, and prints each offset only after it was acknowledged.
async fn publish(store: &dyn Store, topic: &TopicName, total: i64) {
    for _ in 0..total / 5 {
        let batch = vec![NewMessage::new(std::process::id().to_string()); 5];
        for published in store.publish(topic, &batch).await.expect("published") {
            say(&published.offset.expect("not delayed").to_string());
        }
    }
}

/// Calls again while that may help: a store that many processes write to may be busy for too long.
async fn insist<T>(expected: &str, call: impl AsyncFn() -> error::Result<T>) -> T {
    let until = Instant::now() + DEADLINE;
    loop {
        match call().await {
            Err(error) if error.is_retryable() && Instant::now() < until => pause().await,
            answer => return answer.expect(expected),
        }
    }
}

/// Consumes until everything up to `total` is done, and prints each offset before it acks.
async fn consume(store: &dyn Store, topic: &TopicName, total: i64) {
    let subscription = store.subscribe(topic, &group("workers"), Start::Beginning).await.expect("subscribed");
    let id = subscription.subscription_id;
    let request = ClaimRequest {
        owner: owner(&format!("process {}", std::process::id())),
        wants: vec![Want::new(id, 7)],
    };
    let until = Instant::now() + DEADLINE;
    loop {
        let wake = store.arm(&[subscription.topic.topic_id]).await.expect("armed");
        let leases = insist("claimed", async || store.claim(&request).await).await.leases;
        for lease in &leases {
            let messages = store.fetch(lease.topic_id, lease.range).await.expect("fetched");
            messages.iter().for_each(|message| say(&message.offset.to_string()));
            let done = [Settlement::ack_all(lease)];
            let answers = insist("settled", async || store.settle(&done).await).await;
            assert!(answers[0].is_ok(), "{answers:?}");
        }
        let status = store.subscriptions(topic).await.expect("listed");
        if status[0].floor.0 >= total {
            return;
        }
        assert!(Instant::now() < until, "{status:?}");
        if leases.is_empty() {
            wake.wait(Duration::from_millis(200)).await;
        }
    }
}

/// Handles in the store's own transaction until everything up to `total` is done; prints each offset when its effect
/// is written, in the middle of the transaction.
async fn handle(store: &Arc<dyn Store>, topic: &TopicName, total: i64) {
    let subscription = store.subscribe(topic, &group("workers"), Start::Beginning).await.expect("subscribed");
    let scene = Scene { store: Arc::clone(store), topic: topic.clone(), subscription };
    let until = Instant::now() + 2 * DEADLINE;
    while scene.status().await.floor.0 < total {
        assert!(Instant::now() < until, "{:?}", scene.status().await);
        for lease in scene.claim(&format!("process {}", std::process::id()), 5).await {
            let writes: Say = Arc::new(|message| {
                say(&message.offset.to_string());
                Verdict::Done
            });
            match effects::handle(&scene, &lease, "mailer", writes).await {
                Err(error) => assert_eq!(error.kind(), ErrorKind::LeaseLost, "{error:?}"),
                Ok(verdicts) => assert!(!verdicts.is_empty()),
            }
        }
        pause().await;
    }
}

/// Claims one message, prints its offset, and hangs.
async fn claim_and_hang(store: &dyn Store, topic: &TopicName) {
    let subscription = store.subscribe(topic, &group("workers"), Start::Beginning).await.expect("subscribed");
    let want = Want::new(subscription.subscription_id, 1);
    let request = ClaimRequest { owner: owner("hanging process"), wants: vec![want] };
    let leases = store.claim(&request).await.expect("claimed").leases;
    say(&leases[0].range.first.to_string());
    tokio::time::sleep(10 * DEADLINE).await;
}

/// A process that sends one heartbeat, proves that it is alive, and holds one message.
pub(super) async fn holder(case: &Case) -> Option<Child> {
    let mut child = spawn(case, "prove, claim and hang", 0)?;
    let mut lines = printed(&mut child);
    let claimed = tokio::task::spawn_blocking(move || lines.next());
    assert!(claimed.await.expect("the child prints").is_some(), "the child claims");
    Some(child)
}

fn spawn(case: &Case, job: &str, total: i64) -> Option<Child> {
    let mut command: Command = case.harness().worker()?;
    command.env(JOB, job).env(URL, case.harness().url()).env(TOTAL, total.to_string());
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    Some(child.expect("a child process starts"))
}

/// The offsets a child prints, as they arrive, until it ends.
fn printed(child: &mut Child) -> impl Iterator<Item = i64> + use<> {
    let out = child.stdout.take().expect("the output is piped");
    BufReader::new(out).lines().map_while(Result::ok).filter_map(|line| {
        let offset = line.strip_prefix(MARK)?;
        Some(offset.trim().parse().expect("a child prints offsets"))
    })
}

async fn real_scene(case: &Case, settings: TopicSettings) -> Scene {
    let store = case.open_with(case.real_time_options()).await.expect("the store opens");
    Scene::new(store, "orders", settings).await
}

/// Two processes publish and two consume, all at once: every message is delivered once.
pub async fn several_processes_share_one_store(case: &Case) {
    const EACH: i64 = 200;
    let scene = real_scene(case, TopicSettings::default()).await;
    let jobs = [("publish", EACH), ("consume", 2 * EACH), ("publish", EACH), ("consume", 2 * EACH)];
    let mut readers = Vec::new();
    for (job, total) in jobs {
        let Some(mut child) = spawn(case, job, total) else {
            println!("skipped: this harness has no worker processes");
            return;
        };
        let lines = printed(&mut child);
        readers.push(tokio::task::spawn_blocking(move || {
            let offsets: Vec<_> = lines.collect();
            (job, offsets, child.wait().expect("the child ends").success())
        }));
    }
    let (mut published, mut consumed) = (HashSet::new(), HashSet::new());
    for reader in readers {
        let (job, offsets, success) = reader.await.unwrap();
        assert!(success, "a process with the job {job} failed");
        let seen = if job == "publish" { &mut published } else { &mut consumed };
        for offset in offsets {
            assert!(seen.insert(offset), "{job}: {offset} appeared twice");
        }
    }
    assert_eq!(published, (1..=2 * EACH).collect());
    assert_eq!(consumed, published);
    let status = scene.status().await;
    assert_eq!((status.floor.0, status.reassigned), (2 * EACH, 0));
}

/// A publisher is killed while it publishes: what was acknowledged is stored, and batches are stored whole or not at
/// all.
pub async fn what_a_killed_process_published_is_stored(case: &Case) {
    let scene = real_scene(case, TopicSettings::default()).await;
    for _ in 0..3 {
        let Some(mut child) = spawn(case, "publish", 1_000_000) else {
            println!("skipped: this harness has no worker processes");
            return;
        };
        let mut lines = printed(&mut child);
        let offsets = tokio::task::spawn_blocking(move || {
            let mut offsets: Vec<_> = lines.by_ref().take(60).collect();
            child.kill().expect("the child is killed");
            child.wait().expect("the child ends");
            offsets.extend(lines);
            offsets
        });
        let acknowledged = offsets.await.unwrap();
        assert!(acknowledged.len() >= 60);
        let last = *acknowledged.last().unwrap();
        let there: HashSet<_> = offsets_of(&scene.fetch_range(1, last + 1_000).await).into_iter().collect();
        for offset in acknowledged {
            assert!(there.contains(&offset), "{offset} was acknowledged and is gone");
        }
        assert_eq!(there.len() % 5, 0, "a batch is stored whole or not at all");
    }
    assert_eq!(scene.publish(5).await.len(), 5);
    // The server may still end a transaction of the process that was killed last: what is stored is read again.
    let (until, mut delivered) = (Instant::now() + DEADLINE, Vec::new());
    loop {
        delivered.extend(offsets_of(&scene.drain("a").await));
        delivered.sort_unstable();
        let stored = offsets_of(&scene.fetch_range(1, 1_000_000).await);
        if delivered == stored {
            break;
        }
        assert!(Instant::now() < until, "delivered {delivered:?} of {stored:?}");
        pause().await;
    }
}

/// Consumers are killed repeatedly in the middle of their transactions: every effect is written once.
pub async fn what_killed_processes_handled_has_its_effect_once(case: &Case) {
    const TOTAL: usize = 120;
    let settings = TopicSettings { lease: Duration::from_millis(1_000), ..TopicSettings::default() };
    let scene = real_scene(case, settings).await;
    let effects = Effects::new(case, &scene.store).await;
    scene.publish(TOTAL).await;
    let total = i64::try_from(TOTAL).expect("a small number");
    let mut kills = 0;
    for round in 0..5 {
        let Some(mut child) = spawn(case, "handle", total) else {
            println!("skipped: this harness has no worker processes");
            return;
        };
        let mut lines = printed(&mut child);
        let killed = tokio::task::spawn_blocking(move || {
            // At another point of a transaction each time.
            let some = lines.by_ref().take(7 + 4 * round).count();
            child.kill().expect("the child is killed");
            child.wait().expect("the child ends");
            some
        });
        // None if this process stalled before the last kill, and that child handled all the rest.
        kills += usize::from(killed.await.unwrap() > 0);
    }
    assert!(kills > 0, "none was killed while handling");
    handle(&scene.store, &scene.topic, total).await;
    let mut expected: Vec<String> = (1..=TOTAL).map(|n| n.to_string()).collect();
    expected.sort_unstable();
    assert_eq!(effects.seen().await, expected);
    assert!(scene.status().await.reassigned > 0, "no process held a lease when it was killed");
}

/// A consumer is killed while it holds a lease: when the lease expires, another process continues.
pub async fn a_killed_consumers_lease_is_reassigned(case: &Case) {
    let settings = TopicSettings { lease: Duration::from_secs(5), ..TopicSettings::default() };
    let scene = real_scene(case, settings).await;
    scene.publish(1).await;
    let Some(mut child) = spawn(case, "claim and hang", 0) else {
        println!("skipped: this harness has no worker processes");
        return;
    };
    let mut lines = printed(&mut child);
    let killed = tokio::task::spawn_blocking(move || {
        let offset = lines.next();
        child.kill().expect("the child is killed");
        child.wait().expect("the child ends");
        offset
    });
    assert_eq!(killed.await.unwrap(), Some(1));
    let until = Instant::now() + DEADLINE;
    let lease = loop {
        if let Some(lease) = scene.claim("survivor", 1).await.pop() {
            break lease;
        }
        assert!(Instant::now() < until, "the lease was never handed out again");
        pause().await;
    };
    assert_eq!((lease.attempt, lease.suspect, lease.range.first.0), (2, true, 1));
    scene.ack(&lease).await;
    assert_eq!(scene.status().await.reassigned, 1);
}
