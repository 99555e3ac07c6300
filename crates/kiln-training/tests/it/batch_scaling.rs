//! The learning rate follows the effective batch, and nothing else.

use std::sync::Arc;
use std::thread;

use kiln_parallel::Local;
use kiln_recovery::{Injector, Ladder, Reclaim, Shrink};
use kiln_training::{BatchRule, BatchScaling, Error, OptimizerConfig, ScheduleConfig, Warmup};

use crate::support::{Ids, Net, Settings, Watched, batch, beside, builder, device, inject, recovery, settings};

const STEPS: u64 = 6;
const SCHEDULE: ScheduleConfig = ScheduleConfig::cosine(0.02).with_warmup(Warmup::Fraction(0.5)).with_floor(0.1);

fn settings_of(micro_batch: Option<usize>) -> Settings {
    Settings { schedule: SCHEDULE.into(), steps: STEPS, micro_batch, ..settings(OptimizerConfig::sgd()) }
}

fn scaling(rule: BatchRule) -> BatchScaling {
    BatchScaling { rule, base_batch: 4 }
}

/// The rates of a run with batches of 16.
fn rates(rule: BatchRule, micro_batch: Option<usize>, faults: Option<Injector>) -> (Vec<f64>, Vec<usize>) {
    let builder = builder(Ids::net(), |_| Net::new(&[8, 8], false, 0.0), &settings_of(micro_batch));
    let mut trainer =
        Watched::build(builder.with(|settings| settings.run.batch_scaling = Some(scaling(rule))), &batch(0, 16));
    if let Some(faults) = faults {
        let ladder = Ladder::new().with(Reclaim { times: 1 }).with(Shrink);
        trainer.set_recovery(Some(recovery(16, 16, ladder)));
        inject(&mut trainer, faults);
    }
    let reports: Vec<_> = (0..STEPS).map(|step| trainer.step(&batch(step, 16)).unwrap()).collect();
    (reports.iter().map(|report| report.learning_rate).collect(), reports.iter().map(|r| r.micro_batches).collect())
}

#[test]
fn the_rate_grows_with_the_batch() {
    let _turn = beside();
    for (rule, factor) in [(BatchRule::Linear, 4.0), (BatchRule::Sqrt, 2.0)] {
        let expected: Vec<f64> = (0..STEPS).map(|step| factor * SCHEDULE.rate(step, STEPS)).collect();
        let (found, _) = rates(rule, None, None);
        assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-15), "{found:?} is not {expected:?}");
    }
}

#[test]
fn micro_batches_and_failures_that_cut_them_leave_the_rate_as_it_is() {
    let _turn = beside();
    let (whole, _) = rates(BatchRule::Linear, None, None);
    assert_eq!(rates(BatchRule::Linear, Some(2), None).0, whole);
    // Batches are cut in two, and later in more.
    for calls in [vec![2, 3], vec![2, 3, 20, 21]] {
        let (found, cut) = rates(BatchRule::Linear, None, Some(Injector::calls(calls.clone())));
        assert!(cut[0] > 1, "{calls:?}: {cut:?}");
        assert_eq!(found, whole, "{calls:?}");
    }
}

#[test]
fn replicas_count() {
    let _turn = beside();
    let (alone, _) = rates(BatchRule::Sqrt, None, None);
    // Each of two replicas has 8 of the 16 samples; it may be told the batch of both or not.
    for batch_size in [Some(16), None] {
        let rates: Vec<Vec<f64>> = thread::scope(|scope| {
            let replica = |communicator: Local| {
                let builder = builder(Ids::net(), |_| Net::new(&[8, 8], false, 0.0), &settings_of(None));
                let builder = builder
                    .with(|settings| settings.run.batch_scaling = Some(scaling(BatchRule::Sqrt)))
                    .with_replicas(Arc::new(communicator));
                let builder = match batch_size {
                    Some(samples) => builder.with_batch_size(samples),
                    None => builder,
                };
                let mut trainer = builder.build(&device(), &batch(0, 8)).unwrap();
                (0..STEPS).map(|step| trainer.step(&batch(step, 8)).unwrap().learning_rate).collect()
            };
            let threads: Vec<_> =
                Local::group(2).into_iter().map(|member| scope.spawn(move || replica(member))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(rates, [alone.clone(), alone.clone()], "{batch_size:?}");
    }
}

#[test]
fn a_rate_that_cannot_be_scaled_ends_the_building() {
    let _turn = beside();
    let build = |rule, base_batch, schedule: ScheduleConfig| {
        let settings = Settings { schedule: schedule.into(), ..settings_of(None) };
        let builder = builder(Ids::net(), |_| Net::new(&[8, 8], false, 0.0), &settings);
        builder
            .with(|settings| settings.run.batch_scaling = Some(BatchScaling { rule, base_batch }))
            .build(&device(), &batch(0, 16))
            .map(|_| ())
    };
    let cold = SCHEDULE.with_warmup(Warmup::NONE);
    for (rule, base_batch, schedule) in [(BatchRule::Sqrt, 0, SCHEDULE), (BatchRule::Linear, 4, cold)] {
        assert!(matches!(build(rule, base_batch, schedule), Err(Error::InvalidSetting { .. })));
    }
    assert!(build(BatchRule::Linear, 16, cold).is_ok());
}
