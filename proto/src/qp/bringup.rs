//! The attributes of each step on the way up, by transport type.
//!
//! Each struct has exactly what its step requires, so a step built from one is never short of an
//! attribute nor given a foreign one.

use super::{
    AccessFlags, AddressVector, Attr, AttrMask, PathMtu, QpAttrs, QpState, RawQKey, transition,
};
use crate::addr::{Psn, Qpn};

/// What a UD queue pair is set up with, from RESET to RTS and whenever it is walked there again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdSetup {
    /// The partition, as an index into the port's table.
    pub pkey_index: u16,
    /// The port, counted from 1.
    pub port: u8,
    /// The key that datagrams must carry.
    pub qkey: RawQKey,
    /// The first packet sequence number sent.
    pub sq_psn: Psn,
}

impl UdSetup {
    /// RESET->INIT: mask 0x71.
    pub fn init(&self) -> QpAttrs {
        QpAttrs::to(QpState::Init)
            .with(Attr::PkeyIndex(self.pkey_index))
            .with(Attr::Port(self.port))
            .with(Attr::QKey(self.qkey))
    }

    /// INIT->RTR: mask 0x1.
    pub fn rtr(&self) -> QpAttrs {
        QpAttrs::to(QpState::Rtr)
    }

    /// RTR->RTS: mask 0x10001.
    pub fn rts(&self) -> QpAttrs {
        QpAttrs::to(QpState::Rts).with(Attr::SqPsn(self.sq_psn))
    }

    /// The smallest set of attributes for any legal step of a UD queue pair, so that a
    /// [`Path`](super::Path) can be walked hop by hop; `None` if the step is not legal.
    pub fn attrs(&self, from: QpState, to: QpState) -> Option<QpAttrs> {
        let required = transition(super::QpType::Ud, from, to)?.required;
        let mine = [
            Attr::PkeyIndex(self.pkey_index),
            Attr::Port(self.port),
            Attr::QKey(self.qkey),
            Attr::SqPsn(self.sq_psn),
        ];
        let mut attrs = QpAttrs::to(to);
        for attr in mine.into_iter().filter(|attr| required.contains(attr.mask())) {
            attrs = attrs.with(attr);
        }
        debug_assert_eq!(attrs.mask(), required | AttrMask::STATE);
        Some(attrs)
    }
}

/// RESET->INIT of a connected queue pair, UC or RC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectedInit {
    /// The partition, as an index into the port's table.
    pub pkey_index: u16,
    /// The port, counted from 1.
    pub port: u8,
    /// What the peer may do to local memory.
    pub access: AccessFlags,
}

impl From<ConnectedInit> for QpAttrs {
    fn from(init: ConnectedInit) -> Self {
        Self::to(QpState::Init)
            .with(Attr::PkeyIndex(init.pkey_index))
            .with(Attr::Port(init.port))
            .with(Attr::Access(init.access))
    }
}

/// INIT->RTR of a UC queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UcRtr {
    /// Where the peer is.
    pub av: AddressVector,
    /// The largest payload of a packet.
    pub path_mtu: PathMtu,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// The peer's first packet sequence number.
    pub rq_psn: Psn,
}

impl From<UcRtr> for QpAttrs {
    fn from(rtr: UcRtr) -> Self {
        Self::to(QpState::Rtr)
            .with(Attr::Av(rtr.av))
            .with(Attr::PathMtu(rtr.path_mtu))
            .with(Attr::DestQpn(rtr.dest_qpn))
            .with(Attr::RqPsn(rtr.rq_psn))
    }
}

/// RTR->RTS of a UC queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UcRts {
    /// The first packet sequence number sent.
    pub sq_psn: Psn,
}

impl From<UcRts> for QpAttrs {
    fn from(rts: UcRts) -> Self {
        Self::to(QpState::Rts).with(Attr::SqPsn(rts.sq_psn))
    }
}

/// INIT->RTR of an RC queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RcRtr {
    /// Where the peer is.
    pub av: AddressVector,
    /// The largest payload of a packet.
    pub path_mtu: PathMtu,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// The peer's first packet sequence number.
    pub rq_psn: Psn,
    /// How many RDMA reads and atomics the peer may have under way here.
    pub max_dest_rd_atomic: u8,
    /// The code of the delay asked of the peer when no receive is posted: 5 bits.
    pub min_rnr_timer: u8,
}

impl From<RcRtr> for QpAttrs {
    fn from(rtr: RcRtr) -> Self {
        Self::to(QpState::Rtr)
            .with(Attr::Av(rtr.av))
            .with(Attr::PathMtu(rtr.path_mtu))
            .with(Attr::DestQpn(rtr.dest_qpn))
            .with(Attr::RqPsn(rtr.rq_psn))
            .with(Attr::MaxDestRdAtomic(rtr.max_dest_rd_atomic))
            .with(Attr::MinRnrTimer(rtr.min_rnr_timer))
    }
}

/// RTR->RTS of an RC queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RcRts {
    /// The first packet sequence number sent.
    pub sq_psn: Psn,
    /// The wait for an acknowledgement: 4.096 µs × 2^n, 5 bits; 0 waits for ever.
    pub timeout: u8,
    /// How often to repeat what was not acknowledged: 3 bits.
    pub retry_cnt: u8,
    /// How often to repeat when the peer had no receive posted: 3 bits, 7 means without end.
    pub rnr_retry: u8,
    /// How many RDMA reads and atomics may be under way to the peer.
    pub max_qp_rd_atomic: u8,
}

impl From<RcRts> for QpAttrs {
    fn from(rts: RcRts) -> Self {
        Self::to(QpState::Rts)
            .with(Attr::SqPsn(rts.sq_psn))
            .with(Attr::Timeout(rts.timeout))
            .with(Attr::RetryCnt(rts.retry_cnt))
            .with(Attr::RnrRetry(rts.rnr_retry))
            .with(Attr::MaxQpRdAtomic(rts.max_qp_rd_atomic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::{QpType, check, pairs};

    const UD: UdSetup = UdSetup { pkey_index: 0, port: 1, qkey: RawQKey(7), sq_psn: Psn::new(9) };

    const AV: AddressVector = AddressVector { port: 1, dlid: 0, sl: 0, grh: None };

    fn is_minimal(qp_type: QpType, from: QpState, attrs: &QpAttrs) {
        let to = attrs.state().unwrap();
        assert_eq!(attrs.mask(), transition(qp_type, from, to).unwrap().mask());
        check(qp_type, from, attrs).unwrap();
    }

    #[test]
    fn ud_steps_carry_exactly_what_they_must() {
        is_minimal(QpType::Ud, QpState::Reset, &UD.init());
        is_minimal(QpType::Ud, QpState::Init, &UD.rtr());
        is_minimal(QpType::Ud, QpState::Rtr, &UD.rts());
        for (from, to) in pairs() {
            is_minimal(QpType::Ud, from, &UD.attrs(from, to).unwrap());
        }
        assert_eq!(UD.attrs(QpState::Reset, QpState::Init), Some(UD.init()));
        assert_eq!(UD.attrs(QpState::Rtr, QpState::Rts), Some(UD.rts()));
        assert_eq!(UD.attrs(QpState::Err, QpState::Init), None);
    }

    #[test]
    fn connected_steps_carry_exactly_what_they_must() {
        let init = ConnectedInit { pkey_index: 0, port: 1, access: AccessFlags::REMOTE_WRITE };
        let (path_mtu, psn) = (PathMtu::Mtu1024, Psn::new(0x00ab_cdef));
        let dest_qpn = Qpn::new(17);
        let uc_rtr = UcRtr { av: AV, path_mtu, dest_qpn, rq_psn: psn };
        is_minimal(QpType::Uc, QpState::Reset, &init.into());
        is_minimal(QpType::Uc, QpState::Init, &uc_rtr.into());
        is_minimal(QpType::Uc, QpState::Rtr, &UcRts { sq_psn: psn }.into());
        let rc_rtr = RcRtr {
            av: AV,
            path_mtu,
            dest_qpn,
            rq_psn: psn,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
        };
        let rc_rts =
            RcRts { sq_psn: psn, timeout: 14, retry_cnt: 7, rnr_retry: 7, max_qp_rd_atomic: 1 };
        is_minimal(QpType::Rc, QpState::Reset, &init.into());
        is_minimal(QpType::Rc, QpState::Init, &rc_rtr.into());
        is_minimal(QpType::Rc, QpState::Rtr, &rc_rts.into());
    }
}
