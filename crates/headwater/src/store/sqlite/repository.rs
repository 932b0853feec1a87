//! Statements of the repositories, alone or in a transaction of the program.

use std::sync::Arc;

use super::SqliteStore;
use super::driven::{Requests, query_own};
use super::fault::Attempt;
use super::work::{Kind, Work};
use super::{parked, relay, token};
use crate::error::Result;
use crate::store::Store;
use crate::store::repository::{OUTBOX, Verb};
use crate::transaction::{Row, Value};

/// The text of a statement; `None` for an operation of several, and where another statement does its work.
pub(crate) fn text(verb: Verb) -> Option<&'static str> {
    Some(match verb {
        Verb::OutboxInsert => sql!(outbox.insert),
        Verb::OutboxClaim => sql!(outbox.claim),
        Verb::OutboxSweep => sql!(outbox.sweep),
        Verb::OutboxPublished => sql!(outbox.published),
        Verb::OutboxFailed => sql!(outbox.failed),
        Verb::OutboxReschedule => sql!(outbox.reschedule),
        Verb::OutboxRecover => sql!(outbox.recover),
        Verb::OutboxKnown => sql!(outbox.known),
        Verb::OutboxShow => sql!(outbox.show),
        Verb::OutboxList => sql!(outbox.list),
        Verb::InboxInsert => sql!(inbox.insert),
        Verb::BridgeAdvance => sql!(bridge.advance),
        Verb::BridgeList => sql!(bridge.list),
        Verb::DeadLetterPark => sql!(dead_letter.park),
        Verb::DeadLetterAll => sql!(dead_letter.all),
        Verb::DeadLetterKnown => sql!(dead_letter.known),
        Verb::RelayList => sql!(relay.list),
        Verb::OutboxRequeue | Verb::DeadLetterRedrive | Verb::DeadLetterDelete => return None,
        Verb::RelayAdd | Verb::RelayRemove => return None,
        Verb::ProcessInsert => sql!(process.insert),
        Verb::ProcessInsertEvent => sql!(process.insert_event),
        Verb::ProcessChange => sql!(process.change),
        Verb::ProcessChangeEvents => sql!(process.change_events),
        // A change is two statements here, and both are prepared: one process after the other costs no round trip.
        Verb::ProcessChangeAll => return None,
        Verb::ProcessLoad => sql!(process.load),
        Verb::ProcessLoadAll => sql!(process.load_all),
        Verb::ProcessFind => sql!(process.find),
        Verb::ProcessFindById => sql!(process.find_by_id),
        Verb::ProcessFindByStatus => sql!(process.find_by_status),
        Verb::ProcessFindByTypeAndStatus => sql!(process.find_by_type_and_status),
        Verb::ProcessFindByBusinessKey => sql!(process.find_by_business_key),
        Verb::ProcessFindParked => sql!(process.find_parked),
        Verb::ProcessLog => sql!(process.log),
        // Published as any other message: nothing here has roles.
        Verb::ProcessSignal => return None,
        Verb::ProcessCancelTimer => sql!(process.cancel_timer),
        Verb::ProcessCancelTimers => sql!(process.cancel_timers),
        Verb::ProcessEnter => sql!(inbox.insert),
        Verb::TokenList => sql!(token.list),
        Verb::TokenAny => sql!(token.any),
        Verb::TokenFind => sql!(token.find),
        Verb::TokenCreate | Verb::TokenRotate | Verb::TokenRevoke => return None,
        Verb::SessionStart | Verb::SessionEnd => return None,
    })
}

impl SqliteStore {
    /// Runs a statement of a repository by itself.
    pub(crate) async fn run_verb(&self, verb: Verb, params: Vec<Value>) -> Result<Vec<Row>> {
        if let Some(sql) = text(verb).filter(|_| verb.is_read()) {
            return self.read(move |connection| query_own(connection, sql, &params)).await;
        }
        let kind = if verb.is_durable() { Kind::Define } else { Kind::Consume };
        let actor = self.actor.now();
        self.write(kind, move |work| run(work, verb, params.clone(), &actor)).await
    }
}

impl Requests {
    /// Runs a statement of a repository in the transaction, which must be on the file of the repository's store.
    pub(crate) async fn run_verb(
        &self,
        store: &Arc<dyn Store>,
        verb: Verb,
        params: Vec<Value>,
    ) -> Result<Vec<Row>> {
        let store = Arc::clone(store);
        let actor = store.as_sqlite().expect("the caller has checked the engine").actor.now();
        self.run(move |work| {
            let store = store.as_sqlite().expect("the caller has checked the engine");
            store.check_file_of(work.connection, "the repository")?;
            run(work, verb, params, &actor)
        })
        .await
    }
}

fn run(work: &mut Work<'_>, verb: Verb, mut params: Vec<Value>, actor: &str) -> Attempt<Vec<Row>> {
    let rows = match text(verb) {
        Some(sql) => {
            if !verb.is_read() {
                params.push(Value::Integer(work.now_ms()));
            }
            query_own(work.connection, sql, &params)?
        }
        None => match verb {
            Verb::RelayAdd | Verb::RelayRemove => relay::act(work, verb, &params, actor)?,
            Verb::OutboxRequeue | Verb::DeadLetterRedrive | Verb::DeadLetterDelete => {
                parked::act(work, verb, &params, actor)?
            }
            _ => token::act(work, verb, &params, actor)?,
        },
    };
    if verb.wakes_outbox() {
        work.wake(OUTBOX);
    }
    Ok(rows)
}
