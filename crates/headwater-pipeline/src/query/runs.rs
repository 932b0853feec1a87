//! Runs, their metadata and the ticks that are indexed.

use std::collections::BTreeMap;

use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use futures_util::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use serde::Serialize;

use super::QueryState;
use super::answer::changing;
use super::params::Params;
use super::problem::{Answer, Problem};
use crate::contracts::RunInfo;
use crate::error::Error;
use crate::resource::MetadataRead;

/// Indexes that are asked for their ticks at a time.
const AT_A_TIME: usize = 8;

#[derive(Serialize)]
struct Runs {
    runs: Vec<Run>,
}

#[derive(Serialize)]
struct Run {
    run_id: String,
    state: String,
    started_at: Option<Timestamp>,
    ended_at: Option<Timestamp>,
    reason: String,
    /// `null` as long as no tick is indexed.
    indexed: Option<Indexed>,
    /// The same of organisms, which an indexer of their own writes.
    organisms_indexed: Option<Indexed>,
    /// Why its index cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

#[derive(Serialize)]
struct Indexed {
    first_tick: i64,
    last_tick: i64,
}

impl From<(i64, i64)> for Indexed {
    fn from((first_tick, last_tick): (i64, i64)) -> Self {
        Indexed { first_tick, last_tick }
    }
}

/// `/runs`
pub(super) async fn runs(State(state): State<QueryState>, RawQuery(query): RawQuery) -> Answer<Response> {
    let limit = Params::parse(query.as_deref(), &["limit"])?.limit()?;
    let mut runs = state.catalog().runs().await?;
    runs.sort_by(|a, b| (b.started_at_ms, &b.run_id).cmp(&(a.started_at_ms, &a.run_id)));
    runs.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let described = stream::iter(runs.into_iter().map(|run| described(&state, run))).buffered(AT_A_TIME);
    changing(&Runs { runs: described.try_collect().await? })
}

/// `/runs/{run}`
pub(super) async fn run(
    State(state): State<QueryState>,
    Path(run_id): Path<String>,
    RawQuery(query): RawQuery,
) -> Answer<Response> {
    Params::parse(query.as_deref(), &[])?;
    let run = state.run(&run_id).await?;
    changing(&described(&state, run).await?)
}

async fn described(state: &QueryState, run: RunInfo) -> Answer<Run> {
    let ranges = async {
        let index = state.catalog().index(&run.run_id).await?;
        Ok((index.tick_range().await?, index.organism_tick_range().await?))
    };
    let ((cells, organisms), problem) = match ranges.await {
        Ok(ranges) => (ranges, None),
        Err(error) if Error::is_transient(&error) => return Err(error.into()),
        // The others are listed all the same.
        Err(error) => ((None, None), Some(format!("{}: {error}", error.code()))),
    };
    let time = |ms: i64| Timestamp::from_millisecond(ms).ok().filter(|_| ms != 0);
    Ok(Run {
        started_at: time(run.started_at_ms),
        ended_at: time(run.ended_at_ms),
        run_id: run.run_id,
        state: run.state,
        reason: run.reason,
        indexed: cells.map(Into::into),
        organisms_indexed: organisms.map(Into::into),
        problem,
    })
}

#[derive(Serialize)]
struct Metadata {
    run_id: String,
    start_time: Option<Timestamp>,
    seed: u64,
    environment: Environment,
    sampling_interval: u64,
    resolved_config: String,
    molecule_types: BTreeMap<u32, String>,
}

#[derive(Serialize)]
struct Environment {
    dimensions: Vec<Dimension>,
    topology: String,
}

#[derive(Serialize)]
struct Dimension {
    size: u64,
}

/// `/runs/{run}/metadata`
pub(super) async fn metadata(
    State(state): State<QueryState>,
    Path(run_id): Path<String>,
    RawQuery(query): RawQuery,
) -> Answer<Response> {
    Params::parse(query.as_deref(), &[])?;
    let index = state.index(&run_id).await?;
    let missing = || Problem::not_found(format!("metadata of run {run_id:?} is not indexed yet"));
    let metadata = index.metadata(&run_id).await?.ok_or_else(missing)?;
    let environment = metadata.environment.unwrap_or_default();
    changing(&Metadata {
        run_id: metadata.run_id,
        start_time: Timestamp::from_millisecond(metadata.start_time_ms).ok(),
        seed: metadata.seed,
        environment: Environment {
            dimensions: environment.dimensions.iter().map(|axis| Dimension { size: axis.size }).collect(),
            topology: environment.topology,
        },
        sampling_interval: metadata.sampling_interval,
        resolved_config: metadata.resolved_config,
        molecule_types: metadata.molecule_types,
    })
}

#[derive(Serialize)]
struct Ticks {
    run_id: String,
    indexed: Option<Indexed>,
    ticks: Vec<i64>,
    /// Where the rest begins; `null` at the end.
    next_from: Option<i64>,
}

/// `/runs/{run}/ticks`
pub(super) async fn ticks(
    State(state): State<QueryState>,
    Path(run_id): Path<String>,
    RawQuery(query): RawQuery,
) -> Answer<Response> {
    let params = Params::parse(query.as_deref(), &["from", "to", "limit"])?;
    let (range, limit) = (params.tick_range()?, params.limit()?);
    let index = state.index(&run_id).await?;
    let ticks = index.ticks(range.clone(), limit).await?;
    let indexed = index.tick_range().await?;
    let next_from = next_from(ticks.last().copied(), ticks.len(), limit, *range.end());
    changing(&Ticks { run_id, indexed: indexed.map(Into::into), ticks, next_from })
}

/// Where a list that reached its limit continues.
pub(super) fn next_from(last: Option<i64>, count: usize, limit: u64, to: i64) -> Option<i64> {
    last.filter(|last| count as u64 >= limit && *last < to).map(|last| last + 1)
}
