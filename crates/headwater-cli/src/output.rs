//! Printing: tables for people, a JSON object a line for pipes; data on stdout, the rest on stderr.

use std::io::{ErrorKind, Write};

use anyhow::Result;
use comfy_table::{Table, presets};
use serde_json::Value;

use crate::args::Output;

/// Of an error's first line, so much fits a table.
const ERROR_CHARS_MAX: usize = 60;

/// Rows of named columns.
pub(crate) struct Rows {
    columns: &'static [&'static str],
    rows: Vec<Vec<Value>>,
}

impl Rows {
    pub(crate) fn new(columns: &'static [&'static str]) -> Self {
        Rows { columns, rows: Vec::new() }
    }

    pub(crate) fn push(&mut self, row: Vec<Value>) {
        assert_eq!(row.len(), self.columns.len(), "a value for each column");
        self.rows.push(row);
    }

    pub(crate) fn print(&self, output: Output) -> Result<()> {
        let mut out = std::io::stdout().lock();
        match output {
            Output::Json => {
                for row in &self.rows {
                    let object: serde_json::Map<String, Value> = self
                        .columns
                        .iter()
                        .map(|column| (*column).to_owned())
                        .zip(row.iter().cloned())
                        .collect();
                    writeln!(out, "{}", Value::Object(object))?;
                }
            }
            Output::Table => {
                let mut table = Table::new();
                table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header(self.columns.iter());
                for row in &self.rows {
                    table.add_row(row.iter().map(plain));
                }
                writeln!(out, "{table}")?;
            }
        }
        Ok(out.flush()?)
    }
}

/// A payload under the name that says what it is: JSON as itself, text as text, and bytes as hexadecimal.
pub(crate) fn payload_as_json(content_type: Option<&str>, payload: &[u8]) -> (&'static str, Value) {
    let is_json = content_type == Some("application/json");
    match serde_json::from_slice::<Value>(payload) {
        Ok(value) if is_json => ("payload", value),
        _ => match std::str::from_utf8(payload) {
            Ok(text) => ("payload", text.into()),
            Err(_) => {
                let hex: String = payload.iter().map(|byte| format!("{byte:02x}")).collect();
                ("payload_hex", hex.into())
            }
        },
    }
}

/// The beginning of an error, for a table.
pub(crate) fn in_short(error: &str) -> String {
    let line = error.lines().next().unwrap_or_default();
    match line.char_indices().nth(ERROR_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// The chain of causes down to Headwater's own error, which already tells what the database said.
pub(crate) fn explain(error: &anyhow::Error) -> String {
    let mut words = Vec::new();
    for cause in error.chain() {
        words.push(cause.to_string());
        if cause.is::<headwater::Error>() {
            break;
        }
    }
    words.join(": ")
}

/// Whoever read our output has left: no fault of ours.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
    })
}
