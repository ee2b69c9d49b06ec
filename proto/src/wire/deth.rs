//! The datagram extended transport header: the eight bytes after the BTH of every UD datagram.
//!
//! ```text
//! bytes 0-3   queue key
//! byte 4      reserved
//! bytes 5-7   source queue pair
//! ```

use crate::addr::Qpn;

/// The datagram extended transport header.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Deth {
    /// The queue key, as it is on the wire. It may be a number that no group of ours can have
    /// ([`crate::addr::QKey`] is 31 bits), so it stays a number.
    pub qkey: u32,
    /// The queue pair that sent this.
    pub src_qpn: Qpn,
}

impl Deth {
    /// How many bytes it takes.
    pub const LEN: usize = 8;

    /// Reads the header. Every value of the eight bytes is one.
    #[must_use]
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [k0, k1, k2, k3, _, q0, q1, q2] = *bytes;
        Self {
            qkey: u32::from_be_bytes([k0, k1, k2, k3]),
            src_qpn: Qpn::new(u32::from_be_bytes([0, q0, q1, q2])),
        }
    }

    /// Writes the header over all eight bytes.
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        let [k0, k1, k2, k3] = self.qkey.to_be_bytes();
        let [_, q0, q1, q2] = self.src_qpn.get().to_be_bytes();
        *out = [k0, k1, k2, k3, 0, q0, q1, q2];
    }
}

/// Only the last byte of the key is shown, as for [`crate::addr::QKey`].
impl core::fmt::Debug for Deth {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Deth")
            .field("qkey", &format_args!("0x......{:02x}", self.qkey & 0xff))
            .field("src_qpn", &self.src_qpn)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_both_ways() {
        let bytes = [0x81, 0x23, 0x45, 0x67, 0, 0x89, 0xab, 0xcd];
        let deth = Deth { qkey: 0x8123_4567, src_qpn: Qpn::new(0x0089_abcd) };
        assert_eq!(Deth::parse(&bytes), deth);
        let mut out = [0xa5; 8];
        deth.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn the_reserved_byte_is_not_looked_at() {
        let mut bytes = [0, 0, 0, 1, 0xff, 0, 0, 2];
        let deth = Deth::parse(&bytes);
        assert_eq!(deth, Deth { qkey: 1, src_qpn: Qpn::new(2) });
        deth.emit(&mut bytes);
        assert_eq!(bytes, [0, 0, 0, 1, 0, 0, 0, 2]);
    }

    #[test]
    fn a_debug_print_does_not_give_the_key_away() {
        let deth = Deth { qkey: 0x0bad_cafe, src_qpn: Qpn::new(1) };
        let print = std::format!("{deth:?}");
        assert!(print.contains("0x......fe") && !print.contains("bad"), "{print}");
    }
}
