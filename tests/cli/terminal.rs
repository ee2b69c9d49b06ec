//! The live view, on a terminal of 80 columns and 24 lines.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{PtyMaster, grantpt, posix_openpt, ptsname_r, unlockpt};

use crate::harness::{Run, group, now, qcast};

/// A program on a terminal of its own.
struct Terminal {
    child: Child,
    /// The user's end of it; without it the terminal has hung up.
    user: Option<PtyMaster>,
    screen: vt100::Parser,
    deadline: Instant,
}

const ROWS: u16 = 24;
const COLUMNS: u16 = 80;

impl Terminal {
    fn start(args: &[&str]) -> Self {
        let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let user = posix_openpt(flags).unwrap();
        grantpt(&user).unwrap();
        unlockpt(&user).unwrap();
        let path = ptsname_r(&user).unwrap();
        let end = || {
            let mut options = File::options();
            options.read(true).write(true).custom_flags(OFlag::O_NOCTTY.bits());
            options.open(&path).unwrap()
        };
        let (rows, columns) = (ROWS.to_string(), COLUMNS.to_string());
        let mut size = Command::new("stty");
        size.args(["rows", &rows, "cols", &columns]).stdin(end());
        assert!(size.status().unwrap().success());
        // In a session of its own: the terminal that the tests were started from is not its affair.
        let of = qcast(args);
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(of.get_program()).args(of.get_args());
        for (name, value) in of.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end());
        let child = command.spawn().unwrap();
        let deadline = now() + Duration::from_secs(60);
        let screen = vt100::Parser::new(ROWS, COLUMNS, 0);
        Self { child, user: Some(user), screen, deadline }
    }

    /// Takes in what was drawn meanwhile, or within a moment.
    fn look(&mut self) {
        let Some(user) = &mut self.user else { return thread::sleep(MOMENT) };
        let mut ready = [PollFd::new(user.as_fd(), PollFlags::POLLIN)];
        let patience = PollTimeout::try_from(MOMENT).unwrap();
        if poll(&mut ready, patience) == Ok(1) {
            let mut bytes = [0; 4096];
            // A terminal that nobody draws on any more cannot be read.
            let len = user.read(&mut bytes).unwrap_or(0);
            self.screen.process(&bytes[..len]);
        }
    }

    /// Waits until a line of the screen holds all these texts.
    #[track_caller]
    fn shows(&mut self, texts: &[&str]) {
        loop {
            let screen = self.screen.screen().contents();
            if screen.lines().any(|line| texts.iter().all(|text| line.contains(text))) {
                return;
            }
            assert!(now() < self.deadline, "no line of the screen has {texts:?}:\n{screen}");
            self.look();
        }
    }

    fn press(&mut self, keys: &[u8]) {
        self.user.as_mut().unwrap().write_all(keys).unwrap();
    }

    fn hang_up(&mut self) {
        self.user = None;
    }

    fn end(&mut self) -> ExitStatus {
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(now() < self.deadline, "it did not end");
            self.look();
        }
    }
}

const MOMENT: Duration = Duration::from_millis(20);

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_live_view_is_drawn_and_obeys_its_keys() {
    let group = group("live");
    let name = format!("ann of {group}");
    let _member = Run::listening(&["sub", "-g", &group, "--name", &name]);
    let mut view = Terminal::start(&["members", &group, "--watch"]);
    view.shows(&["MEMBER", "STATE", "PROGRESS"]);
    view.shows(&[&name, " alive ", " nothing yet "]);
    view.shows(&["EVENTS"]);
    view.shows(&[&name, "joined: subscriber on"]);
    view.shows(&["q quit", "s sort (name)"]);
    for order in ["state", "heard", "rtt", "behind", "name"] {
        view.press(b"s");
        view.shows(&["q quit", &format!("s sort ({order})")]);
    }
    // Keys that come together all count.
    view.press(b"sssd");
    view.shows(&["q quit", "s sort (rtt)"]);
    view.shows(&["DETAILS"]);
    view.press(b"q");
    assert_eq!(view.end().code(), Some(0));
    view.look();
    assert!(!view.screen.screen().alternate_screen(), "the screen is given back");
}

/// A terminal that is closed without a word must not leave a program that reads from it for ever.
#[test]
fn the_live_view_ends_with_its_terminal() {
    let group = group("gone");
    let mut watcher = Run::start(&["members", &group, "--watch", "--json"]);
    watcher.event("members");
    let name = format!("viewer of {group}");
    let mut view = Terminal::start(&["members", &group, "--watch", "--name", &name]);
    view.shows(&["MEMBER", "STATE"]);
    view.hang_up();
    view.end();
    // It left in good order: a member that is killed is only missed.
    loop {
        let change = watcher.event("member");
        if change["member"]["name"] == name.as_str() && change["change"] != "joined" {
            assert_eq!(change["change"], "left");
            break;
        }
    }
}
