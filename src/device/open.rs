//! Opening the device that a spec names.

use super::Device;
use super::fault::{FaultDevice, FaultPlan};
use super::soft::{SoftConfig, SoftDevice, SoftOpenError};
use super::spec::{DeviceSpec, SoftAddress, VerbsSpec};

/// How a device is opened.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// A path MTU below the port's, in bytes.
    pub mtu: Option<usize>,
    /// Receives that can be posted.
    pub srq_depth: usize,
    /// How it is disturbed on purpose.
    pub fault: Option<FaultPlan>,
}

/// Opens a device by its spec.
///
/// # Errors
/// [`OpenDeviceError`]; nothing is left open.
pub fn open(spec: &DeviceSpec, options: DeviceOptions) -> Result<Box<dyn Device>, OpenDeviceError> {
    let address = match spec {
        DeviceSpec::Soft(address) => address.clone(),
        // No provider of real devices is built yet, so there is none to find.
        DeviceSpec::Auto => SoftAddress::Loopback,
        DeviceSpec::Verbs(verbs) => return Err(OpenDeviceError::Verbs(verbs.clone())),
    };
    let mut config = SoftConfig::new(address).srq_depth(options.srq_depth);
    if let Some(mtu) = options.mtu {
        config = config.mtu(mtu);
    }
    let device = SoftDevice::open(&config)?;
    Ok(match options.fault.filter(|plan| !plan.is_empty()) {
        Some(plan) => Box::new(FaultDevice::new(device, plan)),
        None => Box::new(device),
    })
}

/// Why a device could not be opened. Nothing is left open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenDeviceError {
    /// The software provider could not be opened.
    #[error(transparent)]
    Soft(#[from] SoftOpenError),
    /// This build drives no real devices.
    #[error(
        "{0} cannot be opened: this build of qcast drives no real RDMA devices yet; use soft, soft:IFACE or soft:ADDR"
    )]
    Verbs(VerbsSpec),
}
