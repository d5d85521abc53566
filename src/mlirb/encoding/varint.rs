//! Integers of variable length.
//!
//! A number of `n` bytes, `n` at most 8, has `n - 1` zero bits at the bottom of its first byte, then a one, then its
//! `7 n` bits, little-endian. A first byte of zero is followed by all 8 bytes.

use super::cursor::Cursor;
use crate::Result;

/// Longest encoding in bytes.
pub(in crate::mlirb) const MAX_BYTES: usize = 9;

/// Appends an unsigned number.
pub(in crate::mlirb) fn put_unsigned(out: &mut Vec<u8>, value: u64) {
    let bits = u64::BITS - value.leading_zeros();
    let bytes = bits.div_ceil(7).max(1);
    if bytes > 8 {
        out.push(0);
        out.extend(value.to_le_bytes());
    } else {
        let tagged = ((value << 1) | 1) << (bytes - 1);
        out.extend(tagged.to_le_bytes().into_iter().take(bytes as usize));
    }
}

/// Appends a length or an index.
pub(in crate::mlirb) fn put_count(out: &mut Vec<u8>, count: usize) {
    put_unsigned(out, count as u64);
}

/// Appends a signed number, zigzagged.
pub(in crate::mlirb) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_unsigned(out, ((value << 1) ^ (value >> 63)).cast_unsigned());
}

/// Appends the bits of an integer of 1 to 64 bits, zero-extended: one byte up to 8 bits, else zigzagged.
/// Sign-extending a negative number of fewer than 64 bits aborts Apple's loader.
pub(in crate::mlirb) fn put_bits(out: &mut Vec<u8>, width: u64, bits: u64) {
    if width <= 8 {
        out.push(bits.to_le_bytes()[0]);
    } else {
        put_signed(out, bits.cast_signed());
    }
}

impl Cursor<'_> {
    /// Reads what [`put_unsigned`] wrote.
    pub(in crate::mlirb) fn unsigned(&mut self) -> Result<u64> {
        let first = self.byte()?;
        let mut word = [0u8; 8];
        if first == 0 {
            word.copy_from_slice(self.take(8)?);
            return Ok(u64::from_le_bytes(word));
        }
        let zeros = first.trailing_zeros();
        let rest = self.take(zeros as usize)?;
        for (to, from) in word.iter_mut().zip(std::iter::once(&first).chain(rest)) {
            *to = *from;
        }
        Ok(u64::from_le_bytes(word) >> (zeros + 1))
    }

    /// Reads what [`put_signed`] wrote.
    pub(in crate::mlirb) fn signed(&mut self) -> Result<i64> {
        let zigzag = self.unsigned()?;
        Ok((zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed())
    }

    /// Reads what [`put_bits`] wrote.
    pub(in crate::mlirb) fn bits(&mut self, width: u64) -> Result<u64> {
        if width <= 8 { Ok(u64::from(self.byte()?)) } else { Ok(self.signed()?.cast_unsigned()) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn unsigned_bytes(value: u64) -> Vec<u8> {
        let mut out = Vec::new();
        put_unsigned(&mut out, value);
        out
    }

    fn bits_bytes(width: u64, bits: u64) -> Vec<u8> {
        let mut out = Vec::new();
        put_bits(&mut out, width, bits);
        out
    }

    #[test]
    fn numbers_have_the_bytes_apple_writes() {
        assert_eq!(unsigned_bytes(0), [0x01]);
        assert_eq!(unsigned_bytes(1), [0x03]);
        assert_eq!(unsigned_bytes(64), [0x81]);
        assert_eq!(unsigned_bytes(300), [0xb2, 0x04]);
        let mut out = Vec::new();
        put_signed(&mut out, 1_000_000);
        assert_eq!(out, [0x04, 0x24, 0xf4]);
        out.clear();
        put_signed(&mut out, i64::MIN);
        assert_eq!(out, [0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    }

    #[test]
    fn integers_narrower_than_64_bits_are_zero_extended() {
        assert_eq!(bits_bytes(32, u64::from((-3i32).cast_unsigned())), [0x50, 0xff, 0xff, 0xff, 0x3f]);
        assert_eq!(bits_bytes(16, u64::from((-3i16).cast_unsigned())), [0xd4, 0xff, 0x0f]);
        assert_eq!(bits_bytes(64, u64::MAX), [0x03]);
        assert_eq!(bits_bytes(32, u64::from((-2.0f32).to_bits())), [0x10, 0x00, 0x00, 0x00, 0x30]);
    }

    proptest! {
        #[test]
        fn unsigned_numbers_survive(value: u64, shift in 0u32..64) {
            let value = value >> shift;
            let bytes = unsigned_bytes(value);
            let mut cursor = Cursor::new(&bytes, 0);
            prop_assert_eq!(cursor.unsigned().unwrap(), value);
            prop_assert!(cursor.is_empty());
        }

        #[test]
        fn signed_numbers_survive(value: i64, shift in 0u32..64) {
            let value = value >> shift;
            let mut bytes = Vec::new();
            put_signed(&mut bytes, value);
            prop_assert_eq!(Cursor::new(&bytes, 0).signed().unwrap(), value);
        }

        #[test]
        fn integers_of_any_width_survive(width in 1u64..=64, bits: u64) {
            let bits = bits >> (64 - width);
            prop_assert_eq!(Cursor::new(&bits_bytes(width, bits), 0).bits(width).unwrap(), bits);
        }
    }
}
