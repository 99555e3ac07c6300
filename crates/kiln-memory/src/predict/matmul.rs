//! Matrix products: the memory that they take on burn's CPU device, and products of a linear layer that burn divides by batches.

use burn::tensor::DType;
use kiln_operations::Product;

use super::flex_site::Site;
use super::memory::Effect;

impl Site<'_> {
    /// A product on burn's CPU device.
    pub(super) fn matmul(&self) -> Effect {
        let last = |position: usize| self.shape(position).last().copied().unwrap_or(1);
        let shape = self.out_shape();
        let m = shape.iter().rev().nth(1).copied().unwrap_or(1);
        let (batch, out) = (shape.iter().rev().skip(2).product(), self.out_bytes());
        match self.divided() {
            // The products of all batches exist before they are added up.
            Some([batches, rows]) => {
                let parts = batches as u64 * out;
                let workspace = self.product_scratch([m, rows, last(1)], batches, parts);
                self.fresh((parts + workspace).saturating_sub(out).max(parts))
            }
            None => self.fresh(self.product_scratch([m, last(0), last(1)], batch, out)),
        }
    }

    /// The memory beside the result of `batch` products, whose bytes are `out`.
    fn product_scratch(&self, [m, k, n]: [usize; 3], batch: usize, out: u64) -> u64 {
        let unit = |position: usize| {
            let strides = self.input(position).map(|tensor| self.memory.strides(tensor));
            strides.and_then(|strides| strides.last()).is_some_and(|stride| *stride == 1)
        };
        let dtype = self.input(0).map(|tensor| self.memory.dtype(tensor));
        let in_order = dtype == Some(DType::BF16); // as copies are
        let gemm = Product {
            m,
            k,
            n,
            left_rows: in_order || unit(0),
            right_rows: in_order || unit(1),
            half: dtype == Some(DType::F16),
        };
        let packed = gemm.batched(batch, &self.memory.profile.cpu());
        if dtype == Some(DType::BF16) {
            // Both operands, and the result twice, exist in f32. The operands are freed before the result is converted.
            let operands = 2 * (self.bytes(0) + self.bytes(1));
            let most = (operands + 4 * out).max(operands + 2 * out + packed).max(3 * out);
            return self.copy(0) + self.copy(1) + most - out;
        }
        // The output is zeroed in one buffer and moved to an aligned one before the product starts.
        out.max(packed)
    }

    /// Batches and rows of a batch, if this is the gradient of a linear layer's weight that burn computes batch by batch.
    ///
    /// burn's linear layers merge the batches of an input `[batches, rows, inputs]` into one product while there are few, and compute one product
    /// for each batch from some number on. A step that was recorded with few samples has the merged form.
    pub(super) fn divided(&self) -> Option<[usize; 2]> {
        let (joined, at) = self.view_of("SwapDims", self.input(0)?)?;
        let (x, at) =
            self.view_of("Reshape", joined).filter(|_| self.memory.shape(joined).len() == 2).map(|(x, _)| (x, at))?;
        let (shape, columns) = (self.memory.shape(x), self.out_shape().last().copied().unwrap_or(1));
        let (_, outer) = shape.split_last().filter(|_| shape.len() > 2)?;
        let (rows, outer) = outer.split_last()?;
        let batches = outer.iter().product();
        // In the forward pass the rows are divided again after the product, which an own reshape does not need.
        let graph = &self.memory.trace.graph;
        let product = (0..at).find(|index| {
            let inputs = graph.inputs_at(*index);
            graph.kind_at(*index).short() == "Matmul" && inputs.first().is_some_and(|input| input.tensor == joined)
        })?;
        let is_divided = |index: usize| {
            let out = graph.outputs_at(index).first().map(|tensor| self.memory.shape(*tensor));
            graph.kind_at(index).short() == "Reshape"
                && out.is_some_and(|out| out.len() == shape.len() && out[..out.len() - 1] == shape[..shape.len() - 1])
        };
        let divided = (product + 1..at.min(product + 5)).any(is_divided);
        // Batches that burn does not merge in the recording either were merged by the model itself.
        let recorded = &self.memory.trace.shapes[self.memory.trace.tensors[x as usize].shape as usize];
        let merged = (0..2).all(|size| {
            let outer: Vec<usize> = recorded[..recorded.len() - 1].iter().map(|dim| dim[size]).collect();
            outer.split_last().is_some_and(|(rows, outer)| joins(outer.iter().product(), *rows, columns))
        });
        (divided && merged && !joins(batches, *rows, columns)).then_some([batches, *rows])
    }

    /// The tensor that `tensor` is a view of, by an operation of this name, and the position of the operation.
    fn view_of(&self, name: &str, tensor: u32) -> Option<(u32, usize)> {
        let graph = &self.memory.trace.graph;
        let made = (0..self.index).rev().find(|index| graph.outputs_at(*index).contains(&tensor))?;
        let of = graph.inputs_at(made).first().filter(|_| graph.kind_at(made).short() == name)?;
        Some((of.tensor, made))
    }
}

/// Whether burn's linear layers join batches of so many rows, for an output of so many columns: `MatmulTransformPolicy` of burn-std 0.22.1.
fn joins(batches: usize, rows: usize, columns: usize) -> bool {
    let ratio = |rows: usize, other: usize| rows.min(columns) * other.max(columns);
    let all = batches * rows;
    batches > 1 && !rows.is_multiple_of(32) && ratio(all, rows) > ratio(rows, all)
}

#[cfg(test)]
mod tests {
    use super::joins;

    #[test]
    fn few_batches_are_joined_whose_rows_fill_no_tile() {
        // Closest to a square where batches x rows x rows is the square of the columns.
        assert!(joins(2, 27, 128) && joins(22, 27, 128) && !joins(23, 27, 128));
        assert!(!joins(1, 27, 128) && !joins(2, 32, 128) && !joins(2, 200, 128));
        assert!(joins(359, 27, 512) && !joins(360, 27, 512));
    }
}
