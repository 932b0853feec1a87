//! The picture: a summary, topics, groups, and the keys. It fits into 80 columns and 24 lines, and uses more where there is more.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};

use super::figures::{Condition, Figures, GroupFigures, TopicFigures};
use super::view::{Panes, View};
use crate::args::TopSort;
use crate::human;

/// Lines of topics beside groups.
const TOPICS_BESIDE: u16 = 7;

/// What does not change while it runs.
pub(super) struct Looks {
    pub(super) label: String,
    pub(super) is_production: bool,
    pub(super) every: Duration,
    pub(super) has_colours: bool,
}

impl Looks {
    fn colour(&self, colour: Color) -> Style {
        if self.has_colours { Style::new().fg(colour) } else { Style::new() }
    }

    /// The best are not coloured: what is coloured needs attention.
    fn of(&self, condition: Condition) -> Style {
        match condition {
            Condition::Healthy => Style::new(),
            Condition::Resting => self.colour(Color::Yellow),
            Condition::Ill => self.colour(Color::Red).add_modifier(Modifier::BOLD),
        }
    }
}

pub(super) fn draw(frame: &mut Frame<'_>, figures: &Figures, view: &mut View, looks: &Looks) {
    let topics = match view.panes() {
        Panes::Both => TOPICS_BESIDE.min(u16::try_from(figures.topics.len() + 1).unwrap_or(u16::MAX)),
        Panes::Topics => frame.area().height,
        Panes::Groups => 0,
    };
    let [title, summary, upper, lower, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(2),
        Constraint::Max(topics),
        if view.panes() == Panes::Topics { Constraint::Max(0) } else { Constraint::Min(2) },
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_title(frame, title, view, looks);
    draw_summary(frame, summary, figures, view, looks);
    let scrolled_topics = match view.panes() {
        Panes::Topics => view.scroll(view.topics(figures).len(), room(upper)),
        _ => 0,
    };
    draw_topics(frame, upper, &view.topics(figures), scrolled_topics, looks);
    if view.panes() != Panes::Topics {
        let groups = view.groups(figures);
        let scrolled = view.scroll(groups.len(), room(lower));
        draw_groups(frame, lower, &groups, scrolled, looks);
    }
    draw_keys(frame, keys, view);
}

/// Lines of a list below its heading.
fn room(area: Rect) -> usize {
    usize::from(area.height.saturating_sub(1))
}

fn draw_title(frame: &mut Frame<'_>, area: Rect, view: &View, looks: &Looks) {
    let mut title = Line::from(vec![Span::from("headwater top  ").bold(), Span::from(looks.label.as_str())]);
    if looks.is_production {
        title.push_span(Span::styled("  PRODUCTION", looks.colour(Color::Red).bold()));
    }
    frame.render_widget(title, area);
    let state = match view.is_frozen() {
        true => "frozen".to_owned(),
        false => format!("every {}", human::duration(looks.every)),
    };
    frame.render_widget(Paragraph::new(state).alignment(Alignment::Right), area);
}

fn draw_summary(frame: &mut Frame<'_>, area: Rect, figures: &Figures, view: &View, looks: &Looks) {
    let rates = format!(
        "{} topics  {} groups  published {}  handled {}",
        human::count(figures.topics.len() as u64),
        human::count(figures.groups.len() as u64),
        human::rate(figures.published_per_second()),
        human::rate(figures.handled_per_second()),
    );
    let second = match view.trouble() {
        Some(trouble) => Line::styled(format!("old figures: {trouble}"), looks.of(Condition::Ill)),
        None => {
            let (ill, style) = match figures.ill() {
                0 => ("all healthy".to_owned(), Style::new()),
                ill => (format!("{ill} with health issues"), looks.of(Condition::Ill)),
            };
            Line::from(vec![
                Span::from(format!(
                    "lag {}  retrying {}  dead letters {}  ",
                    human::count(figures.lag()),
                    human::count(figures.retrying()),
                    human::count(figures.dead_letters()),
                )),
                Span::styled(ill, style),
            ])
        }
    };
    frame.render_widget(Paragraph::new(vec![Line::from(rates), second]), area);
}

fn heading(names: &[&'static str]) -> Row<'static> {
    let cells = names.iter().enumerate().map(|(at, name)| match at {
        0 => Cell::from(*name),
        _ => Cell::from(Line::from(*name).alignment(if is_text(name) {
            Alignment::Left
        } else {
            Alignment::Right
        })),
    });
    Row::new(cells).style(Style::new().add_modifier(Modifier::REVERSED))
}

fn is_text(column: &str) -> bool {
    matches!(column, "GROUP" | "STATUS")
}

fn number(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).alignment(Alignment::Right))
}

fn draw_topics(frame: &mut Frame<'_>, area: Rect, topics: &[&TopicFigures], skip: usize, looks: &Looks) {
    let rows = topics.iter().skip(skip).take(room(area)).map(|topic| {
        Row::new([
            Cell::from(text(&topic.topic)),
            number(human::rate(topic.published_per_second)),
            number(human::count(u64::try_from(topic.head).unwrap_or_default())),
            number(human::count(topic.retained)),
            number(human::count(topic.scheduled)),
            number(human::count(topic.groups)),
            Cell::from(topic.issues.clone()).style(looks.of(Condition::Ill)),
        ])
    });
    let widths = [
        Constraint::Min(16),
        Constraint::Length(9),
        Constraint::Length(13),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(6),
        Constraint::Length(11),
    ];
    let columns = ["TOPIC", "PUBLISHED", "HEAD", "KEPT", "SCHEDULED", "GROUPS", ""];
    frame.render_widget(Table::new(rows, widths).header(heading(&columns)), area);
}

fn draw_groups(frame: &mut Frame<'_>, area: Rect, groups: &[&GroupFigures], skip: usize, looks: &Looks) {
    let rows = groups.iter().skip(skip).take(room(area)).map(|group| {
        let style = looks.of(group.condition);
        Row::new([
            Cell::from(text(&group.topic)),
            Cell::from(text(&group.group)),
            Cell::from(group.status.clone()).style(style),
            number(human::count(group.lag)),
            number(group.behind.map(in_seconds).unwrap_or_default()),
            number(human::rate(group.handled_per_second)),
            number(human::count(group.retrying)),
            number(human::count(group.dead_letters)),
        ])
    });
    let widths = [
        Constraint::Fill(5),
        Constraint::Fill(5),
        Constraint::Fill(4),
        Constraint::Length(7),
        Constraint::Length(6),
        Constraint::Length(7),
        Constraint::Length(5),
        Constraint::Length(4),
    ];
    let columns = ["TOPIC", "GROUP", "STATUS", "LAG", "BEHIND", "HANDLED", "RETRY", "DEAD"];
    frame.render_widget(Table::new(rows, widths).header(heading(&columns)), area);
}

/// Names are texts of anyone: control characters would change the terminal.
fn text(name: &str) -> String {
    name.chars().map(|letter| if letter.is_control() { '·' } else { letter }).collect()
}

/// Milliseconds would flicker.
fn in_seconds(behind: Duration) -> String {
    match behind.as_secs() {
        0 => "<1s".into(),
        seconds => human::duration(Duration::from_secs(seconds)),
    }
}

fn draw_keys(frame: &mut Frame<'_>, area: Rect, view: &View) {
    if view.is_typing() {
        let line =
            Line::from(vec![Span::from("filter: ").bold(), Span::from(text(view.filter())), "█".into()]);
        frame.render_widget(line, area);
        return;
    }
    let sort = match view.sort() {
        TopSort::Lag => "lag",
        TopSort::Rate => "rate",
        TopSort::Health => "health",
        TopSort::Name => "name",
    };
    let filter = match view.filter() {
        "" => "filter".to_owned(),
        filter => format!("filter: {}", text(filter)),
    };
    let keys = format!("q quit  s sort: {sort}  / {filter}  t topics, groups  p freeze  ↑↓ scroll");
    frame.render_widget(Line::from(keys).add_modifier(Modifier::DIM), area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::super::keys::Input;
    use super::*;

    fn picture(width: u16, height: u16, figures: &Figures, view: &mut View) -> Vec<String> {
        let looks = Looks {
            label: "shop.db".into(),
            is_production: true,
            every: Duration::from_secs(1),
            has_colours: true,
        };
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, figures, view, &looks)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    fn figures(count: usize) -> Figures {
        let topics = (0..count).map(|n| TopicFigures {
            topic: format!("topic.number.{n}"),
            published_per_second: 1_234.0,
            head: 1_234_567_890,
            retained: 24_000,
            scheduled: 12,
            groups: 3,
            issues: String::new(),
        });
        let groups = (0..count).map(|n| GroupFigures {
            topic: format!("topic.number.{n}"),
            group: format!("group.number.{n}"),
            status: "near timeout".into(),
            condition: Condition::Ill,
            lag: 1_204 + n as u64,
            behind: Some(Duration::from_millis(61_500)),
            handled_per_second: 22.9,
            retrying: 3,
            dead_letters: 5,
        });
        Figures { topics: topics.collect(), groups: groups.collect() }
    }

    #[test]
    fn eighty_columns_and_twenty_four_lines_show_all_of_it() {
        let lines = picture(80, 24, &figures(3), &mut View::new("", TopSort::Lag));
        let whole = lines.join("\n");
        for shown in
            ["shop.db", "PRODUCTION", "every 1s", "lag 3,615", "dead letters 15", "3 with health issues"]
        {
            assert!(whole.contains(shown), "{shown}:\n{whole}");
        }
        let group = lines.iter().find(|line| line.contains("group.number.2")).expect("listed");
        for shown in ["topic.number.2", "near timeout", "1,206", "1m1s", "23/s", "3", "5"] {
            assert!(group.contains(shown), "{shown}: {group}");
        }
        let topic = lines.iter().find(|line| line.contains("1,234,567,890")).expect("listed");
        assert!(topic.contains("1,234/s") && topic.contains("24,000") && topic.contains("12"), "{topic}");
        assert!(lines[23].contains("q quit") && lines[23].contains("sort: lag"), "{whole}");
    }

    #[test]
    fn more_groups_than_lines_are_scrolled_to() {
        let (figures, mut view) = (figures(100), View::new("", TopSort::Name));
        let press = |view: &mut View, code| view.press(Input::Key(KeyEvent::new(code, KeyModifiers::NONE)));
        assert!(!picture(80, 24, &figures, &mut view).join("\n").contains("group.number.99"));
        for _ in 0..10 {
            press(&mut view, KeyCode::PageDown);
        }
        assert!(picture(80, 24, &figures, &mut view).join("\n").contains("group.number.99"));
        press(&mut view, KeyCode::Char('t'));
        let only = picture(80, 24, &figures, &mut view).join("\n");
        assert!(only.contains("HANDLED") && !only.contains("PUBLISHED"), "{only}");
        press(&mut view, KeyCode::Char('t'));
        let only = picture(80, 24, &figures, &mut view).join("\n");
        assert!(!only.contains("HANDLED") && only.contains("PUBLISHED"), "{only}");
    }

    #[test]
    fn a_terminal_of_any_size_and_hostile_names_are_drawn() {
        let mut figures = figures(2);
        figures.groups[0].group = "\x1b[2Jgone\u{7}".into();
        let mut view = View::new("", TopSort::Health);
        view.set_trouble(Some("connection refused".into()));
        for (width, height) in [(1, 1), (20, 3), (80, 24), (300, 100)] {
            let whole = picture(width, height, &figures, &mut view).join("\n");
            assert!(!whole.contains('\x1b') && !whole.contains('\u{7}'));
        }
        assert!(picture(80, 24, &figures, &mut view).join("\n").contains("old figures: connection refused"));
    }
}
