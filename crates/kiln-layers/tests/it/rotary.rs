//! Rotary embedding compared with its definition.

use burn::tensor::{DType, Device, Tensor};
use kiln_layers::{RotaryOptions, RotaryPairs, rotary};

use crate::compare::{tensor, values};

#[test]
fn halves_are_adjacent_pairs_in_another_order_and_views_are_read_as_they_are() {
    let device = Device::flex();
    let whole = tensor([2, 10, 3, 8], 1, 1.0, DType::F32, &device);
    let x = whole.clone().swap_dims(1, 2);
    let options = RotaryOptions::new().with_theta(500.0);
    let adjacent = rotary(x.clone(), options).unwrap();
    // [.., 4, 2] to [.., 2, 4].
    let ordered = |x: Tensor<4>| x.reshape([2, 3, 10, 4, 2]).swap_dims(3, 4).reshape([2, 3, 10, 8]);
    let halves = rotary(ordered(x), options.with_pairs(RotaryPairs::Halves)).unwrap();
    assert_eq!(values(&ordered(adjacent)), values(&halves));
    // The input has not changed.
    assert_eq!(values(&whole), values(&tensor([2, 10, 3, 8], 1, 1.0, DType::F32, &device)));
    let empty = rotary(Tensor::<3>::zeros([0, 4, 8], &device), options).unwrap();
    assert_eq!(empty.dims(), [0, 4, 8]);
}

#[test]
fn rows_keep_their_length_and_products_depend_on_distances() {
    let device = Device::flex();
    let (q, k) = (tensor([1, 12], 1, 1.0, DType::F32, &device), tensor([1, 12], 2, 1.0, DType::F32, &device));
    let at =
        |x: &Tensor<2>, position: usize| rotary(x.clone(), RotaryOptions::new().with_first_position(position)).unwrap();
    let product = |i: usize, j: usize| values(&(at(&q, i) * at(&k, j)).sum())[0];
    assert!((product(7, 3) - product(1004, 1000)).abs() < 1e-5);
    assert!((product(7, 3) - product(7, 4)).abs() > 1e-3);
    let length = |x: &Tensor<2>| values(&x.clone().square().sum())[0];
    assert!((length(&at(&q, 99)) - length(&q)).abs() < 1e-5);
}

#[test]
fn mistakes_are_errors() {
    let device = Device::flex();
    let message =
        |shape: [usize; 2], options| rotary(Tensor::<2>::zeros(shape, &device), options).unwrap_err().to_string();
    let options = RotaryOptions::new();
    assert_eq!(message([2, 7], options), "the last dimension of the input is 7, expected an even number");
    assert_eq!(message([2, 8], options.with_theta(0.0)), "theta is 0, expected a positive number");
    let flat = rotary(Tensor::<1>::zeros([8], &device), options).unwrap_err().to_string();
    assert_eq!(flat, "the number of dimensions of the input is 1, expected at least 2, [.., time, depth]");
}
