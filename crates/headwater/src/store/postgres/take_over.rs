//! Takeover: a session proves that its process lives, and the leases of owners whose session is gone end.
//!
//! The session holds the advisory lock of a random key, which the owner's row in `proof` names. The kernel closes the
//! connection of a killed process, and the server then releases the lock. A process that is slow or stopped keeps both.
//!
//! Why a process whose session was cut keeps its leases. Its next call, at most half a second later, withdraws the proof
//! over the pool for leases, connects again and registers the new proof; either is enough. Other owners end its leases only
//! if every check during [`GRACE`] finds the same proof gone, and the owner sent no heartbeat meanwhile. A restart, a crash
//! or a failover of the server invalidates all proofs (`schema/functions/owner.sql`).
//!
//! A pooler in transaction mode runs a statement on any of its sessions, and closes them at any time. Each call therefore
//! checks that it runs on the session with the key. If not, the proof is withdrawn, and a process that ended is detected
//! only by missing heartbeats.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use super::heartbeat::ANSWER_TIMEOUT;
use super::hosts::{Driven, Hosts};
use super::statements::Statements;
use super::{PostgresStore, fault};
use crate::error::{Error, ErrorKind, Result};
use crate::lease_thread::LeaseThread;
use crate::limits::{WATCH_EVERY, WATCHED_OWNERS_MAX};
use crate::name::Owner;
use crate::topic::TopicId;

/// How long a proof must be missing before the leases of its owner end.
const GRACE: Duration = Duration::from_millis(1_500);
/// How long an answer of the session may take.
const WATCH_MAX: Duration = Duration::from_millis(500);
/// A process notices that its session was cut before other owners end its leases.
const _: () = assert!(WATCH_EVERY.as_millis() + WATCH_MAX.as_millis() < GRACE.as_millis());
/// The delay after a failed attempt to connect.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The additional delay if the server refuses the session's statements.
const REFUSED_FOR: Duration = Duration::from_secs(30);

/// The session that proves that this process lives, for all owners of a store.
pub(super) struct Prover {
    hosts: Hosts,
    /// The session runs on this thread: it reconnects even if the program blocks its own runtime.
    thread: Arc<LeaseThread>,
    state: Mutex<State>,
    /// Held while connecting, so that only one session is made.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
pub(super) struct State {
    session: Option<Arc<Session>>,
    pub(super) failed_at: Option<Instant>,
    /// Connected through a pooler, which does not keep sessions.
    pooled: bool,
    /// Owners whose rows may name a proof.
    proven: HashSet<Owner>,
    /// By the owner that made the observation.
    sightings: HashMap<Owner, Sightings>,
}

pub(super) struct Session {
    pub(super) client: Client,
    pub(super) key: i64,
    watch: Statement,
    made_at: Instant,
}

impl Prover {
    pub(super) fn new(hosts: Hosts) -> Result<Self> {
        let (state, connecting) = (Mutex::default(), tokio::sync::Mutex::default());
        Ok(Prover { hosts, thread: LeaseThread::shared()?, state, connecting })
    }

    /// Ends the session when the store closes.
    pub(super) fn stop(&self) {
        self.state().session = None;
    }

    pub(super) fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }

    /// The session, if it is open and its server still in use; otherwise it is dropped.
    pub(super) fn session(&self, pools: &Hosts) -> Option<Arc<Session>> {
        let mut state = self.state();
        let is_left = |made_at| self.hosts.is_left(made_at) || pools.is_left(made_at);
        let is_sound = |session: &Arc<Session>| !session.client.is_closed() && !is_left(session.made_at);
        if !state.session.as_ref().is_some_and(is_sound) {
            state.session = None;
        }
        state.session.clone()
    }

    /// Drops this session, unless another has replaced it. After an error that is not retryable (missing rights) the next
    /// attempt waits longer.
    fn drop_session(&self, broken: &Arc<Session>, error: &Error) {
        let mut state = self.state();
        if state.session.as_ref().is_some_and(|session| Arc::ptr_eq(session, broken)) {
            state.session = None;
            if !error.is_retryable() {
                state.failed_at = Some(Instant::now() + REFUSED_FOR);
            }
        }
    }

    /// Makes a session that holds the lock of a new key; `None` while the last failure is recent.
    async fn connect(&self, store: &PostgresStore) -> Result<Option<Arc<Session>>> {
        let _one = self.connecting.lock().await;
        if let Some(session) = self.session(store.connections.hosts()) {
            return Ok(Some(session));
        }
        if self.state().failed_at.is_some_and(|at| at.elapsed() < RETRY_AFTER) {
            return Ok(None);
        }
        // Set first: a call that is cancelled half-way counts as a failure.
        self.state().failed_at = Some(Instant::now());
        let (hosts, statements) = (self.hosts.clone(), Arc::clone(&store.statements));
        let making = self.thread.spawn_owned(async move { Session::make(&hosts, &statements).await });
        let made = tokio::time::timeout(self.hosts.connect_timeout(), making).await;
        let late =
            || Error::new(ErrorKind::Unavailable, "no session in time for the proof of life of this process");
        let session = Arc::new(made.map_err(|_| late())?.map_err(|_| late())??);
        let mut state = self.state();
        (state.failed_at, state.session) = (None, Some(Arc::clone(&session)));
        Ok(Some(session))
    }
}

impl Session {
    async fn make(hosts: &Hosts, statements: &Statements) -> Result<Self> {
        let translate = |error| fault::translate("making the proof of life", error);
        let drive = |connection: Driven| {
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "session of the proof of life ended");
                }
            })
        };
        let made_at = Instant::now();
        let (client, _) = hosts.connect(drive).await.map_err(translate)?;
        let key = rand::random::<i64>() & i64::MAX;
        let row = client.query_one(&statements.take_over_prove, &[&key]).await.map_err(translate)?;
        if !row.get::<_, bool>("taken") {
            return Err(Error::new(ErrorKind::Conflict, "the advisory lock of a random key is taken"));
        }
        let watch = client.prepare(&statements.take_over_watch).await.map_err(translate)?;
        Ok(Session { client, key, watch, made_at })
    }

    async fn watch(&self, owner: &Owner) -> Result<Vec<Row>> {
        let doing = "examining other processes";
        let owner = owner.as_str();
        let params: [&(dyn ToSql + Sync); 3] = [&owner, &self.key, &WATCHED_OWNERS_MAX];
        match tokio::time::timeout(WATCH_MAX, self.client.query(&self.watch, &params)).await {
            Ok(answer) => answer.map_err(|error| fault::translate(doing, error)),
            Err(_) => Err(Error::new(ErrorKind::Unavailable, format!("no answer in time while {doing}"))),
        }
    }
}

pub(super) async fn take_over(store: &PostgresStore, owner: &Owner) -> Result<u64> {
    let prover = &store.prover;
    let session = match prover.session(store.connections.hosts()) {
        Some(session) => session,
        None => {
            // First, because connecting may take long: without a proof the owner is judged only by its heartbeats.
            withdraw(store, owner).await?;
            if prover.state().pooled {
                return Ok(0);
            }
            let Some(session) = prover.connect(store).await? else { return Ok(0) };
            session
        }
    };
    prover.state().proven.insert(owner.clone());
    let rows = match session.watch(owner).await {
        Ok(rows) => rows,
        Err(error) => {
            prover.drop_session(&session, &error);
            withdraw(store, owner).await?;
            return Err(error);
        }
    };
    if !rows[0].get::<_, bool>("kept") {
        tracing::info!("session not kept by pooler, ended processes detected only by missing heartbeats");
        prover.state().pooled = true;
        prover.stop();
        return withdraw(store, owner).await.map(|()| 0);
    }
    let found = rows.iter().filter_map(Gone::of).collect();
    let now = store.clock.monotonic();
    let gone = prover.state().sightings.entry(owner.clone()).or_default().note(now, found);
    let mut ended = 0;
    for gone in gone {
        ended += end(store, &gone).await?;
    }
    Ok(ended)
}

/// Withdraws the owner's proof, if it registered one.
async fn withdraw(store: &PostgresStore, owner: &Owner) -> Result<()> {
    // Observations made over a session that is gone may be those of another server.
    store.prover.state().sightings.remove(owner);
    if !store.prover.state().proven.contains(owner) {
        return Ok(());
    }
    let doing = "withdrawing the proof of life";
    let asked = &store.statements.take_over_withdraw;
    store.connections.query_leases_within(WATCH_MAX, doing, asked, &[&owner.as_str()]).await?;
    store.prover.state().proven.remove(owner);
    Ok(())
}

async fn end(store: &PostgresStore, gone: &Gone) -> Result<u64> {
    let now = store.clock.injected();
    let params: [&(dyn ToSql + Sync); 4] = [&gone.owner, &gone.key, &gone.seen_at, &now];
    let doing = "ending the leases of a process that ended";
    let asked = &store.statements.take_over_end;
    let rows = store.connections.query_leases_within(ANSWER_TIMEOUT, doing, asked, &params).await?;
    let Some(row) = rows.first() else { return Ok(0) };
    let leases = u64::try_from(row.get::<_, i64>("leases")).expect("a count is not negative");
    tracing::warn!(owner = gone.owner, leases, "owner's process ended, leases ended");
    let topics = row.get::<_, Option<Vec<i32>>>("topic_ids").unwrap_or_default();
    topics.into_iter().for_each(|topic| store.hub.wake(TopicId(topic)));
    Ok(leases)
}

/// An owner whose proof was found gone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Gone {
    owner: String,
    key: i64,
    seen_at: Timestamp,
}

impl Gone {
    fn of(row: &Row) -> Option<Self> {
        let owner = row.get::<_, Option<String>>("owner")?;
        Some(Gone { owner, key: row.get("key"), seen_at: row.get("seen_at") })
    }
}

/// Since when each proof has been missing without interruption.
#[derive(Debug, Default)]
struct Sightings {
    examined_at: Duration,
    since: HashMap<Gone, Duration>,
}

impl Sightings {
    /// Records the proofs that are gone now. Returns those gone for [`GRACE`]: the same proof, and no heartbeat since. A proof
    /// that is back is removed. If this process was itself stopped between two checks, all earlier observations are dropped.
    fn note(&mut self, now: Duration, found: HashSet<Gone>) -> Vec<Gone> {
        if now.saturating_sub(self.examined_at) > GRACE {
            self.since.clear();
        }
        self.examined_at = now;
        let since = |gone: &Gone| self.since.get(gone).copied().unwrap_or(now);
        self.since = found.into_iter().map(|gone| (gone.clone(), since(&gone))).collect();
        let due = |(gone, since): (&Gone, &Duration)| (now - *since >= GRACE).then(|| gone.clone());
        self.since.iter().filter_map(due).collect()
    }
}

#[cfg(test)]
mod rules {
    use super::*;

    fn gone(owner: &str, key: i64) -> Gone {
        Gone { owner: owner.into(), key, seen_at: Timestamp::UNIX_EPOCH }
    }

    fn note(sightings: &mut Sightings, at_ms: u64, found: &[&Gone]) -> Vec<Gone> {
        sightings.note(Duration::from_millis(at_ms), found.iter().map(|gone| (*gone).clone()).collect())
    }

    #[test]
    fn a_proof_is_gone_once_it_was_found_so_each_time_for_a_second_and_a_half() {
        let (a, b) = (gone("a", 1), gone("b", 2));
        let mut sightings = Sightings::default();
        assert_eq!(note(&mut sightings, 10_000, &[&a]), []);
        assert_eq!(note(&mut sightings, 10_500, &[&a, &b]), []);
        assert_eq!(note(&mut sightings, 11_499, &[&a, &b]), []);
        assert_eq!(note(&mut sightings, 11_500, &[&a, &b]), std::slice::from_ref(&a));
        assert_eq!(note(&mut sightings, 12_000, &[&b]), [b]);
        assert_eq!(note(&mut sightings, 12_500, &[&a]), [], "it was not gone in between");
    }

    #[test]
    fn another_proof_or_a_heartbeat_begins_anew_and_so_does_an_observer_that_was_stopped() {
        let a = gone("a", 1);
        let heard = Gone { seen_at: Timestamp::MAX, ..a.clone() };
        for other in [gone("a", 2), heard] {
            let mut sightings = Sightings::default();
            assert_eq!(note(&mut sightings, 10_000, &[&a]), []);
            assert_eq!(note(&mut sightings, 11_000, &[&other]), []);
            assert_eq!(note(&mut sightings, 12_000, &[&other]), []);
            assert_eq!(note(&mut sightings, 12_500, &[&other]), [other]);
        }
        let mut sightings = Sightings::default();
        assert_eq!(note(&mut sightings, 10_000, &[&a]), []);
        assert_eq!(note(&mut sightings, 70_000, &[&a]), []);
    }
}
