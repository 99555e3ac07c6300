//! Checks of the sizes in a model's configuration, and rounding of numbers of channels.

use crate::Error;

/// Refuses sizes of zero.
pub(crate) fn positive<const N: usize>(sizes: [(&'static str, usize); N]) -> Result<(), Error> {
    match sizes.into_iter().find(|(_, value)| *value == 0) {
        Some((field, _)) => Err(Error::InvalidConfig { field, value: "0".into(), expected: "at least 1".into() }),
        None => Ok(()),
    }
}

/// Refuses a factor of numbers of channels that is not above 0 or is too large.
pub(crate) fn multiplier(field: &'static str, value: f64) -> Result<(), Error> {
    match value > 0.0 && value <= 64.0 {
        true => Ok(()),
        false => {
            let expected = "a number above 0, at most 64".into();
            Err(Error::InvalidConfig { field, value: value.to_string(), expected })
        }
    }
}

/// Refuses a size with which a parameter of `shape` would have more bytes than a process can address.
pub(crate) fn addressable(field: &'static str, value: usize, shape: &[usize]) -> Result<(), Error> {
    const BYTES: usize = size_of::<f32>();
    let bytes = shape.iter().try_fold(BYTES, |bytes, size| bytes.checked_mul(*size));
    match bytes.is_some_and(|bytes| bytes <= isize::MAX as usize) {
        true => Ok(()),
        false => Err(Error::InvalidConfig {
            field,
            value: value.to_string(),
            expected: "a size whose parameters can be addressed".into(),
        }),
    }
}

/// Refuses images without pixels. A convolution or pool that is padded rounds sizes up, so that a single pixel is enough.
pub(crate) fn some_pixels([height, width]: [usize; 2]) -> Result<(), Error> {
    match [("image height", height), ("image width", width)].into_iter().find(|(_, value)| *value == 0) {
        Some((size, value)) => Err(Error::InvalidInput { size, value, expected: "at least 1 pixel".into() }),
        None => Ok(()),
    }
}

/// The nearest multiple of 8, at least 8, and not more than a tenth below (torchvision's `_make_divisible`).
pub(crate) fn divisible(channels: f64) -> usize {
    let nearest = ((channels + 4.0) / 8.0).floor().max(1.0) * 8.0;
    (if nearest < 0.9 * channels { nearest + 8.0 } else { nearest }) as usize
}

#[cfg(test)]
mod tests {
    use super::divisible;

    #[test]
    fn numbers_of_channels_are_torchvisions() {
        // [torchvision.models._utils._make_divisible(c, 8) for c in ..]
        let expected =
            [(1.0, 8), (11.9, 16), (12.0, 16), (16.0, 16), (22.4, 24), (24.0, 24), (33.6, 32), (44.8, 48), (67.2, 64)];
        for (channels, divided) in expected {
            assert_eq!(divisible(channels), divided, "{channels}");
        }
    }
}
