//! A matrix that is in memory some rows at a time.

use std::fmt::Debug;
use std::ops::Range;

use burn::tensor::TensorData;

/// A matrix in f32 that is elsewhere, such as in a store, and that an operation reads in parts of several rows. The operation makes the
/// gradient in parts as well.
///
/// The operations of a forward pass begin a [use](Self::begin_use) each, and the backward pass ends the last one first.
pub trait RowParts: Debug + Send + Sync + 'static {
    /// Rows and columns of the matrix.
    fn shape(&self) -> [usize; 2];

    /// Rows of each part but the last, which has those that are left.
    fn rows_of_part(&self) -> usize;

    /// Number of parts.
    fn count(&self) -> usize {
        self.shape()[0].div_ceil(self.rows_of_part().max(1))
    }

    /// The rows of a part.
    fn rows(&self, part: usize) -> Range<usize> {
        let rows = self.rows_of_part();
        part * rows..((part + 1) * rows).min(self.shape()[0])
    }

    /// The values of a part, in f32. It is NaN if they cannot be read: whoever made the matrix learns the reason.
    fn read(&self, part: usize) -> TensorData;

    /// An operation uses the matrix, and will add its gradient.
    fn begin_use(&self);

    /// Adds the gradient of a part, in f32. The parts are added in their order, and after the last one the use has ended.
    fn add_gradient(&self, part: usize, gradient: TensorData);

    /// The sum of the gradients of a part in the micro-batches before, in f32, for an operation that adds rows to it in their order. It has this
    /// sum for itself, and puts it [back](Self::put_sum). `None` in the first micro-batch, and always for a matrix that adds up the gradients
    /// of micro-batches instead.
    fn take_sum(&self, part: usize) -> Option<TensorData> {
        let _ = part;
        None
    }

    /// Puts a sum back, in place of [adding a gradient](Self::add_gradient). The gradient of this operation is the sum times `factor`, which is
    /// the same for all parts and micro-batches.
    fn put_sum(&self, part: usize, sum: TensorData, factor: f32) {
        let shape = sum.shape().clone();
        let gradient = sum.iter::<f32>().map(|value| value * factor).collect();
        self.add_gradient(part, TensorData::new::<f32, _>(gradient, shape));
    }
}
