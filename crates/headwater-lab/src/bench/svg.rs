//! The chart: one bar per judged ratio, on a scale where every row's floor is at the same line.

use std::fmt::Write;

use super::report::{Beside, Floor, Report, Row, Verdict};

const ROW_HEIGHT: usize = 34;
const LABEL_WIDTH: usize = 400;
const BARS_WIDTH: f64 = 420.0;
/// Bars longer than this many floors are truncated, so that the short ones stay readable.
const FLOORS_SHOWN_MAX: f64 = 4.0;

/// Draws the report as a self-contained SVG.
pub(crate) fn draw(report: &Report) -> String {
    let bars: Vec<(&Row, f64, f64)> = report.rows.iter().filter_map(bar).collect();
    let height = 96 + bars.len() * ROW_HEIGHT;
    let width = LABEL_WIDTH + 620;
    let floor_x = LABEL_WIDTH as f64 + BARS_WIDTH / FLOORS_SHOWN_MAX;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" font-family=\"system-ui, sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"16\" y=\"28\" font-size=\"17\" font-weight=\"600\">Headwater beside its peers, one run on one machine</text>\n\
         <text x=\"16\" y=\"48\" fill=\"#555\">{}</text>\n",
        escape(&format!(
            "100-byte payload, durable, {} cores, Linux {}; bars are ratios, each scaled to its floor (the line)",
            report.machine.cores, report.machine.kernel
        ))
    );
    for (at, (row, ratio, floor)) in bars.iter().enumerate() {
        draw_bar(&mut svg, 64 + at * ROW_HEIGHT, row, *ratio, *floor);
    }
    let _ = write!(
        svg,
        "<line x1=\"{floor_x}\" y1=\"58\" x2=\"{floor_x}\" y2=\"{}\" stroke=\"#222\" stroke-dasharray=\"4 3\"/>\n</svg>\n",
        height - 24
    );
    svg
}

fn bar(row: &Row) -> Option<(&Row, f64, f64)> {
    match row.floor {
        Floor::RatioAtLeast(floor) => Some((row, row.ratio().unwrap_or(0.0), floor)),
        Floor::AtMost(_) | Floor::None => None,
    }
}

fn draw_bar(svg: &mut String, top: usize, row: &Row, ratio: f64, floor: f64) {
    let length = (ratio / floor).min(FLOORS_SHOWN_MAX) * BARS_WIDTH / FLOORS_SHOWN_MAX;
    let colour = match row.verdict() {
        Verdict::Met => "#2a7f62",
        Verdict::Missed => "#b3372f",
        Verdict::NotMeasured | Verdict::Shown => "#999999",
    };
    let peer = match &row.beside {
        Beside::Measured { name, figure } => format!("{ratio:.2} x {name} ({})", figure.show()),
        Beside::Missing { name, .. } => format!("{name} not measured"),
        Beside::Nothing => String::new(),
    };
    let label = format!("{}: {}", row.work, row.headwater.show());
    let _ = write!(
        svg,
        "<text x=\"16\" y=\"{y}\">{label}</text>\n\
         <rect x=\"{LABEL_WIDTH}\" y=\"{bar_y}\" width=\"{length:.1}\" height=\"18\" rx=\"2\" fill=\"{colour}\"/>\n\
         <text x=\"{after:.1}\" y=\"{y}\" fill=\"#333\">{peer}</text>\n",
        y = top + 18,
        bar_y = top + 4,
        label = escape(&label),
        after = LABEL_WIDTH as f64 + length + 8.0,
        peer = escape(&peer),
    );
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
