//! The schema: creating, migrating and dropping a namespace.
//!
//! Tables and types are migrated: `schema/tables` is what a new namespace gets, complete, and each later version adds a numbered step
//! that brings the tables of the version before to it. Functions, views, triggers and rights are code: they are replaced whole, in
//! the same transaction, whenever this program's differ from those in the database.
//!
//! Programs of two versions run beside each other during a deploy. A program never puts its code over that of a newer one, and
//! opens a namespace whose tables are of its version whatever the code: its calls are served as long as the functions it names are
//! there, and refused as `SchemaOutdated` otherwise. Tables of a later version are refused when it opens, as `SchemaTooNew`.

use deadpool_postgres::{GenericClient, Transaction};
use tokio_postgres::Row;

use super::connect::Connections;
use super::fault;
use super::statements::in_namespace;
use super::time::stored;
use crate::error::{Error, ErrorKind, Result};
use crate::namespace::Namespace;
use crate::store::{OpenOptions, schema};

/// What a program brings a namespace to.
pub(super) struct Schema {
    /// The tables of the newest version, for a new namespace.
    pub(super) tables: &'static [&'static str],
    /// By version, from 2 on: what brings the tables of the version before to it.
    pub(super) steps: &'static [(i32, &'static str)],
    /// Functions, views, triggers and rights.
    pub(super) code: &'static [&'static str],
    /// The version of the program.
    pub(super) program: &'static str,
}

macro_rules! files {
    ($($file:literal),* $(,)?) => { &[$(include_str!(concat!("schema/", $file)),)*] };
}

pub(super) const SCHEMA: Schema = Schema {
    tables: files![
        "tables/schema_version.sql",
        "tables/topic.sql",
        "tables/log.sql",
        "tables/publish.sql",
        "tables/subscription.sql",
        "tables/owner.sql",
        "tables/retention.sql",
        "tables/tracking.sql",
        "tables/maintenance.sql",
        "tables/types.sql",
    ],
    steps: &[],
    code: files![
        "functions/arm.sql",
        "functions/claim.sql",
        "functions/claim_ordered.sql",
        "functions/clean.sql",
        "functions/clock.sql",
        "functions/cron.sql",
        "functions/epoch.sql",
        "functions/head.sql",
        "functions/heartbeat.sql",
        "functions/lease.sql",
        "functions/limits.sql",
        "functions/locks.sql",
        "functions/log/messages.sql",
        "functions/log/partitions.sql",
        "functions/maintenance.sql",
        "functions/offsets.sql",
        "functions/owner.sql",
        "functions/progress.sql",
        "functions/publish.sql",
        "functions/redrive.sql",
        "functions/remove.sql",
        "functions/resurrect.sql",
        "functions/seek.sql",
        "functions/settle.sql",
        "functions/state.sql",
        "functions/subscribe.sql",
        "functions/topic.sql",
        "functions/tracking/backfill.sql",
        "functions/tracking/counting.sql",
        "functions/tracking/step.sql",
        "views.sql",
        "roles.sql",
    ],
    program: env!("CARGO_PKG_VERSION"),
};

impl Schema {
    /// The version of its tables.
    fn version(&self) -> i32 {
        self.steps.last().map_or(1, |(version, _)| *version)
    }

    /// Whether this program has nothing to replace: the code is its own, or that of a newer program.
    fn is_current(&self, installed: &Installed) -> bool {
        installed.code == schema::hash(self.code) || schema::newer(&installed.program, self.program)
    }
}

/// The version of the tables this program works with.
pub fn newest() -> i32 {
    SCHEMA.version()
}

/// What a migration did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// The version of the tables before; 0 if there was nothing.
    pub from: i32,
    /// The version now.
    pub to: i32,
    /// Whether functions, views, triggers and rights were replaced.
    pub code_replaced: bool,
}

/// The schema of a namespace, as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// The version of its tables.
    pub tables: i32,
    /// Whether this program would leave its functions, views, triggers and rights as they are.
    pub is_current: bool,
}

/// How often creating a schema is tried again because another process created it at the same moment.
const ATTEMPTS_MAX: u32 = 5;

/// What stands under the namespace's name.
enum Found {
    Nothing,
    Foreign,
    /// Made by a program before the first release.
    Unreleased,
    Installed(Installed),
}

struct Installed {
    tables: i32,
    code: String,
    program: String,
}

/// Migrates a namespace to this program's version, creating it if it is missing. Safe when many do it at once.
pub async fn migrate(url: &str, namespace: &Namespace, options: &OpenOptions) -> Result<Migration> {
    migrate_to(&SCHEMA, url, namespace, options).await
}

pub(super) async fn migrate_to(
    schema: &Schema,
    url: &str,
    namespace: &Namespace,
    options: &OpenOptions,
) -> Result<Migration> {
    let connections = Connections::new(url, namespace, options)?;
    let done = apply(schema, &connections, namespace).await;
    connections.close();
    done
}

/// The version a namespace is at, without touching it; `None` if there is nothing of that name.
pub async fn version(url: &str, namespace: &Namespace, options: &OpenOptions) -> Result<Option<Version>> {
    let connections = Connections::new(url, namespace, options)?;
    let found = find(&connections, namespace).await;
    connections.close();
    match found? {
        Found::Nothing => Ok(None),
        Found::Installed(installed) => {
            Ok(Some(Version { tables: installed.tables, is_current: SCHEMA.is_current(&installed) }))
        }
        Found::Foreign => Err(foreign(namespace)),
        Found::Unreleased => Err(unreleased(namespace)),
    }
}

/// Makes sure that a namespace can be used: creates a missing one, migrates an older one if allowed.
pub(super) async fn prepare(
    connections: &Connections,
    namespace: &Namespace,
    may_migrate: bool,
) -> Result<()> {
    let newest = newest();
    match find(connections, namespace).await? {
        Found::Installed(installed) if installed.tables > newest => Err(too_new(namespace, installed.tables)),
        Found::Installed(installed) if installed.tables == newest && SCHEMA.is_current(&installed) => Ok(()),
        Found::Installed(installed) if !may_migrate => Err(outdated(namespace, &installed)),
        Found::Foreign => Err(foreign(namespace)),
        Found::Unreleased => Err(unreleased(namespace)),
        Found::Nothing | Found::Installed(_) => apply(&SCHEMA, connections, namespace).await.map(drop),
    }
}

fn outdated(namespace: &Namespace, installed: &Installed) -> Error {
    let (tables, newest) = (installed.tables, newest());
    let text = match tables == newest {
        true => format!("namespace {namespace} has the functions of another build ({})", installed.program),
        false => format!("namespace {namespace} is at schema version {tables}, this program needs {newest}"),
    };
    Error::new(ErrorKind::SchemaOutdated, format!("{text}; run `headwater migrate`"))
}

fn unreleased(namespace: &Namespace) -> Error {
    Error::new(
        ErrorKind::SchemaOutdated,
        format!(
            "namespace {namespace} was made by a development version before the first release, which this program does not \
             read; nothing was changed. Choose another namespace, or drop the schema (DROP SCHEMA {namespace} CASCADE) if its \
             messages are not needed"
        ),
    )
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
            "namespace {namespace} is at schema version {version}, this program knows up to {}; upgrade the program",
            newest()
        ),
    )
}

/// What there is under the name, and whom it belongs to. Every object of a schema depends on it: tables and functions, and also types
/// and operators, which a function of ours could call by mistake.
const FIND: &str = "SELECT n.oid IS NOT NULL AS there,
    EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relname = 'lease_token')
      AND EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relname = 'schema_version') AS ours,
    EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relname = 'lease_token')
      AND EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relname = 'migration') AS unreleased,
    EXISTS (SELECT FROM pg_depend d WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid) AS used,
    current_user::text AS me, pg_get_userbyid(n.nspowner)::text AS owner,
    (SELECT string_agg(DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(a.grantee) END, ', ')
     FROM aclexplode(n.nspacl) a WHERE a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner) AS creators,
    (SELECT pg_describe_object(d.classid, d.objid, 0) || ' of role ' || pg_get_userbyid(o.refobjid)
     FROM pg_depend d JOIN pg_shdepend o ON o.classid = d.classid AND o.objid = d.objid AND o.deptype = 'o'
         AND o.dbid = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())
     WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid AND o.refobjid <> n.nspowner LIMIT 1) AS other
    FROM (SELECT 1) one LEFT JOIN pg_namespace n ON n.nspname = $1";

async fn find(connections: &Connections, namespace: &Namespace) -> Result<Found> {
    let client = connections.get().await?;
    let translate = |error| fault::translate("reading the schema's version", error);
    let row = client.query_one(FIND, &[&namespace.as_str()]).await.map_err(translate)?;
    Ok(if stored(&row, "ours")? {
        Found::Installed(installed(&client, namespace).await?)
    } else if stored(&row, "unreleased")? {
        Found::Unreleased
    } else if stored(&row, "there")? && stored(&row, "used")? {
        Found::Foreign
    } else {
        Found::Nothing
    })
}

async fn installed(client: &impl GenericClient, namespace: &Namespace) -> Result<Installed> {
    let sql = in_namespace("SELECT tables, code, program FROM {schema}.schema_version", namespace);
    let row = client.query_one(&sql, &[]).await;
    let row = row.map_err(|error| fault::translate("reading the schema's version", error))?;
    Ok(Installed {
        tables: stored(&row, "tables")?,
        code: stored(&row, "code")?,
        program: stored(&row, "program")?,
    })
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
        return Err(if stored(row, "unreleased")? { unreleased(namespace) } else { foreign(namespace) });
    }
    if let Some(other) = stored::<_, Option<&str>>(row, "other")? {
        return refused(format!(
            "schema {namespace} of role {owner} has an object of another role: {other}; drop it, or give it to {owner}; \
             nothing was changed"
        ));
    }
    Ok(())
}

/// Applies what is missing, in one transaction. Of many that do it at once one goes first, and the others wait for it and find it
/// done: at the name of the schema or of its first table if they are missing, else at the table of the version. All of them
/// are locks that no stranger can hold.
async fn apply(schema: &Schema, connections: &Connections, namespace: &Namespace) -> Result<Migration> {
    let (mut attempt, mut afresh) = (1, false);
    loop {
        match apply_once(schema, connections, namespace, afresh).await {
            // Created by another process while this one waited for its name.
            Err(error) if attempt < ATTEMPTS_MAX && fault::code_is(&error, DUPLICATES) => attempt += 1,
            Err(error) if !afresh && fault::code_is(&error, NOT_REPLACEABLE) => afresh = true,
            done => return done,
        }
    }
}

/// `unique_violation`, `duplicate_schema`, `duplicate_table`.
const DUPLICATES: &[&str] = &["23505", "42P06", "42P07"];

async fn apply_once(
    schema: &Schema,
    connections: &Connections,
    namespace: &Namespace,
    afresh: bool,
) -> Result<Migration> {
    let translate = |error| fault::translate("migrating the schema", error);
    let mut client = connections.get().await?;
    let transaction = client.transaction().await.map_err(translate)?;
    let row = transaction.query_one(FIND, &[&namespace.as_str()]).await.map_err(translate)?;
    refuse_others(namespace, &row)?;
    // Bodies are not checked while functions are missing that come later.
    run(
        &transaction,
        namespace,
        "SET LOCAL client_min_messages = warning; SET LOCAL check_function_bodies = off",
    )
    .await?;
    let (there, ours): (bool, bool) = (stored(&row, "there")?, stored(&row, "ours")?);
    let before = match ours {
        true => {
            run(&transaction, namespace, "LOCK TABLE {schema}.schema_version IN SHARE ROW EXCLUSIVE MODE")
                .await?;
            Some(installed(&transaction, namespace).await?)
        }
        false => None,
    };
    let (from, to) = (before.as_ref().map_or(0, |before| before.tables), schema.version());
    if from > to {
        return Err(too_new(namespace, from));
    }
    match before {
        None => create_tables(&transaction, schema, namespace, there).await?,
        Some(_) => migrate_tables(&transaction, schema, namespace, from).await?,
    }
    let code_replaced = before.is_none_or(|before| !schema.is_current(&before));
    if code_replaced {
        replace_code(&transaction, schema, namespace, afresh).await?;
    }
    if from == 0 {
        run(&transaction, namespace, "SELECT {schema}.begin_epoch()").await?;
    }
    // Also where nothing was missing: a dump restored without its roles has neither grants nor revocations.
    run(&transaction, namespace, "SELECT {schema}.revoke_public(); SELECT {schema}.grant_roles()").await?;
    let note = "INSERT INTO {schema}.schema_version AS v (tables, code, program, migrated_at)
        SELECT $1, $2, $3, clock_timestamp() WHERE $4 OR $1 > coalesce((SELECT x.tables FROM {schema}.schema_version x), 0)
        ON CONFLICT (one) DO UPDATE SET tables = excluded.tables, migrated_at = excluded.migrated_at,
            code = CASE WHEN $4 THEN excluded.code ELSE v.code END,
            program = CASE WHEN $4 THEN excluded.program ELSE v.program END";
    transaction
        .execute(
            &in_namespace(note, namespace),
            &[&to, &schema::hash(schema.code), &schema.program, &code_replaced],
        )
        .await
        .map_err(translate)?;
    transaction.commit().await.map_err(|error| fault::translate_commit("migrating the schema", error))?;
    if from < to || code_replaced {
        tracing::info!(namespace = namespace.as_str(), from, to, code_replaced, "schema migrated");
    }
    Ok(Migration { from, to, code_replaced })
}

async fn run(transaction: &Transaction<'_>, namespace: &Namespace, sql: &str) -> Result<()> {
    let done = transaction.batch_execute(&in_namespace(sql, namespace)).await;
    done.map_err(|error| fault::translate("migrating the schema", error))
}

async fn create_tables(
    transaction: &Transaction<'_>,
    schema: &Schema,
    namespace: &Namespace,
    there: bool,
) -> Result<()> {
    if !there {
        run(transaction, namespace, "CREATE SCHEMA {schema}").await?;
    }
    for sql in schema.tables {
        run(transaction, namespace, sql).await?;
    }
    Ok(())
}

async fn migrate_tables(
    transaction: &Transaction<'_>,
    schema: &Schema,
    namespace: &Namespace,
    from: i32,
) -> Result<()> {
    for (version, sql) in schema.steps.iter().filter(|(version, _)| *version > from) {
        let done = transaction.batch_execute(&in_namespace(sql, namespace)).await;
        done.map_err(|error| fault::translate(&format!("migrating the tables to version {version}"), error))?;
    }
    Ok(())
}

/// Replaces functions, views, triggers and rights. In place where it can: programs that run meanwhile notice nothing, and what
/// other programs built on a view stays. Where the server cannot replace one (its result or the names of its parameters changed),
/// all of it is dropped first (`afresh`). Functions that no file has any more go: the schema is Headwater's alone.
async fn replace_code(
    transaction: &Transaction<'_>,
    schema: &Schema,
    namespace: &Namespace,
    afresh: bool,
) -> Result<()> {
    if afresh {
        run(transaction, namespace, DROP_CODE).await?;
    }
    for sql in schema.code {
        run(transaction, namespace, sql).await?;
    }
    let gone = transaction.query(&in_namespace(FORMER_FUNCTIONS, namespace), &[]).await;
    for row in gone.map_err(|error| fault::translate("migrating the schema", error))? {
        let function: &str = stored(&row, 0)?;
        run(transaction, namespace, &format!("DROP FUNCTION {function}")).await?;
        tracing::info!(namespace = namespace.as_str(), function, "function of a former version dropped");
    }
    Ok(())
}

/// `invalid_function_definition`, `invalid_table_definition`: what cannot be replaced in place.
const NOT_REPLACEABLE: &[&str] = &["42P13", "42P16"];

const DROP_CODE: &str = "DO $$
DECLARE
    v_object text;
BEGIN
    FOR v_object IN
        SELECT format('TRIGGER %I ON %s', t.tgname, t.tgrelid::regclass) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        WHERE c.relnamespace = '{schema}'::regnamespace AND NOT t.tgisinternal
        UNION ALL
        -- At once: one may be made of another.
        SELECT 'VIEW ' || string_agg(c.oid::regclass::text, ', ') FROM pg_class c
        WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind = 'v' HAVING count(*) > 0
        UNION ALL
        SELECT 'FUNCTION ' || p.oid::regprocedure FROM pg_proc p WHERE p.pronamespace = '{schema}'::regnamespace
    LOOP
        EXECUTE 'DROP ' || v_object;
    END LOOP;
END $$";

/// Functions that this transaction did not write.
const FORMER_FUNCTIONS: &str = "SELECT p.oid::regprocedure::text FROM pg_proc p
    WHERE p.pronamespace = '{schema}'::regnamespace AND p.xmin <> pg_current_xact_id()::xid";

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
