//! `qcast announce`: a service that others find, until it is interrupted.

use std::net::IpAddr;
use std::time::Duration;

use qcast::{Announcement, AnnouncementEvent, Progress, Service};
use serde_json::json;

use super::clock::{Every, now};
use super::exit::{Chain, Exit, Failure, Outcome};
use super::happenings::Happenings;
use super::listen::Teller;
use super::options::NodeOptions;
use super::output::Output;
use super::signals::Interrupt;
use super::values;

/// Announces a service to all nodes of the network, until Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Nothing of the service itself runs here: only the word that it is there. The name may
become \"NAME (2)\" if another service of this type has it. SIGINT and SIGTERM withdraw
the service; if the process is killed, others find it gone after --ttl.

Examples:
  qcast announce http 'status page' --port 8080 --meta path=/status
  qcast announce mpi job-4711 --port 7000 --address 10.0.0.7 --ttl 10
  qcast browse http                      (on any node)")]
pub(crate) struct AnnounceArgs {
    /// The service's type: those who browse for it find the service
    #[arg(value_name = "TYPE")]
    kind: String,

    /// The service's name
    #[arg(value_name = "NAME")]
    service: String,

    /// The port that it listens on
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,

    /// The address that it is reached at [default: the device's]
    #[arg(long, value_name = "ADDR")]
    address: Option<IpAddr>,

    /// What else is to be known, as KEY=VALUE; again for more
    #[arg(long, value_name = "KEY=VALUE", value_parser = values::pair)]
    meta: Vec<(String, String)>,

    /// For how long others believe in it without a word of it, 1 to 86400
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = values::seconds)]
    ttl: Duration,

    /// Print events as JSON objects, one a line
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    node: NodeOptions,
}

/// How long a wait may last before signals are looked at.
const SLICE: Duration = Duration::from_millis(50);

/// After this time without a name, that is said.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) fn run(args: &AnnounceArgs) -> Outcome {
    let interrupt = Interrupt::install()?;
    let mut service = Service::new(&args.kind, &args.service, args.port).ttl(args.ttl);
    service.address = args.address;
    service.metadata.clone_from(&args.meta);
    service.check().map_err(|error| Failure::usage(Chain(&error)))?;
    args.node.needs_control("announce")?;
    let node = args.node.open(Progress::Thread)?;
    let (happenings, teller, mut out) =
        (Happenings::of(&node), Teller::new(args.json), Output::new());
    let address = service.address.unwrap_or_else(|| node.device().gid.ip());
    let announcement =
        node.announce(service).map_err(|error| Failure::because("cannot announce", &error))?;
    let (start, mut patience) = (now(), Every::new(PATIENCE));
    let mut told = false;
    while !interrupt.is_asked() {
        let event = announcement
            .recv_timeout(SLICE)
            .map_err(|error| Failure::environment(Chain(&error)))?;
        happenings.tell(&mut out, &teller)?;
        match event {
            Some(AnnouncementEvent::Refused) => {
                return Err(Failure::failed(format_args!(
                    "no name like {:?} is free; give another",
                    args.service
                )));
            }
            Some(event) => {
                told |= matches!(event, AnnouncementEvent::Announced(_));
                tell(args, address, &event, &teller, &mut out)?;
            }
            None if !told && patience.is_due() => {
                let seconds = start.elapsed().as_secs();
                teller.tell(
                    &mut out,
                    || json!({ "event": "waiting", "seconds": seconds }),
                    || {
                        format!(
                            "not announced yet after {seconds} s: the control group is not joined"
                        )
                    },
                )?;
            }
            None => {}
        }
    }
    let name = announcement.name();
    Announcement::withdraw(announcement);
    teller.tell(
        &mut out,
        || json!({ "event": "withdrawn", "type": args.kind, "name": name }),
        || "withdrawn".into(),
    )?;
    out.flush()?;
    Ok(Exit::Done)
}

fn tell(
    args: &AnnounceArgs,
    address: IpAddr,
    event: &AnnouncementEvent,
    teller: &Teller,
    out: &mut Output,
) -> Result<(), Failure> {
    let (kind, port) = (&args.kind, args.port);
    match event {
        AnnouncementEvent::Announced(name) => teller.tell(
            out,
            || {
                json!({
                    "event": "announced", "type": kind, "name": name, "address": address, "port": port,
                    "ttl_seconds": args.ttl.as_secs_f64(),
                })
            },
            || format!("{kind} service '{name}' is announced at {address} port {port}"),
        ),
        AnnouncementEvent::Renamed { from, to, by } => teller.tell(
            out,
            || json!({ "event": "renamed", "from": from, "to": to, "by": by.address.gid.ip() }),
            || format!("{} has the name '{from}'; trying '{to}'", by.address.gid.ip()),
        ),
        AnnouncementEvent::Contested { by } => teller.tell(
            out,
            || json!({ "event": "contested", "by": by.address.gid.ip() }),
            || format!("{} wants the same name, and takes another", by.address.gid.ip()),
        ),
        _ => Ok(()),
    }
}
