//! Where rdma_cm finds an InfiniBand port: at an IPoIB interface of it.
//!
//! rdma_cm knows ports by IP addresses, and on InfiniBand it takes from the interface what a join needs beside the
//! group: the partition, and the broadcast group, whose record gives the new group its service level. The interface's MTU
//! tells what a datagram to groups may hold, which a join's event does not say.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use nix::ifaddrs::getifaddrs;
use qcast_proto::addr::Gid;
use qcast_proto::qp::PathMtu;

/// Where interfaces are described.
pub(super) const ROOT: &str = "/sys/class/net";

/// An IPoIB interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ipoib {
    pub(super) name: String,
    /// The port's GID, the end of the interface's link address.
    gid: Gid,
    /// The partition, from the link's broadcast address.
    pkey: u16,
    mtu: usize,
    /// In connected mode the MTU says nothing of groups.
    datagram: bool,
}

/// The IPoIB interfaces of a port's partition, in the order of their names.
pub(super) fn of_port(root: &Path, gids: &[Gid], pkey: u16) -> Vec<Ipoib> {
    let Ok(folder) = fs::read_dir(root) else { return Vec::new() };
    let names = folder.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    // The highest bit tells full members of a partition from limited ones.
    let same = |theirs: u16| theirs & 0x7fff == pkey & 0x7fff;
    let mut found: Vec<Ipoib> = names
        .filter_map(|name| read(root, name))
        .filter(|interface| gids.contains(&interface.gid) && same(interface.pkey))
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

fn read(root: &Path, name: String) -> Option<Ipoib> {
    const ARPHRD_INFINIBAND: &str = "32";
    let folder = root.join(&name);
    let text = |file: &str| fs::read_to_string(folder.join(file)).ok();
    if text("type")?.trim() != ARPHRD_INFINIBAND {
        return None;
    }
    let (address, broadcast) =
        (link_address(&text("address")?)?, link_address(&text("broadcast")?)?);
    Some(Ipoib {
        name,
        gid: Gid::from_bytes(*address.last_chunk()?),
        pkey: u16::from_be_bytes([broadcast[8], broadcast[9]]),
        mtu: text("mtu")?.trim().parse().ok()?,
        datagram: text("mode").is_none_or(|mode| mode.trim() == "datagram"),
    })
}

/// The 20 bytes of a link address: flags and a queue pair's number, then a GID.
fn link_address(text: &str) -> Option<[u8; 20]> {
    let bytes = text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).ok());
    bytes.collect::<Option<Vec<u8>>>()?.try_into().ok()
}

/// The largest payload of a datagram to a group, by what is known of the link's broadcast group.
pub(super) fn group_mtu(interface: Option<&Ipoib>) -> usize {
    /// Between an IPoIB datagram's IP packet and the InfiniBand payload.
    const ENCAPSULATION: usize = 4;
    let known = interface.filter(|interface| interface.datagram);
    let most = known.map_or(USUAL_GROUP_MTU, |interface| interface.mtu + ENCAPSULATION);
    PathMtu::ALL.iter().map(|mtu| mtu.bytes()).filter(|mtu| *mtu <= most).max().unwrap_or(256)
}

/// What subnet managers give groups unless they are told otherwise.
const USUAL_GROUP_MTU: usize = 2048;

/// An address of one of these interfaces, an IPv4 one if there is any.
pub(super) fn address(interfaces: &[Ipoib]) -> Option<SocketAddr> {
    let own: Vec<(String, SocketAddr)> = getifaddrs()
        .ok()?
        .filter_map(|entry| {
            let address = entry.address?;
            let v4 = address
                .as_sockaddr_in()
                .map(|a| SocketAddr::from(std::net::SocketAddrV4::from(*a)));
            let v6 = address
                .as_sockaddr_in6()
                .map(|a| SocketAddr::from(std::net::SocketAddrV6::from(*a)));
            Some((entry.interface_name, v4.or(v6)?))
        })
        .collect();
    choose(interfaces, &own)
}

fn choose(interfaces: &[Ipoib], own: &[(String, SocketAddr)]) -> Option<SocketAddr> {
    let of_port = own.iter().filter(|(name, _)| interfaces.iter().any(|i| i.name == *name));
    let rank = |ip: IpAddr| match ip {
        IpAddr::V4(_) => 0,
        ip if Gid::from(ip).is_link_local() => 2,
        IpAddr::V6(_) => 1,
    };
    of_port.map(|(_, address)| *address).min_by_key(|address| rank(address.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    struct Fake(PathBuf);

    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// A port with the GID fe80::2:c903:0:1, its interface, one of another partition, one of another port, and Ethernet.
    fn host(name: &str) -> Fake {
        let root = std::env::temp_dir().join(format!("qcast-ipoib-{}-{name}", std::process::id()));
        let port = "80:00:02:08:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:00:01";
        let other = "80:00:02:09:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:00:02";
        let broadcast =
            |pkey: &str| format!("00:ff:ff:ff:ff:12:40:1b:{pkey}:00:00:00:00:00:00:ff:ff:ff:ff");
        for (name, kind, address, broadcast, mtu, mode) in [
            ("eth0", "1", "52:54:00:09:00:01", "ff:ff:ff:ff:ff:ff".to_owned(), "1500", None),
            ("ib0", "32", port, broadcast("ff:ff"), "2044", Some("datagram")),
            ("ib0.8001", "32", port, broadcast("80:01"), "65520", Some("connected")),
            ("ib1", "32", other, broadcast("ff:ff"), "4092", Some("datagram")),
        ] {
            let folder = root.join(name);
            fs::create_dir_all(&folder).unwrap();
            for (file, text) in
                [("type", kind), ("address", address), ("broadcast", &broadcast), ("mtu", mtu)]
            {
                fs::write(folder.join(file), format!("{text}\n")).unwrap();
            }
            if let Some(mode) = mode {
                fs::write(folder.join("mode"), format!("{mode}\n")).unwrap();
            }
        }
        Fake(root)
    }

    fn gids(last: u8) -> [Gid; 1] {
        let mut bytes = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0, 0, 0];
        bytes[15] = last;
        [Gid::from_bytes(bytes)]
    }

    #[test]
    fn the_interface_of_port_and_partition_is_found() {
        let host = host("found");
        let names = |gids: &[Gid], pkey| -> Vec<String> {
            of_port(&host.0, gids, pkey).into_iter().map(|found| found.name).collect()
        };
        assert_eq!(names(&gids(1), 0xffff), ["ib0"]);
        assert_eq!(names(&gids(1), 0x7fff), ["ib0"], "limited members are of the partition too");
        assert_eq!(names(&gids(1), 0x8001), ["ib0.8001"]);
        assert_eq!(names(&gids(2), 0xffff), ["ib1"]);
        assert!(names(&gids(3), 0xffff).is_empty());
        assert!(of_port(&host.0.join("nowhere"), &gids(1), 0xffff).is_empty());
    }

    #[test]
    fn groups_hold_what_the_broadcast_group_does() {
        let host = host("mtu");
        let mtu = |gids: &[Gid], pkey| group_mtu(of_port(&host.0, gids, pkey).first());
        assert_eq!(mtu(&gids(1), 0xffff), 2048);
        assert_eq!(mtu(&gids(2), 0xffff), 4096);
        assert_eq!(mtu(&gids(1), 0x8001), 2048, "connected mode says nothing of groups");
        assert_eq!(group_mtu(None), 2048);
    }

    #[test]
    fn an_ipv4_address_of_the_interface_comes_first() {
        let host = host("address");
        let interfaces = of_port(&host.0, &gids(1), 0xffff);
        let own = |entries: &[(&str, &str)]| -> Vec<(String, SocketAddr)> {
            entries.iter().map(|(name, at)| ((*name).into(), at.parse().unwrap())).collect()
        };
        let all = own(&[("eth0", "10.0.0.1:0"), ("ib0", "[fe80::1]:0"), ("ib0", "10.4.0.1:0")]);
        assert_eq!(choose(&interfaces, &all), Some("10.4.0.1:0".parse().unwrap()));
        let six = own(&[("ib0", "[fe80::1]:0"), ("ib0", "[fd00::1]:0")]);
        assert_eq!(choose(&interfaces, &six), Some("[fd00::1]:0".parse().unwrap()));
        assert_eq!(choose(&interfaces, &own(&[("ib1", "10.4.0.1:0")])), None);
    }
}
