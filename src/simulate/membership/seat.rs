//! A member's place: its process, and what is between it and the fabric.

use std::sync::Arc;

use qcast_proto::addr::{Gid, NodeId, PeerAddr, Qpn, ROCE_PORT};
use qcast_proto::membership::{
    Beacon, Hint, MAX_WORD, MemberInfo, Membership, MembershipConfig, Role, Word,
};
use qcast_proto::node::To;
use qcast_proto::time::{Duration, Instant};
use qcast_proto::wire::frame::FRAME_HEADER;

use super::judge::{Findings, Witness};
use super::truth::Truth;

/// A word on its way.
#[derive(Clone, Debug)]
pub(super) struct Parcel {
    pub(super) seat: usize,
    pub(super) from: PeerAddr,
    pub(super) to: To,
    pub(super) word: Arc<Word>,
    pub(super) bytes: usize,
}

/// A place that a member's lives come and go in.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) index: usize,
    pub(super) node: NodeId,
    pub(super) life: Option<Box<Membership>>,
    pub(super) incarnation: u64,
    pub(super) address: PeerAddr,
    /// It says farewell, and then is gone.
    pub(super) parting: bool,
    pub(super) paused_until: Option<Instant>,
    /// Which half of the partition it is in.
    pub(super) half: bool,
    rng: fastrand::Rng,
    due: Instant,
    last_turn: Instant,
    pub(super) inbox: Vec<(PeerAddr, Arc<Word>)>,
    pub(super) witness: Witness,
    pub(super) received: u64,
    /// What its beacons last said of it, as its receivers have read it.
    read: Option<Arc<MemberInfo>>,
}

/// What a step is of, the same for all seats.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<'a> {
    pub(super) now: Instant,
    /// Whether the group is cut in two.
    pub(super) cut: bool,
    pub(super) loss: f64,
    pub(super) multicast: &'a [Multicast],
    pub(super) truth: &'a Truth,
}

/// Members on a host.
const PER_HOST: usize = 16;

/// A pause beyond what was due that a node notices.
const PAUSE: Duration = Duration::from_millis(500);

/// What came of some seats' turns.
#[derive(Debug, Default)]
pub(super) struct Turns {
    pub(super) found: Findings,
    pub(super) said: Vec<Parcel>,
    /// Lives there are after them.
    pub(super) lives: usize,
    hints: Vec<Hint>,
}

impl Seat {
    pub(super) fn new(index: usize, seed: u64) -> Self {
        let node = NodeId::of_name(&format!("member {index}"));
        Self {
            index,
            node,
            life: None,
            incarnation: 0,
            address: PeerAddr { gid: Gid::default(), qpn: Qpn::new(0), udp_port: ROCE_PORT },
            parting: false,
            paused_until: None,
            half: false,
            rng: fastrand::Rng::with_seed(seed),
            due: Instant::ZERO,
            last_turn: Instant::ZERO,
            inbox: Vec::new(),
            witness: Witness::new(index, node),
            received: 0,
            read: None,
        }
    }

    /// Whether it is a member that others should see.
    pub(super) fn is_up(&self) -> bool {
        self.life.is_some() && !self.parting
    }

    pub(super) fn start(&mut self, now: Instant, truth: &mut Truth) {
        let host = u32::try_from(self.index / PER_HOST).expect("there are fewer hosts");
        let ip = std::net::Ipv4Addr::from(0x0a00_0000 + host);
        self.incarnation += 1;
        let qpn = truth.begins(now, self.index, self.node, self.incarnation);
        self.address = PeerAddr { gid: ip.into(), qpn, udp_port: ROCE_PORT };
        let own = MemberInfo {
            node: self.node,
            incarnation: self.incarnation,
            name: format!("member {}", self.index),
            host: format!("host-{host}"),
            address: self.address,
            role: Role::Both,
            metadata: vec![("rank".to_owned(), self.index.to_string())],
        };
        let config = MembershipConfig::default();
        self.life = Some(Box::new(Membership::new(now, own, config, self.rng.u64(..))));
        (self.due, self.last_turn) = (now, now);
        (self.parting, self.paused_until) = (false, None);
        self.witness.joins(now);
    }

    pub(super) fn leave(&mut self, now: Instant) {
        if let Some(life) = &mut self.life {
            life.part(now);
            (self.parting, self.due) = (true, now);
        }
    }

    pub(super) fn crash(&mut self) {
        (self.life, self.parting, self.paused_until) = (None, false, None);
    }

    /// One step: what arrived, what is due, what is told and what is to be said.
    pub(super) fn step(&mut self, step: &Step<'_>, turns: &mut Turns) {
        let Step { now, cut, loss, multicast, truth } = *step;
        let Some(life) = &mut self.life else { return self.inbox.clear() };
        if self.paused_until.is_some_and(|until| now < until) {
            return self.inbox.clear();
        }
        self.paused_until = None;
        let pause = now.saturating_since(self.last_turn.max(self.due));
        if now.saturating_since(self.last_turn) > PAUSE && pause > PAUSE {
            life.forgive(now, pause);
        }
        self.last_turn = now;
        let mut stirred = now >= self.due;
        turns.hints.clear();
        life.look_up(multicast.iter().map(|m| m.node), &mut turns.hints);
        // How many arrive until the next one is lost.
        let mut more = spared(&mut self.rng, loss);
        for (m, hint) in multicast.iter().zip(&turns.hints) {
            if m.parcel.seat == self.index || (cut && m.half != self.half) {
                continue;
            }
            if more == 0 {
                more = spared(&mut self.rng, loss);
                continue;
            }
            more -= 1;
            self.received += m.parcel.bytes as u64;
            stirred |= life.handle_at(now, m.parcel.from, true, &m.parcel.word, *hint);
        }
        for (from, word) in self.inbox.drain(..) {
            stirred |= life.handle(now, from, false, &word);
        }
        if !stirred {
            return;
        }
        if now >= self.due {
            life.handle_timeout(now, &mut |_| None);
        }
        while let Some((event, _)) = life.poll_event() {
            self.witness.told(now, &event, truth, &mut turns.found);
        }
        while let Some((to, word)) = life.poll_transmit(now, &mut || None) {
            let (word, bytes) = sealed(&word, &mut self.read);
            let (seat, from) = (self.index, self.address);
            turns.said.push(Parcel { seat, from, to, word, bytes });
        }
        self.due = life.poll_timeout().unwrap_or(now + Duration::from_secs(3600));
        if self.parting && life.has_parted() {
            self.life = None;
            self.parting = false;
        }
    }
}

/// A parcel for all, and in which half its sender is.
#[derive(Debug)]
pub(super) struct Multicast {
    pub(super) parcel: Parcel,
    pub(super) node: NodeId,
    pub(super) half: bool,
}

/// Writes a word as the bytes that a frame carries, and reads it again as all its receivers do. What a member says of
/// itself seldom changes: then it is what was read before, and no receiver has to compare it.
fn sealed(word: &Word, read: &mut Option<Arc<MemberInfo>>) -> (Arc<Word>, usize) {
    let mut bytes = [0; MAX_WORD];
    let len = word.encode(&mut bytes).expect("a member's words fit");
    let mut word = Word::decode(word.kind(), &bytes[..len]).expect("a member's words can be read");
    if let Word::Beacon(Beacon { info: Some(info), .. }) = &mut word {
        match read {
            Some(before) if before == info => *info = before.clone(),
            _ => *read = Some(info.clone()),
        }
    }
    (Arc::new(word), FRAME_HEADER + len)
}

/// Datagrams that arrive before the next that is lost.
fn spared(rng: &mut fastrand::Rng, loss: f64) -> u64 {
    if loss <= 0.0 {
        return u64::MAX;
    }
    let u = 1.0 - rng.f64();
    (u.ln() / (1.0 - loss).ln()) as u64
}
