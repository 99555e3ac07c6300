//! Convolution as an operation of burn's graph.

use burn::backend::TensorMetadata;
#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
#[cfg(feature = "cube")]
use burn_cubecl::{CubeDevice, tensor::CubeTensor};
#[cfg(feature = "cube")]
use kiln_operations::CubeKernel;
use kiln_operations::{Computed, Cost, Kernel, KernelBackend, Operation, all};

use super::cost::{BIAS_BACKWARD, FORWARD, INPUT_BACKWARD, WEIGHT_BACKWARD};
use super::settings::Geometry;

/// The computations of a convolution.
#[derive(Clone, Debug)]
enum Convolve {
    /// From x, weight and bias, which may have no values.
    Forward(Geometry),
    /// The gradient of an input of a shape, from weight and gradient.
    InputGradient(Geometry, Shape),
    /// The gradient of a weight of a shape, from x and gradient.
    WeightGradient(Geometry, Shape),
    /// The sum over each channel of the gradient.
    BiasGradient,
}

impl Kernel for Convolve {
    fn cost(&self) -> &'static Cost {
        match self {
            Self::Forward(_) => &FORWARD,
            Self::InputGradient(..) => &INPUT_BACKWARD,
            Self::WeightGradient(..) => &WEIGHT_BACKWARD,
            Self::BiasGradient => &BIAS_BACKWARD,
        }
    }

    fn scalars(&self) -> Vec<i64> {
        match self {
            Self::Forward(geometry) | Self::InputGradient(geometry, _) | Self::WeightGradient(geometry, _) => {
                geometry.scalars().into()
            }
            Self::BiasGradient => vec![],
        }
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        let (first, dtype) = &inputs[0];
        let shape = match self {
            Self::Forward(geometry) => {
                let kernel = &inputs[1].0;
                let [height, width] = geometry.output([first[2], first[3]], [kernel[2], kernel[3]]);
                Shape::new([first[0], kernel[0], height, width])
            }
            Self::InputGradient(_, shape) | Self::WeightGradient(_, shape) => shape.clone(),
            Self::BiasGradient => Shape::new([first[1]]),
        };
        vec![(shape, inputs.get(1).filter(|_| !matches!(self, Self::Forward(_))).map_or(*dtype, |(_, dtype)| *dtype))]
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        use super::composed::{bias_gradient, forward, input_gradient, weight_gradient};
        vec![match self.clone() {
            Self::Forward(geometry) => {
                let [x, weight, bias] = all(inputs);
                forward::<B>(x, weight, bias, geometry)
            }
            Self::InputGradient(geometry, shape) => {
                let [weight, gradient] = all(inputs);
                input_gradient::<B>(weight, gradient, shape, geometry)
            }
            Self::WeightGradient(geometry, shape) => {
                let [x, gradient] = all(inputs);
                weight_gradient::<B>(x, gradient, shape, geometry)
            }
            Self::BiasGradient => {
                let [gradient] = all(inputs);
                bias_gradient::<B>(gradient)
            }
        }]
    }

    #[cfg(feature = "cube")]
    fn cube(&self, device: &CubeDevice, inputs: &[(Shape, DType)]) -> Option<CubeKernel<Self>> {
        let is_empty = inputs.iter().take(2).any(|(shape, _)| shape.num_elements() == 0);
        (!is_empty && crate::columns::takes(device, 3)).then_some(Self::launch)
    }

    #[cfg(feature = "flex")]
    fn flex(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        use super::flex::{bias_gradient, forward, input_gradient, weight_gradient};
        vec![match self.clone() {
            Self::Forward(geometry) => forward(&inputs[0], &inputs[1], &inputs[2], geometry),
            Self::InputGradient(geometry, shape) => input_gradient(&inputs[0], &inputs[1], shape, geometry),
            Self::WeightGradient(geometry, shape) => weight_gradient(&inputs[0], &inputs[1], shape, geometry),
            Self::BiasGradient => bias_gradient(&inputs[0]),
        }]
    }
}

#[cfg(feature = "cube")]
impl Convolve {
    fn launch(&self, inputs: Vec<CubeTensor>) -> Vec<CubeTensor> {
        use super::cube::{bias_gradient, forward, input_gradient, weight_gradient};
        vec![match self.clone() {
            Self::Forward(geometry) => {
                let [x, weight, bias] = all(inputs);
                forward(x, weight, bias, geometry)
            }
            Self::InputGradient(geometry, shape) => {
                let [weight, gradient] = all(inputs);
                input_gradient(weight, gradient, shape, geometry)
            }
            Self::WeightGradient(geometry, shape) => {
                let [x, gradient] = all(inputs);
                weight_gradient(x, gradient, shape, geometry)
            }
            Self::BiasGradient => {
                let [gradient] = all(inputs);
                bias_gradient(gradient)
            }
        }]
    }
}

/// The convolution of `x`.
pub(crate) fn conv2d_forward<B: KernelBackend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
    geometry: Geometry,
) -> FloatTensor<B> {
    let [y] = all(B::run(&Convolve::Forward(geometry), vec![x, weight, bias]));
    y
}

/// The gradient of an input of `shape`.
pub(crate) fn conv2d_input_gradient<B: KernelBackend>(
    weight: FloatTensor<B>,
    gradient: FloatTensor<B>,
    shape: Shape,
    geometry: Geometry,
) -> FloatTensor<B> {
    let [dx] = all(B::run(&Convolve::InputGradient(geometry, shape), vec![weight, gradient]));
    dx
}

/// The gradient of a weight of `shape`.
pub(crate) fn conv2d_weight_gradient<B: KernelBackend>(
    x: FloatTensor<B>,
    gradient: FloatTensor<B>,
    shape: Shape,
    geometry: Geometry,
) -> FloatTensor<B> {
    let [dw] = all(B::run(&Convolve::WeightGradient(geometry, shape), vec![x, gradient]));
    dw
}

/// The sum over each channel.
pub(crate) fn conv2d_bias_gradient<B: KernelBackend>(gradient: FloatTensor<B>) -> FloatTensor<B> {
    let [db] = all(B::run(&Convolve::BiasGradient, vec![gradient]));
    db
}

impl Operation for Geometry {
    const NAME: &'static str = "convolution";

    /// Input and weight.
    type Saved<B: KernelBackend> = [FloatTensor<B>; 2];

    fn forward<B: KernelBackend>(
        &self,
        inputs: Vec<FloatTensor<B>>,
        wanted: &[bool],
    ) -> Computed<B, [FloatTensor<B>; 2]> {
        let saved = wanted.contains(&true).then(|| [inputs[0].clone(), inputs[1].clone()]);
        Computed { outputs: B::run(&Convolve::Forward(*self), inputs), saved }
    }

    fn gradient<B: KernelBackend>(
        &self,
        [x, weight]: [FloatTensor<B>; 2],
        gradient: FloatTensor<B>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        let shape = x.shape();
        gradients::<B>((|| x, shape), (weight, *self), gradient, [wanted[0], wanted[1], wanted[2]]).into()
    }
}

/// The gradients of input, weight and bias that are wanted. The input is given by a function that computes it, and by its shape.
pub(crate) fn gradients<B: KernelBackend>(
    (x, shape): (impl FnOnce() -> FloatTensor<B>, Shape),
    (weight, geometry): (FloatTensor<B>, Geometry),
    gradient: FloatTensor<B>,
    [for_x, for_weight, for_bias]: [bool; 3],
) -> [Option<FloatTensor<B>>; 3] {
    let of_bias = for_bias.then(|| conv2d_bias_gradient::<B>(gradient.clone()));
    let of_weight = for_weight.then(|| conv2d_weight_gradient::<B>(x(), gradient.clone(), weight.shape(), geometry));
    let of_x = for_x.then(|| conv2d_input_gradient::<B>(weight, gradient, shape, geometry));
    [of_x, of_weight, of_bias]
}
