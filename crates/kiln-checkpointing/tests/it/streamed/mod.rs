//! Blocks whose parameters are in a store: the same bits as in memory, in the memory of one block.

mod bf16;
mod created;
mod interrupted;
mod refused;

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Dropout, DropoutConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Distribution, Tensor};
use kiln_checkpointing::{Chain, Error, FileStore, HostStore, Plan, Streamed};
use kiln_operations::accumulate_into;
use kiln_optimizers::AdamW8bit;

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

/// A block whose parameters are initialised.
fn one() -> Block {
    let block = blocks().remove(0);
    let _ = weights(&block);
    block
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

/// AdamW with moments of 8 bits, for parameters of any size.
fn adamw8bit() -> ModuleOptimizer {
    AdamW8bit::new(&AdamWConfig::new()).unwrap().with_min_elements(1).into()
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
            sums =
                GradientsParams::from_grads(accumulate_into(loss(y), &model, &mut sums, |_| true).backward(), &model);
        }
        model = optimizer.step(1e-2, model, sums);
        all.push(weights(&model));
    }
    all
}

/// One step of a run from a store, up to the commit.
fn step(
    streamed: &Streamed,
    model: &[Block],
    optimizer: &ModuleOptimizer,
    plan: &Plan,
    step: usize,
) -> Result<(), Error> {
    for micro_batch in 0..2 {
        let x = input(step, micro_batch);
        let y = Chain::new(model).streamed(streamed).run(plan, x, Block::forward)?;
        let _ = loss(y).backward();
    }
    streamed.update(&model.to_vec(), optimizer, 1e-2, 1.0)
}

fn plans() -> Vec<Plan> {
    ["stream", "stream:2", "stream:5", "0..2 stream, 2..3 stream, 3..5 stream"]
        .map(|text| Plan::parse(text, BLOCKS).unwrap())
        .into()
}

#[test]
fn a_streamed_run_has_the_bits_of_the_run_in_memory() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    for (name, optimizer) in [("adamw", adamw()), ("sgd", sgd()), ("adamw8bit", adamw8bit())] {
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

/// The largest number in gradients, and the largest difference between those in memory and those in a store, when all blocks are one.
fn shared_difference(plan: &Plan) -> (f32, f32) {
    let all = |block: Block| vec![block; BLOCKS];
    let model = all(one());
    let mut sums = GradientsParams::new();
    for micro_batch in 0..2 {
        let y = Chain::new(&model).run(&Plan::none(BLOCKS), input(0, micro_batch), Block::forward).unwrap();
        sums = GradientsParams::from_grads(accumulate_into(loss(y), &model, &mut sums, |_| true).backward(), &model);
    }
    let mut expected = vec![];
    struct Flat<'a>(&'a GradientsParams, &'a mut Vec<f32>);
    impl ModuleVisitor for Flat<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.1.extend(self.0.get::<D>(param.id).unwrap().into_data().iter::<f32>());
        }
    }
    model[0].visit(&mut Flat(&sums, &mut expected));
    let (streamed, model) = Streamed::create(HostStore::new(), all(one())).unwrap();
    for micro_batch in 0..2 {
        let chain = Chain::new(&model).streamed(&streamed);
        let _ = loss(chain.run(plan, input(0, micro_batch), Block::forward).unwrap()).backward();
    }
    let mut found = vec![];
    streamed.each_gradient(&Device::flex(), |sum| found.extend(sum.into_data().iter::<f32>())).unwrap();
    assert_eq!(found.len(), expected.len());
    let far = found.iter().zip(&expected).map(|(found, expected)| (found - expected).abs()).fold(0.0, f32::max);
    (expected.iter().fold(0.0, |largest, value| value.abs().max(largest)), far)
}

#[test]
fn blocks_that_share_their_parameters_get_all_of_their_gradients() {
    let _alone = alone();
    // They are updated once, and all blocks have the new values.
    let all = |block: Block| vec![block; 2];
    let (mut memory, mut optimizer) = (all(one()), adamw());
    let (streamed, model) = Streamed::create(HostStore::new(), all(one())).unwrap();
    let plan = Plan::stream(2, 2).unwrap();
    let run = |chain: Chain<Block>, plan: &Plan| loss(chain.run(plan, input(0, 0), Block::forward).unwrap()).backward();
    let gradients = GradientsParams::from_grads(run(Chain::new(&memory), &Plan::none(2)), &memory);
    memory = optimizer.step(1e-2, memory, gradients);
    let _ = run(Chain::new(&model).streamed(&streamed), &plan);
    streamed.update(&model, &adamw(), 1e-2, 1.0).unwrap();
    streamed.commit("").unwrap();
    let filled = streamed.filled(model).unwrap();
    assert_eq!(weights(&filled[0]), weights(&filled[1]));
    assert_eq!(weights(&filled[0]), weights(&memory[0]));
    for plan in plans() {
        // Ten gradients are added in another order: a few roundings of f32.
        let (largest, far) = shared_difference(&plan);
        assert!(largest > 0.0 && far <= 2e-6 * largest, "{plan}: {far} of {largest}");
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

#[test]
fn a_step_needs_the_memory_of_one_block() {
    let _alone = alone();
    let layers = 16;
    let weight = 4 * 256 * 256;
    let pass = || Tensor::<2>::random([2, 256], Distribution::Normal(0.0, 1.0), &device());
    // The first product of a thread makes its buffer, as large as the second-level cache, and keeps it.
    let _ = loss(gelu(LinearConfig::new(256, 256).init(&device()).forward(pass()))).backward();
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
        let y = Chain::new(&model).streamed(&streamed).run(&plan, pass(), |layer, x| gelu(layer.forward(x))).unwrap();
        let _ = loss(y).backward();
        let passes = HEAP.peak_bytes() - before;
        HEAP.reset_peak();
        streamed.update(&model, &optimizer, 1e-3, 1.0).unwrap();
        streamed.commit("").unwrap();
        let update = HEAP.peak_bytes() - before;
        // In memory, all of them take 64 weights.
        assert!(
            passes < 10 * weight && update < 16 * weight,
            "passes {passes}, update {update}, a weight has {weight}"
        );
    }
}
