//! `headwater top`: on a terminal of 80 columns and 24 lines, and once where there is none.

use std::fs::File;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::*;

/// How long a picture may take.
const WITHIN: Duration = Duration::from_secs(60);
/// The size of the terminal.
const COLUMNS: usize = 80;
const LINES: usize = 24;

/// A terminal, what it shows, and all that was written to it.
struct Screen {
    controller: File,
    written: Receiver<Vec<u8>>,
    all: Vec<u8>,
}

impl Screen {
    /// Starts a command on a terminal of its own.
    fn start(command: &mut Command) -> (Self, std::process::Child) {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let size = Winsize { ws_row: LINES as u16, ws_col: COLUMNS as u16, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&controller, size).unwrap();
        let path = ptsname(&controller, Vec::new()).unwrap();
        let terminal = || File::options().read(true).write(true).open(path.to_str().unwrap()).unwrap();
        let child = command
            .env("TERM", "xterm-256color")
            .stdin(terminal())
            .stdout(terminal())
            .stderr(terminal())
            .spawn()
            .unwrap();
        let controller = File::from(controller);
        let (mut reader, (sender, written)) = (controller.try_clone().unwrap(), channel());
        std::thread::spawn(move || {
            let mut part = [0; 4_096];
            // Reading fails once no process has the terminal open.
            while let Ok(read @ 1..) = reader.read(&mut part) {
                if sender.send(part[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        (Screen { controller, written, all: Vec::new() }, child)
    }

    fn press(&mut self, keys: &str) {
        self.controller.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until what is shown satisfies a condition.
    fn until(&mut self, what: &str, is_so: impl Fn(&str) -> bool) {
        let begun = std::time::Instant::now();
        loop {
            let shown = shown(&self.all);
            if is_so(&shown) {
                return;
            }
            let left = WITHIN.checked_sub(begun.elapsed()).unwrap_or_default();
            match self.written.recv_timeout(left) {
                Ok(part) => self.all.extend(part),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("{what} is not shown:\n{shown}")
                }
            }
        }
    }

    fn wait_for(&mut self, text: &str) {
        self.until(text, |shown| shown.contains(text));
    }

    /// What was written until no process has the terminal open any more.
    fn rest(mut self) -> String {
        while let Ok(part) = self.written.recv_timeout(WITHIN) {
            self.all.extend(part);
        }
        String::from_utf8_lossy(&self.all).into_owned()
    }
}

/// What a terminal shows after this was written to it: text, moves of the cursor, and erasing. A view writes only what changes.
fn shown(written: &[u8]) -> String {
    let (mut cells, mut line, mut column) = ([[' '; COLUMNS]; LINES], 0, 0);
    let text = String::from_utf8_lossy(written);
    let mut rest = text.chars();
    while let Some(letter) = rest.next() {
        match letter {
            '\x1b' => {
                if rest.next() != Some('[') {
                    continue;
                }
                let mut numbers = String::new();
                let end = rest.find(|letter| {
                    numbers.push(*letter);
                    letter.is_ascii_alphabetic()
                });
                let mut numbers =
                    numbers.split(';').map(|n| n.trim_end_matches(|c: char| !c.is_ascii_digit()));
                let mut number = || numbers.next().and_then(|n| n.parse::<usize>().ok());
                match end {
                    Some('H') => (line, column) = (number().unwrap_or(1) - 1, number().unwrap_or(1) - 1),
                    Some('J') => cells = [[' '; COLUMNS]; LINES],
                    _ => {}
                }
            }
            '\r' => column = 0,
            '\n' => line += 1,
            letter => {
                if let Some(cell) = cells.get_mut(line).and_then(|line| line.get_mut(column)) {
                    *cell = letter;
                }
                column += 1;
            }
        }
    }
    cells.iter().map(|line| line.iter().collect::<String>() + "\n").collect()
}

fn fill(place: &Place) {
    place.out(&["topic", "create", "orders", "--pub-sub"]);
    place.out(&["topic", "create", "payments", "--pub-sub"]);
    for (topic, group) in [("orders", "email"), ("orders", "audit"), ("payments", "ledger")] {
        place.out(&["group", "subscribe", topic, group]);
    }
    text(place.with_input(&["publish", "orders"], "1\n2\n3\n"));
}

fn live_view(place: &Place) {
    fill(place);
    let (mut screen, mut child) = Screen::start(&mut place.command(&["top", "--every", "100ms"]));
    screen.wait_for("2 topics  3 groups");
    screen.wait_for("q quit  s sort: lag");
    // What is new appears by itself.
    place.out(&["group", "subscribe", "orders", "billing"]);
    screen.wait_for("4 groups");
    screen.wait_for("billing");
    screen.press("s");
    screen.wait_for("sort: rate");
    screen.press("/led\r");
    screen.until("one group", |shown| shown.contains("ledger") && !shown.contains("billing"));
    screen.press("p");
    screen.wait_for("frozen");
    screen.press("q");
    assert!(child.wait().unwrap().success());
    let rest = screen.rest();
    assert!(rest.contains("\x1b[?1049l"), "the screen is as it was before: {rest:?}");
}

#[test]
fn top_is_live_on_sqlite() {
    live_view(&Place::sqlite());
}

#[test]
fn top_is_live_on_postgres() {
    if let Some(place) = Place::postgres("top") {
        live_view(&place);
    }
}

#[test]
fn top_ends_on_a_signal_and_gives_the_terminal_back() {
    let place = Place::sqlite();
    fill(&place);
    let (mut screen, mut child) = Screen::start(&mut place.command(&["top"]));
    screen.wait_for("q quit");
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert!(child.wait().unwrap().success());
    assert!(screen.rest().contains("\x1b[?1049l"));
}

#[test]
fn top_prints_once_where_there_is_no_terminal() {
    let place = Place::sqlite();
    fill(&place);
    let top = ["top", "--every", "10ms"];
    let table = place.out(&[&top[..], &["--filter", "orders"]].concat());
    assert!(table.contains("email") && table.contains("audit") && !table.contains("ledger"), "{table}");
    let listed = place.json(&[&top[..], &["--sort", "lag"]].concat());
    let names = ["topic", "group", "lag", "retrying", "dead_letters"];
    assert_eq!(json!(fields(&listed[0], names)), json!(["orders", "audit", 3, 0, 0]));
    assert_eq!(listed.len(), 3);
    assert!(refusal(&place.run(&["top", "--every", "0s"]), 2).contains("longer than 0s"));
    let missing = refusal(&Place::sqlite().run(&["top"]), 1);
    assert!(missing.contains("no store at"), "{missing}");
}
