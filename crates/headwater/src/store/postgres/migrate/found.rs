//! What exists under a namespace's name: nothing, a schema of Headwater or of another application, and who else has rights there.

use deadpool_postgres::{Object, Transaction};
use tokio_postgres::Row;

use super::super::connect::Connections;
use super::super::statements::in_namespace;
use super::super::time::stored;
use super::super::{fault, rights};
use super::newest;
use crate::error::{Error, ErrorKind, Result};
use crate::namespace::Namespace;

/// What exists under the namespace's name.
pub(super) enum Found {
    Nothing,
    Foreign,
    /// Made by a program before the first release.
    Unreleased,
    Installed(Installed),
}

pub(super) struct Installed {
    pub(super) tables: i32,
    /// What the files of its tables define; none before it was stored.
    pub(super) definition: Option<String>,
    pub(super) code: String,
    pub(super) program: String,
}

/// What exists under the name, and who owns it. `used` covers every object that depends on the schema: tables and
/// functions, and also types and operators, which a function of ours could call by mistake. `readable`: reading `schema_version`
/// runs nothing of another role's, as a view, a policy, or the cast of a type could.
pub(super) const FIND: &str = "SELECT n.oid IS NOT NULL AS there,
    EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relname = 'lease_token')
      AND EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relname = 'schema_version') AS ours,
    EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relname = 'lease_token')
      AND EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relname = 'migration') AS unreleased,
    EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relname = 'schema_version' AND c.relkind = 'r'
            AND c.relowner = n.nspowner AND NOT c.relrowsecurity AND NOT c.relhassubclass
            AND NOT EXISTS (SELECT FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
                            WHERE a.attrelid = c.oid AND t.typnamespace <> to_regnamespace('pg_catalog')::oid)) AS readable,
    EXISTS (SELECT FROM pg_depend d WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid) AS used,
    current_user::text AS me,
    (SELECT r.rolname::text FROM pg_roles r JOIN pg_roles m ON m.rolname = current_user
     WHERE r.rolname = session_user AND r.rolsuper AND NOT m.rolsuper) AS superuser, pg_get_userbyid(n.nspowner)::text AS owner,
    (SELECT string_agg(DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(a.grantee) END, ', ')
     FROM aclexplode(n.nspacl) a WHERE a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner) AS creators,
    (SELECT pg_describe_object(d.classid, d.objid, 0) || ' of role ' || pg_get_userbyid(o.refobjid)
     FROM pg_depend d JOIN pg_shdepend o ON o.classid = d.classid AND o.objid = d.objid AND o.deptype = 'o'
         AND o.dbid = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())
     WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid AND o.refobjid <> n.nspowner LIMIT 1) AS other
    FROM (SELECT 1) one LEFT JOIN pg_namespace n ON n.nspname = $1";

/// The stored version. By name in JSON: a table of before the first release has no such column.
const INSTALLED: &str = "SELECT v.tables, to_jsonb(v) ->> 'definition' AS definition, v.code, v.program FROM {schema}.schema_version v";

pub(super) async fn find(connections: &Connections, namespace: &Namespace) -> Result<Found> {
    let mut client = connections.get().await?;
    let transaction = without_others(&mut client).await?;
    let row = transaction.query_one(FIND, &[&namespace.as_str()]).await.map_err(unread)?;
    transaction.rollback().await.map_err(unread)?;
    // Again, because the schema may have been created since the session was prepared.
    connections.hosts().check_namespace(&client).await.map_err(unread)?;
    Ok(if stored(&row, "ours")? {
        if !stored(&row, "readable")? {
            return Err(forged(namespace, stored(&row, "owner")?));
        }
        let transaction = without_others(&mut client).await?;
        let read = installed(&transaction, namespace).await;
        transaction.rollback().await.map_err(unread)?;
        match read {
            Ok(installed) => Found::Installed(installed),
            Err(error) => {
                return Err(
                    rights::explain(&client, namespace, &in_namespace(INSTALLED, namespace), error).await
                );
            }
        }
    } else if stored(&row, "unreleased")? {
        Found::Unreleased
    } else if stored(&row, "there")? && stored(&row, "used")? {
        Found::Foreign
    } else {
        Found::Nothing
    })
}

/// A transaction in which no operator or function of another schema takes part: the session's `search_path` may name a schema of
/// another role, whose operators could fit these statements better than PostgreSQL's.
async fn without_others(client: &mut Object) -> Result<Transaction<'_>> {
    let transaction = client.transaction().await.map_err(unread)?;
    transaction.batch_execute("SET LOCAL search_path = pg_catalog, pg_temp").await.map_err(unread)?;
    Ok(transaction)
}

fn unread(error: tokio_postgres::Error) -> Error {
    fault::translate("reading the schema's version", error)
}

pub(super) async fn installed(transaction: &Transaction<'_>, namespace: &Namespace) -> Result<Installed> {
    let row = transaction.query_one(&in_namespace(INSTALLED, namespace), &[]).await.map_err(unread)?;
    Ok(Installed {
        tables: stored(&row, "tables")?,
        definition: stored(&row, "definition")?,
        code: stored(&row, "code")?,
        program: stored(&row, "program")?,
    })
}

/// Refuses a schema that another role can change. The owner of a schema may replace any function in it, also functions that
/// run with the rights of the migrating user, often a superuser. A role that may create objects in the schema, or owns some
/// there, can add an overload that fits a call better than our function.
pub(super) fn refuse_others(namespace: &Namespace, row: &Row) -> Result<()> {
    let refused = |text: String| Err(Error::new(ErrorKind::PermissionDenied, text));
    let me: &str = stored(row, "me")?;
    if let Some(superuser) = stored::<_, Option<&str>>(row, "superuser")? {
        return refused(format!(
            "schema {namespace} would belong to role {me}, and this is a session of superuser {superuser}: functions of {me} could \
             act with the rights of {superuser}; log in as {me}; nothing was changed"
        ));
    }
    if !stored::<_, bool>(row, "there")? {
        return Ok(());
    }
    let owner: &str = stored(row, "owner")?;
    if owner != me {
        return refused(format!(
            "schema {namespace} belongs to role {owner}, and this is role {me}: migrate as {owner}, choose another namespace, \
             or make {me} the owner (ALTER SCHEMA {namespace} OWNER TO {me}) if the schema is yours; nothing was changed"
        ));
    }
    if let Some(creators) = stored::<_, Option<&str>>(row, "creators")? {
        return refused(format!(
            "schema {namespace} of role {owner} is open to {creators}, who may create objects in it: run REVOKE CREATE ON SCHEMA \
             {namespace} FROM {creators} first; nothing was changed"
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

pub(super) fn missing(connections: &Connections, namespace: &Namespace) -> Error {
    let place = connections.hosts().address().place();
    Error::no_such_store(&format!("headwater schema {namespace} in {place}"))
}

pub(super) fn outdated(namespace: &Namespace, installed: &Installed) -> Error {
    let (tables, newest) = (installed.tables, newest());
    let text = match tables == newest {
        true => format!("namespace {namespace} has the functions of another build ({})", installed.program),
        false => format!("namespace {namespace} is at schema version {tables}, this program needs {newest}"),
    };
    Error::new(ErrorKind::SchemaOutdated, format!("{text}; run `headwater migrate`"))
}

pub(super) fn unreleased(namespace: &Namespace) -> Error {
    Error::new(
        ErrorKind::SchemaOutdated,
        format!(
            "namespace {namespace} was made by a development version before the first release, which this program does not \
             read; nothing was changed. Choose another namespace, or drop the schema (DROP SCHEMA {namespace} CASCADE) if its \
             messages are not needed"
        ),
    )
}

pub(super) fn foreign(namespace: &Namespace) -> Error {
    Error::new(
        ErrorKind::NotAStore,
        format!(
            "schema {namespace} exists and is not one of Headwater's; choose another namespace, nothing was changed"
        ),
    )
}

/// Not read: it could run functions of its owner, with the rights of this session.
fn forged(namespace: &Namespace, owner: &str) -> Error {
    Error::new(
        ErrorKind::PermissionDenied,
        format!(
            "schema {namespace} of role {owner} is not one of Headwater's: its schema_version is not a plain table of {owner}; choose \
             another namespace, nothing was changed"
        ),
    )
}

pub(super) fn too_new(namespace: &Namespace, version: i32) -> Error {
    Error::new(
        ErrorKind::SchemaTooNew,
        format!(
            "namespace {namespace} is at schema version {version}, this program supports up to {}; upgrade the program",
            newest()
        ),
    )
}
