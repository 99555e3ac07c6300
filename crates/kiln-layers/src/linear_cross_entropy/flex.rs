//! The loss of a linear output layer on the CPU. Only the logits of a chunk of rows are in memory at a time.
//!
//! Rows that do not count are left out before anything is computed.
//!
//! Work, with n rows that count: n width classes multiply-adds for the loss, as many for each of the gradients of hidden rows and weight,
//! and an exponential for each of the n classes logits.
//!
//! Scratch memory in bytes, with c = [`chunk_rows`]: 4 c (classes + width) + 32 rows; with 16-bit inputs also 4 classes for the bias, and unless
//! both are bf16 a block of the weight. Products pack their factors in addition: gemm at most about 4 max(c, 2048) min(c, 512), and products in
//! order as [`chain_scratch`](kiln_operations::chain_scratch) has it.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Shape};
use half::{bf16, f16};
use rayon::prelude::*;

use super::row::{Classes, RowSums, add};
use super::scale::swapped;
use super::settings::{CLASSES, LossGradients, LossInputs, chunk_rows};
use super::weight::{Weight, row_stride};
use super::{LossOptions, Reduction};
use kiln_operations::cpu::chain::add_in_order;
use kiln_operations::cpu::factor::{Factor, Values};
use kiln_operations::cpu::gemm::{Matrix, Output, Threads, multiply, multiply_rows};
use kiln_operations::cpu::stored::{Stored, owned, tensor, to_f32, zeros};
use kiln_operations::{by_dtype, enough_rows};

/// The fewest values of a task.
pub(super) const TASK: usize = 1 << 14;

type Inputs = LossInputs<FlexTensor, FlexTensor>;

/// A row that counts.
pub(super) struct Row {
    pub(super) index: usize,
    pub(super) target: usize,
    pub(super) weight: f64,
}

/// The rows that count, in order, and the weight that their losses are divided by. `weights` are those of the rows; without any, all are 1.
pub(super) fn counted(
    targets: &FlexTensor,
    weights: &[f32],
    options: &LossOptions,
    classes: &Classes<'_>,
) -> (Vec<Row>, f64) {
    let (targets, ignored) = (targets.to_contiguous(), options.ignore_index);
    let row = |(index, target): (usize, &i64)| {
        let weight = weights.get(index).map_or(1.0, |weight| f64::from(*weight));
        let target =
            usize::try_from(*target).ok().filter(|class| *class < classes.count && Some(*target) != ignored)?;
        (weight != 0.0).then_some(Row { index, target, weight })
    };
    let all = targets.storage::<i64>();
    let mut rows = Vec::with_capacity(all.len());
    rows.extend(all.iter().enumerate().filter_map(row));
    let total = match options.reduction {
        Reduction::Mean => rows.iter().map(|row| row.weight * classes.weight(row.target)).sum(),
        Reduction::Sum | Reduction::None => 1.0,
    };
    (rows, total)
}

/// Copies rows of a matrix, whose rows are `stride` values apart, to the beginning of `out` in f32.
pub(super) fn load<E: Stored>(source: &FlexTensor, stride: usize, width: usize, rows: &[Row], out: &mut [f32]) {
    let source = &source.storage::<E>()[source.layout().start_offset()..];
    out.par_chunks_mut(width.max(1))
        .zip(rows)
        .with_min_len(TASK.div_ceil(width.max(1)))
        .for_each_init(Vec::new, |wide, (out, row)| {
            out.copy_from_slice(E::widened(&source[row.index * stride..][..width], wide))
        });
}

/// A matrix whose rows have neighbouring values, and the distance between its rows.
pub(super) fn by_rows(matrix: &FlexTensor) -> (FlexTensor, usize) {
    match row_stride(matrix) {
        Some(stride) => (matrix.clone(), stride),
        None => (matrix.to_contiguous(), matrix.shape()[1]),
    }
}

/// The sums of the gradients that are wanted. The weight's gradient has the layout of the weight.
#[derive(Default)]
struct Sums<K> {
    hidden: Option<Vec<K>>,
    weight: Option<FlexTensor>,
    bias: Option<Vec<f32>>,
    /// Whether rows are added one after the other, each with its own weight only.
    in_order: bool,
}

impl<K> Sums<K> {
    fn any(&self) -> bool {
        self.hidden.is_some() || self.weight.is_some() || self.bias.is_some()
    }
}

/// The loss: `[1]`, or `[rows]` without a reduction.
pub(super) fn loss(inputs: &Inputs, options: &LossOptions) -> FlexTensor {
    let (weight, none) = (Weight::of(&inputs.weight), &mut Sums::<f32>::default());
    by_dtype!(inputs.hidden.dtype(), E => run::<E, f32>(inputs, &weight, options, none).0, else inputs.hidden.clone())
}

/// Sums of the gradients of weight and bias that rows are added to in their order, if they exist already.
type Before = Option<[FlexTensor; 2]>;

/// The loss, `[1]`, and its wanted gradients: of the hidden rows in the dtype that is kept, of weight and bias in f32. With `before` they are
/// the gradients of the rows' losses, and the last tensor is what these are divided by, `[1]`.
pub(super) fn loss_and_gradients(
    inputs: &Inputs,
    options: &LossOptions,
    wanted: [bool; 3],
    before: Option<Before>,
) -> (FlexTensor, LossGradients<FlexTensor>, Option<FlexTensor>) {
    match inputs.hidden.dtype() {
        DType::F16 => with_gradients::<f16, f32>(inputs, options, wanted, before),
        DType::BF16 => with_gradients::<bf16, bf16>(inputs, options, wanted, before),
        _ => with_gradients::<f32, f32>(inputs, options, wanted, before),
    }
}

fn with_gradients<E: Stored, K: Stored>(
    inputs: &Inputs,
    options: &LossOptions,
    wanted: [bool; 3],
    before: Option<Before>,
) -> (FlexTensor, LossGradients<FlexTensor>, Option<FlexTensor>) {
    let weight = Weight::of(&inputs.weight);
    let Weight { width, classes, by_class, .. } = weight;
    let in_order = before.is_some();
    let (of_weight, of_bias) = match before.flatten() {
        Some([of_weight, of_bias]) => (Some(if by_class { swapped(of_weight) } else { of_weight }), Some(of_bias)),
        None => (None, None),
    };
    let shape = Shape::new(if by_class { [classes, width] } else { [width, classes] });
    let mut sums = Sums {
        hidden: wanted[0].then(|| vec![K::zeroed(); inputs.hidden.shape().num_elements()]),
        weight: wanted[1].then(|| of_weight.map_or_else(|| zeros(shape, DType::F32), owned)),
        bias: wanted[2].then(|| of_bias.map_or_else(|| vec![0.0; inputs.bias.shape()[0]], |sum| to_f32(&sum))),
        in_order,
    };
    let (loss, total) = run::<E, K>(inputs, &weight, options, &mut sums);
    let gradients = LossGradients {
        hidden: sums.hidden.map(|values| tensor(values, inputs.hidden.shape())),
        weight: sums.weight.map(|sum| if by_class { swapped(sum) } else { sum }),
        bias: sums.bias.map(|values| tensor(values, inputs.bias.shape())),
    };
    // Without rows the gradients are 0.
    let total = in_order.then(|| tensor(vec![if total == 0.0 { 1.0 } else { total as f32 }], Shape::new([1])));
    (loss, gradients, total)
}

fn run<E: Stored, K: Stored>(
    inputs: &Inputs,
    weight: &Weight,
    options: &LossOptions,
    sums: &mut Sums<K>,
) -> (FlexTensor, f64) {
    let (bias, class_weights) = (to_f32(&inputs.bias), to_f32(&inputs.class_weights));
    let classes = Classes::new(&bias, &class_weights, weight.classes, options.label_smoothing);
    let (rows, total) = counted(&inputs.targets, &to_f32(&inputs.row_weights), options, &classes);
    let mut losses = vec![0.0f64; rows.len()];
    let size = chunk_rows(rows.len(), weight.width, weight.classes);
    let mut chunk = Chunk::new(&inputs.hidden, weight, size.min(rows.len()));
    for (rows, losses) in rows.chunks(size).zip(losses.chunks_mut(size)) {
        chunk.losses::<E>(rows, &classes, sums.any().then_some(if sums.in_order { 1.0 } else { total }), losses);
        chunk.add_gradients(rows, sums);
    }
    let losses = rows.iter().zip(losses).map(|(row, loss)| (row.index, row.weight * loss));
    let loss = match options.reduction {
        Reduction::None => {
            let mut out = vec![0.0; inputs.hidden.shape()[0]];
            losses.for_each(|(index, loss)| out[index] = loss as f32);
            tensor(out, inputs.targets.shape())
        }
        Reduction::Mean | Reduction::Sum => {
            let sum: f64 = losses.map(|(_, loss)| loss).sum();
            tensor(vec![(sum / total) as f32], Shape::new([1]))
        }
    };
    (loss, total)
}

/// Buffers for the rows of a chunk.
struct Chunk<'a> {
    source: FlexTensor,
    stride: usize,
    weight: &'a Weight,
    in_bf16: bool,
    /// The hidden rows in f32, later their gradient.
    hidden: Vec<f32>,
    /// The logits, then their gradient.
    logits: Vec<f32>,
    /// A block of the weight in f32.
    block: Vec<f32>,
}

impl<'a> Chunk<'a> {
    fn new(hidden: &FlexTensor, weight: &'a Weight, rows: usize) -> Self {
        let (source, stride) = by_rows(hidden);
        let (hidden, logits) = (vec![0.0; rows * weight.width], vec![0.0; rows * weight.classes]);
        let in_bf16 = weight.in_bf16(source.dtype());
        Self { source, stride, weight, in_bf16, hidden, logits, block: vec![] }
    }

    /// The losses of the rows, without their weights. If the `total` weight of all rows is given, the logits are replaced by their
    /// gradient.
    fn losses<E: Stored>(&mut self, rows: &[Row], classes: &Classes<'_>, total: Option<f64>, losses: &mut [f64]) {
        let Weight { width, classes: length, .. } = *self.weight;
        self.hidden.truncate(rows.len() * width);
        self.logits.truncate(rows.len() * length);
        load::<E>(&self.source, self.stride, width, rows, &mut self.hidden);
        if self.in_bf16 {
            let (hidden, [of_classes, _]) =
                (Factor::by_line(Values::Rounded(&self.hidden), width), self.weight.factors());
            self.logits.fill(0.0);
            add_in_order(&mut self.logits, [rows.len(), length, width], hidden, of_classes, Threads::All);
        }
        let hidden = Matrix::new(&self.hidden, rows.len(), width);
        for block in self.weight.blocks().filter(|_| !self.in_bf16) {
            let logits = &mut self.logits[block.start..];
            let weight = self.weight.columns(block, &mut self.block);
            multiply_rows((logits, length, Output::Replace), hidden, weight, Threads::All);
        }
        let logits = self.logits.par_chunks_mut(length.max(1)).with_min_len(TASK.div_ceil(length.max(1)));
        logits.zip(rows).zip(losses).for_each_init(Vec::new, |largest, ((logits, row), loss)| {
            largest.clear();
            let mut sums = RowSums::default();
            for block in self.weight.blocks() {
                largest.push(classes.add(&mut logits[block.clone()], block.start, row.target, &mut sums));
            }
            *loss = classes.loss(&sums, row.target);
            let Some(total) = total else { return };
            for (block, largest) in self.weight.blocks().zip(largest) {
                let (block, first) = (&mut logits[block.clone()], block.start);
                let of_row = (sums.largest, sums.sum as f32);
                classes.gradient((block, first, *largest), row.target, of_row, row.weight / total);
            }
        });
    }

    /// Adds the gradient of the weight, in its layout.
    fn add_weight_gradient(&self, rows: usize, sum: &mut [f32], in_order: bool) {
        let Weight { width, classes, by_class, .. } = *self.weight;
        if in_order || self.in_bf16 {
            let values = if self.in_bf16 { Values::Rounded } else { Values::F32 };
            let hidden = Factor::by_step(values(&self.hidden), width);
            let logits = Factor::by_step(values(&self.logits), classes);
            return match by_class {
                true => add_in_order(sum, [classes, width, rows], logits, hidden, Threads::All),
                false => add_in_order(sum, [width, classes, rows], hidden, logits, Threads::All),
            };
        }
        let hidden = Matrix::new(&self.hidden, rows, width);
        for block in self.weight.blocks() {
            let logits = &self.logits[block.start..];
            let gradient = Matrix::strided(logits, rows, block.len(), classes);
            let (left, right, offset, stride) = match by_class {
                true => (gradient.transposed(), hidden, block.start * width, width),
                false => (hidden.transposed(), gradient, block.start, classes),
            };
            multiply((&mut sum[offset..], stride, Output::Add), left, right, 1.0, Threads::All);
        }
    }

    /// Adds the gradients of the rows to the gradients that are wanted. The rows' logits hold the gradient of the logits.
    fn add_gradients<K: Stored>(&mut self, rows: &[Row], sums: &mut Sums<K>) {
        let Weight { width, classes, by_class, .. } = *self.weight;
        if let Some(sum) = sums.weight.as_mut().filter(|_| width * classes > 0) {
            self.add_weight_gradient(rows.len(), sum.storage_mut(), sums.in_order);
        }
        if let Some(sum) = &mut sums.bias {
            sum.par_chunks_mut(TASK / 4).enumerate().for_each(|(part, sum)| {
                let rows = self.logits.chunks_exact(classes);
                rows.for_each(|row| add(sum, &row[part * (TASK / 4)..][..sum.len()]));
            });
        }
        if let Some(out) = &mut sums.hidden {
            // The product reads a weight that is stored by rows faster if it computes the transposed gradient of many rows.
            let count = rows.len();
            if self.in_bf16 {
                let gradient = Factor::by_line(Values::Rounded(&self.logits), classes);
                let [_, of_width] = self.weight.factors();
                self.hidden.fill(0.0);
                add_in_order(&mut self.hidden, [count, width, classes], gradient, of_width, Threads::All);
                return put_rows(out, rows, &self.hidden, width, [width, 1]);
            }
            let by_rows = by_class || count < enough_rows(width, CLASSES.min(classes));
            for block in self.weight.blocks() {
                let output = if block.start == 0 { Output::Replace } else { Output::Add };
                let gradient = Matrix::strided(&self.logits[block.start..], count, block.len(), classes);
                let weight = self.weight.columns(block, &mut self.block);
                match by_rows {
                    true => {
                        multiply_rows((&mut self.hidden, width, output), gradient, weight.transposed(), Threads::All);
                    }
                    false => {
                        let out = (&mut self.hidden[..], count, output);
                        multiply(out, weight, gradient.transposed(), 1.0, Threads::All);
                    }
                }
            }
            put_rows(out, rows, &self.hidden, width, if by_rows { [width, 1] } else { [1, count] });
        }
    }
}

/// Writes each row to its position. `strides` are those of the rows and columns of `values`.
pub(super) fn put_rows<K: Stored>(out: &mut [K], rows: &[Row], values: &[f32], width: usize, strides: [usize; 2]) {
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return };
    let out = &mut out[first.index * width..(last.index + 1) * width];
    out.par_chunks_mut(width.max(1)).with_min_len(TASK.div_ceil(width.max(1))).enumerate().for_each_init(
        Vec::new,
        |buffer, (offset, out)| {
            if let Ok(row) = rows.binary_search_by_key(&(first.index + offset), |row| row.index) {
                let values = values[row * strides[0]..].iter().step_by(strides[1]);
                K::written(out, buffer, |out| out.iter_mut().zip(values).for_each(|(out, value)| *out = *value));
            }
        },
    );
}
