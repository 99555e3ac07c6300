//! Layers whose weights are codes of four bits, with adapters and without.

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{Linear, LinearConfig, RmsNormConfig};
use burn::tensor::{Device, Tensor};
use kiln_compression::{FourBits, LowRank, Nest};
use kiln_layers::{gated_feed_forward, linear};

use super::Within::{Products, Roundings};
use super::{assert_same, module, numbers};
use crate::sim::{STRICT, dtypes, with_card};

const RANK: usize = 3;

/// Gives the factors of adapters the same numbers on every device.
struct Factors(u64);

impl ModuleMapper for Factors {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let dims = param.dims();
        if D != 2 || !dims.contains(&RANK) {
            return param;
        }
        self.0 += 1;
        let seed = self.0;
        param.map(|tensor| {
            let values = numbers(tensor.dims(), seed, tensor.dtype(), &tensor.device()) * 0.3;
            values.detach().set_require_grad(tensor.is_require_grad())
        })
    }
}

#[derive(Module, Debug)]
struct Layers {
    gate: Linear,
    up: Linear,
    down: Linear,
}

/// Layers whose weights are codes, which are the same on every device.
fn coded(device: &Device, dtype: burn::tensor::DType, adapters: Option<bool>) -> Layers {
    let new = |device: &Device| {
        let layer = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        Layers { gate: layer(19, 24), up: layer(19, 24), down: layer(24, 19) }
    };
    let plain = module(new, device, dtype);
    let codes = FourBits::default().of(&plain, |_| Ok(None)).unwrap();
    let adapters = adapters.map(|dora| {
        let adapters = LowRank::new(RANK, 6.0, ["gate", "down"]).unwrap();
        if dora { adapters.with_magnitudes(codes.norms()) } else { adapters }
    });
    plain.apply_reparameterization(Nest::optional(Some(codes), adapters)).map(&mut Factors(40))
}

#[test]
fn weights_of_four_bits() {
    with_card(&STRICT, |_| {
        for dtype in dtypes() {
            assert_same(("values of codes", Roundings), &[[19, 24]], dtype, |x, device| {
                x[0].clone() * coded(device, dtype, None).gate.weight.val().cast(dtype)
            });
            for (what, adapters) in [("codes", None), ("codes and LoRA", Some(false)), ("codes and DoRA", Some(true))] {
                assert_same((what, Products), &[[13, 19]], dtype, |x, device| {
                    linear(&coded(device, dtype, adapters).gate, x[0].clone()).unwrap()
                });
                assert_same((what, Products), &[[2, 7, 19]], dtype, |x, device| {
                    let layers = coded(device, dtype, adapters);
                    let norm = module(|device| RmsNormConfig::new(19).init(device), device, dtype);
                    gated_feed_forward(&norm, [&layers.gate, &layers.up, &layers.down], x[0].clone()).unwrap()
                });
            }
        }
    });
}
