//! Layers of kiln-layers beside burn's own and PyTorch's, one by one.
//!
//! `KILN_PYTHON=.venv/bin/python cargo bench --package benches --features criterion --bench layers`; with names of cases behind `--` only
//! those, and with `--rounds=3` fewer rounds than nine. `KILN_DTYPE=bfloat16` for 16 bits. The three take turns, on two threads.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench prints, and ends at what goes wrong"
)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::conv::Conv2dConfig;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::MaxPool2dConfig;
use burn::nn::{BatchNormConfig, LayerNormConfig, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::{gelu, gelu_approximate, relu, silu, softmax};
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{DType, Device, Distribution, Int, Tensor};
use kiln_cli::HEAP;
use kiln_cli::units::MIB;
use kiln_layers::{Activation, LinearCrossEntropy, Mask, activation_linear, norm_linear};
use serde::Deserialize;

/// Rounds of a case, after one that warms up. Each runs all three.
const ROUNDS: usize = 9;

/// Forward and backward pass, once.
#[derive(Clone, Copy, Deserialize)]
struct Run {
    seconds: f64,
    /// Bytes that the forward pass leaves, its output included.
    kept_bytes: usize,
    /// Bytes at the most, above those before the forward pass.
    #[serde(default)]
    peak_bytes: usize,
}

fn run<const D: usize>(forward: impl FnOnce() -> Tensor<D>) -> Run {
    let before = HEAP.live_bytes();
    HEAP.reset_peak();
    let started = Instant::now();
    let y = forward();
    let kept_bytes = HEAP.live_bytes() - before;
    let gradients = y.backward();
    let seconds = started.elapsed().as_secs_f64();
    drop(gradients);
    Run { seconds, kept_bytes, peak_bytes: HEAP.peak_bytes() - before }
}

/// Calls burn's layer (`false`) or that of kiln-layers (`true`).
type Layer = Box<dyn Fn(bool) -> Run>;

struct Bench {
    device: Device,
    dtype: DType,
}

/// Parameters in another dtype.
struct Cast(DType);

impl ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| tensor.detach().cast(self.0).require_grad())
    }
}

impl Bench {
    fn random<const D: usize>(&self, shape: [usize; D]) -> Tensor<D> {
        let x = Tensor::<D>::random(shape, Distribution::Normal(0.0, 1.0), (&self.device, DType::F32));
        x.cast(self.dtype).require_grad()
    }

    fn cast<M: Module>(&self, module: M) -> M {
        module.map(&mut Cast(self.dtype))
    }

    fn elementwise(&self, stock: fn(Tensor<2>) -> Tensor<2>, lean: fn(Tensor<2>) -> Tensor<2>) -> Layer {
        let x = self.random([4096, 1024]);
        Box::new(move |ours| run(|| if ours { lean(x.clone()) } else { stock(x.clone()) }))
    }

    fn layer_norm(&self) -> Layer {
        let (x, norm) = (self.random([4096, 768]), self.cast(LayerNormConfig::new(768).init(&self.device)));
        Box::new(move |ours| {
            run(|| match ours {
                true => kiln_layers::layer_norm(&norm, x.clone()).unwrap(),
                false => norm.forward(x.clone()),
            })
        })
    }

    fn batch_norm_relu(&self) -> Layer {
        let (x, norm) = (self.random([32, 64, 56, 56]), BatchNormConfig::new(64).init(&self.device));
        Box::new(move |ours| {
            run(|| match ours {
                true => kiln_layers::batch_norm_relu(&norm, x.clone()).unwrap(),
                false => relu(norm.forward(x.clone().cast(DType::F32)).cast(x.dtype())),
            })
        })
    }

    fn max_pool2d(&self) -> Layer {
        let x = self.random([32, 64, 56, 56]);
        let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
        let pool = MaxPool2dConfig::new([3, 3]).with_strides([2, 2]).with_padding(padding).init();
        Box::new(move |ours| {
            run(|| match ours {
                true => kiln_layers::max_pool2d(&pool, x.clone()).unwrap(),
                false => pool.forward(x.clone()),
            })
        })
    }

    fn attention(&self, [batch, heads, time, depth]: [usize; 4]) -> Layer {
        let width = heads * depth;
        let qkv = self.random([batch, time, 3 * width]);
        Box::new(move |ours| {
            run(|| {
                if ours {
                    return kiln_layers::self_attention(qkv.clone(), heads, Mask::Causal).unwrap();
                }
                let part = |i: usize| -> Tensor<4> {
                    let part = qkv.clone().slice([0..batch, 0..time, i * width..(i + 1) * width]);
                    part.reshape([batch, time, heads, depth]).swap_dims(1, 2)
                };
                let causal = AttentionModuleOptions { is_causal: true, ..Default::default() };
                let y = attention(part(0), part(1), part(2), None, None, causal);
                y.swap_dims(1, 2).reshape([batch, time, width])
            })
        })
    }

    fn loss(&self, [rows, width, classes]: [usize; 3]) -> Layer {
        let (hidden, weight) = (self.random([rows, width]), self.random([classes, width]));
        let targets = Tensor::<1, Int>::arange(0..rows as i64, &self.device).remainder_scalar(classes as i64);
        Box::new(move |ours| {
            let (hidden, weight, targets) = (hidden.clone(), weight.clone().transpose(), targets.clone());
            run(|| match ours {
                true => LinearCrossEntropy::new().forward(hidden, weight, None, targets).unwrap(),
                false => {
                    let logits = hidden.matmul(weight).cast(DType::F32);
                    CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, targets)
                }
            })
        })
    }

    fn conv2d(&self, [batch, channels, size, out, kernel, stride]: [usize; 6], groups: usize) -> Layer {
        let pad = kernel / 2;
        let config = Conv2dConfig::new([channels, out], [kernel, kernel]).with_stride([stride, stride]);
        let config = config.with_padding(PaddingConfig2d::Explicit(pad, pad, pad, pad)).with_bias(false);
        let conv = self.cast(config.with_groups(groups).init(&self.device));
        let x = self.random([batch, channels, size, size]);
        Box::new(move |ours| {
            run(|| match ours {
                true => kiln_layers::conv2d(&conv, x.clone()).unwrap(),
                false => conv.forward(x.clone()),
            })
        })
    }

    fn feed_forward(&self, [rows, width]: [usize; 2]) -> Layer {
        let norm = self.cast(LayerNormConfig::new(width).init(&self.device));
        let linear = |from, to| self.cast(LinearConfig::new(from, to).init(&self.device));
        let (up, down, x) = (linear(width, 4 * width), linear(4 * width, width), self.random([rows, width]));
        Box::new(move |ours| {
            run(|| match ours {
                true => {
                    let hidden = norm_linear(&norm, &up, x.clone()).unwrap();
                    activation_linear(Activation::GeluTanh, &down, hidden).unwrap()
                }
                false => down.forward(gelu_approximate(up.forward(norm.forward(x.clone())))),
            })
        })
    }

    /// Returns the case with this name. benches/peers/layers.py has cases with equal names.
    fn case(&self, name: &str) -> Layer {
        let (kind, sizes) = name.split_once(':').unwrap_or((name, ""));
        let sizes: Vec<usize> = sizes.split(':').flat_map(str::parse).collect();
        match kind {
            "gelu" => self.elementwise(gelu, |x| kiln_layers::gelu(x).unwrap()),
            "gelu_tanh" => self.elementwise(gelu_approximate, |x| kiln_layers::gelu_tanh(x).unwrap()),
            "silu" => self.elementwise(silu, |x| kiln_layers::silu(x).unwrap()),
            "softmax" => self.elementwise(|x| softmax(x, 1), |x| kiln_layers::softmax(x).unwrap()),
            "layer_norm" => self.layer_norm(),
            "batch_norm_relu" => self.batch_norm_relu(),
            "max_pool2d" => self.max_pool2d(),
            "attention" => self.attention(sizes.try_into().unwrap()),
            "loss" => self.loss(sizes.try_into().unwrap()),
            "conv2d" => self.conv2d(sizes.try_into().unwrap(), 1),
            "depthwise" => self.conv2d([sizes[0], sizes[1], sizes[2], sizes[1], 3, 1], sizes[1]),
            "feed_forward" => self.feed_forward(sizes.try_into().unwrap()),
            _ => panic!("no case '{name}'"),
        }
    }
}

const CASES: [&str; 21] = [
    "gelu",
    "gelu_tanh",
    "silu",
    "softmax",
    "layer_norm",
    "batch_norm_relu",
    "max_pool2d",
    "feed_forward:512:128",
    "feed_forward:4096:768",
    "attention:8:4:64:32",
    "attention:1:12:1024:64",
    "attention:1:12:4096:64",
    "loss:512:128:256",
    "loss:2048:512:16384",
    "loss:1024:768:50257",
    "loss:8192:768:50257",
    "conv2d:64:16:28:16:3:1",
    "conv2d:64:128:4:128:3:1",
    "conv2d:32:64:56:64:3:1",
    "conv2d:32:256:14:64:1:1",
    "depthwise:32:96:56",
];

/// A PyTorch process that runs the layers of the cases.
struct Torch {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Torch {
    fn start() -> Option<Self> {
        let python = std::env::var("KILN_PYTHON").ok()?;
        let mut command = Command::new(python);
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/peers/layers.py")).args(["--threads", "2"]);
        command.env("OMP_WAIT_POLICY", "passive").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, mut output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        println!("{}", line.trim());
        Some(Self { child, input, output })
    }

    fn run(&mut self, name: &str, dtype: &str) -> Run {
        writeln!(self.input, "{name} {dtype}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

impl Drop for Torch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [values[values.len() / 4], values[values.len() / 2], values[values.len() * 3 / 4]]
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let name = std::env::var("KILN_DTYPE").unwrap_or_else(|_| "float32".into());
    let dtype = match name.as_str() {
        "float32" => DType::F32,
        "float16" => DType::F16,
        _ => DType::BF16,
    };
    let rounds =
        std::env::args().find_map(|argument| argument.strip_prefix("--rounds=")?.parse().ok()).unwrap_or(ROUNDS);
    let bench = Bench { device: Device::flex().autodiff(), dtype };
    let mut torch = Torch::start();
    println!(
        "| {name} | burn, ms | ours, ms | torch, ms | to burn | to torch | peak, MiB, burn → ours | kept, MiB, burn → ours, torch |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    for case in
        CASES.iter().filter(|case| wanted.is_empty() || wanted.iter().any(|name| case.starts_with(name.as_str())))
    {
        let layer = bench.case(case);
        let mut runs: [Vec<Run>; 3] = [vec![], vec![], vec![]];
        for _ in 0..=rounds {
            runs[0].push(layer(false));
            runs[1].push(layer(true));
            runs[2].extend(torch.as_mut().map(|torch| torch.run(case, &name)));
        }
        let times = runs.each_ref().map(|runs| runs.iter().skip(1).map(|run| run.seconds).collect::<Vec<_>>());
        let ratio = |to: usize| match times[to].is_empty() {
            true => "".into(),
            false => {
                let [low, median, high] = quartiles(times[1].iter().zip(&times[to]).map(|(a, b)| a / b).collect());
                format!("{median:.2} ({low:.2} to {high:.2})")
            }
        };
        let median = |runs: usize| match times[runs].is_empty() {
            true => "".into(),
            false => format!("{:.1}", 1e3 * quartiles(times[runs].clone())[1]),
        };
        let mib = |bytes: usize| format!("{:.1}", bytes as f64 / MIB);
        let last = |index: usize| runs[index].last();
        let [peaks, kept]: [fn(&Run) -> usize; 2] = [|run| run.peak_bytes, |run| run.kept_bytes];
        let of = |index: usize, pick: fn(&Run) -> usize| last(index).map_or(String::new(), |run| mib(pick(run)));
        println!(
            "| {case} | {} | {} | {} | {} | {} | {} → {} | {} → {}, {} |",
            median(0),
            median(1),
            median(2),
            ratio(0),
            ratio(2),
            of(0, peaks),
            of(1, peaks),
            of(0, kept),
            of(1, kept),
            of(2, kept),
        );
    }
}
