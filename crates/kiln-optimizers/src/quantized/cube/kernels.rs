//! The kernels. A cube handles blocks one after the other, and a unit handles two neighbouring values of a block.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::{empty_device_contiguous_dtype, empty_device_dtype};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewLaunch, LinearViewMut};

use super::super::options::{AdamWRule, MomentumRule};
use super::codes::{
    Codes, CodesLaunch, LANES, NoiseKey, NoiseKeyLaunch, product, put_largest, reduce_largest, table, table_length,
};
use crate::blocks::{CodeBook, Noise};
use crate::fused::Betas;

/// Units of a cube for the largest blocks.
pub(super) const MOST_UNITS: usize = 128;
/// The most tensors of a kernel: those of AdamW.
pub(super) const TENSORS: usize = 12;
/// The most bytes of shared memory: the tables of two books of 256 entries, and the largest values of both moments.
pub(super) const SHARED: usize = 4 * 2 * (2 * 256 + MOST_UNITS);

/// The most cubes: enough for all multiprocessors of large GPUs, and few enough that each reads the tables for several blocks.
const MOST_CUBES: usize = 4096;

/// The arguments that all updates have in common.
pub(super) struct Launch {
    pub(super) parameter: CubeTensor,
    pub(super) gradient: CubeTensor,
    pub(super) tables: CubeTensor,
    pub(super) noise: Option<Noise>,
}

/// A moment.
pub(super) struct Moment {
    pub(super) book: CodeBook,
    pub(super) codes: CubeTensor,
    pub(super) scales: CubeTensor,
}

impl Launch {
    pub(super) fn adamw(
        self,
        (rule, scale): (AdamWRule, f32),
        [first, second]: [Moment; 2],
    ) -> (CubeTensor, [Moment; 2]) {
        let (client, count, dim, address) = self.geometry(&first);
        let dtypes = [self.parameter.dtype, self.gradient.dtype].map(dtype_to_storage_type);
        let (next, next_view) = next_values(&self.parameter);
        let (next_first, first, next_first_codes) = first.split(2);
        let (next_second, second, next_second_codes) = second.split(4);
        let Betas { first: beta_1, second: beta_2 } = rule.betas;
        adamw::launch(
            &client,
            count,
            dim,
            address,
            self.parameter.into_linear_view(),
            self.gradient.into_linear_view(),
            first,
            second,
            self.tables.into_buffer_arg(),
            next_view,
            next_first_codes,
            next_second_codes,
            AdamWSettingsLaunch::new(
                beta_1,
                1.0 - beta_1,
                beta_2,
                1.0 - beta_2,
                rule.epsilon,
                rule.keep,
                rule.rate,
                rule.root,
                scale,
            ),
            key(self.noise),
            key(self.noise.map(Noise::other)),
            self.noise.is_some(),
            dtypes,
        );
        (next, [next_first, next_second])
    }

    pub(super) fn momentum(self, (rule, scale): (MomentumRule, f32), moment: Moment) -> (CubeTensor, Moment) {
        let (client, count, dim, address) = self.geometry(&moment);
        let dtypes = [self.parameter.dtype, self.gradient.dtype].map(dtype_to_storage_type);
        let (next, next_view) = next_values(&self.parameter);
        let (next_moment, moment, next_codes) = moment.split(2);
        momentum::launch(
            &client,
            count,
            dim,
            address,
            self.parameter.into_linear_view(),
            self.gradient.into_linear_view(),
            moment,
            self.tables.into_buffer_arg(),
            next_view,
            next_codes,
            MomentumSettingsLaunch::new(rule.penalty.unwrap_or(0.0), rule.factor, rule.share, rule.rate, scale),
            key(self.noise),
            rule.penalty.is_some(),
            rule.nesterov,
            self.noise.is_some(),
            dtypes,
        );
        (next, next_moment)
    }

    fn geometry(&self, moment: &Moment) -> (Client, CubeCount, CubeDim, AddressType) {
        let blocks = moment.scales.meta.shape().num_elements();
        let address = self.parameter.required_address_type().max(self.gradient.required_address_type());
        let cubes = CubeCount::Static(blocks.min(MOST_CUBES) as u32, 1, 1);
        (self.parameter.client.clone(), cubes, CubeDim::new_1d((moment.book.block() / LANES) as u32), address)
    }
}

/// The parameter's next value and the kernel's argument for it. The parameter, which is the first of the kernel's tensors, is overwritten
/// if no other handle to it exists.
fn next_values(parameter: &CubeTensor) -> (CubeTensor, LinearViewLaunch) {
    match parameter.can_mut() && parameter.is_nonoverlapping() {
        true => (parameter.clone(), parameter.as_linear_view_alias(0)),
        false => {
            let (client, device) = (parameter.client.clone(), parameter.device.clone());
            let next = empty_device_dtype(client, device, parameter.meta.shape().clone(), parameter.dtype);
            (next.clone(), next.into_linear_view())
        }
    }
}

impl Moment {
    /// The next moment, and the kernel's arguments for the old and the new one. `position` is the index of the codes among the kernel's
    /// tensors; the scales follow them.
    fn split(self, position: usize) -> (Self, CodesLaunch, CodesLaunch) {
        let book = self.book;
        let (codes, scales) = (into_contiguous(self.codes), into_contiguous(self.scales));
        let (next_codes, codes_argument) = next_buffer(&codes, position);
        let (next_scales, scales_argument) = next_buffer(&scales, position + 1);
        (
            Self { book, codes: next_codes, scales: next_scales },
            CodesLaunch::new(codes.into_buffer_arg(), scales.into_buffer_arg(), book),
            CodesLaunch::new(codes_argument, scales_argument, book),
        )
    }
}

/// The next value of a contiguous tensor and the kernel's argument for it. The tensor is overwritten if no other handle to it exists.
fn next_buffer(tensor: &CubeTensor, position: usize) -> (CubeTensor, BufferArg) {
    let shape = tensor.meta.shape().clone();
    match tensor.can_mut() {
        true => (tensor.clone(), BufferArg::alias(position, shape.num_elements())),
        false => {
            let (client, device) = (tensor.client.clone(), tensor.device.clone());
            let next = empty_device_contiguous_dtype(client, device, shape, tensor.dtype);
            (next.clone(), next.into_buffer_arg())
        }
    }
}

fn key(noise: Option<Noise>) -> NoiseKeyLaunch {
    let (key, stream) = noise.map(Noise::words).unwrap_or_default();
    NoiseKeyLaunch::new(key, stream)
}

/// The numbers of [`AdamWRule`], and that which multiplies the gradient. `rest` is 1 minus a beta.
#[derive(CubeType, CubeLaunch)]
struct AdamWSettings {
    beta_1: f32,
    rest_1: f32,
    beta_2: f32,
    rest_2: f32,
    epsilon: f32,
    keep: f32,
    rate: f32,
    root: f32,
    scale: f32,
}

#[cube(launch, address_type = "dynamic")]
fn adamw<P: Float, G: Float>(
    parameter: LinearView<'_, P>,
    gradient: LinearView<'_, G>,
    first: Codes,
    second: Codes,
    tables: &[f32],
    mut next: LinearViewMut<'_, P>,
    mut next_first: Codes,
    mut next_second: Codes,
    rule: AdamWSettings,
    first_noise: NoiseKey,
    second_noise: NoiseKey,
    #[comptime] is_random: bool,
    #[define(P, G)] _dtypes: [ElemType; 2],
) {
    let size = comptime!(first.book.block());
    let units = comptime!(size / LANES);
    let first_length = comptime!(table_length(first.book));
    let first_table = table(tables, 0usize, first_length);
    let second_table = table(tables, first_length, comptime!(table_length(second.book)));
    let mut largest = Shared::<[u32]>::new_slice(comptime!(2 * units));
    sync_cube();

    let count = gradient.shape();
    // The buffer of the scales may be longer than they are.
    let blocks = count.div_ceil(size);
    let mut block = CUBE_POS;
    while block < blocks {
        let place = block * size + UNIT_POS as usize * LANES;
        let mut m = Array::<f32>::new(LANES);
        let mut v = Array::<f32>::new(LANES);
        first.decode(&first_table, block, place, count, &mut m);
        second.decode(&second_table, block, place, count, &mut v);
        #[unroll]
        for lane in 0..LANES {
            let p = f32::cast_from(parameter.read_checked(place + lane));
            let g = product(f32::cast_from(gradient.read_checked(place + lane)), rule.scale);
            m[lane] = product(m[lane], rule.beta_1) + product(g, rule.rest_1);
            v[lane] = product(v[lane], rule.beta_2) + product(product(g, g), rule.rest_2);
            let denominator = product(v[lane].sqrt(), rule.root) + rule.epsilon;
            let delta = product(m[lane], rule.rate) / denominator;
            next.write_checked(place + lane, P::cast_from(product(p, rule.keep) - delta));
        }
        put_largest(&m, &mut largest, 0usize);
        put_largest(&v, &mut largest, units);
        reduce_largest(&mut largest, 2usize, units);
        next_first.encode(&first_table, block, place, count, &m, largest[0], &first_noise, is_random);
        next_second.encode(&second_table, block, place, count, &v, largest[units], &second_noise, is_random);
        sync_cube();
        block += CUBE_COUNT;
    }
}

/// The numbers of [`MomentumRule`], and that which multiplies the gradient.
#[derive(CubeType, CubeLaunch)]
struct MomentumSettings {
    penalty: f32,
    factor: f32,
    share: f32,
    rate: f32,
    scale: f32,
}

#[cube(launch, address_type = "dynamic")]
fn momentum<P: Float, G: Float>(
    parameter: LinearView<'_, P>,
    gradient: LinearView<'_, G>,
    moment: Codes,
    tables: &[f32],
    mut next: LinearViewMut<'_, P>,
    mut next_moment: Codes,
    rule: MomentumSettings,
    noise: NoiseKey,
    #[comptime] has_penalty: bool,
    #[comptime] nesterov: bool,
    #[comptime] is_random: bool,
    #[define(P, G)] _dtypes: [ElemType; 2],
) {
    let size = comptime!(moment.book.block());
    let units = comptime!(size / LANES);
    let book = table(tables, 0usize, comptime!(table_length(moment.book)));
    let mut largest = Shared::<[u32]>::new_slice(units);
    sync_cube();

    let count = gradient.shape();
    // The buffer of the scales may be longer than they are.
    let blocks = count.div_ceil(size);
    let mut block = CUBE_POS;
    while block < blocks {
        let place = block * size + UNIT_POS as usize * LANES;
        let mut v = Array::<f32>::new(LANES);
        moment.decode(&book, block, place, count, &mut v);
        #[unroll]
        for lane in 0..LANES {
            let p = f32::cast_from(parameter.read_checked(place + lane));
            let plain = product(f32::cast_from(gradient.read_checked(place + lane)), rule.scale);
            let g = if comptime!(has_penalty) { product(p, rule.penalty) + plain } else { plain };
            v[lane] = product(g, rule.share) + product(v[lane], rule.factor);
            let delta = if comptime!(nesterov) { product(v[lane], rule.factor) + g } else { v[lane] };
            next.write_checked(place + lane, P::cast_from(p - product(delta, rule.rate)));
        }
        put_largest(&v, &mut largest, 0usize);
        reduce_largest(&mut largest, 1usize, units);
        next_moment.encode(&book, block, place, count, &v, largest[0], &noise, is_random);
        sync_cube();
        block += CUBE_COUNT;
    }
}
