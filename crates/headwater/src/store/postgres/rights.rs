//! Which role a refused statement needs. The grants themselves decide it (`schema/roles.sql`): a role of the namespace that may
//! call every function, and read every table, that the statement names.

use std::time::Duration;

use deadpool_postgres::GenericClient;

use super::fault;
use super::statements::in_namespace;
use super::time::stored;
use crate::error::{Error, Result};
use crate::namespace::Namespace;

/// How long the server may take to answer which role is missing. Without an answer its refusal is reported as it is.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The statement's text; its mark of the namespace's roles. Roles are listed by name.
const MISSING: &str = r#"WITH named AS (
        SELECT DISTINCT m[1] AS name FROM regexp_matches($1, '{schema}\.([a-z_0-9]+)', 'g') m
    ), role AS (
        SELECT r.oid, r.rolname::text AS name FROM pg_roles r
        WHERE shobj_description(r.oid, 'pg_authid') = $2
    ), able AS (
        SELECT r.name, pg_has_role(current_user, r.oid, 'MEMBER') AS is_mine,
            NOT EXISTS (SELECT FROM named n JOIN pg_proc p ON p.proname = n.name
                        WHERE p.pronamespace = to_regnamespace('{schema}') AND NOT has_function_privilege(r.oid, p.oid, 'EXECUTE'))
            AND NOT EXISTS (SELECT FROM named n JOIN pg_class c ON c.relname = n.name
                            WHERE c.relnamespace = to_regnamespace('{schema}') AND NOT has_table_privilege(r.oid, c.oid, 'SELECT'))
              AS is_able
        FROM role r
    )
    SELECT current_user::text AS me,
        (SELECT pg_get_userbyid(n.nspowner)::text FROM pg_namespace n WHERE n.oid = to_regnamespace('{schema}')) AS owner,
        coalesce((SELECT array_agg(a.name ORDER BY a.name) FROM able a WHERE a.is_mine), '{}') AS mine,
        coalesce((SELECT array_agg(a.name ORDER BY a.name) FROM able a WHERE a.is_able), '{}') AS able"#;

/// Whether a statement was refused for lack of rights.
pub(super) fn are_missing(error: &Error) -> bool {
    fault::code_is(error, &["42501"])
}

/// Adds the missing role to a refusal for lack of rights; any other error is returned unchanged.
pub(super) async fn explain(
    client: &impl GenericClient,
    namespace: &Namespace,
    sql: &str,
    error: Error,
) -> Error {
    if !are_missing(&error) {
        return error;
    }
    match tokio::time::timeout(ANSWER_TIMEOUT, missing(client, namespace, sql)).await {
        Ok(Ok(Some(missing))) => error.with_remedy(&missing),
        Ok(Err(unknown)) => {
            tracing::debug!(%unknown, "missing role not found");
            error
        }
        _ => error,
    }
}

async fn missing(client: &impl GenericClient, namespace: &Namespace, sql: &str) -> Result<Option<String>> {
    let mark = format!("headwater: role of namespace {namespace}");
    let row = client.query_one(&in_namespace(MISSING, namespace), &[&sql, &mark]).await;
    let row = row.map_err(|error| fault::translate("reading rights", error))?;
    let (me, owner): (&str, Option<&str>) = (stored(&row, "me")?, stored(&row, "owner")?);
    let (mine, able): (Vec<&str>, Vec<&str>) = (stored(&row, "mine")?, stored(&row, "able")?);
    Ok(said(me, owner, &mine, &able))
}

/// The remedy; none where the grants do not explain the refusal.
fn said(me: &str, owner: Option<&str>, mine: &[&str], able: &[&str]) -> Option<String> {
    if able.iter().any(|role| mine.contains(role)) {
        return None;
    }
    let needed = match (able, owner) {
        ([], None) => return None,
        ([], Some(owner)) => format!("needs the schema's owner, {owner}"),
        ([one], _) => format!("needs role {one}"),
        ([first @ .., last], _) => format!("needs role {} or {last}", first.join(", ")),
    };
    let member = match mine {
        [] => ", a member of no role of this namespace".to_owned(),
        // One of these roles itself, without a user.
        mine if mine.contains(&me) => String::new(),
        mine => format!(", a member of {}", mine.join(", ")),
    };
    Some(format!("{needed}; you are {me}{member}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_missing_role_is_named_with_those_held() {
        let said = |mine: &[&str], able: &[&str]| said("joe", Some("ann"), mine, able);
        assert_eq!(
            said(&["hw_consumer"], &["hw_operator"]).unwrap(),
            "needs role hw_operator; you are joe, a member of hw_consumer"
        );
        assert_eq!(
            said(&[], &["a", "b", "c"]).unwrap(),
            "needs role a, b or c; you are joe, a member of no role of this namespace"
        );
        assert_eq!(
            said(&["a", "b"], &[]).unwrap(),
            "needs the schema's owner, ann; you are joe, a member of a, b"
        );
        assert_eq!(said(&["a"], &["a", "b"]), None, "the refusal has another cause");
    }
}
