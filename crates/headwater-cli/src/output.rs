//! Printing: tables for people, one JSON object per line for programs; data on stdout, the rest on stderr.

mod table;

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use serde_json::Value;

use crate::args::Output;

pub(crate) use table::Rows;

/// How much of an error's first line a table shows.
const ERROR_CHARS_MAX: usize = 60;

/// Whether notes are left out.
static QUIET: AtomicBool = AtomicBool::new(false);
/// Whether the next table replaces what the terminal shows.
static CLEARS: AtomicBool = AtomicBool::new(false);

/// From now on no notes are printed.
pub(crate) fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

pub(crate) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// A remark for a person, on stderr; `--quiet` leaves it out.
pub(crate) fn note(text: impl Display) {
    if !is_quiet() {
        // Not `eprintln!`: it panics when the other end of stderr is closed.
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}

/// The next table replaces what the terminal shows, in one write: no flicker.
pub(crate) fn clear_before_next() {
    CLEARS.store(true, Ordering::Relaxed);
}

fn begin_screen(out: &mut impl Write) -> std::io::Result<()> {
    if CLEARS.swap(false, Ordering::Relaxed) {
        // To the upper left corner, and erase from there.
        out.write_all(b"\x1b[H\x1b[J")?;
    }
    Ok(())
}

/// One object with many fields: one field per line for people, one JSON object for programs.
#[derive(Default)]
pub(crate) struct Fields(Vec<Field>);

struct Field {
    name: Cow<'static, str>,
    /// The value for programs; `None` if the field is for people only.
    value: Option<Value>,
    /// The text for people; `None` if the field is for programs only.
    said: Option<String>,
}

impl Fields {
    pub(crate) fn push(&mut self, name: impl Into<Cow<'static, str>>, value: Value) {
        let said = plain(&value);
        self.said(name, value, said);
    }

    /// A field whose text for people differs from its value for programs.
    pub(crate) fn said(&mut self, name: impl Into<Cow<'static, str>>, value: Value, said: impl Into<String>) {
        self.0.push(Field { name: name.into(), value: Some(value), said: Some(said.into()) });
    }

    /// A field for people only.
    pub(crate) fn for_people(&mut self, name: &'static str, said: impl Into<String>) {
        self.0.push(Field { name: name.into(), value: None, said: Some(said.into()) });
    }

    /// A field for programs only.
    pub(crate) fn for_programs(&mut self, name: &'static str, value: Value) {
        self.0.push(Field { name: name.into(), value: Some(value), said: None });
    }

    pub(crate) fn object(self) -> Value {
        let fields = self.0.into_iter();
        fields.filter_map(|field| Some((field.name.into_owned(), field.value?))).collect()
    }

    pub(crate) fn print(self, output: Output) -> Result<()> {
        let mut out = std::io::stdout().lock();
        match output {
            Output::Json => writeln!(out, "{}", self.object())?,
            Output::Table => {
                // `lease 30s` for people, `lease_ms 30000` for programs.
                let label = |field: &Field| field.name.trim_end_matches("_ms").to_owned();
                let shown = || self.0.iter().filter_map(|field| Some((label(field), field.said.as_deref()?)));
                let width = shown().map(|(label, _)| label.len()).max().unwrap_or(0);
                for (label, said) in shown() {
                    writeln!(out, "{}", format!("{label:<width$}  {said}").trim_end())?;
                }
            }
        }
        Ok(out.flush()?)
    }
}

/// Prints an object: as it is, or these fields of it, one per line. The last ones may be long.
pub(crate) fn print_fields(output: Output, object: &Value, fields: &[&str]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match output {
        Output::Json => writeln!(out, "{object}")?,
        Output::Table => {
            for name in fields {
                match &object[*name] {
                    Value::Null => {}
                    Value::String(text) => writeln!(out, "{name:<15} {text}")?,
                    value => writeln!(out, "{name:<15} {value}")?,
                }
            }
        }
    }
    Ok(out.flush()?)
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
