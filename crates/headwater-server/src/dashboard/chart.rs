//! Charts as SVG: drawn here, so that they are there without any script; chart.js shows the values under the pointer.
//!
//! The lines are in a square of 100 by 100 that stretches with the page; words are HTML around it, so that they do not stretch.

use std::fmt::Write;

use maud::{Markup, PreEscaped, html};

use super::format;
use crate::sampler::Readings;

/// One line of a chart.
pub(crate) struct Line<'a> {
    /// What it is, for the legend.
    pub(crate) name: &'a str,
    /// Behind the numbers, such as `/s`.
    pub(crate) unit: &'a str,
    /// Which colour and dash: 1, 2 or 3.
    pub(crate) style: u8,
    /// Its values.
    pub(crate) readings: &'a Readings,
}

/// A chart with a scale, a legend and the values for the pointer. `id` is unique on its page.
pub(crate) fn chart(id: &str, label: &str, lines: &[Line<'_>]) -> Markup {
    let top = nice(lines.iter().map(|line| highest(line.readings)).fold(0.0, f32::max));
    let step_s = lines.first().map_or(1, |line| line.readings.step_s);
    let seconds = lines.first().map_or(0, |line| line.readings.values.len() as u64 * step_s);
    let is_empty = lines.iter().all(|line| line.readings.values.iter().all(|value| value.is_nan()));
    let unit = lines.first().map_or("", |line| line.unit);
    html! {
        div.chart {
            ul.chart-legend {
                @for line in lines {
                    li {
                        svg.{ "series-" (line.style) } viewBox="0 0 20 8" aria-hidden="true" { path.line d="M1 4H19" {} }
                        (line.name) " " b { (shown(latest(line.readings), line.unit)) }
                    }
                }
            }
            div.chart-plot id=(id) tabindex="0" role="img" aria-label=(summary(label, lines)) data-chart=(data(lines)) {
                svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true" {
                    path.grid-line d="M0 0H100M0 50H100M0 100H100" {}
                    @for line in lines {
                        g.{ "series-" (line.style) } { (shape(line.readings, top, true)) }
                    }
                }
                div.chart-scale aria-hidden="true" {
                    span.top { (shown(top, unit)) }
                    span.middle { (shown(top / 2.0, unit)) }
                }
                @if is_empty { div.chart-empty { "Collecting the first readings" } }
            }
            div.chart-axis aria-hidden="true" { span { "−" (format::duration(std::time::Duration::from_secs(seconds))) } span { "now" } }
        }
    }
}

/// A line without words, beside a number that says the same.
pub(crate) fn spark(readings: &Readings, style: u8) -> Markup {
    let top = highest(readings).max(1e-6);
    html! {
        svg.spark viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true" {
            g.{ "series-" (style) } { (shape(readings, top * 1.05, true)) }
        }
    }
}

/// The path of a line, and of the area below it. Where nothing was read there is a hole.
fn shape(readings: &Readings, top: f32, with_area: bool) -> Markup {
    let (mut line, mut area) = (String::new(), String::new());
    let last = readings.values.len().saturating_sub(1).max(1);
    let mut began: Option<f32> = None;
    let mut x = 0.0;
    for (at, value) in readings.values.iter().enumerate() {
        if value.is_nan() {
            if let Some(from) = began.take() {
                write!(area, "V100H{from:.2}Z").unwrap_or_default();
            }
            continue;
        }
        #[expect(clippy::cast_precision_loss, reason = "some hundred values")]
        {
            x = at as f32 * 100.0 / last as f32;
        }
        let y = 100.0 - (value / top).clamp(0.0, 1.0) * 100.0;
        let verb = if began.is_some() { 'L' } else { 'M' };
        write!(line, "{verb}{x:.2} {y:.2}").unwrap_or_default();
        write!(area, "{verb}{x:.2} {y:.2}").unwrap_or_default();
        began.get_or_insert(x);
    }
    if let Some(from) = began {
        write!(area, "V100H{from:.2}Z").unwrap_or_default();
        // A single value would be a line without length.
        if (from - x).abs() < f32::EPSILON {
            write!(line, "h0.01").unwrap_or_default();
        }
    }
    html! {
        @if with_area { path.area d=(PreEscaped(area)) {} }
        path.line d=(PreEscaped(line)) {}
    }
}

fn highest(readings: &Readings) -> f32 {
    readings.values.iter().copied().filter(|value| !value.is_nan()).fold(0.0, f32::max)
}

fn latest(readings: &Readings) -> f32 {
    readings.values.iter().rev().copied().find(|value| !value.is_nan()).unwrap_or(f32::NAN)
}

/// The end of the scale: the next of 1, 2, 4 and 8 times a power of ten, so that half of it is a good number too.
fn nice(highest: f32) -> f32 {
    if highest.is_nan() || highest <= 1.0 {
        return 1.0;
    }
    let power = 10f32.powf(highest.log10().floor());
    [1.0, 2.0, 4.0, 8.0, 10.0].into_iter().map(|by| by * power).find(|top| *top >= highest).unwrap_or(highest)
}

fn shown(value: f32, unit: &str) -> String {
    if value.is_nan() {
        return "–".into();
    }
    // Without a unit it is a number of messages.
    let value = if unit.is_empty() && value > 1.0 { value.round() } else { value };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative, and shown with few digits"
    )]
    let number = match value {
        value if value >= 10_000.0 || unit.is_empty() && value.fract() == 0.0 => {
            format::compact(value as u64)
        }
        value => format::rate(value.into()),
    };
    format!("{number}{unit}")
}

/// What the chart shows, for those who do not see it.
fn summary(label: &str, lines: &[Line<'_>]) -> String {
    let lines = lines.iter().map(|line| {
        let (now, most) = (shown(latest(line.readings), line.unit), shown(highest(line.readings), line.unit));
        format!("{}: now {now}, at most {most}", line.name)
    });
    format!("{label}. {}. Arrow keys show single values.", lines.collect::<Vec<_>>().join("; "))
}

/// The values for chart.js.
fn data(lines: &[Line<'_>]) -> String {
    let step = lines.first().map_or(1, |line| line.readings.step_s);
    let rounded =
        |value: &f32| if value.is_nan() { None } else { Some((f64::from(*value) * 10.0).round() / 10.0) };
    let series: Vec<_> = lines
        .iter()
        .map(|line| {
            let values: Vec<Option<f64>> = line.readings.values.iter().map(rounded).collect();
            serde_json::json!({ "name": line.name, "unit": line.unit, "values": values })
        })
        .collect();
    serde_json::json!({ "step": step, "series": series }).to_string()
}

/// How much of something is done.
#[expect(clippy::cast_precision_loss, reason = "a percentage")]
pub(crate) fn meter(label: &str, done: u64, total: u64) -> Markup {
    let percent = if total == 0 { 100.0 } else { (done.min(total) as f64 / total as f64) * 100.0 };
    html! {
        svg.meter viewBox="0 0 100 4" preserveAspectRatio="none" role="img" aria-label={ (label) ": " (format!("{percent:.0}")) " %" } {
            rect width="100" height="4" {}
            rect width=(format!("{percent:.2}")) height="4" {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readings(values: &[f32]) -> Readings {
        Readings { step_s: 1, values: values.to_vec() }
    }

    #[test]
    fn a_hole_divides_the_line() {
        let markup = shape(&readings(&[0.0, 1.0, f32::NAN, 1.0, 0.5]), 1.0, true).into_string();
        assert!(markup.contains(r#"d="M0.00 100.00L25.00 0.00M75.00 0.00L100.00 50.00""#), "{markup}");
        assert!(markup.contains("L25.00 0.00V100H0.00ZM75.00"), "{markup}");
    }

    #[test]
    fn scales_end_at_round_numbers() {
        assert_eq!(
            [0.0, 0.3, 1.5, 37.0, 41.0, 812.0, 99_000.0].map(nice),
            [1.0, 1.0, 2.0, 40.0, 80.0, 1_000.0, 100_000.0]
        );
        assert_eq!(nice(f32::NAN), 1.0);
    }

    #[test]
    fn names_in_charts_are_text() {
        let values = readings(&[1.0]);
        let line = Line { name: "<b>\"", unit: "/s", style: 1, readings: &values };
        let markup = chart("c", "<i>", &[line]).into_string();
        assert!(!markup.contains("<b>\"") && !markup.contains("<i>"), "{markup}");
    }

    #[test]
    fn nothing_read_yet_is_said() {
        let values = readings(&[f32::NAN, f32::NAN]);
        let markup =
            chart("c", "Rates", &[Line { name: "in", unit: "", style: 1, readings: &values }]).into_string();
        assert!(markup.contains("Collecting the first readings"));
    }
}
