//! The receive path: from sockets to posted buffers.
//!
//! A read takes one datagram, or up to 64 KiB of datagrams of one sender that the kernel kept together (UDP GRO).
//! Each is checked on its own: form, ICRC, queue pair, state, partition, key, in this order, and what
//! fails a check is counted under it. Then it is copied into a posted receive, or dropped if there is none.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use qcast_proto::addr::{Gid, Qpn, ROCE_PORT};
use qcast_proto::wire::icrc::{Icrc, IcrcCheck};
use qcast_proto::wire::roce::{self, RoceDatagram};
use socket2::Socket;

use super::SoftDevice;
use super::group::Member;
use super::qp::QpTable;
use super::socket;
use crate::device::{Completion, DeviceEvent, PortCounters, QpId, RecvBuf, Source, WcStatus};

/// A socket that is read.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) socket: Socket,
    /// What its datagrams are sent to.
    pub(super) address: SocketAddr,
    /// Whether the last read found nothing more, so that an edge will tell when there is.
    drained: bool,
    /// What the kernel last said it has dropped since the socket was opened.
    dropped: u32,
}

impl Endpoint {
    pub(super) fn new(socket: Socket, address: SocketAddr) -> Self {
        Self { socket, address, drained: false, dropped: 0 }
    }

    pub(super) fn drained(&self) -> bool {
        self.drained
    }
}

/// What the device holds for its user: posted receives, completions, events and counters.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub(super) srq: Vec<RecvBuf>,
    /// The limit below which the SRQ is to tell, once.
    pub(super) srq_limit: usize,
    pub(super) done: VecDeque<Completion>,
    pub(super) events: VecDeque<DeviceEvent>,
    pub(super) counters: PortCounters,
}

/// Where completions go: to the caller while it has room, else to the queue.
struct Out<'a> {
    taken: &'a mut Vec<Completion>,
    end: usize,
}

impl Out<'_> {
    fn full(&self) -> bool {
        self.taken.len() >= self.end
    }
}

impl SoftDevice {
    pub(super) fn take(&mut self, taken: &mut Vec<Completion>, budget: usize) {
        let end = taken.len().saturating_add(budget);
        while taken.len() < end {
            let Some(completion) = self.inbox.done.pop_front() else { break };
            if let Completion::Send { qp, ah, .. } = &completion {
                self.qps.polled(*qp);
                self.ahs.polled(*ah);
            }
            taken.push(completion);
        }
        self.unicast.drained = false;
        for group in &mut self.groups {
            group.endpoint.drained = false;
        }
        let mut out = Out { taken, end };
        // Junk makes no completions: this bounds what a peer can make one call do.
        let mut reads = budget.saturating_add(READS);
        let sockets = 1 + self.groups.len();
        for at in 0..sockets {
            self.read((self.turn + at) % sockets, &mut out, &mut reads);
        }
        self.turn = (self.turn + 1) % sockets;
    }

    /// Reads one socket until it is empty or `out` is full.
    fn read(&mut self, at: usize, out: &mut Out<'_>, reads: &mut usize) {
        let (endpoint, members) = match at.checked_sub(1) {
            None => (&mut self.unicast, None),
            Some(group) => {
                let group = &mut self.groups[group];
                (&mut group.endpoint, Some(group.members.as_slice()))
            }
        };
        while !out.full() && *reads > 0 {
            *reads -= 1;
            let incoming =
                match socket::receive(&endpoint.socket, &mut self.staging, &mut self.control) {
                    Ok(incoming) => incoming,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        endpoint.drained = true;
                        break;
                    }
                    // Interrupted, or an error of an earlier send: the next read has what is there.
                    Err(error) => {
                        tracing::debug!(%error, address = %endpoint.address, "recvmsg");
                        continue;
                    }
                };
            if let Some(total) = incoming.dropped {
                let more = total.wrapping_sub(endpoint.dropped);
                self.inbox.counters.overruns += u64::from(more);
                endpoint.dropped = total;
            }
            let Some(flow) = Icrc::new(incoming.source, endpoint.address) else { continue };
            let from =
                Origin { source: source_of(incoming.source, members.is_some()), flow, members };
            if incoming.len == 0 {
                self.inbox.counters.malformed += 1;
            }
            for datagram in self.staging[..incoming.len].chunks(incoming.segment) {
                self.inbox.datagram(&self.qps, &from, datagram, out);
            }
        }
    }
}

/// What the datagrams of one read have in common.
struct Origin<'a> {
    source: Source,
    flow: Icrc,
    /// The group's members; `None` for unicast.
    members: Option<&'a [Member]>,
}

impl Inbox {
    fn datagram(&mut self, qps: &QpTable, from: &Origin<'_>, bytes: &[u8], out: &mut Out<'_>) {
        let Ok(datagram) = RoceDatagram::new_checked(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        if roce::verify(bytes, &from.flow) == IcrcCheck::Bad {
            self.counters.icrc_errors += 1;
            return;
        }
        let to_all = datagram.dest_qpn() == Qpn::MULTICAST;
        match from.members {
            Some(members) if to_all => {
                for member in members {
                    self.offer(qps, Some(member.qp), from, &datagram, out);
                }
            }
            None if !to_all => {
                let qp = qps.by_number(datagram.dest_qpn()).map(|(id, _)| id);
                self.offer(qps, qp, from, &datagram, out);
            }
            _ => self.counters.malformed += 1,
        }
    }

    /// Gives a datagram to one queue pair, if that takes it.
    fn offer(
        &mut self,
        qps: &QpTable,
        id: Option<QpId>,
        from: &Origin<'_>,
        datagram: &RoceDatagram<'_>,
        out: &mut Out<'_>,
    ) {
        let qp = id.and_then(|id| qps.get(id).ok()).filter(|qp| qp.state.delivers());
        // The top bit of a PKey says full or limited member; it is no part of the partition's number.
        let Some(qp) = qp.filter(|_| datagram.pkey().0 & 0x7fff == 0x7fff) else {
            self.counters.malformed += 1;
            return;
        };
        if datagram.qkey() != qp.qkey {
            self.counters.qkey_violations += 1;
            return;
        }
        let Some(mut buf) = self.srq.pop() else {
            self.counters.out_of_buffer += 1;
            return;
        };
        if self.srq.len() < self.srq_limit {
            self.srq_limit = 0;
            self.events.push_back(DeviceEvent::SrqLimit);
        }
        let (qp, status) = if buf.fill(datagram.payload()) {
            self.counters.received += 1;
            (id, WcStatus::Success)
        } else {
            (None, WcStatus::LocLenErr)
        };
        let source = Source { qpn: datagram.src_qpn(), ..from.source };
        let completion = Completion::Recv { qp, buf, source, status };
        if out.full() {
            self.done.push_back(completion);
        } else {
            out.taken.push(completion);
        }
    }
}

/// What a datagram's source address tells of its sender. Adapters and Soft-RoCE draw the source port at random and
/// listen on 4791; software endpoints that share a host send from the port they listen on.
fn source_of(address: SocketAddr, multicast: bool) -> Source {
    let udp_port = match address.port() {
        port if OTHER_PORTS.contains(&port) => port,
        _ => ROCE_PORT,
    };
    Source { gid: Gid::from(address.ip()), qpn: Qpn::default(), udp_port, multicast }
}

/// The ports that software endpoints use where another process of the host has 4791.
pub(super) const OTHER_PORTS: std::ops::RangeInclusive<u16> = ROCE_PORT + 1..=ROCE_PORT + 64;

/// Reads of one [`SoftDevice::take`] beyond its budget.
const READS: usize = 64;
