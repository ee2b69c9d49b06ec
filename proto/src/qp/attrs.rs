//! Attribute values: what one modify carries.

use alloc::vec::Vec;
use core::fmt;

use super::{
    AccessFlags, AddressVector, AttrMask, PathMigState, PathMtu, QpState, RawQKey, Request,
};
use crate::addr::{Psn, Qpn};

/// One attribute with its value.
///
/// Exhaustive on purpose: whoever hands attributes to a device must say what becomes of each. CAP
/// and RATE_LIMIT are not among them, since no step of UD, UC or RC takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Attr {
    /// STATE.
    State(QpState),
    /// CUR_STATE.
    CurState(QpState),
    /// EN_SQD_ASYNC_NOTIFY.
    EnSqdAsyncNotify(bool),
    /// ACCESS_FLAGS.
    Access(AccessFlags),
    /// PKEY_INDEX.
    PkeyIndex(u16),
    /// PORT, counted from 1.
    Port(u8),
    /// QKEY.
    QKey(RawQKey),
    /// AV.
    Av(AddressVector),
    /// PATH_MTU.
    PathMtu(PathMtu),
    /// TIMEOUT: 4.096 µs × 2^n, 5 bits; 0 waits for ever.
    Timeout(u8),
    /// RETRY_CNT, 3 bits.
    RetryCnt(u8),
    /// RNR_RETRY, 3 bits; 7 means without end.
    RnrRetry(u8),
    /// RQ_PSN.
    RqPsn(Psn),
    /// MAX_QP_RD_ATOMIC.
    MaxQpRdAtomic(u8),
    /// ALT_PATH. A marker: RoCE has none, and qcast sets none on InfiniBand.
    AltPath,
    /// MIN_RNR_TIMER: the specification's code for a delay, 5 bits.
    MinRnrTimer(u8),
    /// SQ_PSN.
    SqPsn(Psn),
    /// MAX_DEST_RD_ATOMIC.
    MaxDestRdAtomic(u8),
    /// PATH_MIG_STATE.
    PathMigState(PathMigState),
    /// DEST_QPN.
    DestQpn(Qpn),
}

impl Attr {
    /// Its bit in a mask.
    pub const fn mask(&self) -> AttrMask {
        match self {
            Self::State(_) => AttrMask::STATE,
            Self::CurState(_) => AttrMask::CUR_STATE,
            Self::EnSqdAsyncNotify(_) => AttrMask::EN_SQD_ASYNC_NOTIFY,
            Self::Access(_) => AttrMask::ACCESS_FLAGS,
            Self::PkeyIndex(_) => AttrMask::PKEY_INDEX,
            Self::Port(_) => AttrMask::PORT,
            Self::QKey(_) => AttrMask::QKEY,
            Self::Av(_) => AttrMask::AV,
            Self::PathMtu(_) => AttrMask::PATH_MTU,
            Self::Timeout(_) => AttrMask::TIMEOUT,
            Self::RetryCnt(_) => AttrMask::RETRY_CNT,
            Self::RnrRetry(_) => AttrMask::RNR_RETRY,
            Self::RqPsn(_) => AttrMask::RQ_PSN,
            Self::MaxQpRdAtomic(_) => AttrMask::MAX_QP_RD_ATOMIC,
            Self::AltPath => AttrMask::ALT_PATH,
            Self::MinRnrTimer(_) => AttrMask::MIN_RNR_TIMER,
            Self::SqPsn(_) => AttrMask::SQ_PSN,
            Self::MaxDestRdAtomic(_) => AttrMask::MAX_DEST_RD_ATOMIC,
            Self::PathMigState(_) => AttrMask::PATH_MIG_STATE,
            Self::DestQpn(_) => AttrMask::DEST_QPN,
        }
    }
}

/// `QKEY=0x......fe`: the mask's name and the value. Keys are not shown whole.
impl fmt::Display for Attr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.mask())?;
        match self {
            Self::State(state) | Self::CurState(state) => write!(f, "={state}"),
            Self::EnSqdAsyncNotify(on) => write!(f, "={on}"),
            Self::Access(flags) => write!(f, "={:#x}", flags.bits()),
            Self::PkeyIndex(index) => write!(f, "={index}"),
            Self::QKey(key) => write!(f, "={key:?}"),
            Self::Av(av) => match av.grh {
                Some(grh) => {
                    write!(f, "=port {} sgid_index {} to {}", av.port, grh.sgid_index, grh.dgid)
                }
                None => write!(f, "=port {} to LID {:#x}", av.port, av.dlid),
            },
            Self::PathMtu(mtu) => write!(f, "={}", mtu.bytes()),
            Self::RqPsn(psn) | Self::SqPsn(psn) => write!(f, "={:#x}", psn.get()),
            Self::Port(n)
            | Self::Timeout(n)
            | Self::RetryCnt(n)
            | Self::RnrRetry(n)
            | Self::MaxQpRdAtomic(n)
            | Self::MinRnrTimer(n)
            | Self::MaxDestRdAtomic(n) => write!(f, "={n}"),
            Self::AltPath => Ok(()),
            Self::PathMigState(state) => write!(f, "={state:?}"),
            Self::DestQpn(qpn) => write!(f, "={qpn}"),
        }
    }
}

/// The attributes of one modify, each at most once, in the order of their bits.
///
/// The mask follows from the values, so the two cannot disagree. Usual steps come from
/// [`UdSetup`](super::UdSetup), [`ConnectedInit`](super::ConnectedInit) and the like; an unusual one
/// is built with [`with`](Self::with).
///
/// ```
/// use qcast_proto::qp::{Attr, AttrMask, QpAttrs, QpState, RawQKey};
///
/// let attrs = QpAttrs::to(QpState::Rts).with(Attr::QKey(RawQKey(7)));
/// assert_eq!(attrs.mask(), AttrMask::STATE | AttrMask::QKEY);
/// assert_eq!(attrs.state(), Some(QpState::Rts));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct QpAttrs {
    // By rising bit, one each.
    values: Vec<Attr>,
}

impl QpAttrs {
    /// No attributes.
    pub const fn new() -> Self {
        Self { values: Vec::new() }
    }

    /// STATE alone: all that RESET, ERR, SQD and a plain return to RTS need.
    pub fn to(state: QpState) -> Self {
        Self::new().with(Attr::State(state))
    }

    /// These and `attr`, which replaces one of its kind.
    #[must_use]
    pub fn with(mut self, attr: Attr) -> Self {
        match self.values.binary_search_by_key(&attr.mask(), Attr::mask) {
            Ok(at) => self.values[at] = attr,
            Err(at) => self.values.insert(at, attr),
        }
        self
    }

    /// The mask that says which attributes are here.
    pub fn mask(&self) -> AttrMask {
        self.values.iter().map(Attr::mask).collect()
    }

    /// The attributes, in the order of their bits.
    pub fn iter(&self) -> core::slice::Iter<'_, Attr> {
        self.values.iter()
    }

    /// The attribute whose bit is `one`.
    pub fn find(&self, one: AttrMask) -> Option<Attr> {
        self.iter().copied().find(|attr| attr.mask() == one)
    }

    /// STATE.
    pub fn state(&self) -> Option<QpState> {
        self.iter().find_map(|attr| match attr {
            Attr::State(state) => Some(*state),
            _ => None,
        })
    }

    /// CUR_STATE.
    pub fn cur_state(&self) -> Option<QpState> {
        self.iter().find_map(|attr| match attr {
            Attr::CurState(state) => Some(*state),
            _ => None,
        })
    }

    /// PORT.
    pub fn port(&self) -> Option<u8> {
        self.iter().find_map(|attr| match attr {
            Attr::Port(port) => Some(*port),
            _ => None,
        })
    }

    /// QKEY.
    pub fn qkey(&self) -> Option<RawQKey> {
        self.iter().find_map(|attr| match attr {
            Attr::QKey(key) => Some(*key),
            _ => None,
        })
    }

    /// AV.
    pub fn av(&self) -> Option<AddressVector> {
        self.iter().find_map(|attr| match attr {
            Attr::Av(av) => Some(*av),
            _ => None,
        })
    }

    /// What the table is asked about these.
    pub fn request(&self) -> Request {
        Request::new(self.state(), self.cur_state(), self.mask())
    }
}

impl FromIterator<Attr> for QpAttrs {
    fn from_iter<I: IntoIterator<Item = Attr>>(attrs: I) -> Self {
        attrs.into_iter().fold(Self::new(), Self::with)
    }
}

impl<'a> IntoIterator for &'a QpAttrs {
    type Item = &'a Attr;
    type IntoIter = core::slice::Iter<'a, Attr>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// The values on one line: `STATE=INIT PKEY_INDEX=0 PORT=1 QKEY=0x......fe`.
impl fmt::Display for QpAttrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, attr) in self.iter().enumerate() {
            write!(f, "{}{attr}", if n > 0 { " " } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn values_are_kept_once_and_in_bit_order() {
        let attrs = QpAttrs::new()
            .with(Attr::QKey(RawQKey(0x0bad_cafe)))
            .with(Attr::Port(2))
            .with(Attr::State(QpState::Init))
            .with(Attr::Port(1))
            .with(Attr::PkeyIndex(0));
        assert_eq!(attrs.mask().bits(), 0x71);
        assert_eq!(attrs.to_string(), "STATE=INIT PKEY_INDEX=0 PORT=1 QKEY=0x......fe");
        assert!(!std::format!("{attrs:?}").contains("cafe"));
        assert_eq!(attrs.find(AttrMask::PORT), Some(Attr::Port(1)));
        assert_eq!(attrs.find(AttrMask::AV), None);
    }
}
