//! Completions: of sends, queue pair by queue pair, then of receives.

use std::net::{IpAddr, Ipv4Addr};

use qcast_proto::addr::{Gid, Qpn, ROCE_PORT};
use rdma_sys as sys;

use super::VerbsDevice;
use super::qp::status_of;
use crate::device::buf::GRH_BYTES;
use crate::device::{Completion, QpId, Source, WcStatus};

impl VerbsDevice {
    /// Takes completions from the device until there are `enough`, or no more.
    pub(super) fn gather(&mut self, enough: usize) {
        let mut faults = Vec::new();
        let mut sent = 0;
        for (at, qp) in &mut self.qps {
            let before = self.done.len();
            if qp.gather(QpId(at), &mut self.room, &mut self.done, enough) {
                faults.push(QpId(at));
            }
            let is_sent = |done: &&Completion| {
                matches!(done, Completion::Send { status: WcStatus::Success, .. })
            };
            sent += self.done.iter().skip(before).filter(is_sent).count() as u64;
        }
        self.counters.sent += sent;
        faults.into_iter().for_each(|qp| self.examine(qp));
        self.gather_receives(enough);
    }

    /// Takes completions of receives until there are `enough` completions, or no more.
    pub(super) fn gather_receives(&mut self, enough: usize) {
        while self.done.len() < enough {
            let room = self.room.upto(enough - self.done.len());
            let asked = room.len();
            let count = match self.recv_cq.poll(room) {
                Ok(count) => count,
                Err(error) => {
                    tracing::warn!(device = %self.caps.name, %error, "polling failed");
                    return;
                }
            };
            for at in 0..count {
                let wc = &self.room.upto(asked)[at];
                let done = Received {
                    wr_id: wc.wr_id,
                    status: status_of(wc.status),
                    raw_status: wc.status,
                    byte_len: wc.byte_len as usize,
                    qpn: Qpn::new(wc.qp_num),
                    src_qpn: Qpn::new(wc.src_qp),
                    has_grh: wc.wc_flags & sys::ibv_wc_flags::IBV_WC_GRH.0 != 0,
                };
                self.received(&done);
            }
            if count < asked {
                return;
            }
        }
    }

    fn received(&mut self, done: &Received) {
        let Some(mut buf) = self.posted.take(done.wr_id) else {
            tracing::error!(wr_id = done.wr_id, "a completion of a receive that was not posted");
            return;
        };
        let qp = self.numbers.get(&done.qpn).copied();
        let mut source = Source { qpn: done.src_qpn, udp_port: ROCE_PORT, ..Source::default() };
        // Buffers take more than is allowed (see `alloc_recv`).
        let most = self.caps.max_payload.min(buf.capacity());
        let payload = done.byte_len.checked_sub(GRH_BYTES).filter(|len| *len <= most);
        let (qp, status) = match (done.status, payload) {
            // A datagram to a queue pair that was destroyed since.
            (WcStatus::Success, Some(_)) if qp.is_none() => (None, WcStatus::WrFlushErr),
            (WcStatus::Success, Some(len)) => {
                buf.set_len(len);
                self.counters.received += 1;
                if done.has_grh {
                    (source.gid, source.multicast) =
                        read_grh(buf.grh(), self.port.gid.gid.ip().is_ipv4());
                }
                (qp, WcStatus::Success)
            }
            (WcStatus::Success, None) => (None, WcStatus::LocLenErr),
            // What a datagram that is larger than the receive is called differs: LOC_QP_OP_ERR was seen on Soft-RoCE,
            // and adapters have REM_INV_REQ_ERR and GENERAL_ERR for it beside LOC_LEN_ERR.
            (WcStatus::LocQpOpErr | WcStatus::Other(_), _) => (None, WcStatus::LocLenErr),
            (status, _) => (None, status),
        };
        if status != WcStatus::Success {
            tracing::debug!(?status, raw = done.raw_status, "a receive failed");
        }
        self.done.push_back(Completion::Recv { qp, buf, source, status });
    }
}

/// What a completion says of a receive.
struct Received {
    wr_id: u64,
    status: WcStatus,
    raw_status: u32,
    byte_len: usize,
    qpn: Qpn,
    src_qpn: Qpn,
    has_grh: bool,
}

/// Who sent a datagram, and whether to many, from the 40 bytes before it. With RoCEv2 over IPv4 the last 20 of
/// them are the IPv4 header, and what is before it is left over from another datagram; which of the two
/// it is follows from our own address, not from these bytes.
fn read_grh(grh: &[u8], ipv4: bool) -> (Gid, bool) {
    let Some(grh) = grh.first_chunk::<GRH_BYTES>() else { return (Gid::default(), false) };
    if ipv4 {
        let address = |at: usize| Ipv4Addr::new(grh[at], grh[at + 1], grh[at + 2], grh[at + 3]);
        return (address(32).into(), address(36).is_multicast());
    }
    let gid = |at: usize| {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&grh[at..at + 16]);
        Gid::from_bytes(bytes)
    };
    (gid(8), matches!(gid(24).ip(), IpAddr::V6(ip) if ip.is_multicast()))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Case 44: what lies before an IPv4 header means nothing, even if it looks like IPv6.
    #[test]
    fn the_sender_is_read_from_the_right_header() {
        let mut grh = [0x60; GRH_BYTES];
        grh[20] = 0x45;
        grh[32..36].copy_from_slice(&[10, 9, 0, 1]);
        grh[36..40].copy_from_slice(&[239, 1, 2, 3]);
        assert_eq!(read_grh(&grh, true), (Ipv4Addr::new(10, 9, 0, 1).into(), true));
        grh[36..40].copy_from_slice(&[10, 9, 0, 2]);
        assert!(!read_grh(&grh, true).1);
        let (from, to): (std::net::Ipv6Addr, std::net::Ipv6Addr) =
            ("2001:db8::1".parse().unwrap(), "ff15::7".parse().unwrap());
        grh[8..24].copy_from_slice(&from.octets());
        grh[24..40].copy_from_slice(&to.octets());
        assert_eq!(read_grh(&grh, false), (IpAddr::V6(from).into(), true));
        assert_eq!(read_grh(&grh[..39], false), (Gid::default(), false));
    }
}
