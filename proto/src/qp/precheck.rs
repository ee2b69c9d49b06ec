//! What the table does not say: checks on values, which need to know the port.
//!
//! The kernel answers each of these with a bare EINVAL (a privileged key: EPERM), so each is made
//! here first and told apart.

use alloc::vec::Vec;
use core::fmt;

use super::check::{Attempt, Step, TransitionError, check};
use super::{AddressVector, Attr, AttrMask, QpAttrs, QpState, QpType};
use crate::addr::Psn;

/// What a port's wire is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// InfiniBand, and whatever a driver does not name.
    InfiniBand,
    /// Ethernet: RoCE.
    Ethernet,
}

/// Whether a queue key with bit 31 set may be set by this process.
///
/// It takes CAP_NET_RAW in the first user namespace, or a system switch; the answer cannot always be
/// known beforehand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Privilege {
    /// It may.
    Granted,
    /// It may not.
    Denied,
    /// Only trying will tell.
    #[default]
    Unknown,
}

/// What is known about the device and the queue pair besides its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModifyContext {
    /// How many ports the device has; they are numbered from 1.
    pub ports: u8,
    /// The link layer of the queue pair's port.
    pub link: LinkLayer,
    /// How many entries the port's partition key table has.
    pub pkey_table_len: u16,
    /// The port the queue pair was given in INIT, if it has one yet.
    pub qp_port: Option<u8>,
    /// Whether privileged queue keys may be set.
    pub privileged_qkey: Privilege,
}

/// A modify that passed every check here. The device may still refuse it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The step it makes.
    pub step: Step,
    /// The checks that applied and passed, to be named if the device refuses all the same.
    pub passed: Vec<Precheck>,
    /// Whether it sets a privileged queue key on trust: an EPERM from the device then means
    /// [`PrecheckError::PrivilegedQkey`].
    pub may_need_privilege: bool,
}

/// A check that a modify went through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Precheck {
    /// The port exists on the device.
    PortExists,
    /// The table allows the step with this mask.
    Transition,
    /// The partition key index is within the port's table.
    PkeyIndex,
    /// The queue key is one that this process may set.
    QkeyPrivilege,
    /// The address vector's port is the queue pair's.
    AvPort,
    /// The address vector has a global route if the link needs one.
    Grh,
    /// Values fit their fields.
    FieldWidth,
}

impl fmt::Display for Precheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PortExists => "port exists",
            Self::Transition => "step is legal with this mask",
            Self::PkeyIndex => "PKey index is in the table",
            Self::QkeyPrivilege => "QKey may be set",
            Self::AvPort => "AV port is the QP's",
            Self::Grh => "AV has the GRH it needs",
            Self::FieldWidth => "values fit their fields",
        })
    }
}

/// Judges a modify whole: ports first, as the kernel does, then the table, then the other values.
///
/// # Errors
/// [`ModifyError`] says what is wrong and what would be right. Nothing was changed.
pub fn validate(
    qp_type: QpType,
    held: QpState,
    attrs: &QpAttrs,
    context: &ModifyContext,
) -> Result<Accepted, ModifyError> {
    let attempt = attrs.request().attempt(qp_type, held);
    let mut passed = Vec::new();
    if check_ports(attempt, attrs, context)? {
        passed.push(Precheck::PortExists);
    }
    let step = check(qp_type, held, attrs)?;
    passed.push(Precheck::Transition);
    let mut may_need_privilege = false;
    for attr in attrs {
        match *attr {
            Attr::PkeyIndex(index) => {
                let len = context.pkey_table_len;
                if index >= len {
                    return Err(PrecheckError::InvalidPkeyIndex { attempt, index, len }.into());
                }
                passed.push(Precheck::PkeyIndex);
            }
            Attr::QKey(key) => match context.privileged_qkey {
                Privilege::Denied if key.is_privileged() => {
                    return Err(PrecheckError::PrivilegedQkey { attempt }.into());
                }
                Privilege::Unknown if key.is_privileged() => may_need_privilege = true,
                _ => passed.push(Precheck::QkeyPrivilege),
            },
            Attr::Av(av) => check_av(attempt, &av, context, &mut passed)?,
            Attr::AltPath if context.link == LinkLayer::Ethernet => {
                return Err(PrecheckError::AltPathOnEthernet { attempt }.into());
            }
            Attr::Timeout(n) | Attr::MinRnrTimer(n) => {
                check_width(attempt, attr.mask(), n.into(), 5)?;
                passed.push(Precheck::FieldWidth);
            }
            Attr::RetryCnt(n) | Attr::RnrRetry(n) => {
                check_width(attempt, attr.mask(), n.into(), 3)?;
                passed.push(Precheck::FieldWidth);
            }
            _ => {}
        }
    }
    passed.sort_unstable();
    passed.dedup();
    Ok(Accepted { step, passed, may_need_privilege })
}

/// Checks that the ports named by `attrs` exist; whether there were any.
fn check_ports(
    attempt: Attempt,
    attrs: &QpAttrs,
    context: &ModifyContext,
) -> Result<bool, PrecheckError> {
    let ports = context.ports;
    let own = attrs.port().map(|port| (AttrMask::PORT, port));
    let path = attrs.av().map(|av| (AttrMask::AV, av.port));
    for (attribute, port) in own.into_iter().chain(path) {
        if !(1..=ports).contains(&port) {
            return Err(PrecheckError::InvalidPort { attempt, attribute, port, ports });
        }
    }
    Ok(own.or(path).is_some())
}

fn check_av(
    attempt: Attempt,
    av: &AddressVector,
    context: &ModifyContext,
    passed: &mut Vec<Precheck>,
) -> Result<(), PrecheckError> {
    if let Some(qp_port) = context.qp_port.filter(|_| attempt.to == QpState::Rtr) {
        if qp_port != av.port {
            return Err(PrecheckError::AvPortMismatch { attempt, port: av.port, qp_port });
        }
        passed.push(Precheck::AvPort);
    }
    if av.grh.is_none() && context.link == LinkLayer::Ethernet {
        return Err(PrecheckError::GrhRequired { attempt });
    }
    passed.push(Precheck::Grh);
    if let Some(grh) = av.grh {
        check_width(attempt, AttrMask::AV, grh.flow_label, 20)?;
        passed.push(Precheck::FieldWidth);
    }
    Ok(())
}

fn check_width(
    attempt: Attempt,
    attribute: AttrMask,
    value: u32,
    bits: u32,
) -> Result<(), PrecheckError> {
    if value >> bits == 0 {
        Ok(())
    } else {
        Err(PrecheckError::TooWide { attempt, attribute, value, bits })
    }
}

/// The packet sequence number `n`, if it fits its 24 bits.
///
/// [`Psn::new`] drops the rest as the kernel does, with a warning there in its log. Numbers that a
/// user gave go through here, so that a slip is told and not cut off.
///
/// # Errors
/// [`PsnTooWide`] has the number.
pub const fn checked_psn(n: u32) -> Result<Psn, PsnTooWide> {
    if n >> 24 == 0 { Ok(Psn::new(n)) } else { Err(PsnTooWide(n)) }
}

/// A packet sequence number that does not fit its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("PSN {0:#x} does not fit 24 bits; choose one from 0 to 0xffffff")]
pub struct PsnTooWide(pub u32);

/// Why a modify is refused before a device sees it. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// A value is out of place.
    #[error(transparent)]
    Precheck(#[from] PrecheckError),
    /// The table does not allow it.
    #[error(transparent)]
    Transition(#[from] TransitionError),
}

/// A value that the device or its port has no place for. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PrecheckError {
    /// There is no such port on the device.
    #[error("{attempt}: {attribute} names port {port}; the device has ports 1..={ports}")]
    InvalidPort {
        /// What was asked.
        attempt: Attempt,
        /// Which attribute names the port: PORT or AV.
        attribute: AttrMask,
        /// The port.
        port: u8,
        /// How many there are.
        ports: u8,
    },
    /// There is no such entry in the port's partition key table.
    #[error(
        "{attempt}: PKEY_INDEX {index} is outside the port's PKey table of {len}; 0 is the first"
    )]
    InvalidPkeyIndex {
        /// What was asked.
        attempt: Attempt,
        /// The index.
        index: u16,
        /// How many entries there are.
        len: u16,
    },
    /// The queue key is privileged, and this process is not. The kernel says EPERM.
    #[error(
        "{attempt}: the QKey has bit 31 set, which takes CAP_NET_RAW in the initial user namespace, \
         or `rdma system set privileged-qkey on`; or choose a key up to 0x7fffffff"
    )]
    PrivilegedQkey {
        /// What was asked.
        attempt: Attempt,
    },
    /// The address vector is for another port than the queue pair's.
    #[error("{attempt}: AV leaves by port {port}, but the QP was given port {qp_port} in INIT")]
    AvPortMismatch {
        /// What was asked.
        attempt: Attempt,
        /// The address vector's port.
        port: u8,
        /// The queue pair's.
        qp_port: u8,
    },
    /// The address vector has no global route, which Ethernet needs.
    #[error(
        "{attempt}: AV has no GRH, which every address on Ethernet (RoCE) needs; give it a GID"
    )]
    GrhRequired {
        /// What was asked.
        attempt: Attempt,
    },
    /// RoCE has no alternate paths.
    #[error("{attempt}: ALT_PATH is refused on Ethernet (RoCE); leave it out")]
    AltPathOnEthernet {
        /// What was asked.
        attempt: Attempt,
    },
    /// A value does not fit the bits its field has.
    #[error("{attempt}: {value} in {attribute} does not fit its {bits} bits")]
    TooWide {
        /// What was asked.
        attempt: Attempt,
        /// Which attribute has it.
        attribute: AttrMask,
        /// The value.
        value: u32,
        /// How wide the field is.
        bits: u32,
    },
}
