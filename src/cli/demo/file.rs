//! `qcast demo`: a publisher sends a real file by multicast to three subscribers that lose some of what they
//! receive, and to a fourth that has another secret. The table at the end is checked, not only
//! printed: each of the three must have the very same file, having lost and repaired something on the
//! way, and the fourth must have nothing but the reason.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use qcast::{DeviceSpec, FaultPlan};
use serde_json::{Value, json};

use super::super::clock::now;
use super::super::exit::{Exit, Failure, Outcome};
use super::super::output::{Notes, Output};
use super::super::process::{Process, Stderr};
use super::super::signals::Interrupt;
use super::super::subscribe::hex;
use super::super::transfer::{Hash, Hasher};
use super::super::values;

/// How the file is sent.
#[derive(Debug, clap::Args)]
pub(super) struct FileArgs {
    /// Send this file instead of one made of this program's own binary
    #[arg(long, value_name = "FILE", conflicts_with = "size")]
    file: Option<PathBuf>,

    /// How large the file is made, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 32,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    size: u32,

    /// The share of datagrams that each subscriber loses
    #[arg(long, value_name = "SHARE", default_value = "0.02", value_parser = values::share)]
    loss: f64,

    /// The device
    #[arg(long, short, value_name = "SPEC", env = "QCAST_DEVICE", default_value = "soft")]
    device: DeviceSpec,

    /// What the losses are drawn from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// How long it may take
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = values::seconds)]
    timeout: Duration,

    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// Subscribers that have the key.
const SUBSCRIBERS: usize = 3;

pub(super) fn run(args: &FileArgs) -> Outcome {
    let interrupt = Interrupt::install()?;
    let notes = Notes::default();
    let deadline = now() + args.timeout;
    let folder = Folder::create()?;
    let file = match &args.file {
        Some(file) => file.clone(),
        None => folder.fill(u64::from(args.size) << 20)?,
    };
    let original = Content::of(&file)?;
    if original.size == 0 {
        return Err(Failure::usage(format_args!(
            "{} is empty: there is nothing to lose",
            file.display()
        )));
    }
    notes.say(format_args!(
        "a file of {} bytes, {SUBSCRIBERS} subscribers that lose {} % of all datagrams each, and a \
         fourth with another secret",
        original.size,
        args.loss * 100.0
    ));
    let mut crew = Crew::start(args, &folder, &file, &interrupt, deadline)?;
    let rows = crew.run(&folder, &original, args.loss > 0.0, deadline)?;
    let sent = crew.sent.take().unwrap_or_default();
    drop(crew);

    let passed = rows.iter().all(|row| row.verdict.is_ok());
    let mut out = Output::new();
    if args.json {
        out.json(&json!({
            "event": "demo", "passed": passed, "bytes": original.size,
            "sha256": hex(&original.hash), "loss": args.loss, "sent": sent,
            "subscribers": rows.iter().map(Row::json).collect::<Vec<_>>(),
        }))?;
    } else {
        print(&rows, &mut out)?;
    }
    out.flush()?;
    if !passed {
        return Err(Failure::failed("not all of it is as it should be: see the last column"));
    }
    Ok(Exit::Done)
}

/// The processes.
struct Crew {
    sender: Process,
    receivers: Vec<Process>,
    stranger: Process,
    sent: Option<Value>,
}

impl Crew {
    fn start(
        args: &FileArgs,
        folder: &Folder,
        file: &Path,
        interrupt: &Interrupt,
        deadline: Instant,
    ) -> Result<Self, Failure> {
        let group = format!("qcast demo {}", std::process::id());
        let device = args.device.to_string();
        let ours = format!("ours {group}");
        let domain = (std::process::id() % (1 << 16)).to_string();
        let patience = args.timeout.as_secs_f64().to_string();
        let start = |role: &str, secret: &str, more: &[&str]| {
            let subscriber = role.strip_prefix("subscriber ").and_then(|n| n.parse::<u64>().ok());
            let mut fault = FaultPlan::default();
            if let Some(n) = subscriber {
                fault.path.loss = args.loss;
                fault.seed = args.seed.wrapping_mul(SUBSCRIBERS as u64 + 1).wrapping_add(n);
            }
            let environment = [
                ("QCAST_SECRET", secret.to_owned()),
                (FaultPlan::VARIABLE, fault.to_string()),
                ("QCAST_DEVICE", device.clone()),
            ];
            let mut all = more.to_vec();
            // Other demonstrations on this host use the same names.
            all.extend(["--json", "--group", &group, "--name", role, "--domain", &domain]);
            Process::start(role, &all, &environment, Stderr::Kept, interrupt)
        };
        let receive = |n: usize, secret: &str| {
            let dir = folder.dir(n)?;
            let dir =
                dir.to_str().ok_or_else(|| Failure::failed("the folder's name is not text"))?;
            // The timeout is for one whose parent was killed.
            let receive = ["receive", "--dir", dir, "--timeout", &patience];
            start(&format!("subscriber {n}"), secret, &receive)
        };
        let receivers =
            (1..=SUBSCRIBERS).map(|n| receive(n, &ours)).collect::<Result<Vec<_>, _>>()?;
        let mut stranger = receive(SUBSCRIBERS + 1, "another one")?;
        // It has to be there before there is anything to reject.
        stranger.wait_for("listening", deadline)?;
        let file = file.to_str().ok_or_else(|| Failure::failed("the file's name is not text"))?;
        let wanted = SUBSCRIBERS.to_string();
        let sender = start("publisher", &ours, &["send", file, "--wait-for", &wanted])?;
        Ok(Self { sender, receivers, stranger, sent: None })
    }

    fn run(
        &mut self,
        folder: &Folder,
        original: &Content,
        lossy: bool,
        deadline: Instant,
    ) -> Result<Vec<Row>, Failure> {
        let mut rows = Vec::new();
        for (n, receiver) in (1..).zip(&mut self.receivers) {
            let report = receiver.wait_for("file", deadline)?;
            receiver.wait(deadline)?;
            rows.push(Row::of_receiver(n, report, original, lossy));
        }
        self.sent = Some(self.sender.wait_for("summary", deadline)?);
        self.stranger.terminate();
        // What it was told on the control group comes before its summary.
        let mut named = BTreeSet::new();
        let report = loop {
            match self.stranger.next(deadline)? {
                Some(report) if report["event"] == "summary" => break report,
                Some(report) if report["event"] == "key_mismatch" => {
                    let members = report["members"].as_array().into_iter().flatten();
                    named.extend(members.filter_map(|m| m["name"].as_str()).map(str::to_owned));
                }
                Some(_) => {}
                None => {
                    return Err(Failure::failed("the fourth subscriber ended without a summary"));
                }
            }
        };
        let n = SUBSCRIBERS + 1;
        rows.push(Row::of_stranger(n, report, &named, is_empty(&folder.dir(n)?)));
        Ok(rows)
    }
}

/// What is told of a subscriber.
struct Row {
    name: String,
    report: Value,
    verdict: Result<String, String>,
}

impl Row {
    fn of_receiver(n: usize, report: Value, original: &Content, lossy: bool) -> Self {
        let kept = report["path"].as_str().unwrap_or_default();
        let verdict = match Content::of(Path::new(kept)) {
            Err(failure) => Err(failure.to_string()),
            Ok(content) if content != *original => Err("the file differs".to_owned()),
            Ok(_) if report["sha256"] != hex(&original.hash) => {
                Err("the SHA-256 differs".to_owned())
            }
            Ok(_) if report["lost"] != 0 => Err("something was lost for good".to_owned()),
            Ok(_) if lossy && report["repairs"].as_u64().unwrap_or(0) == 0 => {
                Err("nothing was repaired: was there no loss?".to_owned())
            }
            Ok(_) => Ok("the same file".to_owned()),
        };
        Self { name: format!("subscriber {n}"), report, verdict }
    }

    fn of_stranger(n: usize, report: Value, named: &BTreeSet<String>, empty: bool) -> Self {
        let reason = report["reason"].as_str().map(str::to_owned);
        let verdict = match reason {
            _ if !empty || report["files"] != 0 => Err("it received something".to_owned()),
            Some(reason) if report["rejected_datagrams"].as_u64() > Some(0) => {
                Ok(told(reason, named))
            }
            _ => Err("it does not say why it received nothing".to_owned()),
        };
        Self { name: format!("subscriber {n}"), report, verdict }
    }

    fn json(&self) -> Value {
        let keys = [
            "bytes",
            "sha256",
            "naks",
            "repairs",
            "megabytes_per_second",
            "rejected_datagrams",
            "reason",
        ];
        let mut row = json!({ "name": self.name, "passed": self.verdict.is_ok() });
        for key in keys {
            row[key] = self.report[key].clone();
        }
        if let Err(why) = &self.verdict {
            row["failure"] = why.clone().into();
        }
        row
    }

    /// The columns of the table.
    fn cells(&self) -> [String; 7] {
        let number = |key: &str| self.report[key].as_u64().map_or("-".into(), |n| n.to_string());
        let hash = self.report["sha256"].as_str().map_or("-".into(), |hash| {
            let (beginning, _) = hash.split_at(hash.len().min(8));
            let verdict = if self.verdict.is_ok() { "ok" } else { "WRONG" };
            format!("{beginning}… {verdict}")
        });
        let rate = self.report["megabytes_per_second"].as_f64();
        [
            self.name.clone(),
            self.report["bytes"].as_u64().unwrap_or(0).to_string(),
            hash,
            number("naks"),
            number("repairs"),
            rate.map_or("-".into(), |rate| format!("{rate:.1}")),
            number("rejected_datagrams"),
        ]
    }
}

/// Adds who was named as having another key. One of 256 other keys has the same check value: then nobody is.
fn told(reason: String, named: &BTreeSet<String>) -> String {
    let names: Vec<&str> = named.iter().map(String::as_str).collect();
    match names.split_last() {
        None => reason,
        Some((last, [])) => format!("{reason}; the control group names {last}"),
        Some((last, others)) => {
            format!("{reason}; the control group names {} and {last}", others.join(", "))
        }
    }
}

fn print(rows: &[Row], out: &mut Output) -> Result<(), Failure> {
    let head = ["", "bytes", "SHA-256", "NAKs", "repairs", "MB/s", "rejected"].map(str::to_owned);
    let table: Vec<_> = std::iter::once(head).chain(rows.iter().map(Row::cells)).collect();
    for (i, cells) in table.iter().enumerate() {
        let mut line = String::new();
        for (column, cell) in cells.iter().enumerate() {
            let width = table.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0);
            let padding = " ".repeat(width - cell.chars().count());
            let parts =
                if column == 0 { [cell, padding.as_str()] } else { [padding.as_str(), cell] };
            line += &format!("{}{}  ", parts[0], parts[1]);
        }
        match i.checked_sub(1).and_then(|row| rows.get(row)) {
            Some(Row { verdict: Ok(text), .. }) => line += text,
            Some(Row { verdict: Err(text), .. }) => line += &format!("FAILED: {text}"),
            None => {}
        }
        out.line(line.trim_end().as_bytes())?;
    }
    Ok(())
}

/// A file's size and hash.
#[derive(Debug, PartialEq, Eq)]
struct Content {
    size: u64,
    hash: Hash,
}

impl Content {
    fn of(path: &Path) -> Result<Self, Failure> {
        let read = || -> io::Result<Self> {
            let (mut file, mut hasher) = (File::open(path)?, Hasher::default());
            let (mut size, mut chunk) = (0, vec![0; 1 << 20]);
            loop {
                match file.read(&mut chunk)? {
                    0 => return Ok(Self { size, hash: hasher.finish() }),
                    len => {
                        hasher.update(&chunk[..len]);
                        size += len as u64;
                    }
                }
            }
        };
        read().map_err(|error| {
            Failure::failed(format_args!("cannot read {}: {error}", path.display()))
        })
    }
}

/// The demonstration's own folder, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn create() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("qcast-demo-{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| cannot_create(&path, &error))?;
        Ok(Self(path))
    }

    /// The folder of a subscriber.
    fn dir(&self, n: usize) -> Result<PathBuf, Failure> {
        let path = self.0.join(n.to_string());
        fs::create_dir_all(&path).map_err(|error| cannot_create(&path, &error))?;
        Ok(path)
    }

    /// A file of `size` bytes: this program's binary, again and again.
    fn fill(&self, size: u64) -> Result<PathBuf, Failure> {
        let path = self.0.join("demo.bin");
        let write = || -> io::Result<()> {
            let binary = fs::read(std::env::current_exe()?)?;
            let mut file = File::create(&path)?;
            let mut written = 0;
            while written < size {
                let len = usize::try_from(size - written).unwrap_or(usize::MAX).min(binary.len());
                file.write_all(&binary[..len])?;
                written += len as u64;
            }
            Ok(())
        };
        write().map_err(|error| cannot_create(&path, &error))?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is left to whoever clears the folder of temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn cannot_create(path: &Path, error: &io::Error) -> Failure {
    Failure::failed(format_args!("cannot create {}: {error}", path.display()))
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none())
}
