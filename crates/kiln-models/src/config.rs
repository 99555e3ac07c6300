//! What the configurations of the models share: setters, defaults of fields, checks of sizes, rounding of numbers of channels.

use crate::Error;

/// Writes the setters of a configuration. Each sets the field that its argument is called after.
macro_rules! setters {
    ($config:ty: $($(#[$doc:meta])+ $setter:ident($field:ident: $kind:ty);)+) => {
        impl $config {$(
            $(#[$doc])+
            pub fn $setter(mut self, $field: $kind) -> Self {
                self.$field = $field;
                self
            }
        )+}
    };
}

/// Writes what the convolutional classifiers, which read images of any size, have in common.
macro_rules! reads_images {
    ($config:ty) => {
        $crate::config::setters! { $config:
            /// Sets the layers before the first block: the stride of the first convolution, and what follows from it.
            with_stem(stem: Stem);
            /// Sets the number of channels of the input images.
            with_channels(channels: usize);
            /// Sets whether the blocks use kiln-layers' operations (true) or burn's own (false).
            with_lean(lean: bool);
        }

        impl $config {
            /// Checks that images of `[height, width]` pixels can be read. Every convolution and pool is padded and rounds sizes up, so
            /// that a single pixel is enough.
            ///
            /// # Errors
            /// [`Error::InvalidInput`] for a height or width of 0.
            pub fn check_input(&self, size: [usize; 2]) -> Result<(), Error> {
                $crate::config::some_pixels(size)
            }
        }
    };
}

pub(crate) use {reads_images, setters};

/// Channels of an RGB image, the default of `channels`.
pub(crate) fn three() -> usize {
    3
}

/// The default factor of the numbers of channels.
pub(crate) fn one() -> f64 {
    1.0
}

/// The default of `lean`.
pub(crate) fn yes() -> bool {
    true
}

pub(crate) fn invalid(field: &'static str, value: impl ToString, expected: impl Into<String>) -> Error {
    Error::InvalidConfig { field, value: value.to_string(), expected: expected.into() }
}

/// Refuses sizes of zero.
pub(crate) fn positive<const N: usize>(sizes: [(&'static str, usize); N]) -> Result<(), Error> {
    match sizes.into_iter().find(|(_, value)| *value == 0) {
        Some((field, _)) => Err(invalid(field, 0, "at least 1")),
        None => Ok(()),
    }
}

/// Refuses a factor of numbers of channels that is not above 0 or is too large.
pub(crate) fn multiplier(field: &'static str, value: f64) -> Result<(), Error> {
    match value > 0.0 && value <= 64.0 {
        true => Ok(()),
        false => Err(invalid(field, value, "a number above 0, at most 64")),
    }
}

/// Refuses a probability outside of [0, 1).
pub(crate) fn probability(field: &'static str, value: f64) -> Result<(), Error> {
    match (0.0..1.0).contains(&value) {
        true => Ok(()),
        false => Err(invalid(field, value, "a number in [0, 1)")),
    }
}

/// Refuses a size with which a parameter of `shape` would have more bytes than a process can address.
pub(crate) fn addressable(field: &'static str, value: usize, shape: &[usize]) -> Result<(), Error> {
    const BYTES: usize = size_of::<f32>();
    let bytes = shape.iter().try_fold(BYTES, |bytes, size| bytes.checked_mul(*size));
    match bytes.is_some_and(|bytes| bytes <= isize::MAX as usize) {
        true => Ok(()),
        false => Err(invalid(field, value, "a size whose parameters can be addressed")),
    }
}

/// Refuses images whose height or width is not accepted.
pub(crate) fn sides(
    [height, width]: [usize; 2],
    accepted: impl Fn(usize) -> bool,
    expected: &str,
) -> Result<(), Error> {
    match [("image height", height), ("image width", width)].into_iter().find(|(_, value)| !accepted(*value)) {
        Some((size, value)) => Err(Error::InvalidInput { size, value, expected: expected.to_owned() }),
        None => Ok(()),
    }
}

/// Refuses images without pixels.
pub(crate) fn some_pixels(size: [usize; 2]) -> Result<(), Error> {
    sides(size, |value| value > 0, "at least 1 pixel")
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
