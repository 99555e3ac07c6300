//! Failures that the ladder answers with smaller micro-batches, with another try, or not at all. (The laws repeat a step as it was.)

use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Tensor;
use kiln_recovery::{Failure, Injector, Kind, Ladder, Remedy, Shrink};
use kiln_training::{Boundary, Error, OptimizerConfig, StepReport};
use proptest::prelude::*;

use crate::case::{Case, Make, Parts, Way, gpt};
use crate::laws::sets_of;
use crate::support::{
    Ids, Loss, Net, Settings, Snapshot, batch, beside, inject, numbers, reclaim, recovery, settings, trainer, turn,
};

const STEPS: u64 = 3;

// Batch-norm normalises each micro-batch, so that another split is another function. So is dropout, whose masks are drawn per
// micro-batch. The models here have neither.
#[test]
fn a_failure_that_cuts_the_batch_smaller_changes_roundings_only() {
    let _turn = turn();
    // Its first step divides the gradient by its size: with a small epsilon, rounding errors of gradients that are zero
    // would become steps.
    let OptimizerConfig::AdamW { beta1, beta2, weight_decay, .. } = OptimizerConfig::adamw() else { unreachable!() };
    let adamw = OptimizerConfig::AdamW { beta1, beta2, epsilon: 1e-2, weight_decay };
    let chain = Make::Chain(Parts { norms: false, ..Parts::new(2) });
    for (make, optimizer) in
        [Make::Gpt(gpt(0.0, false)), chain].iter().flat_map(|make| [adamw, OptimizerConfig::sgd()].map(|of| (make, of)))
    {
        let case = Case::new(make.clone(), optimizer, 6, 6);
        let run = |faults: Injector| {
            let mut trainer = case.trainer(&Way::default());
            trainer.set_recovery(Some(recovery(6, 6, Ladder::new().with(Shrink))));
            let faults = inject(&mut trainer, faults);
            let reports: Vec<_> = (0..STEPS).map(|at| trainer.step(&case.batch(at)).unwrap()).collect();
            (Snapshot::of(&trainer), reports, faults)
        };
        let (expected, reports, seen) = run(Injector::calls([]));
        for calls in sets_of(seen.seen(), true) {
            let context = format!("{make:?} with failures at calls {calls:?}");
            let (got, redone, faults) = run(Injector::calls(calls.clone()));
            assert_eq!(faults.injected(), calls.len() as u64, "{context}");
            let far = got.distance(&expected);
            assert!(far < 1e-5, "{context}: {far}");
            for (redone, report) in redone.iter().zip(&reports) {
                assert!((redone.loss / report.loss - 1.0).abs() < 1e-5, "{context}: {} {}", redone.loss, report.loss);
            }
            // A failure in the update repeats a chunk; all others cut the batch in more pieces from then on.
            if let [call] = calls[..] {
                let in_update = (call - 1) % (seen.seen() / STEPS) >= 5;
                let cut = redone[STEPS as usize - 1].micro_batches > reports[0].micro_batches;
                assert_eq!(cut, !in_update, "{context}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_set_of_failures_leaves_the_run_as_it_was(calls in prop::collection::btree_set(1..90_u64, 0..40)) {
        let _turn = turn();
        let result = any_failures(calls);
        prop_assert!(result.is_ok(), "{:?}", result);
    }
}

/// Four steps that fail at `calls`, finished by hand where an update gives up.
fn any_failures(calls: BTreeSet<u64>) -> Result<(), String> {
    thread_local!(static NET: Net = Net::new(&[8, 16, 16], true, 0.2));
    let run = |calls: BTreeSet<u64>| {
        let mut trainer = NET.with(|net| trainer(net, Ids::net(), &settings(OptimizerConfig::adamw())));
        trainer.set_recovery(Some(recovery(6, 3, reclaim())));
        let faults = inject(&mut trainer, Injector::calls(calls));
        let mut reports = vec![];
        for at in 0..4 {
            let mut report = trainer.step(&batch(at, 6));
            while let Err(Error::Unfinished { .. }) = report {
                report = trainer.complete_update();
            }
            reports.push(report.unwrap());
        }
        (Snapshot::of(&trainer), reports, faults.injected())
    };
    thread_local!(static EXPECTED: Cell<Option<(Snapshot, Vec<StepReport>)>> = const { Cell::new(None) });
    let (expected, plain) = EXPECTED.take().unwrap_or_else(|| {
        let (snapshot, reports, _) = run(BTreeSet::new());
        (snapshot, reports)
    });
    let (got, reports, injected) = run(calls);
    let same = got == expected && reports.iter().map(numbers).eq(plain.iter().map(numbers));
    EXPECTED.set(Some((expected, plain)));
    let counted: usize = reports.iter().map(|report| report.failures).sum();
    match same {
        false => Err("the run differs".into()),
        true if counted as u64 != injected => Err(format!("{injected} failures, of which {counted} are reported")),
        true => Ok(()),
    }
}

#[test]
fn an_error_that_is_no_memory_failure_passes_through_after_one_attempt() {
    let _turn = beside();
    let net = Net::new(&[8, 16, 16], true, 0.2);
    // The task calls it after its forward pass, which has moved batch-norm's statistics.
    type Then = fn(Tensor<1>) -> Tensor<1>;
    let (then, attempts): (Rc<Cell<Then>>, _) = (Rc::new(Cell::new(|loss| loss)), Rc::new(Cell::new(0)));
    let shared = (then.clone(), attempts.clone());
    let loss: Loss<Net> = Box::new(move |model, ids, device| {
        shared.1.set(shared.1.get() + 1);
        shared.0.get()(model.loss(ids, device))
    });
    let mut trainer = trainer(&net, Ids(loss), &settings(OptimizerConfig::adamw()));
    trainer.set_recovery(Some(recovery(6, 6, Ladder::standard())));
    let _ = trainer.step(&batch(0, 6)).unwrap();
    let before = Snapshot::of(&trainer);
    let next = |now: Then| {
        attempts.set(0);
        then.set(now);
    };
    next(|loss| loss * f32::INFINITY);
    let result = trainer.step(&batch(1, 6));
    assert!(matches!(result, Err(Error::NotFinite { step: 2, what: "loss", .. })), "{result:?}");
    assert_eq!(attempts.get(), 1);
    // Without a gradient, and with one that no parameter has.
    for unrelated in
        [(|loss| Tensor::zeros([1], &loss.device())) as Then, |loss| loss.ones_like().detach().require_grad()]
    {
        next(unrelated);
        let result = trainer.step(&batch(1, 6));
        assert!(matches!(result, Err(Error::NoGradients { step: 2 })), "{result:?}");
        assert_eq!(attempts.get(), 1);
    }

    #[derive(Debug, PartialEq)]
    struct Payload(u32);
    next(|_| panic_any(Payload(7)));
    let payload = catch_unwind(AssertUnwindSafe(|| trainer.step(&batch(1, 6)))).unwrap_err();
    assert_eq!(payload.downcast_ref(), Some(&Payload(7)));
    assert_eq!(attempts.get(), 1);
    Snapshot::of(&trainer).assert_same(&before, "after errors that are no memory faults");

    // The trainer has lost nothing by it: a step that runs out of memory is still tried again.
    next(|loss| loss);
    let faults = inject(&mut trainer, Injector::calls([1]));
    let report = trainer.step(&batch(1, 6)).unwrap();
    assert_eq!((report.failures, faults.injected()), (1, 1));
}

#[test]
fn a_lost_device_is_never_tried_again() {
    let _turn = beside();
    let net = Net::new(&[8, 16, 16], true, 0.2);
    let boundaries = [
        Boundary::CopyIn,
        Boundary::Forward,
        Boundary::Backward,
        Boundary::Accumulate,
        Boundary::Probe,
        Boundary::Update,
    ];
    for boundary in boundaries {
        for recovers in [true, false] {
            let mut trainer = trainer(&net, Ids::net(), &settings(OptimizerConfig::adamw()));
            if recovers {
                trainer.set_recovery(Some(recovery(6, 6, Ladder::standard())));
            }
            let before = Snapshot::of(&trainer);
            let lost = Injector::chance(1.0, 0).unwrap().only_at(boundary.name()).with_kind(Kind::DeviceLost);
            let faults = inject(&mut trainer, lost);
            let error = trainer.step(&batch(0, 6)).unwrap_err();
            let Error::Memory(failure) = error else { panic!("{boundary:?}: {error}") };
            let message = format!("injected at '{}', call 1", boundary.name());
            assert_eq!((failure.kind(), failure.message()), (Kind::DeviceLost, message.as_str()));
            assert_eq!((faults.seen(), faults.injected()), (1, 1), "{boundary:?}");
            inject(&mut trainer, Injector::off());
            if boundary == Boundary::Update {
                // Where parameters may be half new, nothing else is done.
                assert!(matches!(trainer.complete_update(), Ok(report) if report.step == 1));
            } else {
                Snapshot::of(&trainer).assert_same(&before, boundary.name());
            }
        }
    }
}

#[test]
fn without_a_recovery_a_failure_is_an_error_and_the_step_can_be_taken_again() {
    let _turn = turn();
    let net = Net::new(&[8, 16, 16], true, 0.2);
    let run = |faults: Injector| {
        let settings = Settings { micro_batch: Some(2), ..settings(OptimizerConfig::sgd()) };
        let mut trainer = trainer(&net, Ids::net(), &settings);
        let faults = inject(&mut trainer, faults);
        let mut failures = 0;
        while trainer.state().step < STEPS {
            let batch = batch(trainer.state().step, 6);
            match trainer.step(&batch) {
                Ok(_) => {}
                Err(Error::Memory(failure)) if failure.kind() == Kind::OutOfMemory => failures += 1,
                Err(error) => panic!("{error}"),
            }
        }
        (Snapshot::of(&trainer), failures, faults.seen())
    };
    let (expected, _, calls) = run(Injector::calls([]));
    for call in 1..=calls {
        let (got, failures, _) = run(Injector::calls([call]));
        got.assert_same(&expected, &format!("a failure at call {call}"));
        // An update repairs itself.
        assert_eq!(failures, u64::from(call % (calls / STEPS) != 0), "call {call}");
    }
}

#[test]
fn when_nothing_fits_the_model_is_as_it_was_and_the_trainer_goes_on_when_something_does() {
    let _turn = beside();
    let net = Net::new(&[8, 16, 16], false, 0.0);
    let undisturbed = {
        let mut trainer = trainer(&net, Ids::net(), &settings(OptimizerConfig::sgd()));
        trainer.set_recovery(Some(recovery(8, 8, reclaim())));
        for at in 0..STEPS {
            let _ = trainer.step(&batch(at, 8)).unwrap();
        }
        Snapshot::of(&trainer)
    };
    for (ladder, sizes) in [(Ladder::standard(), vec![8, 4, 2, 1]), (reclaim().with_attempts(3), vec![8])] {
        let same_split = sizes.len() == 1;
        let mut trainer = trainer(&net, Ids::net(), &settings(OptimizerConfig::sgd()));
        trainer.set_recovery(Some(recovery(8, 8, ladder)));
        let _ = trainer.step(&batch(0, 8)).unwrap();
        let before = Snapshot::of(&trainer);
        let full = Arc::new(AtomicBool::new(true));
        let shared = full.clone();
        trainer.watch(move |boundary| match boundary == Boundary::Backward && shared.load(Ordering::Relaxed) {
            true => Err(Failure::new(Kind::OutOfMemory, "somebody else has all of it")),
            false => Ok(()),
        });
        let mut first = true;
        for _ in 0..2 {
            let error = trainer.step(&batch(1, 8)).unwrap_err();
            let text = error.to_string();
            let Error::Exhausted { step: 2, report } = error else { panic!("{text}") };
            // What was learned the first time is not learned again.
            let expected = if first { &sizes[..] } else { &sizes[sizes.len() - 1..] };
            assert_eq!(report.sizes(), expected);
            assert_eq!(report.tries.last().unwrap().remedy, Remedy::GiveUp);
            assert!(text.starts_with("step 2: ") && text.contains("somebody else has all of it"), "{text}");
            Snapshot::of(&trainer).assert_same(&before, "exhausted");
            first = false;
        }
        full.store(false, Ordering::Relaxed);
        for at in 1..STEPS {
            let report = trainer.step(&batch(at, 8)).unwrap();
            assert_eq!((report.failures, report.micro_batches), (0, if same_split { 1 } else { 8 }));
        }
        let got = Snapshot::of(&trainer);
        match same_split {
            true => got.assert_same(&undisturbed, "after a pause"),
            false => assert!(got.distance(&undisturbed) < 1e-5, "{}", got.distance(&undisturbed)),
        }
    }
}
