//! Opening a device.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::Arc;

use qcast_proto::addr::Gid;
use qcast_proto::qp::{LinkLayer, ModifyContext, PathMtu, Privilege, QpState, QpType};
use qcast_proto::time::Instant;
use rdma_sys as sys;
use slab::Slab;

use super::ah::AhTable;
use super::cm::CmChannel;
use super::cq::{Channel, Cq, WcRoom};
use super::device::Context;
use super::error::VerbsOpenError;
use super::event::Reader;
use super::gid::{self, Entry};
use super::ipoib;
use super::pd::{Pd, Slabs};
use super::qp::{Qp, Shape};
use super::srq::{Posted, Srq};
use super::{VerbsDevice, memlock};
use crate::device::buf::GRH_BYTES;
use crate::device::spec::{QpBy, VerbsSpec};
use crate::device::{DeviceCaps, DeviceError, PortCounters};

/// How a device is opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VerbsConfig {
    /// The device, its port and its GID, and what makes queue pairs and joins groups.
    pub spec: VerbsSpec,
    /// A path MTU below the port's, in bytes.
    pub mtu: Option<usize>,
    /// Receives that can be posted.
    pub srq_depth: usize,
    /// Sends that can be posted to one queue pair.
    pub send_depth: usize,
    /// Address handles that may live at once.
    pub max_ah: usize,
}

impl VerbsConfig {
    /// The device of this spec, with the default bounds.
    pub fn new(spec: VerbsSpec) -> Self {
        Self { spec, mtu: None, srq_depth: 2048, send_depth: 512, max_ah: 4096 }
    }
}

/// A port with what does not change while it is open.
pub(super) struct Port {
    pub(super) number: u8,
    pub(super) link: LinkLayer,
    /// The GID that peers reach it by, and where it is in the table now.
    pub(super) gid: Entry,
    pub(super) mtu: usize,
    pub(super) active: bool,
}

impl VerbsDevice {
    /// Opens a device: chooses port and GID, and makes a PD, an SRQ and the queue of its completions.
    ///
    /// # Errors
    /// [`VerbsOpenError`] says what is not there, forbidden or too small. Nothing is left open.
    pub fn open(config: &VerbsConfig) -> Result<Self, VerbsOpenError> {
        let context = match config.spec.qp {
            QpBy::Verbs => Context::open(&config.spec.name)?,
            QpBy::RdmaCm => Context::of_rdma_cm(&config.spec.name)?,
        };
        let attr = context.query_device()?;
        let (number, port_attr) = choose_port(&context, &config.spec, attr.phys_port_cnt)?;
        let link = gid::link_layer(&port_attr);
        let gid = choose_gid(&context, &config.spec, number, link)?;
        let active_mtu = match link {
            LinkLayer::Ethernet => active_mtu(&port_attr),
            LinkLayer::InfiniBand => active_mtu(&port_attr).min(group_mtu(&context, number)?),
        };
        let mtu = choose_mtu(config, active_mtu)?;
        let incapable = |what| VerbsOpenError::Incapable { name: config.spec.name.clone(), what };
        if attr.max_srq < 1 {
            return Err(incapable("shared receive queues"));
        }
        if attr.max_mcast_grp < 1 {
            return Err(incapable("multicast"));
        }
        let limit = |most: i32, asked: usize| asked.min(usize::try_from(most).unwrap_or(0));
        let srq_depth = limit(attr.max_srq_wr.min(attr.max_cqe), config.srq_depth);
        let send_depth = limit(attr.max_qp_wr.min(attr.max_cqe), config.send_depth);
        // Some drivers leave it at 0 and have no limit.
        let max_ah =
            if attr.max_ah > 0 { limit(attr.max_ah, config.max_ah) } else { config.max_ah };
        let largest = PathMtu::from_raw(port_attr.max_mtu).map_or(mtu, PathMtu::bytes);
        let recv_capacity = largest.max(mtu);
        memlock::check((srq_depth * (GRH_BYTES + recv_capacity)) as u64)?;

        let pd = Pd::alloc(&context)?;
        let channel = Channel::create(&context)?;
        let recv_cq = Cq::create(&context, &channel, srq_depth)?;
        let srq = Srq::create(&pd, srq_depth)?;
        let cm = CmChannel::create()?;
        let ahs = AhTable::new(&pd, max_ah)?;
        super::device::set_nonblocking(
            &super::device::Borrowed(context.async_fd()),
            "fcntl of a context",
        )?;
        let sources = vec![channel.fd(), context.async_fd(), cm.fd(), ahs.fd()];
        let max_inline = probe_inline(&pd, &context, &channel, &recv_cq, &srq, send_depth)?;
        let caps = DeviceCaps {
            name: format!("verbs:{}/{number}", config.spec.name),
            max_payload: mtu,
            max_srq_wr: srq_depth,
            max_send_wr: send_depth,
            max_ah,
            backlog: usize::MAX,
            loops_back: None,
            ethernet: link == LinkLayer::Ethernet,
            counts_drops: false,
            pkeys: port_attr.pkey_tbl_len,
            ports: attr.phys_port_cnt,
            new_qp: match config.spec.qp {
                QpBy::Verbs => QpState::Reset,
                QpBy::RdmaCm => QpState::Rts,
            },
        };
        tracing::info!(
            device = %caps.name, gid = %gid.gid, gid_index = gid.index, mtu, max_inline, "opened"
        );
        Ok(Self {
            memberships: Vec::new(),
            cm,
            qps: Slab::new(),
            numbers: BTreeMap::new(),
            ahs,
            posted: Posted::new(&srq, srq_depth),
            slabs: Slabs(Arc::clone(&pd)),
            recv_cq,
            recv_armed: false,
            done: VecDeque::new(),
            events: VecDeque::new(),
            counters: PortCounters::default(),
            violations: port_attr.qkey_viol_cntr,
            room: WcRoom::new(ROOM),
            next_seq: 0,
            now: Instant::ZERO,
            look_at: Instant::ZERO,
            lost: false,
            context_of_modifies: ModifyContext {
                ports: attr.phys_port_cnt,
                link,
                pkey_table_len: port_attr.pkey_tbl_len,
                qp_port: None,
                privileged_qkey: Privilege::Unknown,
            },
            port: Port { number, link, gid, mtu, active: is_active(&port_attr) },
            max_inline,
            recv_capacity,
            qp_by: config.spec.qp,
            join: config.spec.join,
            mcast_limits: [
                attr.max_mcast_grp,
                attr.max_mcast_qp_attach,
                attr.max_total_mcast_qp_attach,
            ]
            .map(|most| u32::try_from(most).unwrap_or(0)),
            caps,
            sources,
            channel,
            pd,
            reader: Reader::new(&context),
            context,
        })
    }
}

/// The port that was asked for, or the first that is active.
fn choose_port(
    context: &Context,
    spec: &VerbsSpec,
    ports: u8,
) -> Result<(u8, sys::ibv_port_attr), VerbsOpenError> {
    if let Some(port) = spec.port {
        if port > ports {
            return Err(VerbsOpenError::NoSuchPort { name: spec.name.clone(), port, ports });
        }
        let attr = context.query_port(port)?;
        if is_active(&attr) {
            return Ok((port, attr));
        }
    } else {
        for port in 1..=ports {
            let attr = context.query_port(port)?;
            if is_active(&attr) {
                return Ok((port, attr));
            }
        }
    }
    Err(VerbsOpenError::NoActivePort { name: spec.name.clone() })
}

pub(super) fn is_active(attr: &sys::ibv_port_attr) -> bool {
    attr.state == sys::ibv_port_state::IBV_PORT_ACTIVE
}

fn choose_gid(
    context: &Context,
    spec: &VerbsSpec,
    port: u8,
    link: LinkLayer,
) -> Result<Entry, VerbsOpenError> {
    let name = || spec.name.clone();
    let table = gid::table(context, port)?;
    match spec.gid_index {
        Some(index) => gid::at(&table, link, index).map_err(|unfit| VerbsOpenError::BadGidIndex {
            name: name(),
            index,
            what: unfit.what(),
        }),
        None => {
            let entry = gid::choose(&table, link)
                .ok_or_else(|| VerbsOpenError::NoUsableGid { name: name(), port })?;
            if entry.gid.is_link_local() && link == LinkLayer::Ethernet {
                tracing::warn!(device = spec.name, gid = %entry.gid, "the one GID is link-local: peers must be on this link");
            }
            Ok(entry)
        }
    }
}

/// The port's MTU in bytes.
pub(super) fn active_mtu(attr: &sys::ibv_port_attr) -> usize {
    PathMtu::from_raw(attr.active_mtu).map_or(256, PathMtu::bytes)
}

fn choose_mtu(config: &VerbsConfig, active: usize) -> Result<usize, VerbsOpenError> {
    let Some(asked) = config.mtu else { return Ok(active) };
    if asked > active || !PathMtu::ALL.iter().any(|mtu| mtu.bytes() == asked) {
        return Err(VerbsOpenError::BadMtu { name: config.spec.name.clone(), asked, active });
    }
    Ok(asked)
}

/// What a datagram to a group holds on an InfiniBand port.
fn group_mtu(context: &Context, port: u8) -> Result<usize, DeviceError> {
    let gids: Vec<Gid> = gid::table(context, port)?.iter().map(|entry| entry.gid).collect();
    let interfaces = ipoib::of_port(ipoib::ROOT.as_ref(), &gids, context.pkey(port, 0)?);
    Ok(ipoib::group_mtu(interfaces.first()))
}

/// How many bytes a UD queue pair takes into its requests. There is no attribute to ask: what can be had is seen by
/// trying, and drivers give less, or more, than was asked for.
fn probe_inline(
    pd: &Arc<Pd>,
    context: &Context,
    channel: &Arc<Channel>,
    recv_cq: &Cq,
    srq: &Arc<Srq>,
    depth: usize,
) -> Result<usize, DeviceError> {
    for inline in [256, 128, 64] {
        let cq = Cq::create(context, channel, depth)?;
        let shape = Shape { kind: QpType::Ud, depth, inline };
        match Qp::create(pd, cq, recv_cq, srq, shape, None) {
            Ok(qp) => return Ok(qp.max_inline().min(inline)),
            Err(error) => tracing::debug!(inline, %error, "no such inline size"),
        }
    }
    Ok(0)
}

/// The address of a GID on a RoCE port, with the interface where the address needs it.
pub(super) fn local_address(entry: &Entry) -> SocketAddr {
    match entry.gid.ip() {
        IpAddr::V6(ip) if Gid::from(IpAddr::V6(ip)).is_link_local() => {
            SocketAddrV6::new(ip, 0, 0, entry.interface).into()
        }
        ip => SocketAddr::new(ip, 0),
    }
}

/// Completions taken by one call of the verb.
const ROOM: usize = 128;
