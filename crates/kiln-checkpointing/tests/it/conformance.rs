//! Every plan over every kind of block gives what the plain run gives: outputs, gradients of parameters and inputs,
//! and batch-norm statistics, bit for bit.

use burn::module::Module;
use burn::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{
    BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear,
    LinearConfig, PaddingConfig2d,
};
use burn::optim::GradientsParams;
use burn::tensor::activation::{gelu, relu};
use burn::tensor::{Device, Distribution, Int, Tensor};
use kiln_checkpointing::{Chain, Checkpoint, Mode, Plan, PlanSegment, Tensors};
use kiln_operations::accumulate_into;

use crate::support::{alone, bits, float_bits, gradients, input_gradients, leaf, loss};

const BLOCKS: usize = 6;

fn plans() -> Vec<Plan> {
    let segment = |blocks, mode| PlanSegment { blocks, mode };
    let mixed = vec![
        segment(0..2, Mode::Recompute),
        segment(2..3, Mode::Plain),
        segment(3..5, Mode::Offload),
        segment(5..6, Mode::Recompute),
    ];
    let whole = vec![segment(0..6, Mode::Recompute)];
    let every = [1, 2, 4].map(|length| Plan::every(BLOCKS, length).unwrap());
    let others = [Plan::offload(BLOCKS, 1).unwrap(), Plan::offload(BLOCKS, 3).unwrap()];
    let written = [mixed, whole].map(|plan| Plan::try_from(plan).unwrap());
    [vec![Plan::sqrt(BLOCKS, 1, 2)], written.into(), every.into(), others.into()].concat()
}

/// All that two micro-batches leave: outputs, gradients of inputs, sums of gradients of parameters, statistics, and the next random numbers.
fn pass<B, X>(
    balanced: bool,
    plan: Option<&Plan>,
    init: fn(&Device) -> Vec<B>,
    inputs: fn(&Device) -> X,
    forward: fn(&B, X) -> X,
) -> Vec<Vec<u32>>
where
    B: Module + 'static,
    X: Tensors,
{
    let device = Device::flex().autodiff();
    let device = if balanced { device.gradient_checkpointing() } else { device };
    device.seed(1);
    let model = init(&device);
    let x = inputs(&device);
    let run = |seed| {
        device.seed(seed);
        match plan {
            Some(plan) => Chain::new(&model).run(plan, x.clone(), forward).unwrap(),
            None => model.iter().fold(x.clone(), |x, block| forward(block, x)),
        }
    };
    let first = run(2);
    let mut found = gradients(first.clone());
    let mut all = vec![float_bits(first), input_gradients(x.clone(), &found)];
    let mut sums = GradientsParams::from_module(&mut found, &model);
    let second = run(3);
    all.push(float_bits(second.clone()));
    let found = accumulate_into(loss(second), &model, &mut sums, |_| true).backward();
    all.extend(bits(&model, &found));
    all
}

fn conforms<B, X>(
    name: &str,
    init: fn(&Device) -> Vec<B>,
    inputs: fn(&Device) -> X,
    forward: fn(&B, X) -> X,
    random: bool,
) where
    B: Module + 'static,
    X: Tensors,
{
    for balanced in [false, true] {
        let plain = pass(balanced, Some(&Plan::none(BLOCKS)), init, inputs, forward);
        assert!(plain.iter().all(|values| !values.is_empty()), "{name}: there is something to compare");
        if !random {
            let folded = pass(balanced, None, init, inputs, forward);
            assert!(folded == plain, "{name}: the plain chain is the fold");
        }
        for plan in plans() {
            let got = pass(balanced, Some(&plan), init, inputs, forward);
            for (index, (got, plain)) in got.iter().zip(&plain).enumerate() {
                let differ = got.iter().zip(plain).filter(|(a, b)| a != b).count();
                assert!(
                    got == plain,
                    "{name} under {plan}, balanced {balanced}: {differ} of {} in {index}",
                    plain.len()
                );
            }
        }
    }
}

#[derive(Module, Debug)]
struct Dense {
    linear: Linear,
    norm: LayerNorm,
}

#[derive(Module, Debug)]
struct Conv {
    conv: Conv2d,
    norm: BatchNorm,
}

#[derive(Module, Debug)]
struct Attention {
    norm: LayerNorm,
    attention: MultiHeadAttention,
}

#[derive(Module, Debug)]
struct Noisy {
    linear: Linear,
    drop: Dropout,
}

#[derive(Module, Debug)]
struct Lookup {
    embedding: Embedding,
    linear: Linear,
}

fn blocks<B>(one: impl Fn() -> B) -> Vec<B> {
    (0..BLOCKS).map(|_| one()).collect()
}

fn normal<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    leaf(Tensor::random(shape, Distribution::Normal(0.0, 1.0), device))
}

#[test]
fn linear_layers() {
    let _alone = alone();
    conforms(
        "linear",
        |d| blocks(|| Dense { linear: LinearConfig::new(8, 8).init(d), norm: LayerNormConfig::new(8).init(d) }),
        |d| normal([5, 8], d),
        |m, x| gelu(m.norm.forward(m.linear.forward(x.clone()))) + x,
        false,
    );
}

#[test]
fn blocks_that_share_their_parameters_get_all_of_their_gradients() {
    let _alone = alone();
    let init = |d: &Device| {
        vec![Dense { linear: LinearConfig::new(8, 8).init(d), norm: LayerNormConfig::new(8).init(d) }; BLOCKS]
    };
    let forward = |m: &Dense, x: Tensor<2>| gelu(m.norm.forward(m.linear.forward(x.clone()))) + x;
    let run = |plan: &Plan| -> Vec<f32> {
        let all = pass(false, Some(plan), init, |d| normal([5, 8], d), forward);
        all[3].iter().map(|bits| f32::from_bits(*bits)).collect()
    };
    let plain = run(&Plan::none(BLOCKS));
    let largest = plain.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    for plan in plans() {
        // Six gradients are added in another order: a few roundings of f32.
        let got = run(&plan);
        let far = got.iter().zip(&plain).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(far <= 1e-6 * largest, "under {plan}: {far} of {largest}");
    }
}

#[test]
fn convolutions_with_batch_norm() {
    let _alone = alone();
    let init = |d: &Device| {
        let conv = Conv2dConfig::new([4, 4], [3, 3]).with_padding(PaddingConfig2d::Same).with_bias(false);
        blocks(|| Conv { conv: conv.init(d), norm: BatchNormConfig::new(4).init(d) })
    };
    let forward = |m: &Conv, x: Tensor<4>| relu(m.norm.forward(m.conv.forward(x.clone()))) + x;
    conforms("convolution", init, |d| normal([2, 4, 6, 6], d), forward, false);
}

#[test]
fn attention() {
    let _alone = alone();
    conforms(
        "attention",
        |d| {
            let attention = MultiHeadAttentionConfig::new(8, 2).with_dropout(0.0);
            blocks(|| Attention { norm: LayerNormConfig::new(8).init(d), attention: attention.init(d) })
        },
        |d| normal([2, 5, 8], d),
        |m, x| m.attention.forward(MhaInput::self_attn(m.norm.forward(x.clone()))).context + x,
        false,
    );
}

#[test]
fn dropout_and_random_numbers_of_the_closure_itself() {
    let _alone = alone();
    conforms(
        "dropout",
        |d| blocks(|| Noisy { linear: LinearConfig::new(8, 8).init(d), drop: DropoutConfig::new(0.4).init() }),
        |d| normal([5, 8], d),
        |m, x| {
            let noise = Tensor::random(x.dims(), Distribution::Normal(0.0, 0.1), &x.device());
            m.drop.forward(gelu(m.linear.forward(x.clone() + noise))) + x
        },
        true,
    );
}

#[test]
fn several_tensors_of_several_ranks_and_kinds() {
    let _alone = alone();
    conforms(
        "tuples",
        |d| {
            blocks(|| Lookup { embedding: EmbeddingConfig::new(7, 8).init(d), linear: LinearConfig::new(8, 8).init(d) })
        },
        |d| {
            let ids = Tensor::<2, Int>::from_ints([[1, 2, 3], [4, 5, 6]], d);
            (normal([2, 3, 8], d), (ids, Some(normal([2, 8], d))), vec![normal([8], d)])
        },
        |m, (x, (ids, pooled), scale)| {
            let x = m.linear.forward(x + m.embedding.forward(ids.clone())).tanh();
            let pooled = pooled.map(|pooled| pooled + x.clone().mean_dim(1).reshape([2, 8]));
            let scale = scale.into_iter().map(|scale| scale * 0.9).collect();
            (x, (ids, pooled), scale)
        },
        false,
    );
}

#[test]
fn nested_segments() {
    let _alone = alone();
    // A block that checkpoints its own halves, with dropout inside and outside.
    conforms(
        "nested",
        |d| blocks(|| Noisy { linear: LinearConfig::new(8, 8).init(d), drop: DropoutConfig::new(0.3).init() }),
        |d| normal([5, 8], d),
        |m, x| {
            let half = Checkpoint::new().run(m, x.clone(), |m, x: Tensor<2>| {
                let x = m.drop.forward(m.linear.forward(x));
                Checkpoint::new().run(m, x, |m, x: Tensor<2>| m.drop.forward(gelu(m.linear.forward(x)))).unwrap()
            });
            m.drop.forward(half.unwrap()) + x
        },
        true,
    );
}
