//! Who is in a group, as it changes: on the screen, or a line for each change.

use std::io::{self, IsTerminal};
use std::time::Duration;

use qcast::{Group, NodeEvents, ViewChanges};

use super::super::exit::{Chain, Failure};
use super::super::output::Output;
use super::super::shown::shown;
use super::super::signals::Interrupt;
use super::board::Board;
use super::progress::Rates;
use super::screen::{Input, Screen};
use super::told::{Told, rows, view_json};

/// How long one wait is before everything is looked at, and the screen is drawn anew.
const SLICE: Duration = Duration::from_millis(100);

/// Whether a live view can be drawn.
pub(crate) fn is_live(json: bool) -> bool {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
    !json && !dumb && io::stdout().is_terminal()
}

/// The live view of a group.
pub(crate) struct Live<'a> {
    screen: Screen,
    board: Board,
    changes: ViewChanges,
    events: NodeEvents,
    interrupt: &'a Interrupt,
    rates: Rates,
}

/// Whether the live view goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Next {
    More,
    /// The user has seen enough.
    Ended,
}

impl<'a> Live<'a> {
    /// Takes the terminal over, until this is dropped.
    pub(crate) fn new(
        group: Group,
        events: NodeEvents,
        interrupt: &'a Interrupt,
    ) -> Result<Self, Failure> {
        let board = Board::new(shown(group.name()).into_owned(), group.mgid().to_string());
        interrupt.by_any()?;
        let changes = group.view_changes();
        let screen = Screen::take()?;
        Ok(Self { screen, board, changes, events, interrupt, rates: Rates::default() })
    }

    /// Shows what there is, and waits for a key or a moment.
    pub(crate) fn step(&mut self) -> Result<Next, Failure> {
        if self.interrupt.is_asked() {
            return Ok(Next::Ended);
        }
        let stopped = |error| Failure::environment(Chain(&error));
        while let Some(change) = self.changes.try_recv().map_err(stopped)? {
            if let Some(told) = Told::change(&change) {
                self.board.note(told.entry());
            }
        }
        while let Some(event) = self.events.try_recv().map_err(stopped)? {
            self.note(Told::node(&event));
        }
        let view = self.changes.group().members();
        self.rates.look(&view);
        let rows = rows(&view, &self.rates, self.changes.group().node());
        self.board.show(view.version, rows);
        self.screen.draw(&self.board)?;
        for input in self.screen.input(SLICE) {
            match input {
                Input::Key(key) => self.board.press(key),
                Input::Quit => return Ok(Next::Ended),
                Input::Nothing => {}
            }
        }
        Ok(Next::More)
    }

    /// Something else happened that belongs among the events.
    pub(crate) fn note(&mut self, told: Told) {
        self.board.note(told.entry());
    }
}

/// Prints who is there, and then each change, until a signal.
pub(crate) fn lines(
    group: &Group,
    events: &NodeEvents,
    json: bool,
    interrupt: &Interrupt,
    out: &mut Output,
) -> Result<(), Failure> {
    let changes = group.view_changes();
    let print = |told: &Told, out: &mut Output| -> Result<(), Failure> {
        if json { out.json(&told.json()) } else { out.line(told.line().as_bytes()) }
    };
    if json {
        out.json(&view_json(changes.start(), group))?;
    } else {
        for row in
            rows(changes.start(), &Rates::default(), group.node()).iter().filter(|row| !row.own)
        {
            out.line(format!("{} is here: {} on {}", row.name, row.role, row.host).as_bytes())?;
        }
    }
    while !interrupt.is_asked() {
        out.flush()?;
        let stopped = |error| Failure::environment(Chain(&error));
        let mut change = changes.recv_timeout(SLICE).map_err(stopped)?;
        while let Some(happened) = change {
            if let Some(told) = Told::change(&happened) {
                print(&told, out)?;
            }
            change = changes.try_recv().map_err(stopped)?;
        }
        while let Some(event) = events.try_recv().map_err(stopped)? {
            print(&Told::node(&event), out)?;
        }
    }
    out.flush()
}
