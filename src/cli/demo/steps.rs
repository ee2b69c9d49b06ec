//! What happens to the members of the demonstration, and how it is judged.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::super::clock::{now, unix};
use super::super::exit::Failure;
use super::crew::{Crew, Seen};
use super::members::Say;

/// One thing that happened, and who saw it.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) title: String,
    pub(super) seen: usize,
    pub(super) wanted: usize,
    /// How long the last one took to see it.
    pub(super) slowest: Option<Duration>,
    pub(super) bound: Option<Duration>,
    pub(super) failure: Option<String>,
}

impl Row {
    pub(super) fn passed(&self) -> bool {
        self.failure.is_none()
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "event": "step", "title": self.title, "seen": self.seen, "wanted": self.wanted,
            "slowest_seconds": self.slowest.map(|time| time.as_secs_f64()),
            "bound_seconds": self.bound.map(|time| time.as_secs_f64()),
            "passed": self.passed(), "failure": self.failure,
        })
    }
}

/// What is to be seen.
struct Wanted {
    title: String,
    /// The change, who is to see it, and whom it is about.
    change: &'static str,
    pairs: Vec<(String, String)>,
    /// Since when it counts.
    since: Duration,
    /// From when on the time is measured.
    from: Duration,
    bound: Duration,
}

const JOIN: Duration = Duration::from_secs(2);
const FAILURE: Duration = Duration::from_secs(5);
const LEAVE: Duration = Duration::from_secs(1);
const WRONG_KEY: Duration = Duration::from_secs(2);

/// What comes later than its bound is waited for so long, so that it can be said how late it is.
const GRACE: Duration = Duration::from_secs(3);

/// How long processes may take to start and to end.
const PROCESSES: Duration = Duration::from_secs(20);

/// Plays all of it.
pub(super) fn play(
    crew: &mut Crew,
    members: u16,
    allow: u32,
    secrets: &(String, String),
    say: &Say,
) -> Result<Vec<Row>, Failure> {
    let mut stage = Stage { crew, say, allow, begun: unix(), rows: Vec::new() };
    let names: Vec<_> = (1..=members).map(|n| format!("member-{n}")).collect();
    let [frozen, killed, leaver] = [&names[1], &names[2], &names[3]];
    let others = |whom: &[&String]| -> Vec<&String> {
        names.iter().filter(|name| !whom.contains(name)).collect()
    };

    stage.say(format!("{members} members start"));
    // A few at a time: a machine that starts dozens of processes at once does nothing else meanwhile.
    for some in names.chunks(4) {
        for name in some {
            stage.crew.start(name, &secrets.0)?;
        }
        for name in some {
            stage.crew.wait_started(name, now() + PROCESSES * allow)?;
        }
    }
    let everybody: Vec<_> = names.iter().collect();
    let begun = stage.begun;
    let all =
        stage.wanted(format!("{members} members start"), "joined", &everybody, &everybody, JOIN);
    stage.wait(vec![Wanted { since: begun, ..all }])?;

    stage.say(format!("{frozen} is frozen (SIGSTOP), {killed} is killed (SIGKILL)"));
    let witnesses = others(&[frozen, killed]);
    let freeze = format!("{frozen} is frozen (SIGSTOP): failed");
    let freeze = stage.wanted(freeze, "failed", &witnesses, &[frozen], FAILURE);
    stage.crew.signal(frozen, Signal::SIGSTOP);
    let kill = format!("{killed} is killed (SIGKILL): failed");
    let kill = stage.wanted(kill, "failed", &witnesses, &[killed], FAILURE);
    stage.crew.signal(killed, Signal::SIGKILL);
    stage.wait(vec![freeze, kill])?;

    stage.say(format!("{frozen} goes on (SIGCONT)"));
    let back = format!("{frozen} goes on (SIGCONT): joined");
    let back = stage.wanted(back, "joined", &witnesses, &[frozen], JOIN);
    stage.crew.signal(frozen, Signal::SIGCONT);
    stage.wait(vec![back])?;

    stage.say(format!("{killed} starts again"));
    stage.crew.wait_ended(killed, now() + PROCESSES * allow)?;
    let before = unix();
    stage.crew.start(killed, &secrets.0)?;
    stage.crew.wait_started(killed, now() + PROCESSES * allow)?;
    let again = format!("{killed} starts again: joined");
    let witnesses = others(&[killed]);
    let again = stage.wanted(again, "joined", &witnesses, &[killed], JOIN);
    let title = format!("{killed} starts again: sees the others");
    let sees = stage.wanted(title, "joined", &[killed], &witnesses, JOIN);
    stage.wait(vec![Wanted { since: before, ..again }, Wanted { since: before, ..sees }])?;

    stage.say(format!("{leaver} leaves (SIGTERM)"));
    let leave = format!("{leaver} leaves (SIGTERM): left");
    let leave = stage.wanted(leave, "left", &others(&[leaver]), &[leaver], LEAVE);
    stage.crew.signal(leaver, Signal::SIGTERM);
    stage.wait(vec![leave])?;
    stage.crew.wait_ended(leaver, now() + PROCESSES * allow)?;

    let inside = others(&[leaver]);
    let stranger = "stranger".to_owned();
    stage.say(format!("{stranger} comes with another key"));
    let before = unix();
    stage.crew.start(&stranger, &secrets.1)?;
    stage.crew.wait_started(&stranger, now() + PROCESSES * allow)?;
    let title = format!("{stranger} has another key: key_mismatch");
    let named = stage.wanted(title, "key_mismatch", &inside, &[&stranger], WRONG_KEY);
    let title = format!("{stranger} names the others");
    let names = stage.wanted(title, "key_mismatch", &[&stranger], &inside, WRONG_KEY);
    stage.wait(vec![Wanted { since: before, ..named }, Wanted { since: before, ..names }])?;

    let rows = stage.rows;
    let nothing_else = nothing_else(crew.log(), &[frozen, killed], &[leaver, killed]);
    Ok(rows.into_iter().chain([nothing_else]).collect())
}

struct Stage<'a> {
    crew: &'a mut Crew,
    say: &'a Say,
    allow: u32,
    begun: Duration,
    rows: Vec<Row>,
}

impl Stage<'_> {
    fn say(&mut self, text: String) {
        self.crew.done(&text);
        // Nobody listens any more when the user has quit.
        let _ = self.say.send(text);
    }

    /// That everyone of `by` sees everyone of `whom`, but not itself, from now on.
    fn wanted(
        &self,
        title: String,
        change: &'static str,
        by: &[&String],
        whom: &[&String],
        bound: Duration,
    ) -> Wanted {
        let pairs = by.iter().flat_map(|by| whom.iter().map(move |whom| (*by, *whom)));
        let pairs = pairs.filter(|(by, whom)| by != whom);
        let pairs = pairs.map(|(by, whom)| (by.clone(), whom.clone())).collect();
        let now = unix();
        Wanted { title, change, pairs, since: now, from: now, bound: bound * self.allow }
    }

    /// Waits until all of it was seen, or it is much too late, and judges.
    fn wait(&mut self, wanted: Vec<Wanted>) -> Result<(), Failure> {
        let longest = wanted.iter().map(|wanted| wanted.bound).max().unwrap_or_default();
        let deadline = now() + longest + GRACE * self.allow;
        loop {
            self.crew.read()?;
            let judged: Vec<_> =
                wanted.iter().map(|wanted| judge(wanted, self.crew.log())).collect();
            if now() >= deadline || judged.iter().all(|row| row.seen == row.wanted) {
                self.rows.extend(judged);
                return Ok(());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn judge(wanted: &Wanted, log: &[Seen]) -> Row {
    let Wanted { title, change, pairs, since, from, bound } = wanted;
    let (mut slowest, mut blind) = (None, Vec::new());
    // A member has seen it when it has seen it of all.
    let mut by: BTreeSet<&String> = pairs.iter().map(|(by, _)| by).collect();
    let wanted = by.len();
    for (witness, whom) in pairs {
        let seen = log.iter().find(|seen| {
            seen.by == *witness && seen.whom == *whom && seen.change == *change && seen.at >= *since
        });
        match seen {
            Some(seen) => slowest = slowest.max(Some(seen.at.saturating_sub(*from))),
            None => {
                by.remove(witness);
                blind.push(format!("{witness} did not see {whom}"));
            }
        }
    }
    let failure = match slowest {
        _ if !blind.is_empty() => {
            let more = if blind.len() > 3 { ", …" } else { "" };
            blind.truncate(3);
            Some(format!("{}{more}", blind.join(", ")))
        }
        Some(slowest) if slowest > *bound => Some("too late".to_owned()),
        _ => None,
    };
    Row { title: title.clone(), seen: by.len(), wanted, slowest, bound: Some(*bound), failure }
}

/// That nobody was taken for failed, or for gone, but those that were.
fn nothing_else(log: &[Seen], failed: &[&String], left: &[&String]) -> Row {
    let false_alarm = |seen: &&Seen| match seen.change.as_str() {
        "failed" => !failed.contains(&&seen.whom),
        "left" => !left.contains(&&seen.whom),
        "conflict" => true,
        _ => false,
    };
    let alarms: Vec<_> = log.iter().filter(false_alarm).collect();
    let failure = alarms.first().map(|seen| {
        format!(
            "{} times, first: {} told that {} {}",
            alarms.len(),
            seen.by,
            seen.whom,
            seen.change
        )
    });
    let title = "nobody else failed or left".to_owned();
    Row { title, seen: alarms.len(), wanted: 0, slowest: None, bound: None, failure }
}
