//! A step in micro-batches equals the step on the whole batch; an overflow skips a step and nothing else.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use burn::tensor::Tensor;
use kiln_accumulation::Weight;
use kiln_precision::{Policy, Precision, ScalerConfig, ScalerState, Scaling};
use kiln_training::{Batch, Checkpoints, Error, LossFn, OptimizerConfig, Pass};

use crate::case::{Case, Make, Model, Parts, Way, bytes_of};
use crate::support::{self, Net, Settings, Snapshot, Watched, beside, builder, temporary, turn};

/// A run of batches of 22 samples. (Not Adam: its first step is the sign of the gradient, even if the gradient is a rounding error.)
fn case(norms: bool, micro_batch: usize) -> Case {
    let make = Make::Chain(Parts { norms, ..Parts::new(1) });
    let case = Case::new(make, OptimizerConfig::sgd(), 22, micro_batch);
    case.with(|settings| Settings { schedule: 0.05.into(), ..settings })
}

#[test]
fn ten_steps_in_any_micro_batch_are_ten_steps_on_the_batch() {
    let _turn = turn();
    let run = |micro_batch| case(false, micro_batch).steps(10).run(&Way::default());
    let whole = run(22);
    assert!(whole.reports[9].loss < 0.9 * whole.reports[0].loss, "it learns: {:?}", whole.reports);
    for micro_batch in [1, 3, 7, 11, 21] {
        let got = run(micro_batch);
        let far = got.snapshot.unwrap().distance(whole.snapshot.as_ref().unwrap());
        assert!(far < 1e-5, "micro-batches of {micro_batch}: {far}");
        assert_eq!(got.reports[0].micro_batches, 22usize.div_ceil(micro_batch));
        let [first, expected] = [got.reports[0], whole.reports[0]];
        let ratios = [first.loss / expected.loss, first.gradient_norm.unwrap() / expected.gradient_norm.unwrap()];
        assert!(ratios.iter().all(|ratio| (ratio - 1.0).abs() < 1e-6), "{ratios:?}");
    }
}

/// Epochs of 8, 8 and 6 samples, some of which carry no loss, as padding does.
#[test]
fn a_whole_run_in_micro_batches_is_the_run_in_batches() {
    let _turn = turn();
    let run = |micro_batch| {
        let case = Case { sizes: vec![8, 8, 6], tokens: |id| usize::from(id % 5 > 0), ..case(false, micro_batch) };
        let outcome = case.steps(20).run(&Way::default());
        let parts: Vec<usize> = outcome.reports.iter().map(|report| report.micro_batches).collect();
        (outcome.snapshot.unwrap(), parts)
    };
    let (expected, whole) = run(100);
    assert_eq!(whole, [1; 20]);
    // In micro-batches of one sample those that are ignored are left out.
    for (micro_batch, per_epoch) in [(5, [2, 2, 2]), (3, [3, 3, 2]), (8, [1, 1, 1]), (1, [6, 6, 5])] {
        let (got, parts) = run(micro_batch);
        let far = got.distance(&expected);
        assert!(far < 1e-5, "micro-batches of {micro_batch}: {far}");
        assert_eq!(parts[..3], per_epoch, "micro-batches of {micro_batch}");
    }
}

#[test]
fn a_batch_of_ignored_targets_is_an_error_that_says_so() {
    let _turn = beside();
    let case = Case { tokens: |_| 0, ..case(false, 2) };
    let error = case.trainer(&Way::default()).step(&case.batch(0)).unwrap_err().to_string();
    assert!(error.contains("no token of the batch carries a loss"), "{error}");
}

/// The laws interrupt runs in which a step overflows; here is what such a step changes.
#[test]
fn an_overflow_skips_the_step_and_lowers_the_scale() {
    let _turn = turn();
    let scaling = Scaling::Dynamic(ScalerConfig { initial: 2f64.powi(40), interval: 3, ..ScalerConfig::default() });
    let policy = Policy::new(Precision::F16);
    let case = case(true, 5).with(|settings| Settings { policy, scaling: Some(scaling), ..settings });
    let batch = case.batch(0);
    let mut trainer = case.trainer(&Way::default());
    let before = bytes_of(trainer.model());
    let mut skipped = 0;
    loop {
        let report = trainer.step(&batch).unwrap();
        if !report.skipped {
            assert_eq!(trainer.state().updates(), 1, "the schedule counts updates");
            assert_eq!(report.learning_rate, 0.05, "the first rate is used by the first update");
            assert!(bytes_of(trainer.model()) != before);
            break;
        }
        skipped += 1;
        assert_eq!(report.gradient_norm, None);
        assert!(bytes_of(trainer.model()) == before, "parameters and statistics are as they were");
        assert_eq!(trainer.scaler().scale, 2f64.powi(40 - skipped));
        assert_eq!((trainer.state().step, trainer.state().skipped), (skipped as u64, skipped as u64));
    }
    assert!(skipped > 5, "a scale of 2^40 overflows in f16");

    let folder = temporary();
    let checkpoints = Checkpoints::new(folder.path(), 1).unwrap();
    trainer.save_to(&checkpoints).unwrap();
    let mut resumed = case.trainer(&Way::default());
    resumed.set_checkpoints(checkpoints.clone());
    resumed.resume().unwrap();
    assert_eq!((resumed.scaler(), resumed.state()), (trainer.scaler(), trainer.state()));
    assert_ne!(resumed.scaler(), ScalerState { scale: 2f64.powi(40), streak: 0 });
    for _ in 0..6 {
        let reports = [&mut trainer, &mut resumed].map(|trainer| format!("{:?}", trainer.step(&batch).unwrap()));
        assert_eq!(reports[0], reports[1]);
    }
    Snapshot::of(&resumed).assert_same(&Snapshot::of(&trainer), "resumed");
    // Another precision would continue with this one's scale.
    let mut other = self::case(true, 5).trainer(&Way::default());
    other.set_checkpoints(checkpoints);
    let refused = other.resume().unwrap_err().to_string();
    assert!(refused.contains("the precision has changed"), "{refused}");
}

/// A batch whose parts have given weights.
struct Weighed {
    ids: Vec<usize>,
    weight: usize,
    /// Weights of micro-batches of [`EACH`] samples; none: the true ones.
    parts: Vec<usize>,
}

const EACH: usize = 8;

impl Batch for Weighed {
    fn len(&self) -> usize {
        self.ids.len()
    }

    fn slice(&self, samples: Range<usize>) -> Self {
        let weight = self.parts.get(samples.start / EACH).copied().unwrap_or(samples.len());
        Self { ids: self.ids[samples].to_vec(), weight, parts: vec![] }
    }

    fn slice_bytes(&self) -> u64 {
        8 * self.ids.len() as u64
    }

    fn weight(&self) -> Weight {
        Weight::Samples(self.weight)
    }
}

#[test]
fn a_step_that_fails_leaves_batch_norm_as_it_was() {
    let _turn = beside();
    type Then = fn(&Net, Tensor<1>) -> Tensor<1>;
    let then: Rc<Cell<Then>> = Rc::new(Cell::new(|_, loss| loss));
    let shared = then.clone();
    let task = LossFn::new(move |pass: &Pass<'_, Net>, batch: &Weighed| {
        shared.get()(pass.model(), pass.model().loss(&batch.ids, pass.device()))
    });
    let batch = |weight, parts: &[usize]| Weighed { ids: (0..22).collect(), weight, parts: parts.to_vec() };
    let sound = batch(22, &[]);
    let settings = Settings { micro_batch: Some(EACH), ..support::settings(OptimizerConfig::sgd()) };
    let mut trainer = Watched::build(builder(task, |_| Net::new(&[6, 16], true, 0.0), &settings), &sound);
    let _ = trainer.step(&sound).unwrap();
    let before = Snapshot::of(&trainer);
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
    Snapshot::of(&trainer).assert_same(&before, "after steps that failed");
    then.set(|_, loss| loss);
    let _ = trainer.step(&sound).unwrap();
}

/// After one step from the initial statistics (mean 0), the running mean is 0.1 times the batch's mean, which is the weighted mean of the
/// micro-batches' means, however the batch was cut. Weights differ: batch-norm normalises by the micro-batch.
#[test]
fn statistics_move_once_per_step_whatever_the_micro_batch() {
    let _turn = turn();
    let mean = |micro_batch| -> Vec<f64> {
        let case = case(true, micro_batch);
        let mut trainer = case.trainer(&Way::default());
        let _ = trainer.step(&case.batch(0)).unwrap();
        let _ = burn::module::Module::valid(trainer.model());
        let Model::Chain(chain) = trainer.model() else { unreachable!("it is a chain") };
        chain.norm.as_ref().unwrap().running_mean.value().into_data().iter::<f64>().collect()
    };
    let whole = mean(22);
    for micro_batch in [4, 11] {
        let near = |(a, b): (f64, &f64)| (a - b).abs() < 1e-5 * b.abs().max(1e-2);
        assert!(mean(micro_batch).into_iter().zip(&whole).all(near), "micro-batches of {micro_batch}");
    }
}
