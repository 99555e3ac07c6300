//! Softmax of extreme values.

use burn::tensor::{Device, Tensor};
use kiln_layers::softmax;

use crate::compare::values;

#[test]
fn empty_inputs_and_extreme_values_are_taken() {
    let device = Device::flex();
    assert_eq!(softmax(Tensor::<2>::zeros([0, 5], &device)).unwrap().dims(), [0, 5]);
    assert_eq!(softmax(Tensor::<2>::zeros([5, 0], &device)).unwrap().dims(), [5, 0]);
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let rows = [[1e30, -1e30, 0.0], [-inf, 0.0, 0.0], [inf, 0.0, 1.0], [-inf, -inf, -inf], [nan, 0.0, 1.0]];
    let y = values(&softmax(Tensor::<2>::from_floats(rows, &device)).unwrap());
    assert_eq!(y[..6], [1.0, 0.0, 0.0, 0.0, 0.5, 0.5]);
    assert!(y[6..].iter().all(|value| value.is_nan()), "{y:?}");
}
