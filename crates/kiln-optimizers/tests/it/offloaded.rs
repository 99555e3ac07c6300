//! Optimizers with their state on the host, in burn's own loop and records.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamW, AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor, TensorData};
use kiln_optimizers::{Error, FusedAdamW, Offloaded};

use crate::compare::tensor;

type Net = Vec<Linear>;

fn net(device: &Device) -> Net {
    device.seed(3);
    vec![LinearConfig::new(6, 9).init(device), LinearConfig::new(9, 4).with_bias(false).init(device)]
}

fn step(net: Net, optimizer: &mut ModuleOptimizer, index: u64) -> Net {
    let device = net[0].weight.val().device();
    let x = tensor([5, 6], index, 1.0, burn::tensor::DType::F32, &device);
    let loss = net[1].forward(net[0].forward(x).tanh()).square().mean();
    let gradients = GradientsParams::from_grads(loss.backward(), &net);
    optimizer.step(1e-2, net, gradients)
}

fn values(net: &Net) -> Vec<TensorData> {
    let weights = net.iter().map(|layer| layer.weight.val().to_data());
    weights.chain(net[0].bias.as_ref().map(|bias| bias.val().to_data())).collect()
}

fn adamw() -> AdamW {
    AdamWConfig::new().build()
}

type Form = (&'static str, Box<dyn Fn() -> ModuleOptimizer>);

/// The forms in which a run can go on after each step.
fn forms() -> Vec<Form> {
    vec![
        ("burn's", Box::new(|| adamw().into())),
        ("whole", Box::new(|| Offloaded::new(adamw()).into())),
        ("in chunks of 7", Box::new(|| Offloaded::by_chunks(adamw(), 7).unwrap().into())),
        ("in chunks of 20", Box::new(|| Offloaded::by_chunks(adamw(), 20).unwrap().into())),
        ("fused", Box::new(|| Offloaded::by_chunks(FusedAdamW::from(AdamWConfig::new()), 16).unwrap().into())),
    ]
}

#[test]
fn a_run_resumes_from_the_record_of_every_other_form() {
    let device = Device::flex().autodiff();
    for (first_name, first) in forms() {
        for (second_name, second) in forms() {
            let (mut got, mut expected) = (net(&device), net(&device));
            // Records name parameters by their ids.
            expected = expected.load_record(got.clone().into_record());
            let (mut optimizer, mut plain) = (first(), ModuleOptimizer::from(adamw()));
            for index in 0..6 {
                got = step(got, &mut optimizer, index);
                expected = step(expected, &mut plain, index);
                let differ = format!("{first_name}, then {second_name}: step {index}");
                assert_eq!(values(&got), values(&expected), "{differ}");
                let next = if index % 2 == 0 { second() } else { first() };
                optimizer = next.from_bytes(optimizer.into_bytes().unwrap()).unwrap();
            }
        }
    }
}

#[test]
fn a_clone_of_the_optimizer_keeps_its_state() {
    let device = Device::flex().autodiff();
    for (name, form) in forms() {
        let (mut model, mut optimizer) = (net(&device), form());
        model = step(model, &mut optimizer, 0);
        let (before, kept) = (model.clone(), optimizer.clone());
        model = step(model, &mut optimizer, 1);
        let again = step(before, &mut kept.clone(), 1);
        assert_eq!(values(&model), values(&again), "{name}");
    }
}

#[test]
fn chunks_of_no_elements_are_refused() {
    let error = Offloaded::by_chunks(adamw(), 0).err().unwrap();
    assert!(matches!(error, Error::InvalidSetting { name: "elements", .. }));
    assert_eq!(error.to_string(), "elements is 0, expected at least 1");
}

#[test]
fn gradients_and_parameters_may_be_views() {
    use burn::optim::Optimizer;
    let device = Device::flex();
    let view = |seed| tensor([9, 8], seed, 1.0, burn::tensor::DType::F32, &device).slice([1..8, 2..7]).transpose();
    let expected: Tensor<2> = adamw().step(0.1, view(1), view(2), None).0;
    for elements in [1, 4, 11, 35] {
        let got = Offloaded::by_chunks(adamw(), elements).unwrap().step(0.1, view(1), view(2), None).0;
        assert_eq!(got.to_data(), expected.to_data(), "{elements}");
    }
}
