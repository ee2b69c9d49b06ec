//! Loss that is put on a process from outside, whatever runs in it.

use std::os::fd::RawFd;

/// What is lost at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// What the socket is handed: a datagram, or, for a peer that uses UDP GRO, all datagrams of one batch.
    Packet,
    /// A datagram always: UDP GRO is switched off on the sockets, so that the kernel cuts batches before the filter.
    Datagram,
}

/// Makes every UDP socket of a process lose received packets at random: takes a copy of each descriptor and
/// attaches a classic BPF program. Each socket of each subscriber loses independently.
pub fn lose(pid: u32, percent: f64, unit: Unit) {
    // SAFETY: takes numbers only.
    let process = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as RawFd;
    let mut hit = 0;
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").flatten() {
        let name = entry.file_name();
        let number: RawFd = name.to_str().and_then(|n| n.parse().ok()).expect("a descriptor");
        // SAFETY: takes numbers only.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process, number, 0) } as RawFd;
        if option(fd, libc::SO_TYPE) == Some(libc::SOCK_DGRAM)
            && option(fd, libc::SO_DOMAIN) == Some(libc::AF_INET)
        {
            if unit == Unit::Datagram {
                set(fd, libc::SOL_UDP, libc::UDP_GRO, &0i32);
            }
            attach(fd, percent);
            hit += 1;
        }
        // SAFETY: the copy is this function's own, and not used after this.
        unsafe { libc::close(fd) };
    }
    // SAFETY: the descriptor is this function's own, and not used after this.
    unsafe { libc::close(process) };
    assert!(hit > 0, "no UDP socket to lose on");
}

fn attach(fd: RawFd, percent: f64) {
    use libc::{BPF_ABS, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
    let op = |code: u32, jt: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let random = (libc::SKF_AD_OFF + libc::SKF_AD_RANDOM) as u32;
    let mut program = [
        op(BPF_LD | BPF_W | BPF_ABS, 0, random),
        op(BPF_JMP | BPF_JGE | BPF_K, 1, (percent / 100.0 * f64::from(u32::MAX)) as u32),
        op(BPF_RET | BPF_K, 0, 0),
        op(BPF_RET | BPF_K, 0, u32::MAX),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program);
}

fn set<T>(fd: RawFd, level: i32, name: i32, value: &T) {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is valid for `len` bytes, and what it points to outlives the call, which copies it.
    let rc = unsafe { libc::setsockopt(fd, level, name, std::ptr::from_ref(value).cast(), len) };
    assert!(rc == 0, "setsockopt {name}: {}", std::io::Error::last_os_error());
}

/// An option that is a number, if the descriptor is a socket.
fn option(fd: RawFd, name: i32) -> Option<i32> {
    let (mut value, mut len) = (-1i32, size_of::<i32>() as libc::socklen_t);
    let to = (&raw mut value).cast();
    // SAFETY: `value` has room for the `len` bytes that the call may write.
    let rc = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, to, &raw mut len) };
    (rc == 0).then_some(value)
}
