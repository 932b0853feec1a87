//! Captures the log, so that a case can assert that a line was written.
//!
//! Global, because engines log from their own threads; cases find their lines by a topic name that is used once.

use std::fmt::{self, Write};
use std::sync::{Mutex, OnceLock};

use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Level, Metadata, Subscriber};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
static INSTALLED: OnceLock<bool> = OnceLock::new();

/// Starts capturing, once per process.
pub(super) fn install() {
    INSTALLED.get_or_init(|| tracing::subscriber::set_global_default(Capture).is_ok());
}

/// The warnings and errors so far that contain this text, each as its message and its fields.
pub(super) fn lines_with(text: &str) -> Vec<String> {
    all_with(text).into_iter().filter(|line| !line.starts_with("INFO")).collect()
}

/// The same, with what is logged of the life cycle.
pub(super) fn all_with(text: &str) -> Vec<String> {
    let installed = INSTALLED.get().copied().unwrap_or_default();
    assert!(installed, "the suite captures logs; install no global tracing subscriber in its process");
    let lines = LINES.lock().expect("no panic while held");
    lines.iter().filter(|line| line.contains(text)).cloned().collect()
}

struct Capture;

impl Subscriber for Capture {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("headwater")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        LINES.lock().expect("no panic while held").push(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, " {}={value:?}", field.name()).expect("a string takes text");
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        write!(self.0, " {}={value}", field.name()).expect("a string takes text");
    }
}
