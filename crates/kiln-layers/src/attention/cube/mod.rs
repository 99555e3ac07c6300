//! Attention in CubeCL, on tensor cores: one launch forward, two backward. Scores are in shared memory only.
//!
//! In f16 and bf16, without dropout, and with no mask but the causal one. Products are of 16 bits with sums in f32; scores, their exponentials
//! and logarithms are f32. Weights and the gradients of the scores are rounded to 16 bits for the products.

mod backward;
mod forward;
mod tiles;

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeDevice;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::permute;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::features::MmaConfig;
use cubecl::prelude::*;
use kiln_operations::cube::empty;

use super::cost::{TILE, on_tensor_cores};
use super::terms::{Settings, Sizes};
use backward::{keys_gradient, queries_gradient};
use forward::attend;
use tiles::{PLANE, PlaceLaunch};

/// Values that a unit reads at once.
const VECTOR: usize = 8;
/// The most shared memory that a kernel takes, which all devices with tensor cores for these dtypes have.
const SHARED: usize = 64 << 10;

/// Whether the kernels take heads of this depth and dtype on a device.
pub(super) fn takes(device: &CubeDevice, settings: &Settings, dtype: DType, depth: usize) -> bool {
    let client = device.client();
    let (properties, tile) = (client.properties(), TILE as u32);
    let of = dtype_to_storage_type(dtype);
    let sums = dtype_to_storage_type(DType::F32);
    let config = MmaConfig { a_type: of, b_type: of, cd_type: sums, m: tile, n: tile, k: tile };
    let hardware = &properties.hardware;
    settings.dropout == 0.0
        && settings.key_lengths.is_none()
        && on_tensor_cores(dtype, depth)
        && [hardware.plane_size_min, hardware.plane_size_max] == [PLANE as u32; 2]
        && hardware.max_shared_memory_size >= SHARED
        && properties.features.matmul.cmma.contains(&config)
}

/// Where the rows of heads begin, and the distances of samples, heads and rows, in values.
#[derive(Clone, Copy)]
struct Rows {
    base: usize,
    sample: usize,
    head: usize,
    row: usize,
}

impl Rows {
    /// Of `[samples, heads, rows, depth]`.
    fn of_heads(heads: usize, rows: usize, depth: usize) -> Self {
        Self { base: 0, sample: heads * rows * depth, head: rows * depth, row: depth }
    }

    /// Of part `part` of `[samples, rows, parts, heads, depth]`.
    fn of_part(part: usize, parts: usize, sizes: Sizes, rows: usize) -> Self {
        let width = sizes.heads * sizes.depth;
        Self { base: part * width, sample: rows * parts * width, head: sizes.depth, row: parts * width }
    }

    fn launch(self) -> PlaceLaunch {
        PlaceLaunch::new(self.base / VECTOR, self.sample / VECTOR, self.head / VECTOR, self.row / VECTOR)
    }
}

/// A tensor and the place of its rows.
type Placed = (CubeTensor, Rows);

/// One call of the kernels.
#[derive(Clone, Copy)]
struct Call {
    sizes: Sizes,
    causal: bool,
    scale: f32,
}

impl Call {
    fn packed(qkv: &CubeTensor, settings: &Settings) -> (Self, [Rows; 3]) {
        let (shape, heads) = (qkv.meta.shape(), settings.heads);
        let [samples, time] = [shape[0], shape[1]];
        let sizes = Sizes { samples, heads, kv_heads: heads, time, keys: time, depth: shape[2] / 3 / heads };
        let call = Self { sizes, causal: settings.causal, scale: settings.scale };
        (call, [0, 1, 2].map(|part| Rows::of_part(part, 3, sizes, time)))
    }

    fn grouped([queries, keys, _]: &[CubeTensor; 3], settings: &Settings) -> (Self, [Rows; 3]) {
        let ([samples, heads, time, depth], of_keys) = (queries.meta.shape().dims(), keys.meta.shape());
        let sizes = Sizes { samples, heads, kv_heads: of_keys[1], time, keys: of_keys[2], depth };
        let of_keys = Rows::of_heads(sizes.kv_heads, sizes.keys, depth);
        let call = Self { sizes, causal: settings.causal, scale: settings.scale };
        (call, [Rows::of_heads(heads, time, depth), of_keys, of_keys])
    }

    /// Planes of a cube: as many as the shared memory of all devices has room for.
    fn planes(&self) -> usize {
        if self.sizes.depth <= 64 { 4 } else { 2 }
    }

    /// The cubes for rows of heads, and their units.
    fn grid(&self, heads: usize, rows: usize) -> (CubeCount, CubeDim) {
        let cubes =
            CubeCount::Static(rows.div_ceil(self.planes() * TILE) as u32, (self.sizes.samples * heads) as u32, 1);
        (cubes, CubeDim::new_2d(PLANE as u32, self.planes() as u32))
    }

    /// The output as `[samples, time, heads, depth]`, and the logarithms of the sums.
    fn forward(&self, [queries, keys, values]: [Placed; 3]) -> [CubeTensor; 2] {
        let Sizes { samples, heads, kv_heads, time, keys: count, depth } = self.sizes;
        let like = queries.0.clone();
        let output = empty(&like, Shape::new([samples, time, heads, depth]), like.dtype);
        let log_sums = empty(&like, Shape::new([samples, heads, time]), DType::F32);
        let (cubes, units) = self.grid(heads, time);
        attend::launch(
            &like.client,
            cubes,
            units,
            like.required_address_type().max(keys.0.required_address_type()),
            VECTOR,
            queries.0.into_linear_view(),
            keys.0.into_linear_view(),
            values.0.into_linear_view(),
            output.clone().into_linear_view(),
            log_sums.clone().into_linear_view(),
            queries.1.launch(),
            keys.1.launch(),
            values.1.launch(),
            Rows::of_part(0, 1, self.sizes, time).launch(),
            heads,
            kv_heads,
            time,
            count,
            self.scale,
            self.causal,
            depth,
            self.planes(),
            dtype_to_storage_type(like.dtype),
        );
        [output, log_sums]
    }

    /// Writes the gradients of queries, keys and values to the last three tensors. Output and gradient follow the inputs.
    fn backward(&self, inputs: [Placed; 5], log_sums: CubeTensor, results: [Placed; 3]) {
        let Sizes { samples, heads, kv_heads, time, keys: count, depth } = self.sizes;
        let [queries, keys, values, output, gradient] = inputs;
        let [of_queries, of_keys, of_values] = results;
        let like = queries.0.clone();
        // The second launch reads what the first one writes, so that neither counts as done without the other.
        let of_outputs = empty(&like, Shape::new([samples, heads, time]), DType::F32);
        let address = like.required_address_type().max(keys.0.required_address_type());
        let dtype = dtype_to_storage_type(like.dtype);
        let (cubes, units) = self.grid(heads, time);
        queries_gradient::launch(
            &like.client,
            cubes,
            units,
            address,
            VECTOR,
            queries.0.clone().into_linear_view(),
            keys.0.clone().into_linear_view(),
            values.0.clone().into_linear_view(),
            output.0.into_linear_view(),
            gradient.0.clone().into_linear_view(),
            log_sums.clone().into_linear_view(),
            of_queries.0.into_linear_view(),
            of_outputs.clone().into_linear_view(),
            queries.1.launch(),
            keys.1.launch(),
            values.1.launch(),
            output.1.launch(),
            gradient.1.launch(),
            of_queries.1.launch(),
            heads,
            kv_heads,
            time,
            count,
            self.scale,
            self.causal,
            depth,
            self.planes(),
            dtype,
        );
        let (cubes, units) = self.grid(kv_heads, count);
        keys_gradient::launch(
            &like.client,
            cubes,
            units,
            address,
            VECTOR,
            queries.0.into_linear_view(),
            keys.0.into_linear_view(),
            values.0.into_linear_view(),
            gradient.0.into_linear_view(),
            log_sums.into_linear_view(),
            of_outputs.into_linear_view(),
            of_keys.0.into_linear_view(),
            of_values.0.into_linear_view(),
            queries.1.launch(),
            keys.1.launch(),
            values.1.launch(),
            gradient.1.launch(),
            of_keys.1.launch(),
            of_values.1.launch(),
            heads,
            kv_heads,
            time,
            count,
            self.scale,
            self.causal,
            depth,
            self.planes(),
            dtype,
        );
    }
}

/// The same tensor at three places.
fn thrice(tensor: &CubeTensor, places: [Rows; 3]) -> [Placed; 3] {
    places.map(|place| (tensor.clone(), place))
}

pub(super) fn packed_forward(qkv: CubeTensor, settings: &Settings) -> [CubeTensor; 2] {
    let qkv = into_contiguous(qkv);
    let (call, places) = Call::packed(&qkv, settings);
    let Sizes { samples, time, heads, depth, .. } = call.sizes;
    let [output, log_sums] = call.forward(thrice(&qkv, places));
    let shape = Shape::new([samples, time, heads * depth]);
    [CubeTensor::new_contiguous(output.client, output.device, shape, output.handle, output.dtype), log_sums]
}

/// The gradient of packed inputs, from these, output, logarithms of sums, and the output's gradient.
pub(super) fn packed_backward(inputs: [CubeTensor; 4], settings: &Settings) -> CubeTensor {
    let [qkv, output, log_sums, gradient] = inputs.map(into_contiguous);
    let (call, places) = Call::packed(&qkv, settings);
    let result = empty(&qkv, qkv.meta.shape().clone(), qkv.dtype);
    let rows = Rows::of_part(0, 1, call.sizes, call.sizes.time);
    let [queries, keys, values] = thrice(&qkv, places);
    call.backward([queries, keys, values, (output, rows), (gradient, rows)], log_sums, thrice(&result, places));
    result
}

pub(super) fn grouped_forward(inputs: [CubeTensor; 3], settings: &Settings) -> [CubeTensor; 2] {
    let inputs = inputs.map(into_contiguous);
    let (call, [queries, keys, values]) = Call::grouped(&inputs, settings);
    let [q, k, v] = inputs;
    let [output, log_sums] = call.forward([(q, queries), (k, keys), (v, values)]);
    [permute(output, &[0, 2, 1, 3]), log_sums]
}

/// The gradients of queries, keys and values, from these, output, logarithms of sums, and the output's gradient.
pub(super) fn grouped_backward(inputs: [CubeTensor; 6], settings: &Settings) -> [CubeTensor; 3] {
    let [q, k, v, output, log_sums, gradient] = inputs;
    // The forward pass stored its output so.
    let output = into_contiguous(permute(output, &[0, 2, 1, 3]));
    let [q, k, v, log_sums, gradient] = [q, k, v, log_sums, gradient].map(into_contiguous);
    let inputs = [q, k, v];
    let (call, [queries, keys, values]) = Call::grouped(&inputs, settings);
    let of_output = Rows::of_part(0, 1, call.sizes, call.sizes.time);
    let results = inputs.each_ref().map(|input| empty(input, input.meta.shape().clone(), input.dtype));
    let [q, k, v] = inputs;
    let [of_q, of_k, of_v] = results.clone();
    call.backward(
        [(q, queries), (k, keys), (v, values), (output, of_output), (gradient, queries)],
        log_sums,
        [(of_q, queries), (of_k, keys), (of_v, values)],
    );
    results
}
