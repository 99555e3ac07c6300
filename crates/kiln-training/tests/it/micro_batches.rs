//! A step in micro-batches equals the step on the whole batch; an overflow skips a step and nothing else.

use std::cell::{Cell, RefCell};
use std::ops::{ControlFlow, Range};
use std::rc::Rc;

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{BatchNorm, BatchNormConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{DType, Device, Distribution, Int, Tensor, TensorData};
use kiln_accumulation::Weight;
use kiln_data::{BatchPlan, Loader, LoaderConfig, TrainTest};
use kiln_precision::{Policy, Precision, ScalerConfig, ScalerState, Scaling, in_f32};
use kiln_training::{
    Batch, Checkpoints, Error, Event, LossFn, OptimizerConfig, Pass, ScheduleConfig, StepReport, Task, Trainer,
};

use crate::support::{self, Settings, builder, device, turn};

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    layer: LayerNorm,
    batch: Option<BatchNorm>,
    last: Linear,
}

impl Net {
    fn new(batch_norm: bool, device: &Device) -> Self {
        Self {
            first: LinearConfig::new(6, 16).init(device),
            layer: LayerNormConfig::new(16).init(device),
            batch: batch_norm.then(|| BatchNormConfig::new(16).init(device)),
            last: LinearConfig::new(16, 4).init(device),
        }
    }

    /// Copies the numbers to separate tensors, because clones share running statistics. (Making the model again from its seed does not
    /// work, because the device's random numbers belong to all tests of this process.)
    fn copy(&self) -> Self {
        self.valid().train()
    }

    fn loss(&self, x: Tensor<2>, y: Tensor<1, Int>) -> Tensor<1> {
        let x = self.first.forward(x.cast(self.first.weight.val().dtype()));
        let x = self.layer.forward(x);
        let x = match &self.batch {
            Some(norm) => in_f32(x, |x| norm.forward(x)),
            None => x,
        };
        let logits = self.last.forward(tanh(x)).cast(DType::F32);
        CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, y)
    }
}

fn settings(precision: Precision, micro_batch: impl Into<Option<usize>>) -> Settings {
    Settings {
        schedule: ScheduleConfig { peak: 0.05, warmup: 0.0, floor: 0.1 }.into(),
        policy: Policy::new(precision),
        micro_batch: micro_batch.into(),
        // Not Adam: its first step is the sign of the gradient, even if the gradient is a rounding error.
        ..support::settings(OptimizerConfig::sgd())
    }
}

type Data = (TensorData, TensorData);

fn data() -> Data {
    let device = device().inner();
    let x = Tensor::<2>::random([22, 6], Distribution::Normal(0.0, 1.0), &device);
    let y = x.clone().slice([0..22, 0..4]).argmax(1).reshape([22]);
    (x.into_data(), y.into_data())
}

fn entropy(pass: &Pass<'_, Net>, (x, y): &Data) -> Tensor<1> {
    pass.model().loss(pass.input(x), pass.input(y))
}

/// A trainer of `net`'s numbers on batches like `data`.
fn trainer(net: &Net, settings: &Settings, data: &Data) -> Trainer<impl Task<Model = Net, Batch = Data> + use<>> {
    builder(LossFn::new(entropy), |_| net.copy(), settings).build(&device(), data).unwrap()
}

/// Every float of the model, running statistics included.
fn floats(model: &Net) -> Vec<f64> {
    struct Floats(Vec<f64>);
    impl ModuleVisitor for Floats {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend(param.base().into_data().iter::<f64>());
        }
    }
    let _ = model.valid();
    let mut floats = Floats(vec![]);
    model.visit(&mut floats);
    floats.0
}

fn relative(got: &[f64], expected: &[f64]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    norm(&mut got.iter().zip(expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied())
}

#[test]
fn ten_steps_in_any_micro_batch_are_ten_steps_on_the_batch() {
    let _turn = turn();
    let (data, net) = (data(), Net::new(false, &device()));
    let run = |micro| {
        let mut trainer = trainer(&net, &settings(Precision::F32, micro), &data);
        let reports: Vec<StepReport> = (0..10).map(|_| trainer.step(&data).unwrap()).collect();
        (floats(trainer.model()), reports)
    };
    let (expected, whole) = run(22);
    assert!(whole[9].loss < 0.9 * whole[0].loss, "it learns");
    for micro in [1, 3, 7, 11, 21] {
        let (got, reports) = run(micro);
        let far = relative(&got, &expected);
        assert!(far < 1e-5, "micro-batches of {micro}: {far}");
        assert_eq!(reports[0].micro_batches, 22usize.div_ceil(micro));
        let first =
            [reports[0].loss / whole[0].loss, reports[0].gradient_norm.unwrap() / whole[0].gradient_norm.unwrap()];
        assert!(first.iter().all(|ratio| (ratio - 1.0).abs() < 1e-6), "{first:?}");
    }
}

#[test]
fn an_overflow_skips_the_step_and_lowers_the_scale_and_a_resumed_run_goes_on_alike() {
    let _turn = turn();
    let data = data();
    let scaling = Scaling::Dynamic(ScalerConfig { initial: 2f64.powi(40), interval: 3, ..ScalerConfig::default() });
    let settings = Settings { scaling: Some(scaling), ..settings(Precision::F16, 5) };
    let new = || trainer(&Net::new(true, &device()), &settings, &data);
    let mut trainer = new();
    let before = floats(trainer.model());
    let mut skipped = 0;
    loop {
        let report = trainer.step(&data).unwrap();
        if !report.skipped {
            assert_eq!(trainer.state().updates(), 1, "the schedule counts updates");
            assert_eq!(report.learning_rate, 0.05, "the first rate is used by the first update");
            assert!(floats(trainer.model()) != before);
            break;
        }
        skipped += 1;
        assert_eq!(report.gradient_norm, None);
        assert!(floats(trainer.model()) == before, "parameters and statistics are as they were");
        assert_eq!(trainer.scaler().scale, 2f64.powi(40 - skipped));
        assert_eq!((trainer.state().step, trainer.state().skipped), (skipped as u64, skipped as u64));
    }
    assert!(skipped > 5, "a scale of 2^40 overflows in f16");

    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path(), 1).unwrap();
    trainer.save_to(&checkpoints).unwrap();
    let mut resumed = new();
    resumed.set_checkpoints(checkpoints.clone());
    resumed.resume().unwrap();
    assert_eq!((resumed.scaler(), resumed.state()), (trainer.scaler(), trainer.state()));
    assert_ne!(resumed.scaler(), ScalerState { scale: 2f64.powi(40), streak: 0 });
    // Another precision would continue with this one's scale.
    let mut other = self::trainer(&Net::new(true, &device()), &self::settings(Precision::F32, 5), &data);
    other.set_checkpoints(checkpoints);
    let refused = other.resume().unwrap_err().to_string();
    assert!(refused.contains("the precision has changed"), "{refused}");
    for _ in 0..6 {
        let reports = [&mut trainer, &mut resumed].map(|trainer| format!("{:?}", trainer.step(&data).unwrap()));
        assert_eq!(reports[0], reports[1]);
        assert!(floats(resumed.model()) == floats(trainer.model()));
    }
}

/// A batch whose parts have given weights.
struct Weighed {
    data: Data,
    weight: usize,
    /// Weights of micro-batches of [`EACH`] samples; none: the true ones.
    parts: Vec<usize>,
}

const EACH: usize = 8;

impl Batch for Weighed {
    fn len(&self) -> usize {
        Batch::len(&self.data)
    }

    fn slice(&self, samples: Range<usize>) -> Self {
        let weight = self.parts.get(samples.start / EACH).copied().unwrap_or(samples.len());
        Self { data: self.data.slice(samples), weight, parts: vec![] }
    }

    fn host_bytes(&self) -> u64 {
        self.data.host_bytes()
    }

    fn weight(&self) -> Weight {
        Weight::Samples(self.weight)
    }
}

#[test]
fn a_step_that_fails_leaves_batch_norm_as_it_was() {
    let _turn = turn();
    type Then = fn(&Net, Tensor<1>) -> Tensor<1>;
    let then: Rc<Cell<Then>> = Rc::new(Cell::new(|_, loss| loss));
    let shared = then.clone();
    let task = LossFn::new(move |pass: &Pass<'_, Net>, batch: &Weighed| {
        shared.get()(pass.model(), entropy(pass, &batch.data))
    });
    let data = data();
    let batch = |weight, parts: &[usize]| Weighed { data: data.clone(), weight, parts: parts.to_vec() };
    let sound = batch(22, &[]);
    let settings = settings(Precision::F32, EACH);
    let mut trainer = builder(task, |device| Net::new(true, device), &settings).build(&device(), &sound).unwrap();
    let _ = trainer.step(&sound).unwrap();
    let before = (floats(trainer.model()), trainer.state());
    then.set(|_, loss| loss * f32::INFINITY);
    let infinite = trainer.step(&sound);
    assert!(matches!(infinite, Err(Error::NotFinite { what: "loss", .. })), "{infinite:?}");
    // The loss is finite and a gradient is not: the derivative of the root at zero.
    then.set(|model, loss| loss + (model.last.weight.val() * 0.0).sqrt().sum());
    let steep = trainer.step(&sound);
    assert!(matches!(steep, Err(Error::NotFinite { what: "norm of the gradients", .. })), "{steep:?}");
    then.set(|_, loss| loss);
    let short = trainer.step(&batch(4, &[1, 1, 1]));
    assert_eq!(
        short.unwrap_err().to_string(),
        "step 2: the batch lacks 1 samples, expected parts that add up to its weight"
    );
    let weights = trainer.step(&batch(2, &[3, 3, 3]));
    assert!(matches!(weights, Err(Error::Accumulation(_))), "{weights:?}");
    let more = trainer.step(&batch(2, &[2, 2, 2]));
    assert!(matches!(more, Err(Error::TooMuch { .. })), "{more:?}");
    then.set(|_, _| panic!("a bug of the task"));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| trainer.step(&sound)));
    assert!(panicked.is_err());
    assert!((floats(trainer.model()), trainer.state()) == before);
    then.set(|_, loss| loss);
    let _ = trainer.step(&sound).unwrap();
}

#[test]
fn statistics_move_once_per_step_whatever_the_micro_batch() {
    // After one step from the initial statistics (mean 0), the running mean is 0.1 times the batch's mean, which is the
    // weighted mean of the micro-batches' means, however the batch was cut. Weights differ: batch-norm normalises by
    // the micro-batch.
    let _turn = turn();
    let (data, net) = (data(), Net::new(true, &device()));
    let mean = |micro| -> Vec<f64> {
        let mut trainer = trainer(&net, &settings(Precision::F32, micro), &data);
        let _ = trainer.step(&data).unwrap();
        let _ = trainer.model().valid();
        trainer.model().batch.as_ref().unwrap().running_mean.value().into_data().iter::<f64>().collect()
    };
    let whole = mean(22);
    for micro in [4, 11] {
        assert!(relative(&mean(micro), &whole) < 1e-5);
    }
}

/// Points and which of their first four coordinates is the largest; class 3 is ignored, as padding is.
struct Points {
    x: Vec<f32>,
    y: Vec<i64>,
}

struct Largest;

impl Points {
    fn load(plan: &BatchPlan) -> Result<Self, kiln_data::Error> {
        let (mut x, mut y) = (vec![], vec![]);
        for id in &plan.ids {
            let point: Vec<f32> = (0..6).map(|i| ((id * 7 + i * 13) % 17) as f32 / 8.0 - 1.0).collect();
            let largest = (0..4).max_by(|a, b| point[*a].total_cmp(&point[*b])).unwrap_or(0);
            y.push(if id % 5 == 0 { 3 } else { largest as i64 % 3 });
            x.extend(point);
        }
        Ok(Self { x, y })
    }
}

impl Batch for Points {
    fn len(&self) -> usize {
        self.y.len()
    }

    fn slice(&self, samples: Range<usize>) -> Self {
        Self { x: self.x[6 * samples.start..6 * samples.end].to_vec(), y: self.y[samples].to_vec() }
    }

    fn host_bytes(&self) -> u64 {
        (4 * self.x.len() + 8 * self.y.len()) as u64
    }

    fn weight(&self) -> Weight {
        Weight::Tokens(self.y.iter().filter(|class| **class != 3).count())
    }
}

impl Task for Largest {
    type Model = Net;
    type Batch = Points;

    fn loss(&self, pass: &Pass<'_, Net>, batch: &Points) -> Tensor<1> {
        let (n, model, device) = (batch.y.len(), pass.model(), pass.device());
        let x = Tensor::<2>::from_data(TensorData::new(batch.x.clone(), [n, 6]), device);
        let y = Tensor::<1, Int>::from_data(TensorData::new(batch.y.clone(), [n]), device);
        let logits = model.last.forward(tanh(model.layer.forward(model.first.forward(x))));
        CrossEntropyLossConfig::new().with_pad_tokens(Some(vec![3])).init(device).forward(logits, y)
    }
}

/// A trainer of `net`'s numbers on points.
fn largest(net: &Net, micro_batch: Option<usize>) -> Trainer<Largest> {
    let sample = Points::load(&BatchPlan { epoch: 0, index: 0, ids: vec![1, 2] }).unwrap();
    builder(Largest, |_| net.copy(), &settings(Precision::F32, micro_batch)).build(&device(), &sample).unwrap()
}

#[test]
fn a_whole_run_in_micro_batches_is_the_run_in_batches() {
    let _turn = turn();
    let net = Net::new(false, &device());
    let run = |micro_batch| {
        let mut trainer = largest(&net, micro_batch);
        let loader = || Loader::new(22, LoaderConfig::new(8), Points::load).unwrap(); // 8, 8 and 6
        let data = TrainTest { train: loader(), test: loader() };
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path(), 1).unwrap();
        trainer.set_checkpoints(checkpoints);
        let parts = Rc::new(RefCell::new(vec![]));
        let noted = parts.clone();
        trainer.observe(move |event| {
            if let Event::Step(report) = event {
                noted.borrow_mut().push(report.micro_batches);
            }
            ControlFlow::Continue(())
        });
        let _ = trainer.fit(&data).unwrap();
        (floats(trainer.model()), parts.take())
    };
    let (expected, whole) = run(None);
    assert_eq!(whole, [1; 20]);
    for (micro_batch, per_epoch) in [(5, [2, 2, 2]), (3, [3, 3, 2]), (8, [1, 1, 1]), (100, [1, 1, 1])] {
        let (got, parts) = run(Some(micro_batch));
        let far = relative(&got, &expected);
        assert!(far < 1e-5, "micro-batches of {micro_batch}: {far}");
        assert_eq!(parts[..3], per_epoch, "micro-batches of {micro_batch}");
    }
    // In micro-batches of one sample those that are ignored are left out.
    let (got, parts) = run(Some(1));
    assert!(relative(&got, &expected) < 1e-5);
    assert_eq!(parts[..3], [6, 6, 5]);
}

#[test]
fn a_batch_of_ignored_targets_is_an_error_that_says_so() {
    let _turn = turn();
    let mut trainer = largest(&Net::new(false, &device()), None);
    let batch = Points { x: vec![0.0; 12], y: vec![3, 3] };
    let error = trainer.step(&batch).unwrap_err().to_string();
    assert!(error.contains("no token of the batch carries a loss"), "{error}");
}
