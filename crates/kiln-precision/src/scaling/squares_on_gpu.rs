//! The sum of squares of many gradients in CubeCL: two launches for up to 48 gradients, in an order that depends on nothing else.

use burn::backend::DispatchTensor;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Device, FloatDType, Shape, Tensor};
use burn_cubecl::CubeDevice;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};
use kiln_operations::cube::{cube_device, empty, has, is_cube, most_tensors, total};
use kiln_operations::{Computed, Cost, CubeKernel, Kernel, KernelBackend, Operation, run};

/// Units of a cube (threads of a block).
const UNITS: usize = 256;
/// Cubes that share a gradient.
const CUBES: usize = 128;
/// The most gradients of a launch.
const GRADIENTS: usize = 48;

/// Gradients of a launch on a device whose kernels have so many tensors. One holds the sums of their parts.
fn at_once(tensors: usize) -> usize {
    tensors.saturating_sub(1).clamp(1, GRADIENTS)
}

/// Gradients on a CubeCL device whose squares have not been added yet, in the order of the parameters.
#[derive(Clone, Debug, Default)]
pub(super) struct Waiting(Vec<(Device, DType, DispatchTensor)>);

impl Waiting {
    /// Takes the gradient if it is on such a device and has values.
    pub(super) fn take<const D: usize>(&mut self, gradient: Tensor<D>) -> Option<Tensor<D>> {
        let (device, dtype) = (gradient.device(), gradient.dtype());
        if !is_cube(&device) || gradient.shape().num_elements() == 0 {
            return Some(gradient);
        }
        self.0.push((device, dtype, gradient.into_dispatch()));
        None
    }

    /// Adds the squares to `sum`, which goes from one device to the next.
    pub(super) fn add_to(self, mut sum: Option<Tensor<1>>) -> Option<Tensor<1>> {
        let alike = |a: &(Device, DType, _), b: &(Device, DType, _)| (&a.0, a.1) == (&b.0, b.1);
        for gradients in self.0.chunk_by(alike) {
            let device = &gradients[0].0;
            let tensors = cube_device(device).map_or(0, |device| most_tensors(&device.client()));
            for gradients in gradients.chunks(at_once(tensors)) {
                let before = match sum {
                    Some(sum) => sum.to_device(device),
                    None => Tensor::zeros([1], (device, DType::F32)),
                };
                let gradients = gradients.iter().map(|(_, _, gradient)| gradient.clone());
                let inputs = [before.into_dispatch()].into_iter().chain(gradients).collect();
                sum = run(AddSquares, inputs).pop().map(Tensor::from_dispatch);
            }
        }
        sum
    }
}

/// Adds the squares of gradients of one dtype to a sum in f32, the first input.
#[derive(Clone, Copy, Debug)]
struct AddSquares;

static COST: Cost = Cost {
    gpu_scratch: |call, _| 4 * (CUBES * call.inputs.len().saturating_sub(1)) as u64,
    ..Cost::new("kiln::add_squares")
};

impl Operation for AddSquares {
    const NAME: &'static str = "sum of squares";

    type Saved<B: KernelBackend> = ();

    fn forward<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>, _: &[bool]) -> Computed<B, ()> {
        Computed { outputs: B::run(self, inputs), saved: None }
    }

    fn gradient<B: KernelBackend>(&self, (): (), _: FloatTensor<B>, _: &[bool]) -> Vec<Option<FloatTensor<B>>> {
        vec![]
    }
}

impl Kernel for AddSquares {
    fn cost(&self) -> &'static Cost {
        &COST
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        let added = |sum, gradient| {
            let gradient = B::float_cast(gradient, FloatDType::F32);
            B::float_add(sum, B::float_sum(B::float_mul(gradient.clone(), gradient)))
        };
        inputs.into_iter().reduce(added).into_iter().collect()
    }

    fn cube(&self, device: &CubeDevice, inputs: &[(Shape, DType)]) -> Option<CubeKernel<Self>> {
        has(device, UNITS, inputs.len(), 4 * UNITS).then_some(|_, inputs| vec![launched(inputs)])
    }
}

/// The sums of squares of the parts of each gradient: `[gradients, CUBES]`.
#[cube(launch, address_type = "dynamic")]
fn sum_parts<X: Float>(
    gradients: Sequence<LinearView<'static, X>>,
    mut parts: LinearViewMut<'_, f32>,
    #[define(X)] _dtype: ElemType,
) {
    let mut sums = Shared::<[f32]>::new_slice(UNITS);
    let mut sum = 0.0f32;
    #[unroll]
    for index in 0..gradients.len() {
        if CUBE_POS_Y as usize == index {
            let gradient = gradients.index(index);
            let mut place = CUBE_POS_X as usize * UNITS + UNIT_POS as usize;
            while place < gradient.shape() {
                let value = f32::cast_from(gradient.read(place));
                sum += value * value;
                place += UNITS * CUBES;
            }
        }
    }
    let sum = total(sum, &mut sums, UNITS);
    if UNIT_POS == 0 {
        parts.write(CUBE_POS_Y as usize * CUBES + CUBE_POS_X as usize, sum);
    }
}

/// Adds the gradients' sums to a sum, one after the other, in one cube: the bits do not depend on how many are added at once.
#[cube(launch)]
fn add_parts(before: LinearView<'_, f32>, parts: LinearView<'_, f32>, mut after: LinearViewMut<'_, f32>, count: usize) {
    let mut sums = Shared::<[f32]>::new_slice(CUBES);
    let mut sum = before.read(0);
    let mut gradient = 0;
    while gradient < count {
        sum += total(parts.read(gradient * CUBES + UNIT_POS as usize), &mut sums, CUBES);
        gradient += 1;
    }
    if UNIT_POS == 0 {
        after.write(0, sum);
    }
}

fn launched(mut inputs: Vec<CubeTensor>) -> CubeTensor {
    let gradients = inputs.split_off(1);
    let before = inputs.remove(0);
    let (client, dtype, count) = (before.client.clone(), gradients[0].dtype, gradients.len());
    let parts = empty(&before, Shape::new([count, CUBES]), DType::F32);
    let address = gradients.iter().map(CubeTensor::required_address_type).max().unwrap_or_default();
    let mut arguments = SequenceArg::new();
    for gradient in gradients {
        arguments.push(into_contiguous(gradient).into_linear_view());
    }
    sum_parts::launch(
        &client,
        CubeCount::Static(CUBES as u32, count as u32, 1),
        CubeDim::new_1d(UNITS as u32),
        address,
        arguments,
        parts.clone().into_linear_view(),
        dtype_to_storage_type(dtype),
    );
    let after = empty(&before, Shape::new([1]), DType::F32);
    add_parts::launch(
        &client,
        CubeCount::Static(1, 1, 1),
        CubeDim::new_1d(CUBES as u32),
        before.into_linear_view(),
        parts.into_linear_view(),
        after.clone().into_linear_view(),
        count,
    );
    after
}

#[cfg(test)]
mod tests {
    use super::at_once;

    #[test]
    fn a_launch_has_as_many_gradients_as_a_device_takes() {
        assert_eq!([1023, 49, 30, 6, 0].map(at_once), [48, 48, 29, 5, 1]);
    }
}
