//! Progress of running work on stderr: a bar on a terminal, an occasional line elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::human;
use crate::output::{is_quiet, note};

/// How often progress is read again.
pub(crate) const POLL_EVERY: Duration = Duration::from_millis(200);
/// How often a line is printed where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// The progress of one piece of work, as shown.
pub(crate) struct Shown {
    what: String,
    bar: Option<ProgressBar>,
    last: Option<(Instant, u64)>,
}

impl Shown {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        let what = what.into();
        let bar = (std::io::stderr().is_terminal() && !is_quiet()).then(|| {
            let bar = ProgressBar::new(0);
            let style = ProgressStyle::with_template("{prefix}  {wide_bar}  {human_pos}/{human_len}  {msg}");
            bar.set_style(style.expect("the template is a constant"));
            bar.set_prefix(what.clone());
            bar
        });
        Shown { what, bar, last: None }
    }

    /// Shows the current progress; `more` is further text, such as the time left.
    pub(crate) fn at(&mut self, done: u64, total: u64, more: &str) {
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(done);
            bar.set_message(more.to_owned());
            return;
        }
        let due = self.last.is_none_or(|(at, shown)| shown != done && at.elapsed() >= LINE_EVERY);
        if due {
            self.last = Some((Instant::now(), done));
            self.line(done, total, more);
        }
    }

    /// Ends: the last line stays.
    pub(crate) fn end(&mut self, done: u64, total: u64, more: &str) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        self.line(done, total, more);
    }

    fn line(&self, done: u64, total: u64, more: &str) {
        let (what, done, total) = (&self.what, human::count(done), human::count(total));
        let more = if more.is_empty() { String::new() } else { format!(", {more}") };
        note(format_args!("{what}: {done} of {total}{more}"));
    }
}

/// How long work takes before its count is shown.
const COUNTED_AFTER: Duration = Duration::from_secs(1);

/// A running count of work without a known end: shown on stderr while it is a terminal and stdout is not, once the work
/// takes longer than a second. It disappears with the last line of the work.
pub(crate) struct Counted {
    what: &'static str,
    began: Instant,
    is_shown: bool,
    bar: Option<ProgressBar>,
}

impl Counted {
    pub(crate) fn new(what: &'static str) -> Self {
        // On a terminal the lines of the output show the progress, and a count between them would garble them.
        let is_shown = std::io::stderr().is_terminal() && !std::io::stdout().is_terminal();
        Counted { what, began: Instant::now(), is_shown, bar: None }
    }

    /// Shows how much is done by now.
    pub(crate) fn at(&mut self, done: u64) {
        let took = self.began.elapsed();
        if !self.is_shown || took < COUNTED_AFTER {
            return;
        }
        let what = self.what;
        let bar = self.bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template("{msg}").expect("the template is a constant");
            ProgressBar::new_spinner().with_style(style)
        });
        let rate = human::rate(done as f64 / took.as_secs_f64());
        bar.set_message(format!("{what} {}, {rate}", human::count(done)));
        bar.tick();
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
