//! Polynomials over two elements, modulo the generator of CRC-32.
//!
//! A residue is a `u32` in the CRC's own bit order: bit 31 is the coefficient of x^0 and bit 0 that of
//! x^31, so that multiplying by x is a shift to the right. Feeding a zero byte to a CRC register
//! multiplies it by x^8, and dividing by a power of x takes zero bytes back out.

/// The generator without its x^32.
const GENERATOR: u32 = 0xedb8_8320;

/// The residue 1.
pub(super) const ONE: u32 = 0x8000_0000;

/// `a` · x.
pub(super) const fn times_x(a: u32) -> u32 {
    (a >> 1) ^ (GENERATOR & (a & 1).wrapping_neg())
}

/// `a` · x^-1. The generator's constant term is 1, so x has an inverse.
pub(super) const fn over_x(a: u32) -> u32 {
    (a << 1) ^ (((GENERATOR << 1) | 1) & (a >> 31).wrapping_neg())
}

/// `a` · `b`.
///
/// The product is formed with integer multiplications on every fourth bit: at most eight terms meet in
/// one place, so carries stay within the three empty bits above it. Some ten nanoseconds, no branches.
#[inline]
pub(super) fn mul(a: u32, b: u32) -> u32 {
    const EVERY_4TH: u64 = 0x1111_1111_1111_1111;
    let (a, b) = (u64::from(a), u64::from(b));
    let a: [u64; 4] = core::array::from_fn(|i| a & (EVERY_4TH << i));
    let b: [u64; 4] = core::array::from_fn(|i| b & (EVERY_4TH << i));
    let mut product = 0;
    for place in 0..4 {
        let mut sum = 0;
        for i in 0..4 {
            sum ^= a[i].wrapping_mul(b[(4 + place - i) % 4]);
        }
        product |= sum & (EVERY_4TH << place);
    }
    // Bit 62 - d holds the coefficient of x^d. Moved up by one, the upper half holds x^0 to x^31, and
    // the lower half, read as a residue of its own, is still to be multiplied by x^32.
    let product = product << 1;
    (product >> 32) as u32 ^ times_x32(product as u32)
}

/// `a` · x^32: what a CRC register becomes after four zero bytes.
#[inline]
fn times_x32(a: u32) -> u32 {
    let [b0, b1, b2, b3] = a.to_le_bytes();
    TIMES_X32[0][usize::from(b0)]
        ^ TIMES_X32[1][usize::from(b1)]
        ^ TIMES_X32[2][usize::from(b2)]
        ^ TIMES_X32[3][usize::from(b3)]
}

/// `TIMES_X32[i][b]` is x^32 times the residue whose byte `i` is `b` and whose other bytes are 0.
static TIMES_X32: [[u32; 256]; 4] = {
    let mut table = [[0; 256]; 4];
    let mut byte = 0;
    while byte < 4 {
        let mut value = 0;
        while value < 256 {
            let mut a = (value as u32) << (8 * byte);
            let mut bit = 0;
            while bit < 32 {
                a = times_x(a);
                bit += 1;
            }
            table[byte][value] = a;
            value += 1;
        }
        byte += 1;
    }
    table
};

/// x^-(`first` + `step` · i) for i from 0.
pub(super) const fn negative_powers<const N: usize>(first: u32, step: u32) -> [u32; N] {
    let mut table = [0; N];
    let mut power = negative_power(first);
    let step = negative_power(step);
    let mut i = 0;
    while i < N {
        table[i] = power;
        power = school_mul(power, step);
        i += 1;
    }
    table
}

/// x^-`exponent`.
const fn negative_power(exponent: u32) -> u32 {
    let mut power = ONE;
    let mut taken = 0;
    while taken < exponent {
        power = over_x(power);
        taken += 1;
    }
    power
}

/// `a` · `b`, one bit at a time: what [`mul`] does, for tables made by the compiler and for its test.
const fn school_mul(mut a: u32, b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= a & (b >> bit & 1).wrapping_neg();
        a = times_x(a);
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiplication_is_the_school_one() {
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..10_000 {
            let (a, b) = (rng.u32(..), rng.u32(..));
            assert_eq!(mul(a, b), school_mul(a, b), "{a:#x} times {b:#x}");
        }
        for a in [0, 1, ONE, u32::MAX] {
            assert_eq!(mul(a, ONE), a);
            assert_eq!(mul(u32::MAX, a), school_mul(u32::MAX, a));
        }
    }

    #[test]
    fn x_and_its_inverse_cancel() {
        let mut a = 0xdead_beef;
        for _ in 0..1000 {
            assert_eq!(over_x(times_x(a)), a);
            assert_eq!(times_x(over_x(a)), a);
            a = times_x(a).wrapping_add(1);
        }
    }

    #[test]
    fn negative_powers_undo_positive_ones() {
        let table = negative_powers::<9>(5, 13);
        for (i, &power) in table.iter().enumerate() {
            let mut a = power;
            for _ in 0..5 + 13 * i {
                a = times_x(a);
            }
            assert_eq!(a, ONE);
        }
    }
}
