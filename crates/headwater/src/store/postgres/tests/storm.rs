//! All verbs at once, repeatedly, on the same few rows: no deadlock.

use std::sync::Mutex;

use jiff::Timestamp;
use tokio::task::JoinSet;
use tokio_postgres::types::ToSql;

use super::*;
use crate::store::rng::Rng;
use crate::topic::Tracking;

const LASTS: Duration = Duration::from_secs(4);
const WORKERS: u64 = 10;
/// Of each worker, however slow the machine is.
const VERBS_MIN: u64 = 20;

/// One connection that runs random verbs.
struct Worker {
    client: Client,
    dice: Rng,
    namespace: Namespace,
    /// What each connection ran, by its process id: the server reports a deadlock by these.
    ran: Arc<Mutex<Vec<(i32, String)>>>,
    pid: i32,
    deadlocks: Vec<String>,
}

impl Worker {
    async fn run(
        &mut self,
        verb: &str,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Vec<tokio_postgres::Row> {
        let sql = super::super::statements::in_namespace(sql, &self.namespace);
        self.ran.lock().unwrap().push((self.pid, verb.to_owned()));
        match self.client.query(&sql, params).await {
            Ok(rows) => rows,
            Err(error) if error.code().is_some_and(|code| code.code() == "40P01") => {
                let detail =
                    error.as_db_error().and_then(|error| error.detail()).unwrap_or_default().to_owned();
                let ran = self.ran.lock().unwrap();
                let last = &ran[ran.len().saturating_sub(100)..];
                let others =
                    last.iter().filter(|(pid, _)| detail.contains(&pid.to_string())).collect::<Vec<_>>();
                self.deadlocks.push(format!("{verb}: {detail}; {others:?}"));
                Vec::new()
            }
            // A refusal of the schema's functions: the group is dead at the moment.
            Err(error) if error.code().is_some_and(|code| code.code().starts_with("HW")) => Vec::new(),
            Err(error) => panic!("{verb}: {error}"),
        }
    }

    async fn tokens(&mut self) -> (Vec<i64>, Vec<i32>, Vec<String>) {
        let sql = "SELECT DISTINCT token, subscription_id, owner FROM {schema}.outstanding WHERE owner IS NOT NULL LIMIT 30";
        let rows = self.run("read tokens", sql, &[]).await;
        let mut held: Vec<(i64, i32, String)> =
            rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
        self.dice.shuffle(&mut held);
        (
            held.iter().map(|lease| lease.0).collect(),
            held.iter().map(|lease| lease.1).collect(),
            held.into_iter().map(|lease| lease.2).collect(),
        )
    }

    async fn claim(&mut self) {
        let limits = match self.dice.below(2) {
            0 => "NULL, NULL, NULL",
            _ => {
                "ARRAY[50, 50, 50]::bigint[], ARRAY[NULL, 1e6, NULL]::float8[], ARRAY[NULL, 1000, NULL]::bigint[]"
            }
        };
        // Leases that expire at once, so that a claim also counts an expiry in the subscription.
        let lease_ms = [1, 20, 60_000][usize::try_from(self.dice.below(3)).unwrap()];
        let ids = match self.dice.below(3) {
            0 => "ARRAY[1, 2, 3]",
            1 => "ARRAY[3, 1, 2]",
            _ => "ARRAY[2, 3, 1]",
        };
        let owner = self.dice.below(4);
        let sql = format!(
            "SELECT * FROM {{schema}}.claim('owner-{owner}', {ids}, ARRAY[2, 2, 2], ARRAY[{lease_ms}, {lease_ms}, {lease_ms}]::bigint[],
             {limits}, false, 1000, 20000, 10000, 1000, NULL)"
        );
        self.run("claim", &sql, &[]).await;
    }

    async fn verb(&mut self) {
        let owner = format!("owner-{}", self.dice.below(4));
        let group = ["a", "b", "c"][usize::try_from(self.dice.below(3)).unwrap()];
        let done = self.dice.below(9).cast_signed();
        match self.dice.below(16) {
            0..=3 => self.claim().await,
            4 | 5 => {
                let (tokens, subscriptions, owners) = self.tokens().await;
                let sql = "SELECT {schema}.settle_all($1, $2, $3, false, NULL)";
                self.run("ack", sql, &[&tokens, &subscriptions, &owners]).await;
            }
            6 | 7 => {
                let (tokens, subscriptions, owners) = self.tokens().await;
                let sql = "SELECT {schema}.extend_leases($1, $2, $3, 60000, false, NULL)";
                self.run("extend", sql, &[&tokens, &subscriptions, &owners]).await;
            }
            8 => {
                let sql = "SELECT {schema}.publish_batch('orders', ARRAY(SELECT gen_random_uuid() FROM generate_series(1, 20)),
                    ARRAY(SELECT 'x'::bytea FROM generate_series(1, 20)), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, true)";
                self.run("publish", sql, &[]).await;
            }
            9 => {
                let sql = "SELECT {schema}.subscribe('orders', $1, 'now', NULL, NULL, 60000, NULL)";
                self.run("subscribe", sql, &[&group]).await;
            }
            10 => {
                self.run("track", "SELECT {schema}.track(1, 1000, NULL)", &[]).await;
            }
            11 => {
                let sql = "SELECT {schema}.heartbeat($1, NULL, ARRAY[3, 1, 2], $2, $2, $2, ARRAY[0, 0, 0]::float8[], $2, $2, NULL)";
                self.run("heartbeat without timeout", sql, &[&owner, &[done; 3].as_slice()]).await;
            }
            12 => {
                self.run("depart", "SELECT {schema}.depart($1)", &[&owner]).await;
            }
            13 => {
                let sql = "SELECT silent_owner, seen_at
                    FROM {schema}.heartbeat($1, 20, ARRAY[2, 1], $2, $2, $2, ARRAY[0, 0]::float8[], $2, $2, NULL)";
                for row in self.run("heartbeat", sql, &[&owner, &[done; 2].as_slice()]).await {
                    let (silent, seen_at) =
                        (row.get::<_, Option<String>>(0), row.get::<_, Option<Timestamp>>(1));
                    let sql = "SELECT {schema}.end_silent($1, $2, 20, NULL)";
                    self.run("end silent", sql, &[&silent, &seen_at]).await;
                }
            }
            14 => {
                let sql = "SELECT {schema}.seek('orders', $1, 'now', NULL, NULL, false, 'tester', NULL)";
                self.run("seek", sql, &[&group]).await;
            }
            _ => self.operate(group).await,
        }
    }

    async fn operate(&mut self, group: &str) {
        match self.dice.below(5) {
            0 => {
                let sql = "SELECT {schema}.set_state('orders', $1, 'pause', ARRAY['active'], 'paused', 'tester', NULL, NULL)";
                self.run("pause", sql, &[&group]).await;
                let sql = "SELECT {schema}.set_state('orders', $1, 'resume', ARRAY['paused'], 'active', 'tester', NULL, NULL)";
                self.run("resume", sql, &[&group]).await;
            }
            1 => {
                // Owners without a recent heartbeat are detected as silent.
                self.run(
                    "detect",
                    "SELECT {schema}.detect_dead(clock_timestamp() + interval '6 minutes')",
                    &[],
                )
                .await;
            }
            2 => {
                self.run("clean", "SELECT {schema}.clean(1, 100, NULL)", &[]).await;
            }
            3 => {
                self.run(
                    "forget",
                    "SELECT {schema}.forget_old(100, clock_timestamp() + interval '2 days')",
                    &[],
                )
                .await;
            }
            _ => {
                self.run("maintain", "SELECT {schema}.maintain(1000, NULL)", &[]).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_verbs_ever_wait_for_each_other_in_a_circle() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let settings = TopicSettings { tracking: Tracking::ReferenceCounting, ..TopicSettings::pub_sub() };
    store.create_topic(&orders(), &settings).await.unwrap();
    for group in ["a", "b", "c"] {
        store.subscribe(&orders(), &GroupName::new(group).unwrap(), Start::Beginning).await.unwrap();
    }
    store.publish(&orders(), &vec![NewMessage::new("x"); 500]).await.unwrap();
    let seed = Uuid::now_v7().as_u64_pair().1 | 1;
    println!("seed {seed}");
    let (until, ran) = (Instant::now() + LASTS, Arc::default());
    let mut workers = JoinSet::new();
    for n in 0..WORKERS {
        let client = scene.client().await;
        // Deadlocks are detected early, so that there are many rounds; and no verb waits longer than the test.
        client
            .batch_execute("SET deadlock_timeout = '20ms'; SET statement_timeout = '60s'; SET jit = off")
            .await
            .unwrap();
        let pid = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        let mut worker = Worker {
            client,
            ran: Arc::clone(&ran),
            pid,
            dice: Rng::new(seed ^ (n + 1)),
            namespace: scene.namespace.clone(),
            deadlocks: Vec::new(),
        };
        workers.spawn(async move {
            let mut verbs = 0_u64;
            while Instant::now() < until || verbs < VERBS_MIN {
                worker.verb().await;
                verbs += 1;
            }
            (verbs, worker.deadlocks)
        });
    }
    let (mut verbs, mut deadlocks) = (0, Vec::new());
    let joined = tokio::time::timeout(Duration::from_secs(90), workers.join_all()).await;
    for (count, found) in joined.expect("the workers end") {
        verbs += count;
        deadlocks.extend(found);
    }
    assert!(
        deadlocks.is_empty(),
        "seed {seed}, {verbs} verbs, {} deadlocks: {deadlocks:#?}",
        deadlocks.len()
    );
    assert_eq!(store.doctor().await.unwrap(), [], "seed {seed}");
    scene.drop().await;
}
