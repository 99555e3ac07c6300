//! Losses and gradients of stages are those of a plain loop, bit for bit.

use std::sync::Mutex;

use burn::tensor::{Distribution, FloatDType, Int, Tensor};
use kiln_parallel::{Action, Error, Execution, Pipeline, Schedule, StageBoundary, Stopped};
use proptest::prelude::*;
use proptest::sample::select;

use crate::model::{Chain, WIDTH, device, in_stages, inputs, plainly};

pub(crate) const SCHEDULES: [Schedule; 3] = [Schedule::Sequential, Schedule::GPipe, Schedule::OneForwardOneBackward];
pub(crate) const EXECUTIONS: [Execution; 2] = [Execution::Threads, Execution::Serial];

#[test]
fn every_schedule_and_way_has_the_bits_of_a_plain_loop() {
    for stages in 1..=4 {
        let model = Chain::new(5, false);
        let cuts: Vec<usize> = (1..stages).collect();
        for micro_batches in 1..=6 {
            let models = vec![model.clone(); micro_batches];
            let inputs = inputs(micro_batches);
            let expected = plainly(&models, &inputs);
            assert_eq!(expected.gradients.len(), 2 + 2 + 5 * 4, "of every parameter");
            for (schedule, execution) in
                SCHEDULES.into_iter().flat_map(|schedule| EXECUTIONS.map(|execution| (schedule, execution)))
            {
                let pipeline = Pipeline::new(schedule, stages, micro_batches).unwrap().execution(execution);
                let (found, ran) = in_stages(&pipeline, &models, &inputs, &cuts).unwrap();
                assert_eq!(
                    found, expected,
                    "{schedule}, {stages} stages, {micro_batches} micro-batches, {execution:?}"
                );
                for (stage, expected) in schedule.actions(stages, micro_batches).into_iter().enumerate() {
                    let work = ran.timeline.work.iter().filter(|work| work.stage == stage);
                    assert_eq!(work.map(|work| work.action).collect::<Vec<_>>(), expected);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Stages may be empty. A tied weight is used by the first and by the last stage.
    #[test]
    fn cuts_ties_and_dtypes_keep_the_bits(
        blocks in 0usize..6,
        places in prop::collection::vec(0usize..6, 0..4),
        micro_batches in 1usize..=6,
        schedule in select(&SCHEDULES),
        execution in select(&EXECUTIONS),
        tied: bool,
        dtype in select(&[FloatDType::F32, FloatDType::F16, FloatDType::BF16]),
    ) {
        let mut cuts: Vec<usize> = places.into_iter().map(|place| place.min(blocks)).collect();
        cuts.sort_unstable();
        let model = Chain::new(blocks, tied);
        // New leaves for each micro-batch, as a weight that two stages use needs.
        let models: Vec<Chain> = (0..micro_batches).map(|_| model.renewed(Some(dtype))).collect();
        let inputs: Vec<_> = inputs(micro_batches).into_iter().map(|input| input.cast(dtype)).collect();
        let expected = plainly(&models, &inputs);
        prop_assert!(!expected.gradients.is_empty());
        let pipeline = Pipeline::new(schedule, cuts.len() + 1, micro_batches).unwrap().execution(execution);
        let (found, _) = in_stages(&pipeline, &models, &inputs, &cuts).unwrap();
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn a_stage_has_its_gradients_in_the_order_of_micro_batches() {
    let model = Chain::new(2, false);
    let inputs = inputs(5);
    for (schedule, execution) in
        SCHEDULES.into_iter().flat_map(|schedule| EXECUTIONS.map(|execution| (schedule, execution)))
    {
        let order = Mutex::new(vec![vec![]; 3]);
        let pipeline = Pipeline::new(schedule, 3, 5).unwrap().execution(execution);
        let forward = |i: usize, boundary: &StageBoundary<'_>| {
            assert_eq!((boundary.micro_batch(), boundary.stage()), (i, 0));
            let loss = model.forward::<Error>(inputs[i].clone().autodiff(), &[1, 2], Some(boundary));
            assert_eq!(boundary.stage(), 2);
            loss
        };
        let ran = pipeline.run(forward, |stage, micro_batch, _| {
            order.lock().unwrap()[stage].push(micro_batch);
            Ok(())
        });
        ran.unwrap();
        assert_eq!(order.into_inner().unwrap(), vec![vec![0, 1, 2, 3, 4]; 3]);
    }
}

#[test]
fn tensors_of_any_rank_and_kind_go_along() {
    for execution in EXECUTIONS {
        let weight = Tensor::<2>::random([WIDTH, WIDTH], Distribution::Default, &device()).require_grad();
        let input = Tensor::<2>::random([4, WIDTH], Distribution::Default, &device());
        let targets = Tensor::<1, Int>::from_ints([1, 0, 3, 2], &device());
        let part = |weight: &Tensor<2>| {
            let x = input.clone().matmul(weight.clone());
            let wide: Tensor<3> = x.clone().reshape([2, 2, WIDTH]);
            (x, wide)
        };
        let rest = |x: Tensor<2>, wide: Tensor<3>, constant: Tensor<2>, targets: Tensor<1, Int>| {
            let x = x.select(0, targets) * constant;
            x.sum() + wide.powi_scalar(2).mean()
        };
        let expected = {
            let (x, wide) = part(&weight);
            let loss = rest(x, wide, input.clone(), targets.clone());
            weight.grad(&loss.backward()).unwrap().into_data()
        };
        let found = Mutex::new(None);
        let forward = |_: usize, boundary: &StageBoundary<'_>| -> Result<_, Error> {
            let (x, wide) = part(&weight);
            let (x, wide) = (boundary.carry(x, &device()), boundary.carry(wide, &device()));
            let constant = boundary.carry(input.clone(), &device());
            assert!(x.is_require_grad() && wide.is_require_grad() && !constant.is_tracked());
            let targets = targets.clone().to_device(&device());
            boundary.arrive()?;
            Ok(rest(x, wide, constant, targets))
        };
        let ran =
            Pipeline::new(Schedule::GPipe, 2, 1).unwrap().execution(execution).run(forward, |stage, _, gradients| {
                if stage == 0 {
                    *found.lock().unwrap() = weight.grad(&gradients);
                }
                Ok(())
            });
        ran.unwrap();
        assert_eq!(found.into_inner().unwrap().unwrap().into_data(), expected);
    }
}

/// Stages whose gradients were taken, each once for each micro-batch.
fn taken(forward: impl Fn(&StageBoundary<'_>) -> Result<Tensor<1>, Error> + Sync, execution: Execution) -> Vec<usize> {
    let taken = Mutex::new(vec![]);
    let pipeline = Pipeline::new(Schedule::OneForwardOneBackward, 3, 2).unwrap().execution(execution);
    let ran = pipeline.run(
        |_, boundary| forward(boundary),
        |stage, _, _| {
            taken.lock().unwrap().push(stage);
            Ok(())
        },
    );
    ran.unwrap();
    let mut taken = taken.into_inner().unwrap();
    taken.sort_unstable();
    taken
}

#[test]
fn stages_that_no_gradient_reaches_are_passed_over() {
    for execution in EXECUTIONS {
        let leaf = || Tensor::<1>::ones([4], &device()).require_grad();
        let device = device();
        // Nothing is learned in the first stage, as in a frozen part of a model.
        let frozen = |boundary: &StageBoundary<'_>| {
            let x = boundary.next(Tensor::<1>::ones([4], &device) * 2, &device)?;
            let x = boundary.next(x * leaf(), &device)?;
            Ok((x * leaf()).sum())
        };
        assert_eq!(taken(frozen, execution), [1, 1, 2, 2]);
        // The second stage makes no use of what the first one computed.
        let unused = |boundary: &StageBoundary<'_>| {
            let _ = boundary.next(leaf() * 2, &device)?;
            let x = boundary.next(leaf() * 3, &device)?;
            Ok((x * leaf()).sum())
        };
        assert_eq!(taken(unused, execution), [1, 1, 2, 2]);
        // One of two tensors is used.
        let one_of_two = |boundary: &StageBoundary<'_>| {
            let shared = leaf() * 2;
            let (used, unused) = (boundary.carry(shared.clone() + 1, &device), boundary.carry(shared * 3, &device));
            boundary.arrive()?;
            drop(unused);
            let x = boundary.next(used * leaf(), &device)?;
            Ok(x.sum())
        };
        assert_eq!(taken(one_of_two, execution), [0, 0, 1, 1, 2, 2]);
    }
}

#[test]
fn a_forward_pass_must_have_as_many_stages_as_the_pipeline() {
    let model = Chain::new(3, false);
    let inputs = inputs(2);
    for execution in EXECUTIONS {
        let pipeline = Pipeline::new(Schedule::GPipe, 3, 2).unwrap().execution(execution);
        let run = |cuts| in_stages(&pipeline, &vec![model.clone(); 2], &inputs, cuts).map(|_| ()).unwrap_err();
        let few = run(&[1]);
        assert_eq!(few.to_string(), "the forward pass of micro-batch 0 came to a stage 2, expected 3 stages");
        let many = Error::StageCount { micro_batch: 0, found: 4, expected: 3 };
        assert_eq!(run(&[1, 2, 3]), Stopped::Failed { stage: 2, action: Action::Forward(0), error: many });
    }
    assert!(matches!(Pipeline::new(Schedule::GPipe, 0, 2), Err(Error::InvalidSetting { name: "stages", .. })));
}

#[test]
fn no_micro_batches_are_no_work() {
    for execution in EXECUTIONS {
        let pipeline = Pipeline::new(Schedule::GPipe, 2, 0).unwrap().execution(execution);
        let ran = pipeline.run(|_, _| Err(()), |_, _, _| Err(())).unwrap();
        assert!(ran.losses.is_empty() && ran.timeline.work.is_empty());
    }
}
