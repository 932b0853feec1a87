//! SQL for tables of the index, in PostgreSQL's dialect. Names come from the program and are quoted all the same.

use std::fmt::Write;

use crate::index::database::{Kind, OnConflict, RowSize, Table};

/// The statements that create a table and its indexes where they are missing, in the quoted schema.
pub(super) fn create(schema: &str, table: &Table, partition_ticks: Option<u64>) -> String {
    let name = qualified(schema, table);
    let columns: Vec<String> = table
        .columns
        .iter()
        .map(|column| {
            let column_name = column.name;
            match column.kind {
                Kind::Integer => format!("\"{column_name}\" bigint NOT NULL"),
                Kind::Natural => format!("\"{column_name}\" bigint NOT NULL CHECK (\"{column_name}\" >= 0)"),
                Kind::Text => format!("\"{column_name}\" text NOT NULL"),
                Kind::Blob => format!("\"{column_name}\" bytea NOT NULL"),
            }
        })
        .collect();
    let partition_by = match partition_ticks {
        Some(_) => format!(" PARTITION BY RANGE (\"{}\")", table.columns[0].name),
        None => String::new(),
    };
    let key = names(table, 0..table.key_columns);
    let mut sql = format!(
        "CREATE TABLE IF NOT EXISTS {name} ({}, PRIMARY KEY ({key})){partition_by};",
        columns.join(", ")
    );
    for column in
        table.columns.iter().filter(|column| column.kind == Kind::Blob && table.rows == RowSize::Long)
    {
        // The bytes are compressed already: the server must not spend time on compressing them again.
        let _ = write!(sql, " ALTER TABLE {name} ALTER COLUMN \"{}\" SET STORAGE EXTERNAL;", column.name);
    }
    if let Some(ticks) = partition_ticks {
        // The figure of the table counts, not that of a later configuration: ranges must not overlap.
        let _ = write!(sql, " COMMENT ON TABLE {name} IS '{PARTITION_TICKS}{ticks}';");
    }
    for index in table.indexes {
        let columns = index.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
        let index = format!("{}_{}", table.name, index.join("_"));
        let _ = write!(sql, " CREATE INDEX IF NOT EXISTS \"{index}\" ON {name} ({columns});");
    }
    sql
}

/// The beginning of a partitioned table's comment.
pub(super) const PARTITION_TICKS: &str = "partition_ticks=";

/// The statement that creates the partition of a number.
pub(super) fn create_partition(schema: &str, table: &Table, ticks: u64, number: u64) -> String {
    let (from, to) = (u128::from(ticks) * u128::from(number), u128::from(ticks) * (u128::from(number) + 1));
    // The last range may end beyond the largest number of the column.
    let to = if to > i64::MAX as u128 { "MAXVALUE".to_owned() } else { to.to_string() };
    format!(
        "CREATE TABLE IF NOT EXISTS {schema}.\"{}_{number}\" PARTITION OF {} FOR VALUES FROM ({from}) TO ({to})",
        table.name,
        qualified(schema, table)
    )
}

/// The upsert of many rows at once, given as one array per column. An equal row is left as it is: a repeated batch writes nothing.
pub(super) fn upsert(schema: &str, table: &Table) -> String {
    let all = 0..table.columns.len();
    let arrays: Vec<String> = table
        .columns
        .iter()
        .enumerate()
        .map(|(at, column)| {
            let kind = match column.kind {
                Kind::Integer | Kind::Natural => "bigint",
                Kind::Text => "text",
                Kind::Blob => "bytea",
            };
            format!("${}::{kind}[]", at + 1)
        })
        .collect();
    let rest = &table.columns[table.key_columns..];
    let action = if table.on_conflict == OnConflict::Keep || rest.is_empty() {
        "NOTHING".to_owned()
    } else {
        let list = |of: &str| {
            rest.iter().map(|column| format!("{of}.\"{}\"", column.name)).collect::<Vec<_>>().join(", ")
        };
        let set: Vec<String> =
            rest.iter().map(|column| format!("\"{0}\" = excluded.\"{0}\"", column.name)).collect();
        format!(
            "UPDATE SET {} WHERE ({}) IS DISTINCT FROM ({})",
            set.join(", "),
            list("there"),
            list("excluded")
        )
    };
    format!(
        "INSERT INTO {} AS there ({}) SELECT * FROM unnest({}) ON CONFLICT ({}) DO {action}",
        qualified(schema, table),
        names(table, all),
        arrays.join(", "),
        names(table, 0..table.key_columns)
    )
}

/// A query in PostgreSQL's spelling of tables.
pub(super) fn query(schema: &str, sql: &str) -> String {
    sql.replace('@', &format!("{schema}."))
}

fn qualified(schema: &str, table: &Table) -> String {
    format!("{schema}.\"{}\"", table.name)
}

fn names(table: &Table, columns: std::ops::Range<usize>) -> String {
    table.columns[columns].iter().map(|column| format!("\"{}\"", column.name)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::single_blob::TICKS;

    #[test]
    fn partitions_do_not_overlap_and_the_last_one_has_no_end() {
        let first = create_partition("\"s\"", &TICKS, 1000, 0);
        assert!(first.ends_with("FOR VALUES FROM (0) TO (1000)"), "{first}");
        let second = create_partition("\"s\"", &TICKS, 1000, 1);
        assert!(second.ends_with("FOR VALUES FROM (1000) TO (2000)"), "{second}");
        let last = create_partition("\"s\"", &TICKS, 1000, i64::MAX as u64 / 1000);
        assert!(last.ends_with("TO (MAXVALUE)"), "{last}");
    }
}
