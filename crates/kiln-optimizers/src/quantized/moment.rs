//! The codes and scales of a moment as tensors, and their record.

use burn::optim::{StateSink, StateSource, join_path};
use burn::tensor::{Bytes, DType, Device, Int, Tensor, TensorData};

use crate::blocks::{Blocks, CodeBook, decoded, elements, encoded};
use crate::error::Error;

/// A moment of one parameter as blocks of codes.
#[derive(Clone, Debug)]
pub struct QuantizedMoment {
    pub(super) book: CodeBook,
    /// U8: one code in each byte, or two.
    pub(super) codes: Tensor<1, Int>,
    /// F32: one scale for each block.
    pub(super) scales: Tensor<1>,
}

/// The names of tensors and numbers in records.
pub(super) const CODES: &str = "codes";
pub(super) const SCALES: &str = "scales";
pub(super) const MAP: &str = "map";
pub(super) const BITS: &str = "bits";
pub(super) const BLOCK: &str = "block";

/// The name of the number of steps, also in burn's records.
pub(super) const TIME: &str = "time";
/// The name of the parameter's shape: `shape.0`, `shape.1` ..
pub(super) const SHAPE: &str = "shape";

/// Panics if the state belongs to a parameter of another shape, as burn's optimizers do.
pub(super) fn check_shape<const D: usize>(shape: [usize; D], parameter: &Tensor<D>) {
    let dims = parameter.dims();
    assert!(shape == dims, "the optimizer's state is that of a parameter of shape {shape:?}, expected {dims:?}");
}

/// Checks that a device can store the codes of 8-bit and 4-bit state, which are U8. Devices that run WGSL cannot.
///
/// # Errors
/// [`Error::InvalidSetting`], with the device and what to use instead.
pub fn check_codes(device: &Device) -> Result<(), Error> {
    storing(device.supports_dtype(DType::U8), device)
}

fn storing(stores: bool, device: &Device) -> Result<(), Error> {
    let expected = "one with integers of 8 bits, or an optimizer with state in f32, which host memory can hold";
    match stores {
        true => Ok(()),
        false => {
            let name = "the device of an optimizer with 8-bit or 4-bit state";
            Err(Error::InvalidSetting { name, value: format!("{device:?}"), expected })
        }
    }
}

/// The dtype of codes on a device.
///
/// # Panics
/// If the device cannot store them.
fn code_dtype(device: &Device) -> DType {
    match check_codes(device) {
        Ok(()) => DType::U8,
        Err(error) => panic!("{error}"),
    }
}

/// Whether a number in an optimizer's record is the number of rows of its parameter: that of a part of the rows is another one.
pub fn is_number_of_rows(name: &str) -> bool {
    name.strip_suffix(".0").is_some_and(|path| path == SHAPE || path.ends_with(&format!(".{SHAPE}")))
}

/// Records the parts of a state other than its moments.
pub(super) fn flatten_header(time: usize, shape: &[usize], prefix: &str, out: &mut StateSink) {
    out.push_scalar(prefix, TIME, time.into());
    for (place, size) in shape.iter().enumerate() {
        out.push_scalar(&join_path(prefix, SHAPE), &place.to_string(), (*size).into());
    }
}

/// The values that [`flatten_header`] recorded, and the number of elements.
pub(super) struct Header<const D: usize> {
    pub(super) time: usize,
    pub(super) shape: [usize; D],
    pub(super) count: usize,
}

/// Reads the values that [`flatten_header`] recorded. `None` if they are missing, or if no parameter can have the shape.
pub(super) fn unflatten_header<const D: usize>(prefix: &str, source: &mut StateSource) -> Option<Header<D>> {
    let time = usize::try_from(source.take_scalar(prefix, TIME)?).ok()?;
    let path = join_path(prefix, SHAPE);
    let mut shape = [0; D];
    for (place, size) in shape.iter_mut().enumerate() {
        *size = usize::try_from(source.take_scalar(&path, &place.to_string())?).ok()?;
    }
    Some(Header { time, shape, count: elements(&shape)? })
}

impl QuantizedMoment {
    /// The code book.
    pub fn book(&self) -> CodeBook {
        self.book
    }

    /// The codes, U8: one a byte, or two if the book has 4 bits.
    pub fn codes(&self) -> &Tensor<1, Int> {
        &self.codes
    }

    /// The scales, F32: one for each block. A scale that is not finite shows that a gradient was not.
    pub fn scales(&self) -> &Tensor<1> {
        &self.scales
    }

    /// A moment of zeros for a parameter.
    pub(super) fn zeros<const D: usize>(book: CodeBook, parameter: &Tensor<D>) -> Self {
        let (count, device) = (parameter.shape().num_elements(), &parameter.device());
        Self {
            book,
            codes: Tensor::zeros([book.code_bytes(count)], (device, code_dtype(device))),
            scales: Tensor::zeros([count.div_ceil(book.block())], (device, DType::F32)),
        }
    }

    /// Encodes values as a moment.
    pub(super) fn of_values(book: CodeBook, values: &[f32], device: &Device) -> Self {
        let Blocks { codes, scales, .. } = encoded(values, book);
        let (bytes, blocks) = (codes.len(), scales.len());
        let codes = TensorData::from_bytes(Bytes::from_elems(codes), [bytes], DType::U8);
        Self {
            book,
            codes: Tensor::from_data(codes, (device, code_dtype(device))),
            scales: Tensor::from_data(TensorData::new(scales, [blocks]), (device, DType::F32)),
        }
    }

    /// Encodes a tensor as a moment. The values are read back from their device.
    pub(super) fn of_tensor<const D: usize>(book: CodeBook, tensor: Tensor<D>) -> Self {
        let device = tensor.device();
        let values: Vec<f32> = tensor.into_data().iter::<f32>().collect();
        Self::of_values(book, &values, &device)
    }

    /// Decodes the moment. Codes and scales are read back from their device.
    pub(super) fn to_tensor<const D: usize>(&self, shape: [usize; D]) -> Tensor<D> {
        let values = self.to_values(shape.iter().product());
        Tensor::from_data(TensorData::new(values, shape), (&self.codes.device(), DType::F32))
    }

    /// The moment of `count` values in another code book. It is unchanged if it has that book already.
    pub(super) fn translated(self, book: CodeBook, count: usize) -> Self {
        match self.book == book {
            true => self,
            false => Self::of_values(book, &self.to_values(count), &self.codes.device()),
        }
    }

    fn to_values(&self, count: usize) -> Vec<f32> {
        let codes = self.codes.to_data().as_bytes().to_vec();
        let scales = self.scales.to_data().iter::<f32>().collect();
        decoded(&Blocks { codes, scales, count }, self.book)
    }

    /// The moment on a device. It is unchanged if it is there already.
    pub(super) fn moved(self, device: &Device) -> Self {
        match self.codes.device() == *device {
            true => self,
            false => Self { codes: self.codes.to_device(device), scales: self.scales.to_device(device), ..self },
        }
    }

    pub(super) fn flatten(&self, prefix: &str, name: &str, out: &mut StateSink) {
        let path = join_path(prefix, name);
        out.push_tensor(&path, CODES, self.codes.to_data());
        out.push_tensor(&path, SCALES, self.scales.to_data());
        out.push_scalar(&path, MAP, self.book.number().into());
        out.push_scalar(&path, BITS, self.book.bits().into());
        out.push_scalar(&path, BLOCK, self.book.block().into());
    }

    /// Reads a moment from a record. `None` if the record is of something else, or has another block size or number of codes, and on a
    /// device that cannot store them.
    pub(super) fn unflatten(
        prefix: &str,
        name: &str,
        count: usize,
        source: &mut StateSource,
        device: &Device,
    ) -> Option<Self> {
        let path = join_path(prefix, name);
        let mut scalar = |leaf| source.take_scalar(&path, leaf).and_then(|scalar| u32::try_from(scalar).ok());
        let book = CodeBook::of_number(scalar(MAP)?)?;
        if (scalar(BITS)?, scalar(BLOCK)? as usize) != (book.bits(), book.block()) {
            return None;
        }
        let (codes, scales) = (source.take_tensor(&path, CODES)?, source.take_tensor(&path, SCALES)?);
        let fits = codes.num_elements() == book.code_bytes(count)
            && scales.num_elements() == count.div_ceil(book.block())
            && codes.dtype() == DType::U8
            && scales.dtype() == DType::F32
            && check_codes(device).is_ok();
        fits.then(|| Self {
            book,
            codes: Tensor::from_data(codes, (device, DType::U8)),
            scales: Tensor::from_data(scales, (device, DType::F32)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Device, storing};

    #[test]
    fn a_device_without_bytes_is_refused_by_its_name() {
        let device = Device::flex();
        assert_eq!(storing(true, &device), Ok(()));
        let refused = storing(false, &device).unwrap_err().to_string();
        assert!(refused.contains(&format!("{device:?}")) && refused.contains("state in f32"), "{refused}");
    }
}
