//! `qcast browse` and `qcast resolve`: the services that others announce.

use std::collections::BTreeMap;
use std::time::Duration;

use qcast::{Browser, FoundService, Node, Progress, ResolveError, ServiceEvent};
use serde_json::{Value, json};

use super::clock::now;
use super::exit::{Chain, Exit, Failure, Outcome};
use super::happenings::Happenings;
use super::listen::Teller;
use super::options::NodeOptions;
use super::output::{Output, Seconds};
use super::shown::{pairs, shown};
use super::signals::Interrupt;
use super::values;

/// Lists the services of a type that others announce.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without --watch it looks once, for --timeout, and prints a table; exit code 1 says that
there was none. With --watch it prints a line for each service that comes (+), changes
(~) or goes (-), until Ctrl-C or --timeout.

Examples:
  qcast browse http
  qcast browse '*' --json                every type, for scripts
  qcast browse http --watch --device soft:eth0")]
pub(crate) struct BrowseArgs {
    /// The type; '*' for all
    #[arg(value_name = "TYPE")]
    kind: String,

    /// Go on, and tell what comes, changes and goes
    #[arg(long)]
    watch: bool,

    /// How long to look [default: 1, or with --watch until Ctrl-C]
    #[arg(long, value_name = "SECONDS", value_parser = values::seconds)]
    timeout: Option<Duration>,

    /// Print JSON objects, one a line
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    node: NodeOptions,
}

/// Finds a service by its name.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Prints ADDRESS PORT and the metadata as KEY=VALUE, or with --json an object. Exit code 1
says that nobody announces it.

Examples:
  qcast resolve 'status page'
  qcast resolve job-4711 --type mpi --timeout 10 --json")]
pub(crate) struct ResolveArgs {
    /// The service's name
    #[arg(value_name = "NAME")]
    service: String,

    /// Its type [default: any]
    #[arg(long = "type", value_name = "TYPE", default_value = "", hide_default_value = true)]
    kind: String,

    /// How long to look
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = values::seconds)]
    timeout: Duration,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    node: NodeOptions,
}

/// How long one look lasts when nothing else is said.
const LOOK: Duration = Duration::from_secs(1);

/// How long a wait may last before signals are looked at.
const SLICE: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &BrowseArgs) -> Outcome {
    let interrupt = Interrupt::install()?;
    args.node.needs_control("browse")?;
    let node = args.node.open(Progress::Thread)?;
    let (happenings, teller, mut out) =
        (Happenings::of(&node), Teller::new(args.json), Output::new());
    let kind = if args.kind == "*" { "" } else { &args.kind };
    let browser = node.browse(kind).map_err(|error| Failure::usage(Chain(&error)))?;
    let limit = args.timeout.or((!args.watch).then_some(LOOK));
    let mut found = BTreeMap::new();
    let start = now();
    while !interrupt.is_asked() {
        let left = limit.map_or(SLICE, |limit| limit.saturating_sub(start.elapsed()).min(SLICE));
        if left.is_zero() {
            break;
        }
        happenings.tell(&mut out, &teller)?;
        let Some(event) = next(&browser, left)? else { continue };
        if args.watch {
            watch(&event, args.json, &mut out)?;
        } else {
            note(event, &mut found);
        }
    }
    if args.watch {
        out.flush()?;
        return Ok(Exit::Done);
    }
    if found.is_empty() {
        return Err(Failure::failed(format_args!(
            "no service {}was found in {}; {}",
            if kind.is_empty() { String::new() } else { format!("of type {kind:?} ") },
            Seconds(start.elapsed()),
            NodeOptions::reach(&node)
        )));
    }
    list(&found, args.json, &mut out)?;
    Ok(Exit::Done)
}

fn next(browser: &Browser, patience: Duration) -> Result<Option<ServiceEvent>, Failure> {
    browser.recv_timeout(patience).map_err(|error| Failure::environment(Chain(&error)))
}

/// By type and name.
type Services = BTreeMap<(String, String), FoundService>;

fn note(event: ServiceEvent, services: &mut Services) {
    let key = |found: &FoundService| (found.service.kind.clone(), found.service.name.clone());
    match event {
        ServiceEvent::Added(found) | ServiceEvent::Updated(found) => {
            services.insert(key(&found), found);
        }
        ServiceEvent::Removed(found) => {
            services.remove(&key(&found));
        }
        _ => {}
    }
}

fn list(services: &Services, json: bool, out: &mut Output) -> Result<(), Failure> {
    if json {
        services.values().try_for_each(|found| out.json(&object(found)))?;
        return out.flush();
    }
    let head = ["TYPE", "NAME", "ADDRESS", "PORT", "NODE", "METADATA"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(head).chain(services.values().map(cells)).collect();
    for cells in &rows {
        let mut line = String::new();
        for (column, cell) in cells.iter().enumerate() {
            let width = rows.iter().map(|row| width(&row[column])).max().unwrap_or(0);
            line += cell;
            line.extend(std::iter::repeat_n(' ', width + 2 - self::width(cell)));
        }
        out.line(line.trim_end().as_bytes())?;
    }
    out.flush()
}

/// Columns that a text takes on a terminal.
pub(super) fn width(text: &str) -> usize {
    ratatui::text::Span::raw(text).width()
}

fn watch(event: &ServiceEvent, json: bool, out: &mut Output) -> Result<(), Failure> {
    let (kind, sign, found) = match event {
        ServiceEvent::Added(found) => ("added", '+', found),
        ServiceEvent::Updated(found) => ("updated", '~', found),
        ServiceEvent::Removed(found) => ("removed", '-', found),
        ServiceEvent::Missed(events) => {
            let text = format!("! {events} changes came too fast to be told; look anew");
            if json {
                out.json(&json!({ "event": "missed", "events": events }))?;
            } else {
                out.line(text.as_bytes())?;
            }
            return out.flush();
        }
        _ => return Ok(()),
    };
    if json {
        let mut object = object(found);
        object["event"] = kind.into();
        out.json(&object)?;
    } else {
        let [kind, name, address, port, node, metadata] = cells(found);
        let line = format!("{sign} {kind} '{name}' {address} {port} on {node} {metadata}");
        out.line(line.trim_end().as_bytes())?;
    }
    out.flush()
}

fn cells(found: &FoundService) -> [String; 6] {
    let service = &found.service;
    [
        shown(&service.kind).into_owned(),
        shown(&service.name).into_owned(),
        service.address.map_or_else(String::new, |address| address.to_string()),
        service.port.to_string(),
        shown(&found.node_name).into_owned(),
        pairs(&service.metadata),
    ]
}

fn object(found: &FoundService) -> Value {
    let service = &found.service;
    let mut metadata = serde_json::Map::new();
    for (key, value) in &service.metadata {
        // Of two with one key the first counts, as for Service::value.
        metadata.entry(key.clone()).or_insert_with(|| value.clone().into());
    }
    json!({
        "type": service.kind, "name": service.name, "address": service.address, "port": service.port,
        "metadata": metadata, "ttl_seconds": service.ttl.as_secs_f64(), "node": found.node_name,
        "node_id": found.owner.node.to_string(),
    })
}

pub(crate) fn resolve(args: &ResolveArgs) -> Outcome {
    args.node.needs_control("resolve")?;
    let node = args.node.open(Progress::Thread)?;
    let found = find(&node, args)?;
    let mut out = Output::new();
    if args.json {
        out.json(&object(&found))?;
    } else {
        let [_, _, address, port, _, metadata] = cells(&found);
        out.line(format!("{address} {port} {metadata}").trim_end().as_bytes())?;
    }
    out.flush()?;
    Ok(Exit::Done)
}

fn find(node: &Node, args: &ResolveArgs) -> Result<FoundService, Failure> {
    node.resolve_of(&args.kind, &args.service, args.timeout).map_err(|error| match &error {
        ResolveError::Browse(_) => Failure::usage(Chain(&error)),
        ResolveError::Stopped(_) => Failure::environment(Chain(&error)),
        _ => Failure::failed(format_args!("{error}; {}", NodeOptions::reach(node))),
    })
}
