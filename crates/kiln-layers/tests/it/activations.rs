//! Activations at extreme values, and under burn's checkpointing.

use burn::tensor::{DType, Device, Tensor};
use kiln_layers::{Error, gelu, gelu_tanh, relu, silu};

use crate::compare::{tensor, values};

type Layer = fn(Tensor<2>) -> Result<Tensor<2>, Error>;

const ALL: [(&str, Layer); 4] = [("gelu", gelu), ("gelu_tanh", gelu_tanh), ("silu", silu), ("relu", relu)];

#[test]
fn extreme_values_are_computed() {
    let device = Device::flex().autodiff();
    for (name, layer) in ALL {
        let extreme = Tensor::<2>::from_floats([[-1e30, -100.0, -0.0, 0.0, 1e-30, 100.0, 1e30]], &device);
        let y = values(&layer(extreme).unwrap());
        assert_eq!((y[0], y[1], y[2], y[3], y[5]), (0.0, y[1], 0.0, 0.0, 100.0), "{name}: {y:?}");
        assert!(y[1].abs() < 1e-30 && (y[6] / 1e30 - 1.0).abs() < 1e-6, "{name}: {y:?}");
    }
}

#[test]
fn infinities_nan_and_tiny_values_are_those_of_torch() {
    let device = Device::flex().autodiff();
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    for (name, layer) in ALL {
        // The column is in a full vector, or in the remainder of one.
        for column in [0, 36] {
            let mut row = [0.5f32; 37];
            let mut both = |value: f32| {
                row[column] = value;
                let x = Tensor::<2>::from_floats([row], &device).require_grad();
                let y = layer(x.clone()).unwrap();
                (values(&y)[column], values(&x.grad(&y.sum().backward()).unwrap())[column])
            };
            let slope = if name == "relu" { (1.0, 0.0) } else { (f64::NAN, f64::NAN) };
            let same = |(a, b): (f64, f64)| a == b || (a.is_nan() && b.is_nan());
            let (y, dx) = both(inf);
            assert!(y == f64::INFINITY && same((dx, slope.0)), "{name}: {y} {dx}");
            let (y, dx) = both(-inf);
            assert!(same((y, slope.1)) && same((dx, slope.1)), "{name}: {y} {dx}");
            let (y, dx) = both(nan);
            assert!(y.is_nan() && (dx.is_nan() || name == "relu"), "{name}: {y} {dx}");
            for tiny in [1e-40f32, -1e-40] {
                let (y, dx) = both(tiny);
                let half = if name == "relu" { f64::from(tiny > 0.0) } else { 0.5 };
                assert!((y - half * f64::from(tiny)).abs() < 2e-45 && (dx - half).abs() < 1e-6, "{name}: {y} {dx}");
            }
        }
        for dtype in [DType::F16, DType::BF16] {
            let x = Tensor::<2>::from_floats([[65504.0, -65504.0, 1e-7, -1e-7]], &device).cast(dtype);
            let y = values(&layer(x.clone()).unwrap());
            assert!(y[0] == values(&x)[0] && y[1] == 0.0, "{name} {dtype:?}: {y:?}");
            assert!(y[2..].iter().all(|value| value.abs() <= 1.2e-7), "{name} {dtype:?}: {y:?}");
        }
    }
}

#[test]
fn balanced_checkpointing_gives_the_same_gradients() {
    let gradients = |device: Device| {
        let x = tensor([5, 7], 1, 2.0, DType::F32, &device).require_grad();
        let weight = tensor([7, 7], 2, 1.0, DType::F32, &device).require_grad();
        let constant = tensor([5, 7], 3, 1.0, DType::F32, &device);
        let mut hidden = x.clone() + gelu(constant).unwrap();
        for (_, layer) in ALL {
            hidden = layer(hidden.clone() + 0.5).unwrap().matmul(weight.clone()) + layer(hidden).unwrap();
        }
        let gradients = hidden.sum().backward();
        [values(&x.grad(&gradients).unwrap()), values(&weight.grad(&gradients).unwrap())]
    };
    let device = Device::flex().autodiff();
    assert_eq!(gradients(device.clone()), gradients(device.gradient_checkpointing()));
}
