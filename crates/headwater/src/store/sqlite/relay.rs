//! Registered relays: adding and removing one writes its audit entry in the same transaction.

use std::sync::Arc;

use rusqlite::params;

use super::audit;
use super::fault::Attempt;
use super::work::Work;
use crate::store::repository::Verb;
use crate::transaction::{Row, Value};

/// Runs one of these operations. The parameters are texts: the name, and for a new one source, target and settings.
pub(super) fn act(work: &mut Work<'_>, verb: Verb, params: &[Value], actor: &str) -> Attempt<Vec<Row>> {
    let text = |at: usize| match params.get(at) {
        Some(Value::Text(text)) => text.as_str(),
        _ => unreachable!("relays are described by texts"),
    };
    let (column, count) = match verb {
        Verb::RelayAdd => {
            let now_ms = work.now_ms();
            let values = params![text(0), text(1), text(2), text(3), now_ms];
            let added = work.connection.prepare_cached(sql!(relay.add))?.execute(values)?;
            if added > 0 {
                let detail = serde_json::json!({ "relay": text(0), "source": text(1), "target": text(2) });
                audit::note(work, actor, "add_relay", None, None, &detail)?;
            }
            ("added", added)
        }
        Verb::RelayRemove => {
            let removed = work.connection.prepare_cached(sql!(relay.remove))?.execute([text(0)])?;
            if removed > 0 {
                let detail = serde_json::json!({ "relay": text(0) });
                audit::note(work, actor, "remove_relay", None, None, &detail)?;
            }
            ("removed", removed)
        }
        _ => unreachable!("{verb:?} is about no relay"),
    };
    let columns: Arc<[String]> = [column.to_owned()].into();
    Ok(vec![Row::new(&columns, vec![Value::Integer(i64::try_from(count).expect("one row at most"))])])
}
