//! A process drawn over time: a row per step, bars for its attempts, dashed ones for what undoes it, marks for what happened to the whole.

use std::fmt::Write;

use headwater::jiff::{SignedDuration, Timestamp};
use headwater::process::{ProcessEvent, ProcessInstance, ProcessLogEntry};
use maud::{Markup, PreEscaped, html};

use crate::dashboard::components::Tone;
use crate::dashboard::format;

/// The drawing, in units that scale with the page.
const WIDTH: f64 = 1_000.0;
const NAMES: f64 = 150.0;
const ROW: f64 = 34.0;
const TOP: f64 = 30.0;
const BAR: f64 = 16.0;

/// One attempt at a step, or at undoing it.
#[derive(Debug, PartialEq)]
struct Bar {
    row: usize,
    from: Timestamp,
    to: Option<Timestamp>,
    tone: Tone,
    is_undo: bool,
    what: String,
}

/// Something that happened to the whole process.
struct Mark {
    at: Timestamp,
    tone: Tone,
    what: &'static str,
}

/// The drawing of a process by its log, oldest entry first.
pub(super) fn drawn(process: &ProcessInstance, log: &[ProcessLogEntry], now: Timestamp) -> Markup {
    let (Some(first), Some(last)) = (log.first(), log.last()) else {
        return html! { p.card-body.soft { "Its log is empty." } };
    };
    let (steps, bars) = bars(log);
    let end = if process.status().is_end() { last.at } else { shown_until(first.at, last.at, now) };
    let scale = Scale::new(first.at, end);
    let height = TOP + ROW * (steps.len() + 1) as f64 + 8.0;
    let label =
        format!("{} steps over {}", steps.len(), format::duration(crate::sampler::age(end, first.at)));
    html! {
        div.timeline tabindex="0" role="group" aria-label="Timeline; the same events are listed below" {
            svg viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-label=(label) {
                (axis(&scale, height))
                text x="0" y=(format!("{:.1}", TOP + ROW * 0.5 + 4.0)) { "process" }
                @for mark in marks(log) { (mark_drawn(&mark, &scale)) }
                @for (row, step) in steps.iter().enumerate() { (row_drawn(row, step)) }
                @for bar in &bars { (bar_drawn(bar, &scale, end)) }
            }
        }
        (legend())
    }
}

/// How far an open process is drawn: up to now, but no longer than what happened took. One that waits for days would be a dot.
fn shown_until(first: Timestamp, last: Timestamp, now: Timestamp) -> Timestamp {
    let happened = last.duration_since(first).max(SignedDuration::from_secs(1));
    last.checked_add(happened).map_or(now, |most| now.min(most)).max(last)
}

/// The steps in the order they began, and the attempts at them.
fn bars(log: &[ProcessLogEntry]) -> (Vec<String>, Vec<Bar>) {
    let mut steps: Vec<String> = Vec::new();
    let mut bars: Vec<Bar> = Vec::new();
    for entry in log {
        let Some(step) = entry.event.step() else { continue };
        let row = steps.iter().position(|known| known == step).unwrap_or_else(|| {
            steps.push(step.to_owned());
            steps.len() - 1
        });
        let is_undo = entry.event.tag().starts_with("Compensation");
        let mut open =
            bars.iter_mut().rev().find(|bar| bar.row == row && bar.is_undo == is_undo && bar.to.is_none());
        let ended = match &entry.event {
            ProcessEvent::StepStarted { .. } | ProcessEvent::CompensationStarted { .. } => None,
            ProcessEvent::StepCompleted { .. } => Some((Tone::Good, "completed")),
            ProcessEvent::CompensationCompleted { .. } => Some((Tone::Good, "undone")),
            ProcessEvent::StepFailed { retryable: true, .. } => Some((Tone::Warn, "failed, tried again")),
            ProcessEvent::StepTimedOut { .. } => Some((Tone::Bad, "no answer in time")),
            _ => Some((Tone::Bad, "failed")),
        };
        match (ended, open.as_mut()) {
            (Some((tone, word)), Some(bar)) => {
                let took = format::duration(crate::sampler::age(entry.at, bar.from));
                (bar.to, bar.tone, bar.what) = (Some(entry.at), tone, format!("{step}: {word} after {took}"));
            }
            // An end without a beginning: that is not among the events that were read.
            (Some((tone, word)), None) => {
                bars.push(Bar {
                    row,
                    from: entry.at,
                    to: Some(entry.at),
                    tone,
                    is_undo,
                    what: format!("{step}: {word}"),
                });
            }
            (None, _) => {
                let what =
                    if is_undo { format!("{step}: being undone") } else { format!("{step}: under way") };
                bars.push(Bar { row, from: entry.at, to: None, tone: Tone::Accent, is_undo, what });
            }
        }
    }
    (steps, bars)
}

fn marks(log: &[ProcessLogEntry]) -> Vec<Mark> {
    let mark = |entry: &ProcessLogEntry| {
        let (tone, what) = match &entry.event {
            ProcessEvent::ProcessStarted { .. } => (Tone::Accent, "started"),
            ProcessEvent::ProcessCompleted { .. } => (Tone::Good, "completed"),
            ProcessEvent::ProcessFailed { .. } => (Tone::Bad, "failed"),
            ProcessEvent::ProcessPaused { .. } => (Tone::Warn, "paused"),
            ProcessEvent::ProcessResumed { .. } => (Tone::Accent, "resumed"),
            _ => return None,
        };
        Some(Mark { at: entry.at, tone, what })
    };
    log.iter().filter_map(mark).collect()
}

/// Times to places. Times that follow each other at once are given some room.
struct Scale {
    from: Timestamp,
    micros: f64,
}

impl Scale {
    fn new(from: Timestamp, to: Timestamp) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a drawing")]
        let micros = (to.as_microsecond() - from.as_microsecond()).max(1_000) as f64;
        Scale { from, micros }
    }

    #[expect(clippy::cast_precision_loss, reason = "a drawing")]
    fn x(&self, at: Timestamp) -> f64 {
        let passed = (at.as_microsecond() - self.from.as_microsecond()).max(0) as f64;
        NAMES + passed / self.micros * (WIDTH - NAMES - 12.0)
    }
}

fn axis(scale: &Scale, height: f64) -> Markup {
    let mut lines = String::new();
    let parts: Vec<(f64, String)> = (0..=4)
        .map(|part| {
            let share = f64::from(part) / 4.0;
            let passed = std::time::Duration::from_secs_f64(scale.micros * share / 1e6);
            (NAMES + share * (WIDTH - NAMES - 12.0), format!("+{}", format::duration(passed)))
        })
        .collect();
    for (x, _) in &parts {
        write!(lines, "M{x:.1} 20V{:.1}", height - 4.0).unwrap_or_default();
    }
    html! {
        path.tick-line d=(PreEscaped(lines)) {}
        @for (at, (x, text)) in parts.iter().enumerate() {
            @let anchor = match at { 0 => "start", 4 => "end", _ => "middle" };
            text x=(format!("{x:.1}")) y="13" text-anchor=(anchor) { @if at == 0 { "start" } @else { (text) } }
        }
    }
}

fn row_drawn(row: usize, step: &str) -> Markup {
    let y = TOP + ROW * (row as f64 + 1.5);
    html! {
        path.lane-line d=(PreEscaped(format!("M{NAMES} {y:.1}H{WIDTH}"))) {}
        text x="0" y=(format!("{:.1}", y + 4.0)) { title { (step) } (format::cut(step, 20)) }
    }
}

fn bar_drawn(bar: &Bar, scale: &Scale, end: Timestamp) -> Markup {
    let y = TOP + ROW * (bar.row as f64 + 1.5) - BAR / 2.0;
    let (x, to) = (scale.x(bar.from), scale.x(bar.to.unwrap_or(end)));
    let width = (to - x).max(4.0);
    html! {
        rect class={ "span " (bar.tone.class()) @if bar.is_undo { " undo" } } x=(format!("{x:.1}")) y=(format!("{y:.1}")) width=(format!("{width:.1}")) height=(BAR) rx="4" { title { (bar.what) } }
    }
}

fn mark_drawn(mark: &Mark, scale: &Scale) -> Markup {
    let (x, y) = (scale.x(mark.at), TOP + ROW * 0.5);
    html! {
        circle.mark.(mark.tone.class()) cx=(format!("{x:.1}")) cy=(format!("{y:.1}")) r="6" { title { (mark.what) } }
    }
}

fn legend() -> Markup {
    let kinds = [
        (Tone::Accent, false, "under way"),
        (Tone::Good, false, "completed"),
        (Tone::Warn, false, "failed, tried again"),
        (Tone::Bad, false, "failed"),
        (Tone::Good, true, "undone"),
    ];
    html! {
        ul.timeline-legend {
            @for (tone, is_undo, word) in kinds {
                li { svg.timeline-key viewBox="0 0 22 14" aria-hidden="true" { rect class={ (tone.class()) @if is_undo { " undo" } } x="1" y="2" width="20" height="10" rx="3" {} } (word) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater::process::ProcessChange;
    use headwater::uuid::Uuid;

    fn log(events: Vec<ProcessEvent>) -> Vec<ProcessLogEntry> {
        let at = |seconds: i64| Timestamp::from_second(1_000 + seconds).unwrap();
        events
            .into_iter()
            .zip(1..)
            .map(|(event, sequence)| ProcessLogEntry {
                process_id: Uuid::nil(),
                sequence,
                at: at(i64::try_from(sequence).unwrap()),
                event,
                change: ProcessChange::default(),
            })
            .collect()
    }

    fn step(name: &str) -> (String, String) {
        (name.to_owned(), format!("c-{name}"))
    }

    #[test]
    fn a_process_that_waits_for_long_is_drawn_no_longer_than_what_happened() {
        let at = |seconds: i64| Timestamp::from_second(1_000 + seconds).unwrap();
        assert_eq!(shown_until(at(0), at(60), at(70)), at(70));
        assert_eq!(shown_until(at(0), at(60), at(90_000)), at(120));
        assert_eq!(shown_until(at(0), at(0), at(90_000)), at(1));
        assert_eq!(shown_until(at(0), at(60), at(30)), at(60), "a clock that is behind");
    }

    #[test]
    fn attempts_and_their_undoing_become_bars_of_their_step() {
        let (a, b) = (step("reserve"), step("<charge>"));
        let started = |(step, command_id): &(String, String)| ProcessEvent::StepStarted {
            step: step.clone(),
            command_id: command_id.clone(),
        };
        let events = vec![
            ProcessEvent::ProcessStarted {
                process_type: "order".into(),
                business_key: None,
                initial_data: None,
            },
            started(&a),
            ProcessEvent::StepCompleted { step: a.0.clone(), command_id: a.1.clone(), result_data: None },
            started(&b),
            ProcessEvent::StepFailed {
                step: b.0.clone(),
                command_id: b.1.clone(),
                error: "no".into(),
                retryable: true,
            },
            started(&b),
            ProcessEvent::StepFailed {
                step: b.0.clone(),
                command_id: b.1.clone(),
                error: "no".into(),
                retryable: false,
            },
            ProcessEvent::CompensationStarted { step: a.0.clone(), command_id: a.1.clone() },
        ];
        let log = log(events);
        let (steps, bars) = bars(&log);
        assert_eq!(steps, ["reserve", "<charge>"]);
        let drawn: Vec<_> =
            bars.iter().map(|bar| (bar.row, bar.tone, bar.is_undo, bar.to.is_some())).collect();
        assert_eq!(
            drawn,
            [
                (0, Tone::Good, false, true),
                (1, Tone::Warn, false, true),
                (1, Tone::Bad, false, true),
                (0, Tone::Accent, true, false)
            ]
        );
        let process = ProcessInstance::create("order", None, None);
        let markup = super::drawn(&process, &log, log[7].at).into_string();
        assert!(markup.contains("&lt;charge&gt;") && !markup.contains("<charge>"), "{markup}");
    }
}
