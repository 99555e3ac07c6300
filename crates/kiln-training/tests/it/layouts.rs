//! Bytes per parameter of the ways to store a model, as `docs/mixed-precision.md` states them.

use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{DType, Device, Tensor};
use kiln_optimizers::StochasticBf16;
use kiln_precision::{Policy, Precision};

use crate::HEAP;
use crate::support::turn;

const WIDTH: usize = 512;
const LAYERS: usize = 8;
const PARAMETERS: f64 = (LAYERS * WIDTH * WIDTH) as f64;

/// Bytes per parameter between two steps, after the forward pass, and with all gradients.
fn measure(layout: impl Fn(Vec<Linear>) -> (Vec<Linear>, ModuleOptimizer)) -> [f64; 3] {
    let device = Device::flex().autodiff();
    let per_parameter = |bytes: usize, baseline: usize| bytes.saturating_sub(baseline) as f64 / PARAMETERS;
    let baseline = HEAP.live_bytes();
    let layer = |_| LinearConfig::new(WIDTH, WIDTH).with_bias(false).init(&device);
    let (mut model, mut optimizer) = layout((0..LAYERS).map(layer).collect());
    let mut figures = [0.0; 3];
    for _ in 0..3 {
        // One sample, so that activations are nothing beside the parameters.
        let x = Tensor::<2>::ones([1, WIDTH], &device).cast(model[0].weight.val().dtype());
        figures[0] = per_parameter(HEAP.live_bytes(), baseline);
        let loss = model.iter().fold(x, |x, layer| layer.forward(x)).cast(DType::F32).mean();
        figures[1] = per_parameter(HEAP.live_bytes(), baseline);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        figures[2] = per_parameter(HEAP.live_bytes(), baseline);
        model = optimizer.step(1e-3, model, gradients);
    }
    figures
}

#[test]
fn layouts_take_the_bytes_that_the_guide_states() {
    let _turn = turn();
    // Threads that compute allocate their stacks' share once.
    let warm = |precision| {
        let policy = Policy::new(precision);
        measure(|model| (policy.autocast(model).unwrap(), AdamWConfig::new().init()))
    };
    let _ = (warm(Precision::F32), warm(Precision::BF16));

    let adam = || AdamWConfig::new().build();
    let rows = [
        ("f32", measure(|model| (model, adam().into()))),
        ("autocast", measure(|model| (Policy::new(Precision::BF16).autocast(model).unwrap(), adam().into()))),
        (
            "stochastic rounding",
            measure(|model| {
                (Policy::new(Precision::BF16).store(model).unwrap(), StochasticBf16::new(adam(), 1).into())
            }),
        ),
    ];
    let guide = include_str!("../../../../docs/mixed-precision.md");
    for (name, figures) in rows {
        let line = guide.lines().find(|line| line.starts_with(&format!("| {name} |"))).unwrap();
        let stated: Vec<f64> = line.split('|').skip(2).take(3).map(|cell| cell.trim().parse().unwrap()).collect();
        for (measured, stated) in figures.iter().zip(stated) {
            assert!((measured / stated - 1.0).abs() < 0.02, "{name}: measured {figures:?}, the guide says {line}");
        }
    }
}
