//! Changes that lower the peak of a step: their peaks are those of the changed steps, and compared settings are never chosen.

use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{DType, Tensor};
use kiln_memory::BackendProfile;
use kiln_precision::Precision;
use kiln_training::{
    Error, MemoryBudget, OptimizerConfig, Pass, PlannedOptimizer, Planner, Remedy, StepChange, Task, Trainer,
    TrainerBuilder,
};

use crate::support::{batch, beside, classes, device, entropy, inputs};

const WIDTH: usize = 64;
const BATCH: usize = 512;

/// A chain of linear layers; the batch is numbers that inputs are made from.
struct Chain;

impl Task for Chain {
    type Model = Vec<Linear>;
    type Batch = Vec<usize>;

    fn loss(&self, pass: &Pass<'_, Vec<Linear>>, ids: &Vec<usize>) -> Tensor<1> {
        let x = inputs(ids, [ids.len(), WIDTH], pass.device()).cast(pass.model()[0].weight.val().dtype());
        let x = pass.chain(pass.model(), x, |layer: &Linear, x: Tensor<2>| tanh(layer.forward(x)));
        entropy(x.cast(DType::F32), classes(ids, pass.device()))
    }
}

fn builder() -> TrainerBuilder<'static, Chain> {
    Trainer::builder(Chain, |device| (0..9).map(|_| LinearConfig::new(WIDTH, WIDTH).init(device)).collect())
        .with_optimizer(|model: &Vec<Linear>| OptimizerConfig::adamw().groups(model))
        .with_batch_size(BATCH)
        .with_steps(1)
}

fn comparing() -> TrainerBuilder<'static, Chain> {
    let small = OptimizerConfig::named("adamw8bit").unwrap();
    builder()
        .with(|settings| settings.memory.compared_precisions.push(Precision::BF16))
        .with_compared_optimizer("adamw8bit", move |model| small.groups(model))
}

fn planner(builder: &TrainerBuilder<'static, Chain>) -> Planner {
    builder.planner(&BackendProfile::flex(), &batch(0, 8), BATCH).unwrap()
}

fn changes(remedies: &[Remedy]) -> Vec<StepChange> {
    remedies.iter().map(|remedy| remedy.change).collect()
}

#[test]
fn remedies_have_the_peaks_of_the_changed_steps() {
    let _turn = beside();
    let trainer = comparing().build(&device(), &batch(0, 8)).unwrap();
    let plan = trainer.plan().unwrap().clone();
    let remedies = trainer.remedies().unwrap();
    let planner = planner(&builder());
    for change in [StepChange::MicroBatch, StepChange::Checkpoints, StepChange::MicroBatchAndCheckpoints] {
        assert!(changes(&remedies).contains(&change), "{remedies:?}");
    }
    for remedy in &remedies {
        assert_eq!(remedy.saved_bytes, plan.peak_bytes - remedy.plan.peak_bytes);
        assert!(remedy.saved_bytes > 0 && remedy.relative_time > 0.0, "{remedy:?}");
        // Those of the run's own precision and optimizer are steps that a plain planner predicts too.
        if remedy.plan.precision == Precision::F32 && remedy.plan.optimizer == PlannedOptimizer::Own {
            assert_eq!(planner.predict(&remedy.plan).unwrap().peak_bytes, remedy.plan.peak_bytes, "{remedy:?}");
        }
        if remedy.change == StepChange::Checkpoints {
            assert!(remedy.plan.checkpoints.recomputed() > 0 && remedy.relative_time > 1.0, "{remedy:?}");
        }
    }
    assert!(
        remedies.is_sorted_by_key(|remedy| std::cmp::Reverse(remedy.saved_bytes)),
        "without a budget, most saved first"
    );
}

#[test]
fn what_is_compared_is_listed_and_never_chosen() {
    let _turn = beside();
    let of = |builder: &TrainerBuilder<'static, Chain>| {
        let planner = planner(builder);
        let plan = planner.choose(u64::MAX).unwrap();
        changes(&planner.remedies(&plan, None).unwrap())
    };
    let (plain, compared) = (of(&builder()), of(&comparing()));
    assert!(!plain.contains(&StepChange::Precision) && !plain.contains(&StepChange::Optimizer));
    assert!(compared.contains(&StepChange::Precision) && compared.contains(&StepChange::Optimizer), "{compared:?}");
    // A budget that nothing in the run's own precision fits into.
    let Err(Error::NothingFits { least: (least, _), .. }) = planner(&comparing()).choose(1) else {
        panic!("1 byte is enough")
    };
    assert!(planner(&comparing()).choose(least - least / 10).is_err());
}

#[test]
fn with_a_budget_what_fits_comes_first() {
    let _turn = beside();
    let peak = builder().build(&device(), &batch(0, 8)).unwrap().plan().unwrap().peak_bytes;
    let kept =
        builder().with_memory(MemoryBudget::Bytes(peak * 3 / 4)).with(|settings| settings.memory.fixed_plan = true);
    let trainer = kept.build(&device(), &batch(0, 8)).unwrap();
    let remedies = trainer.remedies().unwrap();
    assert!(remedies.first().is_some_and(|remedy| remedy.plan.fits), "{remedies:?}");
    assert!(remedies.is_sorted_by_key(|remedy| !remedy.plan.fits));
    for remedy in remedies {
        assert!(!remedy.plan.fits || remedy.plan.peak_bytes <= peak * 3 / 4);
    }
}
