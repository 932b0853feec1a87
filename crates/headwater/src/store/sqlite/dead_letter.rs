//! Dead letters: list, redrive, purge.

use std::time::Instant;

use bytes::Bytes;
use jiff::Timestamp;
use rusqlite::types::ToSql;
use rusqlite::{Connection, OptionalExtension};
use uuid::Uuid;

use super::fault::Attempt;
use super::lanes::Lanes;
use super::publish::{self, Prepared};
use super::range::{DUE_NOW, Part, next_token};
use super::step_bytes::StepBytes;
use super::work::{Kind, Work, wake};
use super::{SqliteStore, audit, decode, log};
use crate::dead_letter::{DeadLetter, DeadLetterSelection, Redriven, no_such, refused_copy, shorten};
use crate::error::Result;
use crate::limits::DEAD_LETTERS_PER_STEP;
use crate::message::{NewMessage, Offset, Published, lane_of};
use crate::name::TopicName;
use crate::subscription::{SubscriptionId, SubscriptionState, refused_cancelled};
use crate::topic::TopicId;

/// The dead letters of a selection, oldest first.
pub(super) fn list(
    connection: &Connection,
    selection: &DeadLetterSelection,
    limit: u32,
) -> Attempt<Vec<DeadLetter>> {
    let mut statement = connection.prepare_cached(super::sql!(dead_letter.list))?;
    let selected = Selected::of(selection);
    let mut parameters = selected.parameters();
    let limit = selection.at_most.map_or(limit, |most| most.min(limit));
    parameters.push(&limit);
    Ok(decode::all(&mut statement, parameters.as_slice(), |row| {
        Ok(DeadLetter {
            dead_letter_id: decode::uuid(row, 0)?,
            subscription_id: SubscriptionId(row.get(1)?),
            offset: Offset(row.get(2)?),
            message_id: decode::uuid(row, 3)?,
            key: decode::text(row, 4)?,
            message_type: decode::text(row, 5)?,
            payload: Bytes::copy_from_slice(decode::blob(row, 6)?),
            content_type: decode::text(row, 7)?,
            headers: decode::headers(row, 8)?,
            error: decode::text(row, 9)?.unwrap_or_default(),
            attempts: row.get(10)?,
            buried_at: decode::timestamp(row, 11)?,
            correlation_id: decode::text(row, 12)?,
            created_at: decode::timestamp(row, 13)?,
        })
    })?)
}

/// How many a redrive would hand out, and how many have lost their message.
pub(super) fn count_of(connection: &Connection, selection: &DeadLetterSelection) -> Attempt<Redriven> {
    let selected = Selected::of(selection);
    let mut counted = log::count_dead_letters(connection, selected.parameters().as_slice())?;
    if let Some(most) = selection.at_most {
        counted.redriven = counted.redriven.min(u64::from(most));
    }
    Ok(counted)
}

/// Publishes an edited copy of a dead letter and removes the dead letter.
pub(super) fn replace(
    work: &mut Work<'_>,
    subscription: SubscriptionId,
    id: Uuid,
    message: &NewMessage,
    all_groups: bool,
    actor: &str,
) -> Attempt<Published> {
    let selection = DeadLetterSelection::all(subscription).ids([id]);
    let Some(of) = Of::find(work, &selection)? else { return Err(no_such(id).into()) };
    if of.state == SubscriptionState::Cancelled {
        return Err(refused_cancelled("replace", &of.topic, &of.group).into());
    }
    let others: Vec<String> = {
        let mut statement = work.connection.prepare_cached(super::sql!(subscribe.others))?;
        decode::all(&mut statement, [of.topic_id.0], |row| row.get(0))?
    };
    let others: Vec<String> = others.into_iter().filter(|group| *group != of.group).collect();
    if !others.is_empty() && !all_groups {
        return Err(refused_copy(&of.topic, &others).into());
    }
    let (page, _) = page(work, &selection, &of, PageEnd::default())?;
    let Some(dead_letter) = page.first() else { return Err(no_such(id).into()) };
    remove(work, page.iter())?;
    let messages = std::slice::from_ref(message);
    let topic = TopicName::new(of.topic.clone())?;
    let published = publish::run(work, &topic, false, messages, &Prepared::batch(messages))?.remove(0);
    let detail = serde_json::json!({
        "dead_letter": id,
        "from": dead_letter.offset,
        "offset": published.offset.map(|offset| offset.0),
        "message_id": published.message_id,
    });
    audit::note(work, actor, "replace_dead_letter", Some(&of.topic), Some(&of.group), &detail)?;
    Ok(published)
}

/// Redrives a selection page by page, each in a transaction of its own: the writer is shared.
pub(super) async fn redrive(store: &SqliteStore, selection: &DeadLetterSelection) -> Result<Redriven> {
    for_each_page(
        store,
        selection,
        "redrive",
        |row| row.there,
        |work, subscription, page, done: &mut Redriven| {
            if subscription.state == SubscriptionState::Cancelled {
                return Err(refused_cancelled("redrive", &subscription.topic, &subscription.group).into());
            }
            done.gone += page.iter().filter(|dead_letter| !dead_letter.there).count() as u64;
            done.redriven += redrive_page(work, subscription, page)?;
            Ok(serde_json::json!({ "redriven": done.redriven, "gone": done.gone }))
        },
    )
    .await
}

/// Removes a selection, page by page.
pub(super) async fn purge(store: &SqliteStore, selection: &DeadLetterSelection) -> Result<u64> {
    for_each_page(
        store,
        selection,
        "purge",
        |_| true,
        |work, _, page, done: &mut u64| {
            *done += remove(work, page.iter())?;
            Ok(serde_json::json!({ "purged": *done }))
        },
    )
    .await
}

/// Handles one page, adds it to the result so far, and returns the result for the audit entry.
type Step<T> = fn(&mut Work<'_>, &Of, &[RedriveRow], &mut T) -> Attempt<serde_json::Value>;

/// Runs one step per page, each in a transaction of its own, until no dead letter of the selection is left. The last
/// step, mostly the only one, also adds the audit entry.
async fn for_each_page<T: Clone + Default + Send + 'static>(
    store: &SqliteStore,
    selection: &DeadLetterSelection,
    act: &'static str,
    counts: fn(&RedriveRow) -> bool,
    step: Step<T>,
) -> Result<T> {
    let (mut position, mut done) = (PageEnd { left: selection.at_most, ..PageEnd::default() }, T::default());
    loop {
        let began = Instant::now();
        let (selection, before, actor) = (selection.clone(), done.clone(), store.actor.now());
        let ran = store.write(Kind::Define, move |work| {
            let Some(of) = Of::find(work, &selection)? else { return Ok((before.clone(), None)) };
            let (mut page, mut next) = page(work, &selection, &of, position)?;
            let is_reached = shorten(&mut page, &mut next.left, counts);
            let mut done = before.clone();
            let detail = step(work, &of, &page, &mut done)?;
            if next.is_full && !is_reached {
                return Ok((done, Some(next)));
            }
            audit::note(work, &actor, act, Some(&of.topic), Some(&of.group), &detail)?;
            Ok((done, None))
        });
        let next;
        (done, next) = ran.await?;
        match next {
            Some(next) => position = next,
            None => return Ok(done),
        }
        SqliteStore::rest(began).await;
    }
}

/// How far a selection has been processed.
#[derive(Clone, Copy, Default)]
struct PageEnd {
    after: i64,
    /// The newest dead letter when the run began: a message that is buried later, maybe again, is not part of it.
    until: Option<i64>,
    /// How many more are part of the selection, if that is limited.
    left: Option<u32>,
    /// Whether the page had as many dead letters, or bytes of payloads, as one step handles: more may follow.
    is_full: bool,
}

/// The subscription that the dead letters belong to.
struct Of {
    subscription_id: i32,
    topic_id: TopicId,
    lanes: u16,
    state: SubscriptionState,
    topic: String,
    group: String,
}

impl Of {
    fn find(work: &Work<'_>, selection: &DeadLetterSelection) -> Attempt<Option<Self>> {
        let subscription_id = selection.subscription_id.0;
        let mut statement = work.connection.prepare_cached(super::sql!(dead_letter.of))?;
        let found = statement.query_row([subscription_id], |row| {
            Ok(Of {
                subscription_id,
                topic_id: TopicId(row.get(0)?),
                lanes: row.get(1)?,
                state: decode::parsed(row, 2, SubscriptionState::parse)?,
                topic: decode::name(row, 3)?,
                group: row.get(4)?,
            })
        });
        Ok(found.optional()?)
    }

    fn lane_of(&self, dead_letter: &RedriveRow) -> Option<u16> {
        (self.lanes > 0).then(|| lane_of(dead_letter.key.as_deref(), dead_letter.message_id, self.lanes))
    }
}

/// The fields of a dead letter that a redrive needs.
struct RedriveRow {
    dead_letter_key: i64,
    offset: i64,
    message_id: Uuid,
    key: Option<String>,
    /// Whether its message is still in the log.
    there: bool,
}

fn page(
    work: &Work<'_>,
    selection: &DeadLetterSelection,
    subscription: &Of,
    position: PageEnd,
) -> Attempt<(Vec<RedriveRow>, PageEnd)> {
    let until = match position.until {
        Some(until) => until,
        None => work
            .connection
            .prepare_cached(super::sql!(dead_letter.newest))?
            .query_row([subscription.subscription_id], |row| row.get(0))?,
    };
    let selected = Selected::of(selection);
    let mut parameters = selected.parameters();
    let rest: [&dyn ToSql; 3] = [&position.after, &until, &DEAD_LETTERS_PER_STEP];
    parameters.extend(rest);
    let mut statement = work.connection.prepare_cached(super::sql!(dead_letter.page))?;
    let (mut page, mut bytes) = (Vec::new(), StepBytes::default());
    let mut is_cut = false;
    let mut rows = statement.query(parameters.as_slice())?;
    while let Some(row) = rows.next()? {
        if !bytes.take(decode::count(row, 4)?) {
            is_cut = true;
            break;
        }
        let offset = row.get(1)?;
        page.push(RedriveRow {
            dead_letter_key: row.get(0)?,
            offset,
            message_id: decode::uuid(row, 2)?,
            key: decode::text(row, 3)?,
            there: log::first_in(work.connection, subscription.topic_id, offset, offset)?.is_some(),
        });
    }
    let is_full = is_cut || page.len() >= usize::try_from(DEAD_LETTERS_PER_STEP).unwrap_or(usize::MAX);
    let after = page.last().map_or(position.after, |dead_letter| dead_letter.dead_letter_key);
    Ok((page, PageEnd { after, until: Some(until), is_full, ..position }))
}

/// Makes the offsets of the dead letters outstanding, as if they had never been handed out, and removes the
/// dead letters.
fn redrive_page(work: &mut Work<'_>, subscription: &Of, page: &[RedriveRow]) -> Attempt<u64> {
    let dead_letters = || page.iter().filter(|dead_letter| dead_letter.there);
    let (Some(first), Some(last)) = (
        dead_letters().map(|dead_letter| dead_letter.offset).min(),
        dead_letters().map(|dead_letter| dead_letter.offset).max(),
    ) else {
        return Ok(0);
    };
    let mut lanes = Lanes::load(work.connection, subscription.subscription_id, first, last)?;
    for dead_letter in dead_letters() {
        let lane = subscription.lane_of(dead_letter);
        if !lanes.has_done(lane, dead_letter.offset) {
            // It is delivered anyway, and must not be delivered twice.
            continue;
        }
        lanes.hold(lane, dead_letter.offset);
        let part = Part {
            token: next_token(work.connection)?,
            first: dead_letter.offset,
            last: dead_letter.offset,
            subscription_id: subscription.subscription_id,
            lane,
            owner: None,
            due_at_ms: DUE_NOW,
            attempts: 0,
            suspect: false,
            parked: false,
            key: dead_letter.key.clone().filter(|_| lane.is_some()),
            last_error: None,
        };
        part.insert(work.connection)?;
    }
    wake(work, subscription.topic_id)?;
    remove(work, dead_letters())
}

fn remove<'a>(work: &mut Work<'_>, dead_letters: impl Iterator<Item = &'a RedriveRow>) -> Attempt<u64> {
    let mut statement = work.connection.prepare_cached(super::sql!(dead_letter.purge))?;
    let mut removed = 0;
    for dead_letter in dead_letters {
        removed += statement.execute([dead_letter.dead_letter_key])? as u64;
    }
    Ok(removed)
}

/// A selection as the parameters with which every statement about one begins.
struct Selected<'a> {
    selection: &'a DeadLetterSelection,
    ids: Option<String>,
    after_ms: Option<i64>,
    before_ms: Option<i64>,
}

impl<'a> Selected<'a> {
    fn of(selection: &'a DeadLetterSelection) -> Self {
        let hex = |ids: &Vec<Uuid>| {
            let ids: Vec<String> = ids.iter().map(|id| id.simple().to_string()).collect();
            serde_json::Value::from(ids).to_string()
        };
        Selected {
            selection,
            ids: selection.ids.as_ref().map(hex),
            after_ms: selection.buried_after.map(ceil_ms),
            before_ms: selection.buried_before.map(ceil_ms),
        }
    }

    fn parameters(&self) -> Vec<&dyn ToSql> {
        vec![
            &self.selection.subscription_id.0,
            &self.ids,
            &self.selection.key,
            &self.selection.message_type,
            &self.selection.error_contains,
            &self.after_ms,
            &self.before_ms,
        ]
    }
}

/// Stored times are whole milliseconds: a stored time is before `at` if it is before the next whole millisecond.
fn ceil_ms(at: Timestamp) -> i64 {
    let floor = at.as_nanosecond().div_euclid(1_000_000);
    let up = i128::from(at.as_nanosecond().rem_euclid(1_000_000) != 0);
    i64::try_from(floor + up).expect("jiff's range fits 64 bits of milliseconds")
}
