//! A parameter's update, by the kind of device that the parameter is on.

#[cfg(feature = "cube")]
use burn::backend::Cube;
#[cfg(feature = "flex")]
use burn::backend::Flex;
use burn::backend::{Capture, DispatchDevice};
use burn::tensor::{DType, FloatDType, Tensor};

use super::moment::QuantizedMoment;
use super::rule::Rule;
use crate::blocks::Noise;
use crate::fused::{factor, is_left, not_all_joined};
use crate::place::{float, int};
use kiln_operations::{like, operations};

/// Whether moments of a parameter are kept as codes.
pub(super) fn is_quantized<const D: usize>(parameter: &Tensor<D>, min_elements: usize) -> bool {
    let count = parameter.shape().num_elements();
    count > 0 && count >= min_elements && matches!(parameter.dtype(), DType::F32 | DType::F16 | DType::BF16)
}

/// Calls `step` with a 16-bit parameter in f32, and rounds the result back. A parameter of another dtype is passed as it is.
pub(super) fn in_f32<S, const D: usize>(
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    step: impl FnOnce(Tensor<D>, Tensor<D>) -> (Tensor<D>, S),
) -> (Tensor<D>, S) {
    let dtype = match parameter.dtype() {
        DType::F16 => FloatDType::F16,
        DType::BF16 => FloatDType::BF16,
        _ => return step(parameter, gradient),
    };
    not_all_joined();
    let (parameter, state) = step(parameter.cast(FloatDType::F32), gradient.cast(FloatDType::F32));
    (parameter.cast(dtype), state)
}

/// The parameter and its moments after a step on the gradient, which is multiplied by the factor of
/// [`update_together`](crate::update_together).
pub(super) fn update<R: Rule<N>, const D: usize, const N: usize>(
    rule: R,
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    moments: [QuantizedMoment; N],
    noise: Option<Noise>,
) -> (Tensor<D>, [QuantizedMoment; N]) {
    if is_left(&parameter.device()) {
        return (parameter, moments);
    }
    let scale = factor().unwrap_or(1.0) as f32;
    let gradient = match gradient.dtype() {
        dtype if dtype == parameter.dtype() || dtype == DType::F32 => gradient,
        _ => gradient.cast(FloatDType::F32),
    };
    match parameter.device().as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => {
            let codes =
                moments.map(|moment| (moment.book, int::<Flex, 1>(moment.codes), float::<Flex, 1>(moment.scales)));
            let (parameter, gradient) = (float::<Flex, D>(parameter), float::<Flex, D>(gradient));
            let (parameter, codes) = super::flex::update(rule, parameter, (&gradient, scale), codes, noise);
            let moments = codes.map(|(book, codes, scales)| QuantizedMoment {
                book,
                codes: Tensor::from_primitive::<Flex>(codes),
                scales: Tensor::from_primitive::<Flex>(scales),
            });
            (Tensor::from_primitive::<Flex>(parameter), moments)
        }
        #[cfg(feature = "cube")]
        DispatchDevice::Cube(device) if super::cube::has_kernel(device) => {
            let tables = super::cube::tables(moments.each_ref().map(|moment| moment.book), &parameter.device());
            let moments = moments.map(|moment| super::cube::Moment {
                book: moment.book,
                codes: int::<Cube, 1>(moment.codes),
                scales: float::<Cube, 1>(moment.scales),
            });
            let (parameter, gradient) = (float::<Cube, D>(parameter), (float::<Cube, D>(gradient), scale));
            let (parameter, moments) = rule.launch(parameter, gradient, moments, float::<Cube, 1>(tables), noise);
            let moments = moments.map(|moment| QuantizedMoment {
                book: moment.book,
                codes: Tensor::from_primitive::<Cube>(moment.codes),
                scales: Tensor::from_primitive::<Cube>(moment.scales),
            });
            (Tensor::from_primitive::<Cube>(parameter), moments)
        }
        DispatchDevice::Capture(_) => recorded::<R, D, N>(parameter, gradient, moments),
        _ => super::composed::update(rule, parameter, (gradient, scale), moments, noise),
    }
}

/// Records the update as one operation. Inputs are parameter, codes and scales of each moment, and gradient. Outputs are the same without
/// the gradient.
fn recorded<R: Rule<N>, const D: usize, const N: usize>(
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    moments: [QuantizedMoment; N],
) -> (Tensor<D>, [QuantizedMoment; N]) {
    let books = moments.each_ref().map(|moment| moment.book);
    let bits = books.first().map_or(8, |book| book.bits());
    let mut inputs = vec![float::<Capture, D>(parameter)];
    for moment in moments {
        inputs.extend([int::<Capture, 1>(moment.codes), float::<Capture, 1>(moment.scales)]);
    }
    let outputs = inputs.iter().map(like).collect();
    inputs.push(float::<Capture, D>(gradient));
    let mut made = operations(R::COSTS[usize::from(bits == 4)], inputs, &[], outputs).into_iter();
    let mut next = || made.next().unwrap_or_else(|| unreachable!("as many outputs as were asked for"));
    let parameter = Tensor::from_primitive::<Capture>(next());
    let moments = books.map(|book| {
        let codes = Tensor::from_primitive::<Capture>(next());
        QuantizedMoment { book, codes, scales: Tensor::from_primitive::<Capture>(next()) }
    });
    (parameter, moments)
}
