//! Shapes and bytes of all tensors of a trace at one batch size.

use burn::tensor::DType;

use crate::error::Error;
use crate::trace::StepTrace;

use super::profile::BackendProfile;

/// Sizes of tensors at a batch size, on a device.
pub(super) struct Sizes {
    /// Number of samples of the batch.
    pub(super) batch: usize,
    /// The distinct shapes, in the order of the trace.
    shapes: Vec<Vec<usize>>,
    /// Strides of each shape in row-major order without gaps.
    row_major: Vec<Vec<isize>>,
    /// The shape of each tensor, as an index.
    shape_of: Vec<u32>,
    /// Bytes of each tensor.
    bytes: Vec<u64>,
}

/// Strides of a tensor in row-major order without gaps.
pub(super) fn row_major(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![1; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim] as isize;
    }
    strides
}

impl Sizes {
    /// # Errors
    /// [`Error::BatchSize`] for 0, and for a batch with a tensor of 2^42 bytes or more.
    pub(super) fn of(trace: &StepTrace, batch: usize, profile: &BackendProfile) -> Result<Self, Error> {
        if batch == 0 {
            return Err(Error::BatchSize { batch });
        }
        let (shapes, elements) = shapes(trace, batch).ok_or(Error::BatchSize { batch })?;
        let mut bytes = Vec::with_capacity(trace.tensors.len());
        for tensor in &trace.tensors {
            let elements = elements[tensor.shape as usize];
            let size = element(tensor.dtype, profile);
            let most = elements.checked_mul(size.max(tensor.dtype.size()) as u64);
            // Sums of sizes below this, and the number of multiplications in their products, fit into 64 bits.
            if most.is_none_or(|bytes| bytes >= 1 << 42) {
                return Err(Error::BatchSize { batch });
            }
            bytes.push(elements * size as u64);
        }
        let row_major = shapes.iter().map(|shape| row_major(shape)).collect();
        let shape_of = trace.tensors.iter().map(|tensor| tensor.shape).collect();
        Ok(Self { batch, shapes, row_major, shape_of, bytes })
    }

    pub(super) fn shape(&self, tensor: u32) -> &[usize] {
        &self.shapes[self.shape_of[tensor as usize] as usize]
    }

    pub(super) fn row_major(&self, tensor: u32) -> &[isize] {
        &self.row_major[self.shape_of[tensor as usize] as usize]
    }

    /// Whether two tensors have one shape at every batch size.
    pub(super) fn same_shape(&self, a: u32, b: u32) -> bool {
        self.shape_of[a as usize] == self.shape_of[b as usize]
    }

    pub(super) fn bytes(&self, tensor: u32) -> u64 {
        self.bytes[tensor as usize]
    }
}

/// Bytes of an element on a device. burn's recorder makes integers of 8 bytes, whatever the device uses.
fn element(dtype: DType, profile: &BackendProfile) -> usize {
    match dtype {
        DType::I64 => profile.int_bytes,
        dtype if dtype.is_float() || matches!(dtype, DType::QFloat(_)) => dtype.size(),
        integer => integer.size().max(profile.smallest_int),
    }
}

/// The distinct shapes and their numbers of elements; `None` if one cannot be counted.
fn shapes(trace: &StepTrace, batch: usize) -> Option<(Vec<Vec<usize>>, Vec<u64>)> {
    let [first, second] = trace.batches;
    let dim = |[a, b]: [usize; 2]| {
        // Exact for dimensions that are a multiple of the batch size plus a constant.
        let (a, b) = (a as i128, b as i128);
        let value = a + (b - a) * (batch as i128 - first as i128) / (second - first) as i128;
        usize::try_from(value).ok()
    };
    let mut shapes = Vec::with_capacity(trace.shapes.len());
    let mut elements = Vec::with_capacity(trace.shapes.len());
    for dims in &trace.shapes {
        let shape: Vec<usize> = dims.iter().map(|dims| dim(*dims)).collect::<Option<_>>()?;
        elements.push(shape.iter().try_fold(1, |elements: u64, dim| elements.checked_mul(*dim as u64))?);
        shapes.push(shape);
    }
    Some((shapes, elements))
}

#[cfg(test)]
mod tests {
    use burn::tensor::BoolStore;

    use super::*;

    #[test]
    fn booleans_and_small_integers_are_as_large_as_the_device_makes_them() {
        let dtypes =
            [DType::Bool(BoolStore::Native), DType::U8, DType::I8, DType::I32, DType::I64, DType::F16, DType::F32];
        let bytes = |profile: BackendProfile| dtypes.map(|dtype| element(dtype, &profile));
        assert_eq!(bytes(BackendProfile::flex()), [1, 1, 1, 4, 4, 2, 4]);
        assert_eq!(bytes(BackendProfile::wgpu()), [4, 4, 4, 4, 4, 2, 4]);
    }
}
