//! Wake-up across processes: LISTEN, the flag that asks publishers to NOTIFY, and polling where LISTEN cannot work.
//!
//! Why no wake-up is missed: the consumer raises its flag, commits, and then claims once more. A publisher whose
//! statement ran after that commit sees the flag and notifies. One whose statement ran before had taken its offsets
//! before; the claim finds them, or finds them taken and not there yet, and answers with a short `recheck_after`.
//!
//! Where notifications cannot be relied on (a pooler in between, or a server that allows PREPARE TRANSACTION, which
//! forbids NOTIFY in it) one cheap query per process looks for news of all topics that somebody waits for.

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

/// How long a raised flag stands. It is not lowered when work comes: it runs out.
const FLAG: Duration = Duration::from_secs(40);
/// A flag with less than this left is raised again before waiting: each waiter arms again after the safety poll
/// and a few seconds at most.
const FLAG_LEFT_MIN: Duration = Duration::from_secs(20);
/// Flags of other awaited topics are raised along if they have less than this left: one statement for all topics.
const FLAG_LEFT_ALONG: Duration = Duration::from_secs(32);
/// After work was found, a topic is polled for this long before its flag is raised: a busy topic's publishers are
/// spared NOTIFY, which serialises commits across the cluster.
const BUSY: Duration = Duration::from_millis(50);
/// How often to look for news where nobody may be able to notify us.
const POLL: Duration = Duration::from_millis(25);
/// The same once nothing has moved for a while: idle processes must cost next to nothing.
const POLL_IDLE: Duration = Duration::from_millis(200);
/// How long "a while" is.
const POLL_FOR: Duration = Duration::from_secs(2);
/// How long a probe may take to come back before LISTEN counts as not working.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// What this process knows of its flags, per topic.
pub(super) struct Flags {
    waiter_id: Uuid,
    topics: Mutex<HashMap<TopicId, Flag>>,
    /// Held while flags are raised: those that come meanwhile find their own among them.
    raising: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Flag {
    raised_until: Option<Instant>,
    /// The hearing it was raised in: with a server that crashed, or another one, the flag is gone.
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

    /// The topics whose flag must be raised before waiting, and for how long to wait at most instead while a topic
    /// was busy a moment ago.
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
            // Only what is raised already: a topic without a flag may be busy, and its publishers are spared.
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
    // First the waiting place, so that a notification between here and the wait is kept.
    let wake = store.hub.arm(topics);
    store.listener.ensure(&store.connections, &store.statements.arm_news).await;
    // Before the flag is raised: one that is lost with its server meanwhile counts as raised in an earlier hearing.
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

/// The one connection that listens for the whole process, and the look-out beside it; made when somebody first waits.
pub(super) struct Listener {
    shared: Arc<Shared>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    hosts: Hosts,
    /// Those of the pools: a server that is left there is left here too.
    pools: Hosts,
    channel: String,
    hub: Arc<Hub>,
    works: AtomicBool,
    /// How often LISTEN has begun to work.
    hearing: AtomicU64,
    /// Whether the server may allow PREPARE TRANSACTION: then not every publish notifies.
    may_prepare: AtomicBool,
    /// Told when LISTEN stops working.
    deaf: Notify,
    /// Told once the first attempt to listen has succeeded or failed.
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

    /// Starts listening if nobody has yet.
    async fn ensure(&self, connections: &Connections, news: &str) {
        {
            let mut tasks = self.tasks.lock().expect("no panic while held");
            if tasks.is_empty() {
                tasks.push(tokio::spawn(run(Arc::clone(&self.shared))));
                let look = look_out(Arc::clone(&self.shared), connections.clone(), news.to_owned());
                tasks.push(tokio::spawn(look));
            }
        }
        let settled = self.shared.settled_now.notified();
        if !self.shared.settled.load(Ordering::SeqCst) {
            // Not for long: until it works the look-out looks.
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

/// Looks for news while somebody waits and notifications may not come. Nothing to do on a server without prepared
/// transactions while LISTEN works.
async fn look_out(shared: Arc<Shared>, connections: Connections, news: String) {
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
            let asked =
                connections.query("asking for a setting", "SHOW max_prepared_transactions", &[]).await;
            may_prepare = asked.ok().map(|rows| rows[0].get::<_, &str>(0) != "0");
            shared.may_prepare.store(may_prepare.unwrap_or(true), Ordering::SeqCst);
        }
        let topics: Vec<i32> = shared.hub.awaited().iter().map(|topic| topic.0).collect();
        if topics.is_empty() {
            continue;
        }
        match connections.query("looking for news", &news, &[&topics]).await {
            Ok(rows) => {
                for row in &rows {
                    let (topic, last): (i32, i64) = (row.get("topic_id"), row.get("last_taken"));
                    // Once for each move: offsets taken and not there yet are the claims' own to look at again.
                    if seen.insert(topic, last) != Some(last) {
                        moved_at = Instant::now();
                        shared.hub.wake(TopicId(topic));
                    }
                }
            }
            // The consumers' own calls meet the same error and tell it.
            Err(error) => tracing::debug!(%error, "no news"),
        }
    }
}

/// Listens until stopped; reconnects with back-off. Whatever happened while it was deaf may be news: it wakes all.
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
            "not listening; the look-out looks until it works again"
        );
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(5));
    }
}

/// One connection's life. True if it ever heard its own probe.
async fn listen(shared: &Shared) -> bool {
    let mut leaving = shared.pools.leaving();
    let (sender, mut notices) = mpsc::channel::<String>(1_024);
    let connect = shared.hosts.connect(|connection| hear(connection, sender.clone()));
    let Ok(Ok((client, _))) = tokio::time::timeout(shared.hosts.connect_timeout(), connect).await else {
        return false;
    };
    // From here on the connection's own alone: it ends with it.
    drop(sender);
    // Through a pooler in transaction mode LISTEN succeeds and hears nothing: only an echo proves that it works.
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
            // It may listen to a server that is a primary no more, and would hear nothing.
            Ok(()) = leaving.changed() => None,
        };
        match notice {
            None => return works,
            Some(payload) if payload == probe => {
                works = true;
                // Flags of before may be gone with the server that had them: those who wait are woken and raise theirs anew.
                // Until here the look-out looked for them.
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

/// Runs a connection and passes on what it is notified of. Ends with the connection, and the connection with its client.
fn hear(mut connection: Driven, sender: mpsc::Sender<String>) -> JoinHandle<()> {
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
        assert_eq!(plan(&flags, 1), (vec![1], None), "the server may have lost it");
        flags.found(topic);
        assert!(plan(&flags, 1).1.is_some(), "and nothing may notify");
    }

    #[test]
    fn flags_that_end_soon_are_raised_along_and_no_others() {
        let (flags, now) = (Flags::new(), Instant::now());
        for (topic, left_s) in [(1, 10), (2, 30), (3, 39)] {
            flags.raised(&[topic], 0, now + Duration::from_secs(left_s) - FLAG);
        }
        let plan =
            |topic, hearing| flags.plan(&[TopicId(topic)], hearing, || (1..=4).map(TopicId).collect()).0;
        assert_eq!(plan(1, 0), [1, 2], "the third has long, and the fourth was never raised");
        assert_eq!(plan(2, 0), [0; 0], "nothing is raised before it is due");
        assert_eq!(plan(4, 0), [1, 2, 4]);
        assert_eq!(plan(2, 1), [1, 2, 3], "the server may have lost them all");
    }
}
