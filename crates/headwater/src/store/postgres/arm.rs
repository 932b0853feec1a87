//! Wake-up across processes: LISTEN, the flag that asks publishers to NOTIFY, and polling where LISTEN cannot work.
//!
//! Why no wake-up is missed: the consumer raises its flag, commits, and then claims once more. A publisher whose
//! statement ran after that commit sees the flag and notifies. A publisher whose statement ran before had already taken its
//! offsets; the claim finds the messages, or finds offsets taken but not committed, and returns a short `recheck_after`.
//!
//! Where notifications are not reliable (a pooler in between, or a server that allows PREPARE TRANSACTION, in which NOTIFY is
//! forbidden) one cheap query per process polls for new messages in all topics with waiters.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio_postgres::AsyncMessage;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::PostgresStore;
use super::connect::Connections;
use super::hosts::{Driven, Hosts};
use crate::error::Result;
use crate::namespace::Namespace;
use crate::store::Wake;
use crate::store::wake::Hub;
use crate::topic::TopicId;

/// How long a raised flag is valid. It is not lowered when work arrives: it expires.
const FLAG: Duration = Duration::from_secs(40);
/// A flag with less than this left is raised again before waiting: each waiter arms again after the safety poll,
/// a few seconds later at most.
const FLAG_LEFT_MIN: Duration = Duration::from_secs(20);
/// Flags of other awaited topics are raised in the same statement if they have less than this left.
const FLAG_LEFT_ALONG: Duration = Duration::from_secs(32);
/// After work was found, a topic is polled for this long before its flag is raised: a busy topic's publishers are
/// spared NOTIFY, which serialises commits across the cluster.
const BUSY: Duration = Duration::from_millis(50);
/// How often to poll for new messages where notifications are not reliable.
const POLL: Duration = Duration::from_millis(25);
/// How often to poll once there were no new messages for [`POLL_FOR`]: idle processes must cost next to nothing.
const POLL_IDLE: Duration = Duration::from_millis(200);
/// How long the fast polling continues after a new message.
const POLL_FOR: Duration = Duration::from_secs(2);
/// How long a probe may take to come back before LISTEN counts as not working.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The flags that this process raised, per topic.
pub(super) struct Flags {
    waiter_id: Uuid,
    topics: Mutex<HashMap<TopicId, Flag>>,
    /// Held while flags are raised: callers that wait for it may find their own flags raised.
    raising: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Flag {
    raised_until: Option<Instant>,
    /// [`Shared::hearing`] when it was raised: after a crash of the server or a failover the flag is lost.
    raised_in: u64,
    found_at: Option<Instant>,
}

impl Flags {
    pub(super) fn new() -> Self {
        Flags { waiter_id: Uuid::now_v7(), topics: Mutex::default(), raising: tokio::sync::Mutex::default() }
    }

    /// A claim found work of this topic.
    pub(super) fn found(&self, topic: TopicId) {
        self.topics.lock().expect("no panic while held").entry(topic).or_default().found_at =
            Some(Instant::now());
    }

    /// The topics whose flag must be raised before waiting; and, if a topic had work a moment ago, how long to wait at most
    /// before polling instead.
    fn plan(
        &self,
        topics: &[TopicId],
        hearing: u64,
        awaited: impl FnOnce() -> Vec<TopicId>,
    ) -> (Vec<i32>, Option<Duration>) {
        let now = Instant::now();
        let mut flags = self.topics.lock().expect("no panic while held");
        let (mut raise, mut poll) = (Vec::new(), None::<Duration>);
        for topic in topics {
            let flag = flags.entry(*topic).or_default();
            let stands = flag.raised_in == hearing
                && flag.raised_until.is_some_and(|until| until >= now + FLAG_LEFT_MIN);
            let quiet = flag.found_at.map(|at| now - at).filter(|quiet| *quiet < BUSY);
            match quiet {
                Some(quiet) => {
                    let next = (quiet / 2).clamp(Duration::from_millis(1), Duration::from_millis(20));
                    poll = Some(poll.map_or(next, |poll| poll.min(next)));
                }
                None if stands => {}
                None => raise.push(topic.0),
            }
        }
        if !raise.is_empty() {
            // Only flags already raised: a topic without a flag may be busy, and its publishers are spared NOTIFY.
            let is_ending = |topic: &TopicId| {
                flags.get(topic).is_some_and(|flag| {
                    let ends = |until| flag.raised_in != hearing || until < now + FLAG_LEFT_ALONG;
                    flag.raised_until.is_some_and(ends)
                })
            };
            raise.extend(awaited().into_iter().filter(is_ending).map(|topic| topic.0));
            raise.sort_unstable();
            raise.dedup();
        }
        (raise, poll)
    }

    fn raised(&self, topics: &[i32], hearing: u64, at: Instant) {
        let mut flags = self.topics.lock().expect("no panic while held");
        for topic in topics {
            let flag = flags.entry(TopicId(*topic)).or_default();
            (flag.raised_until, flag.raised_in) = (Some(at + FLAG), hearing);
        }
    }
}

pub(super) async fn arm(store: &PostgresStore, topics: &[TopicId]) -> Result<Wake> {
    // Register with the hub first, so that a notification between here and the wait is kept.
    let wake = store.hub.arm(topics);
    store.listener.ensure(&store.connections, &store.statements.arm_new_messages).await;
    // Read before the flag is raised: a flag lost with its server meanwhile then counts as raised before the interruption.
    let hearing = store.listener.shared.hearing.load(Ordering::SeqCst);
    let plan = || store.flags.plan(topics, hearing, || store.hub.awaited());
    let (mut raise, mut poll) = plan();
    if !raise.is_empty() {
        let _one = store.flags.raising.lock().await;
        (raise, poll) = plan();
        if !raise.is_empty() {
            let asked_at = Instant::now();
            let for_ms = i64::try_from(FLAG.as_millis()).expect("a few seconds");
            let (doing, asked) = ("raising the waiter's flag", &store.statements.arm_raise_flag);
            let params: [&(dyn ToSql + Sync); 3] = [&raise, &store.flags.waiter_id, &for_ms];
            store.connections.query(doing, asked, &params).await?;
            store.flags.raised(&raise, hearing, asked_at);
        }
    }
    Ok(wake.at_most(poll))
}

/// The one connection that listens for the whole process, and the polling task beside it; started by the first waiter.
pub(super) struct Listener {
    shared: Arc<Shared>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    hosts: Hosts,
    /// The servers of the pools: when the pools leave a server, the listener does too.
    pools: Hosts,
    channel: String,
    hub: Arc<Hub>,
    works: AtomicBool,
    /// Counts the connections on which LISTEN has worked.
    hearing: AtomicU64,
    /// Whether the server may allow PREPARE TRANSACTION: then not every publish notifies.
    may_prepare: AtomicBool,
    /// Notified when LISTEN stops working.
    deaf: Notify,
    /// Set once the first attempt to listen has succeeded or failed.
    settled: AtomicBool,
    settled_now: Notify,
}

impl Listener {
    pub(super) fn new(hosts: Hosts, pools: Hosts, namespace: &Namespace, hub: Arc<Hub>) -> Self {
        let shared = Shared {
            hosts,
            pools,
            channel: format!("headwater:{namespace}"),
            hub,
            works: AtomicBool::new(false),
            hearing: AtomicU64::new(0),
            may_prepare: AtomicBool::new(true),
            deaf: Notify::new(),
            settled: AtomicBool::new(false),
            settled_now: Notify::new(),
        };
        Listener { shared: Arc::new(shared), tasks: Mutex::new(Vec::new()) }
    }

    /// Starts listening and polling, once.
    async fn ensure(&self, connections: &Connections, statement: &str) {
        {
            let mut tasks = self.tasks.lock().expect("no panic while held");
            if tasks.is_empty() {
                tasks.push(tokio::spawn(run(Arc::clone(&self.shared))));
                let poll = poll_topics(Arc::clone(&self.shared), connections.clone(), statement.to_owned());
                tasks.push(tokio::spawn(poll));
            }
        }
        let settled = self.shared.settled_now.notified();
        if !self.shared.settled.load(Ordering::SeqCst) {
            // Not for long: until LISTEN works the polling task wakes waiters.
            let _ = tokio::time::timeout(PROBE_TIMEOUT, settled).await;
        }
    }

    pub(super) fn stop(&self) {
        for task in self.tasks.lock().expect("no panic while held").drain(..) {
            task.abort();
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Polls for new messages while there are waiters and notifications are not reliable. Idle on a server without prepared
/// transactions while LISTEN works.
async fn poll_topics(shared: Arc<Shared>, connections: Connections, statement: String) {
    let mut may_prepare = None;
    let mut seen: HashMap<i32, i64> = HashMap::new();
    let mut moved_at = Instant::now();
    loop {
        if may_prepare == Some(false) && shared.works.load(Ordering::SeqCst) {
            shared.deaf.notified().await;
            // The server may have been restarted with another setting.
            may_prepare = None;
            shared.may_prepare.store(true, Ordering::SeqCst);
        }
        tokio::time::sleep(if moved_at.elapsed() < POLL_FOR { POLL } else { POLL_IDLE }).await;
        if may_prepare.is_none() {
            let asked = connections.query("reading a setting", "SHOW max_prepared_transactions", &[]).await;
            may_prepare = asked.ok().map(|rows| rows[0].get::<_, &str>(0) != "0");
            shared.may_prepare.store(may_prepare.unwrap_or(true), Ordering::SeqCst);
        }
        let topics: Vec<i32> = shared.hub.awaited().iter().map(|topic| topic.0).collect();
        if topics.is_empty() {
            continue;
        }
        match connections.query("polling for new messages", &statement, &[&topics]).await {
            Ok(rows) => {
                for row in &rows {
                    let (topic, last): (i32, i64) = (row.get("topic_id"), row.get("last_taken"));
                    // Once for each change: for offsets taken but not committed the claim itself returns `recheck_after`.
                    if seen.insert(topic, last) != Some(last) {
                        moved_at = Instant::now();
                        shared.hub.wake(TopicId(topic));
                    }
                }
            }
            // Calls of consumers get the same error and report it.
            Err(error) => tracing::debug!(%error, "poll for new messages failed"),
        }
    }
}

/// Listens until stopped; reconnects with back-off. Notifications may be lost while it is not connected, so it wakes all
/// waiters.
async fn run(shared: Arc<Shared>) {
    let mut pause = Duration::from_millis(100);
    loop {
        let heard = listen(&shared).await;
        shared.works.store(false, Ordering::SeqCst);
        shared.deaf.notify_one();
        shared.settle();
        shared.hub.wake_all();
        if heard {
            pause = Duration::from_millis(100);
        }
        tracing::debug!(
            channel = shared.channel,
            ?pause,
            "listening interrupted, polling until it works again"
        );
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(5));
    }
}

/// Listens on one connection until it ends. True if it ever received its own probe.
async fn listen(shared: &Shared) -> bool {
    let mut leaving = shared.pools.leaving();
    let (sender, mut notices) = mpsc::channel::<String>(1_024);
    let connect = shared.hosts.connect(|connection| forward(connection, sender.clone()));
    let Ok(Ok((client, _))) = tokio::time::timeout(shared.hosts.connect_timeout(), connect).await else {
        return false;
    };
    // The connection has the only sender now, so the channel closes with the connection.
    drop(sender);
    // Through a pooler in transaction mode LISTEN succeeds but receives nothing: only the probe proves that it works.
    let probe = format!("probe {}", Uuid::now_v7());
    let listen = format!("LISTEN \"{}\"", shared.channel);
    if client.batch_execute(&listen).await.is_err()
        || client.query_one(super::statements::sql!(arm.probe), &[&shared.channel, &probe]).await.is_err()
    {
        return false;
    }
    let deadline = tokio::time::Instant::now() + PROBE_TIMEOUT;
    let mut works = false;
    loop {
        let notice = tokio::select! {
            notice = notices.recv() => notice,
            () = tokio::time::sleep_until(deadline), if !works => None,
            // The server may no longer be the primary, and would send no notifications.
            Ok(()) = leaving.changed() => None,
        };
        match notice {
            None => return works,
            Some(payload) if payload == probe => {
                works = true;
                // Earlier flags may be lost with their server: all waiters are woken and raise theirs again. Until now the
                // polling task served them.
                shared.hearing.fetch_add(1, Ordering::SeqCst);
                shared.works.store(true, Ordering::SeqCst);
                shared.settle();
                shared.hub.wake_all();
            }
            Some(payload) => {
                if let Ok(topic) = payload.parse() {
                    shared.hub.wake(TopicId(topic));
                }
            }
        }
    }
}

/// Runs a connection and forwards its notifications. Ends with the connection, which ends with its client.
fn forward(mut connection: Driven, sender: mpsc::Sender<String>) -> JoinHandle<()> {
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notice) = message
                && sender.send(notice.payload().to_owned()).await.is_err()
            {
                return;
            }
        }
    })
}

impl Shared {
    fn settle(&self) {
        self.settled.store(true, Ordering::SeqCst);
        self.settled_now.notify_waiters();
    }
}

#[cfg(test)]
mod rules {
    use super::*;

    fn plan(flags: &Flags, hearing: u64) -> (Vec<i32>, Option<Duration>) {
        flags.plan(&[TopicId(1)], hearing, Vec::new)
    }

    #[test]
    fn a_flag_is_raised_again_once_listening_was_interrupted() {
        let (flags, topic) = (Flags::new(), TopicId(1));
        flags.raised(&[topic.0], 0, Instant::now());
        assert_eq!(plan(&flags, 0), (vec![], None));
        assert_eq!(plan(&flags, 1), (vec![1], None), "the server may have lost the flag");
        flags.found(topic);
        assert!(plan(&flags, 1).1.is_some(), "the publisher may not notify, so the wait is bounded");
    }

    #[test]
    fn flags_that_end_soon_are_raised_along_and_no_others() {
        let (flags, now) = (Flags::new(), Instant::now());
        for (topic, left_s) in [(1, 10), (2, 30), (3, 39)] {
            flags.raised(&[topic], 0, now + Duration::from_secs(left_s) - FLAG);
        }
        let plan =
            |topic, hearing| flags.plan(&[TopicId(topic)], hearing, || (1..=4).map(TopicId).collect()).0;
        assert_eq!(plan(1, 0), [1, 2], "the third has enough left, and the fourth was never raised");
        assert_eq!(plan(2, 0), [0; 0], "no flag is raised before it is due");
        assert_eq!(plan(4, 0), [1, 2, 4]);
        assert_eq!(plan(2, 1), [1, 2, 3], "the server may have lost all flags");
    }
}
