//! Plain UDP multicast with sendmmsg/recvmmsg: what this machine can carry, with no reliability.
//! A counter per subscriber in a shared page throttles the publisher to what the receive buffers
//! hold, so nothing is lost and no feedback traffic is paid for. `raw` sends a datagram per message,
//! `raw-pack` fills datagrams up to the limit that the other peers have.

use std::ffi::CString;
use std::io::Error;
use std::mem::zeroed;
use std::os::fd::RawFd;
use std::ptr::{from_ref, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{
    AF_INET, IP_ADD_MEMBERSHIP, IP_MULTICAST_IF, IPPROTO_IP, MAP_FAILED, MAP_SHARED,
    MSG_WAITFORONE, O_CREAT, O_RDWR, PROT_READ, PROT_WRITE, SO_RCVBUF, SO_RCVTIMEO, SO_REUSEADDR,
    SO_SNDBUF, SOCK_DGRAM, SOL_SOCKET, in_addr, iovec, ip_mreq, mmsghdr, sockaddr_in, timeval,
};

use crate::peer::{OnMessage, Rx, Setup, Tx};

const GROUP: u32 = 0xefff_0702; // 239.255.7.2
const PORT: u16 = 40200;
const BATCH: usize = 32;
const BUFFER: usize = 4 << 20;
const PAGE: usize = 4096;

/// Datagrams that each subscriber has read.
type Credits = [AtomicU64; 64];

pub struct RawTx {
    fd: RawFd,
    n: usize,
    /// Bytes in a datagram.
    limit: usize,
    /// Datagrams in flight.
    window: usize,
    buffers: Vec<Vec<u8>>,
    /// The datagram being filled.
    at: usize,
    sent: u64,
    credits: &'static Credits,
}

pub fn tx(setup: &Setup) -> RawTx {
    let per = if setup.variant == "pack" { (setup.dgram / setup.size).max(1) } else { 1 };
    let limit = per * setup.size;
    // The kernel doubles SO_RCVBUF; a datagram takes up to about twice its size of it, 1 KiB at least.
    let window = BUFFER * 2 / ((2 * limit).max(1024) * 5 / 4) / BATCH * BATCH;
    RawTx {
        fd: sender(),
        n: setup.n,
        limit,
        window,
        buffers: (0..BATCH).map(|_| Vec::with_capacity(limit)).collect(),
        at: 0,
        sent: 0,
        credits: credits(setup),
    }
}

impl Tx for RawTx {
    fn datagram(&self) -> usize {
        self.limit
    }

    fn send(&mut self, message: &[u8]) -> bool {
        if self.at == BATCH && !self.flush() {
            return false;
        }
        let buffer = &mut self.buffers[self.at];
        buffer.extend_from_slice(message);
        self.at += usize::from(buffer.len() >= self.limit);
        true
    }

    fn flush(&mut self) -> bool {
        let count = self.at + usize::from(self.at < BATCH && !self.buffers[self.at].is_empty());
        let read = self.credits[..self.n].iter().map(|c| c.load(Ordering::Acquire)).min();
        if self.sent + count as u64 > read.unwrap_or(0) + self.window as u64 {
            std::thread::yield_now();
            return false;
        }
        let mut off = 0;
        while off < count {
            let (mut slices, mut headers) = headers(&mut self.buffers, |b| b.len());
            let fill = headers.iter_mut().zip(&mut slices);
            fill.for_each(|(header, slice)| header.msg_hdr.msg_iov = slice);
            let (first, len) = (&raw mut headers[off], (count - off) as u32);
            // SAFETY: `len` headers follow, each with a slice of a buffer that is not changed meanwhile.
            let rc = unsafe { libc::sendmmsg(self.fd, first, len, 0) };
            assert!(rc > 0, "sendmmsg: {}", Error::last_os_error());
            off += rc as usize;
        }
        self.sent += count as u64;
        self.buffers.iter_mut().for_each(Vec::clear);
        self.at = 0;
        true
    }
}

pub struct RawRx {
    fd: RawFd,
    size: usize,
    buffers: Vec<Vec<u8>>,
    credit: &'static AtomicU64,
}

pub fn rx(setup: &Setup) -> RawRx {
    let credit = &credits(setup)[setup.id - 1];
    RawRx { fd: receiver(), size: setup.size, buffers: vec![vec![0; 65536]; BATCH], credit }
}

impl Rx for RawRx {
    fn poll(&mut self, on: OnMessage) {
        let (mut slices, mut headers) = headers(&mut self.buffers, |b| b.len());
        let fill = headers.iter_mut().zip(&mut slices);
        fill.for_each(|(header, slice)| header.msg_hdr.msg_iov = slice);
        let first = headers.as_mut_ptr();
        // SAFETY: BATCH headers are there, each with the slice of a buffer that this alone uses.
        let n = unsafe {
            libc::recvmmsg(self.fd, first, BATCH as u32, MSG_WAITFORONE as _, null_mut())
        };
        let n = n.max(0) as usize;
        for (buffer, header) in self.buffers.iter().zip(&headers).take(n) {
            buffer[..header.msg_len as usize].chunks(self.size).for_each(&mut *on);
        }
        self.credit.fetch_add(n as u64, Ordering::Release);
    }
}

/// A header and a slice for each buffer; the caller joins them where they stay.
fn headers(
    buffers: &mut [Vec<u8>],
    len: impl Fn(&Vec<u8>) -> usize,
) -> ([iovec; BATCH], [mmsghdr; BATCH]) {
    // SAFETY: zeros are valid for both: numbers and null pointers.
    let (mut slices, mut headers): ([iovec; BATCH], [mmsghdr; BATCH]) = unsafe { zeroed() };
    for ((slice, header), buffer) in slices.iter_mut().zip(&mut headers).zip(buffers) {
        *slice = iovec { iov_len: len(buffer), iov_base: buffer.as_mut_ptr().cast() };
        header.msg_hdr.msg_iovlen = 1;
    }
    (slices, headers)
}

fn sender() -> RawFd {
    let fd = socket();
    option(fd, IPPROTO_IP, IP_MULTICAST_IF, &loopback());
    option(fd, SOL_SOCKET, SO_SNDBUF, &(BUFFER as i32));
    let to = group();
    // SAFETY: `to` is a socket address of the length given.
    let rc = unsafe { libc::connect(fd, from_ref(&to).cast(), size_of_val(&to) as u32) };
    assert!(rc == 0, "connect: {}", Error::last_os_error());
    fd
}

fn receiver() -> RawFd {
    let (fd, at) = (socket(), group());
    option(fd, SOL_SOCKET, SO_REUSEADDR, &1i32);
    option(fd, SOL_SOCKET, SO_RCVBUF, &(BUFFER as i32));
    option(fd, SOL_SOCKET, SO_RCVTIMEO, &timeval { tv_sec: 0, tv_usec: 10_000 });
    // SAFETY: `at` is a socket address of the length given.
    let rc = unsafe { libc::bind(fd, from_ref(&at).cast(), size_of_val(&at) as u32) };
    assert!(rc == 0, "bind: {}", Error::last_os_error());
    let membership = ip_mreq { imr_multiaddr: at.sin_addr, imr_interface: loopback() };
    option(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &membership);
    fd
}

fn socket() -> RawFd {
    // SAFETY: takes numbers only.
    let fd = unsafe { libc::socket(AF_INET, SOCK_DGRAM, 0) };
    assert!(fd >= 0, "socket: {}", Error::last_os_error());
    fd
}

fn group() -> sockaddr_in {
    sockaddr_in {
        sin_family: AF_INET as u16,
        sin_port: PORT.to_be(),
        sin_addr: in_addr { s_addr: GROUP.to_be() },
        sin_zero: [0; 8],
    }
}

fn loopback() -> in_addr {
    in_addr { s_addr: 0x7f00_0001u32.to_be() }
}

fn option<T>(fd: RawFd, level: i32, name: i32, value: &T) {
    let len = size_of::<T>() as u32;
    // SAFETY: `value` is valid for `len` bytes, which the call copies.
    let rc = unsafe { libc::setsockopt(fd, level, name, from_ref(value).cast(), len) };
    assert!(rc == 0, "setsockopt {name}: {}", Error::last_os_error());
}

/// A page that the processes of a cell share.
fn credits(setup: &Setup) -> &'static Credits {
    let path = CString::new(format!("{}/credits", setup.dir)).expect("it has no NUL");
    // SAFETY: the path is a C string.
    let fd = unsafe { libc::open(path.as_ptr(), O_RDWR | O_CREAT, 0o600) };
    // SAFETY: takes numbers only.
    let rc = unsafe { libc::ftruncate(fd, PAGE as i64) };
    assert!(rc == 0, "{}: {}", setup.dir, Error::last_os_error());
    // SAFETY: asks for a new mapping, and touches no other.
    let page = unsafe { libc::mmap(null_mut(), PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) };
    assert!(page != MAP_FAILED, "mmap: {}", Error::last_os_error());
    // SAFETY: the mapping is as large as the counters, aligned, filled with zeros, and never unmapped.
    unsafe { &*page.cast::<Credits>() }
}
