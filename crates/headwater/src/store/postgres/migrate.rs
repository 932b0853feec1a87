//! The schema's versions: creating, migrating and dropping a namespace.

use tokio_postgres::Transaction;

use super::connect::Connections;
use super::fault;
use super::statements::in_namespace;
use crate::error::{Error, ErrorKind, Result};
use crate::namespace::Namespace;
use crate::store::OpenOptions;

/// Append-only: a released file never changes, later versions come after it.
pub(super) const MIGRATIONS: &[(i32, &str, &str)] = &[
    (1, "tables", include_str!("migrations/0001_tables.sql")),
    (2, "topic", include_str!("migrations/0002_topic.sql")),
    (3, "publish", include_str!("migrations/0003_publish.sql")),
    (4, "head", include_str!("migrations/0004_head.sql")),
    (5, "claim", include_str!("migrations/0005_claim.sql")),
    (6, "claim_lanes", include_str!("migrations/0006_claim_lanes.sql")),
    (7, "settle", include_str!("migrations/0007_settle.sql")),
    (8, "subscribe", include_str!("migrations/0008_subscribe.sql")),
    (9, "roles", include_str!("migrations/0009_roles.sql")),
    (10, "owners_and_limits", include_str!("migrations/0010_owners_and_limits.sql")),
    (11, "inbox", include_str!("migrations/0011_inbox.sql")),
    (12, "redrive", include_str!("migrations/0012_redrive.sql")),
    (13, "cron", include_str!("migrations/0013_cron.sql")),
    (14, "life_cycle_tables", include_str!("migrations/0014_life_cycle_tables.sql")),
    (15, "life_cycle", include_str!("migrations/0015_life_cycle.sql")),
    (16, "tracking", include_str!("migrations/0016_tracking.sql")),
    (17, "retention", include_str!("migrations/0017_retention.sql")),
    (18, "partitions", include_str!("migrations/0018_partitions.sql")),
    (19, "backfill", include_str!("migrations/0019_backfill.sql")),
    (20, "upkeep_roles", include_str!("migrations/0020_upkeep_roles.sql")),
];

/// The version this program works with.
pub(super) const NEWEST: i32 = MIGRATIONS[MIGRATIONS.len() - 1].0;

/// The version this program works with.
pub fn newest() -> i32 {
    NEWEST
}

/// What a migration did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// The version before; 0 if there was nothing.
    pub from: i32,
    /// The version now.
    pub to: i32,
}

/// What the server answers to a second one that creates a schema or table of a name: a duplicate in its catalog.
const CREATED_MEANWHILE: [&str; 3] = ["23505", "42P06", "42P07"];
/// The first creator leaves a schema and its table at once, so one repetition is enough; another may drop them again.
const CREATORS_MET_MAX: u32 = 3;

/// What stands under the namespace's name.
enum Found {
    Nothing,
    Foreign,
    Version(i32),
}

/// Migrates a namespace to this program's version, creating it if it is missing. Safe when many do it at once.
pub async fn migrate(url: &str, namespace: &Namespace, options: &OpenOptions) -> Result<Migration> {
    let connections = Connections::new(url, namespace, options)?;
    let done = apply(&connections, namespace, NEWEST).await;
    connections.close();
    done
}

/// The version a namespace is at, without touching it; `None` if there is nothing of that name.
pub async fn version(url: &str, namespace: &Namespace, options: &OpenOptions) -> Result<Option<i32>> {
    let connections = Connections::new(url, namespace, options)?;
    let found = look(&connections, namespace).await;
    connections.close();
    match found? {
        Found::Nothing => Ok(None),
        Found::Version(version) => Ok(Some(version)),
        Found::Foreign => Err(foreign(namespace)),
    }
}

/// Makes sure that a namespace can be used: creates a missing one, migrates an older one if allowed.
pub(super) async fn prepare(
    connections: &Connections,
    namespace: &Namespace,
    may_migrate: bool,
) -> Result<()> {
    match look(connections, namespace).await? {
        Found::Version(version) if version == NEWEST => Ok(()),
        Found::Version(version) if version > NEWEST => Err(too_new(namespace, version)),
        Found::Version(version) if !may_migrate => Err(Error::new(
            ErrorKind::SchemaOutdated,
            format!(
                "namespace {namespace} is at schema version {version}, this program needs {NEWEST}; run `headwater migrate`"
            ),
        )),
        Found::Foreign => Err(foreign(namespace)),
        Found::Nothing | Found::Version(_) => apply(connections, namespace, NEWEST).await.map(drop),
    }
}

fn foreign(namespace: &Namespace) -> Error {
    Error::new(
        ErrorKind::NotAStore,
        format!(
            "schema {namespace} exists and is not one of Headwater's; choose another namespace, it was not touched"
        ),
    )
}

fn too_new(namespace: &Namespace, version: i32) -> Error {
    Error::new(
        ErrorKind::SchemaTooNew,
        format!(
            "namespace {namespace} is at schema version {version}, this program knows up to {NEWEST}; upgrade the program"
        ),
    )
}

const LOOK: &str = "SELECT n.oid IS NOT NULL AS there,
    EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relname = 'migration')
      AND EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relname = 'lease_token') AS ours,
    EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid) OR EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = n.oid) AS used
    FROM (SELECT 1) one LEFT JOIN pg_namespace n ON n.nspname = $1";

async fn look(connections: &Connections, namespace: &Namespace) -> Result<Found> {
    let rows = connections.query("looking for the schema", LOOK, &[&namespace.as_str()]).await?;
    let row = &rows[0];
    if row.get("ours") {
        let sql = in_namespace("SELECT coalesce(max(version), 0) FROM {schema}.migration", namespace);
        let rows = connections.query("reading the schema's version", &sql, &[]).await?;
        return Ok(Found::Version(rows[0].get(0)));
    }
    Ok(if row.get("there") && row.get("used") { Found::Foreign } else { Found::Nothing })
}

/// Applies what is missing up to `to`. One that meets another creating the schema begins again, and finds what that left.
async fn apply(connections: &Connections, namespace: &Namespace, to: i32) -> Result<Migration> {
    let mut met = 0;
    loop {
        match apply_once(connections, namespace, to).await? {
            Some(migration) => return Ok(migration),
            None if met < CREATORS_MET_MAX => met += 1,
            None => {
                return Err(Error::new(
                    ErrorKind::Busy,
                    format!("namespace {namespace} is being created; try again"),
                ));
            }
        }
    }
}

/// In one transaction, under the lock of the table of migrations, which only its owner may take: whoever comes second finds
/// it done. `None` if another process created the schema or the table while this one was about to.
async fn apply_once(connections: &Connections, namespace: &Namespace, to: i32) -> Result<Option<Migration>> {
    let doing = "migrating the schema";
    let mut client = connections.get().await?;
    let transaction = client.transaction().await.map_err(|error| fault::translate(doing, error))?;
    let row = transaction
        .query_one(LOOK, &[&namespace.as_str()])
        .await
        .map_err(|error| fault::translate(doing, error))?;
    if !row.get::<_, bool>("ours") && row.get("there") && row.get("used") {
        return Err(foreign(namespace));
    }
    // Read under the lock: another process may have migrated while this one waited for it.
    let from = match begin(&transaction, namespace).await {
        Err(error) if error.code().is_some_and(|code| CREATED_MEANWHILE.contains(&code.code())) => {
            return Ok(None);
        }
        from => from.map_err(|error| fault::translate(doing, error))?,
    };
    if from > NEWEST {
        return Err(too_new(namespace, from));
    }
    for (version, name, sql) in MIGRATIONS.iter().filter(|(version, _, _)| *version > from && *version <= to)
    {
        step(&transaction, namespace, *version, name, sql)
            .await
            .map_err(|error| fault::translate(&format!("migrating to version {version} ({name})"), error))?;
    }
    transaction.commit().await.map_err(|error| fault::translate_commit(doing, error))?;
    if from < to {
        tracing::info!(namespace = namespace.as_str(), from, to, "schema migrated");
    }
    Ok(Some(Migration { from, to: to.max(from) }))
}

async fn begin(transaction: &Transaction<'_>, namespace: &Namespace) -> Result<i32, tokio_postgres::Error> {
    let sql = "CREATE SCHEMA IF NOT EXISTS {schema};
        CREATE TABLE IF NOT EXISTS {schema}.migration (
            version integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT clock_timestamp());
        LOCK TABLE {schema}.migration IN EXCLUSIVE MODE;";
    transaction
        .batch_execute(&format!("SET LOCAL client_min_messages = warning; {}", in_namespace(sql, namespace)))
        .await?;
    let sql = in_namespace("SELECT coalesce(max(version), 0) FROM {schema}.migration", namespace);
    Ok(transaction.query_one(&sql, &[]).await?.get(0))
}

async fn step(
    transaction: &Transaction<'_>,
    namespace: &Namespace,
    version: i32,
    name: &str,
    sql: &str,
) -> Result<(), tokio_postgres::Error> {
    transaction.batch_execute(&in_namespace(sql, namespace)).await?;
    // PostgreSQL grants every new function to everybody.
    let revoke = in_namespace("REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC", namespace);
    transaction.batch_execute(&revoke).await?;
    let note = in_namespace("INSERT INTO {schema}.migration (version, name) VALUES ($1, $2)", namespace);
    transaction.execute(&note, &[&version, &name]).await.map(drop)
}

/// Removes a namespace whole, and the roles made for it where nothing else uses them.
pub(super) async fn drop_namespace(connections: &Connections, namespace: &Namespace) -> Result<()> {
    let client = connections.get().await?;
    let sql =
        in_namespace("SET client_min_messages = warning; DROP SCHEMA IF EXISTS {schema} CASCADE", namespace);
    client.batch_execute(&sql).await.map_err(|error| fault::translate("dropping the namespace", error))?;
    for kind in ["producer", "consumer", "reader"] {
        let role = in_namespace(&format!("DROP ROLE IF EXISTS \"{{name}}_{kind}\""), namespace);
        // A role that somebody granted elsewhere, or that we may not drop, stays: it holds nothing of ours any more.
        if let Err(error) = client.batch_execute(&role).await {
            tracing::debug!(namespace = namespace.as_str(), kind, %error, "role kept");
        }
    }
    Ok(())
}

#[cfg(test)]
pub(super) async fn apply_up_to(
    connections: &Connections,
    namespace: &Namespace,
    to: i32,
) -> Result<Migration> {
    apply(connections, namespace, to).await
}
