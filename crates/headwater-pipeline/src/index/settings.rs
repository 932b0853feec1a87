//! What all processes of a run must agree on: the first one decides, a later configuration changes nothing.

use super::database::{Column, Database, Durability, Kind, OnConflict, Query, RowSize, Table, Upsert};
use crate::error::{Error, ErrorCode, Result};

static SETTINGS: Table = Table {
    name: "settings",
    columns: &[Column { name: "name", kind: Kind::Text }, Column { name: "value", kind: Kind::Natural }],
    key_columns: 1,
    indexes: &[],
    on_conflict: OnConflict::Keep,
    rows: RowSize::Short,
    partitionable: false,
};

/// The value of the run: this one, unless there is one.
pub(super) async fn agree(database: &dyn Database, name: &'static str, value: u64) -> Result<u64> {
    database.create_tables(&[&SETTINGS]).await?;
    if let Some(there) = get(database, name).await? {
        return Ok(there);
    }
    let own =
        i64::try_from(value).map_err(|_| Error::invalid(format!("{name} {value}: at most {}", i64::MAX)))?;
    let mut row = Upsert::new(&SETTINGS, 1);
    row.push([name.into(), own.into()]);
    database.upsert(vec![row], Durability::Synced).await?;
    // Read back: of two processes at once, the row of the first is kept.
    get(database, name).await?.ok_or_else(|| {
        Error::transient(ErrorCode::SchemaSetupFailed, format!("index: setting {name} has vanished"))
    })
}

/// The value of the run, if there is one.
pub(super) async fn get(database: &dyn Database, name: &'static str) -> Result<Option<u64>> {
    let rows = database.query(Query::new("SELECT value FROM @settings WHERE name = $1").bind(name)).await?;
    rows.first().map(|row| row.integer(0).map(i64::cast_unsigned)).transpose()
}
