//! What a provider brings to the suite: devices that hear each other, and a way to let time pass.

use qcast::device::{Device, QpId, WcStatus};
use qcast_proto::time::Instant;

/// Devices of one provider.
///
/// They have small limits if the provider lets them be chosen, so that cases reach them: [`SRQ`],
/// [`SENDS`] and [`HANDLES`].
pub(crate) trait Bench: Sized {
    type Device: Device;

    /// Opens one device for each path MTU; `None` if the provider cannot have such ones.
    fn open(mtus: &[usize]) -> Option<Self>;

    fn device(&mut self, n: usize) -> &mut Self::Device;

    /// What time it is, for [`Device::advance`].
    fn now(&self) -> Instant;

    /// Lets a little time pass: less than a second, and enough for a datagram to arrive if nothing is in
    /// its way. Returns early when something arrives.
    fn step(&mut self);

    /// Waits until something wakes device `n` up, after it armed and was told to sleep. `false` if nothing
    /// did for a second.
    fn wait(&mut self, n: usize) -> bool;

    /// Lets the next send of a queue pair fail; `false` if there is no way to.
    fn fail_next_send(&mut self, n: usize, qp: QpId, status: WcStatus) -> bool {
        let _ = (n, qp, status);
        false
    }

    /// Takes device `n` away, as its remover would; `false` if there is no way to.
    fn lose(&mut self, n: usize) -> bool {
        let _ = n;
        false
    }
}

/// Receives that fit an SRQ.
pub(crate) const SRQ: usize = 64;

/// Sends of a queue pair that can be posted.
pub(crate) const SENDS: usize = 16;

/// Address handles of a device.
pub(crate) const HANDLES: usize = 8;

/// The path MTU of devices if a case does not choose another.
pub(crate) const MTU: usize = 1024;

/// Steps until something that should happen has not.
pub(crate) const PATIENCE: usize = 500;
