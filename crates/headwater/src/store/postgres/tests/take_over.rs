//! Proofs of life that are specific to PostgreSQL: cut sessions, poolers, restarts of the server.

use super::races::{SOON, until_true};
use super::*;
use crate::clock::{Clock, ManualClock};
use crate::lease::Lease;

const SILENT_FOR: Duration = Duration::from_secs(15);
/// This many calls, half a second apart, take longer than the grace period.
const CALLS: u32 = 10;

fn owner(name: &str) -> Owner {
    Owner::new(name).expect("a valid name")
}

/// Repeated where a slow server did not answer in time, but not for ever: a proof that always fails is none.
async fn take_over(store: &PostgresStore, name: &str) -> u64 {
    let until = Instant::now() + SOON;
    loop {
        match store.take_over(&owner(name)).await {
            Err(error) if error.is_retryable() && Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            ended => return ended.expect("the owner proves that it is alive"),
        }
    }
}

/// An owner with a lease and a proof, and another owner that watches it; both with a manual clock.
struct Pair {
    scene: Scene,
    clock: ManualClock,
    holder: PostgresStore,
    watcher: PostgresStore,
    lease: Lease,
}

impl Pair {
    async fn new() -> Option<Self> {
        let scene = Scene::new()?;
        let clock = ManualClock::at(jiff::Timestamp::now());
        let open = async || {
            let options = OpenOptions::default().clock(Clock::Manual(clock.clone()));
            PostgresStore::open(&scene.url, scene.namespace.clone(), options).await.expect("it opens")
        };
        let (holder, watcher) = (open().await, open().await);
        let subscription = subscribed(&holder).await;
        holder.publish(&orders(), &[NewMessage::new("x")]).await.unwrap();
        for (store, name) in [(&holder, "holder"), (&watcher, "watcher")] {
            store.heartbeat(&owner(name), Some(SILENT_FOR), &[]).await.unwrap();
            assert_eq!(take_over(store, name).await, 0);
        }
        let request = ClaimRequest { owner: owner("holder"), ..request(&subscription) };
        let lease = holder.claim(&request).await.unwrap().leases.remove(0);
        Some(Pair { scene, clock, holder, watcher, lease })
    }

    /// Ends the session of the holder's proof, and returns once the server has released its lock.
    async fn cut(&self) {
        let held = "FROM pg_locks l JOIN {schema}.proof f ON f.owner = 'holder'
            AND l.locktype = 'advisory' AND l.objsubid = 1 AND l.classid::bigint << 32 | l.objid::bigint = f.key";
        let client = self.scene.client().await;
        let end = self.scene.sql(&format!("SELECT pg_terminate_backend(l.pid) {held}"));
        assert_eq!(client.query(&end, &[]).await.unwrap().len(), 1, "the holder has a session");
        let held = self.scene.sql(&format!("SELECT {held}"));
        until_true("its lock is released", async || client.query(&held, &[]).await.unwrap().is_empty()).await;
    }

    async fn watch(&self) -> u64 {
        let ended = take_over(&self.watcher, "watcher").await;
        self.clock.advance(Duration::from_millis(500));
        ended
    }

    async fn watch_long(&self) -> u64 {
        let mut ended = 0;
        for _ in 0..CALLS {
            ended += self.watch().await;
        }
        ended
    }

    /// After a cut: the first call may fail because it finds the session broken.
    async fn prove_again(&self) {
        assert_eq!(take_over(&self.holder, "holder").await, 0);
    }

    async fn proofs(&self) -> i64 {
        let sql = self.scene.sql("SELECT count(*) FROM {schema}.proof f WHERE f.owner = 'holder'");
        self.scene.client().await.query_one(&sql, &[]).await.unwrap().get(0)
    }

    /// The holder still has its lease.
    async fn assert_kept(self) {
        self.holder.settle(&[Settlement::ack_all(&self.lease)]).await.unwrap().remove(0).unwrap();
        self.scene.drop().await;
    }
}

#[tokio::test]
async fn a_session_that_was_cut_is_made_again_and_nothing_is_lost() {
    let Some(pair) = Pair::new().await else { return };
    for _ in 0..3 {
        pair.cut().await;
        assert_eq!(pair.watch().await + pair.watch().await, 0);
        pair.prove_again().await;
        assert_eq!(pair.watch_long().await, 0, "it has another session");
        assert_eq!(pair.proofs().await, 1);
    }
    // Without a session it loses its lease.
    pair.cut().await;
    let mut ended = 0;
    // A call that was not answered in time begins the grace period again.
    until_true("its lease ends", async || {
        ended += pair.watch().await;
        ended > 0
    })
    .await;
    assert_eq!(ended, 1);
    pair.scene.drop().await;
}

#[tokio::test]
async fn a_process_that_cannot_connect_again_takes_its_proof_back_by_the_pool() {
    let Some(pair) = Pair::new().await else { return };
    pair.cut().await;
    pair.holder.prover.state().failed_at = Some(Instant::now() + Duration::from_secs(3_600));
    pair.prove_again().await;
    assert_eq!(pair.proofs().await, 0);
    assert_eq!(pair.watch_long().await, 0, "only missing heartbeats end its leases");
    pair.assert_kept().await;
}

/// An owner that was silent for too long is removed while it registers a proof. Its heartbeat adds it again, and its next
/// call the proof.
#[tokio::test]
async fn an_owner_that_is_forgotten_meanwhile_gives_its_proof_again_after_its_heartbeat() {
    let Some(pair) = Pair::new().await else { return };
    let (mut other, client) = (pair.scene.client().await, pair.scene.client().await);
    let waits = "SELECT count(*) FROM pg_stat_activity a JOIN pg_locks l USING (pid)
                 WHERE NOT l.granted AND a.query LIKE '%headwater.proof%' AND a.query LIKE '%' || $1 || '%'";
    let (mut gave, mut rounds) = (None, 0);
    // Repeated if the machine is so slow that the call times out meanwhile.
    while gave.is_none() {
        rounds += 1;
        assert!(rounds < 20, "the call always times out");
        client.execute(&pair.scene.sql("DELETE FROM {schema}.proof"), &[]).await.unwrap();
        pair.holder.heartbeat(&owner("holder"), Some(SILENT_FOR), &[]).await.unwrap();
        let forgetting = other.transaction().await.unwrap();
        let forget = pair.scene.sql("DELETE FROM {schema}.owner w WHERE w.owner = 'holder'");
        assert_eq!(forgetting.execute(&forget, &[]).await.unwrap(), 1);
        let forgotten = async {
            until_true("the holder's call waits", async || {
                let namespace = pair.scene.namespace.as_str();
                client.query_one(waits, &[&namespace]).await.unwrap().get::<_, i64>(0) > 0
            })
            .await;
            forgetting.commit().await.unwrap();
        };
        let holder = owner("holder");
        let (given, ()) = tokio::join!(pair.holder.take_over(&holder), forgotten);
        match given {
            Err(error) if error.is_retryable() => pair.prove_again().await,
            given => gave = Some(given),
        }
    }
    assert_eq!(gave.unwrap().unwrap(), 0);
    assert_eq!(pair.proofs().await, 0, "the owner does not exist");
    pair.holder.heartbeat(&owner("holder"), Some(SILENT_FOR), &[]).await.unwrap();
    assert_eq!(take_over(&pair.holder, "holder").await, 0);
    assert_eq!(pair.proofs().await, 1);
    pair.assert_kept().await;
}

#[tokio::test]
async fn heartbeats_are_proof_enough() {
    let Some(pair) = Pair::new().await else { return };
    pair.cut().await;
    for _ in 0..CALLS {
        assert_eq!(pair.watch().await + pair.watch().await, 0);
        pair.holder.heartbeat(&owner("holder"), Some(SILENT_FOR), &[]).await.unwrap();
    }
    pair.assert_kept().await;
}

#[tokio::test]
async fn behind_a_pooler_without_sessions_owners_are_judged_by_silence() {
    let Some(pair) = Pair::new().await else { return };
    // Another session runs the call: the key is not its own.
    let session = pair.holder.prover.session(pair.holder.connections.hosts()).unwrap();
    session.client.batch_execute("SET headwater.proof = 'of another'").await.unwrap();
    drop(session);
    assert_eq!(take_over(&pair.holder, "holder").await, 0);
    assert_eq!(pair.proofs().await, 0);
    assert_eq!(pair.watch_long().await, 0);
    assert_eq!(take_over(&pair.holder, "holder").await, 0);
    assert_eq!(pair.proofs().await, 0, "it registers no proof any more");
    pair.clock.advance(SILENT_FOR);
    assert_eq!(pair.watcher.heartbeat(&owner("watcher"), Some(SILENT_FOR), &[]).await.unwrap().ended, 1);
    pair.scene.drop().await;
}

/// Clients reconnect to a restarted server one after the other, at any time.
#[tokio::test]
async fn proofs_end_with_the_server_that_gave_them() {
    let Some(pair) = Pair::new().await else { return };
    let before = pair
        .scene
        .sql("UPDATE {schema}.proof SET server_at = server_at - interval '1 hour' WHERE owner = 'holder'");
    pair.cut().await;
    assert_eq!(pair.scene.client().await.execute(&before, &[]).await.unwrap(), 1);
    assert_eq!(pair.watch_long().await, 0);
    let unlogged =
        pair.scene.sql("SELECT relpersistence::text FROM pg_class WHERE oid = '{schema}.proof'::regclass");
    let row = pair.scene.client().await.query_one(&unlogged, &[]).await.unwrap();
    assert_eq!(row.get::<_, &str>(0), "u", "a crash and a failover empty the table");
    pair.assert_kept().await;
}

#[tokio::test]
async fn a_watch_that_finds_nothing_writes_nothing() {
    let Some(pair) = Pair::new().await else { return };
    let session = pair.watcher.prover.session(pair.watcher.connections.hosts()).unwrap();
    let sql = pair.scene.sql(
        "SELECT count(*), pg_current_xact_id_if_assigned() IS NULL FROM {schema}.watch('watcher', $1, 16)",
    );
    let row = session.client.query_one(&sql, &[&session.key]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, bool>(1)), (0, true));
    pair.assert_kept().await;
}

#[tokio::test]
async fn a_consumer_may_take_over() {
    let Some(pair) = Pair::new().await else { return };
    let consumer = pair.scene.open_as(Some("consumer")).await.unwrap();
    consumer.heartbeat(&owner("consumer"), Some(SILENT_FOR), &[]).await.unwrap();
    assert_eq!(take_over(&consumer, "consumer").await, 0);
    pair.cut().await;
    let mut ended = 0;
    let until = Instant::now() + Duration::from_secs(20);
    while ended == 0 {
        assert!(Instant::now() < until);
        ended += take_over(&consumer, "consumer").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(ended, 1);
    pair.scene.drop().await;
}

/// Two owners of one store share a session, which can take its own lock again: to that session its lock always seems free.
#[tokio::test]
async fn owners_of_the_same_session_are_not_taken_for_gone() {
    let Some(pair) = Pair::new().await else { return };
    let beside = owner("beside");
    pair.holder.heartbeat(&beside, Some(SILENT_FOR), &[]).await.unwrap();
    for _ in 0..CALLS {
        assert_eq!(take_over(&pair.holder, "beside").await, 0, "the holder lives");
        pair.clock.advance(Duration::from_millis(500));
    }
    let session = pair.holder.prover.session(pair.holder.connections.hosts()).unwrap();
    let found = pair.scene.sql("SELECT f.owner FROM {schema}.watch('beside', $1, 16) f");
    assert!(
        session.client.query(&found, &[&session.key]).await.unwrap().is_empty(),
        "no owner is reported as gone"
    );
    drop(session);
    pair.assert_kept().await;
}
