//! Plain UDP multicast, in batches of 32 datagrams for each system call.
//!
//! A counter for each receiver in a file throttles the sender to what the receive buffers hold: nothing
//! is lost for want of room, and no feedback is on the network.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::sockopt::{RcvBufForce, SndBufForce};
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, recvmmsg, sendmmsg, setsockopt};
use qcast::{DeviceSpec, SoftAddress};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};

use super::tally::{self, Mark};
use super::unique;
use super::usage::cpu_time;
use super::worker::{Counting, Link, Published, Received, Stop, WARM_UP, report_ready};
use crate::cli::clock::now;
use crate::cli::exit::Failure;

/// The most that a datagram holds.
pub(crate) const MAX_SIZE: usize = 65_507;

/// Datagrams for each system call.
const BATCH: usize = 32;

/// The socket buffers that are asked for.
const BUFFER: usize = 4 << 20;

/// How long a receive waits before it is looked whether to stop.
const SLICE: Duration = Duration::from_millis(10);

/// How long the sender waits for receivers that make no step.
const PATIENCE: Duration = Duration::from_secs(1);

/// Groups and a port that no other measurement on this machine uses.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Place {
    /// Where messages go.
    pub(crate) there: SocketAddrV4,
    /// Where answers go.
    pub(crate) back: SocketAddrV4,
}

impl Place {
    pub(crate) fn new() -> Self {
        let [_, a, b, c] = std::process::id().to_be_bytes();
        // Of the range that a site gives out itself, and below the ports that the system gives out.
        let port = 20_000 + u16::from_be_bytes([b, c]) % 10_000;
        let at = |last| SocketAddrV4::new(Ipv4Addr::new(239, 255, a, last), port);
        Self { there: at(1), back: at(2) }
    }
}

/// How far each receiver is: a number each, in a file.
#[derive(Debug)]
pub(crate) struct CreditFile(PathBuf);

impl CreditFile {
    pub(crate) fn create(receivers: u16) -> Result<Self, Failure> {
        // In memory, if there is such a place.
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let path = folder.join(unique("credits"));
        let create = || File::create_new(&path)?.set_len(u64::from(receivers) * 8);
        create().map_err(|error| {
            Failure::environment(format_args!("cannot create {}: {error}", path.display()))
        })?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for CreditFile {
    fn drop(&mut self) {
        // It is a few bytes in a folder that is cleared at the next start.
        let _ = fs::remove_file(&self.0);
    }
}

/// The file, as a process uses it.
struct Credits(File);

impl Credits {
    fn open(link: &Link) -> Result<Self, Failure> {
        let path = link.credits.as_deref().unwrap_or_else(|| Path::new(""));
        let file = OpenOptions::new().read(true).write(true).open(path);
        file.map(Self).map_err(|error| {
            Failure::failed(format_args!("cannot open {}: {error}", path.display()))
        })
    }

    fn set(&self, index: u16, count: u64) -> io::Result<()> {
        self.0.write_all_at(&count.to_ne_bytes(), u64::from(index) * 8)
    }

    /// The count of the slowest.
    fn least(&self, receivers: u16) -> io::Result<u64> {
        let mut bytes = vec![0; usize::from(receivers) * 8];
        self.0.read_exact_at(&mut bytes, 0)?;
        let (counts, _) = bytes.as_chunks();
        Ok(counts.iter().map(|count| u64::from_ne_bytes(*count)).min().unwrap_or(0))
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::failed(format_args!("plain UDP: {error}"))
}

/// The IPv4 address that a device's spec stands for.
fn interface(spec: &str) -> Result<Ipv4Addr, Failure> {
    let spec: DeviceSpec = spec.parse().map_err(|error: qcast::SpecError| Failure::usage(error))?;
    match &spec {
        DeviceSpec::Auto | DeviceSpec::Soft(SoftAddress::Loopback) => Ok(Ipv4Addr::LOCALHOST),
        DeviceSpec::Soft(SoftAddress::Addr(IpAddr::V4(ip))) => Ok(*ip),
        DeviceSpec::Soft(SoftAddress::Interface(name)) => getifaddrs()
            .map_err(failed)?
            .filter(|found| found.interface_name == *name)
            .find_map(|found| Some(found.address?.as_sockaddr_in()?.ip()))
            .ok_or_else(|| {
                Failure::environment(format_args!("no interface {name} with an IPv4 address"))
            }),
        _ => Err(Failure::usage(format_args!(
            "--device {spec}: plain UDP is measured on soft, soft:IFACE or soft:ADDR, with IPv4"
        ))),
    }
}

/// A socket that sends to a group.
fn sender(link: &Link, to: SocketAddrV4) -> Result<Socket, Failure> {
    let interface = interface(&link.device)?;
    let open = || -> io::Result<Socket> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_multicast_if_v4(&interface)?;
        if setsockopt(&socket, SndBufForce, &BUFFER).is_err() {
            socket.set_send_buffer_size(BUFFER)?;
        }
        socket.connect(&to.into())?;
        Ok(socket)
    };
    open().map_err(failed)
}

/// A socket that hears a group.
fn receiver(link: &Link, from: SocketAddrV4) -> Result<Socket, Failure> {
    let interface = interface(&link.device)?;
    let open = || -> io::Result<Socket> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_reuse_address(true)?;
        if setsockopt(&socket, RcvBufForce, &BUFFER).is_err() {
            socket.set_recv_buffer_size(BUFFER)?;
        }
        socket.set_read_timeout(Some(SLICE))?;
        socket.bind(&from.into())?;
        socket.join_multicast_v4(from.ip(), &interface)?;
        Ok(socket)
    };
    open().map_err(failed)
}

/// Sends without more in flight than receivers' buffers hold.
struct Throttled<'a> {
    socket: Socket,
    credits: Credits,
    link: &'a Link,
    headers: MultiHeaders<SockaddrIn>,
    batch: Vec<Vec<u8>>,
    sent: u64,
    done: u64,
    window: u64,
}

impl Throttled<'_> {
    /// Sends the batch's first `count` messages.
    fn send(&mut self, count: usize) -> Result<(), Failure> {
        self.wait(count as u64)?;
        let mut from = 0;
        while from < count {
            let slices: Vec<_> =
                self.batch[from..count].iter().map(|message| [IoSlice::new(message)]).collect();
            let to = vec![None; slices.len()];
            let sent = sendmmsg(
                self.socket.as_raw_fd(),
                &mut self.headers,
                &slices,
                &to,
                [],
                MsgFlags::empty(),
            );
            match sent.map(Iterator::count) {
                Ok(sent) => from += sent,
                Err(Errno::EINTR | Errno::ENOBUFS | Errno::EAGAIN) => thread::yield_now(),
                Err(error) => return Err(failed(error)),
            }
        }
        self.sent += count as u64;
        Ok(())
    }

    /// Waits until there is room for `count` more.
    fn wait(&mut self, count: u64) -> Result<(), Failure> {
        let mut still_since: Option<Instant> = None;
        while self.sent + count > self.done + self.window {
            let done = self.credits.least(self.link.subscribers).map_err(failed)?;
            if done > self.done {
                self.done = done;
                still_since = None;
                continue;
            }
            if still_since.get_or_insert_with(now).elapsed() >= PATIENCE {
                // What the network has dropped never arrives: it is taken for done.
                self.done = self.sent;
            }
            thread::yield_now();
        }
        Ok(())
    }
}

/// Datagrams that a receive buffer holds for certain. The kernel charges a datagram for the memory that it
/// lies in.
fn window(buffer: usize, size: usize) -> u64 {
    let charge = (2 * size).max(1024) * 5 / 4;
    (buffer / charge).max(1) as u64
}

pub(crate) fn publish(link: &Link, seconds: Duration) -> Result<Published, Failure> {
    let credits = Credits::open(link)?;
    let size = link.size as usize;
    let room = receiver(link, link.place.back)?.recv_buffer_size().map_err(failed)?;
    let window = window(room, size);
    let run = BATCH.min(usize::try_from(window).unwrap_or(BATCH));
    let mut out = Throttled {
        socket: sender(link, link.place.there)?,
        credits,
        link,
        headers: MultiHeaders::preallocate(BATCH, None),
        batch: vec![vec![0xa5; size]; run],
        sent: 0,
        done: 0,
        window,
    };
    let mut send_until = |mark: Mark, until: Instant| -> Result<u64, Failure> {
        let first = out.sent;
        while now() < until {
            for (number, message) in (out.sent..).zip(&mut out.batch) {
                tally::stamp(message, number, mark);
            }
            out.send(run)?;
        }
        Ok(out.sent - first)
    };
    send_until(Mark::Warm, now() + WARM_UP)?;
    let cpu = cpu_time();
    let messages = send_until(Mark::Counted, now() + seconds)?;
    // Until everything has been taken; then the end, which finds room.
    out.wait(window)?;
    let last = out.sent;
    tally::stamp(&mut out.batch[0], last, Mark::End);
    out.send(1)?;
    let cpu_seconds = (cpu_time() - cpu).as_secs_f64();
    Ok(Published { messages, cpu_seconds, ..Published::default() })
}

pub(crate) fn subscribe(link: &Link, index: u16, stop: &Stop) -> Result<Received, Failure> {
    let socket = receiver(link, link.place.there)?;
    let credits = Credits::open(link)?;
    let mut luck = Luck { state: u64::from(index) + 1, share: link.loss };
    let mut counting = Counting::default();
    let mut headers = MultiHeaders::<SockaddrIn>::preallocate(BATCH, None);
    let mut buffers = vec![vec![0; link.size as usize + 1]; BATCH];
    let (mut taken, mut lens) = (0, Vec::with_capacity(BATCH));
    report_ready()?;
    loop {
        lens.clear();
        {
            let mut slices: Vec<_> =
                buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
            let received = recvmmsg(
                socket.as_raw_fd(),
                &mut headers,
                &mut slices,
                MsgFlags::MSG_WAITFORONE,
                None,
            );
            match received {
                Ok(messages) => lens.extend(messages.map(|message| message.bytes)),
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        if lens.is_empty() && (stop.is_asked() || counting.is_ended()) {
            return Ok(counting.received());
        }
        for (buffer, &len) in buffers.iter().zip(&lens) {
            if len == link.size as usize && !luck.is_bad() {
                counting.take(&buffer[..len]);
            }
        }
        counting.mark_time();
        if !lens.is_empty() {
            taken += lens.len() as u64;
            credits.set(index, taken).map_err(failed)?;
        }
    }
}

/// Loses messages at random, as an injected fault does to qcast's.
struct Luck {
    state: u64,
    share: f64,
}

impl Luck {
    fn is_bad(&mut self) -> bool {
        if self.share == 0.0 {
            return false;
        }
        // xorshift64: even enough for this.
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) as f64 / ((1_u64 << 53) as f64) < self.share
    }
}

/// Sends back what comes.
pub(crate) fn echo(link: &Link, stop: &Stop) -> Result<(), Failure> {
    let (from, to) = (receiver(link, link.place.there)?, sender(link, link.place.back)?);
    let mut ends = Ends { from, to, buffer: vec![0; MAX_SIZE] };
    report_ready()?;
    while !stop.is_asked() {
        if let Some(len) = ends.receive()? {
            ends.to.send(&ends.buffer[..len]).map_err(failed)?;
        }
    }
    Ok(())
}

/// The two ends of one side of a conversation.
pub(crate) struct Ends {
    from: Socket,
    to: Socket,
    buffer: Vec<u8>,
}

impl Ends {
    /// The side that asks.
    pub(crate) fn asking(link: &Link) -> Result<Self, Failure> {
        let (from, to) = (receiver(link, link.place.back)?, sender(link, link.place.there)?);
        Ok(Self { from, to, buffer: vec![0; MAX_SIZE] })
    }

    pub(crate) fn send(&self, message: &[u8]) -> Result<(), Failure> {
        self.to.send(message).map(|_| ()).map_err(failed)
    }

    /// Waits up to `wait` for a message.
    pub(crate) fn receive_within(&mut self, wait: Duration) -> Result<Option<&[u8]>, Failure> {
        // No time at all would be for ever.
        self.from.set_read_timeout(Some(wait.max(Duration::from_micros(1)))).map_err(failed)?;
        Ok(self.receive()?.map(|len| &self.buffer[..len]))
    }

    fn receive(&mut self) -> Result<Option<usize>, Failure> {
        match io::Read::read(&mut (&self.from), &mut self.buffer) {
            Ok(len) => Ok(Some(len)),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(failed(error)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_tell_of_the_slowest() {
        let file = CreditFile::create(3).unwrap();
        let credits = Credits(OpenOptions::new().read(true).write(true).open(file.path()).unwrap());
        for (index, count) in [(0, 9), (1, 7), (2, 8)] {
            assert_eq!(credits.least(3).unwrap(), 0);
            credits.set(index, count).unwrap();
        }
        assert_eq!(credits.least(3).unwrap(), 7);
        let path = file.path().to_owned();
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn windows_fit_the_buffer() {
        assert_eq!(window(8 << 20, 64), 6553);
        assert_eq!(window(8 << 20, 8192), 409);
        assert_eq!(window(1000, 65_000), 1);
    }

    #[test]
    fn luck_is_as_bad_as_asked() {
        let mut luck = Luck { state: 1, share: 0.05 };
        let bad = (0..100_000).filter(|_| luck.is_bad()).count();
        assert!((4_700..5_300).contains(&bad), "{bad}");
        luck.share = 0.0;
        assert!(!luck.is_bad());
    }

    #[test]
    fn only_ipv4_of_this_host_is_measured() {
        assert_eq!(interface("soft").unwrap(), Ipv4Addr::LOCALHOST);
        assert_eq!(interface("soft:lo").unwrap(), Ipv4Addr::LOCALHOST);
        assert_eq!(interface("soft:127.0.0.9").unwrap(), Ipv4Addr::new(127, 0, 0, 9));
        for bad in ["soft:::1", "verbs:mlx5_0", "soft:nosuch0"] {
            assert!(interface(bad).is_err(), "{bad}");
        }
    }
}
