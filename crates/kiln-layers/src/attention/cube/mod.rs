//! Attention in CubeCL: one launch forward, two backward. Scores are in shared memory only.
//!
//! On tensor cores, the factors of products have 16 bits, or the 11 bits of TF32 for tensors in f32; so weights and the gradients of the
//! scores are rounded to them. Sums, scores, their exponentials and logarithms are f32. Where a device has no tensor cores for a dtype,
//! units multiply in f32.

mod backward;
mod forward;
mod pairs;
mod sums;
mod tiles;

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeDevice;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::permute;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::features::MmaConfig;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;
use kiln_operations::Gpu;
use kiln_operations::cube::{empty, has};

use super::cost::{PLANE, SHARED, TILE, has_kernels};
use super::terms::{Settings, Sizes};
use backward::{keys_gradient, queries_gradient};
use forward::attend;
use pairs::Terms;
use tiles::{Form, PlaceLaunch};

/// Bytes that a unit reads at once.
const VECTOR: usize = 16;
/// The most planes of a cube.
const PLANES: usize = 4;
/// The most tensors of a kernel, with lengths, mask and seed.
const TENSORS: usize = 11;

/// Whether the kernels take heads of this depth and dtype on a device.
pub(super) fn takes(device: &CubeDevice, dtype: DType, depth: usize) -> bool {
    // Predictions take for granted that a device with such planes has units and tensors enough.
    has_kernels(&Gpu::of_cube(device), dtype, depth) && has(device, PLANES * PLANE, TENSORS, SHARED)
}

/// The dtype of products on a device, and the columns of a factor's tile on its tensor cores: 0 if there are none.
fn products(like: &CubeTensor) -> (ElemType, usize) {
    let dtype = dtype_to_storage_type(like.dtype);
    let (of, inner) = if like.dtype == DType::F32 { (ElemType::Float(FloatKind::TF32), 8) } else { (dtype, TILE) };
    let sums = dtype_to_storage_type(DType::F32);
    let (m, k) = (TILE as u32, inner as u32);
    let config = MmaConfig { a_type: of, b_type: of, cd_type: sums, m, n: m, k };
    match like.client.properties().features.matmul.cmma.contains(&config) {
        true => (of, inner),
        false => (dtype, 0),
    }
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

    fn launch(self, vector: usize) -> PlaceLaunch {
        PlaceLaunch::new(self.base / vector, self.sample / vector, self.head / vector, self.row / vector)
    }
}

/// A tensor and the place of its rows.
type Placed = (CubeTensor, Rows);

/// One call of the kernels.
struct Call {
    sizes: Sizes,
    scale: f32,
    form: Form,
    terms: Terms,
    /// The dtypes of tensors, products and boolean mask.
    dtypes: [ElemType; 3],
    /// Values of a vector.
    vector: usize,
}

impl Call {
    fn new(like: &CubeTensor, sizes: Sizes, settings: &Settings, masks: Vec<CubeTensor>) -> Self {
        let (products, inner) = products(like);
        let terms = Terms::new(settings, masks, like);
        let dtypes = [dtype_to_storage_type(like.dtype), products, dtype_to_storage_type(terms.dtype())];
        // As many planes as the shared memory of all devices has room for.
        let planes = (if sizes.depth <= 64 { 8 } else { 4 }) / like.dtype.size();
        let windowed = settings.window.is_some();
        let form = Form { causal: settings.causal, windowed, depth: sizes.depth, planes, inner };
        Self { sizes, scale: settings.scale, form, terms, dtypes, vector: VECTOR / like.dtype.size() }
    }

    fn packed(qkv: &CubeTensor, settings: &Settings, masks: Vec<CubeTensor>) -> (Self, [Rows; 3]) {
        let (shape, heads) = (qkv.meta.shape(), settings.heads);
        let [samples, time] = [shape[0], shape[1]];
        let sizes = Sizes { samples, heads, kv_heads: heads, time, keys: time, depth: shape[2] / 3 / heads };
        (Self::new(qkv, sizes, settings, masks), [0, 1, 2].map(|part| Rows::of_part(part, 3, sizes, time)))
    }

    fn grouped([queries, keys, _]: &[CubeTensor; 3], settings: &Settings, masks: Vec<CubeTensor>) -> (Self, [Rows; 3]) {
        let ([samples, heads, time, depth], of_keys) = (queries.meta.shape().dims(), keys.meta.shape());
        let sizes = Sizes { samples, heads, kv_heads: of_keys[1], time, keys: of_keys[2], depth };
        let of_keys = Rows::of_heads(sizes.kv_heads, sizes.keys, depth);
        (Self::new(queries, sizes, settings, masks), [Rows::of_heads(heads, time, depth), of_keys, of_keys])
    }

    /// The cubes for rows of heads, and their units.
    fn grid(&self, heads: usize, rows: usize) -> (CubeCount, CubeDim) {
        let cubes = CubeCount::Static(rows.div_ceil(self.form.rows()) as u32, (self.sizes.samples * heads) as u32, 1);
        (cubes, CubeDim::new_2d(PLANE as u32, self.form.planes as u32))
    }

    /// The output as `[samples, time, heads, depth]`, and the logarithms of the sums.
    fn forward(&self, [queries, keys, values]: [Placed; 3]) -> [CubeTensor; 2] {
        let Sizes { samples, heads, kv_heads, time, keys: count, depth } = self.sizes;
        let like = queries.0.clone();
        let output = empty(&like, Shape::new([samples, time, heads, depth]), like.dtype);
        let log_sums = empty(&like, Shape::new([samples, heads, time]), DType::F32);
        let (cubes, units) = self.grid(heads, time);
        let place = |rows: Rows| rows.launch(self.vector);
        attend::launch(
            &like.client,
            cubes,
            units,
            like.required_address_type().max(keys.0.required_address_type()),
            self.vector,
            queries.0.into_linear_view(),
            keys.0.into_linear_view(),
            values.0.into_linear_view(),
            output.clone().into_linear_view(),
            log_sums.clone().into_linear_view(),
            place(queries.1),
            place(keys.1),
            place(values.1),
            place(Rows::of_part(0, 1, self.sizes, time)),
            self.terms.launch(),
            heads,
            kv_heads,
            time,
            count,
            self.scale,
            self.form,
            self.dtypes,
        );
        [output, log_sums]
    }

    /// Writes the gradients of queries, keys and values to the last three tensors. Output and gradient follow the inputs.
    fn backward(&self, inputs: [Placed; 5], log_sums: CubeTensor, results: [Placed; 3]) {
        let Sizes { samples, heads, kv_heads, time, keys: count, .. } = self.sizes;
        let [queries, keys, values, output, gradient] = inputs;
        let [of_queries, of_keys, of_values] = results;
        let like = queries.0.clone();
        // The second launch reads what the first one writes, so that neither counts as done without the other.
        let of_outputs = empty(&like, Shape::new([samples, heads, time]), DType::F32);
        let address = like.required_address_type().max(keys.0.required_address_type());
        let place = |rows: Rows| rows.launch(self.vector);
        let (cubes, units) = self.grid(heads, time);
        queries_gradient::launch(
            &like.client,
            cubes,
            units,
            address,
            self.vector,
            queries.0.clone().into_linear_view(),
            keys.0.clone().into_linear_view(),
            values.0.clone().into_linear_view(),
            output.0.into_linear_view(),
            gradient.0.clone().into_linear_view(),
            log_sums.clone().into_linear_view(),
            of_queries.0.into_linear_view(),
            of_outputs.clone().into_linear_view(),
            place(queries.1),
            place(keys.1),
            place(values.1),
            place(output.1),
            place(gradient.1),
            place(of_queries.1),
            self.terms.launch(),
            heads,
            kv_heads,
            time,
            count,
            self.scale,
            self.form,
            self.dtypes,
        );
        let (cubes, units) = self.grid(kv_heads, count);
        keys_gradient::launch(
            &like.client,
            cubes,
            units,
            address,
            self.vector,
            queries.0.into_linear_view(),
            keys.0.into_linear_view(),
            values.0.into_linear_view(),
            gradient.0.into_linear_view(),
            log_sums.into_linear_view(),
            of_outputs.into_linear_view(),
            of_keys.0.into_linear_view(),
            of_values.0.into_linear_view(),
            place(queries.1),
            place(keys.1),
            place(values.1),
            place(gradient.1),
            place(of_keys.1),
            place(of_values.1),
            self.terms.launch(),
            heads,
            kv_heads,
            time,
            count,
            self.scale,
            self.form,
            self.dtypes,
        );
    }
}

/// The same tensor at three places.
fn thrice(tensor: &CubeTensor, places: [Rows; 3]) -> [Placed; 3] {
    places.map(|place| (tensor.clone(), place))
}

pub(super) fn packed_forward(qkv: CubeTensor, settings: &Settings, masks: Vec<CubeTensor>) -> [CubeTensor; 2] {
    let qkv = into_contiguous(qkv);
    let (call, places) = Call::packed(&qkv, settings, masks);
    let Sizes { samples, time, heads, depth, .. } = call.sizes;
    let [output, log_sums] = call.forward(thrice(&qkv, places));
    let shape = Shape::new([samples, time, heads * depth]);
    [CubeTensor::new_contiguous(output.client, output.device, shape, output.handle, output.dtype), log_sums]
}

/// The gradient of packed inputs, from these, output, logarithms of sums, and the output's gradient.
pub(super) fn packed_backward(inputs: [CubeTensor; 4], settings: &Settings, masks: Vec<CubeTensor>) -> CubeTensor {
    let [qkv, output, log_sums, gradient] = inputs.map(into_contiguous);
    let (call, places) = Call::packed(&qkv, settings, masks);
    let result = empty(&qkv, qkv.meta.shape().clone(), qkv.dtype);
    let rows = Rows::of_part(0, 1, call.sizes, call.sizes.time);
    let [queries, keys, values] = thrice(&qkv, places);
    call.backward([queries, keys, values, (output, rows), (gradient, rows)], log_sums, thrice(&result, places));
    result
}

pub(super) fn grouped_forward(inputs: [CubeTensor; 3], settings: &Settings, masks: Vec<CubeTensor>) -> [CubeTensor; 2] {
    let inputs = inputs.map(into_contiguous);
    let (call, [queries, keys, values]) = Call::grouped(&inputs, settings, masks);
    let [q, k, v] = inputs;
    let [output, log_sums] = call.forward([(q, queries), (k, keys), (v, values)]);
    [permute(output, &[0, 2, 1, 3]), log_sums]
}

/// The gradients of queries, keys and values, from these, output, logarithms of sums, and the output's gradient.
pub(super) fn grouped_backward(
    inputs: [CubeTensor; 6],
    settings: &Settings,
    masks: Vec<CubeTensor>,
) -> [CubeTensor; 3] {
    let [q, k, v, output, log_sums, gradient] = inputs;
    // The forward pass stored its output so.
    let output = into_contiguous(permute(output, &[0, 2, 1, 3]));
    let [q, k, v, log_sums, gradient] = [q, k, v, log_sums, gradient].map(into_contiguous);
    let inputs = [q, k, v];
    let (call, [queries, keys, values]) = Call::grouped(&inputs, settings, masks);
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
