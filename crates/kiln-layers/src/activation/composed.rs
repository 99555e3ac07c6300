//! Activations in a backend's own operations.
//!
//! Peak memory in addition to inputs and output: if burn fuses (its feature `fusion`), each direction is one kernel and takes none.
//! Otherwise it is at most two f32 tensors of the input's size forward, and five backward.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};

use super::Activation;
use super::settings::{CUBIC, DENSITY, HALF_ROOT, SCALE};
use crate::composed::Wide;

/// The normal distribution function.
fn normal_cdf<B: Backend>(x: Wide<B>) -> Wide<B> {
    ((x * HALF_ROOT).erf() + 1.0) * 0.5
}

/// The factor of x in the tanh approximation.
fn tanh_gate<B: Backend>(x: Wide<B>) -> Wide<B> {
    ((x.clone().square() * CUBIC + 1.0) * x * SCALE).sigmoid()
}

pub(crate) fn forward<B: Backend>(x: FloatTensor<B>, activation: Activation) -> FloatTensor<B> {
    let (dtype, x) = (x.dtype(), Wide::<B>::of(&x));
    let y = match activation {
        Activation::Gelu => normal_cdf(x.clone()) * x,
        Activation::GeluTanh => tanh_gate(x.clone()) * x,
        Activation::Silu => x.clone().sigmoid() * x,
        Activation::Relu => x.clone().fill(x.not_positive(), 0.0),
    };
    y.narrow(dtype)
}

/// The gradient of the input. `kept` is the tensor that the activation keeps.
pub(crate) fn backward<B: Backend>(
    kept: FloatTensor<B>,
    gradient: FloatTensor<B>,
    activation: Activation,
) -> FloatTensor<B> {
    let (dtype, x) = (kept.dtype(), Wide::<B>::of(&kept));
    let gradient = Wide::<B>::of(&gradient);
    let dx = match activation {
        Activation::Gelu => {
            let density = (x.clone().square() * -0.5).exp() * DENSITY;
            (density * x.clone() + normal_cdf(x)) * gradient
        }
        Activation::GeluTanh => {
            let (gate, slope) = (tanh_gate(x.clone()), (x.clone().square() * (3.0 * CUBIC) + 1.0) * SCALE);
            ((-gate.clone() + 1.0) * x * slope + 1.0) * gate * gradient
        }
        Activation::Silu => {
            let gate = x.clone().sigmoid();
            ((-gate.clone() + 1.0) * x + 1.0) * gate * gradient
        }
        // The output of ReLU is positive where its input is.
        Activation::Relu => gradient.fill(x.not_positive(), 0.0),
    };
    dx.narrow(dtype)
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::backend::Flex;
    use burn::tensor::DType;

    use super::{backward, forward};
    use crate::activation::Activation;
    use crate::activation::flex;
    use crate::composed::tests::{DTYPES, assert_close, numbers};
    use kiln_operations::cpu::stored::from_f32;

    const ALL: [Activation; 4] = [Activation::Gelu, Activation::GeluTanh, Activation::Silu, Activation::Relu];

    #[test]
    fn as_the_kernels() {
        for (activation, dtype) in ALL.into_iter().flat_map(|activation| DTYPES.map(|dtype| (activation, dtype))) {
            for shape in [[0, 3, 2], [1, 1, 1], [3, 5, 7], [2, 1, 127]] {
                let what = format!("{activation:?} {dtype:?} {shape:?}");
                let (x, gradient) = (numbers(shape, 1, 8.0, dtype), numbers(shape, 2, 1.0, dtype));
                let y = flex::forward(&x, activation);
                assert_close(&forward::<Flex>(x.clone(), activation), &y, &what);
                let kept = if activation == Activation::Relu { y } else { x };
                let expected = flex::backward(&kept, gradient.clone(), activation);
                assert_close(&backward::<Flex>(kept, gradient, activation), &expected, &what);
            }
        }
    }

    #[test]
    fn extremes() {
        let x = from_f32(vec![f32::NAN, 60.0, -60.0, 0.0, f32::INFINITY], [5].into(), DType::F32);
        for activation in ALL {
            let expected = flex::forward(&x, activation);
            assert_close(&forward::<Flex>(x.clone(), activation), &expected, &format!("{activation:?}"));
        }
    }
}
