//! Several replicas take the steps of one: what is beside the laws, in which they have the bits of one replica.

use burn::tensor::Device;
use kiln_training::{Error, OptimizerConfig};

use crate::case::{Case, Fate, Make, Parts, Samples, Way, all_numbers, on_all, part};
use crate::support::turn;

/// Batches of 12 samples in micro-batches of 2, without batch-norm, which normalises a micro-batch.
fn case(optimizer: OptimizerConfig) -> Case {
    Case::new(Make::Chain(Parts { norms: false, ..Parts::new(2) }), optimizer, 12, 2).steps(4)
}

#[test]
fn with_more_micro_batches_a_replica_only_roundings_differ() {
    let _turn = turn();
    let case = case(OptimizerConfig::sgd());
    let alone = case.run(&Way::default());
    for replicas in [2, 3] {
        let mut group = case.fares(&Way::replicas(replicas, false), &Fate::default());
        for (report, expected) in group[0].reports.iter().zip(&alone.reports) {
            assert_eq!(report.micro_batches, expected.micro_batches, "of all replicas");
            assert!((report.loss / expected.loss - 1.0).abs() < 1e-6, "{report:?} {expected:?}");
        }
        let (got, expected) = (group[0].snapshot.as_ref().unwrap(), alone.snapshot.as_ref().unwrap());
        let far = got.distance(expected);
        assert!(far < 1e-6, "{replicas} replicas: {far}");
        assert!(group.iter().all(|replica| replica.model == group[0].model));
        // Dividing the state changes no bit.
        case.check(&Way::replicas(replicas, true), &group.remove(0));
    }
}

#[test]
fn a_batch_without_a_loss_on_any_replica_is_refused_on_all() {
    let _turn = turn();
    let case = Case { tokens: |id| id % 4, ..case(OptimizerConfig::sgd()) };
    for ids in [vec![0, 4, 8, 12], vec![]] {
        let batch = Samples { ids, tokens: case.tokens };
        let expected = case.trainer(&Way::default()).step(&batch).unwrap_err().to_string();
        let errors = on_all(2, |communicator| {
            let rank = communicator.rank();
            let builder = case.builder(&Way::default(), Some(communicator));
            let mut trainer = builder.build(&Device::flex(), &case.batch(0)).unwrap();
            let error = trainer.step(&part(&batch, 2, rank, 2)).unwrap_err();
            assert!(matches!(error, Error::NothingToLearn { step: 1 }), "{error}");
            assert_eq!(trainer.state().step, 0);
            error.to_string()
        });
        assert!(errors.into_iter().all(|error| error == expected));
    }
}

#[test]
fn numbers_do_not_depend_on_which_replica_has_the_samples() {
    let _turn = turn();
    // Each replica has twice as many samples as another, in turns; the first is left out of the last batch.
    let case = case(OptimizerConfig::adamw());
    let parts = [[vec![1, 2], vec![3]], [vec![4, 5], vec![6]], [vec![], vec![7, 8]]];
    let mut alone = case.trainer(&Way::default());
    let expected = parts.clone().map(|parts| alone.step(&Samples::of(parts.concat())).unwrap());
    let reports = on_all(2, |communicator| {
        let rank = communicator.rank();
        let builder = case.builder(&Way::replicas(2, true), Some(communicator));
        let mut trainer = builder.build(&Device::flex(), &case.batch(0)).unwrap();
        all_numbers(&parts.clone().map(|parts| trainer.step(&Samples::of(parts[rank].clone())).unwrap()))
    });
    assert!(reports.into_iter().all(|reports| reports == all_numbers(&expected)));
}
