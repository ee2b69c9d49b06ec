//! Sleeping until a device, a timer or another thread wants a turn.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::device::Sources;

/// A mio poll with a timer finer than its milliseconds.
pub(super) struct Poller {
    poll: Poll,
    events: Events,
    timer: TimerFd,
    epoch: Option<u64>,
    registered: Vec<RawFd>,
}

const WAKE: Token = Token(0);
const TIMER: Token = Token(1);
const DEVICE: Token = Token(2);

/// Above this a poll's own timeout, in whole milliseconds, is good enough and saves a system call.
const COARSE: Duration = Duration::from_millis(20);

impl Poller {
    pub(super) fn new() -> io::Result<(Self, Waker)> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let timer = TimerFd::new(
            ClockId::CLOCK_MONOTONIC,
            TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC,
        )?;
        let fd = timer_fd(&timer);
        poll.registry().register(&mut SourceFd(&fd), TIMER, Interest::READABLE)?;
        let events = Events::with_capacity(64);
        Ok((Self { poll, events, timer, epoch: None, registered: Vec::new() }, waker))
    }

    /// Watches the device's descriptors, if they have changed.
    pub(super) fn watch(&mut self, sources: Sources<'_>) -> io::Result<()> {
        if self.epoch == Some(sources.epoch) {
            return Ok(());
        }
        for fd in self.registered.drain(..) {
            // A descriptor that the device has closed is gone from the poll by itself.
            let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
        }
        for fd in sources.fds {
            self.poll.registry().register(&mut SourceFd(fd), DEVICE, Interest::READABLE)?;
            self.registered.push(*fd);
        }
        self.epoch = Some(sources.epoch);
        Ok(())
    }

    /// Sleeps until something is there, for `timeout` at most.
    pub(super) fn sleep(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = match timeout {
            Some(fine) if fine < COARSE => {
                let spec = TimeSpec::from_duration(fine.max(Duration::from_nanos(1)));
                self.timer.set(Expiration::OneShot(spec), TimerSetTimeFlags::empty())?;
                None
            }
            other => other,
        };
        match self.poll.poll(&mut self.events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            other => other,
        }
    }
}

fn timer_fd(timer: &TimerFd) -> RawFd {
    use std::os::fd::AsFd;
    timer.as_fd().as_raw_fd()
}
