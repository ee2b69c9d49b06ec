//! Opening a device, and looking after its interface.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Once;

use nix::errno::Errno;
use qcast_proto::addr::ROCE_PORT;
use qcast_proto::time::{Duration, Instant};
use socket2::Socket;

use super::config::Draw;
use super::error::Call;
use super::interface::{PATH_MTUS, Place, path_mtu};
use super::qp::{AhTable, QpTable, qkey_privilege};
use super::receive::{Endpoint, Inbox, OTHER_PORTS};
use super::send::Gso;
use super::{SoftAddress, SoftConfig, SoftDevice, SoftOpenError, socket};
use crate::device::{DeviceCaps, DeviceError, DeviceEvent};

impl SoftDevice {
    /// Opens a device: finds its interface, takes an address and a port there, and binds a socket.
    ///
    /// # Errors
    /// [`SoftOpenError`] says what is not there, taken or too small. Nothing is left open.
    ///
    /// # Examples
    /// ```
    /// use qcast::device::Device;
    /// use qcast::device::soft::{SoftAddress, SoftConfig, SoftDevice};
    ///
    /// let device = SoftDevice::open(&SoftConfig::new(SoftAddress::Loopback))?;
    /// assert_eq!(device.caps().max_payload, 4096);
    /// # Ok::<(), qcast::device::soft::SoftOpenError>(())
    /// ```
    pub fn open(config: &SoftConfig) -> Result<Self, SoftOpenError> {
        let mut place = Place::find(&config.address)?;
        let mtu = choose_mtu(config.mtu, &place)?;
        let mut draw = Draw(config.seed);
        let socket = socket::unicast(&place, config)?;
        let local = bind(&socket, &place, config, &mut draw)?;
        place.address = local.ip();
        let buffer = socket::recv_buffer(&socket)?;
        warn_of_small_buffer(buffer, config.recv_buffer);
        let caps = DeviceCaps {
            name: format!("soft:{}", place.interface),
            max_payload: mtu,
            max_srq_wr: config.srq_depth,
            max_send_wr: config.send_depth,
            max_ah: config.max_ah,
            backlog: buffer / footprint(mtu),
            loops_back: Some(true),
            ethernet: true,
            counts_drops: true,
            pkeys: 1,
            ports: 1,
            new_qp: qcast_proto::qp::QpState::Reset,
        };
        tracing::info!(device = %caps.name, address = %local, mtu, backlog = caps.backlog, "opened");
        let mut device = Self {
            config: config.clone(),
            caps,
            place,
            local,
            mtu,
            active: true,
            lost: false,
            privileged_qkey: qkey_privilege(),
            now: Instant::ZERO,
            look_at: Instant::ZERO,
            retry_at: None,
            unicast: Endpoint::new(socket, local),
            groups: Vec::new(),
            turn: 0,
            qps: QpTable::new(&mut draw),
            ahs: AhTable::new(config.max_ah),
            inbox: Inbox::default(),
            gso: if config.offload { Gso::On } else { Gso::Off },
            staging: vec![0; STAGING].into_boxed_slice(),
            control: socket::control_space(),
            sources: Vec::new(),
            epoch: 0,
        };
        device.list_sources();
        Ok(device)
    }

    /// Lists the sockets anew.
    pub(super) fn list_sources(&mut self) {
        self.sources.clear();
        self.sources.push(self.unicast.socket.as_raw_fd());
        self.sources.extend(self.groups.iter().map(|group| group.endpoint.socket.as_raw_fd()));
        self.epoch += 1;
        self.turn = 0;
    }

    /// Asks whether the interface is there, up and as wide as it was. A few system calls, once a second.
    pub(super) fn look_after(&mut self, now: Instant) {
        self.look_at = now + LOOK_EVERY;
        if self.lost {
            return;
        }
        let active = match self.place.active() {
            Ok(Some(active)) => active,
            Ok(None) => {
                self.lost = true;
                self.active = false;
                self.inbox
                    .events
                    .push_back(DeviceEvent::Lost { cause: "its network interface is gone" });
                return;
            }
            Err(error) => {
                tracing::debug!(%error, "the interface could not be looked at");
                return;
            }
        };
        // What is sent must fit the link of now, and what was allocated fits the MTU of the opening.
        let mtu = match self.place.link_mtu().ok().and_then(path_mtu) {
            Some(mtu) if active => mtu.min(self.caps.max_payload),
            _ => self.mtu,
        };
        if (active, mtu) != (self.active, self.mtu) {
            tracing::info!(device = %self.caps.name, active, mtu, "the port changed");
            (self.active, self.mtu) = (active, mtu);
            self.inbox.events.push_back(DeviceEvent::PortChanged);
        }
    }
}

fn choose_mtu(asked: Option<usize>, place: &Place) -> Result<usize, SoftOpenError> {
    let link = place.link_mtu()?;
    let interface = || place.interface.clone();
    let most = path_mtu(link)
        .ok_or_else(|| SoftOpenError::LinkTooSmall { interface: interface(), link })?;
    match asked {
        None => Ok(most),
        Some(asked) if !PATH_MTUS.contains(&asked) => Err(SoftOpenError::BadMtu(asked)),
        Some(asked) if asked > most => {
            Err(SoftOpenError::MtuTooLarge { asked, interface: interface(), link, most })
        }
        Some(asked) => Ok(asked),
    }
}

/// Takes an address and a port; see the [module](super) for the rules.
fn bind(
    socket: &Socket,
    place: &Place,
    config: &SoftConfig,
    draw: &mut Draw,
) -> Result<SocketAddr, SoftOpenError> {
    let by_number = matches!(config.address, SoftAddress::Addr(_));
    if place.loopback && place.address.is_ipv4() {
        if by_number {
            let address = place.socket_addr(ROCE_PORT);
            return try_bind(socket, address)?.ok_or(SoftOpenError::PortTaken(address));
        }
        for _ in 0..LOOPBACK_TRIES {
            let [a, b, c, ..] = draw.next().to_le_bytes();
            // 127.0.x.y is left to those who choose by hand, and to the resolvers that live there.
            let ip = Ipv4Addr::new(127, a.clamp(1, 254), b, c.clamp(1, 254));
            if let Some(address) = try_bind(socket, SocketAddr::new(ip.into(), ROCE_PORT))? {
                return Ok(address);
            }
        }
    }
    for port in std::iter::once(ROCE_PORT).chain(OTHER_PORTS) {
        if let Some(address) = try_bind(socket, place.socket_addr(port))? {
            return Ok(address);
        }
    }
    Err(SoftOpenError::NoFreePort(place.address))
}

/// The address, if nobody else has it.
fn try_bind(socket: &Socket, address: SocketAddr) -> Result<Option<SocketAddr>, DeviceError> {
    match socket.bind(&address.into()) {
        Ok(()) => Ok(Some(address)),
        Err(error) if error.raw_os_error() == Some(Errno::EADDRINUSE as i32) => Ok(None),
        Err(error) => Err(error).call("bind"),
    }
}

/// What the kernel charges a socket for one datagram with a payload of `mtu` bytes: the memory it lies in, headers
/// and bookkeeping included, which is a power of two, and its descriptor. Datagrams that were sent and
/// received in batches take about half as much.
fn footprint(mtu: usize) -> usize {
    const HEADERS: usize = 14 + 40 + 8 + 20 + 4;
    const SHARED_INFO: usize = 320;
    const DESCRIPTOR: usize = 256;
    (HEADERS + mtu + SHARED_INFO).next_power_of_two() + DESCRIPTOR
}

fn warn_of_small_buffer(bytes: usize, asked: usize) {
    static ONCE: Once = Once::new();
    // The kernel doubles what it is asked for, and answers with the double.
    if bytes <= 2 * DEFAULT_RMEM_MAX && asked > DEFAULT_RMEM_MAX {
        ONCE.call_once(|| {
            tracing::warn!(
                bytes,
                asked,
                "socket buffers are small, so bursts will be lost and repaired; \
                 as root: sysctl -w net.core.rmem_max={asked}"
            );
        });
    }
}

/// Where datagrams are read to: the most that one read brings.
const STAGING: usize = 65_536;

/// How many addresses of loopback are tried.
const LOOPBACK_TRIES: usize = 64;

/// How often the interface is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// `net.core.rmem_max` where nobody has set it.
const DEFAULT_RMEM_MAX: usize = 212_992;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    #[test]
    fn an_ipv4_loopback_address_is_not_the_place_of_a_network() {
        for seed in 0..1000 {
            let mut draw = Draw(seed);
            let [a, b, c, ..] = draw.next().to_le_bytes();
            let ip = IpAddr::from([127, a.clamp(1, 254), b, c.clamp(1, 254)]);
            assert!(ip.is_loopback() && !ip.to_string().ends_with(".255"));
        }
    }

    #[test]
    fn a_full_page_takes_two() {
        assert_eq!(footprint(4096), 8192 + 256);
        assert_eq!(footprint(1024), 2048 + 256);
    }
}
