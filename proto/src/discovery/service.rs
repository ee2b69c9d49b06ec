//! What a service is, to applications.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use crate::addr::{Gid, NodeId, PeerAddr};
use crate::wire::service::{MAX_INSTANCE, MAX_METADATA, MAX_PAIRS, MAX_TYPE, Record, is_name};

/// The least time that a service may be believed in without a word of it.
pub const MIN_TTL: Duration = Duration::from_secs(1);

/// The most.
pub const MAX_TTL: Duration = Duration::from_secs(24 * 3600);

/// What it is when nothing else is said.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// A service that a node offers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Service {
    /// Its type: those who browse for a type find all its instances.
    pub kind: String,
    /// Its instance name. No two services of a type have the same.
    pub name: String,
    /// Where it is reached; the node's own address if it is not said.
    pub address: Option<IpAddr>,
    /// The port there.
    pub port: u16,
    /// What else is to be known.
    pub metadata: Vec<(String, String)>,
    /// For how long it is believed in after the last word of it. It is announced three times as often.
    pub ttl: Duration,
}

impl Service {
    /// A service of this type and name at a port of this node.
    pub fn new(kind: impl Into<String>, name: impl Into<String>, port: u16) -> Self {
        Self {
            kind: kind.into(),
            name: name.into(),
            address: None,
            port,
            metadata: Vec::new(),
            ttl: DEFAULT_TTL,
        }
    }

    /// Where it is reached, if that is not the node's own address.
    #[must_use]
    pub fn address(mut self, address: IpAddr) -> Self {
        self.address = Some(address);
        self
    }

    /// Adds a key and its value.
    #[must_use]
    pub fn meta(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.push((key.into(), value.into()));
        self
    }

    /// For how long it is believed in after the last word of it.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The value of a key.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.metadata.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    /// Whether it can be announced.
    ///
    /// # Errors
    /// [`ServiceError`] says what is wrong with it.
    /// Requirements: `R-SERVICE-1`.
    pub fn check(&self) -> Result<(), ServiceError> {
        if !is_name(&self.kind, MAX_TYPE) {
            return Err(ServiceError::Type(excerpt(&self.kind)));
        }
        if !is_name(&self.name, MAX_INSTANCE) {
            return Err(ServiceError::Name(excerpt(&self.name)));
        }
        if self.port == 0 {
            return Err(ServiceError::Port);
        }
        if self.address.is_some_and(|address| address.is_unspecified()) {
            return Err(ServiceError::Address);
        }
        if !(MIN_TTL..=MAX_TTL).contains(&self.ttl) {
            return Err(ServiceError::Ttl(self.ttl));
        }
        for (n, (key, value)) in self.metadata.iter().enumerate().take(MAX_PAIRS) {
            let again = self.metadata[..n].iter().any(|(other, _)| other == key);
            let bad = key.chars().chain(value.chars()).any(char::is_control);
            if key.is_empty() || again || bad {
                return Err(ServiceError::Metadata(excerpt(key)));
            }
        }
        let bytes = self.metadata.iter().map(|(k, v)| k.len() + v.len() + 2).sum();
        if bytes > MAX_METADATA || self.metadata.len() > MAX_PAIRS {
            return Err(ServiceError::TooMuchMetadata(bytes));
        }
        Ok(())
    }

    pub(super) fn record(&self, name: &str, here: Gid) -> Record {
        Record {
            kind: self.kind.clone(),
            name: name.into(),
            address: self.address.map_or(here, Gid::from).to_bytes(),
            port: self.port,
            ttl_ms: u32::try_from(self.ttl.as_millis()).unwrap_or(u32::MAX),
            withdrawn: false,
            metadata: self.metadata.iter().cloned().collect(),
        }
    }

    pub(super) fn of(record: &Record) -> Self {
        Self {
            kind: record.kind.clone(),
            name: record.name.clone(),
            address: Some(Gid::from_bytes(record.address).ip()),
            port: record.port,
            metadata: record.metadata.to_vec(),
            ttl: ttl(record),
        }
    }
}

/// For how long a record is believed in, whatever it claims.
pub(super) fn ttl(record: &Record) -> Duration {
    Duration::from_millis(record.ttl_ms.into()).clamp(MIN_TTL, MAX_TTL)
}

/// The beginning of a text that may be very long.
fn excerpt(text: &str) -> String {
    text.chars().take(40).collect()
}

/// Why a service cannot be announced. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// The type is empty, too long, or has control characters.
    #[error(
        "{0:?} cannot be a service's type; give 1 to {MAX_TYPE} bytes without control characters"
    )]
    Type(String),
    /// The name is empty, too long, or has control characters.
    #[error(
        "{0:?} cannot be a service's name; give 1 to {MAX_INSTANCE} bytes without control characters"
    )]
    Name(String),
    /// The port is 0.
    #[error("a service's port cannot be 0; give the port that it listens on")]
    Port,
    /// The address stands for all addresses.
    #[error("nobody reaches a service at an unspecified address; give one of the host's, or none")]
    Address,
    /// The time is out of its bounds.
    #[error("a service's TTL cannot be {0:?}; give {MIN_TTL:?} to {MAX_TTL:?}")]
    Ttl(Duration),
    /// A key is empty or given twice, or it or its value has control characters.
    #[error(
        "the metadata key {0:?} is empty or given twice, or it or its value has control characters; give each key \
         once, and printable text"
    )]
    Metadata(String),
    /// The metadata is more than a record has room for.
    #[error(
        "metadata of {0} bytes is too much; a service has room for {MAX_METADATA}, with 2 for each pair"
    )]
    TooMuchMetadata(usize),
}

/// Who offers a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// The node.
    pub node: NodeId,
    /// Its life.
    pub incarnation: u64,
    /// Where its words come from.
    pub address: PeerAddr,
}

impl Owner {
    pub(super) fn life(&self) -> (NodeId, u64) {
        (self.node, self.incarnation)
    }
}

/// A service that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// The service; its address is always there.
    pub service: Service,
    /// Who offers it.
    pub owner: Owner,
    /// The name of that node.
    pub node_name: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    /// R-SERVICE-1.
    #[test]
    fn what_cannot_be_announced_is_refused_with_a_reason() {
        let good = || Service::new("http", "web é", 80).meta("path", "/");
        assert_eq!(good().check(), Ok(()));
        assert_eq!(good().value("path"), Some("/"));
        let long = "x".repeat(10_000);
        for (service, says) in [
            (Service::new("", "a", 1), "type"),
            (Service::new("t\u{7}", "a", 1), "control characters"),
            (Service::new("t", long.clone(), 1), "1 to 64 bytes"),
            (Service::new("t", "a\u{1b}[2J", 1), "control characters"),
            (Service::new("t", "a", 0), "port"),
            (good().address("0.0.0.0".parse().unwrap()), "unspecified"),
            (good().ttl(Duration::ZERO), "TTL cannot be 0ns"),
            (good().ttl(Duration::MAX), "TTL"),
            (good().meta("", "v"), "is empty"),
            (good().meta("path", "/x"), "given twice"),
            (good().meta("k", "a\nb"), "control characters"),
            (good().meta("k", long), "10010 bytes is too much"),
        ] {
            let error = service.check().unwrap_err().to_string();
            assert!(error.contains(says), "{error:?} does not say {says:?}");
            assert!(error.len() < 200, "{error}");
        }
    }
}
