//! SQL for tables of the index, in SQLite's dialect. Names come from the program and are quoted all the same.

use std::fmt::Write;

use crate::index::database::{Kind, OnConflict, RowSize, Table};

/// The statements that create a table and its indexes where they are missing.
pub(super) fn create(table: &Table) -> String {
    let columns: Vec<String> = table
        .columns
        .iter()
        .map(|column| {
            let name = column.name;
            match column.kind {
                Kind::Integer => format!("\"{name}\" INTEGER NOT NULL"),
                Kind::Natural => format!("\"{name}\" INTEGER NOT NULL CHECK (\"{name}\" >= 0)"),
                Kind::Text => format!("\"{name}\" TEXT NOT NULL"),
                Kind::Blob => format!("\"{name}\" BLOB NOT NULL"),
            }
        })
        .collect();
    // A single number as the key is the row's own id: no second tree.
    let is_row_id = table.key_columns == 1 && matches!(table.columns[0].kind, Kind::Integer | Kind::Natural);
    let layout = if table.rows == RowSize::Short && !is_row_id { "STRICT, WITHOUT ROWID" } else { "STRICT" };
    let mut sql = format!(
        "CREATE TABLE IF NOT EXISTS \"{}\" ({}, PRIMARY KEY ({})) {layout};",
        table.name,
        columns.join(", "),
        names(table, 0..table.key_columns)
    );
    for index in table.indexes {
        let columns = index.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
        let name = format!("{}_{}", table.name, index.join("_"));
        let _ = write!(sql, " CREATE INDEX IF NOT EXISTS \"{name}\" ON \"{}\" ({columns});", table.name);
    }
    sql
}

/// The upsert of one row. An equal row is left as it is: a repeated batch writes nothing.
pub(super) fn upsert(table: &Table) -> String {
    let all = 0..table.columns.len();
    let values: Vec<String> = all.clone().map(|at| format!("?{}", at + 1)).collect();
    let rest = &table.columns[table.key_columns..];
    let action = if table.on_conflict == OnConflict::Keep || rest.is_empty() {
        "NOTHING".to_owned()
    } else {
        let set: Vec<String> =
            rest.iter().map(|column| format!("\"{0}\" = excluded.\"{0}\"", column.name)).collect();
        let differs: Vec<String> = rest
            .iter()
            .map(|column| format!("\"{}\".\"{1}\" IS NOT excluded.\"{1}\"", table.name, column.name))
            .collect();
        format!("UPDATE SET {} WHERE {}", set.join(", "), differs.join(" OR "))
    };
    format!(
        "INSERT INTO \"{}\" ({}) VALUES ({}) ON CONFLICT ({}) DO {action}",
        table.name,
        names(table, all),
        values.join(", "),
        names(table, 0..table.key_columns)
    )
}

/// A query in SQLite's spelling of tables and parameters.
pub(super) fn query(sql: &str) -> String {
    sql.replace('@', "").replace('$', "?")
}

fn names(table: &Table, columns: std::ops::Range<usize>) -> String {
    table.columns[columns].iter().map(|column| format!("\"{}\"", column.name)).collect::<Vec<_>>().join(", ")
}
