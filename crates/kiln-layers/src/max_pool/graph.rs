//! Max pooling as an operation of burn's graph.

#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
use kiln_operations::{Computed, Cost, Kernel, KernelBackend, Operation, all};

use super::settings::{BACKWARD, FORWARD, Windows, with_planes};

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
