//! The palette of a TIFF.

/// Colours of the indices of a TIFF, from its tag ColorMap (TIFF 6.0, section 5).
pub(super) type Palette = Vec<[u8; 3]>;

/// The high bytes of the reds, greens and blues, as in Pillow.
pub(super) fn palette(map: &[u16]) -> Palette {
    let colours = map.len() / 3;
    let high = |value: u16| (value >> 8) as u8;
    (0..colours).map(|i| [map[i], map[colours + i], map[2 * colours + i]].map(high)).collect()
}
