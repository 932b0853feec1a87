//! How the demo is shown: progress bars on a terminal, plain lines elsewhere. With `--output json` they go to stderr.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use headwater::SubscriptionState;
use headwater::store::SubscriptionStatus;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::args::Output;
use crate::human;

/// How often the groups are printed where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);

pub(super) struct Stage {
    output: Output,
    began: Instant,
    live: Option<MultiProgress>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    bars: Vec<(String, ProgressBar)>,
    act: Option<(usize, Instant)>,
    /// The demo has ended: bars are no longer drawn.
    over: bool,
    last_line: Option<Instant>,
}

impl Stage {
    pub(super) fn new(output: Output) -> Self {
        let terminal = output == Output::Table && std::io::stdout().is_terminal();
        let live = terminal.then(|| MultiProgress::with_draw_target(ProgressDrawTarget::stdout()));
        Stage { output, began: Instant::now(), live, inner: Mutex::default() }
    }

    /// Prints a line. A failure to print does not stop the demo.
    pub(super) fn say(&self, line: &str) {
        let over = self.inner.lock().expect("no panic while held").over;
        let written = match (&self.live, self.output) {
            (Some(live), _) if !over => live.println(line),
            (_, Output::Table) => writeln!(std::io::stdout(), "{line}"),
            (_, Output::Json) => writeln!(std::io::stderr(), "{line}"),
        };
        drop(written);
    }

    /// Prints what happens, with the time since the start.
    pub(super) fn event(&self, what: &str) {
        self.say(&format!("  {:>5.1}s  {what}", self.began.elapsed().as_secs_f64()));
    }

    /// Begins a new act and ends the one before it.
    pub(super) fn act(&self, title: &str) {
        self.end_act();
        let number = {
            let mut inner = self.inner.lock().expect("no panic while held");
            let number = inner.act.map_or(1, |(number, _)| number + 1);
            inner.act = Some((number, Instant::now()));
            number
        };
        self.say(&format!("\n{number}. {title}"));
    }

    /// Ends the act and prints how long it took.
    pub(super) fn end_act(&self) {
        let act = self.inner.lock().expect("no panic while held").act;
        if let Some((number, began)) = act {
            self.say(&format!("  act {number} took {:.1}s", began.elapsed().as_secs_f64()));
        }
    }

    /// The time since the start.
    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Shows the current status of the groups.
    pub(super) fn show(&self, groups: &[SubscriptionStatus]) {
        let mut inner = self.inner.lock().expect("no panic while held");
        if inner.over {
            return;
        }
        let Some(live) = &self.live else {
            let due = inner.last_line.is_none_or(|last| last.elapsed() >= LINE_EVERY);
            if due && !groups.is_empty() {
                inner.last_line = Some(Instant::now());
                drop(inner);
                let states: Vec<String> =
                    groups.iter().map(|group| format!("{} {}", group.group, at(group))).collect();
                self.event(&states.join(" | "));
            }
            return;
        };
        for group in groups {
            let name = group.group.as_str();
            let known = inner.bars.iter().position(|(of, _)| of == name);
            let known = known.unwrap_or_else(|| {
                inner.bars.push((name.to_owned(), live.add(bar(name))));
                inner.bars.len() - 1
            });
            let bar = &inner.bars[known].1;
            bar.set_length(position(group) + group.lag);
            bar.set_position(position(group));
            bar.set_message(label(group));
        }
    }

    /// Removes the bars permanently; printed lines stay.
    pub(super) fn clear(&self) {
        let mut inner = self.inner.lock().expect("no panic while held");
        inner.over = true;
        inner.bars.drain(..).for_each(|(_, bar)| bar.finish_and_clear());
    }
}

fn bar(name: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("  {prefix:<10} {bar:40} {human_pos}/{human_len} {msg}");
    let bar = ProgressBar::new(0).with_prefix(name.to_owned());
    bar.set_style(style.expect("the template is a constant"));
    bar
}

fn position(group: &SubscriptionStatus) -> u64 {
    u64::try_from(group.floor.0).unwrap_or(0)
}

fn label(group: &SubscriptionStatus) -> String {
    match group.state {
        SubscriptionState::Active => human::rate(group.activity.rate),
        state => state.as_str().to_uppercase(),
    }
}

fn at(group: &SubscriptionStatus) -> String {
    let done = human::count(position(group));
    match (group.state, group.lag) {
        (SubscriptionState::Active, 0) => done,
        (SubscriptionState::Active, lag) => format!("{done} (-{})", human::count(lag)),
        (state, lag) => format!("{} at {done} (-{})", state.as_str().to_uppercase(), human::count(lag)),
    }
}
