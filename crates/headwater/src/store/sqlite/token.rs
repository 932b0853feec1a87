//! API tokens: each change writes its audit entry in the same transaction.

use std::sync::Arc;

use rusqlite::{OptionalExtension, params};
use serde_json::json;

use super::audit;
use super::fault::Attempt;
use super::work::Work;
use crate::store::repository::Verb;
use crate::transaction::{Row, Value};

/// Runs one of these operations, and returns how many tokens or sessions it changed.
pub(super) fn act(work: &mut Work<'_>, verb: Verb, params: &[Value], actor: &str) -> Attempt<Vec<Row>> {
    let (column, count) = match verb {
        Verb::TokenCreate => ("created", create(work, params, actor)?),
        Verb::TokenRotate => ("rotated", rotate(work, params, actor)?),
        Verb::TokenRevoke => ("revoked", revoke(work, params, actor)?),
        Verb::SessionStart => ("started", start_session(work, params, actor)?),
        Verb::SessionEnd => {
            let ended =
                work.connection.prepare_cached(sql!(token.end_session))?.execute([text(params, 0)])?;
            ("ended", ended)
        }
        _ => unreachable!("{verb:?} is about no token"),
    };
    let columns: Arc<[String]> = [column.to_owned()].into();
    Ok(vec![Row::new(&columns, vec![Value::Integer(i64::try_from(count).expect("one row at most"))])])
}

fn create(work: &mut Work<'_>, params: &[Value], actor: &str) -> Attempt<usize> {
    let now_ms = work.now_ms();
    let expires_at_ms = number(params, 5).map(|ms| now_ms.saturating_add(ms));
    let (id, name, scopes, topics) = (text(params, 0), text(params, 1), text(params, 2), text(params, 3));
    let values = params![id, name, scopes, topics, text(params, 4), expires_at_ms, now_ms];
    let created = work.connection.prepare_cached(sql!(token.create))?.execute(values)?;
    if created > 0 {
        let list = |text| serde_json::from_str(text).unwrap_or(serde_json::Value::Null);
        let detail = json!({ "token": name, "id": id, "scopes": list(scopes), "topics": list(topics) });
        audit::note(work, actor, "create_token", None, None, &detail)?;
    }
    Ok(created)
}

fn rotate(work: &mut Work<'_>, params: &[Value], actor: &str) -> Attempt<usize> {
    let (id, now_ms) = (text(params, 0), work.now_ms());
    let Some((name, _)) = show(work, id)? else { return Ok(0) };
    let grace_ms = number(params, 2).unwrap_or(0);
    let values = params![id, text(params, 1), now_ms.saturating_add(grace_ms), now_ms];
    let rotated = work.connection.prepare_cached(sql!(token.rotate))?.execute(values)?;
    work.connection.prepare_cached(sql!(token.end_sessions))?.execute([id])?;
    let detail = json!({ "token": name, "id": id, "grace_ms": grace_ms });
    audit::note(work, actor, "rotate_token", None, None, &detail)?;
    Ok(rotated)
}

fn revoke(work: &mut Work<'_>, params: &[Value], actor: &str) -> Attempt<usize> {
    let id = text(params, 0);
    let Some((name, _)) = show(work, id)? else { return Ok(0) };
    // By hand too: a connection may have been opened without foreign keys.
    work.connection.prepare_cached(sql!(token.end_sessions))?.execute([id])?;
    let revoked = work.connection.prepare_cached(sql!(token.revoke))?.execute([id])?;
    audit::note(work, actor, "revoke_token", None, None, &json!({ "token": name, "id": id }))?;
    Ok(revoked)
}

fn start_session(work: &mut Work<'_>, params: &[Value], actor: &str) -> Attempt<usize> {
    let now_ms = work.now_ms();
    let token = text(params, 1);
    let Some((name, token_expires_at_ms)) = show(work, token)? else { return Ok(0) };
    let lasts_ms = number(params, 3).unwrap_or(0);
    let ends_at_ms = now_ms.saturating_add(lasts_ms).min(token_expires_at_ms.unwrap_or(i64::MAX));
    work.connection.prepare_cached(sql!(token.forget_sessions))?.execute([now_ms])?;
    let values = params![text(params, 0), token, text(params, 2), ends_at_ms, now_ms];
    let started = work.connection.prepare_cached(sql!(token.start_session))?.execute(values)?;
    audit::note(work, actor, "start_session", None, None, &json!({ "token": name, "id": token }))?;
    Ok(started)
}

/// The name of a token that is no session, and when it expires.
fn show(work: &Work<'_>, id: &str) -> Attempt<Option<(String, Option<i64>)>> {
    let mut statement = work.connection.prepare_cached(sql!(token.show))?;
    Ok(statement.query_row([id], |row| Ok((row.get(0)?, row.get(1)?))).optional()?)
}

fn text(params: &[Value], at: usize) -> &str {
    match params.get(at) {
        Some(Value::Text(text)) => text,
        _ => unreachable!("parameter {at} of a token is text"),
    }
}

fn number(params: &[Value], at: usize) -> Option<i64> {
    if let Some(Value::Integer(number)) = params.get(at) { Some(*number) } else { None }
}
