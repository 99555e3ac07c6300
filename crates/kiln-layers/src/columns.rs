//! Sums over all rows of a matrix in CubeCL, such as those of batch norm and of the gradient of a bias.
//!
//! A cube of units (a thread block) takes some columns of a group of rows. The groups' sums are added by a second launch. Sums are f32 and in
//! a fixed order.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Shape};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeDevice, cubecl};
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};
use kiln_operations::cube::{cubes, empty, has};

use crate::grid::{Grid, UNITS};

/// Rows and columns of a tensor whose rows are along the last dimension, which is not 0.
pub(crate) fn matrix(x: &CubeTensor) -> [usize; 2] {
    let shape = x.meta.shape();
    let columns = shape.last().copied().unwrap_or(1);
    [shape.num_elements() / columns, columns]
}

impl Grid {
    pub(crate) fn cubes(&self) -> CubeCount {
        CubeCount::Static(self.blocks as u32, self.groups as u32, 1)
    }

    pub(crate) fn units(&self) -> CubeDim {
        CubeDim::new_2d(self.lanes as u32, self.height as u32)
    }
}

/// Whether kernels of so many tensors run on a device. CubeCL's CPU runtime has few units.
pub(crate) fn takes(device: &CubeDevice, tensors: usize) -> bool {
    has(device, UNITS, tensors, 16 * UNITS)
}

/// The sum over the units of a cube that are above each other, the same in all of them. `sums` has a place for each unit.
#[cube]
pub(crate) fn above<N: Size>(
    value: Vector<f32, N>,
    sums: &mut Shared<[Vector<f32, N>]>,
    #[comptime] lanes: usize,
    #[comptime] height: usize,
) -> Vector<f32, N> {
    let unit = UNIT_POS as usize;
    let levels = comptime!(height.ilog2());
    sums[unit] = value;
    sync_cube();
    #[unroll]
    for level in 0..levels {
        let half = lanes * (height >> (level as usize + 1));
        if unit < half {
            let other = sums[unit + half];
            sums[unit] += other;
        }
        sync_cube();
    }
    let sum = sums[UNIT_POS_X as usize];
    sync_cube();
    sum
}

/// The sums of each group: `[groups, columns]`.
#[cube(launch, address_type = "dynamic")]
fn sum_groups<X: Float, N: Size>(
    x: LinearView<'_, Vector<X, N>>,
    mut parts: LinearViewMut<'_, Vector<f32, N>>,
    rows: usize,
    width: usize,
    share: usize,
    #[comptime] lanes: usize,
    #[comptime] height: usize,
    #[define(X)] _dtype: ElemType,
) {
    let mut sums = Shared::<[Vector<f32, N>]>::new_slice(lanes * height);
    let column = CUBE_POS_X as usize * lanes + UNIT_POS_X as usize;
    let group = CUBE_POS_Y as usize;
    let mut sum = Vector::<f32, N>::new(0.0f32);
    if column < width {
        let end = min((group + 1) * share, rows);
        let mut row = group * share + UNIT_POS_Y as usize;
        while row < end {
            sum += Vector::cast_from(x.read(row * width + column));
            row += height;
        }
    }
    let sum = above::<N>(sum, &mut sums, lanes, height);
    if UNIT_POS_Y == 0 && column < width {
        parts.write(group * width + column, sum);
    }
}

/// Adds the groups. A unit takes one vector of columns.
#[cube(launch, address_type = "dynamic")]
fn add_groups<P: Float, N: Size>(
    parts: LinearView<'_, Vector<f32, N>>,
    mut sums: LinearViewMut<'_, Vector<P, N>>,
    groups: usize,
    width: usize,
    #[define(P)] _dtype: ElemType,
) {
    let column = ABSOLUTE_POS;
    if column < width {
        let mut sum = Vector::<f32, N>::new(0.0f32);
        let mut group = 0;
        while group < groups {
            sum += parts.read(group * width + column);
            group += 1;
        }
        sums.write(column, Vector::cast_from(sum));
    }
}

/// The sum of each column, in `dtype`. Rows are along the last dimension. No dimension is 0.
pub(crate) fn sums(x: CubeTensor, dtype: DType) -> CubeTensor {
    let sums = empty(&x, Shape::new([matrix(&x)[1]]), dtype);
    write_sums(x, &sums);
    sums
}

/// Writes the sum of each column to `sums`. Rows are along the last dimension. No dimension is 0.
pub(crate) fn write_sums(x: CubeTensor, sums: &CubeTensor) {
    let x = into_contiguous(x);
    let (grid, client) = (Grid::of(matrix(&x)), x.client.clone());
    let parts = empty(&x, Shape::new([grid.groups, grid.columns()]), DType::F32);
    let address = x.required_address_type().max(parts.required_address_type());
    let x_dtype = dtype_to_storage_type(x.dtype);
    sum_groups::launch(
        &client,
        grid.cubes(),
        grid.units(),
        address,
        grid.vector,
        x.into_linear_view(),
        parts.clone().into_linear_view(),
        grid.rows,
        grid.width,
        grid.share,
        grid.lanes,
        grid.height,
        x_dtype,
    );
    write_sum_of_parts(parts, sums, grid.vector);
}

/// Writes the sum of parts `[parts, ..]` in f32, one after the other, to `sum`. `vector` divides the values of a part.
pub(crate) fn write_sum_of_parts(parts: CubeTensor, sum: &CubeTensor, vector: usize) {
    const AT_ONCE: usize = 64;
    let (client, count, width) = (parts.client.clone(), parts.meta.shape()[0], sum.meta.num_elements() / vector);
    add_groups::launch(
        &client,
        cubes(&client, width.div_ceil(AT_ONCE)),
        CubeDim::new_1d(AT_ONCE as u32),
        parts.required_address_type(),
        vector,
        parts.into_linear_view(),
        sum.clone().into_linear_view(),
        count,
        width,
        dtype_to_storage_type(sum.dtype),
    );
}
