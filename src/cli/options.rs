//! Options that commands share: which device, which group, which key.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use qcast::{DeviceSpec, FaultPlan, Group, JoinError, Node, NodeBuilder, Progress, QKey};

use super::exit::{Chain, Failure};
use super::output::Traces;
use super::values;

/// Which device, and who this is.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Node")]
pub(crate) struct NodeOptions {
    /// The device.
    #[arg(
        long,
        short,
        value_name = "SPEC",
        env = "QCAST_DEVICE",
        default_value = "soft",
        help = "The device: soft (loopback), soft:IFACE, soft:ADDR, verbs:NAME[/PORT][@GIDINDEX][?qp=cm][,join=ip] or auto"
    )]
    pub(crate) device: DeviceSpec,

    /// The name that peers show [default: the host's name and the process's number]
    #[arg(long, value_parser = values::name)]
    pub(crate) name: Option<String>,

    /// Keeps deployments that share a network apart: only nodes of the same domain hear each other
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) domain: u16,

    /// Faults to inject, such as loss=0.02,reorder=0.01,seed=7: each datagram that comes in has this luck
    #[arg(long, value_name = "FAULTS", env = FaultPlan::VARIABLE)]
    pub(crate) fault: Option<FaultPlan>,

    /// Appends every state change of a queue pair to this file, as one JSON object a line
    #[arg(long, value_name = "FILE")]
    pub(crate) journal: Option<PathBuf>,

    /// Stay out of the control group: other keys than this one's are not told of, and services not found
    #[arg(long)]
    pub(crate) no_control: bool,
}

/// Receives of an observer: what some thousand members say in a second.
const OBSERVER_SRQ: usize = 1024;

/// It follows no stream.
const OBSERVER_WINDOW: usize = 16;

impl NodeOptions {
    /// Refuses `--no-control` to a command that is nothing without it.
    pub(crate) fn needs_control(&self, command: &str) -> Result<(), Failure> {
        if self.no_control {
            return Err(Failure::usage(format_args!(
                "qcast {command} goes by the control group: leave --no-control out"
            )));
        }
        Ok(())
    }

    /// Whom a node hears, for one that heard nobody.
    pub(crate) fn reach(node: &Node) -> String {
        let device = node.device();
        if device.gid.ip().is_loopback() {
            let name = &device.name;
            format!(
                "{name} is this host alone, and --device soft:IFACE (here and there) reaches others"
            )
        } else {
            "the same network and --domain are heard, and no others".into()
        }
    }

    /// Opens the node.
    pub(crate) fn open(&self, progress: Progress) -> Result<Node, Failure> {
        self.open_as(self.builder().progress(progress))
    }

    /// Opens a node that only sees who is there: it needs room for no streams.
    pub(crate) fn open_observer(&self) -> Result<Node, Failure> {
        self.open_as(self.builder().srq_depth(OBSERVER_SRQ).receive_window(OBSERVER_WINDOW))
    }

    fn builder(&self) -> NodeBuilder {
        let mut builder = Node::builder()
            .device(self.device.clone())
            .domain(self.domain)
            .fault(self.fault)
            .control(!self.no_control);
        if let Some(name) = &self.name {
            builder = builder.name(name.clone());
        }
        if let Some(journal) = &self.journal {
            builder = builder.journal(journal);
        }
        builder
    }

    fn open_as(&self, builder: NodeBuilder) -> Result<Node, Failure> {
        builder.open().map_err(|error| {
            Failure::environment(format_args!(
                "cannot open device {}: {}",
                self.device,
                Chain(&error)
            ))
        })
    }
}

/// Which group, and its key.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Group")]
pub(crate) struct GroupOptions {
    /// The group's name: all who give the same name (and key) hear each other
    #[arg(long, short, value_name = "NAME", env = GROUP_VARIABLE, value_parser = values::group)]
    pub(crate) group: String,

    #[command(flatten)]
    keys: KeyOptions,
}

/// Which group, for commands that are about a group itself.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Group")]
pub(crate) struct NamedGroup {
    /// The group's name: all who give the same name (and key) are members of one group
    #[arg(value_name = "GROUP", env = GROUP_VARIABLE, value_parser = values::group)]
    pub(crate) group: String,

    #[command(flatten)]
    keys: KeyOptions,
}

/// A group's key and address.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Group")]
struct KeyOptions {
    /// The group's QKey, a number from 0x1 to 0x7fffffff [default: derived from the group's name]
    #[arg(long, value_name = "KEY", conflicts_with = "secret_file")]
    qkey: Option<QKey>,

    /// Derive the QKey from the group's name and the secret in this file (its last line end does not
    /// count); QCAST_SECRET holds the secret itself
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,

    /// The group's multicast address [default: derived from the group's name, in 239.192.0.0/14]
    #[arg(long, value_name = "ADDR", value_parser = values::mgid)]
    mgid: Option<IpAddr>,
}

/// Where the group's name may stand.
const GROUP_VARIABLE: &str = "QCAST_GROUP";

/// Where the secret may stand when neither `--qkey` nor `--secret-file` is given.
const SECRET_VARIABLE: &str = "QCAST_SECRET";

/// More than anybody needs for a secret; a wrong file is often larger.
const MAX_SECRET: u64 = 64 << 10;

impl GroupOptions {
    /// The key, read before any device is opened.
    pub(crate) fn key(&self) -> Result<Key, Failure> {
        self.keys.key()
    }

    /// Joins the group.
    pub(crate) fn join(&self, node: &Node, key: &Key) -> Result<Group, Failure> {
        self.keys.join(node, &self.group, key, &[])
    }
}

impl NamedGroup {
    /// The key, read before any device is opened.
    pub(crate) fn key(&self) -> Result<Key, Failure> {
        self.keys.key()
    }

    /// Joins the group, with this for the others to know.
    pub(crate) fn join(
        &self,
        node: &Node,
        key: &Key,
        metadata: &[(String, String)],
    ) -> Result<Group, Failure> {
        self.keys.join(node, &self.group, key, metadata)
    }
}

impl KeyOptions {
    fn key(&self) -> Result<Key, Failure> {
        Key::of(self.qkey, self.secret_file.as_deref())
    }

    fn join(
        &self,
        node: &Node,
        group: &str,
        key: &Key,
        metadata: &[(String, String)],
    ) -> Result<Group, Failure> {
        let mut builder = node.group(group);
        match key {
            Key::Default => {}
            Key::QKey(qkey) => builder = builder.qkey(*qkey),
            Key::Secret(secret) => builder = builder.secret(secret.clone()),
        }
        if let Some(mgid) = self.mgid {
            builder = builder.mgid(mgid);
        }
        for (key, value) in metadata {
            builder = builder.metadata(key, value);
        }
        builder.join().map_err(|error| {
            if let JoinError::Metadata(error) = &error {
                return Failure::usage(format_args!("--meta: {error}"));
            }
            let derived_is_ipv4 = self.mgid.is_none() && node.device().gid.ip().is_ipv6();
            let hint = if derived_is_ipv4 { "; give an IPv6 --mgid, such as ff15::7" } else { "" };
            Failure::environment(format_args!("cannot join group {group}: {}{hint}", Chain(&error)))
        })
    }
}

/// Where a group's QKey comes from.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Key {
    /// The group's name alone.
    Default,
    /// It was given.
    QKey(QKey),
    /// The group's name and this secret.
    Secret(Vec<u8>),
}

impl Key {
    /// The key that was given, or that the environment has.
    pub(crate) fn of(qkey: Option<QKey>, secret_file: Option<&Path>) -> Result<Self, Failure> {
        if let Some(qkey) = qkey {
            return Ok(Key::QKey(qkey));
        }
        if let Some(file) = secret_file {
            return read_secret(file).map(Key::Secret);
        }
        match std::env::var_os(SECRET_VARIABLE) {
            None => Ok(Key::Default),
            Some(secret) if secret.is_empty() => Err(Failure::usage(format_args!(
                "{SECRET_VARIABLE} is set and empty: unset it, or give it a secret"
            ))),
            Some(secret) => Ok(Key::Secret(secret.into_encoded_bytes())),
        }
    }

    /// The key that a group of this name has.
    pub(crate) fn of_group(&self, group: &str) -> QKey {
        match self {
            Self::Default => QKey::derive(group, &[]),
            Self::QKey(qkey) => *qkey,
            Self::Secret(secret) => QKey::derive(group, secret),
        }
    }
}

fn read_secret(file: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |what: &dyn std::fmt::Display| {
        Failure::failed(format_args!("cannot use the secret in {}: {what}", file.display()))
    };
    let mut secret = Vec::new();
    fs::File::open(file)
        .and_then(|file| {
            io::Read::read_to_end(&mut io::Read::take(file, MAX_SECRET + 1), &mut secret)
        })
        .map_err(|error| failed(&error))?;
    if secret.len() as u64 > MAX_SECRET {
        return Err(failed(&format_args!("it is longer than {MAX_SECRET} bytes")));
    }
    if secret.ends_with(b"\n") {
        secret.pop();
        if secret.ends_with(b"\r") {
            secret.pop();
        }
    }
    if secret.is_empty() {
        return Err(failed(&"it is empty"));
    }
    Ok(secret)
}

/// Sets up what the library traces: warnings, more with `-v`, or what `RUST_LOG` says.
pub(crate) fn trace(verbose: u8) -> Result<(), Failure> {
    use tracing_subscriber::EnvFilter;
    let level = match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = match std::env::var(EnvFilter::DEFAULT_ENV) {
        Ok(rules) if !rules.is_empty() => EnvFilter::try_new(&rules).map_err(|error| {
            Failure::usage(format_args!("{} is not a filter: {error}", EnvFilter::DEFAULT_ENV))
        })?,
        _ => EnvFilter::new(level),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(Traces::default)
        .with_target(verbose > 1)
        .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
        .init();
    Ok(())
}
