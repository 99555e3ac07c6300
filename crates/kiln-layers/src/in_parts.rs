//! Operations on long sequences, part by part: nothing that is wider than the model exists for the whole sequence.
//!
//! The layers of a feed-forward part take some positions at a time, and are computed again in the backward pass (as the tiles of Bekman et al.
//! 2025, arXiv 2506.13996). Attention takes one head of keys and values at a time, with the queries that it serves.

use std::ops::Range;

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, FloatDType, Shape};
use kiln_operations::{Computed, KernelBackend, Operation, takes_parts};

use crate::composed::{cast, put, slice};

/// Positions of a sequence above which it is long. Shorter ones are computed at once, which keeps more and takes less time.
const LONG: usize = 8192;
/// Positions of a part.
const PART: usize = 2048;

/// Whether operations take a sequence of so many positions part by part. Sums in the order of rows are those of the whole.
pub(crate) fn is_long(time: usize) -> bool {
    time > LONG && takes_parts()
}

/// An operation that computes its output part by part. Its first input and its output are `[samples, time, width]`.
#[derive(Clone, Debug)]
pub(crate) struct InParts<O> {
    /// The operation on a part.
    pub(crate) operation: O,
    pub(crate) cut: Cut,
}

/// How the work is divided.
#[derive(Clone, Debug)]
pub(crate) enum Cut {
    /// Some positions at a time.
    OfTime,
    /// So many groups of heads. The last dimension of each input is as many times a row of values of all heads as `rows` says, or the input
    /// is for all groups.
    OfHeads { groups: usize, rows: Vec<usize> },
}

/// An operation whose parts can be computed by themselves.
pub(crate) trait OfParts: Operation {
    /// Whether the output is kept, without which the backward pass would take long.
    const KEEPS_OUTPUT: bool = false;

    /// What else is kept of a part beside the inputs.
    fn kept<B: KernelBackend>(_saved: Self::Saved<B>) -> Option<FloatTensor<B>> {
        None
    }

    /// What the backward pass of a part needs, from its inputs, its output if that is kept, and what else is kept of it.
    fn saved<B: KernelBackend>(
        &self,
        inputs: Vec<FloatTensor<B>>,
        _output: Option<FloatTensor<B>>,
        _kept: Option<FloatTensor<B>>,
    ) -> Option<Self::Saved<B>> {
        let all = vec![true; inputs.len()];
        self.forward::<B>(inputs, &all).saved
    }
}

/// What the backward pass needs: inputs, output if it is kept, and what else is kept of each part.
#[derive(Clone, Debug)]
pub(crate) struct Saved<T> {
    inputs: Vec<T>,
    output: Option<T>,
    kept: Vec<T>,
}

impl Cut {
    /// The positions or the group of each part, for so many positions.
    fn ranges(&self, time: usize) -> Vec<Range<usize>> {
        match self {
            Self::OfTime => (0..time).step_by(PART).map(|first| first..(first + PART).min(time)).collect(),
            Self::OfHeads { groups, .. } => (0..*groups).map(|group| group..group + 1).collect(),
        }
    }

    /// Where the part of a tensor of this shape is: the ranges of its pieces, each of all dimensions. `None` if all parts share the tensor.
    fn places(&self, shape: &Shape, rows: usize, range: &Range<usize>) -> Option<Vec<Vec<Range<usize>>>> {
        let mut whole: Vec<Range<usize>> = (0..shape.num_dims()).map(|dim| 0..shape[dim]).collect();
        match self {
            Self::OfTime if rows > 0 => {
                whole[1] = range.clone();
                Some(vec![whole])
            }
            Self::OfHeads { groups, .. } if rows > 0 && shape.num_elements() > 0 => {
                let last = whole.len() - 1;
                let row = shape[last] / rows;
                let own = row / groups;
                let piece = |index: usize| {
                    let first = index * row + range.start * own;
                    let mut piece = whole.clone();
                    piece[last] = first..first + own;
                    piece
                };
                Some((0..rows).map(piece).collect())
            }
            _ => None,
        }
    }

    /// How often a row of values is in the last dimension of an input.
    fn rows(&self, input: usize) -> usize {
        match self {
            Self::OfTime => usize::from(input == 0),
            Self::OfHeads { rows, .. } => rows.get(input).copied().unwrap_or(0),
        }
    }

    fn groups(&self) -> usize {
        match self {
            Self::OfTime => 1,
            Self::OfHeads { groups, .. } => *groups,
        }
    }
}

/// The pieces of a tensor, side by side.
fn taken<B: KernelBackend>(tensor: &FloatTensor<B>, places: Option<Vec<Vec<Range<usize>>>>) -> FloatTensor<B> {
    let Some(places) = places else { return tensor.clone() };
    let mut pieces: Vec<FloatTensor<B>> = places.iter().map(|place| slice::<B>(tensor, place)).collect();
    match pieces.len() {
        1 => pieces.remove(0),
        _ => B::float_cat(pieces, tensor.shape().num_dims() - 1),
    }
}

/// A tensor with `values` in its pieces.
fn given<B: KernelBackend>(
    tensor: FloatTensor<B>,
    places: &[Vec<Range<usize>>],
    values: &FloatTensor<B>,
) -> FloatTensor<B> {
    if places.is_empty() {
        return tensor; // nothing has values
    }
    let (last, width) = (values.shape().num_dims() - 1, values.shape()[values.shape().num_dims() - 1] / places.len());
    places.iter().enumerate().fold(tensor, |tensor, (index, place)| {
        let mut piece: Vec<Range<usize>> = (0..=last).map(|dim| 0..values.shape()[dim]).collect();
        piece[last] = index * width..(index + 1) * width;
        let piece = if places.len() == 1 { values.clone() } else { slice::<B>(values, &piece) };
        put::<B>(tensor, place, piece)
    })
}

impl<O: OfParts> Operation for InParts<O> {
    const NAME: &'static str = O::NAME;

    type Saved<B: KernelBackend> = Saved<FloatTensor<B>>;

    fn forward<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>, wanted: &[bool]) -> Computed<B, Self::Saved<B>> {
        let ([samples, time], ranges) = (sizes::<B>(&inputs[0]), self.cut.ranges(inputs[0].shape()[1]));
        let (mut output, mut kept) = (inputs[0].clone(), vec![]);
        for (index, range) in ranges.iter().enumerate() {
            let Computed { mut outputs, saved } =
                self.operation.forward::<B>(self.of_part::<B>(&inputs, range), wanted);
            kept.extend(saved.and_then(O::kept::<B>));
            let own = outputs.remove(0);
            if index == 0 {
                let width = own.shape()[2] * self.cut.groups();
                let shape = Shape::new([samples, time, width]);
                output = B::float_zeros(shape, &own.device(), FloatDType::from(own.dtype()));
            }
            let places = self.cut.places(&output.shape(), 1, range).unwrap_or_default();
            output = given::<B>(output, &places, &own);
        }
        let saved = wanted.contains(&true).then(|| {
            let output = O::KEEPS_OUTPUT.then(|| output.clone());
            Saved { inputs, output, kept }
        });
        Computed { outputs: vec![output], saved }
    }

    fn gradient<B: KernelBackend>(
        &self,
        Saved { inputs, output, kept }: Self::Saved<B>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        let mut made: Vec<Option<FloatTensor<B>>> = vec![None; wanted.len()];
        let mut kept = kept.into_iter();
        for range in self.cut.ranges(inputs[0].shape()[1]) {
            let own = |whole: &FloatTensor<B>| taken::<B>(whole, self.cut.places(&whole.shape(), 1, &range));
            let (output, gradient) = (output.as_ref().map(own), own(&gradient));
            let saved = self.operation.saved::<B>(self.of_part::<B>(&inputs, &range), output, kept.next());
            let Some(saved) = saved else { continue };
            let of_part = self.operation.gradient::<B>(saved, gradient, wanted);
            for (input, (whole, own)) in made.iter_mut().zip(of_part).enumerate() {
                let Some(own) = own.filter(|_| wanted[input]) else { continue };
                let (device, dtype, shape) = (own.device(), own.dtype(), inputs[input].shape());
                *whole = Some(match (self.cut.places(&shape, self.cut.rows(input), &range), whole.take()) {
                    (Some(places), whole) => {
                        let zeros = || B::float_zeros(shape, &device, FloatDType::from(dtype));
                        given::<B>(whole.unwrap_or_else(zeros), &places, &own)
                    }
                    (None, Some(sum)) => B::float_add(sum, cast::<B>(own, DType::F32)),
                    // Sums over parts are in f32.
                    (None, None) => cast::<B>(own, DType::F32),
                });
            }
        }
        let in_own = |(gradient, input): (Option<FloatTensor<B>>, &FloatTensor<B>)| {
            gradient.map(|gradient| cast::<B>(gradient, input.dtype()))
        };
        made.into_iter().zip(&inputs).map(in_own).collect()
    }
}

/// The samples and the positions of a tensor.
fn sizes<B: KernelBackend>(tensor: &FloatTensor<B>) -> [usize; 2] {
    let shape = tensor.shape();
    [shape[0], shape[1]]
}

impl<O> InParts<O> {
    /// The inputs of a part.
    fn of_part<B: KernelBackend>(&self, inputs: &[FloatTensor<B>], range: &Range<usize>) -> Vec<FloatTensor<B>> {
        let own = |(input, tensor): (usize, &FloatTensor<B>)| {
            taken::<B>(tensor, self.cut.places(&tensor.shape(), self.cut.rows(input), range))
        };
        inputs.iter().enumerate().map(own).collect()
    }
}

/// An operation that computes the first input of another one. Its inputs are followed by the other ones' of the second.
#[derive(Clone, Debug)]
pub(crate) struct Chain<F, S> {
    pub(crate) first: F,
    pub(crate) second: S,
    /// Inputs of the first operation.
    pub(crate) inputs: usize,
}

impl<F: Operation, S: Operation> OfParts for Chain<F, S> {}

impl<F: Operation, S: Operation> Operation for Chain<F, S> {
    const NAME: &'static str = F::NAME;

    type Saved<B: KernelBackend> = (F::Saved<B>, S::Saved<B>);

    fn forward<B: KernelBackend>(
        &self,
        mut inputs: Vec<FloatTensor<B>>,
        wanted: &[bool],
    ) -> Computed<B, Self::Saved<B>> {
        let mut others = inputs.split_off(self.inputs);
        // Both keep what their backward pass needs if one of them must.
        let any = wanted.contains(&true);
        let (of_first, of_second) = wanted.split_at(self.inputs);
        let of_first: Vec<bool> = [any].iter().chain(&of_first[1..]).copied().collect();
        let of_second: Vec<bool> = [any].iter().chain(of_second).copied().collect();
        let Computed { mut outputs, saved: first } = self.first.forward::<B>(inputs, &of_first);
        others.insert(0, outputs.remove(0));
        let Computed { outputs, saved: second } = self.second.forward::<B>(others, &of_second);
        Computed { outputs, saved: first.zip(second) }
    }

    fn gradient<B: KernelBackend>(
        &self,
        (first, second): Self::Saved<B>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        let (of_first, of_second) = wanted.split_at(self.inputs);
        let before = of_first.contains(&true);
        let of_second: Vec<bool> = [before].iter().chain(of_second).copied().collect();
        let mut others = self.second.gradient::<B>(second, gradient, &of_second).into_iter();
        let mut made = match others.next().flatten().filter(|_| before) {
            Some(between) => self.first.gradient::<B>(first, between, of_first),
            None => vec![],
        };
        made.resize_with(self.inputs, || None);
        made.extend(others);
        made
    }
}
