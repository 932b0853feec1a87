//! A role that may only connect takes every advisory lock it can guess or see, and tries every object of the schema.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::Place;
use super::open_transaction::namespace;
use super::probe::Probe;
use crate::check::{Judged, progress};
use crate::server::connect_as;

/// Texts that a key for advisory locks may be derived from, each combined with a series of numbers.
const GUESSES: [&str; 5] = ["headwater claims {}", "headwater {}", "headwater", "{}", "headwater migrate {}"];
const NUMBERS: i32 = 64;
const PASSWORD: &str = "only for this database";

pub(super) async fn run(place: &Place<'_>) -> Result<Vec<Judged>> {
    let headwater = place.open().await?;
    let schema = namespace(&headwater)?;
    let probe = Probe::new(&headwater, "claimed").await?;
    let quiet = probe.measure().await;
    let role = Role::create(place).await?;
    let outcome = async {
        let intruder = connect_as(&place.url, &role.name, PASSWORD).await?;
        progress("trying every object of the schema");
        let tried = try_all(&intruder, schema.as_str()).await?;
        progress("taking advisory locks");
        let guessed = take_guesses(&intruder, schema.as_str()).await?;
        let seen = Arc::new(AtomicU64::new(0));
        let watcher = connect_as(&place.url, &role.name, PASSWORD).await?;
        let taking = tokio::spawn(take_seen(watcher, Arc::clone(&seen)));
        let beside = probe.measure().await;
        taking.abort();
        anyhow::Ok((tried, guessed, seen.load(Ordering::Relaxed), beside))
    };
    let outcome = outcome.await;
    role.drop().await?;
    headwater.close().await?;
    let (tried, guessed, seen, beside) = outcome?;
    ensure!(guessed > 0, "the role could take no advisory lock at all");
    let mut judged = beside.judge(&quiet);
    judged.push(tried.judge().note(tried.opened.join(", ")));
    judged[0].note = format!("beside {guessed} guessed and {seen} seen advisory locks; {}", judged[0].note);
    Ok(judged)
}

/// The objects the role tried, and those it could use.
#[derive(Debug, Default)]
struct Tried {
    objects: u64,
    opened: Vec<String>,
}

impl Tried {
    /// Every object must be refused. A role that found nothing to try has shown nothing.
    fn judge(&self) -> Judged {
        let mut judged = Judged::none_of("functions and tables that opened", self.opened.len() as u64);
        if self.objects == 0 {
            judged.figure.amount = f64::NAN;
        }
        judged
    }
}

/// A role that owns nothing and is granted nothing.
struct Role {
    name: String,
    admin: Client,
}

impl Role {
    async fn create(place: &Place<'_>) -> Result<Self> {
        let admin = place.server().context("only on PostgreSQL")?.admin().await?;
        let name = format!("headwater_lab_intruder_{}", std::process::id());
        admin.batch_execute(&format!("DROP ROLE IF EXISTS {name}")).await?;
        admin.batch_execute(&format!("CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'")).await?;
        Ok(Role { name, admin })
    }

    /// Ends its sessions, with their locks, and removes it.
    async fn drop(self) -> Result<()> {
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1";
        self.admin.execute(end, &[&self.name]).await?;
        Ok(self.admin.batch_execute(&format!("DROP ROLE {}", self.name)).await?)
    }
}

/// Uses every function and relation of a schema; every one must be refused for missing privileges.
async fn try_all(intruder: &Client, schema: &str) -> Result<Tried> {
    let functions = "SELECT format('%s %I.%I(%s)', CASE p.prokind WHEN 'p' THEN 'CALL' ELSE 'SELECT' END, n.nspname, p.proname, \
             (SELECT string_agg(format('NULL::%s', format_type(t, NULL)), ', ') FROM unnest(p.proargtypes) t)) \
         FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = $1 AND p.prorettype <> 'trigger'::regtype";
    let relations = "SELECT format('SELECT * FROM %I.%I LIMIT 1', n.nspname, c.relname) \
         FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = $1 AND c.relkind IN ('r', 'p', 'v', 'm', 'S')";
    let locks = "SELECT format('LOCK TABLE %I.%I IN ACCESS SHARE MODE', n.nspname, c.relname) \
         FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = $1 AND c.relkind IN ('r', 'p')";
    let mut tried = Tried::default();
    for list in [functions, relations, locks] {
        for row in intruder.query(list, &[&schema]).await? {
            let statement: String = row.get(0);
            tried.objects += 1;
            let refused = intruder.batch_execute(&format!("BEGIN; {statement}; ROLLBACK")).await;
            intruder.batch_execute("ROLLBACK").await?;
            let is_refused =
                refused.as_ref().is_err_and(|error| error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE));
            if !is_refused {
                tried.opened.push(statement);
            }
        }
    }
    Ok(tried)
}

/// Takes the locks that can be guessed; returns how many it got.
async fn take_guesses(intruder: &Client, schema: &str) -> Result<u64> {
    let mut taken = 0;
    for guess in GUESSES {
        let word = guess.replace("{}", schema);
        let sql = "SELECT count(*) FILTER (WHERE pg_try_advisory_lock(hashtext($1), n)) FROM generate_series(0, $2 - 1) n";
        taken += intruder.query_one(sql, &[&word, &NUMBERS]).await?.get::<_, i64>(0);
        let sql = "SELECT pg_try_advisory_lock(hashtext($1)), pg_try_advisory_lock(hashtextextended($1, 0))";
        let row = intruder.query_one(sql, &[&word]).await?;
        taken += i64::from(row.get::<_, bool>(0)) + i64::from(row.get::<_, bool>(1));
    }
    Ok(u64::try_from(taken)?)
}

/// Takes every advisory lock that any other session is seen to hold, until aborted: every role may read pg_locks.
async fn take_seen(intruder: Client, seen: Arc<AtomicU64>) -> Result<()> {
    let sql = "SELECT count(*) FILTER (WHERE CASE l.objsubid \
             WHEN 1 THEN pg_try_advisory_lock((l.classid::bigint << 32) | l.objid::bigint) \
             ELSE pg_try_advisory_lock(l.classid::bigint::bit(32)::integer, l.objid::bigint::bit(32)::integer) END) \
         FROM (SELECT DISTINCT classid, objid, objsubid FROM pg_locks \
               WHERE locktype = 'advisory' AND pid <> pg_backend_pid() \
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
               EXCEPT SELECT classid, objid, objsubid FROM pg_locks \
               WHERE locktype = 'advisory' AND pid = pg_backend_pid()) l";
    loop {
        let taken: i64 = intruder.query_one(sql, &[]).await?.get(0);
        seen.fetch_add(u64::try_from(taken)?, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_opens_or_was_never_tried_is_missed() {
        let tried = |objects, opened: &[&str]| Tried {
            objects,
            opened: opened.iter().map(|name| (*name).to_owned()).collect(),
        };
        assert!(tried(50, &[]).judge().is_met());
        assert!(!tried(50, &["SELECT headwater.clean()"]).judge().is_met());
        assert!(!tried(0, &[]).judge().is_met());
    }
}
