//! Blocks whose parameters are in a store: the same bits as in memory, whatever fails and whenever the process ends.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::thread::sleep;
use std::time::Duration;

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Dropout, DropoutConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Distribution, Tensor};
use kiln_checkpointing::{Blob, Chain, Error, FileStore, HostStore, Plan, Store, Streamed};
use kiln_operations::onto;

use crate::HEAP;
use crate::support::{alone, loss};

const BLOCKS: usize = 5;
const STEPS: usize = 3;

fn device() -> Device {
    Device::flex().autodiff()
}

/// A block with several parameters and dropout.
#[derive(Module, Debug)]
struct Block {
    norm: LayerNorm,
    linear: Linear,
    drop: Dropout,
}

impl Block {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.drop.forward(gelu(self.linear.forward(self.norm.forward(x.clone())))) + x
    }
}

/// The blocks of every run; their parameters are not initialised yet.
fn blocks() -> Vec<Block> {
    device().seed(1);
    let block = || Block {
        norm: LayerNormConfig::new(8).init(&device()),
        linear: LinearConfig::new(8, 8).init(&device()),
        drop: DropoutConfig::new(0.2).init(),
    };
    (0..BLOCKS).map(|_| block()).collect()
}

/// A micro-batch. The device's random numbers are those of the micro-batch afterwards.
fn input(step: usize, micro_batch: usize) -> Tensor<2> {
    device().seed((10 * step + micro_batch) as u64);
    Tensor::random([3, 8], Distribution::Normal(0.0, 1.0), &device())
}

fn adamw() -> ModuleOptimizer {
    AdamWConfig::new().init()
}

fn sgd() -> ModuleOptimizer {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init()
}

/// Bits of all parameters.
fn weights(module: &impl Module) -> Vec<u32> {
    struct Bits(Vec<u32>);
    impl ModuleVisitor for Bits {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend(param.val().into_data().iter::<f32>().map(f32::to_bits));
        }
    }
    let mut bits = Bits(vec![]);
    module.visit(&mut bits);
    bits.0
}

/// The weights after each step of a run in memory.
fn in_memory(mut optimizer: ModuleOptimizer) -> Vec<Vec<u32>> {
    let mut model = blocks();
    let mut all = vec![weights(&model)];
    for step in 0..STEPS {
        let mut sums = GradientsParams::new();
        for micro_batch in 0..2 {
            let x = input(step, micro_batch);
            let y = Chain::new(&model).run(&Plan::none(BLOCKS), x, Block::forward).unwrap();
            sums = GradientsParams::from_grads(onto(loss(y), &model, &mut sums, |_| true).backward(), &model);
        }
        model = optimizer.step(1e-2, model, sums);
        all.push(weights(&model));
    }
    all
}

/// One step of a run from a store, up to the commit.
fn step(streamed: &Streamed, model: &[Block], optimizer: &ModuleOptimizer, plan: &Plan, step: usize) -> Result<(), Error> {
    for micro_batch in 0..2 {
        let x = input(step, micro_batch);
        let y = Chain::new(model).streamed(streamed).run(plan, x, Block::forward)?;
        let _ = loss(y).backward();
    }
    streamed.update(&model.to_vec(), optimizer, 1e-2, 1.0)
}

fn plans() -> Vec<Plan> {
    ["stream", "stream:2", "stream:5", "0..2 stream, 2..3 stream, 3..5 stream"].map(|text| Plan::parse(text, BLOCKS).unwrap()).into()
}

#[test]
fn a_streamed_run_has_the_bits_of_the_run_in_memory() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    for (name, optimizer) in [("adamw", adamw()), ("sgd", sgd())] {
        let expected = in_memory(optimizer.clone());
        for (index, plan) in plans().iter().enumerate() {
            for on_disk in [false, true] {
                let path = directory.path().join(format!("{name}-{index}"));
                let (streamed, model) = match on_disk {
                    true => Streamed::create(FileStore::open(path).unwrap().durable(), blocks()).unwrap(),
                    false => Streamed::create(HostStore::new(), blocks()).unwrap(),
                };
                assert!(weights(&model).iter().all(|bits| f32::from_bits(*bits).is_nan()));
                for (done, expected) in expected.iter().enumerate() {
                    let filled = streamed.filled(model.clone()).unwrap();
                    assert!(weights(&filled) == *expected, "{name}, {plan}, on disk {on_disk}, after {done} steps");
                    step(&streamed, &model, &optimizer, plan, done).unwrap();
                    let before = weights(&streamed.filled(model.clone()).unwrap());
                    assert!(before == *expected, "an update is not current before its commit");
                    streamed.commit(&format!("{}", done + 1)).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_run_goes_on_from_the_store_with_the_same_bits() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let expected = in_memory(adamw());
    let plan = Plan::stream(BLOCKS, 2).unwrap();
    let mut opened = Streamed::create(FileStore::open(directory.path()).unwrap(), blocks()).unwrap();
    for done in 0..STEPS {
        let (streamed, model) = opened;
        step(&streamed, &model, &adamw(), &plan, done).unwrap();
        // An update that was never committed is lost with the process.
        step(&streamed, &model, &sgd(), &plan, 7).unwrap();
        streamed.discard();
        step(&streamed, &model, &adamw(), &plan, done).unwrap();
        streamed.commit(&format!("{}", done + 1)).unwrap();
        step(&streamed, &model, &adamw(), &plan, 9).unwrap();
        drop((streamed, model));
        opened = Streamed::open(FileStore::open(directory.path()).unwrap(), blocks()).unwrap();
        assert_eq!(opened.0.note(), format!("{}", done + 1));
        let filled = opened.0.filled(opened.1.clone()).unwrap();
        assert!(weights(&filled) == expected[done + 1]);
    }
}

/// The store of the run that the parent kills.
const STORE: &str = "KILN_TEST_STORE";

fn train(directory: &Path, steps: usize) {
    let store = FileStore::open(directory).unwrap();
    let optimizer = adamw();
    let (streamed, model) = match store.note().unwrap() {
        None => Streamed::create(store, blocks()).unwrap(),
        Some(_) => Streamed::open(store, blocks()).unwrap(),
    };
    let done: usize = streamed.note().parse().unwrap_or(0);
    for done in done..steps {
        step(&streamed, &model, &optimizer, &Plan::stream(BLOCKS, 1).unwrap(), done).unwrap();
        streamed.commit(&format!("{}", done + 1)).unwrap();
    }
}

#[test]
#[ignore = "the process that the next test kills"]
fn a_run_to_be_killed() {
    if let Ok(directory) = std::env::var(STORE) {
        train(Path::new(&directory), usize::MAX);
    }
}

#[test]
fn a_run_that_is_killed_at_any_moment_goes_on_with_the_same_bits() {
    let _alone = alone();
    let [killed, undisturbed] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let mut random = 0x9e37_79b9_u64;
    for _ in 0..50 {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "streamed::a_run_to_be_killed", "--ignored"]).env(STORE, killed.path());
        let mut child = child.stdout(Stdio::null()).spawn().unwrap();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        sleep(Duration::from_micros((random >> 33) % 100_000));
        child.kill().unwrap(); // SIGKILL
        child.wait().unwrap();
    }
    let done: usize = FileStore::open(killed.path()).unwrap().note().unwrap().map_or(0, |note| note_of(&note));
    assert!(done >= 20, "{done} steps in all");
    train(killed.path(), done + 2);
    train(undisturbed.path(), done + 2);
    let bits = [killed, undisturbed].map(|directory| {
        let (streamed, model) = Streamed::open(FileStore::open(directory.path()).unwrap(), blocks()).unwrap();
        weights(&streamed.filled(model).unwrap())
    });
    assert!(bits[0] == bits[1]);
}

fn note_of(text: &str) -> usize {
    let note: serde_json::Value = serde_json::from_str(text).unwrap();
    note["note"].as_str().unwrap().parse().unwrap_or(0)
}

/// A store that fails once, at its n-th use.
struct Failing {
    store: HostStore,
    left: Arc<AtomicI64>,
}

impl Failing {
    fn used(&self) -> Result<(), Error> {
        match self.left.fetch_sub(1, SeqCst) {
            1 => Err(Error::Store { path: "the disk".into(), reason: "it is full".into() }),
            _ => Ok(()),
        }
    }
}

impl Store for Failing {
    fn read(&self, blob: Blob) -> Result<Option<Vec<u8>>, Error> {
        self.used().and_then(|()| self.store.read(blob))
    }

    fn write(&self, blob: Blob, bytes: &[u8]) -> Result<(), Error> {
        self.used().and_then(|()| self.store.write(blob, bytes))
    }

    fn commit(&self, blobs: &[Blob], note: &str) -> Result<(), Error> {
        self.used().and_then(|()| self.store.commit(blobs, note))
    }

    fn note(&self) -> Result<Option<String>, Error> {
        self.store.note()
    }
}

#[test]
fn a_failure_at_any_use_of_the_store_changes_no_bit() {
    let _alone = alone();
    let expected = in_memory(adamw());
    let plan = Plan::stream(BLOCKS, 2).unwrap();
    let (mut failed, mut at) = (0, 1);
    loop {
        let left = Arc::new(AtomicI64::new(i64::MAX));
        let store = Failing { store: HostStore::new(), left: left.clone() };
        let (streamed, model) = Streamed::create(store, blocks()).unwrap();
        let optimizer = adamw();
        let whole = |done: usize| {
            step(&streamed, &model, &optimizer, &plan, done)?;
            streamed.commit("")
        };
        whole(0).unwrap();
        left.store(at, SeqCst);
        // In the backward pass an error is a panic.
        let tried = catch_unwind(AssertUnwindSafe(|| whole(1)));
        let ended = left.swap(i64::MAX, SeqCst) > 0;
        match tried {
            Ok(Ok(())) => {}
            Ok(Err(error)) => assert_eq!(error.to_string(), "the store cannot be used: the disk: it is full"),
            Err(panic) => assert!(panic.downcast_ref::<String>().unwrap().contains("it is full")),
        }
        if weights(&streamed.filled(model.clone()).unwrap()) != expected[2] {
            failed += 1;
            assert!(weights(&streamed.filled(model.clone()).unwrap()) == expected[1], "failure at use {at}");
            streamed.discard();
            whole(1).unwrap();
        }
        whole(2).unwrap();
        assert!(weights(&streamed.filled(model.clone()).unwrap()) == expected[3], "failure at use {at}");
        if ended {
            break;
        }
        at += 1;
    }
    assert!(failed > 60, "{failed} of {at} uses failed");
}

#[test]
fn a_step_needs_the_memory_of_one_block() {
    let _alone = alone();
    let layers = 16;
    let weight = 4 * 256 * 256;
    let before = HEAP.live_bytes();
    HEAP.reset_peak();
    let _ = LinearConfig::new(256, 256).init(&device()).weight.val();
    let one = HEAP.peak_bytes() - before;
    HEAP.reset_peak();
    let model: Vec<Linear> = (0..layers).map(|_| LinearConfig::new(256, 256).init(&device())).collect();
    let directory = tempfile::tempdir().unwrap();
    let (streamed, model) = Streamed::create(FileStore::open(directory.path()).unwrap(), model).unwrap();
    let created = HEAP.peak_bytes() - before;
    assert!(created < one + 3 * weight, "{created} bytes to make {layers} layers of {weight}, {one} to make one");
    let (plan, optimizer) = (Plan::stream(layers, 1).unwrap(), adamw());
    for _ in 0..2 {
        HEAP.reset_peak();
        let x = Tensor::<2>::random([2, 256], Distribution::Normal(0.0, 1.0), &device());
        let y = Chain::new(&model).streamed(&streamed).run(&plan, x, |layer, x| gelu(layer.forward(x))).unwrap();
        let _ = loss(y).backward();
        let passes = HEAP.peak_bytes() - before;
        HEAP.reset_peak();
        streamed.update(&model, &optimizer, 1e-3, 1.0).unwrap();
        streamed.commit("").unwrap();
        let update = HEAP.peak_bytes() - before;
        // In memory, all of them take 64 weights.
        assert!(passes < 10 * weight && update < 16 * weight, "passes {passes}, update {update}, a weight has {weight}");
    }
}

#[test]
fn blocks_without_their_parameters_give_nan_and_need_a_store() {
    let _alone = alone();
    let (streamed, model) = Streamed::create(HostStore::new(), blocks()).unwrap();
    let outside = model[0].forward(input(0, 0)).into_data();
    assert!(outside.iter::<f32>().all(f32::is_nan));
    let refused = Chain::new(&model).run(&Plan::stream(BLOCKS, 1).unwrap(), input(0, 0), Block::forward).unwrap_err();
    assert_eq!(refused, Error::NoStore { plan: "stream".into() });
    // Evaluation: nothing is recorded on a device without gradients.
    let valid = model.valid();
    let x = input(0, 0).inner();
    let y = Chain::new(&valid).streamed(&streamed).run(&Plan::stream(BLOCKS, 1).unwrap(), x.clone(), Block::forward).unwrap();
    let memory = blocks().valid().iter().fold(x, |x, block| block.forward(x));
    assert_eq!(y.into_data(), memory.into_data());
}

#[test]
fn stores_that_do_not_fit_are_refused_in_one_line() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let open = || FileStore::open(&path);
    let text = |error: Error| error.to_string().replace(&path.display().to_string(), "DIR");

    let refused = Streamed::open(open().unwrap(), blocks()).unwrap_err();
    assert_eq!(text(refused), "the store is not that of this model: it is empty, expected the parameters of the model");
    let created = Streamed::create(open().unwrap(), blocks()).unwrap();
    assert_eq!(text(open().unwrap_err()), "the store cannot be used: DIR: another process uses it");
    drop(created);
    let refused = Streamed::create(open().unwrap(), blocks()).unwrap_err();
    assert_eq!(text(refused), "the store is not that of this model: it has parameters already, expected an empty one");
    let wider: Vec<_> = (0..BLOCKS).map(|_| LinearConfig::new(8, 9).init(&device())).collect();
    let refused = Streamed::open(open().unwrap(), wider).unwrap_err();
    let expected = "the store is not that of this model: it has 0.norm.gamma [8] of F32, the model 0.weight [8, 9] of F32";
    assert_eq!(text(refused), expected);
    let refused = Streamed::open(open().unwrap(), blocks()[1..].to_vec()).unwrap_err();
    assert_eq!(text(refused), "the store is not that of this model: it has 20 parameters, the model 16");

    // One wrong bit, and a file that is cut.
    let file = path.join("2-value.0");
    let whole = fs::read(&file).unwrap();
    let mut wrong = whole.clone();
    wrong[5] ^= 1;
    for damaged in [&wrong[..], &whole[..whole.len() - 1]] {
        fs::write(&file, damaged).unwrap();
        let (streamed, model) = Streamed::open(open().unwrap(), blocks()).unwrap();
        let refused = text(streamed.filled(model).unwrap_err());
        assert!(refused.starts_with("the store cannot be used: DIR/2-value.0: it is damaged: 25"), "{refused}");
    }
    fs::remove_file(&file).unwrap();
    let (streamed, model) = Streamed::open(open().unwrap(), blocks()).unwrap();
    assert!(text(streamed.filled(model).unwrap_err()).starts_with("the store cannot be used: DIR/2-value.0: No such file"));
    drop(streamed);

    let index = path.join("store.json");
    let whole = fs::read_to_string(&index).unwrap();
    fs::write(&index, &whole[..whole.len() / 2]).unwrap();
    assert!(text(open().unwrap_err()).starts_with("the store cannot be used: DIR: store.json is damaged"));
    fs::write(&index, whole.replacen("\"format\":1", "\"format\":2", 1)).unwrap();
    assert_eq!(text(open().unwrap_err()), "the store cannot be used: DIR: store.json has format 2, expected 1");

    let other = directory.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("notes.txt"), "mine").unwrap();
    let refused = FileStore::open(&other).unwrap_err().to_string();
    assert!(refused.ends_with("it has a file 'notes.txt', expected a store or an empty directory"), "{refused}");
}
