//! Device specs: how a user names a device, on the command line, in `QCAST_DEVICE` or in code.
//!
//! | spec | device |
//! | --- | --- |
//! | `auto` | a real device if there is one, else `soft` |
//! | `soft` | the software provider on loopback, at an address of its own in 127.0.0.0/8 |
//! | `soft:IFACE` | the software provider on a network interface |
//! | `soft:ADDR` | the software provider at one of this host's addresses, IPv4 or IPv6 |
//! | `verbs:NAME[/PORT][@GIDINDEX][?OPTIONS]` | a real device, by its name in libibverbs |
//!
//! Options of a real device, separated by commas: `qp=cm` has rdma_cm make its queue pairs ([`QpBy`]), `join=ip`
//! joins groups without rdma_cm ([`JoinBy`]). `qp=verbs` and `join=cm` are the defaults.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Which device to open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceSpec {
    /// A real device if there is one, else the software provider on loopback.
    #[default]
    Auto,
    /// The software provider.
    Soft(SoftAddress),
    /// A real device.
    Verbs(VerbsSpec),
}

/// Where the software provider lives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SoftAddress {
    /// On loopback, at an address of 127.0.0.0/8 that no other process has.
    #[default]
    Loopback,
    /// On the interface of this name, at its first IPv4 address, or at an IPv6 address if it has no other.
    Interface(String),
    /// At this very address of this host.
    Addr(IpAddr),
}

/// A real device, its port and its GID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsSpec {
    /// The device's name, such as `mlx5_0` or `rxe0`.
    pub name: String,
    /// The port, from 1; the first active one if it is not given.
    pub port: Option<u8>,
    /// The index in the port's GID table; chosen by type and address if it is not given.
    pub gid_index: Option<u8>,
    /// What makes queue pairs.
    pub qp: QpBy,
    /// How groups are joined.
    pub join: JoinBy,
}

impl VerbsSpec {
    /// The device of this name, with everything else as it is by default.
    pub fn new(name: impl Into<String>) -> Self {
        let (qp, join) = (QpBy::default(), JoinBy::default());
        Self { name: name.into(), port: None, gid_index: None, qp, join }
    }
}

/// What makes the queue pairs of a real device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum QpBy {
    /// `ibv_create_qp`; each is walked from RESET to RTS with the group's key. `qp=verbs`.
    #[default]
    Verbs,
    /// `rdma_create_qp` on an id of rdma_cm, which walks it to RTS with a key of its own, 0x01234567; the group's
    /// takes its place before the group is joined. `qp=cm`.
    RdmaCm,
}

/// How a real device joins groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum JoinBy {
    /// Through rdma_cm: the subnet administrator's join on InfiniBand, IGMP on RoCE. `join=cm`.
    #[default]
    RdmaCm,
    /// By the host's IP membership of the group and a plain attach, where there is no rdma_cm. RoCE only. `join=ip`.
    Membership,
}

impl FromStr for DeviceSpec {
    type Err = SpecError;

    fn from_str(spec: &str) -> Result<Self, SpecError> {
        let (provider, rest) = match spec.split_once(':') {
            Some((provider, rest)) => (provider, Some(rest)),
            None => (spec, None),
        };
        match (provider, rest) {
            ("auto", None) => Ok(Self::Auto),
            ("soft", None) => Ok(Self::Soft(SoftAddress::Loopback)),
            ("soft", Some(place)) => place.parse().map(Self::Soft),
            ("verbs", Some(device)) => device.parse().map(Self::Verbs),
            ("verbs", None) => Err(SpecError::NoName),
            ("auto", Some(_)) => Err(SpecError::AutoTakesNothing(spec.into())),
            _ => Err(SpecError::UnknownProvider(provider.into())),
        }
    }
}

impl FromStr for SoftAddress {
    type Err = SpecError;

    fn from_str(place: &str) -> Result<Self, SpecError> {
        if let Ok(ip) = place.parse() {
            return Ok(Self::Addr(ip));
        }
        if let Some((address, scope)) = place.split_once('%') {
            return Err(SpecError::Scope { address: address.into(), scope: scope.into() });
        }
        // The kernel's own rule for names (`dev_valid_name`): up to 15 bytes, neither '/' nor ':' nor space.
        let bad = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
        if place.is_empty() || place.len() > 15 || place.contains(bad) {
            return Err(SpecError::Place(place.into()));
        }
        Ok(Self::Interface(place.into()))
    }
}

impl FromStr for VerbsSpec {
    type Err = SpecError;

    fn from_str(device: &str) -> Result<Self, SpecError> {
        let (device, options) = match device.split_once('?') {
            Some((device, options)) => (device, Some(options)),
            None => (device, None),
        };
        let (device, gid_index) = match device.split_once('@') {
            Some((device, index)) => {
                let index = index.parse().map_err(|_| SpecError::GidIndex(index.into()))?;
                (device, Some(index))
            }
            None => (device, None),
        };
        let (name, port) = match device.split_once('/') {
            Some((name, port)) => match port.parse() {
                Ok(n @ 1..) => (name, Some(n)),
                _ => return Err(SpecError::Port(port.into())),
            },
            None => (device, None),
        };
        if name.is_empty() {
            return Err(SpecError::NoName);
        }
        let mut spec = Self { port, gid_index, ..Self::new(name) };
        for option in options.into_iter().flat_map(|options| options.split(',')) {
            match option {
                "qp=verbs" => spec.qp = QpBy::Verbs,
                "qp=cm" => spec.qp = QpBy::RdmaCm,
                "join=cm" => spec.join = JoinBy::RdmaCm,
                "join=ip" => spec.join = JoinBy::Membership,
                _ => return Err(SpecError::Option(option.into())),
            }
        }
        Ok(spec)
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Soft(SoftAddress::Loopback) => f.write_str("soft"),
            Self::Soft(place) => write!(f, "soft:{place}"),
            Self::Verbs(verbs) => write!(f, "verbs:{verbs}"),
        }
    }
}

impl fmt::Display for SoftAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback => f.write_str("loopback"),
            Self::Interface(name) => f.write_str(name),
            Self::Addr(ip) => ip.fmt(f),
        }
    }
}

impl fmt::Display for VerbsSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(port) = self.port {
            write!(f, "/{port}")?;
        }
        if let Some(index) = self.gid_index {
            write!(f, "@{index}")?;
        }
        let qp = (self.qp == QpBy::RdmaCm).then_some("qp=cm");
        let join = (self.join == JoinBy::Membership).then_some("join=ip");
        for (separator, option) in ['?', ','].into_iter().zip(qp.into_iter().chain(join)) {
            write!(f, "{separator}{option}")?;
        }
        Ok(())
    }
}

/// Why a text is not a device spec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The part before the colon is unknown.
    #[error(
        "there is no provider {0:?}; use auto, soft, soft:IFACE, soft:ADDR or verbs:NAME[/PORT][@GIDINDEX]"
    )]
    UnknownProvider(String),
    /// `auto` with a colon.
    #[error("{0:?}: auto takes nothing after it; name the provider instead, as in soft:eth0")]
    AutoTakesNothing(String),
    /// What follows `soft:` is neither an address nor an interface's name.
    #[error(
        "{0:?} is neither an IP address nor the name of an interface; use soft:eth0 or soft:10.0.0.7"
    )]
    Place(String),
    /// The address has a scope.
    #[error("leave %{scope} out: soft:{address} finds the interface that has this address")]
    Scope {
        /// The address.
        address: String,
        /// What follows the percent sign.
        scope: String,
    },
    /// `verbs` without a device.
    #[error("verbs needs a device's name, as in verbs:mlx5_0 (ibv_devices lists them)")]
    NoName,
    /// The port is not a number from 1 on.
    #[error("{0:?} is not a port; they count from 1, as in verbs:mlx5_0/1")]
    Port(String),
    /// The GID index is not a number.
    #[error("{0:?} is not a GID index; use a number from 0 to 255, as in verbs:mlx5_0@3")]
    GidIndex(String),
    /// An option that a real device does not have.
    #[error(
        "{0:?} is not an option of a device; there are qp=verbs, qp=cm, join=cm and join=ip, as in \
         verbs:mlx5_0?qp=cm,join=ip"
    )]
    Option(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_and_printed_back() {
        let verbs = |name: &str, port, gid_index| {
            DeviceSpec::Verbs(VerbsSpec { port, gid_index, ..VerbsSpec::new(name) })
        };
        let with = |qp, join| {
            let place = VerbsSpec { port: Some(1), gid_index: Some(0), ..VerbsSpec::new("rxe0") };
            DeviceSpec::Verbs(VerbsSpec { qp, join, ..place })
        };
        let soft = |ip: &str| DeviceSpec::Soft(SoftAddress::Addr(ip.parse().unwrap()));
        for (text, spec) in [
            ("auto", DeviceSpec::Auto),
            ("soft", DeviceSpec::Soft(SoftAddress::Loopback)),
            ("soft:eth0", DeviceSpec::Soft(SoftAddress::Interface("eth0".into()))),
            ("soft:127.0.0.5", soft("127.0.0.5")),
            ("soft:::1", soft("::1")),
            ("soft:fe80::1", soft("fe80::1")),
            ("verbs:mlx5_0", verbs("mlx5_0", None, None)),
            ("verbs:mlx5_0/2", verbs("mlx5_0", Some(2), None)),
            ("verbs:rxe0@1", verbs("rxe0", None, Some(1))),
            ("verbs:rxe0/1@0", verbs("rxe0", Some(1), Some(0))),
            ("verbs:rxe0/1@0?qp=cm", with(QpBy::RdmaCm, JoinBy::RdmaCm)),
            ("verbs:rxe0/1@0?join=ip", with(QpBy::Verbs, JoinBy::Membership)),
            ("verbs:rxe0/1@0?qp=cm,join=ip", with(QpBy::RdmaCm, JoinBy::Membership)),
        ] {
            assert_eq!(text.parse::<DeviceSpec>().as_ref(), Ok(&spec));
            assert_eq!(spec.to_string(), text);
        }
    }

    #[test]
    fn defaults_can_be_named() {
        let spec: DeviceSpec = "verbs:rxe0?join=cm,qp=verbs".parse().unwrap();
        assert_eq!(spec, DeviceSpec::Verbs(VerbsSpec::new("rxe0")));
    }

    #[test]
    fn each_mistake_has_its_own_error() {
        let error = |text: &str| text.parse::<DeviceSpec>().unwrap_err();
        assert_eq!(error("rdma:mlx5_0"), SpecError::UnknownProvider("rdma".into()));
        assert_eq!(error(""), SpecError::UnknownProvider("".into()));
        assert_eq!(error("auto:x"), SpecError::AutoTakesNothing("auto:x".into()));
        assert_eq!(error("soft:"), SpecError::Place("".into()));
        assert_eq!(error("soft:10.0.0.0/8"), SpecError::Place("10.0.0.0/8".into()));
        assert_eq!(
            error("soft:a_name_far_too_long"),
            SpecError::Place("a_name_far_too_long".into())
        );
        assert!(matches!(error("soft:fe80::1%eth0"), SpecError::Scope { .. }));
        assert_eq!(error("verbs"), SpecError::NoName);
        assert_eq!(error("verbs:/1"), SpecError::NoName);
        assert_eq!(error("verbs:mlx5_0/0"), SpecError::Port("0".into()));
        assert_eq!(error("verbs:mlx5_0/one"), SpecError::Port("one".into()));
        assert_eq!(error("verbs:mlx5_0@256"), SpecError::GidIndex("256".into()));
        assert_eq!(error("verbs:mlx5_0?qp=rdma"), SpecError::Option("qp=rdma".into()));
        assert_eq!(error("verbs:mlx5_0?"), SpecError::Option("".into()));
        assert_eq!(error("verbs:?qp=cm"), SpecError::NoName);
    }
}
