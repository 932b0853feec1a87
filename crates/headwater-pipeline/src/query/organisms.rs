//! Organisms of a tick, and one organism's history and lineage.

use axum::extract::{Path, RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Serialize;

use super::QueryState;
use super::answer::{Format, Lasting, changing, json};
use super::params::{self, Params};
use super::problem::{Answer, Problem};
use super::runs::next_from;
use crate::contracts::OrganismState;
use crate::index::{Index, Organism};

#[derive(Serialize)]
struct Described {
    id: u64,
    parent_id: u64,
    birth_tick: i64,
}

impl From<Organism> for Described {
    fn from(organism: Organism) -> Self {
        let Organism { id, parent_id, birth_tick } = organism;
        Described { id, parent_id, birth_tick }
    }
}

#[derive(Serialize)]
struct Condition {
    alive: bool,
    energy: i64,
    position: Vec<u64>,
    direction: Vec<i32>,
    registers: Vec<i64>,
}

impl From<OrganismState> for Condition {
    fn from(state: OrganismState) -> Self {
        let OrganismState { alive, energy, position, direction, registers, .. } = state;
        Condition { alive, energy, position, direction, registers }
    }
}

#[derive(Serialize)]
struct OfTick {
    run_id: String,
    tick: i64,
    organisms: Vec<WithState>,
    /// The last id of a list that reached its limit; `null` at the end.
    next_after: Option<u64>,
}

#[derive(Serialize)]
struct WithState {
    #[serde(flatten)]
    organism: Described,
    #[serde(flatten)]
    state: Condition,
}

/// `/runs/{run}/ticks/{tick}/organisms`
pub(super) async fn organisms(
    State(state): State<QueryState>,
    Path((run_id, tick)): Path<(String, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer<Response> {
    let params = Params::parse(query.as_deref(), &["after", "limit"])?;
    let tick = params::tick(&tick)?;
    let (after, limit) = (params.number("after", 0..=u64::MAX)?, params.limit()?);
    let index = state.index(&run_id).await?;
    let question = ["organisms", &run_id, &tick.to_string(), query.as_deref().unwrap_or_default()];
    let lasting = Lasting::new(&question, Format::Json);
    if let Some(unchanged) = lasting.unchanged(&headers) {
        return Ok(unchanged);
    }
    let missing =
        || Problem::not_found(format!("organisms of tick {tick} of run {run_id:?} are not indexed"));
    let organisms = index.organisms(tick, after, limit).await?.ok_or_else(missing)?;
    let next_after = organisms.last().map(|last| last.id).filter(|_| organisms.len() as u64 >= limit);
    let organisms = organisms
        .into_iter()
        .map(|state| {
            let OrganismState { id, parent_id, birth_tick, .. } = state;
            WithState { organism: Described { id, parent_id, birth_tick }, state: state.into() }
        })
        .collect();
    Ok(lasting.response(json(&OfTick { run_id, tick, organisms, next_after })?))
}

#[derive(Serialize)]
struct History {
    run_id: String,
    organism: Described,
    history: Vec<AtTick>,
    next_from: Option<i64>,
}

#[derive(Serialize)]
struct AtTick {
    tick: i64,
    #[serde(flatten)]
    state: Condition,
}

/// `/runs/{run}/organisms/{id}/history`
pub(super) async fn history(
    State(state): State<QueryState>,
    Path((run_id, id)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Answer<Response> {
    let params = Params::parse(query.as_deref(), &["from", "to", "limit"])?;
    let (range, limit) = (params.tick_range()?, params.limit()?);
    let (index, organism) = found(&state, &run_id, &id).await?;
    let history = index.organism_history(&organism, range.clone(), limit).await?;
    let next_from = next_from(history.last().map(|(tick, _)| *tick), history.len(), limit, *range.end());
    let history = history.into_iter().map(|(tick, state)| AtTick { tick, state: state.into() }).collect();
    changing(&History { run_id, organism: organism.into(), history, next_from })
}

#[derive(Serialize)]
struct Lineage {
    run_id: String,
    organism: Described,
    /// The parent first.
    ancestors: Vec<Described>,
    children: Vec<Described>,
}

/// `/runs/{run}/organisms/{id}/lineage`
pub(super) async fn lineage(
    State(state): State<QueryState>,
    Path((run_id, id)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Answer<Response> {
    let limit = Params::parse(query.as_deref(), &["limit"])?.limit()?;
    let (index, organism) = found(&state, &run_id, &id).await?;
    let ancestors = index.ancestors(organism.id).await?.into_iter().skip(1).map(Into::into).collect();
    let children = index.children(organism.id, limit).await?.into_iter().map(Into::into).collect();
    changing(&Lineage { run_id, organism: organism.into(), ancestors, children })
}

async fn found(state: &QueryState, run_id: &str, id: &str) -> Answer<(Index, Organism)> {
    let id = params::number("id", id, 0..=u64::MAX)?;
    let index = state.index(run_id).await?;
    let missing = || Problem::not_found(format!("organism {id} of run {run_id:?} is not indexed"));
    let organism = index.organism(id).await?.ok_or_else(missing)?;
    Ok((index, organism))
}
