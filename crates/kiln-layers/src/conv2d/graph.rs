//! Convolution as an operation of burn's graph.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Capture, TensorMetadata, backend_extension};
use burn::tensor::Shape;

use super::{Convolution, Geometry};
use crate::graph::without_gradients;
use kiln_operations::operation;
use kiln_operations::record;

#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"), Capture, Autodiff)]
pub(crate) trait Conv2dLayer: Backend {
    fn conv2d_layer(x: FloatTensor<Self>, #[extension_type] convolution: Convolution<Self>) -> FloatTensor<Self>;
}

/// Convolution on a backend without gradients.
pub(crate) trait Conv2dKernels: Backend {
    fn conv2d_forward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        geometry: Geometry,
    ) -> FloatTensor<Self> {
        super::composed::forward::<Self>(x, weight, bias, geometry)
    }

    /// The gradient of an input of `shape`.
    fn conv2d_input_gradient(
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        shape: Shape,
        geometry: Geometry,
    ) -> FloatTensor<Self> {
        super::composed::input_gradient::<Self>(weight, gradient, shape, geometry)
    }

    /// The gradient of a weight of `shape`.
    fn conv2d_weight_gradient(
        x: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        shape: Shape,
        geometry: Geometry,
    ) -> FloatTensor<Self> {
        super::composed::weight_gradient::<Self>(x, gradient, shape, geometry)
    }

    /// The sum over each channel.
    fn conv2d_bias_gradient(gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        super::composed::bias_gradient::<Self>(gradient)
    }
}

without_gradients!(Conv2dLayer, Conv2dKernels {
    fn conv2d_layer(x: FloatTensor<Self>, convolution: Convolution<Self>) -> FloatTensor<Self> {
        let Convolution { weight, bias, geometry } = convolution;
        Self::conv2d_forward(x, weight, bias, geometry)
    }
});

impl<B: Conv2dKernels, C: CheckpointStrategy> Conv2dLayer for Autodiff<B, C> {
    fn conv2d_layer(x: FloatTensor<Self>, convolution: Convolution<Self>) -> FloatTensor<Self> {
        let ((x, of_x), (convolution, [of_weight, of_bias])) = (x.into_parts(), convolution.into_parts());
        record::<B, C, _, 3>(
            "convolution",
            [of_x, of_weight, of_bias],
            |_| {
                let Convolution { weight, bias, geometry } = convolution;
                (B::conv2d_forward(x.clone(), weight.clone(), bias, geometry), Some((x, weight, geometry)))
            },
            |(x, weight, geometry), gradient, wanted| {
                let shape = x.shape();
                gradients::<B>((|| x, shape), (weight, geometry), gradient, wanted)
            },
        )
    }
}

/// The gradients of input, weight and bias that are wanted. The input is given by a function that computes it, and by its shape.
pub(crate) fn gradients<B: Conv2dKernels>(
    (x, shape): (impl FnOnce() -> FloatTensor<B>, Shape),
    (weight, geometry): (FloatTensor<B>, Geometry),
    gradient: FloatTensor<B>,
    [for_x, for_weight, for_bias]: [bool; 3],
) -> [Option<FloatTensor<B>>; 3] {
    let of_bias = for_bias.then(|| B::conv2d_bias_gradient(gradient.clone()));
    let of_weight = for_weight.then(|| B::conv2d_weight_gradient(x(), gradient.clone(), weight.shape(), geometry));
    let of_x = for_x.then(|| B::conv2d_input_gradient(weight, gradient, shape, geometry));
    [of_x, of_weight, of_bias]
}

#[cfg(feature = "flex")]
impl Conv2dKernels for burn::backend::Flex {
    fn conv2d_forward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        geometry: Geometry,
    ) -> FloatTensor<Self> {
        super::flex::forward(&x, &weight, &bias, geometry)
    }

    fn conv2d_input_gradient(
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        shape: Shape,
        geometry: Geometry,
    ) -> FloatTensor<Self> {
        super::flex::input_gradient(&weight, &gradient, shape, geometry)
    }

    fn conv2d_weight_gradient(
        x: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        shape: Shape,
        geometry: Geometry,
    ) -> FloatTensor<Self> {
        super::flex::weight_gradient(&x, &gradient, shape, geometry)
    }

    fn conv2d_bias_gradient(gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        super::flex::bias_gradient(&gradient)
    }
}

impl Conv2dKernels for Capture {
    fn conv2d_forward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        geometry: Geometry,
    ) -> FloatTensor<Self> {
        let (image, kernel) = (x.shape(), weight.shape());
        let [height, width] = geometry.output([image[2], image[3]], [kernel[2], kernel[3]]);
        let output = (Shape::new([image[0], kernel[0], height, width]), x.dtype());
        let [y] = operation(&super::cost::FORWARD, vec![x, weight, bias], &geometry.scalars(), [output]);
        y
    }

    fn conv2d_input_gradient(
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        shape: Shape,
        geometry: Geometry,
    ) -> FloatTensor<Self> {
        let output = (shape, gradient.dtype());
        let [dx] = operation(&super::cost::INPUT_BACKWARD, vec![weight, gradient], &geometry.scalars(), [output]);
        dx
    }

    fn conv2d_weight_gradient(
        x: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        shape: Shape,
        geometry: Geometry,
    ) -> FloatTensor<Self> {
        let output = (shape, gradient.dtype());
        let [dw] = operation(&super::cost::WEIGHT_BACKWARD, vec![x, gradient], &geometry.scalars(), [output]);
        dw
    }

    fn conv2d_bias_gradient(gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        let output = (Shape::new([gradient.shape()[1]]), gradient.dtype());
        let [db] = operation(&super::cost::BIAS_BACKWARD, vec![gradient], &[], [output]);
        db
    }
}
