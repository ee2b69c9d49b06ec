//! Queue pairs: modifies, posted sends, and how sends leave.

use std::collections::VecDeque;

use bytes::Bytes;
use qcast_proto::addr::Qpn;
use qcast_proto::qp::{
    Attr, LinkLayer, ModifyContext, Privilege, QpAttrs, QpState, QpType, validate,
};
use qcast_proto::time::Duration;

use super::config::Personality;
use super::net::{Event, Net, number_of};
use super::path::Datagram;
use super::port::{AhTo, Port, Qp, refusal};
use crate::device::{Completion, DeviceError, QpId, QpInfo, SendWr, Source, WcStatus};

impl Net {
    pub(super) fn create_qp(&mut self, index: usize) -> Result<QpId, DeviceError> {
        let qpn = self.new_qpn();
        let port = self.port_mut(index);
        port.check("ibv_create_qp")?;
        let limit = port.config.max_qp;
        if port.qps.live() >= limit {
            return Err(DeviceError::Exhausted { what: "queue pairs", limit });
        }
        Ok(port.qps.add(Qp::new(qpn)))
    }

    pub(super) fn destroy_qp(&mut self, index: usize, qp: QpId) -> Result<(), DeviceError> {
        self.with_port(index, |port| {
            port.qps.get(qp)?;
            if port.joins.iter().any(|join| join.qp == qp) {
                return Err(DeviceError::Busy("the queue pair, which is attached to a group,"));
            }
            port.flush(qp);
            port.qps.remove(qp);
            Ok(())
        })
    }

    pub(super) fn query_qp(&self, index: usize, qp: QpId) -> Result<QpInfo, DeviceError> {
        let port = self.port(index);
        port.check("ibv_query_qp")?;
        let qp = port.qps.get(qp)?;
        Ok(QpInfo { state: qp.state, qkey: qp.qkey, draining: false })
    }

    pub(super) fn modify_qp(
        &mut self,
        index: usize,
        qp: QpId,
        attrs: &QpAttrs,
    ) -> Result<(), DeviceError> {
        self.with_port(index, |port| modify(port, qp, attrs))?;
        self.depart(number_of(index), qp);
        Ok(())
    }

    pub(super) fn post_send(
        &mut self,
        index: usize,
        qp: QpId,
        sends: &mut VecDeque<SendWr>,
    ) -> Result<(), DeviceError> {
        let posted = post(self.port_mut(index), qp, sends);
        self.depart(number_of(index), qp);
        posted
    }

    /// Lets every send leave whose time has come.
    pub(super) fn depart(&mut self, number: u32, qp: QpId) {
        let now = self.now;
        loop {
            let Some(port) = self.find_mut(number as usize) else { return };
            let Port { qps, config, idle_at, .. } = port;
            let Some(entry) = qps.find_mut(qp).filter(|entry| entry.state.sends()) else { break };
            let Some(wr) = entry.sends.front() else { break };
            let departs = entry.departs.unwrap_or_else(|| {
                let start = now.max(*idle_at);
                *idle_at = start + time_on_the_wire(wr.buf.payload().len(), config.rate);
                *idle_at
            });
            if departs > now {
                if entry.departs.replace(departs).is_none() {
                    self.queue.push(departs, Event::Departs(number, qp));
                }
                break;
            }
            entry.departs = None;
            let Some(wr) = entry.sends.pop_front() else { break };
            if let Some(datagram) = send(port, number, qp, wr) {
                self.emit(datagram);
            }
        }
        self.list(number as usize);
    }
}

fn modify(port: &mut Port, qp: QpId, attrs: &QpAttrs) -> Result<(), DeviceError> {
    const CALL: &str = "ibv_modify_qp";
    port.check(CALL)?;
    let privileged_qkey =
        if port.config.privileged { Privilege::Granted } else { Privilege::Denied };
    let entry = port.qps.get_mut(qp)?;
    let context = ModifyContext {
        ports: 1,
        link: LinkLayer::Ethernet,
        pkey_table_len: 1,
        qp_port: entry.port,
        privileged_qkey,
    };
    let accepted = validate(QpType::Ud, entry.state, attrs, &context)?;
    if accepted.step.from() != entry.state {
        return Err(refusal(CALL, EINVAL));
    }
    if let Some((left, errno)) = &mut entry.refusals {
        let errno = *errno;
        *left -= 1;
        if *left == 0 {
            entry.refusals = None;
        }
        return Err(refusal(CALL, errno));
    }
    for attr in attrs {
        match attr {
            Attr::QKey(key) => entry.qkey = key.0,
            Attr::Port(number) => entry.port = Some(*number),
            _ => {}
        }
    }
    entry.state = accepted.step.to();
    match entry.state {
        QpState::Reset => {
            (entry.qkey, entry.port, entry.failure) = (0, None, None);
            port.flush(qp);
        }
        QpState::Err => port.flush(qp),
        _ => {}
    }
    Ok(())
}

fn post(port: &mut Port, qp: QpId, sends: &mut VecDeque<SendWr>) -> Result<(), DeviceError> {
    port.check("ibv_post_send")?;
    let Port { qps, ahs, config, mtu, .. } = port;
    let entry = qps.get_mut(qp)?;
    if !entry.state.sends() {
        return Err(DeviceError::NotReady(entry.state));
    }
    while let Some(wr) = sends.front() {
        if entry.outstanding >= config.max_send_wr {
            break;
        }
        let len = wr.buf.payload().len();
        if len > *mtu {
            return Err(DeviceError::TooLarge { len, max: *mtu });
        }
        let ah = ahs.get_mut(wr.ah.0).filter(|ah| !ah.left);
        let ah = ah.ok_or(DeviceError::NoSuch("address handle"))?;
        if ah.pending.is_some() {
            return Err(DeviceError::AhPending);
        }
        ah.uses += 1;
        entry.outstanding += 1;
        entry.sends.extend(sends.pop_front());
    }
    Ok(())
}

/// Ends a send: its completion, and the datagram if there is one.
fn send(port: &mut Port, number: u32, qp: QpId, wr: SendWr) -> Option<Datagram> {
    let entry = port.qps.find_mut(qp)?;
    let SendWr { ah, qpn, mut qkey, token, buf } = wr;
    if let Some(status) = entry.failure.take() {
        port.complete(Completion::Send { qp, ah, token, buf, status });
        let (state, announced) = port.after_failed_send();
        port.fault(qp, state, announced);
        return None;
    }
    if qkey >> 31 != 0 && port.config.personality == Personality::Hardware {
        qkey = entry.qkey;
    }
    let source_qpn = entry.qpn;
    let to = port.ahs.get(ah.0).map(|ah| ah.to)?;
    let payload = Bytes::copy_from_slice(buf.payload());
    port.counters.sent += 1;
    port.complete(Completion::Send { qp, ah, token, buf, status: WcStatus::Success });
    Some(Datagram {
        from: Some(number),
        sides: port.sides,
        to,
        source: Source {
            gid: port.gid,
            qpn: source_qpn,
            udp_port: port.udp_port,
            multicast: matches!(to, AhTo::Group(_)) && qpn == Qpn::MULTICAST,
        },
        qpn,
        qkey,
        payload,
        corrupt: false,
        not_to: (!port.config.loops_back).then_some(number),
    })
}

/// How long a payload and its headers (Ethernet, IPv4, UDP, BTH, DETH, ICRC) occupy the port.
fn time_on_the_wire(payload: usize, rate: Option<u64>) -> Duration {
    const HEADERS: u64 = 14 + 20 + 8 + 12 + 8 + 4;
    let Some(rate) = rate else { return Duration::ZERO };
    let nanos = (payload as u64 + HEADERS).saturating_mul(1_000_000_000) / rate.max(1);
    Duration::from_nanos(nanos)
}

/// Linux's number for a bad argument.
const EINVAL: i32 = 22;
