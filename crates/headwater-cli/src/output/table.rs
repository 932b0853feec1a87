//! Rows of named columns: fitted to the terminal for people, one JSON object per row for programs.

use std::io::Write;

use anyhow::Result;
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Table, TableStyle, Width};
use serde_json::Value;

use super::plain;
use crate::args::Output;

/// A rule below the header, and none between rows.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));
/// Spaces after a column, beside the one that stands for a vertical line.
const AFTER: u16 = 1;

/// Rows of named columns.
pub(crate) struct Rows {
    columns: &'static [&'static str],
    /// The columns for people; programs get all of them.
    shown: &'static [&'static str],
    /// Whether a table is fitted to the terminal.
    fits: bool,
    rows: Vec<Vec<Value>>,
}

impl Rows {
    pub(crate) fn new(columns: &'static [&'static str]) -> Self {
        Rows { columns, shown: columns, fits: true, rows: Vec::new() }
    }

    /// Shows people only these columns.
    pub(crate) fn showing(mut self, columns: &'static [&'static str]) -> Self {
        assert!(columns.iter().all(|shown| self.columns.contains(shown)), "columns that exist");
        self.shown = columns;
        self
    }

    /// As wide as its content, also where the terminal is narrower.
    pub(crate) fn wide(mut self) -> Self {
        self.fits = false;
        self
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
                super::begin_screen(&mut out)?;
                writeln!(out, "{}", self.table().trim_fmt())?;
            }
        }
        Ok(out.flush()?)
    }

    /// As wide as its content; on a terminal as wide as that at most, with long cells over several lines.
    fn table(&self) -> Table {
        let at = |name: &&str| self.columns.iter().position(|column| column == name);
        let shown: Vec<usize> = self.shown.iter().filter_map(at).collect();
        let arrangement = if self.fits { ContentArrangement::Dynamic } else { ContentArrangement::Disabled };
        let mut table = Table::new();
        table.load_style(STYLE).set_content_arrangement(arrangement).set_header(self.shown.iter());
        for row in &self.rows {
            table.add_row(shown.iter().map(|at| plain(&row[*at])));
        }
        for (column, at) in table.column_iter_mut().zip(&shown) {
            column.set_padding((0, AFTER));
            // No name of a column is broken.
            let name = u16::try_from(self.columns[*at].len()).unwrap_or(u16::MAX);
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(name + AFTER)));
            if self.rows.iter().all(|row| row[*at].is_number() || row[*at].is_null()) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rows() -> Rows {
        let mut rows = Rows::new(&["group", "lag", "error"]);
        rows.push(vec![json!("email"), json!(7), json!("the mail server does not answer since noon")]);
        rows.push(vec![json!("audit"), json!(1200), Value::Null]);
        rows
    }

    #[test]
    fn there_is_one_rule_and_numbers_end_in_one_column() {
        let text = rows().table().force_no_tty().trim_fmt();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[1].starts_with("──") && !lines[3].contains('─'), "{text}");
        assert_eq!(lines[2].find("7"), lines[3].find("1200").map(|at| at + 3), "{text}");
        assert!(lines.iter().all(|line| *line == line.trim_end()), "{text}");
    }

    #[test]
    fn a_narrow_terminal_gets_every_word_and_no_wider_line() {
        let text = rows().table().set_width(30).trim_fmt();
        assert!(text.lines().all(|line| line.chars().count() <= 30), "{text}");
        for word in ["email", "1200", "server", "noon"] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }

    #[test]
    fn people_see_the_columns_chosen_for_them() {
        let text = rows().showing(&["group", "error"]).table().force_no_tty().trim_fmt();
        assert!(text.contains("email") && !text.contains("lag") && !text.contains("1200"), "{text}");
    }
}
