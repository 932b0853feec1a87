//! One message of a group: its state, and what an operator does with it.

use rusqlite::{Connection, OptionalExtension, params};
use serde_json::json;

use super::fault::Attempt;
use super::log::Burial;
use super::outstanding::outstanding_of;
use super::progress::outstanding;
use super::range::{DUE_NOW, Part, next_token};
use super::work::{Work, wake};
use super::{audit, decode, group, log, settle, topic};
use crate::lease::OffsetRange;
use crate::message::{Offset, lane_of};
use crate::name::{GroupName, TopicName};
use crate::subscription::{MessageAct, MessageState, OutstandingState, no_message};
use crate::topic::TopicId;

/// A message in the subscription of a group: in an ordered one it belongs to one lane.
struct Place {
    subscription_id: i32,
    lane: Option<u16>,
    offset: i64,
}

impl Place {
    fn new(
        connection: &Connection,
        topic: TopicId,
        subscription_id: i32,
        lanes: u16,
        offset: i64,
    ) -> Attempt<Option<Self>> {
        let Some((_, message_id, key)) = log::keys(connection, topic, offset, offset)?.pop() else {
            return Ok(None);
        };
        let lane = (lanes > 0).then(|| lane_of(key.as_deref(), message_id, lanes));
        Ok(Some(Place { subscription_id, lane, offset }))
    }

    /// The cursor that it is before or behind.
    fn next(&self, connection: &Connection) -> Attempt<i64> {
        let mut statement = connection.prepare_cached(super::sql!(message.next))?;
        let parameters = params![self.subscription_id, self.lane.unwrap_or(0)];
        Ok(statement.query_row(parameters, |row| row.get(0))?)
    }

    /// The outstanding range that contains it.
    fn part(&self, connection: &Connection) -> Attempt<Option<Part>> {
        let held = outstanding(connection, self.subscription_id, self.offset, self.offset)?;
        let Some(held) = held.into_iter().find(|held| held.lane == self.lane) else { return Ok(None) };
        let mut statement = connection.prepare_cached(super::sql!(message.part))?;
        Ok(statement.query_row(params![held.token, held.first], Part::read).optional()?)
    }

    fn state(&self, connection: &Connection, now_ms: i64) -> Attempt<MessageState> {
        if let Some(part) = self.part(connection)? {
            return Ok(MessageState::Outstanding(outstanding_of(part, now_ms)?));
        }
        if self.offset >= self.next(connection)? {
            return Ok(MessageState::NotHandedOut);
        }
        let mut statement = connection.prepare_cached(super::sql!(message.dead_letter))?;
        let parameters = params![self.subscription_id, self.offset];
        let buried = statement.query_row(parameters, |row| decode::uuid(row, 0)).optional()?;
        Ok(buried.map_or(MessageState::Done, MessageState::Buried))
    }
}

/// The state of a message in each group.
pub(super) fn states(
    connection: &Connection,
    name: &TopicName,
    offset: Offset,
    now_ms: i64,
) -> Attempt<Vec<(GroupName, MessageState)>> {
    let topic = topic::get(connection, name)?.topic_id;
    let groups: Vec<(i32, GroupName, u16)> = {
        let mut statement = connection.prepare_cached(super::sql!(message.groups))?;
        decode::all(&mut statement, [topic.0], |row| {
            Ok((row.get(0)?, decode::parsed(row, 1, |name| GroupName::new(name))?, row.get(2)?))
        })?
    };
    if log::first_in(connection, topic, offset.0, offset.0)?.is_none() {
        return Err(no_message(name.as_str(), offset).into());
    }
    let mut states = Vec::with_capacity(groups.len());
    for (subscription_id, group, lanes) in groups {
        if let Some(place) = Place::new(connection, topic, subscription_id, lanes, offset.0)? {
            states.push((group, place.state(connection, now_ms)?));
        }
    }
    Ok(states)
}

/// Skips, buries or retries one message. Its neighbours in a range keep what they have, under new tokens.
pub(super) fn act(
    work: &mut Work<'_>,
    name: &TopicName,
    group: &GroupName,
    offset: Offset,
    act: &MessageAct,
    force: bool,
    actor: &str,
) -> Attempt<()> {
    let (connection, now_ms) = (work.connection, work.now_ms());
    let (topic, found) = group::get_alive(connection, name, group, act.as_str())?;
    let topic = topic.topic_id;
    let Some(place) = Place::new(connection, topic, found.subscription_id, found.lanes, offset.0)? else {
        return Err(no_message(name.as_str(), offset).into());
    };
    let state = place.state(connection, now_ms)?;
    if !act.starts(force).contains(&state.as_str()) {
        return Err(act.refused(name.as_str(), group.as_str(), offset, state.as_str()).into());
    }
    let mut owner = None;
    if let MessageState::Outstanding(outstanding) = &state
        && outstanding.state == OutstandingState::Leased
        && let Some(token) = outstanding.token
    {
        settle::end_lease(work, token)?;
        owner = outstanding.owner.as_ref().map(|owner| owner.as_str().to_owned());
    }
    let part = place.take(connection)?;
    match act {
        MessageAct::Skip => {}
        MessageAct::Bury { reason } => {
            let attempts = part.as_ref().map_or(0, |part| part.attempts) + u32::from(owner.is_some());
            // A range of one message that is its own lane's: no lane has to be checked.
            let subscription_id = found.subscription_id;
            let burial = Burial { subscription_id, lane: None, error: reason, attempts, owner: None, now_ms };
            log::bury(connection, topic, OffsetRange::new(offset, offset), &burial)?;
        }
        MessageAct::Retry => {
            let part = part.expect("only what is outstanding is retried");
            let token = next_token(connection)?;
            let owner = None;
            Part { token, first: offset.0, last: offset.0, owner, due_at_ms: DUE_NOW, ..part }
                .insert(connection)?;
        }
    }
    let detail = json!({ "offset": offset.0, "from": state.as_str(), "owner": owner });
    audit::note(work, actor, act.as_str(), Some(name.as_str()), Some(group.as_str()), &detail)?;
    wake(work, topic)
}

impl Place {
    /// Takes the message out of the range that contains it, or moves the cursor past it: then what was not handed out
    /// before it waits, due at once. Returns that range.
    fn take(&self, connection: &Connection) -> Attempt<Option<Part>> {
        if let Some(part) = self.part(connection)? {
            part.delete(connection)?;
            for (first, last) in [(part.first, self.offset - 1), (self.offset + 1, part.last)] {
                if first <= last {
                    Part { token: next_token(connection)?, first, last, ..part.clone() }
                        .insert(connection)?;
                }
            }
            return Ok(Some(part));
        }
        let next = self.next(connection)?;
        if next < self.offset {
            let part = Part {
                token: next_token(connection)?,
                first: next,
                last: self.offset - 1,
                subscription_id: self.subscription_id,
                lane: self.lane,
                owner: None,
                due_at_ms: DUE_NOW,
                attempts: 0,
                suspect: false,
                parked: false,
                key: None,
                last_error: None,
            };
            part.insert(connection)?;
        }
        let lane = self.lane.unwrap_or(0);
        let parameters = params![self.subscription_id, lane, self.offset + 1];
        connection.prepare_cached(super::sql!(message.move_cursor))?.execute(parameters)?;
        Ok(None)
    }
}
