//! Quantises slices to blocks of codes, and back.

use super::book::CodeBook;
use super::codec::{decode, encode};
use super::pack::{packed, unpacked};
use crate::error::Error;

/// Values as codes, with one scale for each block.
#[derive(Clone, Debug, PartialEq)]
pub struct Blocks {
    /// One code a byte, or two if the book has 4 bits: the first in the upper half.
    pub codes: Vec<u8>,
    /// The largest absolute value of each block.
    pub scales: Vec<f32>,
    /// The number of values.
    pub count: usize,
}

/// Quantises values by blocks of [`CodeBook::block`] values, the last of which may be shorter.
///
/// The scale of a block is its largest absolute value. The code of a value is the code of the book's entry that is nearest to value /
/// scale. With 8 bits the result is that of `quantize_blockwise` of bitsandbytes 0.48 on the CPU. With 4 bits it is that of torchao's
/// optimizers, except that these take no scales below 1e-12. A value above 0 never gets the entry 0 if the book is not signed.
///
/// For a value `x` and its scale `s`, the error of `x / s` is at most half of the distance between the two entries around it.
///
/// # Errors
/// [`Error::NotFinite`] for infinity and NaN, and [`Error::Negative`] for a value below 0 if the book is not signed.
///
/// ```
/// use kiln_optimizers::{CodeBook, dequantize, quantize};
///
/// let values = [0.5, -0.25, 0.0, 2e-6];
/// let blocks = quantize(&values, CodeBook::Dynamic)?;
/// assert_eq!(blocks.scales, [0.5]);
/// let back = dequantize(&blocks, CodeBook::Dynamic)?;
/// assert!(values.iter().zip(&back).all(|(value, back)| (value - back).abs() <= 0.008 * 0.5));
/// # Ok::<(), kiln_optimizers::Error>(())
/// ```
pub fn quantize(values: &[f32], book: CodeBook) -> Result<Blocks, Error> {
    check_finite(values)?;
    if let Some(index) = values.iter().position(|value| !book.is_signed() && *value < 0.0) {
        return Err(Error::Negative { index, value: values[index] });
    }
    Ok(encoded(values, book))
}

/// Quantises as [`quantize`] does, but accepts any values. The scale of a block is not finite if a value in it is not.
pub(crate) fn encoded(values: &[f32], book: CodeBook) -> Blocks {
    let mut codes = vec![0; values.len()];
    let pieces = values.chunks(book.block()).zip(codes.chunks_mut(book.block()));
    let scales = pieces.map(|(values, codes)| encode(book, values, codes, None)).collect();
    if book.bits() == 4 {
        let mut bytes = vec![0; book.code_bytes(values.len())];
        packed(&codes, &mut bytes);
        codes = bytes;
    }
    Blocks { codes, scales, count: values.len() }
}

/// Decodes values: each is the entry of the book times the scale.
///
/// # Errors
/// [`Error::BlockLength`] if the number of codes or scales does not fit the count.
pub fn dequantize(blocks: &Blocks, book: CodeBook) -> Result<Vec<f32>, Error> {
    let expected = (book.code_bytes(blocks.count), blocks.count.div_ceil(book.block()));
    if (blocks.codes.len(), blocks.scales.len()) != expected {
        return Err(Error::BlockLength {
            count: blocks.count,
            codes: blocks.codes.len(),
            expected_codes: expected.0,
            scales: blocks.scales.len(),
            expected_scales: expected.1,
        });
    }
    Ok(decoded(blocks, book))
}

/// Decodes as [`dequantize`] does, without a check that codes and scales fit the count.
pub(crate) fn decoded(blocks: &Blocks, book: CodeBook) -> Vec<f32> {
    let mut codes = vec![0; blocks.count];
    match book.bits() {
        4 => unpacked(&blocks.codes, &mut codes),
        _ => codes.copy_from_slice(&blocks.codes),
    }
    let mut values = vec![0.0; blocks.count];
    let pieces = codes.chunks(book.block()).zip(values.chunks_mut(book.block())).zip(&blocks.scales);
    pieces.for_each(|((codes, values), scale)| decode(book, codes, *scale, values));
    values
}

/// The number of elements of a shape; `None` if it cannot be represented.
pub(crate) fn elements(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1, |count: usize, size| count.checked_mul(*size))
}

/// Whether all values are finite.
///
/// # Errors
/// [`Error::NotFinite`] names the first value that is not finite.
pub fn check_finite(values: &[f32]) -> Result<(), Error> {
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(index) => Err(Error::NotFinite { index, value: values[index] }),
    }
}
