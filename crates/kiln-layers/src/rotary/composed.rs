//! Rotary position embedding in a backend's own operations.
//!
//! Peak memory in addition to input and output: cosines and sines, `time depth` values of f32, which are computed on the host and copied
//! to the device in each call; both halves of the result in its dtype. If burn does not fuse (its feature `fusion`), also two f32 tensors
//! of half the input's size.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{Shape, TensorData};

use super::settings::Direction;
use super::{RotaryOptions, RotaryPairs};
use crate::composed::{Wide, cat, slice};

pub(super) fn rotated<B: Backend>(x: FloatTensor<B>, options: RotaryOptions, direction: Direction) -> FloatTensor<B> {
    let (shape, dtype, device) = (x.shape(), x.dtype(), x.device());
    let [time, depth] = [shape[shape.num_dims() - 2], shape[shape.num_dims() - 1]];
    if shape.num_elements() == 0 {
        return x;
    }
    let (rows, pairs) = (shape.num_elements() / (time * depth), depth / 2);
    // The dimension along which the two values of a pair lie.
    let (dim, split, angles) = match options.pairs {
        RotaryPairs::Adjacent => (3, [rows, time, pairs, 2], [1, time, pairs, 1]),
        RotaryPairs::Halves => (2, [rows, time, 2, pairs], [1, time, 1, pairs]),
    };
    let table = |function: fn(f64) -> f64| {
        let values = (0..time * pairs).map(|index| function(options.angle(index / pairs, index % pairs, depth)) as f32);
        let data = TensorData::new(values.collect::<Vec<f32>>(), angles);
        Wide::<B>::of(&B::float_from_data(data, &device))
    };
    let (cosines, sines) = (table(f64::cos), table(f64::sin));
    let sines = if direction == Direction::Back { -sines } else { sines };
    let x = B::float_reshape(x, Shape::new(split));
    let [first, second] = [0, 1].map(|part| {
        let mut ranges = split.map(|length| 0..length);
        ranges[dim] = part..part + 1;
        slice::<B>(&x, &ranges)
    });
    let wide = |part| Wide::<B>::of(part);
    let left = wide(&first) * cosines.clone() - wide(&second) * sines.clone();
    let right = wide(&first) * sines + wide(&second) * cosines;
    B::float_reshape(cat::<B>(vec![left.narrow(dtype), right.narrow(dtype)], dim), shape)
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::backend::Flex;

    use super::rotated;
    use crate::composed::tests::{DTYPES, assert_close, numbers};
    use crate::rotary::graph::RotaryKernels;
    use crate::rotary::settings::Direction;
    use crate::rotary::{RotaryOptions, RotaryPairs};

    #[test]
    fn as_the_kernels() {
        for dtype in DTYPES {
            for shape in [[0, 2, 3, 4], [1, 1, 1, 2], [2, 3, 7, 10]] {
                for pairs in [RotaryPairs::Adjacent, RotaryPairs::Halves] {
                    for direction in [Direction::Forward, Direction::Back] {
                        let options = RotaryOptions::new().with_first_position(5).with_pairs(pairs);
                        let x = numbers(shape, 1, 2.0, dtype);
                        let kernel = Flex::rotated(x.clone(), options, direction);
                        let what = format!("{dtype:?} {shape:?} {pairs:?} {direction:?}");
                        assert_close(&rotated::<Flex>(x, options, direction), &kernel, &what);
                    }
                }
            }
        }
    }
}
