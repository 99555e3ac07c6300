//! Losses of distillation against torch.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{Device, Tensor, TensorData};
use kiln_compression::{DistillationLoss, Error, Teacher};
use proptest::prelude::*;
use safetensors::SafeTensors;

struct Recorded(BTreeMap<String, TensorData>);

impl Recorded {
    fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/compression/distill.safetensors");
        let bytes = std::fs::read(path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let read = |tensor: safetensors::tensor::TensorView<'_>| {
            TensorData::from_bytes_vec(tensor.data().to_vec(), tensor.shape().to_vec(), burn::tensor::DType::F32)
        };
        Self(file.tensors().into_iter().map(|(name, tensor)| (name, read(tensor))).collect())
    }

    fn tensor<const D: usize>(&self, name: &str) -> Tensor<D> {
        Tensor::from_data(self.0[name].clone(), &Device::flex())
    }

    fn leaf<const D: usize>(&self, name: &str) -> Tensor<D> {
        self.tensor(name).autodiff().require_grad()
    }

    fn near<const D: usize>(&self, name: &str, found: Tensor<D>) {
        let (expected, found) = (&self.0[name], found.into_data());
        assert_eq!(expected.shape(), found.shape(), "{name}");
        let off = difference(expected, &found);
        assert!(off <= 2e-6, "{name}: {off}");
    }
}

/// The largest difference, of numbers above 1 in units of the number.
fn difference(expected: &TensorData, found: &TensorData) -> f32 {
    let pairs = expected.iter::<f32>().zip(found.iter::<f32>());
    pairs.map(|(e, f)| if f.is_nan() { f32::INFINITY } else { (e - f).abs() / e.abs().max(1.0) }).fold(0.0, f32::max)
}

const TEMPERATURES: [(f64, &str); 3] = [(1.0, "1.0"), (2.0, "2.0"), (4.5, "4.5")];

#[test]
fn loss_and_gradient_of_logits_are_those_of_torch() {
    let recorded = Recorded::read();
    for (t, name) in TEMPERATURES {
        let loss = DistillationLoss::new(t).unwrap();
        let student = recorded.leaf("student");
        let value = loss.forward(student.clone(), recorded.tensor::<2>("teacher")).unwrap();
        recorded.near(&format!("kl.{name}"), value.clone());
        recorded.near(&format!("kl.{name}.student"), student.grad(&value.backward()).unwrap());
    }
}

fn linear(recorded: &Recorded) -> Teacher {
    Teacher::Linear { hidden: recorded.tensor("teacher_hidden"), weight: recorded.tensor("teacher_weight") }
}

#[test]
fn rows_at_a_time_give_the_gradients_of_torch() {
    let recorded = Recorded::read();
    for (t, name) in TEMPERATURES {
        for rows in [1, 2, 3, 7, 100] {
            let loss = DistillationLoss::new(t).unwrap().with_rows(rows);
            let (hidden, weight) = (recorded.leaf("hidden"), recorded.leaf("weight"));
            let value = loss.forward_linear(hidden.clone(), weight.clone(), linear(&recorded)).unwrap();
            recorded.near(&format!("kl.{name}"), value.clone());
            let gradients = value.backward();
            recorded.near(&format!("kl.{name}.hidden"), hidden.grad(&gradients).unwrap());
            recorded.near(&format!("kl.{name}.weight"), weight.grad(&gradients).unwrap());
        }
    }
}

#[test]
fn only_what_is_trained_gets_a_gradient() {
    let recorded = Recorded::read();
    let loss = DistillationLoss::new(2.0).unwrap();
    let (hidden, weight) = (recorded.leaf::<2>("hidden"), recorded.leaf::<2>("weight"));
    // The loss is a part of a longer computation.
    let value = loss.forward_linear(hidden.clone() * 1.0, weight.clone().detach(), linear(&recorded)).unwrap();
    let gradients = (value * 3.0).backward();
    recorded.near("kl.2.0.hidden", hidden.grad(&gradients).unwrap() / 3.0);
    assert!(weight.grad(&gradients).is_none());
    let value = loss.forward_linear(hidden.detach(), weight.clone(), linear(&recorded)).unwrap();
    recorded.near("kl.2.0.weight", weight.grad(&value.backward()).unwrap());
    // Without autodiff.
    let value = loss.forward_linear(recorded.tensor("hidden"), recorded.tensor("weight"), linear(&recorded)).unwrap();
    recorded.near("kl.2.0", value);
}

/// What predicts the memory of a step records it on a device that has no values, where a gradient cannot be asked for.
#[test]
fn the_loss_of_hidden_states_can_be_recorded() {
    let plain = Device::capture();
    let device = plain.clone().autodiff();
    let loss = DistillationLoss::new(2.0).unwrap().with_rows(3);
    let mut found = None;
    let graph = plain.capture_scope(|scope| {
        let ones = |shape: [usize; 2]| Tensor::<2>::ones(shape, &device);
        let (hidden, weight) = (ones([7, 4]).require_grad(), ones([4, 11]).require_grad());
        let teacher = Teacher::Linear { hidden: ones([7, 3]), weight: ones([3, 11]) };
        let value = loss.forward_linear(hidden.clone(), weight.clone(), teacher).unwrap();
        found = Some((value.dims(), value.is_tracked()));
        std::mem::forget((value, hidden, weight));
        scope.complete([], [])
    });
    assert_eq!(found, Some(([1], true)));
    assert!(graph.unwrap().graph.operations.len() > 20);
}

#[test]
fn the_first_pass_of_a_recomputed_segment_gives_the_loss() {
    let recorded = Recorded::read();
    // There the input is on a device with autodiff, and not tracked.
    let (hidden, weight) = (recorded.tensor("hidden").autodiff(), recorded.tensor("weight").autodiff());
    let value = DistillationLoss::new(2.0).unwrap().forward_linear(hidden, weight, linear(&recorded)).unwrap();
    assert!(value.is_autodiff() && !value.is_tracked());
    recorded.near("kl.2.0", value);
}

#[test]
fn no_gradient_reaches_the_teacher() {
    let recorded = Recorded::read();
    let (student, teacher) = (recorded.leaf::<2>("student"), recorded.leaf::<2>("teacher"));
    let loss = DistillationLoss::new(2.0).unwrap();
    // A plain student, as in an evaluation.
    recorded.near("kl.2.0", loss.forward(recorded.tensor("student"), teacher.clone()).unwrap());
    let gradients = loss.forward(student.clone(), teacher.clone()).unwrap().backward();
    assert!(student.grad(&gradients).is_some() && teacher.grad(&gradients).is_none());
}

#[test]
fn hidden_states_of_16_bits_get_gradients_of_16_bits() {
    let recorded = Recorded::read();
    let half = |name| recorded.tensor::<2>(name).cast(burn::tensor::DType::F16).autodiff().require_grad();
    let (hidden, weight) = (half("hidden"), half("weight"));
    let loss = DistillationLoss::new(2.0).unwrap();
    let value = loss.forward_linear(hidden.clone(), weight.clone(), linear(&recorded)).unwrap();
    assert_eq!(value.dtype(), burn::tensor::DType::F32);
    let gradients = value.backward();
    for (leaf, name) in [(hidden, "kl.2.0.hidden"), (weight, "kl.2.0.weight")] {
        let gradient = leaf.grad(&gradients).unwrap();
        assert_eq!(gradient.dtype(), burn::tensor::DType::F16);
        assert!(difference(&recorded.0[name], &gradient.into_data()) < 1e-2, "{name}");
    }
}

#[test]
fn extreme_logits_give_finite_losses() {
    let device = Device::flex();
    let teacher = Tensor::<2>::from_data([[300.0, -300.0, 0.0, 0.0], [0.0, 0.0, f32::NEG_INFINITY, 1.0]], &device);
    let student = Tensor::<2>::from_data([[-300.0, 300.0, 0.0, 0.0], [5.0, 0.0, -80.0, 1.0]], &device);
    for t in [0.5, 1.0, 3.0] {
        let loss = DistillationLoss::new(t).unwrap();
        let student = student.clone().autodiff().require_grad();
        let value = loss.forward(student.clone(), teacher.clone()).unwrap();
        let gradient = student.grad(&value.clone().backward()).unwrap();
        assert!(value.into_scalar::<f32>().is_finite());
        assert!(gradient.into_data().iter::<f32>().all(f32::is_finite));
    }
}

#[test]
fn shapes_and_settings_that_do_not_fit_are_errors() {
    let recorded = Recorded::read();
    let device = Device::flex();
    let zeros = |shape: [usize; 2]| Tensor::<2>::zeros(shape, &device);
    let loss = DistillationLoss::new(1.0).unwrap();
    for t in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(DistillationLoss::new(t), Err(Error::InvalidSetting { .. })));
    }
    let teachers: [Teacher; 4] = [
        zeros([6, 11]).into(),
        zeros([7, 10]).into(),
        Teacher::Linear { hidden: zeros([7, 3]), weight: zeros([4, 11]) },
        Teacher::Linear { hidden: zeros([6, 4]), weight: zeros([4, 11]) },
    ];
    for teacher in teachers {
        assert!(matches!(loss.forward(recorded.tensor("student"), teacher.clone()), Err(Error::Shape { .. })));
        let (hidden, weight) = (recorded.tensor("hidden"), recorded.tensor("weight"));
        assert!(matches!(loss.forward_linear(hidden, weight, teacher), Err(Error::Shape { .. })));
    }
    let result = loss.forward_linear(recorded.tensor("hidden"), zeros([4, 11]), zeros([7, 11]));
    assert!(matches!(result, Err(Error::Shape { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_number_of_rows_at_a_time_gives_the_same(
        n in 1usize..20, d in 1usize..6, e in 1usize..6, c in 1usize..30, rows in 0usize..25, by_logits: bool, t in 0.5f64..5.0,
    ) {
        let random = |shape: [usize; 2]| Tensor::<2>::random(shape, burn::tensor::Distribution::Normal(0.0, 1.0), &Device::flex());
        let (hidden, weight) = (random([n, d]), random([d, c]));
        let (teacher_hidden, teacher_weight) = (random([n, e]), random([e, c]));
        let logits = teacher_hidden.clone().matmul(teacher_weight.clone());
        let teacher = if by_logits { logits.clone().into() } else { Teacher::Linear { hidden: teacher_hidden, weight: teacher_weight } };
        let loss = DistillationLoss::new(t).unwrap().with_rows(rows);
        let leaf = || (hidden.clone().autodiff().require_grad(), weight.clone().autodiff().require_grad());
        let ((h1, w1), (h2, w2)) = (leaf(), leaf());
        let expected = loss.forward(h1.clone().matmul(w1.clone()), logits).unwrap();
        let found = loss.forward_linear(h2.clone(), w2.clone(), teacher).unwrap();
        prop_assert!(difference(&expected.clone().into_data(), &found.clone().into_data()) < 1e-6);
        let (expected, found) = (expected.backward(), found.backward());
        for (of, by) in [(h1.grad(&expected), h2.grad(&found)), (w1.grad(&expected), w2.grad(&found))] {
            prop_assert!(difference(&of.unwrap().into_data(), &by.unwrap().into_data()) < 1e-6);
        }
    }
}

/// burn's CPU device adds the partial sums of 4 Mi elements and more in the order in which threads finish them.
#[test]
fn large_losses_have_the_same_bits() {
    let device = Device::flex();
    let wave = |factor: f32, scale: f32| {
        let values: Vec<f32> = (0..6_000_000).map(|i| (i as f32 * factor).sin() * scale).collect();
        Tensor::<2>::from_data(TensorData::new(values, [6_000, 1_000]), &device)
    };
    let (student, teacher) = (wave(0.37, 9.0), wave(0.73, 7.0));
    let run = || {
        let loss = DistillationLoss::new(1.0).unwrap().forward(student.clone(), teacher.clone()).unwrap();
        loss.into_scalar::<f32>().to_bits()
    };
    let expected = run();
    for threads in 1..=4 {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        assert_eq!(pool.install(run), expected, "{threads} threads");
    }
}
