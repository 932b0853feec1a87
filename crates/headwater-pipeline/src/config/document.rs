//! A TOML file with the lines of its values: every refusal names the file, the line and what was expected.

use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::path::Path;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::expand::{expand, expand_path};
use crate::error::{Error, Result};

/// Finds the value of an environment variable.
pub(super) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A file, parsed.
pub(super) struct Document<'a> {
    file: &'a Path,
    text: &'a str,
    lookup: Lookup<'a>,
    root: DeTable<'a>,
}

/// A place in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
}

impl Place {
    /// Refuses what stands there.
    pub(crate) fn refuse(&self, message: impl Display) -> Error {
        Error::invalid(format_args!("{}:{}: {message}", self.file, self.line))
    }
}

impl<'a> Document<'a> {
    pub(super) fn parse(file: &'a Path, text: &'a str, lookup: Lookup<'a>) -> Result<Self> {
        let root = DeTable::parse(text).map_err(|error| {
            let line = line_of(text, error.span().map_or(0, |span| span.start));
            let place = Place { file: file.display().to_string(), line };
            place.refuse(format_args!("not TOML: {}", error.message().trim()))
        })?;
        Ok(Document { file, text, lookup, root: root.into_inner() })
    }

    /// The whole file as a table.
    pub(super) fn table(&self) -> Table<'_> {
        Table { of: self, path: String::new(), span: 0..0, entries: &self.root, known: Vec::new() }
    }

    fn place(&self, span: &Range<usize>) -> Place {
        Place { file: self.file.display().to_string(), line: line_of(self.text, span.start) }
    }
}

fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// A table of a file, read name by name. What was not asked for is refused by [`Table::finish`].
pub(super) struct Table<'d> {
    of: &'d Document<'d>,
    path: String,
    span: Range<usize>,
    entries: &'d DeTable<'d>,
    /// The names that were asked for.
    known: Vec<&'static str>,
}

/// A value and its place.
#[derive(Clone, Debug)]
pub(super) struct Located<T> {
    pub(super) value: T,
    pub(super) place: Place,
    /// The name of the value, with those of the tables around it.
    pub(super) path: String,
}

impl<T> Located<T> {
    /// Refuses the value.
    pub(super) fn refuse(&self, message: impl Display) -> Error {
        self.place.refuse(format_args!("{}: {message}", self.path))
    }
}

impl<'d> Table<'d> {
    /// Where the table begins.
    pub(super) fn place(&self) -> Place {
        self.of.place(&self.span)
    }

    /// Refuses the table.
    pub(super) fn refuse(&self, message: impl Display) -> Error {
        self.place().refuse(format_args!("{}: {message}", self.path))
    }

    fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    fn find(&mut self, name: &'static str) -> Option<Located<&'d DeValue<'d>>> {
        self.known.push(name);
        let value = self.entries.get(name)?;
        Some(Located {
            value: value.get_ref(),
            place: self.of.place(&value.span()),
            path: self.path_of(name),
        })
    }

    /// Text with `${VAR}` replaced.
    pub(super) fn string(&mut self, name: &'static str) -> Result<Option<Located<String>>> {
        self.text(name, expand)
    }

    /// Text with `${VAR}` and a leading `~` replaced.
    pub(super) fn path(&mut self, name: &'static str) -> Result<Option<Located<String>>> {
        self.text(name, expand_path)
    }

    fn text(
        &mut self,
        name: &'static str,
        expand: fn(&str, Lookup<'_>) -> Result<String, String>,
    ) -> Result<Option<Located<String>>> {
        let Some(found) = self.find(name) else { return Ok(None) };
        let Some(text) = found.value.as_str() else {
            return Err(found.refuse(expected("text in quotes", found.value)));
        };
        let value = expand(text, self.of.lookup).map_err(|problem| found.refuse(problem))?;
        Ok(Some(Located { value, place: found.place, path: found.path }))
    }

    /// The texts of a table whose names are not fixed, in the order of the file.
    pub(super) fn strings(&self) -> Result<Vec<(String, Located<String>)>> {
        let mut found = Vec::new();
        for (name, value) in in_order(self.entries) {
            let (place, path) = (self.of.place(&value.span()), self.path_of(name));
            let located = Located { value: value.get_ref(), place, path };
            let Some(text) = located.value.as_str() else {
                return Err(located.refuse(expected("text in quotes", located.value)));
            };
            let value = expand(text, self.of.lookup).map_err(|problem| located.refuse(problem))?;
            found.push((name.to_owned(), Located { value, place: located.place, path: located.path }));
        }
        Ok(found)
    }

    /// A whole number in a range.
    pub(super) fn number(&mut self, name: &'static str, range: RangeInclusive<u64>) -> Result<Option<u64>> {
        let Some(found) = self.find(name) else { return Ok(None) };
        let (low, high) = (range.start(), range.end());
        let form = if *high == u64::MAX {
            format!("a whole number of at least {low}")
        } else {
            format!("a whole number from {low} to {high}")
        };
        let number = found
            .value
            .as_integer()
            .and_then(|number| u64::from_str_radix(number.as_str(), number.radix()).ok());
        match number.filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(found.refuse(expected(&form, found.value))),
        }
    }

    /// A number, also with a fraction, in a range.
    pub(super) fn fraction(&mut self, name: &'static str, range: RangeInclusive<f64>) -> Result<Option<f64>> {
        let Some(found) = self.find(name) else { return Ok(None) };
        let text = match found.value {
            DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str()),
            DeValue::Float(number) => Some(number.as_str()),
            _ => None,
        };
        let number = text.and_then(|text| text.parse::<f64>().ok()).filter(|number| range.contains(number));
        let form = format!("a number from {} to {}", range.start(), range.end());
        number.map(Some).ok_or_else(|| found.refuse(expected(&form, found.value)))
    }

    /// True or false.
    pub(super) fn boolean(&mut self, name: &'static str) -> Result<Option<bool>> {
        let Some(found) = self.find(name) else { return Ok(None) };
        found.value.as_bool().map(Some).ok_or_else(|| found.refuse(expected("true or false", found.value)))
    }

    /// One of some words.
    pub(super) fn one_of<T: Copy>(&mut self, name: &'static str, allowed: &[(&str, T)]) -> Result<Option<T>> {
        let Some(found) = self.string(name)? else { return Ok(None) };
        match allowed.iter().find(|(word, _)| *word == found.value) {
            Some((_, value)) => Ok(Some(*value)),
            None => {
                let words: Vec<&str> = allowed.iter().map(|(word, _)| *word).collect();
                Err(found.refuse(format_args!(
                    "{:?} is not known; expected one of {}",
                    found.value,
                    words.join(", ")
                )))
            }
        }
    }

    /// A table inside.
    pub(super) fn inner(&mut self, name: &'static str) -> Result<Option<Table<'d>>> {
        let Some(found) = self.find(name) else { return Ok(None) };
        let span = self.entries.get(name).map_or(0..0, Spanned::span);
        match found.value.as_table() {
            Some(entries) => {
                Ok(Some(Table { of: self.of, path: found.path, span, entries, known: Vec::new() }))
            }
            None => Err(found.refuse(expected("a table", found.value))),
        }
    }

    /// The tables inside, whose names are not fixed, in the order of the file.
    pub(super) fn all(&self) -> Result<Vec<(String, Table<'d>)>> {
        let mut tables = Vec::new();
        for (name, value) in in_order(self.entries) {
            let (path, span) = (self.path_of(name), value.span());
            let Some(entries) = value.get_ref().as_table() else {
                let place = self.of.place(&span);
                return Err(place.refuse(format_args!("{path}: {}", expected("a table", value.get_ref()))));
            };
            tables.push((name.to_owned(), Table { of: self.of, path, span, entries, known: Vec::new() }));
        }
        Ok(tables)
    }

    /// All of the table as one value, which refuses unknown names itself.
    pub(super) fn deserialize<T: DeserializeOwned>(&self) -> Result<T> {
        let entries = Spanned::new(self.span.clone(), self.entries.clone());
        T::deserialize(toml::de::Deserializer::from(entries)).map_err(|error| {
            let place = self.of.place(&error.span().unwrap_or_else(|| self.span.clone()));
            place.refuse(format_args!("{}: {}", self.path, error.message().trim()))
        })
    }

    /// Refuses names that were not asked for.
    pub(super) fn finish(mut self) -> Result<()> {
        let Some((name, value)) = in_order(self.entries).find(|(name, _)| !self.known.contains(name)) else {
            return Ok(());
        };
        self.known.sort_unstable();
        let (place, path) = (self.of.place(&value.span()), self.path_of(name));
        let allowed = if self.known.is_empty() { "nothing".to_owned() } else { self.known.join(", ") };
        Err(place.refuse(format_args!("{path}: unknown option; expected one of {allowed}")))
    }
}

/// The entries of a table by their places in the file: the parser sorts them by name.
fn in_order<'t>(entries: &'t DeTable<'_>) -> impl Iterator<Item = (&'t str, &'t Spanned<DeValue<'t>>)> {
    let mut sorted: Vec<_> = entries.iter().collect();
    sorted.sort_by_key(|(name, _)| name.span().start);
    sorted.into_iter().map(|(name, value)| (name.get_ref().as_ref(), value))
}

fn expected(form: &str, found: &DeValue<'_>) -> String {
    let found = match found {
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    };
    format!("expected {form}, not {found}")
}
