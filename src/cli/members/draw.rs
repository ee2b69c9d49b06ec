//! Draws the live view: members above, events below, keys in the last line.
//!
//! It works in 80×24, and in less it leaves out what matters least: columns one by one, then details, then
//! events. Plain ASCII but for what members are called, and colours only beside words that say the same.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;

use super::board::{Board, Entry, Weight};
use super::row::{Row, Sort, State, brief};

/// Draws the whole of it.
pub(crate) fn draw(board: &Board, frame: &mut Frame<'_>) {
    let area = frame.area();
    let buffer = frame.buffer_mut();
    let sections = Sections::of(board, area.height);
    let mut lines = Lines { buffer, area, at: 0 };
    title(board, &mut lines);
    table(board, sections.members, &mut lines);
    if sections.details > 0 {
        details(board, sections.details, &mut lines);
    }
    if sections.events > 0 {
        events(board, sections.events, &mut lines);
    }
    if area.height > 1 {
        lines.at = area.height - 1;
        keys(board, &mut lines);
    }
}

/// How many lines each part gets.
#[derive(Debug, PartialEq, Eq)]
struct Sections {
    /// Members, without the line of the columns' names.
    members: usize,
    /// Details, with their heading.
    details: usize,
    /// Events, with their heading.
    events: usize,
}

/// Lines of details: a heading, identity, address, and metadata.
const DETAILS: usize = 4;

impl Sections {
    fn of(board: &Board, height: u16) -> Self {
        // The title, the names of the columns, the keys.
        let mut room = usize::from(height).saturating_sub(3);
        let details = if board.details && room >= DETAILS + 4 { DETAILS } else { 0 };
        room -= details;
        // Events get a third, and what the members leave.
        let least = if room >= 6 { room / 3 } else { 0 };
        let members = board.rows.len().max(1).min(room - least);
        let left = room - members;
        Self { members, details, events: if left >= 2 { left } else { 0 } }
    }
}

/// Where the next line goes.
struct Lines<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
    at: u16,
}

impl Lines<'_> {
    fn width(&self) -> usize {
        usize::from(self.area.width)
    }

    /// Writes a line; one that the screen has no place for is not written.
    fn line(&mut self, text: &str, style: Style) {
        if self.at < self.area.height {
            let (x, y) = (self.area.x, self.area.y + self.at);
            self.buffer.set_style(Rect { x, y, width: self.area.width, height: 1 }, style);
            self.buffer.set_stringn(x, y, text, self.width(), style);
            self.at += 1;
        }
    }

    /// Writes a line with something at its right end.
    fn ends(&mut self, left: &str, right: &str, style: Style) {
        let room = self.width().saturating_sub(width(right) + 2);
        let text = if room < width(left).min(12) {
            fit(left, self.width())
        } else {
            let left = fit(left, room);
            let gap = self.width().saturating_sub(width(&left) + width(right));
            format!("{left}{:gap$}{right}", "")
        };
        self.line(&text, style);
    }

    /// Goes on so many lines below `from`, wherever the last one was.
    fn skip_to(&mut self, at: u16) {
        self.at = at;
    }
}

fn title(board: &Board, lines: &mut Lines<'_>) {
    let of = |state| board.rows.iter().filter(|row| row.state == state).count();
    let mut right = match board.rows.len() {
        1 => "1 member".to_owned(),
        n => format!("{n} members"),
    };
    for state in [State::Degraded, State::Suspect] {
        if of(state) > 0 {
            right += &format!(", {} {}", of(state), state.as_str());
        }
    }
    right += &format!(", view {}", board.version);
    let left = format!("group {} at {}", board.group, board.address);
    lines.ends(&left, &right, Style::new().add_modifier(Modifier::BOLD));
}

fn table(board: &Board, height: usize, lines: &mut Lines<'_>) {
    let columns = columns(&board.rows, lines.width());
    let heads: Vec<_> = columns.iter().map(|(column, _)| column.head.to_owned()).collect();
    lines.line(&cells(&columns, &heads), HEADING);
    let start = lines.at;
    if board.rows.is_empty() {
        lines.line("nobody is heard yet", Style::new().add_modifier(Modifier::DIM));
    }
    // The chosen one is in sight.
    let first = board.place().map_or(0, |place| (place + 1).saturating_sub(height));
    for (n, row) in board.rows.iter().enumerate().skip(first).take(height) {
        let hidden = board.rows.len() - n;
        if n + 1 == first + height && hidden > 1 && board.place().is_none() {
            lines.line(&format!("... and {hidden} more (down)"), Style::new());
            break;
        }
        let texts: Vec<_> = columns.iter().map(|(column, _)| (column.cell)(row)).collect();
        let mut style = match row.state {
            State::Alive => Style::new(),
            State::Degraded => Style::new().fg(Color::Magenta),
            State::Suspect => Style::new().fg(Color::Yellow).add_modifier(Modifier::BOLD),
        };
        if board.chosen.as_deref() == Some(&row.id) {
            style = style.add_modifier(Modifier::REVERSED);
        }
        lines.line(&cells(&columns, &texts), style);
    }
    lines.skip_to(start.saturating_add(u16::try_from(height).unwrap_or(u16::MAX)));
}

fn details(board: &Board, height: usize, lines: &mut Lines<'_>) {
    let start = lines.at;
    lines.line("DETAILS", HEADING);
    match board.place().and_then(|place| board.rows.get(place)) {
        None if board.chosen.is_none() => lines.line("no member is chosen", Style::new()),
        None => lines.line("the chosen member is gone", Style::new()),
        Some(row) => {
            let wide = lines.width();
            let life = format!("{}  id {}  life {}", row.name, row.id, row.incarnation);
            lines.line(&fit(&life, wide), Style::new());
            let place = format!("on {} at {}  {}", row.host, row.address, row.progress);
            lines.line(&fit(place.trim_end(), wide), Style::new());
            let metadata = if row.metadata.is_empty() { "no metadata" } else { &row.metadata };
            lines.line(&fit(metadata, wide), Style::new());
        }
    }
    lines.skip_to(start + u16::try_from(height).unwrap_or(u16::MAX));
}

fn events(board: &Board, height: usize, lines: &mut Lines<'_>) {
    let back = match board.back {
        0 => String::new(),
        n => format!("{n} newer below"),
    };
    lines.ends("EVENTS", &back, HEADING);
    for Entry { at, text, weight } in board.log(height - 1) {
        let style = match weight {
            Weight::Plain => Style::new(),
            Weight::Notable => Style::new().fg(Color::Yellow),
            Weight::Grave => Style::new().fg(Color::Red),
        };
        lines.line(&fit(&format!("{at}  {text}"), lines.width()), style);
    }
}

fn keys(board: &Board, lines: &mut Lines<'_>) {
    let sort = match board.sort {
        Sort::Name => "s sort (name)".to_owned(),
        sort => format!("s sort ({})", sort.as_str()),
    };
    let all =
        ["q quit", "up/down choose", "d details", &sort, "pgup/pgdn events", "c clear events"];
    let mut text = String::new();
    for key in all {
        let more = if text.is_empty() { key.to_owned() } else { format!("   {key}") };
        if width(&text) + width(&more) <= lines.width() {
            text += &more;
        }
    }
    lines.line(&text, HEADING);
}

const HEADING: Style = Style::new().add_modifier(Modifier::REVERSED);

/// A column of the table.
struct Column {
    head: &'static str,
    /// With less it is of no use.
    least: usize,
    /// Numbers stand at the right.
    right: bool,
    /// The lower, the sooner it is left out.
    worth: u8,
    cell: fn(&Row) -> String,
}

/// In the order in which they stand.
const COLUMNS: [Column; 8] = [
    Column { head: "MEMBER", least: 8, right: false, worth: 9, cell: name },
    Column {
        head: "STATE",
        least: 8,
        right: false,
        worth: 8,
        cell: |row| row.state.as_str().into(),
    },
    Column { head: "ROLE", least: 10, right: false, worth: 5, cell: |row| row.role.into() },
    Column {
        head: "RTT",
        least: 6,
        right: true,
        worth: 6,
        cell: |row| row.rtt.map_or("-".into(), brief),
    },
    Column {
        head: "HEARD",
        least: 6,
        right: true,
        worth: 7,
        cell: |row| if row.own { "-".into() } else { brief(row.heard) },
    },
    Column {
        head: "PROGRESS",
        least: 12,
        right: false,
        worth: 4,
        cell: |row| row.progress.clone(),
    },
    Column { head: "HOST", least: 6, right: false, worth: 3, cell: |row| row.host.clone() },
    Column {
        head: "METADATA",
        least: 20,
        right: false,
        worth: 2,
        cell: |row| row.metadata.clone(),
    },
];

fn name(row: &Row) -> String {
    // This process's own.
    if row.own { format!("{} *", row.name) } else { row.name.clone() }
}

const GAP: usize = 2;

/// No cell is wider, unless there is nothing else to do with the place.
const WIDE: usize = 32;

/// The columns that fit, and their widths: the worthiest first get what they need.
fn columns(rows: &[Row], wide: usize) -> Vec<(&'static Column, usize)> {
    let mut by_worth: Vec<_> = (0..COLUMNS.len()).collect();
    by_worth.sort_by_key(|&n| std::cmp::Reverse(COLUMNS[n].worth));
    let (mut widths, mut left) = ([0; COLUMNS.len()], wide);
    // What nobody has anything in is no column.
    by_worth.retain(|&n| {
        COLUMNS[n].worth > 4 || rows.iter().any(|row| !(COLUMNS[n].cell)(row).is_empty())
    });
    for (nth, &n) in by_worth.iter().enumerate() {
        let need = COLUMNS[n].least + if nth == 0 { 0 } else { GAP };
        if need > left && nth > 0 {
            break;
        }
        widths[n] = COLUMNS[n].least;
        left = left.saturating_sub(need);
    }
    for &n in &by_worth {
        if widths[n] > 0 {
            let cells = rows.iter().map(|row| width(&(COLUMNS[n].cell)(row)));
            let wanted = cells.max().unwrap_or(0).min(WIDE).max(widths[n]);
            let more = (wanted - widths[n]).min(left);
            widths[n] += more;
            left -= more;
        }
    }
    let shown = COLUMNS.iter().zip(widths).filter(|(_, width)| *width > 0);
    shown.collect()
}

/// A line of the table.
fn cells(columns: &[(&Column, usize)], texts: &[String]) -> String {
    let mut line = String::new();
    for (n, ((column, wide), text)) in columns.iter().zip(texts).enumerate() {
        let text = fit(text, *wide);
        let padding = " ".repeat(wide - width(&text));
        if n > 0 {
            line += "  ";
        }
        if column.right {
            line += &padding;
            line += &text;
        } else {
            line += &text;
            line += &padding;
        }
    }
    line
}

/// How many cells of the screen a text takes.
fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// A text in at most `wide` cells; what does not fit is cut off, and a `~` says so.
fn fit(text: &str, wide: usize) -> String {
    if width(text) <= wide {
        return text.to_owned();
    }
    let mut fitting = String::new();
    let mut used = 0;
    for c in text.chars() {
        let cells = width(c.encode_utf8(&mut [0; 4]));
        if used + cells + 1 > wide {
            break;
        }
        used += cells;
        fitting.push(c);
    }
    if wide > 0 {
        fitting.push('~');
    }
    fitting
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::board::Key;
    use super::super::board::tests::{entry, row};
    use super::*;

    /// The screen's lines, without spaces at their ends.
    fn drawn(board: &Board, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(board, frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let mut lines = Vec::new();
        for y in 0..height {
            let (mut line, mut x) = (String::new(), 0);
            while x < width {
                let symbol = buffer[(x, y)].symbol();
                line += symbol;
                // A wide character has a second cell.
                x += u16::try_from(super::width(symbol).max(1)).unwrap();
            }
            assert!(super::width(&line) <= usize::from(width), "{line:?}");
            lines.push(line.trim_end().to_owned());
        }
        lines
    }

    fn board(members: usize) -> Board {
        let mut board = Board::new("demo".into(), "239.192.7.7".into());
        let mut rows: Vec<_> = (1..=members).map(|n| row(&format!("worker-{n}"))).collect();
        if let Some(first) = rows.first_mut() {
            first.own = true;
            first.rtt = None;
        }
        if members > 2 {
            rows[1].state = State::Suspect;
            rows[1].heard = Duration::from_millis(1700);
            rows[2].state = State::Degraded;
        }
        board.show(12, rows);
        for n in 1..=30 {
            board.note(entry(&format!("worker-{n} joined")));
        }
        board
    }

    #[test]
    fn a_common_terminal() {
        let lines = drawn(&board(3), 80, 24);
        let expected = [
            "group demo at 239.192.7.7              3 members, 1 degraded, 1 suspect, view 12",
            "MEMBER      STATE     ROLE           RTT   HEARD  PROGRESS        HOST",
            "worker-1 *  alive     publisher        -       -  out 1200 310/s  host-a",
            "worker-2    suspect   publisher     87us    1.7s  out 1200 310/s  host-a",
            "worker-3    degraded  publisher     87us   120ms  out 1200 310/s  host-a",
            "EVENTS",
            "12:00:01.250  worker-14 joined",
        ];
        assert_eq!(lines[..7], expected);
        assert_eq!(lines[22], "12:00:01.250  worker-30 joined");
        assert_eq!(
            lines[23],
            "q quit   up/down choose   d details   s sort (name)   pgup/pgdn events"
        );
    }

    #[test]
    fn more_members_than_lines() {
        let mut board = board(100);
        let lines = drawn(&board, 80, 24);
        assert!(lines[15].starts_with("... and 87 more"), "{lines:#?}");
        assert_eq!(lines[16], "EVENTS");
        board.press(Key::Last);
        let lines = drawn(&board, 80, 24);
        assert!(lines[15].starts_with("worker-100 "), "{lines:#?}");
        board.press(Key::Details);
        let lines = drawn(&board, 80, 24);
        let details = lines.iter().position(|line| line == "DETAILS").unwrap();
        assert!(lines[details - 1].starts_with("worker-100 "), "{lines:#?}");
        assert!(lines[details + 1].contains("life 7"), "{lines:#?}");
        assert_eq!(lines[details + 2], "on host-a at 127.0.1.2:4791  out 1200 310/s");
        assert_eq!(lines[details + 3], "rack=7 gpu=2");
        assert_eq!(lines[details + 4], "EVENTS");
        board.show(13, Vec::new());
        let lines = drawn(&board, 80, 24);
        assert!(lines.iter().any(|line| line == "the chosen member is gone"), "{lines:#?}");
        assert!(lines.iter().any(|line| line == "nobody is heard yet"), "{lines:#?}");
    }

    #[test]
    fn any_size_is_drawn_and_the_worthiest_is_left() {
        let mut boards = [board(0), board(1), board(3), board(40)];
        for board in &mut boards {
            for _ in 0..2 {
                for width in (0..20).chain([40, 79, 80, 81, 200]) {
                    for height in (0..14).chain([24, 60]) {
                        let _ = drawn(board, width, height);
                    }
                }
                board.press(Key::Last);
                board.press(Key::Details);
                board.press(Key::Back);
            }
        }
        let small = drawn(&board(3), 20, 5);
        assert_eq!(small[1], "MEMBER      STATE");
        assert!(small[2].starts_with("worker-1 *  alive"), "{small:?}");
        assert!(small[4].starts_with("q quit"), "{small:?}");
        assert!(drawn(&board(3), 8, 3)[1].starts_with("MEMBER"));
    }

    #[test]
    fn long_and_wide_names_keep_to_their_column() {
        let mut board = board(2);
        board.rows[0].name = "日本語の名前".repeat(20);
        board.rows[1].name = "e\u{301}".repeat(90);
        board.rows[1].metadata = "x".repeat(4000);
        board.group = "g".repeat(96);
        board.note(entry(&"long ".repeat(100)));
        let lines = drawn(&board, 80, 24);
        assert!(lines[2].starts_with("日本語") && lines[2].contains('~'), "{lines:#?}");
        assert_eq!(lines[2].split_whitespace().nth(1), Some("alive"), "{lines:#?}");
        assert!(lines[0].contains("2 members, view 12"), "{lines:#?}");
        assert!(lines.iter().all(|line| width(line) <= 80));
    }

    #[test]
    fn cut_to_fit() {
        assert_eq!(fit("abc", 3), "abc");
        assert_eq!(fit("abcd", 3), "ab~");
        assert_eq!(fit("日本", 3), "日~");
        assert_eq!(fit("日本", 2), "~");
        assert_eq!(fit("ab", 0), "");
    }
}
