//! What of the figures is shown, and how keys change it.

use ratatui::crossterm::event::{KeyCode, KeyModifiers};

use super::figures::{Figures, GroupFigures, TopicFigures};
use super::keys::Input;
use crate::args::TopSort;

/// What is shown, and where.
#[derive(Debug)]
pub(super) struct View {
    sort: TopSort,
    filter: String,
    /// Whether keys are characters of the filter.
    is_typing: bool,
    is_frozen: bool,
    panes: Panes,
    /// How many lines of the list are above the screen.
    scrolled: usize,
    /// Why figures are old.
    trouble: Option<String>,
}

/// Which lists are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Panes {
    Both,
    Topics,
    Groups,
}

/// What follows from a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Stay,
    Leave,
}

impl View {
    pub(super) fn new(filter: &str, sort: TopSort) -> Self {
        View {
            sort,
            filter: filter.to_owned(),
            is_typing: false,
            is_frozen: false,
            panes: Panes::Both,
            scrolled: 0,
            trouble: None,
        }
    }

    pub(super) fn press(&mut self, input: Input) -> Act {
        let Input::Key(key) = input else { return Act::Stay };
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if matches!(key.code, KeyCode::Char('c' | 'd')) { Act::Leave } else { Act::Stay };
        }
        if self.is_typing {
            self.type_filter(key.code);
            return Act::Stay;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Act::Leave,
            KeyCode::Char('s') => self.sort = next_sort(self.sort),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('t') | KeyCode::Tab => self.switch(),
            KeyCode::Char(' ' | 'p') => self.is_frozen = !self.is_frozen,
            KeyCode::Down | KeyCode::Char('j') => self.scrolled += 1,
            KeyCode::Up | KeyCode::Char('k') => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::PageDown => self.scrolled += 10,
            KeyCode::PageUp => self.scrolled = self.scrolled.saturating_sub(10),
            KeyCode::Home | KeyCode::Char('g') => self.scrolled = 0,
            _ => {}
        }
        Act::Stay
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => {}
        }
        self.scrolled = 0;
    }

    fn switch(&mut self) {
        self.scrolled = 0;
        self.panes = match self.panes {
            Panes::Both => Panes::Groups,
            Panes::Groups => Panes::Topics,
            Panes::Topics => Panes::Both,
        };
    }

    /// The groups to show, in order.
    pub(super) fn groups<'a>(&self, figures: &'a Figures) -> Vec<&'a GroupFigures> {
        let has = |group: &&GroupFigures| self.accepts(&group.topic) || self.accepts(&group.group);
        let mut groups: Vec<_> = figures.groups.iter().filter(has).collect();
        let name = |group: &GroupFigures| (group.topic.clone(), group.group.clone());
        match self.sort {
            TopSort::Name => groups.sort_by_cached_key(|group| name(group)),
            TopSort::Lag => groups.sort_by_cached_key(|group| (std::cmp::Reverse(group.lag), name(group))),
            TopSort::Health => groups.sort_by_cached_key(|group| {
                (std::cmp::Reverse(group.condition), std::cmp::Reverse(group.lag), name(group))
            }),
            TopSort::Rate => groups.sort_by(|one, other| {
                let rates = other.handled_per_second.total_cmp(&one.handled_per_second);
                rates.then_with(|| name(one).cmp(&name(other)))
            }),
        }
        groups
    }

    /// The topics to show: the busiest first.
    pub(super) fn topics<'a>(&self, figures: &'a Figures) -> Vec<&'a TopicFigures> {
        let mut topics: Vec<_> = figures.topics.iter().filter(|topic| self.accepts(&topic.topic)).collect();
        match self.sort {
            TopSort::Name => topics.sort_by(|one, other| one.topic.cmp(&other.topic)),
            _ => topics.sort_by(|one, other| {
                let rates = other.published_per_second.total_cmp(&one.published_per_second);
                rates.then_with(|| one.topic.cmp(&other.topic))
            }),
        }
        topics
    }

    fn accepts(&self, name: &str) -> bool {
        name.to_lowercase().contains(&self.filter.to_lowercase())
    }

    /// How many lines of a list are above the screen: never so many that the screen is not full.
    pub(super) fn scroll(&mut self, lines: usize, room: usize) -> usize {
        self.scrolled = self.scrolled.min(lines.saturating_sub(room));
        self.scrolled
    }

    pub(super) fn sort(&self) -> TopSort {
        self.sort
    }

    pub(super) fn filter(&self) -> &str {
        &self.filter
    }

    pub(super) fn is_typing(&self) -> bool {
        self.is_typing
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    pub(super) fn panes(&self) -> Panes {
        self.panes
    }

    pub(super) fn set_trouble(&mut self, trouble: Option<String>) {
        self.trouble = trouble;
    }

    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }
}

fn next_sort(sort: TopSort) -> TopSort {
    match sort {
        TopSort::Lag => TopSort::Rate,
        TopSort::Rate => TopSort::Health,
        TopSort::Health => TopSort::Name,
        TopSort::Name => TopSort::Lag,
    }
}

#[cfg(test)]
mod tests {
    use ratatui::crossterm::event::KeyEvent;

    use super::super::figures::Condition;
    use super::*;

    fn press(view: &mut View, code: KeyCode) -> Act {
        view.press(Input::Key(KeyEvent::new(code, KeyModifiers::NONE)))
    }

    fn figures() -> Figures {
        let group = |topic: &str, group: &str, lag: u64, rate: f64, condition| GroupFigures {
            topic: topic.into(),
            group: group.into(),
            lag,
            handled_per_second: rate,
            condition,
            ..GroupFigures::default()
        };
        let groups = vec![
            group("orders", "email", 3, 9.0, Condition::Healthy),
            group("orders", "fraud", 90, 1.0, Condition::Healthy),
            group("payments", "tax", 50, 0.0, Condition::Ill),
        ];
        let topic = |topic: &str, rate| TopicFigures {
            topic: topic.into(),
            published_per_second: rate,
            ..TopicFigures::default()
        };
        Figures { topics: vec![topic("payments", 1.0), topic("orders", 9.0)], groups }
    }

    #[test]
    fn keys_sort_and_filter() {
        let (figures, mut view) = (figures(), View::new("", TopSort::Lag));
        let names = |view: &View| -> Vec<String> {
            view.groups(&figures).iter().map(|group| group.group.clone()).collect()
        };
        assert_eq!(names(&view), ["fraud", "tax", "email"]);
        for sorted in [["email", "fraud", "tax"], ["tax", "fraud", "email"], ["email", "fraud", "tax"]] {
            press(&mut view, KeyCode::Char('s'));
            assert_eq!(names(&view), sorted, "{:?}", view.sort());
        }
        press(&mut view, KeyCode::Char('/'));
        for letter in "PAY".chars() {
            press(&mut view, KeyCode::Char(letter));
        }
        assert_eq!((names(&view), view.topics(&figures).len()), (vec!["tax".to_owned()], 1));
        press(&mut view, KeyCode::Backspace);
        assert_eq!(press(&mut view, KeyCode::Char('q')), Act::Stay, "a letter of the filter");
        assert_eq!(view.filter(), "PAq");
        press(&mut view, KeyCode::Esc);
        assert_eq!((view.filter(), names(&view).len()), ("", 3));
    }

    #[test]
    fn a_view_is_left_by_q_and_by_ctrl_c_while_typing_too() {
        let mut view = View::new("", TopSort::Name);
        assert_eq!(press(&mut view, KeyCode::Char('x')), Act::Stay);
        assert_eq!(press(&mut view, KeyCode::Char('q')), Act::Leave);
        press(&mut view, KeyCode::Char('/'));
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(view.press(Input::Key(interrupt)), Act::Leave);
    }

    #[test]
    fn scrolling_ends_with_the_list() {
        let mut view = View::new("", TopSort::Name);
        for _ in 0..3 {
            press(&mut view, KeyCode::PageDown);
        }
        assert_eq!(view.scroll(25, 10), 15);
        assert_eq!(view.scroll(5, 10), 0, "all of it fits");
    }
}
