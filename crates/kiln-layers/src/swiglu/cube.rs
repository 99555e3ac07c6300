//! SwiGLU in CubeCL: one launch in each direction.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::cubecl;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};
use kiln_operations::cube::{flat, over};

use crate::activation::sigmoid;

/// Values that a unit (a thread) takes.
const VECTOR: usize = 4;

#[cube(launch, address_type = "dynamic")]
fn product<X: Float, N: Size>(
    gate: LinearView<'_, Vector<X, N>>,
    up: LinearView<'_, Vector<X, N>>,
    mut y: LinearViewMut<'_, Vector<X, N>>,
    #[define(X)] _dtype: ElemType,
) {
    if y.is_in_bounds(ABSOLUTE_POS) {
        let x = Vector::<f32, N>::cast_from(gate.read(ABSOLUTE_POS));
        let up = Vector::<f32, N>::cast_from(up.read(ABSOLUTE_POS));
        y.write(ABSOLUTE_POS, Vector::cast_from(sigmoid::<N>(x) * x * up));
    }
}

#[cube(launch, address_type = "dynamic")]
fn gradients<X: Float, N: Size>(
    gate: LinearView<'_, Vector<X, N>>,
    up: LinearView<'_, Vector<X, N>>,
    gradient: LinearView<'_, Vector<X, N>>,
    mut of_gate: LinearViewMut<'_, Vector<X, N>>,
    mut of_up: LinearViewMut<'_, Vector<X, N>>,
    #[define(X)] _dtype: ElemType,
) {
    if of_gate.is_in_bounds(ABSOLUTE_POS) {
        let x = Vector::<f32, N>::cast_from(gate.read(ABSOLUTE_POS));
        let up = Vector::<f32, N>::cast_from(up.read(ABSOLUTE_POS));
        let gradient = Vector::<f32, N>::cast_from(gradient.read(ABSOLUTE_POS));
        let one = Vector::<f32, N>::new(1.0f32);
        let gate = sigmoid::<N>(x);
        let slope = ((one - gate) * x + one) * gate;
        of_gate.write(ABSOLUTE_POS, Vector::cast_from(slope * gradient * up));
        of_up.write(ABSOLUTE_POS, Vector::cast_from(gate * x * gradient));
    }
}

/// How a line of values is read: the values of a unit, and the cubes and their units.
fn grid(client: &Client, values: usize) -> (usize, CubeCount, CubeDim) {
    let vector = if values.is_multiple_of(VECTOR) { VECTOR } else { 1 };
    let units = values / vector;
    let cube = CubeDim::new(client, units);
    (vector, calculate_cube_count_elemwise(client, units, cube), cube)
}

pub(super) fn forward(gate: CubeTensor, up: CubeTensor) -> CubeTensor {
    let (shaped, [gate, up]) = flat([gate, up]);
    let (client, address) = (gate.client.clone(), gate.required_address_type());
    let (vector, cubes, cube) = grid(&client, gate.meta.num_elements());
    let (y, view) = over(&gate, 0);
    product::launch(
        &client,
        cubes,
        cube,
        address,
        vector,
        gate.clone().into_linear_view(),
        up.into_linear_view(),
        view,
        dtype_to_storage_type(gate.dtype),
    );
    shaped(y)
}

/// The gradients of both inputs.
pub(super) fn backward([gate, up, gradient]: [CubeTensor; 3]) -> [CubeTensor; 2] {
    let (shaped, [gate, up, gradient]) = flat([gate, up, gradient]);
    let (client, address) = (gate.client.clone(), gate.required_address_type());
    let (vector, cubes, cube) = grid(&client, gate.meta.num_elements());
    let ((of_gate, of_gate_view), (of_up, of_up_view)) = (over(&gate, 0), over(&gradient, 2));
    gradients::launch(
        &client,
        cubes,
        cube,
        address,
        vector,
        gate.clone().into_linear_view(),
        up.into_linear_view(),
        gradient.into_linear_view(),
        of_gate_view,
        of_up_view,
        dtype_to_storage_type(gate.dtype),
    );
    let of_gate = shaped(of_gate);
    let of_up = CubeTensor { meta: of_gate.meta.clone(), ..of_up };
    [of_gate, of_up]
}
