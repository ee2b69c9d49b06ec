//! The terminal while a view is drawn on it: taken over at the beginning, and given back as it was, whatever
//! ends the view.

use std::fs::File;
use std::io::{self, IsTerminal, Stdout};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

use super::super::exit::Failure;
use super::super::output::Traces;
use super::board::{Board, Key};
use super::draw::draw;

/// The screen; dropping it gives the terminal back.
#[derive(Debug)]
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    /// What keys come from.
    keys: OwnedFd,
}

/// What the user did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    Key(Key),
    Quit,
    /// Nothing that means anything.
    Nothing,
}

/// Whether the terminal is taken over.
static TAKEN: AtomicBool = AtomicBool::new(false);

impl Screen {
    pub(super) fn take() -> Result<Self, Failure> {
        let cannot = |error: io::Error| {
            restore();
            Failure::environment(format_args!("cannot draw on this terminal: {error}"))
        };
        let keys = keyboard().map_err(cannot)?;
        restore_before_panics();
        Traces::hold();
        TAKEN.store(true, Ordering::SeqCst);
        enable_raw_mode().map_err(cannot)?;
        execute!(io::stdout(), EnterAlternateScreen).map_err(cannot)?;
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout())).map_err(cannot)?;
        Ok(Self { terminal, keys })
    }

    pub(super) fn draw(&mut self, board: &Board) -> Result<(), Failure> {
        let drawn = self.terminal.draw(|frame| draw(board, frame));
        drawn.map(|_| ()).map_err(|error| Failure::output(&error))
    }

    /// Waits up to `patience` for keys, and gives those that have come. A terminal that is gone asks for an end.
    pub(super) fn input(&mut self, patience: Duration) -> Vec<Input> {
        // The library that reads keys tries for ever to read from a terminal that has hung up.
        if self.has_hung_up(patience) {
            return vec![Input::Quit];
        }
        let mut inputs = Vec::new();
        loop {
            let read = event::poll(Duration::ZERO);
            match read.and_then(|some| some.then(event::read).transpose()) {
                Ok(Some(event)) => inputs.push(meaning(&event)),
                Ok(None) => return inputs,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return inputs,
                Err(_) => return vec![Input::Quit],
            }
        }
    }

    /// Waits up to `patience` for anything to come from the terminal. Says whether it is gone.
    fn has_hung_up(&self, patience: Duration) -> bool {
        let patience = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
        let mut keys = [PollFd::new(self.keys.as_fd(), PollFlags::POLLIN)];
        match poll(&mut keys, patience) {
            Ok(_) => {
                let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
                keys[0].revents().is_some_and(|came| came.intersects(gone))
            }
            // A changed size, or a signal that asks for an end.
            Err(Errno::EINTR) => false,
            Err(_) => true,
        }
    }
}

/// Where keys come from: standard input, or the terminal itself where that is something else.
fn keyboard() -> io::Result<OwnedFd> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        return stdin.as_fd().try_clone_to_owned();
    }
    Ok(File::open("/dev/tty")?.into())
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal back, if it is taken. Nobody can be told what of it fails.
fn restore() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
        Traces::release();
    }
}

/// What a panic says would be lost with the screen that it is written on.
fn restore_before_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            previous(panic);
        }));
    });
}

fn meaning(event: &Event) -> Input {
    let Event::Key(key) = event else { return Input::Nothing };
    if key.kind == KeyEventKind::Release {
        return Input::Nothing;
    }
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    Input::Key(match key.code {
        // In raw mode these are no signals.
        KeyCode::Char('c' | 'd' | '\\') if control => return Input::Quit,
        _ if control => return Input::Nothing,
        KeyCode::Char('q') | KeyCode::Esc => return Input::Quit,
        KeyCode::Up | KeyCode::Char('k') => Key::Up,
        KeyCode::Down | KeyCode::Char('j') => Key::Down,
        KeyCode::Home | KeyCode::Char('g') => Key::First,
        KeyCode::End | KeyCode::Char('G') => Key::Last,
        KeyCode::PageUp => Key::Back,
        KeyCode::PageDown => Key::Forth,
        KeyCode::Char('s') => Key::Sort,
        KeyCode::Char('d') | KeyCode::Enter => Key::Details,
        KeyCode::Char('c') => Key::Clear,
        _ => return Input::Nothing,
    })
}

#[cfg(test)]
mod tests {
    use ratatui::crossterm::event::KeyEvent;

    use super::*;

    #[test]
    fn keys_mean_what_the_last_line_says() {
        let press = |code, modifiers| meaning(&Event::Key(KeyEvent::new(code, modifiers)));
        let plain = |code| press(code, KeyModifiers::NONE);
        assert_eq!(plain(KeyCode::Char('q')), Input::Quit);
        assert_eq!(press(KeyCode::Char('c'), KeyModifiers::CONTROL), Input::Quit);
        assert_eq!(plain(KeyCode::Char('c')), Input::Key(Key::Clear));
        assert_eq!(plain(KeyCode::Down), Input::Key(Key::Down));
        assert_eq!(plain(KeyCode::PageUp), Input::Key(Key::Back));
        assert_eq!(press(KeyCode::Char('s'), KeyModifiers::CONTROL), Input::Nothing);
        assert_eq!(meaning(&Event::Resize(10, 10)), Input::Nothing);
    }
}
