//! Check values: what members tell each other of their keys.

use core::net::IpAddr;

use crate::addr::{PKey, QKey, digest};
use crate::wire::notice::Checks;

/// The check value of a group's queue key.
///
/// It follows from a hash, so nothing of it is a bit of the key. It has 8 bits and not more: a listener
/// who knows it is spared 255 of 256 guesses of a key of 31 bits and no more, where a longer one would let
/// him find the key, and search for the secret behind it, without sending anything. So two different keys
/// look the same once in 256 times, and are not diagnosed here.
/// Requirements: `R-KEY-1`.
pub fn key_check(group: &str, qkey: QKey) -> u8 {
    low(digest(b"qcast check 1", group, &qkey.get().to_be_bytes()))
}

impl Checks {
    /// What a member of `group` tells of it.
    pub fn of(group: &str, qkey: QKey, partition: PKey, mgid: IpAddr, mtu: usize) -> Self {
        // Bit 15 says whether the membership is full; full and limited members hear each other.
        let partition = (partition.0 & 0x7fff).to_be_bytes();
        let address = crate::addr::Gid::from(mgid).to_bytes();
        Self {
            key: key_check(group, qkey),
            partition: low(digest(b"qcast partition 1", group, &partition)),
            address: low(digest(b"qcast address 1", group, &address)),
            mtu: u32::try_from(mtu).unwrap_or(u32::MAX),
        }
    }
}

fn low(digest: u32) -> u8 {
    digest.to_be_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u32) -> QKey {
        QKey::new_checked(n).unwrap()
    }

    /// R-KEY-1.
    #[test]
    fn check_values_are_no_part_of_the_key_and_even() {
        let mut of = [0u32; 256];
        let mut equal = 0;
        for n in 1..=25_600u32 {
            let check = key_check("g", key(n));
            of[usize::from(check)] += 1;
            equal += u32::from(check == (n & 0xff) as u8);
        }
        assert!(of.iter().all(|n| (50..200).contains(n)), "{of:?}");
        assert!(equal < 200, "{equal} of 25,600 check values are the key's low byte");
        assert_ne!(key_check("g", key(7)), key_check("h", key(7)));
        assert_eq!(key_check("g", key(7)), key_check("g", key(7)));
    }

    /// R-KEY-4.
    #[test]
    fn full_and_limited_members_of_a_partition_are_in_one() {
        let checks =
            |pkey, mgid: &str| Checks::of("g", key(7), PKey(pkey), mgid.parse().unwrap(), 4096);
        assert_eq!(checks(0xffff, "239.192.0.1"), checks(0x7fff, "239.192.0.1"));
        assert_ne!(checks(0xffff, "239.192.0.1"), checks(0x8001, "239.192.0.1"));
        assert_ne!(checks(0xffff, "239.192.0.1"), checks(0xffff, "239.192.0.2"));
    }
}
