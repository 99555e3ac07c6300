//! The account of launches and bytes: operations and whole steps, on Kiln's layers and on burn's own, against the committed numbers.
//!
//! Kernels are measured, not run: the emulator runs a few blocks of each launch to see which bytes it moves. Results are whatever the memory
//! held. A number of Kiln's layers above the committed one fails; `cargo xtask launches --accept` writes new ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{BatchNormConfig, EmbeddingConfig, LayerNormConfig, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::{gelu_approximate, relu};
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{DType, Int, Tensor};
use kiln_layers::{
    Activation, LinearCrossEntropy, Mask, activation_linear, batch_norm_relu, conv2d, embedding, gelu_tanh, layer_norm,
    linear, norm_linear, norm_self_attention, self_attention,
};
use kiln_models::{GptConfig, ResNetConfig};
use kiln_precision::{Policy, Precision};
use kiln_training::OptimizerConfig;
use serde::{Deserialize, Serialize};

use crate::run::device;
use crate::sim::{Card, with_cards};
use crate::support::{Settings, Watched, builder, settings};
use crate::tasks::{Case, Residual, Text};

/// What a piece of work took.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Figures {
    launches: u64,
    /// Bytes that kernels read and wrote.
    bytes: u64,
    /// The most bytes that CubeCL held.
    peak_bytes: u64,
    /// Times that the host waited for the GPU, and copies to it.
    waits: u64,
    copies: u64,
    /// Launches and bytes of each kernel that has at least a hundredth of either.
    kernels: BTreeMap<String, [u64; 2]>,
}

type Account = BTreeMap<String, Figures>;

/// The committed numbers.
fn committed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../benches/results/launches.json")
}

/// The figures of the work since `mark`, a length of the emulator's log.
fn since(card: &Card, mark: usize, before: [u64; 2]) -> Figures {
    let text = std::fs::read_to_string(std::env::var_os("KILN_SIM_LOG").unwrap()).unwrap();
    let mut all = Figures { peak_bytes: card.peak(), ..Figures::default() };
    let mut kernels: BTreeMap<String, [u64; 2]> = BTreeMap::new();
    for line in text[mark..].lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        if line["event"] == "launch" {
            let bytes = line["read"].as_u64().unwrap() + line["written"].as_u64().unwrap();
            let kernel = kernels.entry(kind(line["kernel"].as_str().unwrap())).or_default();
            *kernel = [kernel[0] + 1, kernel[1] + bytes];
            all.launches += 1;
            all.bytes += bytes;
        }
    }
    let (launches, bytes) = (all.launches, all.bytes);
    kernels.retain(|_, [count, moved]| 100 * *count >= launches || 100 * *moved >= bytes);
    let [waits, copies] = waited(card);
    Figures { waits: waits - before[0], copies: copies - before[1], kernels, ..all }
}

/// A kernel's name without the numbers of its settings: `elemwise_fuse` of `elemwise_fuse_28d0ee74`.
fn kind(name: &str) -> String {
    let name = name.rsplit_once('_').map_or(name, |(kind, _)| kind);
    name.split("_in_").next().unwrap_or(name).to_owned()
}

fn waited(card: &Card) -> [u64; 2] {
    let waits = card.count("synchronisations") + card.count("event_synchronisations");
    [waits, card.count("device_to_host")]
}

/// Measures `work`, which leaves its result on the device.
fn measured<R>(card: &Card, work: impl FnOnce() -> R) -> (R, Figures) {
    let sync = || device().inner().sync().unwrap();
    sync();
    let length = || std::fs::metadata(std::env::var_os("KILN_SIM_LOG").unwrap()).unwrap().len() as usize;
    card.watch();
    let (mark, before) = (length(), waited(card));
    card.execute("measure");
    let result = work();
    // The waits are those of the work itself.
    let figures = since(card, mark, before);
    sync();
    card.execute("skip");
    let after = since(card, mark, before);
    (result, Figures { waits: figures.waits, copies: figures.copies, ..after })
}

/// The third step of a run.
fn step<C: Case>(card: &Card, case: &C, precision: Precision) -> Figures {
    let settings = Settings { policy: Policy::new(precision), ..settings(OptimizerConfig::adamw()) };
    // The check of the precision runs; nothing after it does.
    card.execute("run");
    let init = |device: &_| {
        card.execute("skip");
        case.model(device)
    };
    let batch = case.batch(0);
    let mut trainer = Watched::build_on(builder(case.clone(), init, &settings), &device(), &batch);
    for _ in 0..2 {
        let _ = trainer.step(&batch).unwrap();
    }
    measured(card, || trainer.step(&batch).unwrap()).1
}

/// The third forward and backward pass of a function.
fn passes<const D: usize, const E: usize>(
    card: &Card,
    shape: [usize; D],
    dtype: DType,
    function: impl Fn(Tensor<D>) -> Tensor<E>,
) -> [Figures; 2] {
    let x = || Tensor::<D>::zeros(shape, (&device(), dtype)).require_grad();
    for _ in 0..2 {
        let x = x();
        let gradients = function(x.clone()).backward();
        device().inner().sync().unwrap();
        drop((x.grad(&gradients), gradients));
    }
    let x = x();
    let (y, forward) = measured(card, || function(x.clone()));
    let (gradients, backward) = measured(card, || y.backward());
    drop((x, gradients));
    [forward, backward]
}

/// `module` with its parameters stored in `dtype`.
fn cast<M: Module>(module: M, dtype: DType) -> M {
    struct Cast(DType);
    impl ModuleMapper for Cast {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let dtype = self.0;
            param.map(|tensor| tensor.cast(dtype).detach().require_grad())
        }
    }
    module.map(&mut Cast(dtype))
}

/// GPT-2's sizes: sequences, tokens of each, width, heads, vocabulary.
const GPT2: [usize; 5] = [8, 1024, 768, 12, 50_257];

fn operation(card: &Card, name: &str, lean: bool, dtype: DType) -> [Figures; 2] {
    let [b, t, width, heads, vocabulary] = GPT2;
    let device = device();
    let shape = [b, t, width];
    let norm = || cast(LayerNormConfig::new(width).init(&device), dtype);
    let layer = |from, to| cast(LinearConfig::new(from, to).init(&device), dtype);
    let conv = |side: usize| -> Conv2d {
        let pad = side / 2;
        let config = Conv2dConfig::new([64, 64], [side; 2]).with_padding(PaddingConfig2d::Explicit(pad, pad, pad, pad));
        cast(config.with_bias(false).init(&device), dtype)
    };
    let images = [256, 64, 56, 56];
    match name {
        "layer_norm" => {
            let norm = norm();
            passes(card, shape, dtype, |x| if lean { layer_norm(&norm, x).unwrap() } else { norm.forward(x) })
        }
        "gelu" => {
            passes(card, [b, t, 4 * width], dtype, |x| if lean { gelu_tanh(x).unwrap() } else { gelu_approximate(x) })
        }
        "linear" => {
            let square = layer(width, width);
            passes(card, shape, dtype, |x| if lean { linear(&square, x).unwrap() } else { square.forward(x) })
        }
        "norm_linear" => {
            let (norm, out) = (norm(), layer(width, 4 * width));
            passes(card, shape, dtype, |x| {
                if lean { norm_linear(&norm, &out, x).unwrap() } else { out.forward(norm.forward(x)) }
            })
        }
        "activation_linear" => {
            let out = layer(4 * width, width);
            passes(card, [b, t, 4 * width], dtype, |x| match lean {
                true => activation_linear(Activation::GeluTanh, &out, x).unwrap(),
                false => out.forward(gelu_approximate(x)),
            })
        }
        "self_attention" => passes(card, [b, t, 3 * width], dtype, |x| match lean {
            true => self_attention(x, heads, Mask::Causal).unwrap(),
            false => attended(x, heads).swap_dims(1, 2).reshape([b, t, width]),
        }),
        "norm_self_attention" => {
            let (norm, qkv) = (norm(), layer(width, 3 * width));
            passes(card, shape, dtype, |x| match lean {
                true => norm_self_attention(&norm, &qkv, x, heads, Mask::Causal).unwrap(),
                false => attended(qkv.forward(norm.forward(x)), heads).swap_dims(1, 2).reshape([b, t, width]),
            })
        }
        "linear_cross_entropy" => {
            let words = Tensor::<2>::zeros([width, vocabulary], (&device, dtype));
            let words = Param::from_tensor(words).set_require_grad(true);
            let targets = || Tensor::<1, Int>::zeros([b * t], &device);
            passes(card, [b * t, width], dtype, |x| match lean {
                true => LinearCrossEntropy::new().forward(x, words.val(), None, targets()).unwrap(),
                false => {
                    let logits = x.matmul(words.val()).cast(DType::F32);
                    CrossEntropyLossConfig::new().init(&device).forward(logits, targets())
                }
            })
        }
        "embedding" => {
            let words = cast(EmbeddingConfig::new(vocabulary, width).init(&device), dtype);
            let ids = || Tensor::<2, Int>::zeros([b, t], &device);
            passes(card, [1, 1, 1], dtype, |x| match lean {
                true => embedding(&words, ids()).unwrap() * x,
                false => words.forward(ids()) * x,
            })
        }
        "batch_norm_relu" => {
            let norm = BatchNormConfig::new(64).init(&device);
            // Stored as burn's convolutions store their results.
            passes(card, [256, 56, 56, 64], dtype, |x| {
                let x: Tensor<4> = x.permute([0, 3, 1, 2]);
                if lean {
                    batch_norm_relu(&norm, x).unwrap()
                } else {
                    relu(norm.forward(x.cast(DType::F32))).cast(dtype)
                }
            })
        }
        "conv2d_1x1" | "conv2d_3x3" => {
            let conv = conv(if name == "conv2d_1x1" { 1 } else { 3 });
            passes(card, images, dtype, |x| if lean { conv2d(&conv, x).unwrap() } else { conv.forward(x) })
        }
        "bottleneck" => {
            let config = ResNetConfig::resnet50(1000).with_lean(lean);
            let model = Policy::new(precision(dtype)).autocast(config.init(&device).unwrap()).unwrap();
            let blocks = model.blocks();
            passes(card, [256, 256, 56, 56], dtype, |x| blocks[2].forward(x))
        }
        other => panic!("no operation {other}"),
    }
}

fn precision(dtype: DType) -> Precision {
    if dtype == DType::BF16 { Precision::BF16 } else { Precision::F32 }
}

/// burn's attention over queries, keys and values that lie side by side.
fn attended(x: Tensor<3>, heads: usize) -> Tensor<4> {
    let [b, t, width] = x.dims().map(|size| size);
    let width = width / 3;
    let [q, k, v] = [0, 1, 2].map(|part| {
        let part = x.clone().slice([0..b, 0..t, part * width..(part + 1) * width]);
        part.reshape([b, t, heads, width / heads]).swap_dims(1, 2)
    });
    let options = AttentionModuleOptions { is_causal: true, ..Default::default() };
    burn::tensor::module::attention(q, k, v, None, None, options)
}

const OPERATIONS: [&str; 13] = [
    "layer_norm",
    "gelu",
    "linear",
    "norm_linear",
    "activation_linear",
    "self_attention",
    "norm_self_attention",
    "linear_cross_entropy",
    "embedding",
    "batch_norm_relu",
    "conv2d_1x1",
    "conv2d_3x3",
    "bottleneck",
];

/// The work that a case names, such as `gpt2 bf16 lean`.
fn account(card: &Card, case: &str) -> Account {
    let [what, dtype, layers]: [&str; 3] = case.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let (dtype, lean) = (if dtype == "bf16" { DType::BF16 } else { DType::F32 }, layers == "lean");
    let [samples, context, width, heads, vocab] = GPT2;
    match what {
        "gpt2" => {
            let config = GptConfig { vocab, context, layers: 12, heads, width, dropout: 0.0, lean };
            [(case.to_owned(), step(card, &Text { samples, config }, precision(dtype)))].into()
        }
        "resnet50" => {
            let config = ResNetConfig::resnet50(1000).with_lean(lean);
            [(case.to_owned(), step(card, &Residual { samples: 256, side: 224, config }, precision(dtype)))].into()
        }
        name => {
            card.execute("skip");
            let both = operation(card, name, lean, dtype);
            ["forward", "backward"]
                .into_iter()
                .zip(both)
                .map(|(pass, figures)| (format!("{case} {pass}"), figures))
                .collect()
        }
    }
}

/// Compares the account of a case with the committed one, or writes it to the folder that `KILN_LAUNCHES` names.
fn check(card: &Card, case: &str) {
    let account = account(card, case);
    for (name, figures) in &account {
        println!("{name}: {figures:?}");
    }
    if let Some(folder) = std::env::var_os("KILN_LAUNCHES") {
        let path = Path::new(&folder).join(case.replace(' ', "-")).with_extension("json");
        std::fs::write(path, serde_json::to_vec(&account).unwrap()).unwrap();
        return;
    }
    let known: Account = serde_json::from_slice(&std::fs::read(committed()).unwrap()).unwrap();
    for (name, figures) in &account {
        let known =
            known.get(name).unwrap_or_else(|| panic!("{name} has no numbers: run `cargo xtask launches --accept`"));
        // CubeCL frees tensors on a thread of its own, so that peaks and what burn joins vary a little; waits vary more, and `waits` holds
        // them.
        for (what, is, was) in [
            ("launches", figures.launches, known.launches + known.launches / 1000),
            ("bytes", figures.bytes, known.bytes + known.bytes / 1000),
            ("bytes of the peak", figures.peak_bytes, known.peak_bytes + known.peak_bytes / 50),
        ] {
            assert!(is <= was, "{name}: {is} {what}, committed are {was}: {figures:?}");
        }
    }
}

fn cases(names: &[&str], dtypes: &[&str]) -> Vec<String> {
    let of_name = |name: &&str| {
        let each = dtypes.iter().flat_map(|dtype| ["lean", "stock"].map(|layers| format!("{dtype} {layers}")));
        each.map(|rest| format!("{name} {rest}")).collect::<Vec<_>>()
    };
    names.iter().flat_map(of_name).collect()
}

const MEASURED: [(&str, &str); 2] = [("TRACE", "1"), ("TOTAL", "80G")];

/// Runs the cases. burn's own layers are measured for comparison only.
fn all(cases: &[String]) {
    let only = std::env::var("KILN_LAUNCHES_ONLY").unwrap_or_default();
    let writes = std::env::var_os("KILN_LAUNCHES").is_some();
    let cases = cases.iter().map(String::as_str).filter(|case| writes || case.ends_with("lean"));
    let cases: Vec<&str> = cases.filter(|case| case.contains(&only)).collect();
    with_cards(&MEASURED, &cases, check);
}

#[test]
fn operations_take_no_more_than_is_committed() {
    all(&cases(&OPERATIONS, &["bf16"]));
}

#[test]
fn steps_take_no_more_than_is_committed() {
    all(&cases(&["gpt2", "resnet50"], &["bf16", "f32"]));
}
