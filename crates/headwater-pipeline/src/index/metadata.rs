//! The run's metadata, and batches that are known to be done.

use async_trait::async_trait;
use jiff::Timestamp;
use prost::Message;

use super::Index;
use super::database::{Column, Durability, Kind, OnConflict, Query, RowSize, Table, Upsert};
use crate::contracts::{FORMAT_VERSION, SimulationMetadata};
use crate::error::{Error, ErrorCode, Result};
use crate::resource::{IdempotencyTracker, MetadataRead, MetadataWrite};

static METADATA: Table = Table {
    name: "metadata",
    columns: &[Column { name: "run", kind: Kind::Text }, Column { name: "content", kind: Kind::Blob }],
    key_columns: 1,
    indexes: &[],
    on_conflict: OnConflict::Keep,
    rows: RowSize::Short,
    partitionable: false,
};

static TRACKING: Table = Table {
    name: "idempotency_tracking",
    columns: &[
        Column { name: "group", kind: Kind::Text },
        Column { name: "batch_id", kind: Kind::Text },
        Column { name: "done_at", kind: Kind::Natural },
    ],
    key_columns: 2,
    indexes: &[],
    on_conflict: OnConflict::Keep,
    rows: RowSize::Short,
    partitionable: false,
};

#[async_trait]
impl MetadataRead for Index {
    async fn metadata(&self, run_id: &str) -> Result<Option<SimulationMetadata>> {
        if run_id != self.run_id() {
            return Err(self.other_run(ErrorCode::ReadFailed, "metadata", run_id));
        }
        if let Some(known) = self.known_metadata().get() {
            return Ok(Some(known.clone()));
        }
        let found = read(self, run_id).await?;
        // It never changes.
        Ok(found.map(|found| self.known_metadata().get_or_init(|| found).clone()))
    }
}

#[async_trait]
impl MetadataWrite for Index {
    async fn create_schema(&self) -> Result<()> {
        self.database().create_tables(&[&METADATA]).await
    }

    async fn insert_metadata(&self, metadata: &SimulationMetadata) -> Result<()> {
        let run_id = metadata.run_id.as_str();
        if run_id != self.run_id() {
            return Err(self.other_run(ErrorCode::WriteFailed, "metadata", run_id));
        }
        let mut row = Upsert::new(&METADATA, 1);
        row.push([run_id.into(), bytes::Bytes::from(metadata.encode_to_vec()).into()]);
        self.database().upsert(vec![row], Durability::Synced).await?;
        // Read back: a row that was there is kept, and must say the same.
        match read(self, run_id).await? {
            Some(there) if there == *metadata => Ok(()),
            Some(_) => Err(Error::permanent(
                ErrorCode::WriteFailed,
                format!("metadata of run {run_id}: the index has other metadata of this run"),
            )),
            None => Err(Error::transient(
                ErrorCode::WriteFailed,
                format!("metadata of run {run_id}: the row has vanished"),
            )),
        }
    }
}

async fn read(index: &Index, run_id: &str) -> Result<Option<SimulationMetadata>> {
    let query = Query::new("SELECT content FROM @metadata WHERE run = $1").bind(run_id);
    let rows = index.database().query(query).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let failed = |why: String| {
        Error::permanent(ErrorCode::DecodeFailed, format!("metadata of run {run_id} in the index: {why}"))
    };
    let metadata = SimulationMetadata::decode(row.blob(0)?).map_err(|error| failed(error.to_string()))?;
    if metadata.format_version > FORMAT_VERSION {
        let version = metadata.format_version;
        return Err(failed(format!("format version {version}, this program knows {FORMAT_VERSION}")));
    }
    Ok(Some(metadata))
}

#[async_trait]
impl IdempotencyTracker for Index {
    async fn create_schema(&self) -> Result<()> {
        self.database().create_tables(&[&TRACKING]).await
    }

    async fn is_done(&self, group: &str, batch_id: &str) -> Result<bool> {
        let sql = "SELECT done_at FROM @idempotency_tracking WHERE \"group\" = $1 AND batch_id = $2";
        let rows = self.database().query(Query::new(sql).bind(group).bind(batch_id)).await?;
        Ok(!rows.is_empty())
    }

    /// Not synced: a mark that is lost in a power cut costs one more read.
    async fn mark_done(&self, group: &str, batch_id: &str) -> Result<()> {
        let mut row = Upsert::new(&TRACKING, 1);
        row.push([group.into(), batch_id.into(), Timestamp::now().as_millisecond().into()]);
        self.database().upsert(vec![row], Durability::Lazy).await
    }
}
