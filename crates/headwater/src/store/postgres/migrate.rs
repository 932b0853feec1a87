//! The schema's versions: creating, migrating and dropping a namespace.

use tokio_postgres::{Row, Transaction};

use super::connect::Connections;
use super::fault;
use super::statements::in_namespace;
use super::time::stored;
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

/// How often creating a schema is tried again because another process created it at the same moment.
const ATTEMPTS_MAX: u32 = 5;

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

/// What there is under the name, and whom it belongs to. Every object of a schema depends on it: tables and functions, and also types
/// and operators, which a function of ours could call by mistake.
const LOOK: &str = "SELECT n.oid IS NOT NULL AS there,
    EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relname = 'migration')
      AND EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relname = 'lease_token') AS ours,
    EXISTS (SELECT FROM pg_depend d WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid) AS used,
    current_user::text AS me, pg_get_userbyid(n.nspowner)::text AS owner,
    (SELECT string_agg(DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(a.grantee) END, ', ')
     FROM aclexplode(n.nspacl) a WHERE a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner) AS creators,
    (SELECT pg_describe_object(d.classid, d.objid, 0) || ' of role ' || pg_get_userbyid(o.refobjid)
     FROM pg_depend d JOIN pg_shdepend o ON o.classid = d.classid AND o.objid = d.objid AND o.deptype = 'o'
         AND o.dbid = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())
     WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid AND o.refobjid <> n.nspowner LIMIT 1) AS other
    FROM (SELECT 1) one LEFT JOIN pg_namespace n ON n.nspname = $1";

async fn look(connections: &Connections, namespace: &Namespace) -> Result<Found> {
    let rows = connections.query("looking for the schema", LOOK, &[&namespace.as_str()]).await?;
    let row = &rows[0];
    if stored(row, "ours")? {
        let sql = in_namespace("SELECT coalesce(max(version), 0) FROM {schema}.migration", namespace);
        let rows = connections.query("reading the schema's version", &sql, &[]).await?;
        return Ok(Found::Version(stored(&rows[0], 0)?));
    }
    Ok(if stored(row, "there")? && stored(row, "used")? { Found::Foreign } else { Found::Nothing })
}

/// Refuses a schema in which another role has a say: its owner may replace any function in it, and one that others run with the
/// rights of the migrating user, often a superuser, is then the owner's to write. Who may create objects in it, or has
/// some there, can put a function in front of ours that fits a call better.
fn refuse_others(namespace: &Namespace, row: &Row) -> Result<()> {
    if !stored::<_, bool>(row, "there")? {
        return Ok(());
    }
    let (me, owner): (&str, &str) = (stored(row, "me")?, stored(row, "owner")?);
    let refused = |text: String| Err(Error::new(ErrorKind::PermissionDenied, text));
    if owner != me {
        return refused(format!(
            "schema {namespace} belongs to role {owner}, and this is role {me}: migrate as {owner}, choose another namespace, \
             or make {me} the owner (ALTER SCHEMA {namespace} OWNER TO {me}) if the schema is yours; it was not touched"
        ));
    }
    if let Some(creators) = stored::<_, Option<&str>>(row, "creators")? {
        return refused(format!(
            "schema {namespace} of role {owner} is open to {creators}, who may create objects in it: run REVOKE CREATE ON SCHEMA \
             {namespace} FROM {creators} first; it was not touched"
        ));
    }
    if !stored::<_, bool>(row, "ours")? && stored(row, "used")? {
        return Err(foreign(namespace));
    }
    if let Some(other) = stored::<_, Option<&str>>(row, "other")? {
        return refused(format!(
            "schema {namespace} of role {owner} has an object of another role: {other}; drop it, or give it to {owner}; \
             nothing was changed"
        ));
    }
    Ok(())
}

/// Applies what is missing up to `to`, in one transaction. Of many that do it at once one goes first, and the others wait for it and
/// find it done: at the name of the schema if it is missing, else at the table of versions. Both are locks that no stranger can hold.
async fn apply(connections: &Connections, namespace: &Namespace, to: i32) -> Result<Migration> {
    let mut attempt = 1;
    loop {
        match apply_once(connections, namespace, to).await {
            // Created by another process while this one waited for its name.
            Err(error) if attempt < ATTEMPTS_MAX && fault::code_is(&error, DUPLICATES) => attempt += 1,
            done => return done,
        }
    }
}

/// `unique_violation`, `duplicate_schema`, `duplicate_table`.
const DUPLICATES: &[&str] = &["23505", "42P06", "42P07"];

async fn apply_once(connections: &Connections, namespace: &Namespace, to: i32) -> Result<Migration> {
    let doing = "migrating the schema";
    let translate = |error| fault::translate(doing, error);
    let mut client = connections.get().await?;
    let transaction = client.transaction().await.map_err(translate)?;
    let row = transaction.query_one(LOOK, &[&namespace.as_str()]).await.map_err(translate)?;
    refuse_others(namespace, &row)?;
    let from = begin(&transaction, namespace, stored(&row, "there")?, stored(&row, "ours")?).await?;
    if from > NEWEST {
        return Err(too_new(namespace, from));
    }
    for (version, name, sql) in MIGRATIONS.iter().filter(|(version, _, _)| *version > from && *version <= to)
    {
        step(&transaction, namespace, *version, name, sql)
            .await
            .map_err(|error| fault::translate(&format!("migrating to version {version} ({name})"), error))?;
    }
    if to == NEWEST {
        // Also where nothing was missing: a dump restored without its roles has neither grants nor revocations.
        let sql = in_namespace("SELECT {schema}.revoke_public(); SELECT {schema}.grant_roles()", namespace);
        transaction.batch_execute(&sql).await.map_err(translate)?;
    }
    transaction.commit().await.map_err(|error| fault::translate_commit(doing, error))?;
    if from < to {
        tracing::info!(namespace = namespace.as_str(), from, to, "schema migrated");
    }
    Ok(Migration { from, to: to.max(from) })
}

/// Takes the turn, and answers the version that is there then.
async fn begin(transaction: &Transaction<'_>, namespace: &Namespace, there: bool, ours: bool) -> Result<i32> {
    let translate = |error| fault::translate("migrating the schema", error);
    let mut sql = "SET LOCAL client_min_messages = warning;".to_owned();
    if !there {
        sql += "CREATE SCHEMA {schema};";
    }
    sql += match ours {
        true => "LOCK TABLE {schema}.migration IN SHARE ROW EXCLUSIVE MODE",
        false => {
            "CREATE TABLE {schema}.migration (
                version integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
        }
    };
    transaction.batch_execute(&in_namespace(&sql, namespace)).await.map_err(translate)?;
    let sql = in_namespace("SELECT coalesce(max(version), 0) FROM {schema}.migration", namespace);
    let row = transaction.query_one(&sql, &[]).await.map_err(translate)?;
    stored(&row, 0)
}

async fn step(
    transaction: &Transaction<'_>,
    namespace: &Namespace,
    version: i32,
    name: &str,
    sql: &str,
) -> Result<(), tokio_postgres::Error> {
    transaction.batch_execute(&in_namespace(sql, namespace)).await?;
    let note = in_namespace("INSERT INTO {schema}.migration (version, name) VALUES ($1, $2)", namespace);
    transaction.execute(&note, &[&version, &name]).await.map(drop)
}

/// Removes a namespace whole, and the roles that were created for it, where nothing else uses them.
pub(super) async fn drop_namespace(connections: &Connections, namespace: &Namespace) -> Result<()> {
    let translate = |error| fault::translate("dropping the namespace", error);
    let client = connections.get().await?;
    let sql =
        in_namespace("SET client_min_messages = warning; DROP SCHEMA IF EXISTS {schema} CASCADE", namespace);
    client.batch_execute(&sql).await.map_err(translate)?;
    let marked = "SELECT r.rolname::text FROM pg_roles r WHERE r.rolname = ANY ($1::text[])
                  AND shobj_description(r.oid, 'pg_authid') = $2";
    let names = ["producer", "consumer", "reader"].map(|kind| format!("{namespace}_{kind}"));
    let mark = format!("headwater: role of namespace {namespace}");
    for row in client.query(marked, &[&names.as_slice(), &mark]).await.map_err(translate)? {
        let role: &str = stored(&row, 0)?;
        // A role that is granted elsewhere, or that this user may not drop, stays: it holds nothing of the namespace any more.
        if let Err(error) = client.batch_execute(&format!("DROP ROLE \"{role}\"")).await {
            tracing::debug!(namespace = namespace.as_str(), role, %error, "role kept");
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
