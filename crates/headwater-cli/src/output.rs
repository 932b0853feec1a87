//! Printing: tables for people, one JSON object per line for programs; data on stdout, the rest on stderr.

use std::borrow::Cow;
use std::io::{ErrorKind, Write};

use anyhow::Result;
use comfy_table::{Table, presets};
use serde_json::Value;

use crate::args::Output;

/// How much of an error's first line a table shows.
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

/// One object with many fields: one field per line for people, one JSON object for programs.
#[derive(Default)]
pub(crate) struct Fields(Vec<Field>);

struct Field {
    name: Cow<'static, str>,
    value: Value,
    /// The text for people, if it differs from the value.
    said: Option<String>,
}

impl Fields {
    pub(crate) fn push(&mut self, name: impl Into<Cow<'static, str>>, value: Value) {
        self.0.push(Field { name: name.into(), value, said: None });
    }

    /// A field whose text for people differs from its value for programs.
    pub(crate) fn said(&mut self, name: impl Into<Cow<'static, str>>, value: Value, said: impl Into<String>) {
        self.0.push(Field { name: name.into(), value, said: Some(said.into()) });
    }

    pub(crate) fn object(self) -> Value {
        self.0.into_iter().map(|field| (field.name.into_owned(), field.value)).collect()
    }

    pub(crate) fn print(self, output: Output) -> Result<()> {
        let mut out = std::io::stdout().lock();
        match output {
            Output::Json => writeln!(out, "{}", self.object())?,
            Output::Table => {
                // `lease 30s` for people, `lease_ms 30000` for programs.
                let label = |field: &Field| field.name.trim_end_matches("_ms").to_owned();
                let width = self.0.iter().map(|field| label(field).len()).max().unwrap_or(0);
                for field in self.0 {
                    let said = field.said.clone().unwrap_or_else(|| plain(&field.value));
                    writeln!(out, "{:<width$}  {said}", label(&field))?;
                }
            }
        }
        Ok(out.flush()?)
    }
}

/// Objects, one per line.
pub(crate) fn print_objects(objects: impl IntoIterator<Item = Value>) -> Result<()> {
    let mut out = std::io::stdout().lock();
    for object in objects {
        writeln!(out, "{object}")?;
    }
    Ok(out.flush()?)
}

/// Wrong usage of the command: exit code 2.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// An error of the library, with a hint that names what to run.
#[derive(Debug)]
pub(crate) struct Hinted {
    error: headwater::Error,
    hint: String,
}

impl std::fmt::Display for Hinted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; {}", self.error, self.hint)
    }
}

impl std::error::Error for Hinted {}

/// Adds a hint to an error of the library.
pub(crate) fn with_hint(
    error: anyhow::Error,
    hint: impl FnOnce(&headwater::Error) -> Option<String>,
) -> anyhow::Error {
    match error.downcast::<headwater::Error>() {
        Ok(error) => match hint(&error) {
            Some(hint) => Hinted { error, hint }.into(),
            None => error.into(),
        },
        Err(other) => other,
    }
}

/// The kind of the error, if it is one of the library.
pub(crate) fn kind(error: &anyhow::Error) -> Option<headwater::ErrorKind> {
    let hinted = error.downcast_ref::<Hinted>().map(|hinted| &hinted.error);
    hinted.or_else(|| error.downcast_ref::<headwater::Error>()).map(headwater::Error::kind)
}

/// A payload and the name of its field: JSON as itself, text as text, and other bytes as hexadecimal.
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

/// The chain of causes down to Headwater's own error, which already includes the database's message.
pub(crate) fn explain(error: &anyhow::Error) -> String {
    let mut causes = Vec::new();
    for cause in error.chain() {
        causes.push(cause.to_string());
        if cause.is::<headwater::Error>() {
            break;
        }
    }
    causes.join(": ")
}

/// The reader of the output has closed the pipe, which is not an error.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
    })
}
