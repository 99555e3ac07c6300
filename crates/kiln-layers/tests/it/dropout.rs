//! Dropout: its rate, the values that are kept, and the same mask in both passes.

use burn::tensor::{DType, Device, Tensor};
use kiln_layers::dropout;

use crate::compare::{tensor, values};

#[test]
fn as_many_values_are_dropped_as_was_asked_for_and_the_others_scaled() {
    let device = Device::flex();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let ones = Tensor::<2>::ones([301, 997], (&device, dtype));
        for probability in [0.0, 0.1, 0.5, 0.75, 1.0] {
            let y = values(&dropout(ones.clone(), probability, 7).unwrap());
            let dropped = y.iter().filter(|value| **value == 0.0).count() as f64 / y.len() as f64;
            assert!((dropped - probability).abs() < 0.004, "{probability}: {dropped}");
            let kept = y.iter().copied().find(|value| *value != 0.0).unwrap_or(1.0);
            assert!(y.iter().all(|value| *value == 0.0 || *value == kept), "{probability}");
            assert!(probability == 1.0 || (kept * (1.0 - probability) - 1.0).abs() < 4e-3, "{probability}: {kept}");
        }
    }
}

#[test]
fn the_gradient_has_the_mask_of_the_output_and_seeds_differ() {
    let device = Device::flex().autodiff();
    let x = Tensor::<2>::ones([37, 1001], &device).require_grad();
    let y = dropout(x.clone(), 0.3, 11).unwrap();
    let gradients = y.clone().sum().backward();
    assert_eq!(values(&y), values(&x.grad(&gradients).unwrap()));
    let mask = |seed| values(&dropout(x.clone(), 0.5, seed).unwrap());
    let agree = mask(1).iter().zip(&mask(2)).filter(|(one, other)| one == other).count() as f64 / (37.0 * 1001.0);
    assert!((agree - 0.5).abs() < 0.02, "{agree}");
    assert!(values(&x).iter().all(|value| *value == 1.0));
}

#[test]
fn the_mask_is_that_of_the_position_in_a_view_and_a_probability_out_of_range_is_refused() {
    let device = Device::flex();
    let x = tensor([20, 30], 1, 1.0, DType::F32, &device);
    let view = x.slice([2..19, 3..28]).transpose();
    let copy = Tensor::<2>::from_data(view.clone().into_data(), &device);
    assert_eq!(values(&dropout(view.clone(), 0.4, 3).unwrap()), values(&dropout(copy, 0.4, 3).unwrap()));
    for probability in [-0.1, 1.1, f64::NAN] {
        let text = dropout(view.clone(), probability, 3).unwrap_err().to_string();
        assert!(text.ends_with("expected a number from 0 to 1"), "{text}");
    }
}
