//! Organisms: what never changes once, their state per tick, their history and their ancestors.

use std::collections::{BTreeMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use prost::Message;

use super::Index;
use super::database::{Column, Durability, Kind, OnConflict, Query, Row, RowSize, Table, Upsert, Value};
use crate::contracts::{OrganismState, TickData};
use crate::error::{Error, ErrorCode, Result};
use crate::resource::OrganismWrite;

static ORGANISMS: Table = Table {
    name: "organisms",
    columns: &[
        Column { name: "id", kind: Kind::Integer },
        Column { name: "parent_id", kind: Kind::Integer },
        Column { name: "birth_tick", kind: Kind::Integer },
    ],
    key_columns: 1,
    indexes: &[&["parent_id"]],
    on_conflict: OnConflict::Keep,
    rows: RowSize::Short,
    partitionable: false,
};

static STATES: Table = Table {
    name: "organism_states",
    columns: &[
        Column { name: "tick", kind: Kind::Natural },
        Column { name: "id", kind: Kind::Integer },
        Column { name: "state", kind: Kind::Blob },
    ],
    key_columns: 2,
    // The history of one organism.
    indexes: &[&["id", "tick"]],
    on_conflict: OnConflict::Replace,
    rows: RowSize::Short,
    partitionable: false,
};

/// A row for each tick, also without organisms: it differs from a tick that is not indexed yet.
static ORGANISM_TICKS: Table = Table {
    name: "organism_ticks",
    columns: &[
        Column { name: "tick", kind: Kind::Natural },
        Column { name: "organisms", kind: Kind::Natural },
    ],
    key_columns: 1,
    indexes: &[],
    on_conflict: OnConflict::Replace,
    rows: RowSize::Short,
    partitionable: false,
};

/// Ids remembered at most: 8 MB.
const KNOWN_MAX: usize = 1_000_000;
/// Ancestors returned at most, which also ends a loop in wrong data.
pub const ANCESTORS_MAX: u64 = 10_000;

/// Organisms that this handle has committed. Their static part need not be written again, and competing indexers need not wait for each
/// other's uncommitted rows of the same organisms.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<HashSet<u64>>);

impl Known {
    /// Those of ticks that are not known, by id.
    fn new_in(&self, ticks: &[TickData]) -> BTreeMap<u64, Organism> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = ticks.iter().flat_map(|tick| &tick.organisms);
        all.filter(|organism| !known.contains(&organism.id))
            .map(|&OrganismState { id, parent_id, birth_tick, .. }| {
                (id, Organism { id, parent_id, birth_tick })
            })
            .collect()
    }

    fn add(&self, ids: impl Iterator<Item = u64>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() > KNOWN_MAX {
            known.clear();
        }
        known.extend(ids);
    }

    fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// What never changes about an organism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Organism {
    /// Its id.
    pub id: u64,
    /// 0: no parent.
    pub parent_id: u64,
    /// The tick of its birth.
    pub birth_tick: i64,
}

#[async_trait]
impl OrganismWrite for Index {
    async fn create_schema(&self) -> Result<()> {
        self.known_organisms().clear();
        self.database().create_tables(&[&ORGANISMS, &STATES, &ORGANISM_TICKS]).await
    }

    async fn write_organisms(&self, ticks: &[TickData]) -> Result<()> {
        self.check_run(ticks)?;
        if ticks.is_empty() {
            return Ok(());
        }
        let new = self.known_organisms().new_in(ticks);
        let mut states = Upsert::new(&STATES, ticks.iter().map(|tick| tick.organisms.len()).sum());
        let mut counts = Upsert::new(&ORGANISM_TICKS, ticks.len());
        for tick in ticks {
            counts.push([tick.tick_number.into(), number(tick.organisms.len() as u64)]);
            for organism in &tick.organisms {
                states.push([tick.tick_number.into(), number(organism.id), state_of(organism)]);
            }
        }
        let mut organisms = Upsert::new(&ORGANISMS, new.len());
        for organism in new.values() {
            organisms.push([number(organism.id), number(organism.parent_id), organism.birth_tick.into()]);
        }
        self.database().upsert(vec![organisms, states, counts], Durability::Synced).await?;
        // Only what is committed is known.
        self.known_organisms().add(new.into_keys());
        Ok(())
    }
}

/// Databases have signed numbers only; the bits are the same, and ids are only compared for equality.
fn number(unsigned: u64) -> Value {
    Value::Integer(unsigned.cast_signed())
}

/// The state without what the table of organisms has.
fn state_of(organism: &OrganismState) -> Value {
    let state = OrganismState { id: 0, parent_id: 0, birth_tick: 0, ..organism.clone() };
    Value::Blob(state.encode_to_vec().into())
}

impl Index {
    /// The first and the last tick whose organisms are indexed. Between them ticks may be missing while indexers compete.
    pub async fn organism_tick_range(&self) -> Result<Option<(i64, i64)>> {
        let first = Query::new("SELECT tick FROM @organism_ticks ORDER BY tick LIMIT 1");
        let last = Query::new("SELECT tick FROM @organism_ticks ORDER BY tick DESC LIMIT 1");
        match (self.database().query(first).await?.first(), self.database().query(last).await?.first()) {
            (Some(first), Some(last)) => Ok(Some((first.integer(0)?, last.integer(0)?))),
            _ => Ok(None),
        }
    }

    /// Up to `limit` organisms of a tick with an id above `after`, ids rising; `None` if the tick is not indexed.
    pub async fn organisms(
        &self,
        tick: i64,
        after: Option<u64>,
        limit: u64,
    ) -> Result<Option<Vec<OrganismState>>> {
        let indexed = Query::new("SELECT organisms FROM @organism_ticks WHERE tick = $1").bind(tick);
        if self.database().query(indexed).await?.is_empty() {
            return Ok(None);
        }
        let sql = "SELECT s.id, o.parent_id, o.birth_tick, s.state
                   FROM @organism_states s JOIN @organisms o ON o.id = s.id
                   WHERE s.tick = $1 AND s.id > $2 ORDER BY s.id LIMIT $3";
        let after = after.map_or(i64::MIN, u64::cast_signed);
        let query = Query::new(sql).bind(tick).bind(after).bind(limit.cast_signed());
        let rows = self.database().query(query).await?;
        rows.iter().map(|row| merged(&organism_of(row)?, row, 3)).collect::<Result<_>>().map(Some)
    }

    /// What never changes about an organism.
    pub async fn organism(&self, id: u64) -> Result<Option<Organism>> {
        let sql = "SELECT id, parent_id, birth_tick FROM @organisms WHERE id = $1";
        let rows = self.database().query(Query::new(sql).bind(number(id))).await?;
        rows.first().map(organism_of).transpose()
    }

    /// The first `limit` states of an organism in a range of ticks, rising.
    pub async fn organism_history(
        &self,
        organism: &Organism,
        range: RangeInclusive<i64>,
        limit: u64,
    ) -> Result<Vec<(i64, OrganismState)>> {
        let sql = "SELECT tick, state FROM @organism_states WHERE id = $1 AND tick BETWEEN $2 AND $3
                   ORDER BY tick LIMIT $4";
        let query = Query::new(sql).bind(number(organism.id)).bind_range(&range).bind(limit.cast_signed());
        let rows = self.database().query(query).await?;
        rows.iter().map(|row| Ok((row.integer(0)?, merged(organism, row, 1)?))).collect()
    }

    /// The organism, its parent, its parent's parent and so on, at most [`ANCESTORS_MAX`]; empty if it is not indexed.
    pub async fn ancestors(&self, id: u64) -> Result<Vec<Organism>> {
        let sql = "WITH RECURSIVE line (id, parent_id, birth_tick, generation) AS (
                       SELECT id, parent_id, birth_tick, CAST(0 AS bigint) FROM @organisms WHERE id = $1
                       UNION ALL
                       SELECT o.id, o.parent_id, o.birth_tick, line.generation + 1
                       FROM line JOIN @organisms o ON o.id = line.parent_id
                       WHERE line.parent_id <> 0 AND line.generation < $2)
                   SELECT id, parent_id, birth_tick FROM line ORDER BY generation";
        let query = Query::new(sql).bind(number(id)).bind(ANCESTORS_MAX.cast_signed());
        self.database().query(query).await?.iter().map(organism_of).collect()
    }

    /// The first `limit` children of an organism.
    pub async fn children(&self, id: u64, limit: u64) -> Result<Vec<Organism>> {
        let sql =
            "SELECT id, parent_id, birth_tick FROM @organisms WHERE parent_id = $1 ORDER BY id LIMIT $2";
        let query = Query::new(sql).bind(number(id)).bind(limit.cast_signed());
        self.database().query(query).await?.iter().map(organism_of).collect()
    }
}

/// Of the first three columns.
fn organism_of(row: &Row) -> Result<Organism> {
    let (id, parent_id) = (row.integer(0)?.cast_unsigned(), row.integer(1)?.cast_unsigned());
    Ok(Organism { id, parent_id, birth_tick: row.integer(2)? })
}

fn merged(organism: &Organism, row: &Row, column: usize) -> Result<OrganismState> {
    let Organism { id, parent_id, birth_tick } = *organism;
    let state = OrganismState::decode(row.blob(column)?).map_err(|error| {
        Error::permanent(ErrorCode::DecodeFailed, format!("state of organism {id}: {error}"))
    })?;
    Ok(OrganismState { id, parent_id, birth_tick, ..state })
}
