//! The weight of the layer, read in its memory layout.

use std::ops::Range;

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::DType;
use rayon::prelude::*;

use super::scale::swapped;
use super::settings::CLASSES;
use kiln_operations::by_dtype;
use kiln_operations::cpu::factor::{Factor, Values};
use kiln_operations::cpu::gemm::Matrix;
use kiln_operations::cpu::stored::Stored;

/// The distance between the rows of a matrix, if the values of a row follow each other.
pub(super) fn row_stride(matrix: &FlexTensor) -> Option<usize> {
    match *matrix.layout().strides() {
        [stride, 1] => usize::try_from(stride).ok(),
        _ => None,
    }
}

/// A weight `[width, classes]`.
pub(super) struct Weight {
    /// The weight, or its transposed view if `by_class`. The values of a row follow each other.
    lines: FlexTensor,
    stride: usize,
    /// Whether the values of a class are neighbours, as in the transposed view of an embedding.
    pub(super) by_class: bool,
    pub(super) width: usize,
    pub(super) classes: usize,
}

impl Weight {
    /// A weight in any layout. It is copied if neither its rows nor its columns have neighbouring values.
    pub(super) fn of(weight: &FlexTensor) -> Self {
        let (width, classes) = (weight.shape()[0], weight.shape()[1]);
        let transposed = swapped(weight.clone());
        let (lines, stride, by_class) = match (row_stride(weight), row_stride(&transposed)) {
            (Some(stride), _) => (weight.clone(), stride, false),
            (None, Some(stride)) => (transposed, stride, true),
            (None, None) => (weight.to_contiguous(), classes, false),
        };
        Self { lines, stride, by_class, width, classes }
    }

    /// The ranges of classes that are computed at a time.
    pub(super) fn blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let classes = self.classes;
        (0..classes).step_by(CLASSES).map(move |first| first..classes.min(first + CLASSES))
    }

    /// Whether products with hidden rows of a dtype are in bf16: if these and the weight are. The gradient of the logits is then rounded to bf16;
    /// sums are f32.
    pub(super) fn in_bf16(&self, hidden: DType) -> bool {
        hidden == DType::BF16 && self.lines.dtype() == DType::BF16
    }

    /// A weight in bf16 as a factor whose lines are its classes, and as one whose lines are the values of a hidden row.
    pub(super) fn factors(&self) -> [Factor<'_>; 2] {
        let values = Values::Bf16(&self.lines.storage()[self.lines.layout().start_offset()..]);
        let [by_line, by_step] = [Factor::by_line, Factor::by_step].map(|factor| factor(values, self.stride));
        if self.by_class { [by_line, by_step] } else { [by_step, by_line] }
    }

    /// The columns of some classes, `[width, block]`. Values that are not f32 are widened into `buffer`.
    pub(super) fn columns<'a>(&'a self, block: Range<usize>, buffer: &'a mut Vec<f32>) -> Matrix<'a> {
        let (count, length, first) = match self.by_class {
            true => (block.len(), self.width, block.start * self.stride),
            false => (self.width, block.len(), block.start),
        };
        let first = self.lines.layout().start_offset() + first;
        let lines = match self.lines.dtype() {
            DType::F32 => Matrix::strided(&self.lines.storage::<f32>()[first..], count, length, self.stride),
            dtype => {
                buffer.resize(count * length, 0.0);
                by_dtype!(dtype, E => widen(&self.lines.storage::<E>()[first..], self.stride, length, buffer), else ());
                Matrix::new(buffer, count, length)
            }
        };
        if self.by_class { lines.transposed() } else { lines }
    }
}

fn widen<E: Stored>(values: &[E], stride: usize, length: usize, out: &mut [f32]) {
    out.par_chunks_mut(length.max(1)).enumerate().for_each_init(Vec::new, |wide, (line, out)| {
        out.copy_from_slice(E::widened(&values[line * stride..][..length], wide));
    });
}
