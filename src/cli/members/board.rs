//! What the live view shows, and what its keys change: no terminal, no clock.

use std::collections::VecDeque;

use super::row::{Row, Sort};

/// The state of the live view.
#[derive(Debug, Default)]
pub(crate) struct Board {
    /// The group's name, as it may be shown.
    pub(crate) group: String,
    /// Its multicast address.
    pub(crate) address: String,
    pub(crate) version: u64,
    /// Sorted as the user wants them.
    pub(crate) rows: Vec<Row>,
    log: VecDeque<Entry>,
    pub(crate) sort: Sort,
    /// The identity of the chosen member: it stays chosen where others come and go.
    pub(crate) chosen: Option<String>,
    /// Whether more of the chosen member is shown.
    pub(crate) details: bool,
    /// How many events the log is scrolled back.
    pub(crate) back: usize,
}

/// Something that happened, as it may be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The time of day.
    pub(crate) at: String,
    pub(crate) text: String,
    pub(crate) weight: Weight,
}

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    Plain,
    /// An operator may want to look.
    Notable,
    /// Something is gone.
    Grave,
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Up,
    Down,
    First,
    Last,
    /// Older events.
    Back,
    /// Newer events.
    Forth,
    Sort,
    Details,
    Clear,
}

/// Events that are kept.
const MAX_LOG: usize = 1000;

/// How many events one key scrolls.
const PAGE: usize = 5;

impl Board {
    /// Of this group; both may be shown as they are.
    pub(crate) fn new(group: String, address: String) -> Self {
        Self { group, address, ..Self::default() }
    }

    /// The members as they are now.
    pub(crate) fn show(&mut self, version: u64, rows: Vec<Row>) {
        self.version = version;
        self.rows = rows;
        self.arrange();
    }

    fn arrange(&mut self) {
        let sort = self.sort;
        self.rows.sort_by(|a, b| sort.compare(a, b));
    }

    /// Something happened.
    pub(crate) fn note(&mut self, entry: Entry) {
        if self.log.len() == MAX_LOG {
            self.log.pop_front();
        }
        self.log.push_back(entry);
        if self.back > 0 {
            // What is being read stays where it is.
            self.back = (self.back + 1).min(self.log.len() - 1);
        }
    }

    /// The last `lines` events, or those before them as far as the log is scrolled back, oldest first.
    pub(crate) fn log(&self, lines: usize) -> impl Iterator<Item = &Entry> {
        let end = self.log.len().saturating_sub(self.back).max(lines.min(self.log.len()));
        self.log.range(end.saturating_sub(lines)..end)
    }

    /// The place of the chosen member among the rows.
    pub(crate) fn place(&self) -> Option<usize> {
        let chosen = self.chosen.as_deref()?;
        self.rows.iter().position(|row| row.id == chosen)
    }

    pub(crate) fn press(&mut self, key: Key) {
        match key {
            Key::Up => self.choose(self.place().map_or(0, |place| place.saturating_sub(1))),
            Key::Down => self.choose(self.place().map_or(0, |place| place + 1)),
            Key::First => self.choose(0),
            Key::Last => self.choose(usize::MAX),
            Key::Back => self.back = (self.back + PAGE).min(self.log.len().saturating_sub(1)),
            Key::Forth => self.back = self.back.saturating_sub(PAGE),
            Key::Sort => {
                self.sort = self.sort.next();
                self.arrange();
            }
            Key::Details => {
                self.details = !self.details;
                if self.details && self.place().is_none() {
                    self.choose(0);
                }
            }
            Key::Clear => {
                self.log.clear();
                self.back = 0;
            }
        }
    }

    fn choose(&mut self, place: usize) {
        let place = place.min(self.rows.len().saturating_sub(1));
        self.chosen = self.rows.get(place).map(|row| row.id.clone());
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::super::row::State;
    use super::*;

    pub(crate) fn row(name: &str) -> Row {
        Row {
            id: format!("{name:0>32}"),
            name: name.into(),
            host: "host-a".into(),
            address: "127.0.1.2:4791".into(),
            incarnation: 7,
            role: "publisher",
            state: State::Alive,
            rtt: Some(Duration::from_micros(87)),
            heard: Duration::from_millis(120),
            progress: "out 1200 310/s".into(),
            behind: 0,
            metadata: "rack=7 gpu=2".into(),
            own: false,
        }
    }

    pub(crate) fn entry(text: &str) -> Entry {
        Entry { at: "12:00:01.250".into(), text: text.into(), weight: Weight::Plain }
    }

    fn names(board: &Board) -> Vec<&str> {
        board.rows.iter().map(|row| row.name.as_str()).collect()
    }

    #[test]
    fn a_choice_stays_with_its_member() {
        let mut board = Board::default();
        for key in [Key::Up, Key::Down, Key::Last, Key::Details] {
            board.press(key);
            assert_eq!(board.place(), None);
        }
        board.show(1, vec![row("b"), row("a"), row("c")]);
        assert_eq!(names(&board), ["a", "b", "c"]);
        board.press(Key::Down);
        board.press(Key::Down);
        assert_eq!(board.place(), Some(1));
        board.show(2, vec![row("b"), row("0"), row("a"), row("c")]);
        assert_eq!(board.place(), Some(2));
        board.show(3, vec![row("c")]);
        assert_eq!(board.place(), None);
        board.press(Key::Last);
        board.press(Key::Down);
        assert_eq!(board.place(), Some(0));
    }

    #[test]
    fn the_worst_come_first_if_that_is_wanted() {
        let mut board = Board::default();
        let suspect = Row { state: State::Suspect, ..row("c") };
        let slow = Row { rtt: Some(Duration::from_millis(9)), ..row("b") };
        let unheard = Row { heard: Duration::from_secs(3), rtt: None, behind: 9, ..row("d") };
        board.show(1, vec![row("a"), slow, suspect, unheard]);
        let mut orders = Vec::new();
        for _ in 0..5 {
            orders.push(names(&board).concat());
            board.press(Key::Sort);
        }
        assert_eq!(orders, ["abcd", "cabd", "dabc", "bacd", "dabc"]);
    }

    #[test]
    fn the_log_is_bounded_and_stands_still_while_it_is_read() {
        let mut board = Board::default();
        let texts = |board: &Board, lines| {
            board.log(lines).map(|entry| entry.text.clone()).collect::<Vec<_>>()
        };
        assert!(texts(&board, 3).is_empty());
        for n in 0..MAX_LOG + 20 {
            board.note(entry(&n.to_string()));
        }
        assert_eq!(texts(&board, 2), ["1018", "1019"]);
        board.press(Key::Back);
        assert_eq!(texts(&board, 2), ["1013", "1014"]);
        board.note(entry("new"));
        assert_eq!(texts(&board, 2), ["1013", "1014"]);
        for _ in 0..MAX_LOG {
            board.press(Key::Back);
        }
        assert_eq!(texts(&board, 2), ["21", "22"]);
        for _ in 0..MAX_LOG {
            board.press(Key::Forth);
        }
        assert_eq!(texts(&board, 1), ["new"]);
        assert_eq!(texts(&board, usize::MAX).len(), MAX_LOG);
        board.press(Key::Clear);
        assert!(texts(&board, 5).is_empty());
    }
}
