//! k micro-batches give the gradients of the whole batch, whatever the split.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId, list_param_ids};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{BatchNorm, BatchNormConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use kiln_accumulation::{Accumulated, Fed, RunningStatistics, Scaled, Split, Weight, Window};
use proptest::prelude::*;

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    norm: LayerNorm,
    last: Linear,
}

impl Net {
    fn new(inputs: usize, classes: usize, device: &Device) -> Self {
        Self {
            first: LinearConfig::new(inputs, 12).init(device),
            norm: LayerNormConfig::new(12).init(device),
            last: LinearConfig::new(12, classes).init(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.last.forward(tanh(self.norm.forward(self.first.forward(x))))
    }
}

/// All gradients of a model, one after the other.
fn flat(model: &impl Module, gradients: &GradientsParams) -> Vec<f64> {
    struct Flat<'a>(&'a GradientsParams, Vec<f64>);
    impl ModuleVisitor for Flat<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.get::<D>(param.id) {
                self.1.extend(gradient.into_data().iter::<f64>());
            }
        }
    }
    let mut flat = Flat(gradients, vec![]);
    model.visit(&mut flat);
    flat.1
}

fn relative(got: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    norm(&mut got.iter().zip(expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied())
}

const IGNORED: i64 = 0;

/// The mean loss over the targets that are not ignored.
fn loss(model: &Net, inputs: Tensor<2>, targets: &[i64]) -> Tensor<1> {
    let device = inputs.device();
    let targets = Tensor::<1, Int>::from_data(TensorData::new(targets.to_vec(), [targets.len()]), &device);
    let config = CrossEntropyLossConfig::new().with_pad_tokens(Some(vec![IGNORED as usize]));
    config.init(&device).forward(model.forward(inputs), targets)
}

fn carrying(targets: &[i64]) -> usize {
    targets.iter().filter(|target| **target != IGNORED).count()
}

fn accumulate(model: &Net, inputs: &Tensor<2>, targets: &[i64], split: Split, scale: f64) -> Accumulated<Scaled> {
    let width = inputs.dims()[1];
    let mut window = Window::scaled(Weight::Tokens(carrying(targets)), scale).unwrap();
    // A micro-batch in which every target is ignored has no mean loss and nothing to add.
    for range in split.ranges().filter(|range| carrying(&targets[range.clone()]) > 0) {
        let weight = Weight::Tokens(carrying(&targets[range.clone()]));
        let micro = loss(model, inputs.clone().slice([range.clone(), 0..width]), &targets[range]);
        match window.feed(model, weight, micro).unwrap() {
            Fed::Open(next) => window = next,
            Fed::Complete(batch) => return batch,
        }
    }
    unreachable!("the weights of all micro-batches add up to the batch's")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_split_gives_the_gradients_and_the_loss_of_the_whole_batch(
        batch in 1usize..24, micro in 1usize..30, inputs in 1usize..9, classes in 2usize..6,
        ignored in prop::collection::vec(any::<bool>(), 24), seed in 0u64..1000,
    ) {
        let device = Device::flex().autodiff();
        let model = Net::new(inputs, classes, &device);
        let mut targets: Vec<i64> = (0..batch).map(|i| if ignored[i] { IGNORED } else { 1 + (i as u64 + seed) as i64 % (classes as i64 - 1) }).collect();
        targets[0] = 1; // at least one carries a loss
        let x = Tensor::<2>::random([batch, inputs], Distribution::Normal(0.0, 1.0), &device);

        let whole = loss(&model, x.clone(), &targets);
        let mean: f64 = whole.clone().into_scalar::<f32>().into();
        let expected = flat(&model, &GradientsParams::from_grads(whole.backward(), &model));
        let batch = accumulate(&model, &x, &targets, Split::new(batch, micro).unwrap(), 1.0);

        let loss = f64::from(batch.loss.clone().into_scalar::<f32>());
        prop_assert!(relative(&flat(&model, &batch.into_scaled_gradients().0), &expected) <= 1e-6);
        prop_assert!((loss - mean).abs() <= 1e-6 * mean.abs().max(1.0));
    }
}

#[test]
fn one_micro_batch_is_the_batch_bit_for_bit_and_a_power_of_two_scale_is_exact() {
    let device = Device::flex().autodiff();
    let model = Net::new(5, 4, &device);
    let targets: Vec<i64> = (0..10).map(|i| 1 + i % 3).collect();
    let x = Tensor::<2>::random([10, 5], Distribution::Normal(0.0, 1.0), &device);
    let whole = loss(&model, x.clone(), &targets);
    let expected = flat(&model, &GradientsParams::from_grads(whole.backward(), &model));
    let run = |micro, scale| accumulate(&model, &x, &targets, Split::new(10, micro).unwrap(), scale);
    assert_eq!(flat(&model, &run(10, 1.0).into_scaled_gradients().0), expected);

    let (plain, scaled) = (run(3, 1.0), run(3, 1024.0));
    assert_eq!((scaled.micro_batches, scaled.weight), (4, Weight::Tokens(10)));
    assert_eq!(scaled.loss.to_data(), plain.loss.to_data());
    let (gradients, scale) = scaled.into_scaled_gradients();
    let back: Vec<f64> = flat(&model, &gradients).iter().map(|g| g / scale).collect();
    assert_eq!((scale, back), (1024.0, flat(&model, &plain.into_scaled_gradients().0)));
}

/// Two uses of one weight, the later one in `head`.
fn tied(weight: &Linear, x: Tensor<2>) -> Tensor<1> {
    tanh(weight.forward(tanh(weight.forward(x)))).mean()
}

#[test]
fn gradients_are_added_where_they_are_made_in_the_order_of_micro_batches() {
    let device = Device::flex().autodiff();
    let (net, twice) = (Net::new(5, 4, &device), LinearConfig::new(5, 5).init(&device));
    let x = Tensor::<2>::random([9, 5], Distribution::Normal(0.0, 1.0), &device);
    let parts = || [0..3, 3..6, 6..9].map(|range| x.clone().slice([range, 0..5]));
    let third = |tensor: Tensor<1>| tensor * (3.0 / 9.0);
    let ids = [list_param_ids(&net), list_param_ids(&twice)].concat();
    let fed = |model: &dyn Fn(Window, Tensor<2>) -> Fed| {
        let mut window = Window::open(Weight::Samples(9)).unwrap();
        for part in parts() {
            match model(window.used_once(ids.clone()), part) {
                Fed::Open(next) => window = next,
                Fed::Complete(batch) => return batch.into_gradients(),
            }
        }
        unreachable!("three parts of nine samples")
    };

    // One use: the sum of the gradients of separate backward passes.
    let of_net = |part: Tensor<2>| net.forward(part).mean();
    let sum = fed(&|window, part| window.feed(&net, Weight::Samples(3), of_net(part)).unwrap());
    let separate = parts().map(|part| GradientsParams::from_grads(third(of_net(part)).backward(), &net));
    let mut expected = vec![0.0; flat(&net, &sum).len()];
    for gradients in &separate {
        let added = expected.iter().zip(flat(&net, gradients)).map(|(sum, part)| f64::from(*sum as f32 + part as f32));
        expected = added.collect();
    }
    assert_eq!(flat(&net, &sum), expected);

    // Two uses: each gradient is added to the sum, the later use first.
    let sum = fed(&|window, part| window.feed(&twice, Weight::Samples(3), tied(&twice, part)).unwrap());
    let mut expected = vec![0.0; flat(&twice, &sum).len()];
    for part in parts() {
        // The same weight under two ids.
        let [first, later] = [(); 2].map(|()| twice.clone().map(&mut Leaf));
        let gradients = third(tanh(later.forward(tanh(first.forward(part)))).mean()).backward();
        for layer in [&later, &first] {
            let mut own = GradientsParams::new();
            layer.visit(&mut Of(&gradients, &mut own));
            let added = expected.iter().zip(flat(layer, &own)).map(|(sum, part)| f64::from(*sum as f32 + part as f32));
            expected = added.collect();
        }
    }
    assert_eq!(flat(&twice, &sum), expected);
}

/// Makes leaves of their own.
struct Leaf;

impl ModuleMapper for Leaf {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| tensor.detach().require_grad())
    }
}

struct Of<'a>(&'a burn::tensor::Gradients, &'a mut GradientsParams);

impl ModuleVisitor for Of<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = param.val().grad(self.0) {
            self.1.register(param.id, gradient);
        }
    }
}

#[test]
fn averaging_the_means_of_uneven_micro_batches_would_be_wrong() {
    // What weights are for: the same comparison with equal weights fails by far.
    let device = Device::flex().autodiff();
    let model = Net::new(5, 4, &device);
    let targets: Vec<i64> = (0..9).map(|i| 1 + i % 3).collect();
    let x = Tensor::<2>::random([9, 5], Distribution::Normal(0.0, 1.0), &device);
    let whole = loss(&model, x.clone(), &targets);
    let expected = flat(&model, &GradientsParams::from_grads(whole.backward(), &model));
    let mut window = Window::open(Weight::Samples(2)).unwrap();
    for range in [0..8, 8..9] {
        let micro = loss(&model, x.clone().slice([range.clone(), 0..5]), &targets[range]);
        match window.feed(&model, Weight::Samples(1), micro).unwrap() {
            Fed::Open(next) => window = next,
            Fed::Complete(batch) => {
                assert!(relative(&flat(&model, &batch.into_gradients()), &expected) > 0.1);
                return;
            }
        }
    }
}

fn statistics(norm: &BatchNorm) -> [Vec<f64>; 2] {
    let _ = norm.valid();
    [&norm.running_mean, &norm.running_var].map(|state| state.value().into_data().iter::<f64>().collect())
}

#[test]
fn running_statistics_move_once_by_the_weighted_mean_of_the_micro_batches() {
    let device = Device::flex().autodiff();
    for device in [device.clone(), device.gradient_checkpointing()] {
        assert_running_statistics_move_once(&device);
    }
}

fn assert_running_statistics_move_once(device: &Device) {
    let norm = BatchNormConfig::new(3).init(device);
    // Statistics that are not the initial ones, so that forgetting them shows.
    let _ = norm.forward(Tensor::<2>::random([32, 3], Distribution::Normal(4.0, 2.0), device));
    let [mean, var] = statistics(&norm);
    let x = Tensor::<2>::random([10, 3], Distribution::Normal(-1.0, 3.0), device);
    let split = Split::new(10, 4).unwrap();

    let mut running = RunningStatistics::before(&norm);
    let (mut mean_of, mut var_of) = (vec![0.0; 3], vec![0.0; 3]);
    for range in split.ranges() {
        let (weight, share) = (Weight::Samples(range.len()), range.len() as f64 / 10.0);
        let part = x.clone().slice([range, 0..3]);
        let values: Vec<f64> = part.clone().into_data().iter::<f64>().collect();
        for channel in 0..3 {
            let column: Vec<f64> = values.iter().skip(channel).step_by(3).copied().collect();
            let n = column.len() as f64;
            let m = column.iter().sum::<f64>() / n;
            mean_of[channel] += share * m;
            var_of[channel] += share * column.iter().map(|v| (v - m).powi(2)).sum::<f64>() / n;
        }
        let _ = norm.forward(part);
        running.take(&norm, weight, Weight::Samples(10)).unwrap();
        assert_eq!(statistics(&norm), [mean.clone(), var.clone()], "a micro-batch starts from the statistics before");
    }
    running.commit(&norm);

    let expected = |before: &[f64], batch: &[f64]| -> Vec<f64> {
        before.iter().zip(batch).map(|(before, batch)| 0.9 * before + 0.1 * batch).collect()
    };
    let after = statistics(&norm);
    assert!(relative(&after[0], &expected(&mean, &mean_of)) < 1e-5);
    assert!(relative(&after[1], &expected(&var, &var_of)) < 1e-5);

    let dropped = RunningStatistics::before(&norm);
    let _ = norm.forward(x);
    assert_ne!(statistics(&norm), after);
    dropped.restore(&norm);
    assert_eq!(statistics(&norm), after);
}

#[test]
fn two_replicas_with_half_of_a_batch_each_add_up_to_the_batch() {
    let device = Device::flex().autodiff();
    let net = Net::new(3, 4, &device);
    let x = Tensor::<2>::random([10, 3], Distribution::Default, &device);
    let norm = BatchNormConfig::new(4).init(&device);
    let loss =
        |range: std::ops::Range<usize>| norm.forward(net.forward(x.clone().slice([range, 0..3]))).square().mean();
    let (total, ranges) = (Weight::Samples(10), [0..4, 4..10]);

    let mut whole = Window::scaled(total, 8.0).unwrap();
    let mut statistics = RunningStatistics::before(&norm);
    let mut batch = None;
    for range in ranges.clone() {
        let weight = Weight::Samples(range.len());
        let fed = whole.feed(&net, weight, loss(range)).unwrap();
        statistics.take(&norm, weight, total).unwrap();
        match fed {
            Fed::Open(next) => whole = next,
            Fed::Complete(complete) => {
                batch = Some(complete);
                break;
            }
        }
    }
    let batch = batch.unwrap();
    let value = |tensor: Tensor<1>| tensor.into_data().iter::<f32>().collect::<Vec<_>>();
    let expected: Vec<_> = statistics.values().map(|value| value.to_data()).collect();

    let replicas = ranges.map(|range| {
        let weight = Weight::Samples(range.len());
        let mut statistics = RunningStatistics::before(&norm);
        let window = Window::scaled_part(weight, total, 8.0).unwrap();
        assert_eq!(window.missing(), weight);
        let Fed::Complete(part) = window.feed(&net, weight, loss(range)).unwrap() else { panic!("it is complete") };
        statistics.take(&norm, weight, total).unwrap();
        (part, statistics)
    });
    let [(first, mut statistics), (second, mut others)] = replicas;
    let mut theirs = vec![];
    others
        .sum_over_replicas(&norm, |own| {
            theirs = own.clone();
            Ok::<_, ()>(own)
        })
        .unwrap();
    let add = |own: Vec<Tensor<1>>| Ok::<_, ()>(own.into_iter().zip(theirs).map(|(a, b)| a + b).collect());
    statistics.sum_over_replicas(&norm, add).unwrap();
    let sums: Vec<_> = statistics.values().map(|value| value.to_data()).collect();
    assert!(expected.iter().all(|data| sums.contains(data)), "the statistics of replicas are those of the batch");

    assert_eq!(value(first.loss.clone() + second.loss.clone()), value(batch.loss.clone()));
    let (first, second) = (first.into_scaled_gradients().0, second.into_scaled_gradients().0);
    let sum: Vec<f32> = flat(&net, &first).iter().zip(flat(&net, &second)).map(|(a, b)| *a as f32 + b as f32).collect();
    let of_batch: Vec<f32> = flat(&net, &batch.into_scaled_gradients().0).iter().map(|value| *value as f32).collect();
    assert_eq!(sum, of_batch);
    assert!(Window::scaled_part(Weight::Samples(11), total, 1.0).is_err());
    assert!(Window::scaled_part(Weight::Tokens(4), total, 1.0).is_err());
}

/// The ids of all floats of a module.
struct Ids(Vec<ParamId>);

impl ModuleVisitor for Ids {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.push(param.id);
    }
}

#[test]
fn statistics_of_stages_are_taken_apart() {
    let device = Device::flex().autodiff();
    let norms = [BatchNormConfig::new(3).init(&device), BatchNormConfig::new(3).init(&device)];
    let norms: Vec<BatchNorm> = norms.into();
    let batch = |mean| Tensor::<2>::random([8, 3], Distribution::Normal(mean, 1.0), &device);
    let ids = |norm: &BatchNorm| {
        let mut ids = Ids(vec![]);
        norm.visit(&mut ids);
        ids.0
    };
    let total = Weight::Samples(2);
    let before: Vec<_> = norms.iter().map(statistics).collect();
    let mut running = RunningStatistics::before(&norms);
    let mut taken = vec![];
    for (norm, mean) in norms.iter().zip([2.0, -3.0]) {
        for _ in 0..2 {
            let _ = norm.forward(batch(mean));
            running.take_some(&norms, |id| ids(norm).contains(&id), Weight::Samples(1), total).unwrap();
        }
        taken.push(statistics(norm));
    }
    assert_eq!(taken, before, "the statistics are restored");
    assert_eq!(running.values().count(), 4);
    running.commit(&norms);
    let means: Vec<f64> = norms.iter().map(|norm| statistics(norm)[0][0]).collect();
    assert!(means[0] > 0.1 && means[1] < -0.1, "{means:?}");
}
