//! Max pooling as an operation of burn's graph: settings, kernels, node and cost.

#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
use kiln_operations::{Call, Computed, Cost, Cpu, Kernel, KernelBackend, Operation, all};

/// Max pooling over windows, and the gradient of its input.
#[derive(Clone, Copy, Debug)]
enum Pool {
    /// The output, and the positions in the windows as `U8` if they are wanted.
    Forward(Windows, bool),
    /// From the positions and the gradient of the output.
    Backward(Windows),
}

impl Kernel for Pool {
    fn cost(&self) -> &'static Cost {
        match self {
            Self::Forward(..) => &FORWARD,
            Self::Backward(_) => &BACKWARD,
        }
    }

    fn scalars(&self) -> Vec<i64> {
        let (Self::Forward(windows, _) | Self::Backward(windows)) = self;
        windows.kernel.map(|size| size as i64).into()
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        match self {
            Self::Forward(windows, positions) => {
                let shape = with_planes(&inputs[0].0, windows.output);
                let kept = positions.then(|| (shape.clone(), DType::U8));
                [(shape, inputs[0].1)].into_iter().chain(kept).collect()
            }
            Self::Backward(windows) => vec![(with_planes(&inputs[1].0, windows.input), inputs[1].1)],
        }
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        match *self {
            Self::Forward(windows, positions) => {
                let [x] = all(inputs);
                let (y, positions) = super::composed::forward::<B>(x, windows, positions);
                [y].into_iter().chain(positions.map(B::of_int)).collect()
            }
            Self::Backward(windows) => {
                let [positions, gradient] = all(inputs);
                vec![super::composed::backward::<B>(B::int(positions), gradient, windows)]
            }
        }
    }

    #[cfg(feature = "flex")]
    fn flex(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        match *self {
            Self::Forward(windows, positions) => {
                let (y, positions) = super::flex::forward(&inputs[0], windows, positions);
                [y].into_iter().chain(positions).collect()
            }
            Self::Backward(windows) => vec![super::flex::backward(&inputs[0], &inputs[1], windows)],
        }
    }
}

impl Operation for Windows {
    const NAME: &'static str = "max pooling";

    /// The positions in the windows.
    type Saved<B: KernelBackend> = FloatTensor<B>;

    fn forward<B: KernelBackend>(&self, x: Vec<FloatTensor<B>>, wanted: &[bool]) -> Computed<B, FloatTensor<B>> {
        let mut outputs = B::run(&Pool::Forward(*self, wanted[0]), x);
        let saved = outputs.split_off(1).pop();
        Computed { outputs, saved }
    }

    fn gradient<B: KernelBackend>(
        &self,
        positions: FloatTensor<B>,
        gradient: FloatTensor<B>,
        _: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        B::run(&Pool::Backward(*self), vec![positions, gradient]).into_iter().map(Some).collect()
    }
}

/// The most positions of a window. A byte can name them, and one value more for windows that lie entirely in the padding.
pub(super) const POSITIONS: usize = 255;

/// The positions of windows over planes. Pairs are for rows, then columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    /// Sizes of an input plane.
    pub(crate) input: [usize; 2],
    /// Sizes of an output plane.
    pub(crate) output: [usize; 2],
    pub(crate) kernel: [usize; 2],
    pub(crate) stride: [usize; 2],
    pub(crate) dilation: [usize; 2],
    /// Number of padding rows above the input and of padding columns left of it.
    pub(crate) padding: [usize; 2],
}

/// The shape of a tensor with planes of another size.
pub(crate) fn with_planes(shape: &Shape, [height, width]: [usize; 2]) -> Shape {
    Shape::new([shape[0], shape[1], height, width])
}

pub(super) static FORWARD: Cost =
    Cost { cpu_scratch: forward, gpu_scratch: |call| 2 * call.bytes(0), ..Cost::new("kiln::max_pool") };

/// Inputs: positions, gradient.
pub(super) static BACKWARD: Cost =
    Cost { cpu_scratch: backward, gpu_scratch: |call| 2 * call.out_bytes(0), ..Cost::new("kiln::max_pool_backward") };

/// Slices of each plane, and some rows for each thread.
fn forward(call: &Call<'_>, cpu: &Cpu) -> u64 {
    let row = call.dim_from_end(0, 0);
    let planes = call.elements(0) / (row * call.dim_from_end(0, 1)).max(1);
    16 * planes + cpu.of_threads(planes, 3 * row)
}

/// A plane of the output for each thread.
fn backward(call: &Call<'_>, cpu: &Cpu) -> u64 {
    let planes = call.dim(0, 0) * call.dim(0, 1);
    call.widened(planes, call.out_elements(0) / planes.max(1), cpu)
}
