//! The gradient of an embedding in CubeCL: a cube of units (a thread block) takes some rows of the weight, looks for their ids in the order of
//! the ids, and adds the gradients of those that it finds in f32. So nothing is added by atomic operations, and each row is written once.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::Shape;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeDevice, cubecl};
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};
use kiln_operations::cube::{cubes, empty, has};

/// Units of a cube.
const UNITS: usize = 256;
/// Ids that a unit looks at before the units of its cube add what they found.
const EACH: usize = 8;
/// The most values of the rows of a cube, which are summed in shared memory.
const VALUES: usize = 6144;
/// The most rows of a cube.
const ROWS: usize = 16;
/// Places of shared memory beside the sums of a cube's rows: what its units found, how much each did, and whether any did, in whole vectors.
const OTHERS: usize = UNITS * EACH + UNITS + 4;

/// Whether the kernel runs for rows of this width on a device. Those of CubeCL's CPU runtime have few units.
pub(super) fn takes(device: &CubeDevice, width: usize) -> bool {
    (1..=VALUES).contains(&width) && has(device, UNITS, 3, 4 * (width + OTHERS))
}

/// Rows of a cube on a device with so many bytes of shared memory.
fn rows_of_cube(width: usize, shared: usize) -> usize {
    let values = (shared / 4).saturating_sub(OTHERS).min(VALUES);
    (values / width).clamp(1, ROWS)
}

#[cube(launch, address_type = "dynamic")]
fn add_rows<E: Float, T: Int, N: Size>(
    gradient: LinearView<'_, Vector<E, N>>,
    ids: LinearView<'_, T>,
    mut result: LinearViewMut<'_, Vector<E, N>>,
    count: usize,
    rows: usize,
    #[comptime] width: usize,
    #[comptime] of_cube: usize,
    #[define(E, T)] _dtypes: [ElemType; 2],
) {
    let first = CUBE_POS * of_cube;
    if first >= rows {
        terminate!();
    }
    let mut sums = Shared::<[Vector<f32, N>]>::new_slice(of_cube * width);
    let mut found = Shared::<[u32]>::new_slice(UNITS * EACH);
    let mut counts = Shared::<[u32]>::new_slice(UNITS);
    // Set by units that found an id, for this round and the next.
    let mut any = Shared::<[u32]>::new_slice(2usize);
    let unit = UNIT_POS as usize;
    let end = min(first + of_cube, rows);
    let mut place = unit;
    while place < of_cube * width {
        sums[place] = Vector::new(0.0f32);
        place += UNITS;
    }
    if unit < 2 {
        any[unit] = 0u32;
    }
    sync_cube();
    let mut start = 0usize;
    let mut round = 0usize;
    while start < count {
        let begin = start + unit * EACH;
        let mut of_unit = 0u32;
        #[unroll]
        for index in 0..EACH {
            let position = begin + index;
            if position < count {
                let row = usize::cast_from(ids.read(position));
                if row >= first && row < end {
                    of_unit += 1;
                }
            }
        }
        counts[unit] = of_unit;
        if of_unit > 0 {
            any[round] = 1u32;
        }
        sync_cube();
        if any[round] > 0 {
            // Those of earlier units come first.
            if of_unit > 0 {
                let mut at = 0u32;
                for earlier in 0..unit {
                    at += counts[earlier];
                }
                #[unroll]
                for index in 0..EACH {
                    let position = begin + index;
                    if position < count {
                        let row = usize::cast_from(ids.read(position));
                        if row >= first && row < end {
                            found[at as usize] = u32::cast_from((position - start) * of_cube + row - first);
                            at += 1;
                        }
                    }
                }
            }
            let mut all = 0u32;
            for other in 0..UNITS {
                all += counts[other];
            }
            sync_cube();
            for index in 0..all {
                let entry = found[index as usize] as usize;
                let (position, row) = (start + entry / of_cube, entry % of_cube);
                let mut column = unit;
                while column < width {
                    let value = Vector::<f32, N>::cast_from(gradient.read(position * width + column));
                    sums[row * width + column] += value;
                    column += UNITS;
                }
            }
        }
        if unit == 0 {
            any[1 - round] = 0u32;
        }
        sync_cube();
        round = 1 - round;
        start += UNITS * EACH;
    }
    let mut place = unit;
    while place < (end - first) * width {
        result.write(first * width + place, Vector::cast_from(sums[place]));
        place += UNITS;
    }
}

/// The gradient of a weight with so many rows, from the gradient of its rows at the ids.
pub(super) fn gradient(gradient: CubeTensor, ids: CubeTensor, rows: usize) -> CubeTensor {
    let [gradient, ids] = [gradient, ids].map(into_contiguous);
    let [count, width]: [usize; 2] = gradient.meta.shape().dims();
    let result = empty(&gradient, Shape::new([rows, width]), gradient.dtype);
    let of_cube = rows_of_cube(width, result.client.properties().hardware.max_shared_memory_size);
    let vector = if width.is_multiple_of(4) { 4 } else { 1 };
    let dtypes = [gradient.dtype, ids.dtype].map(dtype_to_storage_type);
    add_rows::launch(
        &result.client,
        cubes(&result.client, rows.div_ceil(of_cube)),
        CubeDim::new_1d(UNITS as u32),
        gradient.required_address_type().max(result.required_address_type()),
        vector,
        gradient.clone().into_linear_view(),
        ids.into_linear_view(),
        result.clone().into_linear_view(),
        count,
        rows,
        width / vector,
        of_cube,
        dtypes,
    );
    result
}

#[cfg(test)]
mod tests {
    use super::{OTHERS, ROWS, VALUES, rows_of_cube};

    #[test]
    fn the_rows_of_a_cube_fit_into_shared_memory() {
        for width in [1, 300, 768, 1471, 5884] {
            assert_eq!(rows_of_cube(width, 48 << 10), (VALUES / width).min(ROWS), "as in more shared memory");
            for shared in [16 << 10, 32 << 10].into_iter().filter(|shared| *shared >= 4 * (width + OTHERS)) {
                assert!(4 * (rows_of_cube(width, shared) * width + OTHERS) <= shared, "{width} {shared}");
            }
        }
        assert_eq!(rows_of_cube(768, 32 << 10), 7);
    }
}
