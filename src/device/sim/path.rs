//! A datagram's way: out of its port, across the fabric, down each receiver's path, into a buffer.

use std::sync::Arc;

use bytes::Bytes;
use qcast_proto::addr::{Gid, Qpn};
use qcast_proto::time::{Duration, Instant};

use super::net::{Event, Net, list};
use super::port::{AhTo, Port, Sides};
use super::rule::{Passing, Rules, Verdict, Watch};
use super::trace::{Outcome, Record, Trace};
use crate::device::agenda::Place;
use crate::device::impair::{Channel, Fate};
use crate::device::{Completion, QpId, RecvBuf, Source, WcStatus};

/// A datagram on its way. Its receivers share it.
#[derive(Clone, Debug)]
pub(super) struct Datagram {
    /// The sending port; `None` if it came from outside.
    pub(super) from: Option<u32>,
    /// Where the sender stood when it sent.
    pub(super) sides: Sides,
    pub(super) to: AhTo,
    pub(super) source: Source,
    pub(super) qpn: Qpn,
    pub(super) qkey: u32,
    pub(super) payload: Bytes,
    /// Its ICRC is wrong.
    pub(super) corrupt: bool,
    /// Its sender is not to hear it.
    pub(super) not_to: Option<u32>,
}

impl Datagram {
    fn record(&self, at: Instant, to: Option<u32>, outcome: Outcome) -> Record {
        Record {
            at,
            from: self.from,
            to,
            multicast: self.source.multicast,
            bytes: u32::try_from(self.payload.len()).unwrap_or(u32::MAX),
            outcome,
        }
    }

    fn passing(&self, at: Instant, to: u32) -> Passing<'_> {
        Passing {
            at,
            from: self.from.map(|from| from as usize),
            to: to as usize,
            multicast: self.source.multicast,
            qkey: self.qkey,
            payload: &self.payload,
        }
    }
}

/// One datagram that reaches many ports at different times: one event in the queue for all of them.
#[derive(Debug)]
pub(super) struct Fan {
    datagram: Arc<Datagram>,
    /// Who is still to get it, the last first.
    rest: Vec<(Instant, u32)>,
}

impl Net {
    /// A datagram leaves its port.
    pub(super) fn emit(&mut self, datagram: Datagram) {
        let now = self.now;
        self.trace.record(datagram.record(now, None, Outcome::Sent));
        let Some(from) = datagram.from else {
            return self.launch(now, datagram);
        };
        let Some(port) = self.find_mut(from as usize) else { return };
        if !port.link_up {
            return self.trace.record(datagram.record(now, None, Outcome::Blocked));
        }
        match port.tx.fate(now) {
            None => self.launch(now, datagram),
            Some(Fate::Lost) => self.trace.record(datagram.record(now, None, Outcome::Lost)),
            Some(Fate::Corrupted) => self.launch(now, Datagram { corrupt: true, ..datagram }),
            Some(Fate::Arrives { at, again, mangled }) => {
                if let Some(again) = again {
                    self.launch(again, datagram.clone());
                }
                let datagram =
                    if mangled { self.mangled_by_sender(from, datagram) } else { datagram };
                self.launch(at, datagram);
            }
        }
    }

    fn mangled_by_sender(&mut self, from: u32, datagram: Datagram) -> Datagram {
        match self.find_mut(from as usize) {
            Some(port) => mangled(&mut port.tx.channel, &datagram),
            None => datagram,
        }
    }

    fn launch(&mut self, at: Instant, datagram: Datagram) {
        self.queue.push(at + self.config.latency, Event::Crossed(Arc::new(datagram)));
    }

    /// A datagram has crossed the fabric: each receiver's path decides what becomes of it there.
    pub(super) fn cross(&mut self, datagram: &Arc<Datagram>) {
        match datagram.to {
            AhTo::Peer(peer) => match self.addresses.get(&(peer.gid, peer.udp_port)) {
                Some(&to) => self.enter(to, datagram),
                None => {
                    let lost = datagram.record(self.now, None, Outcome::Lost);
                    self.trace.record(lost);
                }
            },
            AhTo::Group(mgid) => self.cross_to_group(mgid, datagram),
        }
    }

    fn cross_to_group(&mut self, mgid: Gid, datagram: &Arc<Datagram>) {
        // Nothing on the way of a datagram changes who is in a group.
        let Some(members) = self.groups.get_mut(&mgid).map(std::mem::take) else { return };
        let mut later = Vec::new();
        for &to in &members {
            if datagram.not_to != Some(to) {
                self.enter_path(to, datagram, &mut later);
            }
        }
        self.groups.insert(mgid, members);
        if !later.is_empty() {
            // The last first; a stable sort keeps the order of ports within an instant.
            later.reverse();
            later.sort_by_key(|&(at, _)| std::cmp::Reverse(at));
            let at = later[later.len() - 1].0;
            let fan = Fan { datagram: Arc::clone(datagram), rest: later };
            self.queue.push(at, Event::Fanned(Box::new(fan)));
        }
    }

    fn enter(&mut self, to: u32, datagram: &Arc<Datagram>) {
        let mut later = Vec::new();
        self.enter_path(to, datagram, &mut later);
        for (at, to) in later {
            self.queue.push(at, Event::Arrived(to, Arc::clone(datagram)));
        }
    }

    /// A datagram at the start of a port's path: it arrives at once, `later`, or not at all.
    fn enter_path(&mut self, to: u32, datagram: &Arc<Datagram>, later: &mut Vec<(Instant, u32)>) {
        let now = self.now;
        let Self { rules, trace, queue, watch, .. } = self;
        let Some(port) = self.ports.get_mut(to as usize).and_then(Option::as_deref_mut) else {
            return;
        };
        let delay = match judge(rules, port, to, datagram, now) {
            Ok(delay) => delay,
            Err(outcome) => return missed(trace, watch, datagram, now, to, outcome),
        };
        let (mut at, mut again, mut is_mangled) = (now, None, false);
        match port.rx.fate(now) {
            None => {}
            Some(Fate::Lost) => return missed(trace, watch, datagram, now, to, Outcome::Lost),
            Some(Fate::Corrupted) => {
                port.counters.icrc_errors += 1;
                return missed(trace, watch, datagram, now, to, Outcome::Corrupted);
            }
            Some(Fate::Arrives { at: arrival, again: twin, mangled }) => {
                (at, again, is_mangled) = (arrival, twin, mangled);
            }
        }
        at += delay;
        later.extend(again.map(|again| (again, to)));
        if is_mangled {
            let damaged = mangled(&mut port.rx.channel, datagram);
            queue.push(at, Event::Arrived(to, Arc::new(damaged)));
        } else if at > now {
            later.push((at, to));
        } else {
            self.arrive(to, datagram);
        }
    }

    /// The next receivers of a datagram that reaches many.
    pub(super) fn fan(&mut self, mut fan: Box<Fan>, place: Place) {
        let due = fan.rest.last().map(|&(at, _)| at);
        while let Some((_, to)) = fan.rest.pop_if(|&mut (at, _)| Some(at) == due) {
            self.arrive(to, &fan.datagram);
        }
        if let Some(&(at, _)) = fan.rest.last() {
            self.queue.push_at(at, place, Event::Fanned(fan));
        }
    }

    /// A datagram at a port: ICRC, queue pair, QKey, buffer, in this order.
    pub(super) fn arrive(&mut self, to: u32, datagram: &Datagram) {
        let now = self.now;
        let Some(port) = self.ports.get_mut(to as usize).and_then(Option::as_deref_mut) else {
            return;
        };
        if !port.link_up {
            return missed(&mut self.trace, &mut self.watch, datagram, now, to, Outcome::Blocked);
        }
        if datagram.corrupt {
            port.counters.icrc_errors += 1;
            return missed(&mut self.trace, &mut self.watch, datagram, now, to, Outcome::Corrupted);
        }
        let mut taken = false;
        let watch = &mut self.watch;
        let mut each = |port: &mut Port, trace: &mut Trace, qp| {
            if let Some(outcome) = receive(port, qp, datagram) {
                taken = true;
                if outcome == Outcome::NoBuffer {
                    missed(trace, watch, datagram, now, to, outcome);
                } else {
                    trace.record(datagram.record(now, Some(to), outcome));
                }
            }
        };
        match datagram.to {
            AhTo::Group(mgid) if datagram.qpn == Qpn::MULTICAST => {
                for join in 0..port.joins.len() {
                    let join = port.joins[join];
                    if join.mgid == mgid && join.ah.is_some() {
                        each(port, &mut self.trace, join.qp);
                    }
                }
            }
            AhTo::Group(_) => {}
            AhTo::Peer(_) => {
                if let Some(qp) = port.qps.by_number(datagram.qpn) {
                    each(port, &mut self.trace, qp);
                }
            }
        }
        if !taken {
            port.counters.malformed += 1;
            self.trace.record(datagram.record(now, Some(to), Outcome::NoQueuePair));
        }
        let (ports, listed) = self.ports_and_list();
        if let Some(port) = ports[to as usize].as_deref_mut() {
            list(port, to, listed);
        }
    }
}

/// Notes that a port does not get a datagram.
fn missed(
    trace: &mut Trace,
    watch: &mut Option<Watch>,
    datagram: &Datagram,
    now: Instant,
    to: u32,
    outcome: Outcome,
) {
    trace.record(datagram.record(now, Some(to), outcome));
    if let Some(Watch(watch)) = watch {
        watch(&datagram.passing(now, to), outcome);
    }
}

/// Whether a datagram gets onto a port's path, and how much later it leaves it.
fn judge(
    rules: &mut Rules,
    port: &Port,
    to: u32,
    datagram: &Datagram,
    now: Instant,
) -> Result<Duration, Outcome> {
    if !port.link_up || !datagram.sides.reaches(port.sides, datagram.source.multicast) {
        return Err(Outcome::Blocked);
    }
    if rules.is_empty() {
        return Ok(Duration::ZERO);
    }
    match rules.judge(&datagram.passing(now, to)) {
        Verdict::Pass => Ok(Duration::ZERO),
        Verdict::Drop => Err(Outcome::Ruled),
        Verdict::Delay(by) => Ok(by),
    }
}

/// A datagram at a queue pair; `None` if the queue pair takes none.
fn receive(port: &mut Port, qp: QpId, datagram: &Datagram) -> Option<Outcome> {
    let entry = port.qps.find(qp)?;
    if !entry.state.delivers() {
        return None;
    }
    if entry.qkey != datagram.qkey {
        port.counters.qkey_violations += 1;
        return Some(Outcome::WrongQkey);
    }
    let Some(mut buf) = port.take_recv() else {
        port.counters.out_of_buffer += 1;
        return Some(Outcome::NoBuffer);
    };
    let source = datagram.source;
    let fits = datagram.payload.len() <= port.mtu && fill(&mut buf, &datagram.payload);
    let (qp, status) =
        if fits { (Some(qp), WcStatus::Success) } else { (None, WcStatus::LocLenErr) };
    port.counters.received += u64::from(fits);
    port.complete(Completion::Recv { qp, buf, source, status });
    Some(if fits { Outcome::Delivered } else { Outcome::TooLarge })
}

fn fill(buf: &mut RecvBuf, payload: &Bytes) -> bool {
    if buf.capacity() > 0 {
        return buf.fill(payload);
    }
    buf.share(payload.clone());
    true
}

fn mangled(channel: &mut Channel, datagram: &Datagram) -> Datagram {
    let mut bytes = datagram.payload.to_vec();
    let len = channel.mangle(&mut bytes);
    bytes.truncate(len);
    Datagram { payload: bytes.into(), ..datagram.clone() }
}
