//! The schema: creating, migrating and dropping a namespace.
//!
//! Tables and types are migrated: `schema/tables` is the complete definition for a new namespace, and each later version
//! adds a numbered step that upgrades the tables of the version before. Functions, views, triggers and rights are code:
//! they are replaced whole, in the same transaction, whenever this program's differ from those in the database.
//!
//! Programs of two versions run beside each other during a deploy. A program never replaces the code of a newer one, and
//! opens a namespace whose tables are of its version whatever the code: its calls succeed as long as the functions they
//! name exist, and are refused as `SchemaOutdated` otherwise. Tables of a later version are refused when the store opens,
//! as `SchemaTooNew`.

use deadpool_postgres::Transaction;
use tokio_postgres::error::SqlState;

use super::connect::Connections;
use super::fault;
use super::statements::in_namespace;
use super::time::stored;
use crate::error::Result;
use crate::namespace::Namespace;
use crate::store::{OpenOptions, schema};

mod found;

use found::{
    FIND, Found, Installed, find, foreign, installed, missing, outdated, refuse_others, too_new, unreleased,
};

/// The schema that a program needs.
pub(super) struct Schema {
    /// The tables of the newest version, for a new namespace.
    pub(super) tables: &'static [&'static str],
    /// By version, from 2 on: the statements that upgrade the tables of the version before.
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
        "tables/outbox.sql",
        "tables/token.sql",
        "tables/subscription.sql",
        "tables/dead_letter.sql",
        "tables/owner.sql",
        "tables/retention.sql",
        "tables/tracking.sql",
        "tables/maintenance.sql",
        "tables/process.sql",
        "tables/types.sql",
    ],
    steps: &[],
    code: files![
        "functions/arm.sql",
        "functions/bridge.sql",
        "functions/claim.sql",
        "functions/claim_ordered.sql",
        "functions/claim_fast.sql",
        "functions/claim_unordered.sql",
        "functions/clean.sql",
        "functions/clock.sql",
        "functions/cron.sql",
        "functions/dead_letter.sql",
        "functions/epoch.sql",
        "functions/head.sql",
        "functions/heartbeat.sql",
        "functions/inbox.sql",
        "functions/lease.sql",
        "functions/limits.sql",
        "functions/locks.sql",
        "functions/log/messages.sql",
        "functions/log/partitions.sql",
        "functions/maintenance.sql",
        "functions/message.sql",
        "functions/offsets.sql",
        "functions/outbox.sql",
        "functions/owner.sql",
        "functions/process.sql",
        "functions/progress.sql",
        "functions/publish.sql",
        "functions/read.sql",
        "functions/redrive.sql",
        "functions/relay.sql",
        "functions/remove.sql",
        "functions/resurrect.sql",
        "functions/schedule.sql",
        "functions/seek.sql",
        "functions/settle.sql",
        "functions/settle_read.sql",
        "functions/state.sql",
        "functions/subscribe.sql",
        "functions/token.sql",
        "functions/topic.sql",
        "functions/topic_delete.sql",
        "functions/tracking/backfill.sql",
        "functions/tracking/counting.sql",
        "functions/tracking/step.sql",
        "views.sql",
        "operator_views.sql",
        "roles.sql",
        "comments.sql",
    ],
    program: env!("CARGO_PKG_VERSION"),
};

impl Schema {
    /// Refuses tables that this program cannot work with: later ones, and those of a build that was never released.
    fn check_tables(&self, namespace: &Namespace, installed: &Installed) -> Result<()> {
        let newest = self.version();
        if installed.tables > newest {
            return Err(too_new(namespace, installed.tables));
        }
        let is_same = installed.definition.as_deref() == Some(&*schema::definition(self.tables));
        if installed.tables == newest && !is_same { Err(unreleased(namespace)) } else { Ok(()) }
    }

    /// Its code as it is run, but for the namespace.
    pub(super) fn code(&self) -> Vec<String> {
        schema::with_settings(self.code)
    }

    /// The version of its tables.
    fn version(&self) -> i32 {
        self.steps.last().map_or(1, |(version, _)| *version)
    }

    /// Whether this program has nothing to replace: the code is its own, or that of a newer program.
    fn is_current(&self, installed: &Installed) -> bool {
        installed.code == schema::hash(&self.code()) || schema::newer(&installed.program, self.program)
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

/// How often creating a schema is retried because another process created it at the same moment.
const ATTEMPTS_MAX: u32 = 5;

/// Migrates a namespace to this program's version, creating it if it is missing. Safe when many processes do it at once.
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

/// The version of a namespace, read only; `None` if no schema of that name exists.
pub async fn version(url: &str, namespace: &Namespace, options: &OpenOptions) -> Result<Option<Version>> {
    let connections = Connections::new(url, namespace, options)?;
    let found = find(&connections, namespace).await;
    connections.close();
    match found? {
        Found::Nothing => Ok(None),
        Found::Installed(installed) => {
            if installed.tables <= newest() {
                SCHEMA.check_tables(namespace, &installed)?;
            }
            Ok(Some(Version { tables: installed.tables, is_current: SCHEMA.is_current(&installed) }))
        }
        Found::Foreign => Err(foreign(namespace)),
        Found::Unreleased => Err(unreleased(namespace)),
    }
}

/// Makes sure that a namespace can be used: creates a missing one and migrates an older one, each if allowed.
pub(super) async fn prepare(
    connections: &Connections,
    namespace: &Namespace,
    options: &OpenOptions,
) -> Result<()> {
    match find(connections, namespace).await? {
        Found::Installed(installed) => {
            SCHEMA.check_tables(namespace, &installed)?;
            if installed.tables == newest() && SCHEMA.is_current(&installed) {
                return Ok(());
            }
            if !options.migrate || options.read_only {
                return Err(outdated(namespace, &installed));
            }
        }
        Found::Foreign => return Err(foreign(namespace)),
        Found::Unreleased => return Err(unreleased(namespace)),
        Found::Nothing if !options.create || options.read_only => {
            return Err(missing(connections, namespace));
        }
        Found::Nothing => {}
    }
    apply(&SCHEMA, connections, namespace).await.map(drop)
}

/// Applies what is missing, in one transaction. If several processes do it at once, one goes first; the others wait and
/// then find it done. They wait for the name of the schema or of its first table if these are missing, otherwise for the
/// lock of the table `schema_version`. No other role can hold any of these locks.
async fn apply(schema: &Schema, connections: &Connections, namespace: &Namespace) -> Result<Migration> {
    let (mut attempt, mut afresh) = (1, false);
    loop {
        match apply_once(schema, connections, namespace, afresh).await {
            // Another process created the object while this one waited for its name.
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
    // First of all: no operator or function of another schema takes part in the check, or in what is created.
    run(&transaction, namespace, "SET LOCAL search_path = pg_catalog, pg_temp").await?;
    let row = transaction.query_one(FIND, &[&namespace.as_str()]).await.map_err(translate)?;
    refuse_others(namespace, &row)?;
    // Bodies are not checked: they may call functions that are created later.
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
    if let Some(before) = &before {
        schema.check_tables(namespace, before)?;
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
    // Also if nothing was missing: a dump restored without its roles has neither grants nor revocations.
    run(&transaction, namespace, "SELECT {schema}.revoke_public(); SELECT {schema}.grant_roles()").await?;
    let note = "INSERT INTO {schema}.schema_version AS v (tables, definition, code, program, migrated_at)
        SELECT $1, $5, $2, $3, clock_timestamp() WHERE $4 OR $1 > coalesce((SELECT x.tables FROM {schema}.schema_version x), 0)
        ON CONFLICT (one) DO UPDATE SET tables = excluded.tables, definition = excluded.definition, migrated_at = excluded.migrated_at,
            code = CASE WHEN $4 THEN excluded.code ELSE v.code END,
            program = CASE WHEN $4 THEN excluded.program ELSE v.program END";
    transaction
        .execute(
            &in_namespace(note, namespace),
            &[
                &to,
                &schema::hash(&schema.code()),
                &schema.program,
                &code_replaced,
                &schema::definition(schema.tables),
            ],
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

/// Replaces functions, views, triggers and rights. In place where possible: running programs are not disturbed, and objects
/// that others built on a view stay. Where the server cannot replace an object (its result or the names of its parameters
/// changed), all code is dropped first (`afresh`). Functions that no file defines any more are dropped: the schema is
/// Headwater's alone.
async fn replace_code(
    transaction: &Transaction<'_>,
    schema: &Schema,
    namespace: &Namespace,
    afresh: bool,
) -> Result<()> {
    if afresh {
        run(transaction, namespace, DROP_CODE).await?;
    }
    for sql in schema.code() {
        run(transaction, namespace, &sql).await?;
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
        -- In one statement: one view may depend on another.
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

/// How often the drop of a schema is attempted.
const DROP_ATTEMPTS: u32 = 10;

/// Removes a namespace whole, and the roles that were created for it, where nothing else uses them.
///
/// Other sessions may use it: a statement under way has locked some of its tables and waits for others, in the order of its
/// plan, while the drop locks all of them. No order of locks prevents that circle, so PostgreSQL ends one of the two. The
/// drop is repeated if it was that one: its transaction has changed nothing.
pub(super) async fn drop_namespace(connections: &Connections, namespace: &Namespace) -> Result<()> {
    let translate = |error| fault::translate("dropping the namespace", error);
    let client = connections.get().await?;
    // Both statements are sent together, and so are one transaction: the setting ends with it, and does not stay with a session
    // behind a pooler.
    let sql = "SET LOCAL client_min_messages = warning; DROP SCHEMA IF EXISTS {schema} CASCADE";
    let sql = in_namespace(sql, namespace);
    let mut attempt = 1;
    while let Err(error) = client.batch_execute(&sql).await {
        if error.code() != Some(&SqlState::T_R_DEADLOCK_DETECTED) || attempt == DROP_ATTEMPTS {
            return Err(translate(error));
        }
        tracing::debug!(
            namespace = namespace.as_str(),
            attempt,
            "drop of the namespace repeated after a deadlock"
        );
        attempt += 1;
    }
    let marked = "SELECT r.rolname::text FROM pg_roles r WHERE r.rolname = ANY ($1::text[])
                  AND shobj_description(r.oid, 'pg_authid') = $2";
    let names = ["producer", "consumer", "reader", "operator"].map(|kind| format!("{namespace}_{kind}"));
    let mark = format!("headwater: role of namespace {namespace}");
    for row in client.query(marked, &[&names.as_slice(), &mark]).await.map_err(translate)? {
        let role: &str = stored(&row, 0)?;
        // A role that has grants elsewhere, or that this user may not drop, stays: it has no rights in the namespace any more.
        if let Err(error) = client.batch_execute(&format!("DROP ROLE \"{role}\"")).await {
            tracing::debug!(namespace = namespace.as_str(), role, %error, "role kept");
        }
    }
    Ok(())
}
