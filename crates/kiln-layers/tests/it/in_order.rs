//! Gradients of parameters that are added row by row have the same bits however a batch is cut.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use kiln_layers::{
    Activation, LinearCrossEntropy, Mask, Projections, RotaryOptions, add_positions, embedding, feed_forward,
    gated_feed_forward, layer_norm, linear, norm_grouped_attention, norm_self_attention,
};
use kiln_operations::{RunningSums, SumError, read_parameter, weight_parts};
use proptest::prelude::*;

use crate::compare::{config, tensor};
use crate::low_rank::{Apart, attach};

/// Every layer whose sums are in the order of the rows.
#[derive(Module, Debug)]
struct Net {
    words: Embedding,
    positions: Embedding,
    norm: LayerNorm,
    qkv: Linear,
    out: Linear,
    rms: RmsNorm,
    up: Linear,
    down: Linear,
    /// The layers of a block of Llama.
    block: Block,
    last: LayerNorm,
}

#[derive(Module, Debug)]
struct Block {
    before: RmsNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    of_queries: RmsNorm,
    of_keys: RmsNorm,
    out: Linear,
    between: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Block {
    /// A block with one or two heads of keys and values.
    fn new([heads, depth]: [usize; 2], device: &Device) -> Self {
        let (width, of_keys) = (heads * depth, depth * if heads.is_multiple_of(2) { 2 } else { 1 });
        let layer = |inputs, outputs, bias| LinearConfig::new(inputs, outputs).with_bias(bias).init(device);
        let norm = |width| RmsNormConfig::new(width).init(device);
        Self {
            before: norm(width),
            query: layer(width, width, true),
            key: layer(width, of_keys, true),
            value: layer(width, of_keys, false),
            of_queries: norm(depth),
            of_keys: norm(depth),
            out: layer(width, width, false),
            between: norm(width),
            gate: layer(width, width + 3, false),
            up: layer(width, width + 3, true),
            down: layer(width + 3, width, true),
        }
    }

    fn forward(&self, x: Tensor<3>, heads: usize) -> Tensor<3> {
        let projections = Projections {
            norm: &self.before,
            query: &self.query,
            key: &self.key,
            value: &self.value,
            head_norms: Some([&self.of_queries, &self.of_keys]),
            rotary: RotaryOptions::new(),
            heads,
        };
        let attended = norm_grouped_attention(projections, x.clone(), Mask::Causal).unwrap();
        let x = x + linear(&self.out, attended).unwrap();
        x.clone() + gated_feed_forward(&self.between, [&self.gate, &self.up, &self.down], x).unwrap()
    }
}

/// Gives weights and biases the same values in every run. What burn draws depends on what other tests of the process
/// have drawn before, and with some values most of a gradient cancels, so that what is left of it is rounding.
#[derive(Default)]
struct Drawn {
    path: Vec<String>,
    count: u64,
}

impl ModuleMapper for Drawn {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let inputs = param.dims()[0] as f32;
        let scale = match self.path.join(".").as_str() {
            "words.weight" | "positions.weight" => 1.0,
            path if path.ends_with("weight") || path.ends_with("bias") => inputs.sqrt().recip(),
            // Norms begin with ones and zeros.
            _ => return param,
        };
        self.count += 1;
        let seed = self.count;
        param.map(|drawn| tensor(drawn.dims(), seed, scale, DType::F32, &drawn.device()).require_grad())
    }
}

impl Net {
    fn new([vocabulary, context, heads, depth]: [usize; 4], device: &Device) -> Self {
        let width = heads * depth;
        let layer = |inputs, outputs, bias| LinearConfig::new(inputs, outputs).with_bias(bias).init(device);
        let net = Self {
            words: EmbeddingConfig::new(vocabulary, width).init(device),
            positions: EmbeddingConfig::new(context, width).init(device),
            norm: LayerNormConfig::new(width).init(device),
            qkv: layer(width, 3 * width, true),
            out: layer(width, width, false),
            rms: RmsNormConfig::new(width).init(device),
            up: layer(width, 2 * width + 1, true),
            down: layer(2 * width + 1, width, true),
            block: Block::new([heads, depth], device),
            last: LayerNormConfig::new(width).init(device),
        };
        net.map(&mut Drawn::default())
    }

    /// The mean loss of the next token. Linear layers compute in `dtype`, with parameters that are read in it.
    fn loss(&self, ids: Tensor<2, Int>, heads: usize, dtype: DType) -> Tensor<1> {
        let [samples, time] = ids.dims();
        let cast = |layer: &Linear| Cast { layer: layer.clone(), dtype };
        let words = embedding(&self.words, ids.clone()).unwrap();
        let x = add_positions(&self.positions, 1, words).unwrap().cast(dtype);
        let attended = cast(&self.qkv).with(|qkv| norm_self_attention(&self.norm, qkv, x.clone(), heads, Mask::Causal));
        let x = x + cast(&self.out).with(|out| linear(out, attended.unwrap())).unwrap();
        let [up, down] = [&self.up, &self.down];
        let fed = cast(up)
            .with(|up| cast(down).with(|down| feed_forward(&self.rms, Activation::Gelu, [up, down], x.clone())));
        let x = x + fed.unwrap();
        let x = self.block.forward(x, heads);
        let rows = layer_norm(&self.last, x).unwrap().reshape([samples * time, self.last.gamma.dims()[0]]);
        let weight = read_parameter(self.words.weight.val(), dtype);
        LinearCrossEntropy::new().forward_by_class(rows, weight, ids.reshape([samples * time])).unwrap()
    }
}

/// A linear layer whose parameters are read in a dtype.
struct Cast {
    layer: Linear,
    dtype: DType,
}

impl Cast {
    fn with<R>(self, f: impl FnOnce(&Linear) -> R) -> R {
        if weight_parts(&self.layer.weight).is_some() {
            return f(&self.layer);
        }
        let Self { layer: Linear { weight, bias }, dtype } = self;
        let bias = bias.map(|bias| Param::initialized(ParamId::new(), read_parameter(bias.val(), dtype)));
        let weight = Param::initialized(ParamId::new(), read_parameter(weight.val(), dtype));
        f(&Linear { weight, bias })
    }
}

struct Bits<'a>(&'a GradientsParams, Vec<(String, Vec<u32>)>, Vec<String>);

impl ModuleVisitor for Bits<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.2.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.2.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.is_require_grad() {
            return;
        }
        let gradient = self.0.get::<D>(param.id).expect("every parameter has a gradient");
        let values = gradient.into_data().try_into_vec::<f32>().unwrap();
        self.1.push((self.2.join("."), values.into_iter().map(f32::to_bits).collect()));
    }
}

/// Whether the parameter at a path is the weight of a linear layer.
fn is_linear(path: &str) -> bool {
    path.ends_with(".weight") && !path.starts_with("words") && !path.starts_with("positions")
}

fn ids(samples: usize, time: usize, vocabulary: usize, device: &Device) -> Tensor<2, Int> {
    let ids: Vec<i64> = (0..samples * time).map(|i| ((i * i * 31 + i * 7) % vocabulary) as i64).collect();
    Tensor::from_data(TensorData::new(ids, [samples, time]), device)
}

/// The gradients of a batch in micro-batches of these sizes, whose losses count `factor` times their tokens.
fn gradients(
    net: &Net,
    ids: &Tensor<2, Int>,
    (cuts, heads, dtype): (&[usize], usize, DType),
    factor: impl Fn(usize) -> f32,
) -> Result<Vec<(String, Vec<u32>)>, SumError> {
    let (sums, mut first, time) = (RunningSums::default(), 0, ids.dims()[1]);
    for (index, size) in cuts.iter().enumerate() {
        let part = ids.clone().narrow(0, first, *size);
        sums.pass(net, first).during(|| {
            let loss = net.loss(part, heads, dtype) * (factor(index) * (size * time) as f32);
            let apart = GradientsParams::from_grads(loss.backward(), net);
            assert!(apart.is_empty(), "all gradients are in the sums");
        });
        first += size;
    }
    let gradients = sums.finish(net)?;
    let mut bits = Bits(&gradients, vec![], vec![]);
    net.visit(&mut bits);
    Ok(bits.1)
}

proptest! {
    #![proptest_config(config(24))]

    #[test]
    fn a_batch_has_the_same_bits_however_it_is_cut(
        samples in 2_usize..9,
        at in prop::collection::vec(1_usize..8, 1..3),
        time in prop::sample::select(vec![1_usize, 3, 16, 65]),
        heads in 1_usize..4,
        depth in prop::sample::select(vec![2_usize, 8, 22]),
        vocabulary in prop::sample::select(vec![5_usize, 300, 2100]),
        dtype in prop::sample::select(vec![DType::F32, DType::BF16, DType::F16]),
        adapters in prop::sample::select(vec![None, Some(false), Some(true)]),
    ) {
        let device = Device::flex().autodiff();
        let net = Net::new([vocabulary, time + 1, heads, depth], &device);
        let net = match adapters {
            Some(dora) => attach::<_, Apart>(net, dora, is_linear),
            None => net,
        };
        let ids = ids(samples, time, vocabulary, &device);
        let mut cuts: Vec<usize> = at.into_iter().map(|at| 1 + at % (samples - 1)).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let sizes: Vec<usize> = [0].iter().chain(&cuts).zip(cuts.iter().chain([&samples])).map(|(a, b)| b - a).collect();
        let whole = gradients(&net, &ids, (&[samples], heads, dtype), |_| 1.0).unwrap();
        let parts = gradients(&net, &ids, (&sizes, heads, dtype), |_| 1.0).unwrap();
        for ((name, whole), (_, parts)) in whole.iter().zip(&parts) {
            let differs = whole.iter().zip(parts).filter(|(whole, part)| whole != part).count();
            prop_assert_eq!(differs, 0, "{} of {} values of {} in {:?}", differs, whole.len(), name, sizes);
        }
    }
}

/// Compares the sums with the gradients that burn adds up, for samples, time, vocabulary and depth.
///
/// The distance is at most `tolerance` of the gradient. In 16 bits it may also be half the distance of burn's gradient
/// from that of 32 bits: the terms of a key's bias cancel, so that much of what is left is rounding.
fn assert_as_burn_adds(
    [samples, time, vocabulary, depth]: [usize; 4],
    dtype: DType,
    adapters: Option<bool>,
    tolerance: f64,
) {
    let device = Device::flex().autodiff();
    let (heads, factor) = (4, (samples * time) as f32);
    let net = Net::new([vocabulary, time + 1, heads, depth], &device);
    let net = match adapters {
        Some(dora) => attach::<_, Apart>(net, dora, is_linear),
        None => net,
    };
    let ids = ids(samples, time, vocabulary, &device);
    let found = gradients(&net, &ids, (&[samples], heads, dtype), |_| 1.0).unwrap();
    let burns = |dtype| {
        let loss = net.loss(ids.clone(), heads, dtype) * factor;
        let plain = GradientsParams::from_grads(loss.backward(), &net);
        let mut bits = Bits(&plain, vec![], vec![]);
        net.visit(&mut bits);
        bits.1
    };
    let exact = (dtype != DType::F32).then(|| burns(DType::F32));
    let expected = burns(dtype);
    assert_eq!(found.len(), expected.len());
    for (index, ((name, found), (_, expected))) in found.iter().zip(&expected).enumerate() {
        assert_eq!(found.len(), expected.len(), "{name}");
        let far = distance(found, expected);
        let all = norm(expected.iter().map(|bits| f64::from(f32::from_bits(*bits))));
        let rounding = exact.as_ref().map_or(0.0, |exact| distance(expected, &exact[index].1));
        let what = format!("{name}, {time} positions, {dtype:?}, {adapters:?}");
        assert!(far <= (tolerance * all.max(1e-6)).max(rounding / 2.0), "{what}: {far} of {all}, rounding {rounding}");
    }
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value.powi(2)).sum::<f64>().sqrt()
}

/// The norm of the difference of two gradients.
fn distance(found: &[u32], expected: &[u32]) -> f64 {
    let value = |bits: &u32| f64::from(f32::from_bits(*bits));
    norm(found.iter().zip(expected).map(|(a, b)| value(a) - value(b)))
}

#[test]
fn sums_are_those_that_burn_adds_up() {
    assert_as_burn_adds([4, 16, 300, 8], DType::F32, None, 2e-6);
}

#[test]
fn long_sequences_in_parts_have_the_gradients_of_the_whole() {
    // Sums over 16,400 rows, one after the other, are rounded more than sums of parts.
    assert_as_burn_adds([2, 8200, 20, 2], DType::F32, None, 3e-5);
    assert_as_burn_adds([1, 8200, 20, 2], DType::F32, Some(true), 3e-5);
    // In 16 bits a gradient of the whole is rounded once, and each part of it.
    assert_as_burn_adds([1, 8200, 20, 2], DType::BF16, None, 2e-2);
}

#[test]
fn a_loss_that_is_no_mean_over_its_weight_is_refused() {
    let device = Device::flex().autodiff();
    let net = Net::new([20, 4, 1, 4], &device);
    let ids = ids(3, 3, 20, &device);
    let refused = gradients(&net, &ids, (&[2, 1], 1, DType::F32), |index| index as f32 + 1.0).unwrap_err();
    assert_eq!(refused, SumError::Factors(1.0, 2.0));
    assert!(gradients(&net, &ids, (&[2, 1], 1, DType::F32), |_| 0.5).is_ok());

    let sums = RunningSums::default();
    sums.pass(&net, 0).during(|| drop(net.loss(ids.clone(), 1, DType::F32)));
    let refused = sums.finish(&net).map(|_| ()).unwrap_err();
    assert_eq!(refused, SumError::Dropped { operation: "linear cross-entropy" });
}
