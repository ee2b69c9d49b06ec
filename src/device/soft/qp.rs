//! Queue pairs and address handles: the device's tables.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use nix::sys::socket::SockaddrStorage;
use qcast_proto::addr::{Psn, Qpn};
use qcast_proto::qp::{
    Attr, LinkLayer, ModifyContext, Privilege, QpAttrs, QpState, QpType, validate,
};
use qcast_proto::wire::icrc::Icrc;
use slab::Slab;

use super::config::Draw;
use crate::device::{AhId, DeviceError, QpId, WcStatus};

/// A queue pair.
#[derive(Debug)]
pub(super) struct Qp {
    pub(super) number: Qpn,
    pub(super) state: QpState,
    pub(super) qkey: u32,
    /// The number of the next send.
    pub(super) psn: Psn,
    /// Sends whose completions were not polled yet.
    pub(super) unpolled: usize,
    /// Groups that it is attached to.
    pub(super) attached: usize,
    /// What the next send is to fail with, and the state to go to: for tests.
    pub(super) fault: Option<(WcStatus, QpState)>,
    port: Option<u8>,
    /// Destroyed, but some of its completions were not polled yet: its place is not given away.
    destroyed: bool,
}

impl Qp {
    /// Makes a step if the tables allow it.
    pub(super) fn modify(
        &mut self,
        attrs: &QpAttrs,
        privileged_qkey: Privilege,
    ) -> Result<(), DeviceError> {
        let context = ModifyContext {
            ports: 1,
            link: LinkLayer::Ethernet,
            pkey_table_len: 1,
            qp_port: self.port,
            privileged_qkey,
        };
        let accepted = validate(QpType::Ud, self.state, attrs, &context)?;
        // Kernel drivers differ on a claim that is not true; this is the answer that nobody can misread.
        if attrs.cur_state().is_some_and(|claimed| claimed != self.state) {
            let source = nix::errno::Errno::EINVAL.into();
            return Err(DeviceError::Os {
                call: "modify_qp (CUR_STATE is not the QP's state)",
                source,
            });
        }
        for attr in attrs {
            match *attr {
                Attr::QKey(key) => self.qkey = key.0,
                Attr::SqPsn(psn) => self.psn = psn,
                Attr::Port(port) => self.port = Some(port),
                _ => {}
            }
        }
        self.state = accepted.step.to();
        if self.state == QpState::Reset {
            self.port = None;
            self.fault = None;
        }
        Ok(())
    }
}

/// The queue pairs of a device.
#[derive(Debug)]
pub(super) struct QpTable {
    slots: Slab<Qp>,
    numbers: BTreeMap<Qpn, QpId>,
    next: u32,
}

impl QpTable {
    pub(super) fn new(draw: &mut Draw) -> Self {
        // Any 32 bits: numbers are cut to 24 when they are given out.
        Self { slots: Slab::new(), numbers: BTreeMap::new(), next: draw.next() as u32 }
    }

    pub(super) fn create(&mut self) -> Result<QpId, DeviceError> {
        if self.numbers.len() >= MAX_QP {
            return Err(DeviceError::Exhausted { what: "queue pairs", limit: MAX_QP });
        }
        let number = loop {
            let number = Qpn::new(self.next);
            self.next = self.next.wrapping_add(1);
            // 0 and 1 are the management queue pairs of every port.
            if number.get() > 1 && number != Qpn::MULTICAST && !self.numbers.contains_key(&number) {
                break number;
            }
        };
        let id = QpId(self.slots.insert(Qp {
            number,
            state: QpState::Reset,
            qkey: 0,
            psn: Psn::default(),
            unpolled: 0,
            attached: 0,
            fault: None,
            port: None,
            destroyed: false,
        }));
        self.numbers.insert(number, id);
        Ok(id)
    }

    pub(super) fn destroy(&mut self, id: QpId) -> Result<(), DeviceError> {
        let qp = self.get_mut(id)?;
        if qp.attached > 0 {
            return Err(DeviceError::Busy("a queue pair that is attached to a group"));
        }
        qp.destroyed = true;
        let number = qp.number;
        self.numbers.remove(&number);
        self.sweep(id);
        Ok(())
    }

    /// Notes that a send's completion was polled.
    pub(super) fn polled(&mut self, id: QpId) {
        if let Some(qp) = self.slots.get_mut(id.0) {
            qp.unpolled -= 1;
            self.sweep(id);
        }
    }

    fn sweep(&mut self, id: QpId) {
        if self.slots.get(id.0).is_some_and(|qp| qp.destroyed && qp.unpolled == 0) {
            self.slots.remove(id.0);
        }
    }

    #[inline]
    pub(super) fn get(&self, id: QpId) -> Result<&Qp, DeviceError> {
        self.slots.get(id.0).filter(|qp| !qp.destroyed).ok_or(DeviceError::NoSuch("queue pair"))
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: QpId) -> Result<&mut Qp, DeviceError> {
        self.slots.get_mut(id.0).filter(|qp| !qp.destroyed).ok_or(DeviceError::NoSuch("queue pair"))
    }

    /// The queue pair that peers call `number`.
    #[inline]
    pub(super) fn by_number(&self, number: Qpn) -> Option<(QpId, &Qp)> {
        let id = *self.numbers.get(&number)?;
        Some((id, self.slots.get(id.0)?))
    }
}

/// An address handle.
#[derive(Debug)]
pub(super) struct Ah {
    /// Where it leads, as the kernel takes it.
    pub(super) raw: SockaddrStorage,
    /// The checksum of what goes there.
    pub(super) flow: Icrc,
    /// Sends that use it and whose completions were not polled yet.
    in_use: usize,
    destroyed: bool,
}

/// The address handles of a device.
#[derive(Debug)]
pub(super) struct AhTable {
    slots: Slab<Ah>,
    limit: usize,
}

impl AhTable {
    pub(super) fn new(limit: usize) -> Self {
        Self { slots: Slab::new(), limit }
    }

    pub(super) fn create(&mut self, to: SocketAddr, flow: Icrc) -> Result<AhId, DeviceError> {
        if self.slots.len() >= self.limit {
            return Err(DeviceError::Exhausted { what: "address handles", limit: self.limit });
        }
        let ah = Ah { raw: to.into(), flow, in_use: 0, destroyed: false };
        Ok(AhId(self.slots.insert(ah)))
    }

    pub(super) fn destroy(&mut self, id: AhId) -> Result<(), DeviceError> {
        if self.get(id)?.in_use > 0 {
            return Err(DeviceError::Busy("an address handle that posted sends use"));
        }
        self.slots.remove(id.0);
        Ok(())
    }

    /// Destroys a handle now, or when the last send that uses it has been polled.
    pub(super) fn retire(&mut self, id: AhId) {
        if let Some(ah) = self.slots.get_mut(id.0) {
            ah.destroyed = true;
            self.sweep(id);
        }
    }

    /// Notes that `sends` were posted.
    #[inline]
    pub(super) fn posted(&mut self, id: AhId, sends: usize) {
        if let Some(ah) = self.slots.get_mut(id.0) {
            ah.in_use += sends;
        }
    }

    /// Notes that a send's completion was polled.
    #[inline]
    pub(super) fn polled(&mut self, id: AhId) {
        if let Some(ah) = self.slots.get_mut(id.0) {
            ah.in_use -= 1;
            self.sweep(id);
        }
    }

    fn sweep(&mut self, id: AhId) {
        if self.slots.get(id.0).is_some_and(|ah| ah.destroyed && ah.in_use == 0) {
            self.slots.remove(id.0);
        }
    }

    #[inline]
    pub(super) fn get(&self, id: AhId) -> Result<&Ah, DeviceError> {
        self.slots.get(id.0).filter(|ah| !ah.destroyed).ok_or(DeviceError::NoSuch("address handle"))
    }
}

/// Whether this process may set queue keys with bit 31 set: the kernel asks for CAP_NET_RAW, so this does too.
pub(super) fn qkey_privilege() -> Privilege {
    const CAP_NET_RAW: u32 = 13;
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else {
        return Privilege::Denied;
    };
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    match effective {
        Some(caps) if caps >> CAP_NET_RAW & 1 == 1 => Privilege::Granted,
        _ => Privilege::Denied,
    }
}

/// More than any node has groups.
const MAX_QP: usize = 16_384;
