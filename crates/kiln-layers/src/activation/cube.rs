//! Activations in CubeCL: one launch in each direction.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::cubecl;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};
use kiln_operations::cube::{flat, over};

use super::settings::{Activation, CUBIC, DENSITY, HALF_ROOT, SCALE};

/// The normal distribution function.
#[cube]
fn normal_cdf<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    ((x * Vector::new(HALF_ROOT)).erf() + Vector::new(1.0f32)) * Vector::new(0.5f32)
}

/// 1 / (1 + exp(-x)).
#[cube]
pub(crate) fn sigmoid<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    let one = Vector::<f32, N>::new(1.0f32);
    one / (one + (-x).exp())
}

/// The factor of x in the tanh approximation.
#[cube]
fn tanh_gate<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    sigmoid::<N>((x * x * Vector::new(CUBIC) + Vector::new(1.0f32)) * x * Vector::new(SCALE))
}

#[cube(launch, address_type = "dynamic")]
fn activate<X: Float, N: Size>(
    x: LinearView<'_, Vector<X, N>>,
    mut y: LinearViewMut<'_, Vector<X, N>>,
    #[comptime] activation: Activation,
    #[define(X)] _dtype: ElemType,
) {
    if y.is_in_bounds(ABSOLUTE_POS) {
        let x = Vector::<f32, N>::cast_from(x.read(ABSOLUTE_POS));
        let zero = Vector::<f32, N>::new(0.0f32);
        let value = match comptime!(activation) {
            Activation::Gelu => normal_cdf::<N>(x) * x,
            Activation::GeluTanh => tanh_gate::<N>(x) * x,
            Activation::Silu => sigmoid::<N>(x) * x,
            Activation::Relu => select_many(x.less_equal(&zero), zero, x),
        };
        y.write(ABSOLUTE_POS, Vector::cast_from(value));
    }
}

/// The gradient of the input. `kept` is the tensor that the activation keeps.
#[cube(launch, address_type = "dynamic")]
fn activate_backward<X: Float, N: Size>(
    kept: LinearView<'_, Vector<X, N>>,
    gradient: LinearView<'_, Vector<X, N>>,
    mut dx: LinearViewMut<'_, Vector<X, N>>,
    #[comptime] activation: Activation,
    #[define(X)] _dtype: ElemType,
) {
    if dx.is_in_bounds(ABSOLUTE_POS) {
        let x = Vector::<f32, N>::cast_from(kept.read(ABSOLUTE_POS));
        let gradient = Vector::<f32, N>::cast_from(gradient.read(ABSOLUTE_POS));
        let (zero, one) = (Vector::<f32, N>::new(0.0f32), Vector::<f32, N>::new(1.0f32));
        let value = match comptime!(activation) {
            Activation::Gelu => {
                let density = (x * x * Vector::new(-0.5f32)).exp() * Vector::new(DENSITY);
                (density * x + normal_cdf::<N>(x)) * gradient
            }
            Activation::GeluTanh => {
                let gate = tanh_gate::<N>(x);
                let slope = (x * x * Vector::new(comptime!(3.0 * CUBIC)) + one) * Vector::new(SCALE);
                ((one - gate) * x * slope + one) * gate * gradient
            }
            Activation::Silu => {
                let gate = sigmoid::<N>(x);
                ((one - gate) * x + one) * gate * gradient
            }
            // The output of ReLU is positive where its input is.
            Activation::Relu => select_many(x.less_equal(&zero), zero, gradient),
        };
        dx.write(ABSOLUTE_POS, Vector::cast_from(value));
    }
}

/// Values that a unit takes.
fn vector(values: usize) -> usize {
    if values.is_multiple_of(4) { 4 } else { 1 }
}

pub(super) fn forward(x: CubeTensor, activation: Activation) -> CubeTensor {
    let (shaped, [x]) = flat([x]);
    let (client, values) = (x.client.clone(), x.meta.num_elements());
    let (y, view) = over(&x, 0);
    let units = values / vector(values);
    let cube = CubeDim::new(&client, units);
    activate::launch(
        &client,
        calculate_cube_count_elemwise(&client, units, cube),
        cube,
        x.required_address_type(),
        vector(values),
        x.clone().into_linear_view(),
        view,
        activation,
        dtype_to_storage_type(x.dtype),
    );
    shaped(y)
}

pub(super) fn backward(kept: CubeTensor, gradient: CubeTensor, activation: Activation) -> CubeTensor {
    let (shaped, [kept, gradient]) = flat([kept, gradient]);
    let (client, values) = (kept.client.clone(), kept.meta.num_elements());
    let (dx, view) = over(&gradient, 1);
    let units = values / vector(values);
    let cube = CubeDim::new(&client, units);
    activate_backward::launch(
        &client,
        calculate_cube_count_elemwise(&client, units, cube),
        cube,
        kept.required_address_type(),
        vector(values),
        kept.clone().into_linear_view(),
        gradient.into_linear_view(),
        view,
        activation,
        dtype_to_storage_type(kept.dtype),
    );
    shaped(dx)
}
