//! The members of the demonstration: processes, and what each of them reports.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::super::clock::unix;
use super::super::exit::Failure;
use super::super::process::{Process, Stderr};
use super::super::signals::Interrupt;
use super::members::at;

/// All members, and their reports in the order in which they happened.
pub(super) struct Crew {
    group: String,
    devices: Vec<String>,
    interrupt: Interrupt,
    members: Vec<Member>,
    log: Vec<Seen>,
}

struct Member {
    name: String,
    process: Process,
}

/// Something that a member saw.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// When, by the clock that all processes of a host share.
    pub(super) at: Duration,
    /// Empty if it was done by the demonstration itself.
    pub(super) by: String,
    /// One word: `joined`, `left`, `failed` …
    pub(super) change: String,
    pub(super) whom: String,
    /// The other's life, if that is said.
    life: u64,
}

impl Seen {
    fn is_done(&self) -> bool {
        self.by.is_empty()
    }

    pub(super) fn json(&self) -> Value {
        if self.is_done() {
            return json!({ "event": "done", "time": self.at.as_secs_f64(), "what": self.change });
        }
        json!({
            "event": "seen", "time": self.at.as_secs_f64(), "by": self.by, "change": self.change,
            "whom": self.whom,
        })
    }
}

impl Crew {
    pub(super) fn new(group: &str, devices: Vec<String>, interrupt: &Interrupt) -> Self {
        let (members, log) = (Vec::new(), Vec::new());
        Self { group: group.into(), devices, interrupt: interrupt.clone(), members, log }
    }

    /// Starts a member, or starts it again. It is one once it reports that it listens.
    pub(super) fn start(&mut self, name: &str, secret: &str) -> Result<(), Failure> {
        let device = &self.devices[self.members.len() % self.devices.len()];
        let environment = [("QCAST_SECRET", secret.to_owned()), ("QCAST_DEVICE", device.clone())];
        let meta = format!("role={name}");
        let args = ["join", &self.group, "--name", name, "--meta", &meta, "--until-eof", "--json"];
        let process = Process::start(name, &args, &environment, Stderr::Kept, &self.interrupt)?;
        self.members.retain(|member| member.name != name);
        self.members.push(Member { name: name.into(), process });
        Ok(())
    }

    /// Waits until a member that was started has joined.
    pub(super) fn wait_started(&mut self, name: &str, deadline: Instant) -> Result<(), Failure> {
        let member = self.members.iter_mut().find(|member| member.name == name);
        let member = member.ok_or_else(|| Failure::failed("no such member"))?;
        member.process.wait_for("listening", deadline)?;
        Ok(())
    }

    pub(super) fn signal(&self, name: &str, signal: Signal) {
        if let Some(member) = self.members.iter().find(|member| member.name == name) {
            member.process.signal(signal);
        }
    }

    /// Waits for the end of a member.
    pub(super) fn wait_ended(&mut self, name: &str, deadline: Instant) -> Result<(), Failure> {
        self.read()?;
        if let Some(place) = self.members.iter().position(|member| member.name == name) {
            let mut member = self.members.remove(place);
            member.process.wait(deadline)?;
        }
        Ok(())
    }

    /// Something that is done to the members, now.
    pub(super) fn done(&mut self, what: &str) {
        self.log.push(Seen {
            at: unix(),
            by: String::new(),
            change: what.into(),
            whom: String::new(),
            life: 0,
        });
    }

    /// Takes in what members have reported by now.
    pub(super) fn read(&mut self) -> Result<(), Failure> {
        for member in &mut self.members {
            while let Some(report) = member.process.try_next()? {
                note(&member.name, &report, &mut self.log);
            }
        }
        self.log.sort_by_key(|seen| seen.at);
        Ok(())
    }

    pub(super) fn log(&self) -> &[Seen] {
        &self.log
    }

    /// The log, an event of one member in one line, with how many saw it and when the first and the last did.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut told: Vec<(&Seen, &Seen, usize)> = Vec::new();
        for seen in &self.log {
            let same = |(first, last, _): &&mut (&Seen, &Seen, usize)| {
                first.change == seen.change
                    && first.whom == seen.whom
                    && first.life == seen.life
                    && seen.at.saturating_sub(last.at) < APART
            };
            match told.iter_mut().rev().find(same) {
                Some((_, last, count)) => (*last, *count) = (seen, *count + 1),
                None => told.push((seen, seen, 1)),
            }
        }
        let line = |(first, last, count): &(&Seen, &Seen, usize)| {
            if first.is_done() {
                return format!("{}  {}", at(first.at), first.change);
            }
            let after = last.at.saturating_sub(first.at).as_millis();
            let by = match count {
                1 => format!("(seen by {})", first.by),
                n => format!("(seen by {n}, the last {after} ms after the first)"),
            };
            format!("{}    {} {} {by}", at(first.at), first.whom, first.change)
        };
        told.iter().map(line).collect()
    }

    /// The log, a line for each member that saw something.
    pub(super) fn every_line(&self) -> Vec<String> {
        let line = |seen: &Seen| {
            if seen.is_done() {
                return format!("{}  {}", at(seen.at), seen.change);
            }
            format!("{}    {}: {} {}", at(seen.at), seen.by, seen.whom, seen.change)
        };
        self.log.iter().map(line).collect()
    }
}

/// What comes so long after is another event.
const APART: Duration = Duration::from_secs(3);

/// Takes a report of `by` into the log.
fn note(by: &str, report: &Value, log: &mut Vec<Seen>) {
    let seconds = report["time"].as_f64().unwrap_or(0.0);
    let at = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let mut add = |change: &str, whom: &Value, life: &Value| {
        log.push(Seen {
            at,
            by: by.into(),
            change: change.into(),
            whom: whom.as_str().unwrap_or("?").into(),
            life: life.as_u64().unwrap_or(0),
        });
    };
    match report["event"].as_str() {
        // Who was there before it looked.
        Some("members") => {
            for member in report["members"].as_array().into_iter().flatten() {
                if member["own"] != true {
                    add("joined", &member["name"], &member["incarnation"]);
                }
            }
        }
        Some("member") => {
            let member = &report["member"];
            add(report["change"].as_str().unwrap_or("?"), &member["name"], &member["incarnation"]);
        }
        Some(change @ "key_mismatch") => {
            for member in report["members"].as_array().into_iter().flatten() {
                add(change, &member["name"], &Value::Null);
            }
        }
        Some(change @ ("mismatch_over" | "path_mismatch")) => {
            add(change, &report["member"]["name"], &Value::Null);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_become_a_log() {
        let mut log = Vec::new();
        let start = json!({ "event": "members", "time": 10.0, "members": [
            { "name": "a", "own": true, "incarnation": 1 }, { "name": "b", "own": false, "incarnation": 1 },
        ]});
        let left = json!({ "event": "member", "change": "left", "time": 12.5,
            "member": { "name": "b", "incarnation": 1 } });
        let key = json!({ "event": "key_mismatch", "time": 13.0, "members": [{ "name": "s" }] });
        for report in [start, left, key, json!({ "event": "listening" }), json!(7)] {
            note("a", &report, &mut log);
        }
        let said: Vec<_> = log.iter().map(|s| format!("{} {}", s.whom, s.change)).collect();
        assert_eq!(said, ["b joined", "b left", "s key_mismatch"]);
        assert_eq!(log[1].at, Duration::from_millis(12_500));
    }
}
