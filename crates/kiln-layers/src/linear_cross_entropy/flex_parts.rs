//! The loss on the CPU with a weight that is in memory in parts. Products, their order and the sums are those of a weight in memory, so that
//! the bits are the same: a block of classes meets all chunks of rows before the next block does.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Shape, TensorData};
use half::{bf16, f16};
use rayon::prelude::*;

use super::LossOptions;
use super::flex::{Row, TASK, by_rows, counted, load, put_rows};
use super::row::{Classes, RowSums};
use super::scale::{scaled, swapped};
use super::settings::{CLASSES, chunk_rows};
use super::weight::Weight;
use crate::order::Order;
use kiln_operations::cpu::chain::add_in_order;
use kiln_operations::cpu::factor::{Factor, Values};
use kiln_operations::cpu::gemm::{Matrix, Output, Threads, multiply, multiply_rows};
use kiln_operations::cpu::stored::{Stored, from_f32, tensor, to_f32};
use kiln_operations::{RowParts, by_dtype};

/// The tensors of the loss.
pub(super) struct Given {
    pub(super) hidden: FlexTensor,
    pub(super) targets: FlexTensor,
    pub(super) class_weights: FlexTensor,
}

/// The loss, `[1]`, and of each row the largest logit and the sum of the exponentials, `[rows, 2]`.
pub(super) fn loss(given: &Given, options: &LossOptions, parts: &dyn RowParts) -> Vec<FlexTensor> {
    by_dtype!(given.hidden.dtype(), E => forward::<E>(given, options, parts), else vec![given.hidden.clone(); 2])
}

/// The gradient of the hidden rows in `dtype`, from what [`loss`] has of the rows and the gradient of the loss. That of the weight goes to
/// `parts`.
pub(super) fn gradient(
    given: &Given,
    options: &LossOptions,
    parts: &dyn RowParts,
    (sums, factor): (FlexTensor, FlexTensor),
    of_result: (DType, Order),
) -> FlexTensor {
    match given.hidden.dtype() {
        DType::F16 => backward::<f16, f32>(given, options, parts, (&sums, &factor), of_result),
        DType::BF16 => backward::<bf16, bf16>(given, options, parts, (&sums, &factor), of_result),
        _ => backward::<f32, f32>(given, options, parts, (&sums, &factor), of_result),
    }
}

/// A weight block by block: whole parts, or a piece of one.
struct Blocks<'a> {
    parts: &'a dyn RowParts,
    dtype: DType,
    /// The part that was read last, from its first row on.
    part: Option<(usize, TensorData)>,
}

impl Blocks<'_> {
    /// The weight `[width, classes]` of the block that begins with `first`, in the dtype of the layer.
    fn block(&mut self, first: usize) -> Weight {
        let [classes, width] = self.parts.shape();
        let end = classes.min(first + CLASSES);
        let mut values = Vec::with_capacity((end - first) * width);
        while values.len() < (end - first) * width {
            let row = first + values.len() / width;
            let number = row / self.parts.rows_of_part();
            let rows = self.parts.rows(number);
            if self.part.as_ref().is_none_or(|(known, _)| *known != number) {
                self.part = None; // one part at a time
                self.part = Some((number, self.parts.read(number)));
            }
            let part = self.part.as_ref().and_then(|(_, data)| data.as_slice::<f32>().ok()).unwrap_or_default();
            let last = rows.end.min(end);
            match part.get((row - rows.start) * width..(last - rows.start) * width) {
                Some(part) => values.extend_from_slice(part),
                None => values.resize(values.len() + (last - row) * width, f32::NAN),
            }
        }
        if self.parts.rows(end.saturating_sub(1) / self.parts.rows_of_part()).end == end {
            self.part = None;
        }
        let block = from_f32(values, Shape::new([end - first, width]), self.dtype);
        Weight::of(&swapped(block))
    }
}

/// The gradient of the weight, which is handed over part by part.
struct Gradients<'a> {
    parts: &'a dyn RowParts,
    /// The factor of sums that rows are added to in their order.
    in_order: Option<f32>,
    /// The parts that a block has begun and a later one goes on with: the rows that are there, and the sums of the others.
    open: BTreeMap<usize, Vec<f32>>,
}

impl Gradients<'_> {
    /// The parts of these rows, each with the rows of both: their places in the part, and among these rows.
    fn shared(&self, rows: &Range<usize>) -> impl Iterator<Item = (usize, [Range<usize>; 2])> + use<> {
        let [_, width] = self.parts.shape();
        let each = self.parts.rows_of_part();
        let (first, of_rows) = (rows.start / each, rows.clone());
        let of_part: Vec<_> = (first..rows.end.div_ceil(each)).map(|part| self.parts.rows(part)).collect();
        (first..).zip(of_part).map(move |(part, of_part)| {
            let both = of_rows.start.max(of_part.start)..of_rows.end.min(of_part.end);
            let places = [&of_part, &of_rows].map(|of| (both.start - of.start) * width..(both.end - of.start) * width);
            (part, places)
        })
    }

    /// The values that the block of these rows begins with.
    fn begin(&mut self, rows: &Range<usize>) -> Vec<f32> {
        let [_, width] = self.parts.shape();
        let mut block = vec![0.0; rows.len() * width];
        for (part, [of_part, of_block]) in self.shared(rows).filter(|_| self.in_order.is_some()) {
            let open = self.open.remove(&part);
            let sum = open.or_else(|| self.parts.take_sum(part).and_then(|sum| sum.try_into_vec::<f32>().ok()));
            let sum = sum.unwrap_or_else(|| vec![0.0; self.parts.rows(part).len() * width]);
            block[of_block.clone()].copy_from_slice(&sum[of_part.clone()]);
            if of_part.len() < sum.len() {
                self.open.insert(part, sum);
            }
        }
        block
    }

    fn end(&mut self, rows: &Range<usize>, block: &[f32]) {
        let [_, width] = self.parts.shape();
        for (part, [of_part, of_block]) in self.shared(rows) {
            let (count, all) = (self.parts.rows(part).len(), self.parts.rows(part).len() * width);
            let mut values = self.open.remove(&part).unwrap_or_else(|| vec![0.0; all]);
            values[of_part.clone()].copy_from_slice(&block[of_block]);
            if of_part.end < all {
                self.open.insert(part, values);
                continue;
            }
            let of_part = TensorData::new(values, [count, width]);
            match self.in_order {
                Some(factor) => self.parts.put_sum(part, of_part, factor),
                None => self.parts.add_gradient(part, of_part),
            }
        }
    }
}

/// What both passes have: the rows that count, in chunks, and the blocks of the weight.
struct Work<'a> {
    source: FlexTensor,
    stride: usize,
    rows: &'a [Row],
    classes: &'a Classes<'a>,
    size: usize,
    blocks: Blocks<'a>,
    /// A block of the weight, the hidden rows of a chunk and its logits in f32.
    wide: [Vec<f32>; 3],
}

impl<'a> Work<'a> {
    fn new(given: &Given, parts: &'a dyn RowParts, rows: &'a [Row], classes: &'a Classes<'a>) -> Self {
        let [count, width] = parts.shape();
        let (source, stride) = by_rows(&given.hidden);
        let size = chunk_rows(rows.len(), width, count);
        let wide =
            [vec![], vec![0.0; size.min(rows.len()) * width], vec![0.0; size.min(rows.len()) * count.min(CLASSES)]];
        let blocks = Blocks { parts, dtype: given.hidden.dtype(), part: None };
        Self { source, stride, rows, classes, size, blocks, wide }
    }

    /// Calls `each` with the chunks of the next block: the number of the first row, the hidden rows, their logits and the block's weight, as it is
    /// and in f32. A product in bf16 needs the first alone.
    fn block<E: Stored>(
        &mut self,
        first: usize,
        mut each: impl FnMut(usize, &[f32], &mut [f32], (&Weight, Option<Matrix<'_>>)),
    ) {
        let weight = self.blocks.block(first);
        let Weight { width, classes, .. } = weight;
        let [wide, hidden, logits] = &mut self.wide;
        let in_f32 = (!weight.in_bf16(self.source.dtype())).then(|| weight.columns(0..classes, wide));
        for (chunk, rows) in self.rows.chunks(self.size).enumerate() {
            let (hidden, logits) = (&mut hidden[..rows.len() * width], &mut logits[..rows.len() * classes]);
            load::<E>(&self.source, self.stride, width, rows, hidden);
            match in_f32 {
                Some(weight) => {
                    let hidden = Matrix::new(hidden, rows.len(), width);
                    multiply_rows((logits, classes, Output::Replace), hidden, weight, Threads::All);
                }
                None => {
                    let (hidden, [of_classes, _]) = (Factor::by_line(Values::Rounded(hidden), width), weight.factors());
                    logits.fill(0.0);
                    add_in_order(logits, [rows.len(), classes, width], hidden, of_classes, Threads::All);
                }
            }
            each(chunk * self.size, hidden, logits, (&weight, in_f32));
        }
    }

    fn firsts(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.classes.count).step_by(CLASSES)
    }
}

fn forward<E: Stored>(given: &Given, options: &LossOptions, parts: &dyn RowParts) -> Vec<FlexTensor> {
    let weights = to_f32(&given.class_weights);
    let classes = Classes::new(&[], &weights, parts.shape()[0], options.label_smoothing);
    let (rows, total) = counted(&given.targets, &[], options, &classes);
    let mut sums = vec![RowSums::default(); rows.len()];
    let mut work = Work::new(given, parts, &rows, &classes);
    for first in work.firsts() {
        let count = CLASSES.min(classes.count - first);
        work.block::<E>(first, |chunk, _, logits, _| {
            let of_rows = logits.par_chunks_mut(count).with_min_len(TASK.div_ceil(count));
            of_rows.zip(&rows[chunk..]).zip(&mut sums[chunk..]).for_each(|((logits, row), sums)| {
                classes.add(logits, first, row.target, sums);
            });
        });
    }
    let losses = rows.iter().zip(&sums).map(|(row, sums)| row.weight * classes.loss(sums, row.target));
    let loss = losses.sum::<f64>() / total;
    let mut kept = vec![0.0; 2 * given.hidden.shape()[0]];
    for (row, sums) in rows.iter().zip(&sums) {
        kept[2 * row.index..][..2].copy_from_slice(&[sums.largest, sums.sum as f32]);
    }
    vec![tensor(vec![loss as f32], Shape::new([1])), tensor(kept, Shape::new([given.hidden.shape()[0], 2]))]
}

fn backward<E: Stored, K: Stored>(
    given: &Given,
    options: &LossOptions,
    parts: &dyn RowParts,
    (sums, factor): (&FlexTensor, &FlexTensor),
    (dtype, order): (DType, Order),
) -> FlexTensor {
    let (weights, sums) = (to_f32(&given.class_weights), to_f32(sums));
    let [count, width] = parts.shape();
    let classes = Classes::new(&[], &weights, count, options.label_smoothing);
    let (rows, mut total) = counted(&given.targets, &[], options, &classes);
    let (mut factor, mut in_order) = (factor.clone(), None);
    if order != Order::Any {
        // As in memory: the gradients of the rows' losses, of which the weight's is a sum in f32, and one factor at the end.
        let divisor = if total == 0.0 { 1.0 } else { total as f32 };
        let of_rows = to_f32(&factor)[0] / divisor;
        factor = tensor(vec![of_rows], Shape::new([1]));
        (total, in_order) = (1.0, Some(of_rows));
    }
    let mut of_hidden = vec![0.0; rows.len() * width];
    let mut of_weight = Gradients { parts, in_order, open: BTreeMap::new() };
    let mut work = Work::new(given, parts, &rows, &classes);
    for first in work.firsts() {
        let count = CLASSES.min(classes.count - first);
        let rows_of_block = first..first + count;
        let mut of_block = of_weight.begin(&rows_of_block);
        work.block::<E>(first, |chunk, hidden, logits, (weight, in_f32)| {
            let of_rows = logits.par_chunks_mut(count).with_min_len(TASK.div_ceil(count));
            of_rows.zip(&rows[chunk..]).for_each(|(logits, row)| {
                let largest = classes.add(logits, first, row.target, &mut RowSums::default());
                let of_row = (sums[2 * row.index], sums[2 * row.index + 1]);
                classes.gradient((logits, first, largest), row.target, of_row, row.weight / total);
            });
            let of_chunk = logits.len() / count;
            let gradient = Matrix::new(logits, of_chunk, count);
            if in_order.is_some() || in_f32.is_none() {
                let values = if in_f32.is_none() { Values::Rounded } else { Values::F32 };
                let of_rows = [(values(logits), count), (values(hidden), width)];
                let [logits, hidden] = of_rows.map(|(values, stride)| Factor::by_step(values, stride));
                add_in_order(&mut of_block, [count, width, of_chunk], logits, hidden, Threads::All);
            } else {
                let hidden = Matrix::new(hidden, of_chunk, width);
                multiply((&mut of_block, width, Output::Add), gradient.transposed(), hidden, 1.0, Threads::All);
            }
            let of_hidden = &mut of_hidden[chunk * width..][..of_chunk * width];
            match in_f32 {
                Some(weight) => {
                    let output = if first == 0 { Output::Replace } else { Output::Add };
                    multiply_rows((of_hidden, width, output), gradient, weight.transposed(), Threads::All);
                }
                None => {
                    let (logits, [_, of_width]) = (Factor::by_line(Values::Rounded(logits), count), weight.factors());
                    add_in_order(of_hidden, [of_chunk, width, count], logits, of_width, Threads::All);
                }
            }
        });
        if in_order.is_none() {
            let gradient = scaled(tensor(of_block, Shape::new([count, width])), &factor, given.hidden.dtype());
            of_block = to_f32(&gradient);
        }
        of_weight.end(&rows_of_block, &of_block);
    }
    let mut out = vec![K::zeroed(); given.hidden.shape().num_elements()];
    for (rows, values) in rows.chunks(work.size).zip(of_hidden.chunks(work.size * width.max(1))) {
        put_rows(&mut out, rows, values, width, [width, 1]);
    }
    scaled(tensor(out, given.hidden.shape()), &factor, dtype)
}
