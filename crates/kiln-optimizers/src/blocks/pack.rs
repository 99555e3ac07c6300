//! Two 4-bit codes in a byte: the first in the upper half, as in torchao.

use kiln_operations::simd;

simd! {
    /// Writes the codes of `bytes`. The last byte gives one code or two.
    pub(crate) fn unpacked(bytes: &[u8], codes: &mut [u8]) {
        let (pairs, rest) = codes.as_chunks_mut::<2>();
        for (byte, pair) in bytes.iter().zip(pairs) {
            *pair = [byte >> 4, byte & 0xF];
        }
        if let ([code], Some(byte)) = (rest, bytes.last()) {
            *code = byte >> 4;
        }
    }
}

simd! {
    /// Packs `codes`, which are below 16, into `bytes`: half as many, rounded up. The lower half of a byte without a second code is 0.
    pub(crate) fn packed(codes: &[u8], bytes: &mut [u8]) {
        let (pairs, rest) = codes.as_chunks::<2>();
        for (byte, pair) in bytes.iter_mut().zip(pairs) {
            *byte = pair[0] << 4 | pair[1] & 0xF;
        }
        if let ([code], Some(byte)) = (rest, bytes.last_mut()) {
            *byte = code << 4;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_is_reversible_for_all_lengths() {
        for length in 0..70usize {
            let codes: Vec<u8> = (0..length).map(|index| (index * 7 % 16) as u8).collect();
            let mut bytes = vec![0xFF; length.div_ceil(2)];
            packed(&codes, &mut bytes);
            let mut back = vec![0xFF; length];
            unpacked(&bytes, &mut back);
            assert_eq!(back, codes);
        }
        let mut bytes = [0; 2];
        packed(&[1, 2, 3], &mut bytes);
        assert_eq!(bytes, [0x12, 0x30]);
    }
}
