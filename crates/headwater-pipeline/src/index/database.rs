//! What the index needs of a database: tables, upserts in one transaction, and reads. SQLite and PostgreSQL implement it, so that a
//! storage strategy is written once.

use std::ops::RangeInclusive;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{Error, ErrorCode, Result};

/// The database of one run's index.
#[async_trait]
pub trait Database: Send + Sync {
    /// Creates the tables that are missing; any number of processes may call it at once.
    async fn create_tables(&self, tables: &[&'static Table]) -> Result<()>;

    /// Writes all rows in one transaction. After an error nothing of it is left, and the connection is clean.
    ///
    /// A violated constraint is a permanent error; an unreachable, busy or full database a transient one. Rows of one table may repeat a
    /// key: the last one counts.
    async fn upsert(&self, writes: Vec<Upsert>, durability: Durability) -> Result<()>;

    /// Reads rows. A table that does not exist yet has none.
    async fn query(&self, query: Query) -> Result<Vec<Row>>;

    /// How busy the connections are.
    fn pool(&self) -> PoolFigures;

    /// The space that it takes, in bytes; 0 if it does not exist.
    async fn bytes_stored(&self) -> Result<u64>;

    /// Removes it with all tables. Refused while another handle of this process uses it.
    async fn remove(&self) -> Result<()>;

    /// Ends the connections, after what was requested before; later calls fail.
    async fn close(&self);
}

/// A table. Its names come from the program and never from input: they are part of statements.
#[derive(Debug)]
pub struct Table {
    /// The name, in lower case.
    pub name: &'static str,
    /// Columns in the order of [`Upsert::push`]; none is null.
    pub columns: &'static [Column],
    /// The first so many columns are the primary key.
    pub key_columns: usize,
    /// Further indexes, each by the names of its columns.
    pub indexes: &'static [&'static [&'static str]],
    /// What happens to a row whose key is there.
    pub on_conflict: OnConflict,
    /// How rows are laid out.
    pub rows: RowSize,
    /// Whether PostgreSQL may partition it by ranges of its first column.
    pub partitionable: bool,
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// The name, in lower case.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A signed 64-bit number.
    Integer,
    /// A number from 0 on: the database refuses others.
    Natural,
    /// Text.
    Text,
    /// Bytes.
    Blob,
}

/// What happens to a row whose key is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnConflict {
    /// The new one replaces it. An equal row is not written again.
    Replace,
    /// It is kept.
    Keep,
}

/// How rows are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSize {
    /// Up to a few hundred bytes: stored in the order of the key.
    Short,
    /// Blobs that are compressed already: stored apart from the key, and not compressed by the database.
    Long,
}

/// A value of a column.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// Of [`Kind::Integer`] and [`Kind::Natural`].
    Integer(i64),
    /// Of [`Kind::Text`].
    Text(String),
    /// Of [`Kind::Blob`].
    Blob(Bytes),
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Value::Integer(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Value::Text(value.to_owned())
    }
}

impl From<Bytes> for Value {
    fn from(value: Bytes) -> Self {
        Value::Blob(value)
    }
}

impl Value {
    /// The bytes that it adds to a statement, roughly.
    pub(super) fn weight(&self) -> usize {
        match self {
            Value::Integer(_) => 8,
            Value::Text(text) => text.len(),
            Value::Blob(bytes) => bytes.len(),
        }
    }

    fn fits(&self, kind: Kind) -> bool {
        match self {
            Value::Integer(_) => matches!(kind, Kind::Integer | Kind::Natural),
            Value::Text(_) => kind == Kind::Text,
            Value::Blob(_) => kind == Kind::Blob,
        }
    }
}

/// Rows for one table.
#[derive(Clone, Debug)]
pub struct Upsert {
    table: &'static Table,
    /// Row after row, without a list of its own for each.
    values: Vec<Value>,
}

impl Upsert {
    /// No rows yet, with room for some.
    pub fn new(table: &'static Table, rows: usize) -> Self {
        Upsert { table, values: Vec::with_capacity(rows * table.columns.len()) }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If the values are not those of the table's columns.
    pub fn push<const N: usize>(&mut self, row: [Value; N]) {
        assert_eq!(N, self.table.columns.len(), "columns of {}", self.table.name);
        for (value, column) in row.iter().zip(self.table.columns) {
            assert!(value.fits(column.kind), "{}.{} does not hold {value:?}", self.table.name, column.name);
        }
        self.values.extend(row);
    }

    /// The table.
    pub fn table(&self) -> &'static Table {
        self.table
    }

    /// The rows, each with a value per column.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[Value]> {
        self.values.chunks_exact(self.table.columns.len())
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

/// When a transaction counts as committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Once it is on the disk: what is acked afterwards must not be lost in a power cut.
    Synced,
    /// At once: losing it costs time only.
    Lazy,
}

/// A statement that reads, in the SQL that both databases understand. A table is written `@name`, the first parameter `$1`.
#[derive(Clone, Debug)]
pub struct Query {
    pub(super) sql: &'static str,
    pub(super) params: Vec<Value>,
}

impl Query {
    /// A statement without parameters.
    pub fn new(sql: &'static str) -> Self {
        Query { sql, params: Vec::new() }
    }

    /// Adds the next parameter.
    #[must_use]
    pub fn bind(mut self, value: impl Into<Value>) -> Self {
        self.params.push(value.into());
        self
    }

    /// Adds two parameters, for `BETWEEN`.
    #[must_use]
    pub fn bind_range(self, range: &RangeInclusive<i64>) -> Self {
        self.bind(*range.start()).bind(*range.end())
    }
}

/// A row that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row(pub(super) Vec<Value>);

impl Row {
    /// A number.
    pub fn integer(&self, column: usize) -> Result<i64> {
        match self.0.get(column) {
            Some(Value::Integer(value)) => Ok(*value),
            other => Err(unexpected(column, "a number", other)),
        }
    }

    /// Text.
    pub fn text(&self, column: usize) -> Result<&str> {
        match self.0.get(column) {
            Some(Value::Text(value)) => Ok(value),
            other => Err(unexpected(column, "text", other)),
        }
    }

    /// Bytes, without copying them.
    pub fn blob(&self, column: usize) -> Result<Bytes> {
        match self.0.get(column) {
            Some(Value::Blob(value)) => Ok(value.clone()),
            other => Err(unexpected(column, "bytes", other)),
        }
    }
}

fn unexpected(column: usize, expected: &str, found: Option<&Value>) -> Error {
    let found = match found {
        None => "nothing",
        Some(Value::Integer(_)) => "a number",
        Some(Value::Text(_)) => "text",
        Some(Value::Blob(_)) => "bytes",
    };
    Error::permanent(
        ErrorCode::ReadFailed,
        format!("column {column} of a row has {found} instead of {expected}"),
    )
}

/// How busy the connections of a handle are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolFigures {
    /// In use.
    pub active: usize,
    /// Open and unused.
    pub idle: usize,
    /// Open.
    pub total: usize,
    /// Callers that wait for one.
    pub waiting: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    static PAIRS: Table = Table {
        name: "pairs",
        columns: &[Column { name: "id", kind: Kind::Natural }, Column { name: "content", kind: Kind::Blob }],
        key_columns: 1,
        indexes: &[],
        on_conflict: OnConflict::Replace,
        rows: RowSize::Long,
        partitionable: false,
    };

    #[test]
    fn rows_keep_their_order() {
        let mut pairs = Upsert::new(&PAIRS, 2);
        pairs.push([7.into(), Bytes::from_static(b"a").into()]);
        pairs.push([3.into(), Bytes::new().into()]);
        let ids: Vec<&Value> = pairs.rows().map(|row| &row[0]).collect();
        assert_eq!(ids, [&Value::Integer(7), &Value::Integer(3)]);
        assert!(!pairs.is_empty());
    }

    #[test]
    #[should_panic(expected = "pairs.content does not hold Integer(1)")]
    fn a_value_of_another_kind_is_a_mistake_of_the_program() {
        Upsert::new(&PAIRS, 1).push([7.into(), 1.into()]);
    }

    #[test]
    fn a_row_names_what_it_has_instead() {
        let row = Row(vec![Value::Text("x".into())]);
        assert_eq!(row.text(0).unwrap(), "x");
        let error = row.integer(0).unwrap_err();
        assert_eq!(error.to_string(), "column 0 of a row has text instead of a number");
        assert!(row.blob(1).unwrap_err().to_string().contains("has nothing instead of bytes"));
    }
}
