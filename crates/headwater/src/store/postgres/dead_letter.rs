//! Dead letters: listing, redriving, purging.

use bytes::Bytes;
use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::PostgresStore;
use super::log::headers_of;
use super::publish::Columns;
use super::time::{count, holdable, stored};
use crate::dead_letter::{DeadLetter, DeadLetterSelection, Redriven, no_such, refused_copy, shorten};
use crate::error::Result;
use crate::limits::DEAD_LETTERS_PER_STEP;
use crate::message::{NewMessage, Offset, Published, lane_of};
use crate::subscription::SubscriptionId;
use crate::topic::TopicId;

pub(super) async fn list(
    store: &PostgresStore,
    selection: &DeadLetterSelection,
    limit: u32,
) -> Result<Vec<DeadLetter>> {
    let times = Times::of(selection);
    let limit = i64::from(selection.at_most.map_or(limit, |most| most.min(limit)));
    let mut params = selected(selection, &times);
    params.push(&limit);
    let rows =
        store.connections.query("listing dead letters", &store.statements.dead_letter_list, &params).await?;
    rows.iter().map(dead_letter_of).collect()
}

pub(super) async fn count_of(store: &PostgresStore, selection: &DeadLetterSelection) -> Result<Redriven> {
    let times = Times::of(selection);
    let at_most = selection.at_most.map(i64::from);
    let mut params = selected(selection, &times);
    params.push(&at_most);
    let rows = store
        .connections
        .query("counting dead letters", &store.statements.dead_letter_count, &params)
        .await?;
    Ok(Redriven { redriven: count(&rows[0], "redriven")?, gone: count(&rows[0], "gone")? })
}

pub(super) async fn replace(
    store: &PostgresStore,
    subscription: SubscriptionId,
    id: Uuid,
    message: &NewMessage,
    all_groups: bool,
) -> Result<Published> {
    let columns = Columns::of(std::slice::from_ref(message), store.clock.injected(), true);
    let params: [&(dyn ToSql + Sync); 12] = [
        &subscription.0,
        &id,
        &all_groups,
        &columns.message_ids[0],
        &columns.payloads[0],
        &message.key,
        &message.message_type,
        &message.content_type,
        &message.headers_json(),
        &message.correlation_id,
        &&*store.actor.now(),
        &columns.now,
    ];
    let doing = format!("replacing dead letter {id}");
    let rows = store.connections.commit(&doing, &store.statements.dead_letter_replace, &params).await?;
    let row = &rows[0];
    if stored::<_, Option<Vec<Option<i64>>>>(row, "offsets")?.is_none() {
        let others: Option<Vec<String>> = stored(row, "others")?;
        return Err(match others.filter(|others| !others.is_empty()) {
            Some(others) => refused_copy(stored(row, "topic")?, &others),
            None => no_such(id),
        });
    }
    store.hub.wake(TopicId(stored(row, "topic_id")?));
    Ok(columns.published(row).remove(0))
}

/// Page by page, each in a transaction of its own: locks are held briefly, however many dead letters there are.
pub(super) async fn redrive(store: &PostgresStore, selection: &DeadLetterSelection) -> Result<Redriven> {
    let subscription_id = selection.subscription_id.0;
    let lanes = store
        .connections
        .query("reading the subscription", &store.statements.subscribe_lanes, &[&subscription_id])
        .await?;
    let Some(lanes) = lanes.first() else { return Ok(Redriven::default()) };
    let lanes = u16::try_from(stored::<_, i32>(lanes, "lanes")?).expect("lanes fit 16 bits");
    let mut done = Redriven::default();
    let mut pages = Pages::new(store, selection);
    loop {
        let page = pages.next(|letter| letter.there).await?;
        let there: Vec<&RedriveRow> = page.iter().filter(|letter| letter.there).collect();
        let ids: Vec<Uuid> = there.iter().map(|letter| letter.id).collect();
        let lane = |letter: &&RedriveRow| {
            (lanes > 0).then(|| i32::from(lane_of(letter.key.as_deref(), letter.message_id, lanes)))
        };
        let of_lanes: Vec<Option<i32>> = there.iter().map(lane).collect();
        done.gone += (page.len() - there.len()) as u64;
        let (before, gone) = (done.redriven.cast_signed(), done.gone.cast_signed());
        let params: [&(dyn ToSql + Sync); 8] = [
            &subscription_id,
            &ids,
            &of_lanes,
            &before,
            &gone,
            &pages.is_last,
            &&*store.actor.now(),
            &store.clock.injected(),
        ];
        let rows = store
            .connections
            .query("redriving dead letters", &store.statements.dead_letter_redrive, &params)
            .await?;
        let redriven = count(&rows[0], "redriven")?;
        done.redriven += redriven;
        if redriven > 0 {
            store.hub.wake(TopicId(stored(&rows[0], "topic_id")?));
        }
        if pages.is_last {
            return Ok(done);
        }
    }
}

pub(super) async fn purge(store: &PostgresStore, selection: &DeadLetterSelection) -> Result<u64> {
    let mut purged: u64 = 0;
    let mut pages = Pages::new(store, selection);
    loop {
        let page = pages.next(|_| true).await?;
        let ids: Vec<Uuid> = page.iter().map(|letter| letter.id).collect();
        let before = purged.cast_signed();
        let params: [&(dyn ToSql + Sync); 6] = [
            &selection.subscription_id.0,
            &ids,
            &before,
            &pages.is_last,
            &&*store.actor.now(),
            &store.clock.injected(),
        ];
        let rows = store
            .connections
            .query("purging dead letters", &store.statements.dead_letter_purge, &params)
            .await?;
        purged += count(&rows[0], "purged")?;
        if pages.is_last {
            return Ok(purged);
        }
    }
}

/// What a redrive needs of a dead letter.
struct RedriveRow {
    id: Uuid,
    message_id: Uuid,
    key: Option<String>,
    /// Whether its message is still in the log.
    there: bool,
}

/// Most bytes of payloads of a page, unless its last one exceeds it: its transaction must not exceed the statement timeout,
/// whatever their size. As in `removal_bytes` (`schema/functions/maintenance.sql`).
const PAGE_BYTES_MAX: i64 = 64 * 1024 * 1024;

/// How many of the first rows of a page one step handles.
fn fitting(rows: &[Row]) -> Result<usize> {
    let (mut fits, mut bytes) = (0, 0);
    while fits < rows.len() && bytes < PAGE_BYTES_MAX {
        bytes += i64::from(stored::<_, i32>(&rows[fits], "bytes")?);
        fits += 1;
    }
    Ok(fits)
}

/// The last row of the page before.
struct PageEnd {
    buried_at: Timestamp,
    offset: i64,
    id: Uuid,
}

/// The dead letters of a selection, a bounded number at a time, oldest first.
struct Pages<'a> {
    store: &'a PostgresStore,
    selection: &'a DeadLetterSelection,
    after: Option<PageEnd>,
    /// When the first page was read: a message buried later, perhaps one just redriven, is not part of the selection.
    started: Option<Timestamp>,
    /// Whether the page just read is the last one: its transaction also writes the audit entry.
    is_last: bool,
    /// How many more are part of the selection, if that is limited.
    left: Option<u32>,
}

impl<'a> Pages<'a> {
    fn new(store: &'a PostgresStore, selection: &'a DeadLetterSelection) -> Self {
        let (started, left) = (store.clock.injected(), selection.at_most);
        Pages { store, selection, after: None, started, is_last: false, left }
    }

    /// The next page. If the selection is limited, it ends with the last row that `counts` towards the limit.
    async fn next(&mut self, counts: impl Fn(&RedriveRow) -> bool) -> Result<Vec<RedriveRow>> {
        let times = Times::of(self.selection);
        let after = self.after.as_ref();
        let (buried_at, offset, id) = (
            after.map(|position| position.buried_at),
            after.map(|position| position.offset),
            after.map(|position| position.id),
        );
        let limit = i64::from(DEAD_LETTERS_PER_STEP);
        let mut params = selected(self.selection, &times);
        let rest: [&(dyn ToSql + Sync); 5] = [&buried_at, &offset, &id, &self.started, &limit];
        params.extend(rest);
        let statement = &self.store.statements.dead_letter_page;
        let rows = self.store.connections.query("reading dead letters", statement, &params).await?;
        let (read, rows) = (rows.len(), &rows[..fitting(&rows)?]);
        self.is_last = rows.len() == read && read < DEAD_LETTERS_PER_STEP as usize;
        let Some(last) = rows.last() else { return Ok(Vec::new()) };
        self.after = Some(PageEnd {
            buried_at: stored(last, "buried_at")?,
            offset: stored(last, "message_offset")?,
            id: stored(last, "dead_letter_id")?,
        });
        self.started = Some(stored(last, "started")?);
        let letter = |row: &Row| {
            Ok(RedriveRow {
                id: stored(row, "dead_letter_id")?,
                message_id: stored(row, "message_id")?,
                key: stored(row, "key")?,
                there: stored(row, "there")?,
            })
        };
        let mut page: Vec<RedriveRow> = rows.iter().map(letter).collect::<Result<_>>()?;
        self.is_last |= shorten(&mut page, &mut self.left, counts);
        Ok(page)
    }
}

/// The times of a selection as PostgreSQL can hold them.
struct Times {
    after: Option<Timestamp>,
    before: Option<Timestamp>,
}

impl Times {
    fn of(selection: &DeadLetterSelection) -> Self {
        Times { after: selection.buried_after.map(holdable), before: selection.buried_before.map(holdable) }
    }
}

/// The first parameters of every statement about a selection.
fn selected<'a>(selection: &'a DeadLetterSelection, times: &'a Times) -> Vec<&'a (dyn ToSql + Sync)> {
    vec![
        &selection.subscription_id.0,
        &selection.ids,
        &selection.key,
        &selection.message_type,
        &selection.error_contains,
        &times.after,
        &times.before,
    ]
}

fn dead_letter_of(row: &Row) -> Result<DeadLetter> {
    let attempts: i32 = stored(row, "attempts")?;
    Ok(DeadLetter {
        dead_letter_id: stored(row, "dead_letter_id")?,
        subscription_id: SubscriptionId(stored(row, "subscription_id")?),
        offset: Offset(stored(row, "message_offset")?),
        message_id: stored(row, "message_id")?,
        key: stored(row, "key")?,
        message_type: stored(row, "message_type")?,
        payload: Bytes::copy_from_slice(stored(row, "payload")?),
        content_type: stored(row, "content_type")?,
        headers: headers_of(stored(row, "headers")?)?,
        correlation_id: stored(row, "correlation_id")?,
        created_at: stored(row, "created_at")?,
        error: stored(row, "error")?,
        attempts: u32::try_from(attempts).expect("attempts count up from 1"),
        buried_at: stored(row, "buried_at")?,
    })
}
