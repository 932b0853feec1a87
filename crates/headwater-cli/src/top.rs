//! `headwater top`: topics, groups, lag, rates and health, live in a terminal.
//!
//! Reading and drawing are apart: figures are read from the store, rates are computed from two readings, keys change only what is shown.
//! Where there is no terminal the figures are printed once.

mod draw;
mod figures;
mod keys;
mod view;

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::Result;
use headwater::Headwater;
use ratatui::DefaultTerminal;
use serde_json::json;

use self::figures::{Figures, History, read};
use self::keys::Keys;
use self::view::{Act, View};
use crate::args::{Global, Output, TopArgs};
use crate::human;
use crate::output::{Rows, explain};
use crate::stop::Stop;

pub(crate) async fn run(global: &Global, args: &TopArgs) -> Result<ExitCode> {
    let headwater = global.open(global.options()).await?;
    let is_live =
        global.output == Output::Table && std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    let done = match is_live {
        true => live(global, args, &headwater).await,
        false => once(global, args, &headwater).await,
    };
    headwater.close().await?;
    done?;
    Ok(ExitCode::SUCCESS)
}

/// One line per group, as in the live view.
async fn once(global: &Global, args: &TopArgs, headwater: &Headwater) -> Result<()> {
    // Rates need two readings.
    let mut history = History::default();
    history.add(read(headwater).await?);
    tokio::time::sleep(args.every).await;
    history.add(read(headwater).await?);
    let view = View::new(&args.filter, args.sort);
    let figures = history.figures().unwrap_or_default();
    let columns =
        &["topic", "group", "status", "lag", "behind", "handled_per_second", "retrying", "dead_letters"];
    let mut rows = Rows::new(columns);
    for group in view.groups(&figures) {
        let behind = match global.output {
            Output::Table => json!(group.behind.map(human::duration)),
            Output::Json => json!(group.behind.map(human::ms)),
        };
        rows.push(vec![
            json!(group.topic),
            json!(group.group),
            json!(group.status),
            json!(group.lag),
            behind,
            json!((group.handled_per_second * 10.0).round() / 10.0),
            json!(group.retrying),
            json!(group.dead_letters),
        ]);
    }
    rows.print(global.output)
}

async fn live(global: &Global, args: &TopArgs, headwater: &Headwater) -> Result<()> {
    let mut stop = Stop::on_signals("")?;
    let keys = Keys::listen()?;
    let mut terminal = Screen::open()?;
    let looks = draw::Looks {
        label: global.label(),
        is_production: global.is_production(),
        every: args.every,
        has_colours: !global.no_color,
    };
    let shown = show(args, headwater, &mut terminal.0, keys, &looks, &mut stop).await;
    drop(terminal);
    shown
}

/// The terminal as it was before, however the view ends.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> std::io::Result<Self> {
        ratatui::try_init().map(Screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Reads, draws and follows keys until it is left.
async fn show(
    args: &TopArgs,
    headwater: &Headwater,
    terminal: &mut DefaultTerminal,
    mut keys: Keys,
    looks: &draw::Looks,
    stop: &mut Stop,
) -> Result<()> {
    let (mut history, mut view) = (History::default(), View::new(&args.filter, args.sort));
    let mut ticks = tokio::time::interval(args.every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut figures = Figures::default();
    loop {
        tokio::select! {
            _ = ticks.tick() => if !view.is_frozen() {
                match read(headwater).await {
                    Ok(reading) => {
                        view.set_trouble(None);
                        history.add(reading);
                        figures = history.figures().unwrap_or_default();
                    }
                    // A store that is away comes back: what was read last stays on the screen, with the reason.
                    Err(error) => view.set_trouble(Some(explain(&error.into()))),
                }
            },
            key = keys.next() => match key {
                None => return Ok(()),
                Some(key) => if view.press(key) == Act::Leave {
                    return Ok(());
                },
            },
            () = stop.asked() => return Ok(()),
        }
        terminal.draw(|frame| draw::draw(frame, &figures, &mut view, looks))?;
    }
}
