//! Checks of the sizes in a model's configuration.

use crate::Error;

/// Refuses sizes of zero.
pub(crate) fn positive<const N: usize>(sizes: [(&'static str, usize); N]) -> Result<(), Error> {
    match sizes.into_iter().find(|(_, value)| *value == 0) {
        Some((field, _)) => Err(Error::InvalidConfig { field, value: "0".into(), expected: "at least 1".into() }),
        None => Ok(()),
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
