//! What happens to a node beneath its groups: to its port, its device, its queue pairs.
//!
//! None of this needs an answer. The engine brings back what can be brought back, and messages are
//! held back meanwhile; the events say why nothing moves, and when it does again.

use std::fmt;
use std::time::Duration;

use qcast_proto::addr::Gid;
use qcast_proto::diagnosis::{Noticed, PathDifference};
use qcast_proto::qp::QpState;

use super::feed::Entry;

/// Something that happened to a node. See [`Node::events`](crate::Node::events).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeEvent {
    /// Something is wrong, and being seen to: what is published meanwhile is held back or comes late.
    Degraded {
        /// What is wrong.
        trouble: Trouble,
    },
    /// What was wrong is right again.
    Restored {
        /// What was wrong.
        trouble: Trouble,
        /// For how long.
        after: Duration,
    },
    /// The device is gone. Groups, publishers and subscribers stay; what is published is held back until
    /// the device is there again.
    DeviceLost {
        /// Its name.
        device: String,
        /// How that was noticed.
        cause: String,
    },
    /// The device is there again, or another in its place, and the groups are joined on it.
    DeviceReturned {
        /// Its name.
        device: String,
        /// Where peers reach the node now.
        gid: Gid,
        /// How long it was gone.
        after: Duration,
    },
    /// A group's queue pair could neither be brought back nor replaced. Nothing is sent to the group, or
    /// heard from it, until an attempt now and then, or after a change of the port, succeeds:
    /// [`NodeEvent::Restored`] tells.
    QpFailed {
        /// The group.
        group: String,
        /// What went wrong first.
        cause: String,
        /// Attempts so far.
        attempts: u32,
    },
    /// The node's address has changed; peers are told.
    AddressChanged {
        /// Where peers reached the node.
        was: Gid,
        /// Where they reach it now.
        now: Gid,
    },
    /// Members of a group have another queue key: they do not hear this node, nor it them. All that is known of their
    /// key, and told of this node's, is a check value of 8 bits.
    KeyMismatch {
        /// The group.
        group: String,
        /// Who differs, and was not told of before: one at least. Who is found later is told of by another event.
        members: Vec<Noticed>,
        /// The check value of their key.
        theirs: u8,
        /// The check value of this node's.
        ours: u8,
        /// Datagrams that this node's port has rejected for their key since the node was opened
        /// ([`PortCounters::qkey_violations`](crate::PortCounters::qkey_violations)): if there are any, this side
        /// drops what comes from there; if there are none, only what this node sends has been dropped, if anything.
        rejected: u64,
    },
    /// A member reaches a group in another way: messages may not reach it, or not from it.
    PathMismatch {
        /// The group.
        group: String,
        /// Who differs.
        member: Noticed,
        /// In what.
        what: PathDifference,
    },
    /// A member that differed does so no longer, or is gone.
    MismatchOver {
        /// The group.
        group: String,
        /// Who differed.
        member: Noticed,
    },
    /// Another node has this one's identity: both were given the same name.
    IdentityConflict {
        /// The other.
        other: Noticed,
    },
    /// Datagrams with another QKey were dropped: somebody has another key, or secret, for a group of this name. Told once a
    /// second at most, and more rarely the longer it goes on, up to once a minute.
    ///
    /// Devices count them for a whole port, so the group is known only if it is the one that the node is in. On real
    /// devices they may even have been for another process's queue pair.
    QKeyViolations {
        /// How many since it was last told.
        datagrams: u64,
        /// The groups that they may have been for: those that the node is in.
        groups: Vec<String>,
    },
    /// The listener was slow: this many events were dropped, the oldest first.
    Missed {
        /// How many.
        events: u64,
    },
}

/// What is wrong with a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Trouble {
    /// The port's link is down.
    PortDown {
        /// The port's number.
        port: u8,
    },
    /// The path MTU has become smaller than the frames that the node sends.
    MtuTooSmall {
        /// The path MTU.
        mtu: usize,
        /// What the frames take at most.
        frame: usize,
    },
    /// A group's queue pair has left RTS by itself.
    QueuePair {
        /// The group.
        group: String,
        /// The state that it was found in; ERR if there is none at all.
        state: QpState,
    },
}

impl Entry for NodeEvent {
    fn missed(events: u64) -> Self {
        Self::Missed { events }
    }
}

impl fmt::Display for NodeEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Degraded { trouble } => trouble.fmt(f),
            Self::Restored { trouble, after } => {
                write!(f, "over after {} ms: {trouble}", after.as_millis())
            }
            Self::DeviceLost { device, cause } => write!(f, "{device} is gone: {cause}"),
            Self::DeviceReturned { device, gid, after } => {
                write!(f, "{device} is back at {gid} after {} ms", after.as_millis())
            }
            Self::QpFailed { group, cause, attempts } => {
                write!(f, "the QP of {group:?} failed, {attempts} attempts; first: {cause}")
            }
            Self::AddressChanged { was, now } => write!(f, "the address is {now}, no longer {was}"),
            Self::KeyMismatch { group, members, theirs, ours, rejected } => {
                let [it, has] = if members.len() == 1 { ["it", "has"] } else { ["they", "have"] };
                write!(
                    f,
                    "group '{group}': {} {has} another key (check {theirs:02x}, ours {ours:02x}): {it} will hear \
                     nothing from us, nor we from {}; give all the same --secret-file or --qkey",
                    Members(members),
                    if members.len() == 1 { "it" } else { "them" },
                )?;
                match rejected {
                    0 => f.write_str(
                        " (this side has dropped nothing so far: theirs drops what we send)",
                    ),
                    n => write!(
                        f,
                        " (this side has dropped {} with another key so far)",
                        datagrams(*n)
                    ),
                }
            }
            Self::PathMismatch { group, member, what } => {
                write!(
                    f,
                    "group '{group}': member '{}' ({}) ",
                    member.name,
                    member.address.gid.ip()
                )?;
                match what {
                    PathDifference::Partition { theirs, ours } => write!(
                        f,
                        "is in another partition (check {theirs:02x}, ours {ours:02x}): neither hears the other"
                    ),
                    PathDifference::Address { theirs, ours } => write!(
                        f,
                        "uses another multicast address (check {theirs:02x}, ours {ours:02x}): neither hears the \
                         other; give both the same --mgid"
                    ),
                    PathDifference::Mtu { theirs, ours } => write!(
                        f,
                        "has a path MTU of {theirs}, ours is {ours}: larger datagrams do not reach the one with \
                         the smaller"
                    ),
                    _ => write!(f, "reaches it differently: {what:?}"),
                }
            }
            Self::MismatchOver { group, member } => {
                write!(f, "group '{group}': member '{}' differs no longer, or is gone", member.name)
            }
            Self::IdentityConflict { other } => write!(
                f,
                "another node, '{}' ({}), has this one's identity; give one of them another name",
                other.name,
                other.address.gid.ip()
            ),
            Self::QKeyViolations { datagrams, groups } => {
                write!(
                    f,
                    "dropped {} that had another QKey than {}",
                    self::datagrams(*datagrams),
                    groups.join(", ")
                )
            }
            Self::Missed { events } => write!(f, "{events} events were not taken in time"),
        }
    }
}

/// So many members are named at once.
const NAMED: usize = 8;

/// Members by name and address.
struct Members<'a>(&'a [Noticed]);

impl fmt::Display for Members<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "member" } else { "members" })?;
        for (n, member) in self.0.iter().take(NAMED).enumerate() {
            let comma = if n == 0 { "" } else { "," };
            write!(f, "{comma} '{}' ({})", member.name, member.address.gid.ip())?;
        }
        match self.0.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

fn datagrams(n: u64) -> String {
    format!("{n} datagram{}", if n == 1 { "" } else { "s" })
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PortDown { port } => write!(f, "port {port} is down"),
            Self::MtuTooSmall { mtu, frame } => {
                write!(f, "the path MTU is {mtu}, and frames take up to {frame} bytes")
            }
            Self::QueuePair { group, state } => write!(f, "the QP of {group:?} is in {state}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use qcast_proto::addr::{NodeId, PeerAddr, Qpn};

    use super::*;

    fn mismatch(members: u8, rejected: u64) -> String {
        let member = |n: u8| Noticed {
            node: NodeId(n.into()),
            name: format!("m{n}"),
            address: PeerAddr {
                gid: Gid::from(std::net::Ipv4Addr::new(10, 0, 0, n)),
                qpn: Qpn::new(1),
                udp_port: 4791,
            },
        };
        let members = (1..=members).map(member).collect();
        NodeEvent::KeyMismatch { group: "g".into(), members, theirs: 0x0a, ours: 0x5f, rejected }
            .to_string()
    }

    #[test]
    fn a_mismatch_is_one_sentence_that_says_who_and_what_to_do_and_which_side_drops() {
        assert_eq!(
            mismatch(1, 0),
            "group 'g': member 'm1' (10.0.0.1) has another key (check 0a, ours 5f): it will hear nothing from us, \
             nor we from it; give all the same --secret-file or --qkey (this side has dropped nothing so far: \
             theirs drops what we send)"
        );
        let two = mismatch(2, 1);
        assert!(two.contains("members 'm1' (10.0.0.1), 'm2' (10.0.0.2) have another key"), "{two}");
        assert!(
            two.ends_with("(this side has dropped 1 datagram with another key so far)"),
            "{two}"
        );
        let many = mismatch(200, 7);
        assert!(many.contains("'m8' (10.0.0.8) and 192 more have") && many.len() < 500, "{many}");
    }
}
