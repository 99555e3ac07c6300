//! The weight of an embedding or of an output layer that is in memory some rows at a time.

use std::sync::Arc;

use burn::backend::Backend;
use burn::backend::tensor::{Device, FloatTensor};
use burn::module::Param;
use burn::tensor::{DType, Shape, Slice, Tensor, TensorData, try_read_sync};
use kiln_operations::RowParts;

use crate::composed::cast;

/// A weight `[rows, width]` whose values are elsewhere, and whose rows are in memory some at a time.
///
/// An embedding and a loss that use it have the same bits as with the weight in memory. Their gradients go to where the values are, not to burn's gradients.
#[derive(Clone, Debug)]
pub struct RowWeight {
    pub(crate) parts: Arc<dyn RowParts>,
    /// The parameter in the graph. Its values are not read.
    pub(crate) leaf: Tensor<2>,
    /// The dtype that the parameter is read in.
    pub(crate) dtype: DType,
}

impl RowWeight {
    /// The weight of a parameter whose values are in `parts`. Its shape and its dtype, which may be cast when it is read, are those of the
    /// parameter.
    pub fn new(parameter: &Param<Tensor<2>>, parts: Arc<dyn RowParts>) -> Self {
        // The cast of one value tells the dtype.
        let dtype = parameter.clone().map(|values| values.slice([0..1, 0..1])).val().dtype();
        Self { parts, leaf: parameter.base(), dtype }
    }
}

/// All rows in `dtype`.
pub(crate) fn whole<B: Backend>(parts: &dyn RowParts, device: &Device<B>, dtype: DType) -> FloatTensor<B> {
    let part = |part| cast::<B>(B::float_from_data(parts.read(part), device), dtype);
    B::float_cat((0..parts.count()).map(part).collect(), 0)
}

/// Adds the gradient of all rows.
pub(crate) fn add_whole<B: Backend>(parts: &dyn RowParts, gradient: FloatTensor<B>) {
    for part in 0..parts.count() {
        let rows = parts.rows(part);
        let slices = [Slice::from(rows.clone()), Slice::from(0..parts.shape()[1])];
        let of_part = cast::<B>(B::float_slice(gradient.clone(), &slices), DType::F32);
        let data = try_read_sync(B::float_into_data(of_part)).and_then(Result::ok);
        // Devices that this crate is compiled for are read at once; an error of one is found in the step's proof.
        let shape = Shape::new([rows.len(), parts.shape()[1]]);
        parts.add_gradient(part, data.unwrap_or_else(|| TensorData::full(shape, f32::NAN)));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Mutex;

    use burn::tensor::{Distribution, Tensor};

    use super::*;

    /// A random matrix in memory, and the gradients that were added.
    #[derive(Debug)]
    pub(crate) struct Kept {
        pub(crate) values: Tensor<2>,
        rows: usize,
        pub(crate) added: Mutex<Vec<TensorData>>,
    }

    impl Kept {
        pub(crate) fn random(shape: [usize; 2], rows: usize) -> Arc<Self> {
            let values = Tensor::random(shape, Distribution::Normal(0.0, 1.0), &burn::tensor::Device::flex());
            Arc::new(Self { values, rows, added: Mutex::default() })
        }

        /// The gradients that were added since the last call.
        pub(crate) fn take(&self) -> Vec<TensorData> {
            std::mem::take(&mut self.added.lock().unwrap())
        }
    }

    impl RowParts for Kept {
        fn shape(&self) -> [usize; 2] {
            self.values.dims()
        }

        fn rows_of_part(&self) -> usize {
            self.rows
        }

        fn read(&self, part: usize) -> TensorData {
            let rows = self.rows(part);
            self.values.clone().narrow(0, rows.start, rows.len()).into_data()
        }

        fn begin_use(&self) {}

        fn add_gradient(&self, part: usize, gradient: TensorData) {
            let mut added = self.added.lock().unwrap();
            assert_eq!(added.len(), part);
            added.push(gradient);
        }
    }
}
