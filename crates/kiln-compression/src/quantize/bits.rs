//! Codes of a few bits in a row of bytes.

/// `codes` as a stream of bits: the lowest `bits` bits of each code, the first code in the lowest bits of the first byte. With 4 bits that
/// is two codes a byte, with 8 bits the codes themselves.
pub(crate) fn pack(codes: &[i8], bits: u8) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(packed_len(codes.len(), bits));
    let (mut pending, mut filled) = (0_u32, 0);
    for code in codes {
        pending |= (u32::from(*code as u8) & mask(bits)) << filled;
        filled += bits;
        while filled >= 8 {
            bytes.push(pending as u8);
            pending >>= 8;
            filled -= 8;
        }
    }
    if filled > 0 {
        bytes.push(pending as u8);
    }
    bytes
}

/// The `count` codes of `bytes`; none if there are not as many bytes as they need.
pub(crate) fn unpack(bytes: &[u8], bits: u8, count: usize) -> Option<Vec<i8>> {
    if bytes.len() != packed_len(count, bits) {
        return None;
    }
    let mut codes = Vec::with_capacity(count);
    let (mut pending, mut filled) = (0_u32, 0);
    for byte in bytes {
        pending |= u32::from(*byte) << filled;
        filled += 8;
        while filled >= bits && codes.len() < count {
            // The sign is the highest bit of the code.
            let unused = 8 - bits;
            codes.push(((pending & mask(bits)) as u8).wrapping_shl(u32::from(unused)) as i8 >> unused);
            pending >>= bits;
            filled -= bits;
        }
    }
    Some(codes)
}

/// The bytes of `count` codes.
pub(crate) fn packed_len(count: usize, bits: u8) -> usize {
    (count as u128 * u128::from(bits)).div_ceil(8) as usize
}

fn mask(bits: u8) -> u32 {
    (1 << bits) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn four_bits_are_two_codes_a_byte() {
        assert_eq!(pack(&[1, -1, 7, -7, 3], 4), [0xF1, 0x97, 0x03]);
        assert_eq!(pack(&[1, -1, 127], 8), [1, 255, 127]);
        assert_eq!(unpack(&[0xF1], 4, 3), None);
        assert_eq!(unpack(&[0xF1, 0, 0], 4, 3), None);
    }

    proptest! {
        #[test]
        fn codes_come_back(codes in prop::collection::vec(any::<i8>(), 0..70), bits in 2_u8..=8) {
            let codes: Vec<i8> = codes.iter().map(|code| code >> (8 - bits)).collect();
            let packed = pack(&codes, bits);
            prop_assert_eq!(packed.len(), packed_len(codes.len(), bits));
            prop_assert_eq!(unpack(&packed, bits, codes.len()), Some(codes));
        }
    }
}
