//! The way of a datagram from one machine to others.

use std::rc::Rc;
use std::time::Duration;

use qcast_proto::addr::PeerAddr;
use qcast_proto::buf::TxFrame;
use qcast_proto::node::{To, Transmit};
use qcast_proto::subscribe::StreamKey;
use qcast_proto::time::Instant;
use qcast_proto::wire::frame::Frame;

use crate::buffers::Slot;
use crate::fabric::Flight;
use crate::world::{What, World, brief};

impl World {
    pub(crate) fn send(&mut self, from: usize, departs: Instant, transmit: Transmit<Slot>) {
        let Transmit { to, frame, token, .. } = transmit;
        let bytes: Rc<[u8]> = frame.bytes().into();
        assert!(bytes.len() <= frame.capacity());
        if let Some(overheard) = &mut self.overheard {
            overheard.truncate(63);
            overheard.push_front(bytes.clone());
        }
        let header = *Frame::new_checked(&bytes).expect("nodes send sound frames").header();
        let m = &self.machines[from];
        let (life, address) = (m.life, m.address);
        let mut flight = Flight {
            now: departs,
            from,
            to: from,
            multicast: to == To::Group,
            kind: header.kind,
            sequence: header.sequence,
            repair: false,
        };
        if flight.is_data() {
            let key = StreamKey { session: header.session, stream: header.stream };
            let truth = self.library.borrow()[&key].clone();
            let mut truth = truth.borrow_mut();
            flight.repair = header.sequence.0 < truth.sent;
            truth.sent = truth.sent.max(header.sequence.0 + 1);
            self.traffic.repairs += u64::from(flight.repair);
            self.traffic.multicast_repairs += u64::from(flight.repair && flight.multicast);
        }
        self.traffic.sent[header.kind as usize] += 1;
        self.note(|| format!("send {from} to {to:?} {}", brief(&bytes)));
        match to {
            To::Group => {
                for index in 0..self.machines.len() {
                    if index != from || self.fabric.echo {
                        self.carry(address, Flight { to: index, ..flight }, &bytes);
                    }
                }
            }
            To::Peer(peer) => {
                if let Some(index) = self.addresses.get(&peer).copied() {
                    self.carry(address, Flight { to: index, ..flight }, &bytes);
                }
            }
        }
        self.schedule(departs, What::Sent { machine: from, life, token, frame });
    }

    /// Takes a datagram to one receiver, or loses it.
    fn carry(&mut self, address: PeerAddr, flight: Flight, bytes: &Rc<[u8]>) {
        let (from, to, kind) = (flight.from, flight.to, flight.kind as usize);
        let departs = flight.now;
        for _ in 0..self.fabric.copies {
            if self.is_lost(&flight) {
                self.traffic.lost[kind] += 1;
                self.traffic.data_lost_first += u64::from(flight.is_data() && !flight.repair);
                continue;
            }
            let mut at = departs + self.fabric.latency;
            if let Some((far, more)) = self.far
                && (from == far || to == far)
                && from != to
            {
                at += more;
            }
            if !self.fabric.jitter.is_zero() {
                let nanos = u64::try_from(self.fabric.jitter.as_nanos()).expect("short");
                at += Duration::from_nanos(self.draw() % (nanos + 1));
            }
            if from != to && self.chance(self.fabric.reorder) {
                at += self.fabric.reorder_by;
                self.traffic.late += 1;
            }
            self.traffic.delivered[kind] += 1;
            let (multicast, bytes) = (flight.multicast, bytes.clone());
            self.schedule(at, What::Deliver { to, from: address, multicast, bytes });
        }
    }

    fn is_lost(&mut self, flight: &Flight) -> bool {
        if flight.from == flight.to {
            return false;
        }
        if self.sides[flight.from] != self.sides[flight.to] {
            return true;
        }
        let mut rules = std::mem::take(&mut self.rules);
        let ruled_out = rules.iter_mut().any(|rule| rule(flight));
        self.rules = rules;
        if let Some(burst) = self.fabric.burst {
            let bad = self.bursts[flight.to];
            let flips = self.chance(if bad { burst.leave } else { burst.enter });
            self.bursts[flight.to] = bad != flips;
        }
        let lost = self.chance(self.fabric.loss);
        let corrupt = self.chance(self.fabric.corruption);
        ruled_out || lost || corrupt || self.bursts[flight.to]
    }

    fn chance(&mut self, p: f64) -> bool {
        if p <= 0.0 {
            return false;
        }
        self.draws += 1;
        self.rng.f64() < p
    }
}
