//! The memory that stages hold during a run, after it, and after a failure.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Distribution, Gradients, Tensor};
use kiln_parallel::{Action, Error, Execution, Pipeline, Schedule, StageBoundary, Stopped};

use crate::allocator::{live, peak};

const WIDTH: usize = 32;
const ROWS: usize = 1024;
/// A tensor between two blocks. burn's own tables grow now and then by less than half of it.
const BOUNDARY: usize = ROWS * WIDTH * size_of::<f32>();
const SCHEDULES: [Schedule; 3] = [Schedule::Sequential, Schedule::GPipe, Schedule::OneForwardOneBackward];
const EXECUTIONS: [Execution; 2] = [Execution::Threads, Execution::Serial];

/// The allocator counts for the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Module, Debug)]
struct Block {
    norm: LayerNorm,
    linear: Linear,
}

/// Blocks of each stage.
type Stages = Vec<Vec<Block>>;

fn device() -> Device {
    Device::flex().autodiff()
}

fn stages(blocks: &[usize]) -> Stages {
    let norm = || LayerNormConfig::new(WIDTH).init(&device());
    let linear = || LinearConfig::new(WIDTH, WIDTH).init(&device());
    let block = |_| Block { norm: norm(), linear: linear() };
    blocks.iter().map(|blocks| (0..*blocks).map(block).collect()).collect()
}

fn input() -> Tensor<2> {
    Tensor::random([ROWS, WIDTH], Distribution::Default, &device())
}

fn forward<E: From<Error>>(stages: &Stages, x: Tensor<2>, boundary: &StageBoundary<'_>) -> Result<Tensor<1>, E> {
    let mut x = x;
    for (stage, blocks) in stages.iter().enumerate() {
        if stage > 0 {
            x = boundary.next(x, &device())?;
        }
        x = blocks.iter().fold(x, |x, block| relu(block.linear.forward(block.norm.forward(x))));
    }
    Ok(x.mean())
}

fn drop_them(_: usize, _: usize, _: Gradients) -> Result<(), Error> {
    Ok(())
}

/// The bytes of the activations of all micro-batches of a run at its worst moment.
fn worst(schedule: Schedule, stages: &Stages, micro_batches: usize) -> usize {
    let pipeline = Pipeline::new(schedule, stages.len(), micro_batches).unwrap().execution(Execution::Serial);
    let input = input();
    let run = || pipeline.run(|_, boundary| forward(stages, input.clone(), boundary), drop_them);
    run().unwrap(); // the first run allocates what stays
    let (ran, bytes) = peak(run);
    ran.unwrap();
    bytes
}

#[test]
fn one_forward_one_backward_holds_as_many_micro_batches_as_there_are_stages() {
    let _alone = alone();
    // Nearly all activations are those of the first of four stages.
    let stages = stages(&[12, 0, 0, 1]);
    let one = worst(Schedule::Sequential, &stages, 8);
    let four = worst(Schedule::OneForwardOneBackward, &stages, 8);
    let eight = worst(Schedule::GPipe, &stages, 8);
    assert!(one > 12 * BOUNDARY, "{one}");
    assert!(four as f64 <= 0.55 * eight as f64, "{four} of {eight}");
    assert!(four as f64 >= 3.5 * one as f64 * 0.8, "{four} against {one}");
}

#[test]
fn a_stage_frees_its_activations_at_the_end_of_its_backward_pass() {
    let _alone = alone();
    const BLOCKS: usize = 24;
    // A block keeps at least the normalised tensor, the norm's output and the output of relu.
    const LEAST: usize = BLOCKS * 3 * BOUNDARY;
    let stages = stages(&[BLOCKS, BLOCKS]);
    let pipeline = Pipeline::new(Schedule::Sequential, 2, 1).unwrap().execution(Execution::Serial);
    let input = input();
    let seen = Mutex::new(vec![]);
    let run = || {
        let guard = |_, _| {
            seen.lock().unwrap().push(live());
            Ok(())
        };
        pipeline.run_guarded(|_, boundary| forward(&stages, input.clone(), boundary), drop_them, guard).unwrap();
    };
    run();
    seen.lock().unwrap().clear();
    let begin = live();
    run();
    let end = live();
    let seen: Vec<usize> = seen.lock().unwrap().iter().map(|live| live.saturating_sub(begin)).collect();
    let [_, one_forward, two_forward, one_back] = seen[..] else { panic!("{seen:?}") };
    assert!(one_forward > LEAST && two_forward > 2 * LEAST, "{seen:?}");
    assert!(two_forward - one_back > LEAST, "the second stage keeps activations: {seen:?}");
    assert!(one_back > LEAST, "{seen:?}");
    assert!(end.abs_diff(begin) < BOUNDARY / 2, "the first stage keeps activations: {begin} before, {end} after");
}

/// Fails in one action of one stage.
#[derive(Clone, Copy, Debug)]
struct Failing {
    stage: usize,
    action: Action,
    panics: bool,
}

impl Failing {
    fn at(self, stage: usize, action: Action) -> Result<(), Error> {
        if (stage, action) != (self.stage, self.action) {
            return Ok(());
        }
        if self.panics {
            resume_unwind(Box::new("injected"));
        }
        Err(Error::Transfer { operation: "test", reason: "injected".into() })
    }
}

#[test]
fn a_failed_run_leaves_nothing_behind() {
    let _alone = alone();
    let input = input();
    for (schedule, execution) in
        SCHEDULES.into_iter().flat_map(|schedule| EXECUTIONS.map(|execution| (schedule, execution)))
    {
        let pipeline = Pipeline::new(schedule, 3, 3).unwrap().execution(execution);
        // New leaves for each run, so that no later backward pass can release what this one left.
        let run = |failing: Failing, before: bool| {
            let stages = stages(&[2, 2, 2]);
            let fails = |stage, action, now: bool| if now { failing.at(stage, action) } else { Ok(()) };
            let work = || {
                pipeline.run_guarded(
                    |_, boundary| forward(&stages, input.clone(), boundary),
                    |stage, i, _| fails(stage, Action::Backward(i), !before),
                    |stage, action| fails(stage, action, before),
                )
            };
            match catch_unwind(AssertUnwindSafe(work)) {
                Ok(ran) => assert!(matches!(ran, Err(Stopped::Failed { .. }))),
                Err(payload) => assert!(failing.panics && payload.is::<&str>()),
            }
        };
        let mut places = vec![];
        for (stage, actions) in schedule.actions(3, 3).into_iter().enumerate() {
            for action in actions {
                places.extend([true, false].map(|panics| (Failing { stage, action, panics }, true)));
                if let Action::Backward(_) = action {
                    places.extend([true, false].map(|panics| (Failing { stage, action, panics }, false)));
                }
            }
        }
        // A run without a failure allocates what stays: buffers of this thread for matrix products.
        let stages = stages(&[2, 2, 2]);
        pipeline.run(|_, boundary| forward(&stages, input.clone(), boundary), drop_them).unwrap();
        for (failing, before) in places {
            let live_before = live();
            run(failing, before);
            let left = live().saturating_sub(live_before);
            assert!(left < BOUNDARY / 2, "{left} bytes are left after {failing:?}, {schedule}, {execution:?}");
        }
    }
}

#[test]
fn a_forward_pass_that_fails_after_the_first_stage_leaves_nothing_behind() {
    let _alone = alone();
    let input = input();
    for execution in EXECUTIONS {
        let pipeline = Pipeline::new(Schedule::GPipe, 3, 3).unwrap().execution(execution);
        let mut before = 0;
        for round in 0..3 {
            let stages = stages(&[2, 2, 2]);
            // The first round allocates what stays. What it leaves by mistake is small, so that the other rounds' is not taken for it.
            let input = if round == 0 { input.clone().slice([0..1, 0..WIDTH]) } else { input.clone() };
            let failing = |_: usize, boundary: &StageBoundary<'_>| {
                let x = stages[0].iter().fold(input.clone(), |x, block| block.linear.forward(x));
                let x = boundary.next(x, &device())?;
                let _lost = stages[1].iter().fold(x, |x, block| relu(block.linear.forward(block.norm.forward(x))));
                Err(Error::Transfer { operation: "test", reason: "injected".into() })
            };
            let stopped = pipeline.run(failing, drop_them).unwrap_err();
            assert!(matches!(stopped, Stopped::Failed { stage: 1, action: Action::Forward(_), .. }));
            drop(stages);
            if round == 0 {
                before = live();
            }
        }
        let left = live().saturating_sub(before);
        eprintln!("LEFT {left} {execution:?}");
    }
}

#[test]
fn a_stage_that_no_gradient_reaches_leaves_nothing_behind() {
    let _alone = alone();
    let input = input();
    let learned = Tensor::<1>::ones([WIDTH], &device()).require_grad();
    for execution in EXECUTIONS {
        let pipeline = Pipeline::new(Schedule::OneForwardOneBackward, 2, 4).unwrap().execution(execution);
        let run = |input: Tensor<2>| {
            let blocks = stages(&[4]);
            let forward = |_: usize, boundary: &StageBoundary<'_>| {
                let x =
                    blocks[0].iter().fold(input.clone(), |x, block| relu(block.linear.forward(block.norm.forward(x))));
                let _unused = boundary.next(x, &device())?;
                Ok(learned.clone().mul_scalar(2).sum())
            };
            pipeline.run(forward, drop_them).unwrap();
        };
        run(input.clone().slice([0..1, 0..WIDTH]));
        let before = live();
        run(input.clone());
        let left = live().saturating_sub(before);
        assert!(left < BOUNDARY / 2, "{left} bytes are left, {execution:?}");
    }
}

#[test]
fn what_a_failure_inside_of_the_first_stage_leaves_is_released_by_the_next_backward_pass() {
    let _alone = alone();
    let (input, stages) = (input(), stages(&[4, 1]));
    for execution in EXECUTIONS {
        let pipeline = Pipeline::new(Schedule::GPipe, 2, 2).unwrap().execution(execution);
        let complete = || pipeline.run(|_, boundary| forward(&stages, input.clone(), boundary), drop_them).unwrap();
        drop(complete());
        let before = live();
        let failing = |_: usize, _: &StageBoundary<'_>| {
            let _lost = stages[0].iter().fold(input.clone(), |x, block| block.linear.forward(x));
            Err(Error::Transfer { operation: "test", reason: "injected".into() })
        };
        let stopped = pipeline.run(failing, drop_them).unwrap_err();
        assert!(matches!(stopped, Stopped::Failed { stage: 0, action: Action::Forward(0), .. }));
        drop(complete());
        let left = live().saturating_sub(before);
        assert!(left < BOUNDARY / 2, "{left} bytes are left, {execution:?}");
    }
}
