//! Queue pair states, the kernel's transition tables, and a validator that explains itself.
//!
//! # The state machine in short
//!
//! A queue pair (QP) is a pair of work queues, one of sends and one of receives, on a device. It is
//! born in RESET, able to do nothing, and is walked to RTS by three calls of `ibv_modify_qp`:
//!
//! ```text
//!            PKEY_INDEX             (peer, if                SQ_PSN
//!            PORT, QKEY             connected)
//!   RESET ─────────────▶ INIT ─────────────▶ RTR ─────────────▶ RTS ◀───▶ SQD
//!     ▲      partition,       ready to            ready to       │  ▲      send queue
//!     │      port, key        receive             send           │  │      drained
//!     │                                                          ▼  │
//!    ERR ◀── any but RESET, by a modify or a fatal error        SQE─┘ a send failed
//! ```
//!
//! * In **INIT** it has its partition, its port and its key, and receives may be posted; nothing
//!   arrives.
//! * In **RTR** (ready to receive) datagrams that carry its key arrive. A connected QP (UC, RC) learns
//!   on this step who its peer is; a UD QP has none.
//! * In **RTS** (ready to send) it does both. Here it stays.
//! * **SQD** is a pause asked for: sends that were begun are finished, later ones wait.
//! * **SQE** is a pause not asked for: a send of a UD or UC QP failed, later ones are flushed,
//!   receiving goes on. One modify, to RTS, mends it. No modify leads here. Soft-RoCE never uses it
//!   and goes to ERR in its place.
//! * In **ERR** everything is flushed. The only way on is to RESET and up again.
//!
//! Any state goes to RESET, any but RESET to ERR. What is not drawn is not legal: no step may be
//! skipped, and while staying in RTR or SQE nothing can be changed. Of the 49 pairs of states 22 are
//! legal, the same for each transport type; [`pairs`] lists them and [`graph`] draws them.
//!
//! # The mask
//!
//! A modify carries *attributes* (port, key, first sequence number, ...) and a mask that says which.
//! Each step has attributes that it must carry and some that it may; these depend on the type
//! ([`transition`]). One too few or one too many and the kernel says EINVAL, no more. Two bits are
//! special. STATE asks to move; without it the modify stays where it is, which is how a key is changed
//! in RTS. CUR_STATE says where the caller believes the QP to be, since it can move by itself.
//!
//! # What is here
//!
//! [`check()`] judges a modify by the table: [`TransitionError`] says whether the step is illegal (and
//! which walk is legal), attributes are missing, are foreign, or CUR_STATE is misused. [`validate`]
//! adds the checks on values for which a port must be known. [`path()`], [`walk_to_rts`] and
//! [`reset_walk`] plan; [`UdSetup`] and its like have the values for each step; [`explain()`] tells the
//! table to people. Nothing here touches a device: whoever does goes through [`validate`] first, and
//! takes the new state as true only after the device has accepted the step.
//!
//! # Examples
//! ```
//! use qcast_proto::qp::{QpAttrs, QpState, QpType, RawQKey, UdSetup, check, walk_to_rts};
//! # use qcast_proto::addr::Psn;
//!
//! // Bring a UD queue pair back from ERR.
//! let setup = UdSetup { pkey_index: 0, port: 1, qkey: RawQKey(0x0bad_cafe), sq_psn: Psn::new(0) };
//! let mut masks = Vec::new();
//! for hop in walk_to_rts(QpState::Err).hops(QpType::Ud) {
//!     let attrs = setup.attrs(hop.from, hop.to).expect("a hop is a legal step");
//!     let step = check(QpType::Ud, hop.from, &attrs)?;
//!     masks.push(step.mask().bits());
//! }
//! assert_eq!(masks, [0x1, 0x71, 0x1, 0x10001]);
//! # Ok::<(), qcast_proto::qp::TransitionError>(())
//! ```

mod attrs;
mod bringup;
mod check;
mod explain;
mod kind;
mod mask;
mod path;
mod precheck;
mod state;
mod table;
mod values;

pub use attrs::{Attr, QpAttrs};
pub use bringup::{ConnectedInit, RcRtr, RcRts, UcRtr, UcRts, UdSetup};
pub use check::{Attempt, Request, Step, TransitionError, check, check_request};
pub use explain::{Explanation, explain, graph};
pub use kind::QpType;
pub use mask::AttrMask;
pub use path::{Hop, Path, path, reset_walk, walk_to_rts};
pub use precheck::{
    Accepted, LinkLayer, ModifyContext, ModifyError, Precheck, PrecheckError, Privilege,
    PsnTooWide, checked_psn, validate,
};
pub use state::{QpState, UnknownQpState};
pub use table::{Transition, pairs, successors, transition};
pub use values::{AccessFlags, AddressVector, GlobalRoute, PathMigState, PathMtu, RawQKey};
