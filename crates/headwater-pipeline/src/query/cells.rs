//! Cells: of a tick, one over time, and what differs between two ticks.

use axum::extract::{Path, RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Response;
use prost::Message;
use serde::{Serialize, Serializer};

use super::QueryState;
use super::answer::{Format, Lasting, changing, json};
use super::budget::Share;
use super::params::{self, Params};
use super::problem::{Answer, Problem};
use super::runs::next_from;
use crate::cells::Cell;
use crate::contracts::{CellState, CellStateList};
use crate::error::{Error, ErrorCode};
use crate::index::select::{self, Selection};
use crate::index::{Index, StoredTick, place};
use crate::world::{Coordinates, World};

/// About what an answer has per cell.
const JSON_ROW_BYTES: u64 = 128;
const JSON_COLUMNS_BYTES: u64 = 24;
const PROTOBUF_BYTES: u64 = 64;

const FILTERS: [&str; 6] = ["region", "type", "owner", "value_min", "value_max", "layout"];

/// A cell as JSON.
#[derive(Serialize)]
struct Row {
    flat_index: u64,
    #[serde(serialize_with = "as_list")]
    coordinates: Coordinates,
    #[serde(flatten)]
    content: Content,
}

#[derive(Serialize)]
struct Content {
    molecule_type: u32,
    molecule_value: i64,
    owner_id: u64,
    marker: u32,
}

impl From<Cell> for Content {
    fn from(cell: Cell) -> Self {
        let Cell { molecule_type, molecule_value, owner_id, marker, .. } = cell;
        Content { molecule_type, molecule_value, owner_id, marker }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
fn as_list<S: Serializer>(coordinates: &Coordinates, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(coordinates.iter())
}

#[derive(Serialize)]
struct OfTick<'a, C> {
    run_id: &'a str,
    tick: i64,
    dimensions: &'a [u64],
    topology: &'static str,
    cell_count: usize,
    #[serde(flatten)]
    cells: C,
}

#[derive(Serialize)]
struct Rows {
    cells: Vec<Row>,
}

/// A list per field: smaller, and faster to parse.
#[derive(Serialize)]
struct Columns {
    flat_index: Vec<u64>,
    molecule_type: Vec<u32>,
    molecule_value: Vec<i64>,
    owner_id: Vec<u64>,
    marker: Vec<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    Rows,
    Columns,
}

impl Layout {
    fn parse(params: &Params) -> Answer<Self> {
        match params.text("layout") {
            None | Some("rows") => Ok(Layout::Rows),
            Some("columns") => Ok(Layout::Columns),
            Some(other) => Err(Problem::refused("layout", other, "rows or columns is expected")),
        }
    }
}

/// `/runs/{run}/ticks/{tick}/cells`
pub(super) async fn cells(
    State(state): State<QueryState>,
    Path((run_id, tick)): Path<(String, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer<Response> {
    let params = Params::parse(query.as_deref(), &FILTERS)?;
    let (tick, layout, format) =
        (params::tick(&tick)?, Layout::parse(&params)?, Format::negotiate(&headers)?);
    let (index, world) = state.index_and_world(&run_id).await?;
    let selection = params.selection(&world)?;
    let question = ["cells", &run_id, &tick.to_string(), query.as_deref().unwrap_or_default()];
    let lasting = Lasting::new(&question, format);
    if let Some(unchanged) = lasting.unchanged(&headers) {
        return Ok(unchanged);
    }
    let stored = stored(&index, tick, &selection).await?;
    let share = state.budget().for_decoding(&[&stored])?;
    let bytes = blocking(share, move |share| {
        let cells = select::select(&stored, &world, &selection, state.budget().bytes_max())?;
        let per_cell = match (format, layout) {
            (Format::Protobuf, _) => PROTOBUF_BYTES,
            (Format::Json, Layout::Rows) => JSON_ROW_BYTES,
            (Format::Json, Layout::Columns) => JSON_COLUMNS_BYTES,
        };
        state.budget().for_answer(share, &cells, per_cell)?;
        match format {
            Format::Protobuf => Ok(protobuf(&cells)),
            Format::Json => json_of(&run_id, tick, &world, &cells, layout),
        }
    });
    Ok(lasting.response(bytes.await?))
}

fn protobuf(cells: &[Cell]) -> Vec<u8> {
    CellStateList { cells: cells.iter().copied().map(CellState::from).collect() }.encode_to_vec()
}

fn json_of(run_id: &str, tick: i64, world: &World, cells: &[Cell], layout: Layout) -> Answer<Vec<u8>> {
    let (dimensions, topology, cell_count) = (world.sizes(), world.topology().as_str(), cells.len());
    match layout {
        Layout::Rows => {
            let rows = Rows { cells: cells.iter().map(|cell| row(world, *cell)).collect::<Answer<_>>()? };
            json(&OfTick { run_id, tick, dimensions, topology, cell_count, cells: rows })
        }
        Layout::Columns => {
            let columns = Columns {
                flat_index: cells.iter().map(|cell| cell.flat_index).collect(),
                molecule_type: cells.iter().map(|cell| cell.molecule_type).collect(),
                molecule_value: cells.iter().map(|cell| cell.molecule_value).collect(),
                owner_id: cells.iter().map(|cell| cell.owner_id).collect(),
                marker: cells.iter().map(|cell| cell.marker).collect(),
            };
            json(&OfTick { run_id, tick, dimensions, topology, cell_count, cells: columns })
        }
    }
}

fn row(world: &World, cell: Cell) -> Answer<Row> {
    let coordinates = world.coordinates(cell.flat_index)?;
    Ok(Row { flat_index: cell.flat_index, coordinates, content: cell.into() })
}

#[derive(Serialize)]
struct OneCell<'a> {
    run_id: &'a str,
    tick: i64,
    flat_index: u64,
    #[serde(serialize_with = "as_list")]
    coordinates: Coordinates,
    /// `null` if it is empty.
    cell: Option<Content>,
}

/// `/runs/{run}/ticks/{tick}/cells/{cell}`
pub(super) async fn cell(
    State(state): State<QueryState>,
    Path((run_id, tick, cell)): Path<(String, String, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer<Response> {
    Params::parse(query.as_deref(), &[])?;
    let tick = params::tick(&tick)?;
    let (index, world) = state.index_and_world(&run_id).await?;
    let flat_index = params::cell(&world, &cell)?;
    let question = ["cell", &run_id, &tick.to_string(), &flat_index.to_string()];
    let lasting = Lasting::new(&question, Format::Json);
    if let Some(unchanged) = lasting.unchanged(&headers) {
        return Ok(unchanged);
    }
    let area = Some(place(&world, flat_index)?);
    let stored = stored(&index, tick, &Selection { area, ..Selection::default() }).await?;
    let share = state.budget().for_decoding(&[&stored])?;
    let raw_bytes_max = state.budget().bytes_max();
    let found = blocking(share, move |_| Ok(select::find(&stored, flat_index, raw_bytes_max)?)).await?;
    let coordinates = world.coordinates(flat_index)?;
    let answer = OneCell { run_id: &run_id, tick, flat_index, coordinates, cell: found.map(Content::from) };
    Ok(lasting.response(json(&answer)?))
}

#[derive(Serialize)]
struct History {
    run_id: String,
    flat_index: u64,
    #[serde(serialize_with = "as_list")]
    coordinates: Coordinates,
    history: Vec<AtTick>,
    /// Where the rest begins; `null` at the end.
    next_from: Option<i64>,
}

#[derive(Serialize)]
struct AtTick {
    tick: i64,
    /// `null` if it is empty.
    cell: Option<Content>,
}

/// `/runs/{run}/cells/{cell}/history`
pub(super) async fn history(
    State(state): State<QueryState>,
    Path((run_id, cell)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Answer<Response> {
    let params = Params::parse(query.as_deref(), &["from", "to", "limit"])?;
    let (range, limit) = (params.tick_range()?, params.limit()?);
    let (index, world) = state.index_and_world(&run_id).await?;
    let flat_index = params::cell(&world, &cell)?;
    let area = place(&world, flat_index)?;
    let raw_bytes_max = state.budget().bytes_max();
    let mut history: Vec<AtTick> = Vec::new();
    let mut rest = range.clone();
    // A page of ticks at a time: neither their blobs nor their cells are all in memory.
    while (history.len() as u64) < limit && !rest.is_empty() {
        let page = index.stored_within(rest.clone(), Some(&area)).await?;
        let Some(last) = page.last().map(|stored| stored.tick) else { break };
        let share = state.budget().for_decoding(&page.iter().collect::<Vec<_>>())?;
        let cells = blocking(share, move |_| {
            let at_tick = |stored: &StoredTick| {
                let cell = select::find(stored, flat_index, raw_bytes_max)?.map(Content::from);
                Ok(AtTick { tick: stored.tick, cell })
            };
            page.iter().map(at_tick).collect::<Answer<Vec<_>>>()
        });
        history.extend(cells.await?);
        let Some(next) = last.checked_add(1) else { break };
        rest = next..=*rest.end();
    }
    history.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let next_from = next_from(history.last().map(|entry| entry.tick), history.len(), limit, *range.end());
    let coordinates = world.coordinates(flat_index)?;
    changing(&History { run_id, flat_index, coordinates, history, next_from })
}

#[derive(Serialize)]
struct Difference<'a> {
    run_id: &'a str,
    from: i64,
    to: i64,
    changes: Vec<Change>,
}

#[derive(Serialize)]
struct Change {
    flat_index: u64,
    #[serde(serialize_with = "as_list")]
    coordinates: Coordinates,
    before: Option<Content>,
    after: Option<Content>,
}

/// `/runs/{run}/difference`
pub(super) async fn difference(
    State(state): State<QueryState>,
    Path(run_id): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer<Response> {
    let params = Params::parse(query.as_deref(), &["from", "to", "region"])?;
    let (from, to) = (params.needed_tick("from")?, params.needed_tick("to")?);
    let (index, world) = state.index_and_world(&run_id).await?;
    let selection = params.selection(&world)?;
    let question = ["difference", &run_id, query.as_deref().unwrap_or_default()];
    let lasting = Lasting::new(&question, Format::Json);
    if let Some(unchanged) = lasting.unchanged(&headers) {
        return Ok(unchanged);
    }
    let before = stored(&index, from, &selection).await?;
    let after = stored(&index, to, &selection).await?;
    let share = state.budget().for_decoding(&[&before, &after])?;
    let bytes = blocking(share, move |share| {
        let select = |stored| select::select(stored, &world, &selection, state.budget().bytes_max());
        let (before, after) = (select(&before)?, select(&after)?);
        state.budget().for_answer(share, &before, JSON_ROW_BYTES)?;
        state.budget().for_answer(share, &after, JSON_ROW_BYTES)?;
        let changes = select::difference(&before, &after).into_iter().map(|change| {
            let coordinates = world.coordinates(change.flat_index)?;
            let (before, after) = (change.before.map(Content::from), change.after.map(Content::from));
            Ok(Change { flat_index: change.flat_index, coordinates, before, after })
        });
        json(&Difference { run_id: &run_id, from, to, changes: changes.collect::<Answer<_>>()? })
    });
    Ok(lasting.response(bytes.await?))
}

async fn stored(index: &Index, tick: i64, selection: &Selection) -> Answer<StoredTick> {
    let missing = || Problem::not_found(format!("tick {tick} of run {:?} is not indexed", index.run_id()));
    index.stored(tick, selection.area.as_ref()).await?.ok_or_else(missing)
}

/// Decodes outside the threads that serve connections. The share is given back when the answer is ready, also if the client has left.
async fn blocking<T: Send + 'static>(
    mut share: Share,
    work: impl FnOnce(&mut Share) -> Answer<T> + Send + 'static,
) -> Answer<T> {
    let ended = |error| Error::transient(ErrorCode::ReadFailed, format!("decoding ended: {error}"));
    tokio::task::spawn_blocking(move || work(&mut share)).await.map_err(ended)?
}
