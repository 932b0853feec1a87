//! The index of a run in a schema of its own in PostgreSQL.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use deadpool_postgres::Object;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use self::connect::{Connections, Lent};
use super::database::{Database, Durability, Kind, PoolFigures, Query, Row, Table, Upsert, Value};
use crate::error::{Error, ErrorCode, Result};

mod connect;
mod fault;
mod statement;

/// How long a flush may take, and a read. The server ends its part by its own time-out, a little earlier.
const WRITE_LIMIT: Duration = Duration::from_secs(60);
const READ_LIMIT: Duration = Duration::from_secs(30);
const GRACE: Duration = Duration::from_secs(5);
/// Bytes per statement: a flush of 60 MB needs no buffer of 60 MB on either side.
const STATEMENT_BYTES: usize = 16 * 1024 * 1024;

/// A handle of the index in a schema.
pub(super) struct Postgres {
    connections: Connections,
    /// Quoted.
    schema: String,
    /// For tables that this handle creates.
    partition_ticks: Option<u64>,
    partitions: Mutex<Partitions>,
}

/// What is known about partitioned tables.
#[derive(Default)]
struct Partitions {
    /// Ticks per partition of a table that exists; `None` if it is not partitioned.
    ticks: BTreeMap<&'static str, Option<u64>>,
    there: BTreeSet<(&'static str, u64)>,
}

/// What a transaction does.
#[derive(Clone, Copy)]
enum Work<'w> {
    Commands(&'w str),
    Upserts(&'w [&'w Upsert]),
}

type Driven<T> = std::result::Result<T, tokio_postgres::Error>;

impl Postgres {
    /// Connects to nothing yet. The schema's name is one that needs no escaping.
    pub(super) fn new(
        url: &str,
        schema: &str,
        connections_max: usize,
        connections_idle_min: usize,
        partition_ticks: Option<u64>,
    ) -> Result<Self> {
        let connections = Connections::new(url, schema, connections_max, connections_idle_min)?;
        let schema = format!("\"{schema}\"");
        Ok(Postgres { connections, schema, partition_ticks, partitions: Mutex::default() })
    }

    /// Runs a transaction, and leaves the connection clean: committed, rolled back, or closed.
    async fn transact(&self, code: ErrorCode, durability: Durability, work: Work<'_>) -> Result<()> {
        let mut lent = self.connections.get(code).await?;
        lent.begin();
        let client = lent.client();
        let run = async {
            client.batch_execute(begin(durability)).await?;
            match work {
                Work::Commands(sql) => client.batch_execute(sql).await?,
                Work::Upserts(writes) => self.write(client, writes).await?,
            }
            client.batch_execute("COMMIT").await
        };
        match tokio::time::timeout(WRITE_LIMIT + GRACE, run).await {
            Ok(Ok(())) => {
                lent.end();
                Ok(())
            }
            Ok(Err(error)) => {
                roll_back(lent).await;
                Err(fault::translate(code, &self.schema, &error))
            }
            // Dropped unclean: the connection closes, and the server rolls back.
            Err(_) => Err(fault::late(code, &self.schema)),
        }
    }

    async fn write(&self, client: &Object, writes: &[&Upsert]) -> Driven<()> {
        for write in writes {
            let statement = client.prepare_cached(&statement::upsert(&self.schema, write.table())).await?;
            for rows in in_statements(&sorted(write)) {
                let columns = columns_of(write.table(), rows);
                let params: Vec<&(dyn ToSql + Sync)> = columns.iter().map(Array::as_param).collect();
                client.execute(&statement, &params).await?;
            }
        }
        Ok(())
    }

    /// Runs one statement that reads.
    async fn read(
        &self,
        code: ErrorCode,
        sql: &str,
        params: &[Value],
    ) -> Result<Driven<Vec<tokio_postgres::Row>>> {
        let mut lent = self.connections.get(code).await?;
        lent.begin();
        let client = lent.client();
        let run = async {
            let statement = client.prepare_cached(sql).await?;
            let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(|value| value as _).collect();
            client.query(&statement, &params).await
        };
        let answer =
            tokio::time::timeout(READ_LIMIT, run).await.map_err(|_| fault::late(code, &self.schema))?;
        // Outside a transaction a failed statement leaves nothing behind.
        lent.end();
        Ok(answer)
    }

    /// Creates the partitions that rows of a partitioned table need. In a transaction of its own: a partition without rows is harmless.
    async fn create_partitions(&self, write: &Upsert) -> Result<()> {
        let table = write.table();
        let Some(ticks) = self.ticks_per_partition(table).await? else { return Ok(()) };
        // The database refuses negative numbers by itself.
        let numbers: BTreeSet<u64> = write
            .rows()
            .filter_map(|row| match row[0] {
                Value::Integer(tick) => u64::try_from(tick).ok(),
                _ => None,
            })
            .map(|tick| tick / ticks)
            .collect();
        let missing: Vec<u64> = {
            let known = self.partitions.lock().unwrap_or_else(PoisonError::into_inner);
            numbers.into_iter().filter(|number| !known.there.contains(&(table.name, *number))).collect()
        };
        if missing.is_empty() {
            return Ok(());
        }
        let mut sql = self.lock();
        for number in &missing {
            sql += &statement::create_partition(&self.schema, table, ticks, *number);
            sql.push(';');
        }
        self.transact(ErrorCode::WriteFailed, Durability::Synced, Work::Commands(&sql)).await?;
        let mut known = self.partitions.lock().unwrap_or_else(PoisonError::into_inner);
        known.there.extend(missing.into_iter().map(|number| (table.name, number)));
        Ok(())
    }

    /// The figure that the table was created with, whatever this handle is configured with.
    async fn ticks_per_partition(&self, table: &'static Table) -> Result<Option<u64>> {
        if let Some(known) =
            self.partitions.lock().unwrap_or_else(PoisonError::into_inner).ticks.get(table.name)
        {
            return Ok(*known);
        }
        let sql =
            "SELECT coalesce(obj_description(oid, 'pg_class'), '') FROM pg_class WHERE oid = to_regclass($1)";
        let name = Value::Text(format!("{}.\"{}\"", self.schema, table.name));
        let rows = self
            .read(ErrorCode::WriteFailed, sql, &[name])
            .await?
            .map_err(|error| fault::translate(ErrorCode::WriteFailed, &self.schema, &error))?;
        let Some(comment) = rows.first().map(|row| row.get::<_, String>(0)) else { return Ok(None) };
        let ticks = comment.strip_prefix(statement::PARTITION_TICKS).and_then(|ticks| ticks.parse().ok());
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner).ticks.insert(table.name, ticks);
        Ok(ticks)
    }

    /// `IF NOT EXISTS` is no protection against another process that creates the same at the same moment: creations take turns.
    fn lock(&self) -> String {
        format!("SELECT pg_advisory_xact_lock(hashtextextended('headwater index {}', 0));", self.schema)
    }
}

/// Settings for this transaction alone: behind a pooler a session is shared. A commit waits for the disk, and for a synchronous standby,
/// whatever the role's setting is, unless the caller does not need it.
fn begin(durability: Durability) -> &'static str {
    match durability {
        Durability::Synced => {
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL statement_timeout = '60s';
             SELECT set_config('synchronous_commit', 'on', true)
             WHERE current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')"
        }
        Durability::Lazy => {
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL statement_timeout = '60s';
             SET LOCAL synchronous_commit = off"
        }
    }
}

/// Before the connection returns to the pool. If even that fails, it is closed.
async fn roll_back(mut lent: Lent) {
    let rolled_back = tokio::time::timeout(GRACE, lent.client().batch_execute("ROLLBACK")).await;
    if matches!(rolled_back, Ok(Ok(()))) {
        lent.end();
    }
}

#[async_trait]
impl Database for Postgres {
    async fn create_tables(&self, tables: &[&'static Table]) -> Result<()> {
        let code = ErrorCode::SchemaSetupFailed;
        let failed = |error| fault::translate(code, &self.schema, &error);
        let mut missing = Vec::new();
        for table in tables {
            // Checked first: a role that may not create anything works with tables that are there.
            let name = Value::Text(format!("{}.\"{}\"", self.schema, table.name));
            let found =
                self.read(code, "SELECT 1::bigint WHERE to_regclass($1) IS NOT NULL", &[name]).await?;
            if found.map_err(failed)?.is_empty() {
                missing.push(*table);
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let mut sql = format!("{} CREATE SCHEMA IF NOT EXISTS {};", self.lock(), self.schema);
        for table in missing {
            let partition_ticks = self.partition_ticks.filter(|_| table.partitionable);
            sql += &statement::create(&self.schema, table, partition_ticks);
        }
        self.transact(code, Durability::Synced, Work::Commands(&sql)).await
    }

    async fn upsert(&self, writes: Vec<Upsert>, durability: Durability) -> Result<()> {
        let writes: Vec<&Upsert> = writes.iter().filter(|write| !write.is_empty()).collect();
        if writes.is_empty() {
            return Ok(());
        }
        for write in writes.iter().filter(|write| write.table().partitionable) {
            self.create_partitions(write).await?;
        }
        let written = self.transact(ErrorCode::WriteFailed, durability, Work::Upserts(&writes)).await;
        if written.is_err() {
            // A partition may have been dropped.
            self.partitions.lock().unwrap_or_else(PoisonError::into_inner).there.clear();
        }
        written
    }

    async fn query(&self, query: Query) -> Result<Vec<Row>> {
        let sql = statement::query(&self.schema, query.sql);
        match self.read(ErrorCode::ReadFailed, &sql, &query.params).await? {
            Ok(rows) => rows.iter().map(row_of).collect(),
            Err(error) if fault::is_missing_table(&error) => Ok(Vec::new()),
            Err(error) => Err(fault::translate(ErrorCode::ReadFailed, &self.schema, &error)),
        }
    }

    fn pool(&self) -> PoolFigures {
        self.connections.figures()
    }

    async fn bytes_stored(&self) -> Result<u64> {
        let sql = "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
                   WHERE relnamespace = to_regnamespace($1)::oid AND relkind = 'r'";
        let rows = self.read(ErrorCode::ReadFailed, sql, &[Value::Text(self.schema.clone())]).await?;
        let rows = rows.map_err(|error| fault::translate(ErrorCode::ReadFailed, &self.schema, &error))?;
        Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).cast_unsigned()))
    }

    async fn remove(&self) -> Result<()> {
        let sql = format!("{} DROP SCHEMA IF EXISTS {} CASCADE", self.lock(), self.schema);
        self.transact(ErrorCode::WriteFailed, Durability::Synced, Work::Commands(&sql)).await?;
        *self.partitions.lock().unwrap_or_else(PoisonError::into_inner) = Partitions::default();
        Ok(())
    }

    async fn close(&self) {
        self.connections.close();
    }
}

/// The rows in the order of their keys, each key once. The same order everywhere means that two transactions with the same keys wait for
/// each other and do not deadlock; a key that came twice would be refused within one statement.
fn sorted(write: &Upsert) -> Vec<&[Value]> {
    let key = write.table().key_columns;
    let mut rows: Vec<&[Value]> = write.rows().collect();
    // Stable: the last of equal ones stays the last.
    rows.sort_by(|a, b| a[..key].cmp(&b[..key]));
    rows.dedup_by(|later, kept| {
        let is_same = later[..key] == kept[..key];
        if is_same {
            *kept = *later;
        }
        is_same
    });
    rows
}

/// Parts of at most [`STATEMENT_BYTES`], or of one row.
fn in_statements<'r>(rows: &'r [&'r [Value]]) -> impl Iterator<Item = &'r [&'r [Value]]> {
    let weight = |row: &[Value]| row.iter().map(Value::weight).sum::<usize>();
    let mut bytes = 0;
    rows.chunk_by(move |before, next| {
        if bytes == 0 {
            bytes = weight(before);
        }
        bytes += weight(next);
        let fits = bytes <= STATEMENT_BYTES;
        if !fits {
            bytes = 0;
        }
        fits
    })
}

/// The values of a column.
enum Array<'r> {
    Integers(Vec<i64>),
    Texts(Vec<&'r str>),
    Blobs(Vec<&'r [u8]>),
}

impl Array<'_> {
    fn as_param(&self) -> &(dyn ToSql + Sync) {
        match self {
            Array::Integers(values) => values,
            Array::Texts(values) => values,
            Array::Blobs(values) => values,
        }
    }
}

fn columns_of<'r>(table: &Table, rows: &[&'r [Value]]) -> Vec<Array<'r>> {
    let of = |at: usize| rows.iter().map(move |row| &row[at]);
    let column = |(at, kind): (usize, Kind)| match kind {
        Kind::Integer | Kind::Natural => Array::Integers(of(at).filter_map(integer).collect()),
        Kind::Text => Array::Texts(of(at).filter_map(text).collect()),
        Kind::Blob => Array::Blobs(of(at).filter_map(blob).collect()),
    };
    table.columns.iter().map(|column| column.kind).enumerate().map(column).collect()
}

// An upsert takes values of the columns' kinds only, so none of these leaves a value out.
fn integer(value: &Value) -> Option<i64> {
    if let Value::Integer(value) = value { Some(*value) } else { None }
}

fn text(value: &Value) -> Option<&str> {
    if let Value::Text(value) = value { Some(value) } else { None }
}

fn blob(value: &Value) -> Option<&[u8]> {
    if let Value::Blob(value) = value { Some(value) } else { None }
}

fn row_of(row: &tokio_postgres::Row) -> Result<Row> {
    let value = |(at, kind): (usize, &Type)| match *kind {
        Type::INT8 => Ok(Value::Integer(row.get(at))),
        Type::TEXT => Ok(Value::Text(row.get(at))),
        Type::BYTEA => Ok(Value::Blob(Bytes::copy_from_slice(row.get(at)))),
        _ => {
            Err(Error::permanent(ErrorCode::ReadFailed, format!("column {at} of a row has the type {kind}")))
        }
    };
    row.columns()
        .iter()
        .map(tokio_postgres::Column::type_)
        .enumerate()
        .map(value)
        .collect::<Result<_>>()
        .map(Row)
}

impl ToSql for Value {
    fn to_sql(
        &self,
        kind: &Type,
        buffer: &mut BytesMut,
    ) -> std::result::Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Value::Integer(value) => value.to_sql(kind, buffer),
            Value::Text(value) => value.to_sql(kind, buffer),
            Value::Blob(value) => value.as_ref().to_sql(kind, buffer),
        }
    }

    fn accepts(kind: &Type) -> bool {
        matches!(*kind, Type::INT8 | Type::TEXT | Type::BYTEA)
    }

    to_sql_checked!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::single_blob::TICKS;

    fn ticks(numbers: &[i64], bytes: usize) -> Upsert {
        let mut write = Upsert::new(&TICKS, numbers.len());
        for (at, number) in numbers.iter().enumerate() {
            let content = vec![u8::try_from(at).unwrap(); bytes];
            write.push([(*number).into(), Bytes::from(content).into()]);
        }
        write
    }

    #[test]
    fn rows_are_in_the_order_of_their_keys_and_the_last_of_equal_ones_counts() {
        let write = ticks(&[5, 2, 5, 1, 2], 1);
        let rows: Vec<(i64, u8)> =
            sorted(&write).iter().map(|row| (integer(&row[0]).unwrap(), blob(&row[1]).unwrap()[0])).collect();
        assert_eq!(rows, [(1, 3), (2, 4), (5, 2)]);
    }

    #[test]
    fn a_statement_has_a_limit_and_at_least_one_row() {
        let write = ticks(&[1, 2, 3, 4, 5], STATEMENT_BYTES / 2 - 100);
        let rows = sorted(&write);
        let parts: Vec<usize> = in_statements(&rows).map(<[_]>::len).collect();
        assert_eq!(parts.iter().sum::<usize>(), 5);
        assert!(parts.iter().all(|part| *part <= 2), "{parts:?}");
        let write = ticks(&[1, 2], STATEMENT_BYTES + 1);
        assert_eq!(in_statements(&sorted(&write)).map(<[_]>::len).collect::<Vec<_>>(), [1, 1]);
    }
}
