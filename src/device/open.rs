//! Opening the device that a spec names.

use super::Device;
use super::fault::{FaultDevice, FaultPlan};
use super::soft::{SoftConfig, SoftDevice, SoftOpenError};
use super::spec::{DeviceSpec, SoftAddress, VerbsSpec};
#[cfg(feature = "verbs")]
use super::verbs;
use crate::engine::loss::Reopen;

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
    match spec {
        DeviceSpec::Soft(address) => open_soft(address, options),
        DeviceSpec::Auto => open_auto(options),
        DeviceSpec::Verbs(verbs) => open_verbs(verbs, options),
    }
}

/// How a node opens its device anew after it has lost `device`, which `spec` led to.
pub(crate) fn reopener(spec: &DeviceSpec, options: DeviceOptions, device: &dyn Device) -> Reopen {
    // What `auto` found is looked for by its name: something else would be another network.
    let spec = match spec {
        DeviceSpec::Auto => device.caps().name.parse().unwrap_or_default(),
        named => named.clone(),
    };
    Box::new(move || Ok(open(&spec, options.clone())?))
}

fn open_soft(
    address: &SoftAddress,
    options: DeviceOptions,
) -> Result<Box<dyn Device>, OpenDeviceError> {
    let mut config = SoftConfig::new(address.clone()).srq_depth(options.srq_depth);
    if let Some(mtu) = options.mtu {
        config = config.mtu(mtu);
    }
    Ok(disturbed(SoftDevice::open(&config)?, options.fault))
}

fn disturbed<D: Device + 'static>(device: D, fault: Option<FaultPlan>) -> Box<dyn Device> {
    match fault.filter(|plan| !plan.is_empty()) {
        Some(plan) => Box::new(FaultDevice::new(device, plan)),
        None => Box::new(device),
    }
}

/// The first real device that can be opened, else the software provider on loopback.
#[cfg(feature = "verbs")]
fn open_auto(options: DeviceOptions) -> Result<Box<dyn Device>, OpenDeviceError> {
    for name in verbs::list_devices().unwrap_or_default() {
        match open_verbs(&VerbsSpec::new(name), options.clone()) {
            Ok(device) => return Ok(device),
            Err(error) => tracing::info!(%error, "a real device is left out"),
        }
    }
    open_soft(&SoftAddress::Loopback, options)
}

#[cfg(feature = "verbs")]
fn open_verbs(
    spec: &VerbsSpec,
    options: DeviceOptions,
) -> Result<Box<dyn Device>, OpenDeviceError> {
    let mut config = verbs::VerbsConfig::new(spec.clone());
    config.srq_depth = options.srq_depth;
    config.mtu = options.mtu;
    Ok(disturbed(verbs::VerbsDevice::open(&config)?, options.fault))
}

#[cfg(not(feature = "verbs"))]
fn open_auto(options: DeviceOptions) -> Result<Box<dyn Device>, OpenDeviceError> {
    open_soft(&SoftAddress::Loopback, options)
}

#[cfg(not(feature = "verbs"))]
fn open_verbs(spec: &VerbsSpec, _: DeviceOptions) -> Result<Box<dyn Device>, OpenDeviceError> {
    Err(OpenDeviceError::NoVerbs(spec.clone()))
}

/// Why a device could not be opened. Nothing is left open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenDeviceError {
    /// The software provider could not be opened.
    #[error(transparent)]
    Soft(#[from] SoftOpenError),
    /// The real device could not be opened.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Verbs(#[from] verbs::VerbsOpenError),
    /// This build drives no real devices.
    #[error(
        "{0} cannot be opened: this qcast was built without the feature `verbs`; use soft, soft:IFACE or soft:ADDR"
    )]
    NoVerbs(VerbsSpec),
}
