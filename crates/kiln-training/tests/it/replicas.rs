//! Several replicas take the steps that one replica takes on the whole batches, bit for bit.

use std::ops::Range;

use burn::tensor::{Device, Int, Tensor, TensorData};
use kiln_accumulation::Weight;
use kiln_models::{Gpt, GptConfig, ResNet, ResNetConfig, Stem};
use kiln_precision::{Policy, Precision, ScalerConfig, Scaling};
use kiln_training::Trainer;
use kiln_training::{Batch, Error, OptimizerConfig, Pass, Task};

use crate::group::{Case, MICRO, all_numbers, assert_all_same, on_replicas, part};
use crate::support::{CLASSES, Ids, Net, Settings, classes, entropy, inputs, turn};

/// Four batches of as many samples as the replicas take at once, and two short ones. In the last one, the last replica has nothing.
fn batches(replicas: usize) -> Vec<Vec<usize>> {
    let size = MICRO * replicas;
    let mut next = 0;
    [size, size, size - 1, size, size, size - MICRO]
        .map(|size| {
            next += size;
            (next - size..next).collect()
        })
        .into()
}

fn gpt() -> Case<Ids<Gpt>> {
    const VOCAB: usize = 20;
    let task = || {
        Ids(Box::new(|model: &Gpt, ids: &[usize], device: &Device| {
            let text: Vec<i64> =
                ids.iter().flat_map(|id| (0..9).map(move |i| ((id * 3 + i * (id % 5 + 1)) % VOCAB) as i64)).collect();
            let text = Tensor::<2, Int>::from_data(TensorData::new(text, [ids.len(), 9]), device);
            let logits = model.forward(text.clone().slice([0..ids.len(), 0..8]));
            let targets = text.slice([0..ids.len(), 1..9]).reshape([8 * ids.len()]);
            entropy(logits.reshape([8 * ids.len(), VOCAB]), targets)
        }))
    };
    let init =
        |device: &Device| GptConfig { layers: 2, ..GptConfig::tiny(VOCAB, 8) }.with_dropout(0.2).init(device).unwrap();
    let optimizer = OptimizerConfig::adamw();
    Case { name: "a GPT with dropout", task, init, optimizer, adjust: |settings| settings }
}

/// Samples with 0 to 3 tokens that carry a loss.
#[derive(Clone)]
struct Sequences(Vec<usize>);

impl Sequences {
    /// The sample of each token.
    fn tokens(&self) -> Vec<usize> {
        self.0.iter().flat_map(|id| vec![*id; id % 4]).collect()
    }
}

impl Batch for Sequences {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn slice(&self, samples: Range<usize>) -> Self {
        Self(self.0[samples].to_vec())
    }

    fn host_bytes(&self) -> u64 {
        8 * self.0.len() as u64
    }

    fn weight(&self) -> Weight {
        Weight::Tokens(self.tokens().len())
    }
}

/// The mean loss over tokens.
struct PerToken;

impl Task for PerToken {
    type Model = Net;
    type Batch = Sequences;

    fn loss(&self, pass: &Pass<'_, Net>, batch: &Sequences) -> Tensor<1> {
        pass.model().loss(&batch.tokens(), pass.device())
    }
}

fn per_token(optimizer: OptimizerConfig) -> Case<PerToken> {
    let init = |_: &Device| Net::new(&[8, 16, 16], true, 0.0);
    Case { name: "tokens", task: || PerToken, init, optimizer, adjust: |settings| settings }
}

fn same_as_alone<T: Task<Batch: Sync>>(case: &Case<T>, batches: impl Fn(usize) -> Vec<T::Batch>) {
    for replicas in 2..=4 {
        let batches = batches(replicas);
        let alone = case.alone(&batches);
        for shards in [false, true] {
            let context = format!("{}, {:?}, {replicas} replicas, sharded: {shards}", case.name, case.optimizer);
            assert_all_same(&case.on(replicas, shards, &batches), &alone, &context);
        }
    }
}

#[test]
fn a_step_has_the_bits_of_one_on_the_whole_batch() {
    let _turn = turn();
    for optimizer in [OptimizerConfig::adamw(), OptimizerConfig::sgd()] {
        same_as_alone(&Case::net(optimizer), batches);
    }
    same_as_alone(&gpt(), batches);
}

#[test]
fn clipping_sees_the_norm_of_the_whole_batch() {
    let _turn = turn();
    let case = Case::net(OptimizerConfig::sgd()).with(|settings| Settings { max_norm: Some(0.05), ..settings });
    let alone = case.alone(&batches(2));
    assert!(alone.reports.iter().all(|report| report.gradient_norm.unwrap() > 0.05), "every step is clipped");
    same_as_alone(&case, batches);
}

#[test]
fn tokens_weigh_the_same_on_all_replicas() {
    let _turn = turn();
    // Samples 0, 4, 8 and 12 carry no loss: the first replica has none in the third batch.
    let batches = |replicas| {
        let mut batches = batches(replicas);
        batches[2] = [0, 4].into_iter().chain((1..).filter(|id| id % 4 > 0)).take(MICRO * replicas).collect();
        batches.into_iter().map(Sequences).collect::<Vec<_>>()
    };
    let silent = part(&batches(3)[2], 0, 3);
    assert_eq!((silent.len(), silent.weight()), (MICRO, Weight::Tokens(0)));
    for optimizer in [OptimizerConfig::adamw(), OptimizerConfig::sgd()] {
        same_as_alone(&per_token(optimizer), batches);
    }
}

#[test]
fn an_overflow_on_one_replica_skips_the_step_on_all() {
    let _turn = turn();
    let task = || {
        Ids(Box::new(|model: &ResNet, ids: &[usize], device: &Device| {
            entropy(model.forward(inputs(ids, [ids.len(), 3, 8, 8], device)), classes(ids, device))
        }))
    };
    let init =
        |device: &Device| ResNetConfig::resnet18(CLASSES).with_width(4).with_stem(Stem::Cifar).init(device).unwrap();
    let adjust = |settings| {
        let scaler =
            ScalerConfig { initial: 2f64.powi(28), backoff: 2f64.powi(-16), interval: 2, ..ScalerConfig::default() };
        let policy = Policy::new(Precision::F16).keep_norms();
        Settings { policy, scaling: Some(Scaling::Dynamic(scaler)), ..settings }
    };
    let case: Case<Ids<ResNet>> =
        Case { name: "a ResNet in f16", task, init, optimizer: OptimizerConfig::sgd(), adjust };
    let alone = case.alone(&batches(2));
    let skipped: Vec<bool> = alone.reports.iter().map(|report| report.skipped).collect();
    assert!(skipped[0] && skipped.contains(&false), "{skipped:?}");
    same_as_alone(&case, batches);
}

#[test]
fn with_more_micro_batches_a_replica_only_roundings_differ() {
    let _turn = turn();
    let case = Case::net(OptimizerConfig::sgd());
    let case = Case { init: |_| Net::new(&[8, 16, 16], false, 0.0), ..case };
    let batches: Vec<Vec<usize>> = (0..4).map(|at| (12 * at..12 * at + 12).collect()).collect();
    let alone = case.alone(&batches);
    for replicas in [2, 3] {
        let group = case.on(replicas, false, &batches);
        for (report, expected) in group[0].reports.iter().zip(&alone.reports) {
            assert_eq!(report.micro_batches, expected.micro_batches, "of all replicas");
            assert!((report.loss / expected.loss - 1.0).abs() < 1e-6, "{report:?} {expected:?}");
        }
        let (got, expected) = (group[0].snapshot.as_ref().unwrap(), alone.snapshot.as_ref().unwrap());
        let far = got.distance(expected);
        assert!(far < 1e-6, "{replicas} replicas: {far}");
        assert!(group.iter().all(|replica| replica.model == group[0].model));
        // Dividing the state changes no bit.
        let sharded = case.on(replicas, true, &batches);
        assert_all_same(&sharded, &group[0], "sharded");
    }
}

#[test]
fn a_batch_without_a_loss_on_any_replica_is_refused_on_all() {
    let _turn = turn();
    let case = per_token(OptimizerConfig::sgd());
    for batch in [Sequences(vec![0, 4, 8, 12]), Sequences(vec![])] {
        let mut alone = case.builder(None, false).build(&Device::flex(), &Sequences(vec![1, 2])).unwrap();
        let expected = alone.step(&batch).unwrap_err().to_string();
        let errors = on_replicas(2, |communicator| {
            let rank = communicator.rank();
            let builder = case.builder(Some(communicator), false);
            let mut trainer: Trainer<PerToken> = builder.build(&Device::flex(), &Sequences(vec![1, 2])).unwrap();
            let error = trainer.step(&part(&batch, rank, 2)).unwrap_err();
            assert!(matches!(error, Error::NothingToLearn { step: 1 }), "{error}");
            assert_eq!(trainer.state().step, 0);
            error.to_string()
        });
        assert!(errors.into_iter().all(|error| error.unwrap() == expected));
    }
}

#[test]
fn numbers_do_not_depend_on_which_replica_has_the_samples() {
    let _turn = turn();
    // Each replica has twice as many samples as another, in turns; the first is left out of the last batch.
    let case = Case { init: |_| Net::new(&[8, 16, 16], false, 0.0), ..Case::net(OptimizerConfig::adamw()) };
    let alone = case.alone(&[vec![1, 2, 3], vec![4, 5, 6], vec![7, 8]]);
    let parts = [[vec![1, 2], vec![3]], [vec![4, 5], vec![6]], [vec![], vec![7, 8]]];
    let reports = on_replicas(2, |communicator| {
        let rank = communicator.rank();
        let builder = case.builder(Some(communicator), true);
        let mut trainer = builder.build(&Device::flex(), &vec![0, 1]).unwrap();
        all_numbers(&parts.clone().map(|parts| trainer.step(&parts[rank]).unwrap()))
    });
    assert!(reports.into_iter().all(|reports| reports.unwrap() == all_numbers(&alone.reports)));
}
