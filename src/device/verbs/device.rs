//! Devices: which there are, why there is none, and an open one.

use std::ffi::{CStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::raw::c_int;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

use nix::libc;
use rdma_sys as sys;

use super::cm::CmDevices;
use super::error::VerbsOpenError;
use super::event::Readers;
use super::layout::Plain;
use super::presence;
use super::ret;
use crate::device::DeviceError;

/// The names of the devices that libibverbs can drive.
///
/// # Errors
/// [`VerbsOpenError`] says why there is none.
pub fn list_devices() -> Result<Vec<String>, VerbsOpenError> {
    let list = List::new()?;
    let names: Vec<String> = list.iter().map(name_of).collect();
    if names.is_empty() {
        return Err(presence::why_no_device(presence::ROOT.as_ref()));
    }
    Ok(names)
}

/// The list of devices, which keeps them alive.
pub(super) struct List {
    raw: NonNull<*mut sys::ibv_device>,
    len: usize,
}

impl List {
    fn new() -> Result<Self, VerbsOpenError> {
        let mut len: c_int = 0;
        // SAFETY: `len` is a place for an integer, which outlives the call.
        let raw = unsafe { sys::ibv_get_device_list(&mut len) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Self { raw, len: usize::try_from(len).unwrap_or(0) }),
            // ENOSYS: the kernel has no RDMA at all.
            None => Err(presence::why_no_device(presence::ROOT.as_ref())),
        }
    }

    fn iter(&self) -> impl Iterator<Item = NonNull<sys::ibv_device>> + '_ {
        (0..self.len).filter_map(|at| {
            // SAFETY: the list has `len` entries, as its maker said, until it is freed by our drop.
            let device = unsafe { *self.raw.as_ptr().add(at) };
            NonNull::new(device)
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list came from ibv_get_device_list and is freed here only.
        unsafe { sys::ibv_free_device_list(self.raw.as_ptr()) };
    }
}

fn name_of(device: NonNull<sys::ibv_device>) -> String {
    // SAFETY: the device is in a list that has not been freed: callers iterate over one.
    let name = unsafe { sys::ibv_get_device_name(device.as_ptr()) };
    if name.is_null() {
        return String::new();
    }
    // SAFETY: libibverbs keeps a device's name in the device itself, ended by a zero.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// Where sysfs lists the device for programs: `/sys/class/infiniband_verbs/uverbs0`.
fn path_of(device: NonNull<sys::ibv_device>) -> PathBuf {
    // SAFETY: the device is in a list that has not been freed: callers iterate over one.
    let path = unsafe { &device.as_ref().dev_path };
    let bytes: Vec<u8> = path.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    PathBuf::from(OsString::from_vec(bytes))
}

fn file_number(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|file| file.ino())
}

/// An open device. Everything made on it keeps it open.
#[derive(Debug)]
pub(super) struct Context {
    raw: NonNull<sys::ibv_context>,
    /// Where sysfs lists the device, and the number of that file.
    listed: Option<(PathBuf, u64)>,
    owner: Owner,
    pub(super) readers: Readers,
}

/// Who opened it, and closes it.
#[derive(Debug)]
enum Owner {
    Us,
    /// The list keeps the device open.
    RdmaCm(Option<CmDevices>),
}

// SAFETY: libibverbs allows every verb on a context from every thread, several at once (ibv_open_device(3), and
// "thread safety" in rdma-core's documentation).
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the device of this name.
    pub(super) fn open(name: &str) -> Result<Arc<Self>, VerbsOpenError> {
        let (_list, device) = Self::find(name)?;
        // SAFETY: the device is in the list, which lives until the end of this function.
        let raw = unsafe { sys::ibv_open_device(device.as_ptr()) };
        let raw = ret::pointer("ibv_open_device", raw)
            .map_err(|source| VerbsOpenError::Open { name: name.into(), source })?;
        Ok(Arc::new(Self::of(raw, device, Owner::Us)))
    }

    /// A context that rdma_cm has opened; `list` keeps it open.
    pub(super) fn kept_by(
        raw: NonNull<sys::ibv_context>,
        device: NonNull<sys::ibv_device>,
        list: CmDevices,
    ) -> Self {
        Self::of(raw, device, Owner::RdmaCm(Some(list)))
    }

    fn of(raw: NonNull<sys::ibv_context>, device: NonNull<sys::ibv_device>, owner: Owner) -> Self {
        let path = path_of(device);
        let listed = file_number(&path).map(|number| (path, number));
        Self { raw, listed, owner, readers: Readers::default() }
    }

    /// Whether rdma_cm opened it.
    pub(super) fn is_of_rdma_cm(&self) -> bool {
        matches!(self.owner, Owner::RdmaCm(_))
    }

    /// The name of the device that a context is of.
    pub(super) fn device_name(raw: NonNull<sys::ibv_context>) -> String {
        // SAFETY: the context is open: callers have it from a list that keeps it so. The field is set once and for all.
        NonNull::new(unsafe { raw.as_ref() }.device).map(name_of).unwrap_or_default()
    }

    /// The device of this name, and the list that keeps it alive.
    pub(super) fn find(name: &str) -> Result<(List, NonNull<sys::ibv_device>), VerbsOpenError> {
        let list = List::new()?;
        let mut have = Vec::new();
        for device in list.iter() {
            have.push(name_of(device));
        }
        let at = have.iter().position(|found| found == name);
        if let Some(device) = at.and_then(|at| list.iter().nth(at)) {
            return Ok((list, device));
        }
        if have.is_empty() {
            return Err(presence::why_no_device(presence::ROOT.as_ref()));
        }
        Err(VerbsOpenError::NoSuchDevice { name: name.into(), have })
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_context {
        self.raw.as_ptr()
    }

    /// Whether the kernel still lists the device: not once it is being taken away. Another device, also one of the
    /// same name, has a file of its own.
    pub(super) fn is_listed(&self) -> bool {
        self.listed.as_ref().is_none_or(|(path, number)| file_number(path) == Some(*number))
    }

    pub(super) fn query_device(&self) -> Result<sys::ibv_device_attr, DeviceError> {
        let mut attr = sys::ibv_device_attr::zeroed();
        // SAFETY: the context is open while `self` is, and `attr` outlives the call.
        let code = unsafe { sys::ibv_query_device(self.as_ptr(), &mut attr) };
        ret::returned("ibv_query_device", code)?;
        Ok(attr)
    }

    pub(super) fn query_port(&self, port: u8) -> Result<sys::ibv_port_attr, DeviceError> {
        let mut attr = sys::ibv_port_attr::zeroed();
        // SAFETY: the context is open while `self` is, and `attr`, whose fields an old provider may leave as they
        // are, is zeroed and outlives the call.
        let code = unsafe { sys::___ibv_query_port(self.as_ptr(), port, &mut attr) };
        ret::returned("ibv_query_port", code)?;
        Ok(attr)
    }

    /// An entry of a port's table of partition keys.
    pub(super) fn pkey(&self, port: u8, index: u16) -> Result<u16, DeviceError> {
        let mut pkey = 0;
        // SAFETY: the context is open while `self` is, and `pkey` outlives the call.
        let code = unsafe { sys::ibv_query_pkey(self.as_ptr(), port, index.into(), &mut pkey) };
        ret::minus_one("ibv_query_pkey", code)?;
        Ok(u16::from_be(pkey))
    }

    /// The descriptor that asynchronous events are read from.
    pub(super) fn async_fd(&self) -> RawFd {
        // SAFETY: the context is open, and the field is set when it is opened and never changed.
        unsafe { (*self.as_ptr()).async_fd }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let is_listed = self.is_listed();
        if let Owner::RdmaCm(list) = &mut self.owner {
            if !is_listed {
                super::cm::sever(self.raw);
            }
            drop(list.take());
            return;
        }
        // SAFETY: all that was made on the context holds it in an Arc, so nothing of it is left when this runs.
        let code = unsafe { sys::ibv_close_device(self.raw.as_ptr()) };
        if let Err(error) = ret::minus_one("ibv_close_device", code) {
            tracing::warn!(%error, "a device was not closed");
        }
    }
}

/// Lets reads of a descriptor return when there is nothing, in place of waiting.
pub(super) fn set_nonblocking(fd: &impl AsRawFd, call: &'static str) -> Result<(), DeviceError> {
    let fd = fd.as_raw_fd();
    // SAFETY: F_GETFL takes no argument and touches no memory of ours; a bad descriptor is an error.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return ret::minus_one(call, flags);
    }
    // SAFETY: F_SETFL takes an integer and touches no memory of ours; a bad descriptor is an error.
    let code = unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) };
    ret::minus_one(call, code)
}

/// A descriptor that others own and that outlives this.
pub(super) struct Borrowed(pub(super) RawFd);

impl AsRawFd for Borrowed {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

/// An eventfd that wakes a sleeper up.
pub(super) fn event_fd() -> Result<OwnedFd, DeviceError> {
    use nix::sys::eventfd::{EfdFlags, EventFd};
    let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
    EventFd::from_value_and_flags(0, flags)
        .map(OwnedFd::from)
        .map_err(|error| DeviceError::Os { call: "eventfd", source: error.into() })
}
