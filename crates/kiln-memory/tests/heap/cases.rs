//! Training steps that are predicted and measured. The test of the accuracy runs small ones, the bench runs large ones.

use std::collections::{BTreeSet, HashSet};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamW, AdamWConfig, GradientsParams, ModuleOptimizer, Optimizer, Sgd, SgdConfig};
use burn::tensor::{DType, Device, Int, Tensor};
use kiln_checkpointing::{Chain, Mode, Plan, Tensors};
use kiln_memory::{Recomputed, StepOptions, StepTrace, record_step};
use kiln_models::{Gpt, GptBlock, GptConfig, ResNet, ResNetBlock, ResNetConfig};
use kiln_operations::accumulate_into;
use kiln_precision::{Policy, Precision};

use crate::HEAP;
use crate::lean::{Lean, LeanBlock, LeanConfig};

/// A model whose blocks are a chain, and its loss on a batch of zeros.
pub(crate) trait Case: 'static {
    type Model: Module + 'static;
    type Part: Module + 'static;
    type X: Tensors;

    fn build(&self, device: &Device) -> Self::Model;
    /// The input of the first block.
    fn begin(&self, model: &Self::Model, batch: usize, device: &Device) -> Self::X;
    fn parts(&self, model: &Self::Model) -> Vec<Self::Part>;
    fn run(part: &Self::Part, x: Self::X) -> Self::X;
    /// Turns the output of the last block into the loss.
    fn end(&self, model: &Self::Model, x: Self::X) -> Tensor<1>;
}

/// The settings with which a case is trained.
#[derive(Clone)]
pub(crate) struct Setup<O> {
    pub(crate) precision: Precision,
    pub(crate) plan: Option<Plan>,
    pub(crate) optimizer: O,
    pub(crate) options: StepOptions,
}

impl<O> Setup<O> {
    pub(crate) fn new(optimizer: O) -> Self {
        Self { precision: Precision::F32, plan: None, optimizer, options: StepOptions::default() }
    }
}

pub(crate) fn sgd() -> Sgd {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_dampening(0.0))).build()
}

pub(crate) fn adamw() -> AdamW {
    AdamWConfig::new().build()
}

pub(crate) fn record<C: Case, O: Optimizer>(case: &C, setup: &Setup<O>) -> StepTrace {
    let policy = Policy::new(setup.precision);
    let trace = record_step(
        |device| policy.autocast(case.build(device)).unwrap(),
        |model, recorder| {
            let x = case.begin(model, recorder.batch(), recorder.device());
            recorder.cut();
            let x = case.parts(model).iter().fold(x, |x, part| {
                let x = C::run(part, x);
                recorder.cut();
                x
            });
            case.end(model, x)
        },
        &setup.optimizer,
        setup.options,
    )
    .unwrap();
    let Some(plan) = &setup.plan else { return trace };
    let segments = plan.segments().iter().filter(|segment| segment.mode != Mode::Plain);
    let segments: Vec<Recomputed> = segments
        .map(|segment| Recomputed {
            blocks: segment.blocks.clone(),
            offloaded: segment.mode == Mode::Offload,
            streamed: false,
        })
        .collect();
    trace.with_plan(&segments).unwrap()
}

/// The most bytes in each phase of the third step, above those before the model was built.
pub(crate) fn measure<C: Case, O: Optimizer>(case: &C, setup: &Setup<O>, batch: usize) -> [usize; 3] {
    let device = Device::flex().autodiff();
    let mut optimizer = ModuleOptimizer::from(setup.optimizer.clone());
    let before = HEAP.live_bytes();
    let mut model = Policy::new(setup.precision).autocast(case.build(&device)).unwrap();
    let used_once = used_once(&model, &record(case, &Setup { plan: None, ..setup.clone() }));
    let loss = |model: &C::Model| {
        let x = case.begin(model, batch, &device);
        let parts = case.parts(model);
        let x = match &setup.plan {
            None => parts.iter().fold(x, |x, part| C::run(part, x)),
            Some(plan) => Chain::new(&parts).deterministic().run(plan, x, C::run).unwrap(),
        };
        drop(parts);
        case.end(model, x)
    };
    let mut peaks = [0; 3];
    for _ in 0..3 {
        let mut sums = Sums { options: setup.options, gradients: GradientsParams::new(), sum: GradientsParams::new() };
        if setup.options.accumulate {
            sums.sum = GradientsParams::from_grads(loss(&model).backward(), &model);
        }
        HEAP.reset_peak();
        let loss = loss(&model);
        peaks[0] = HEAP.peak_bytes() - before;
        HEAP.reset_peak();
        let loss = accumulate_into(loss, &model, &mut sums.sum, |id| used_once.contains(&id));
        sums.gradients = GradientsParams::from_grads(loss.backward(), &model);
        model.visit(&mut sums);
        peaks[1] = HEAP.peak_bytes() - before;
        HEAP.reset_peak();
        let kept = setup.options.keep_parameters.then(|| model.clone());
        model = optimizer.step(1e-3, model, sums.gradients);
        drop(kept);
        peaks[2] = HEAP.peak_bytes() - before;
    }
    peaks
}

/// The ids of the parameters that a step reads once.
fn used_once(model: &impl Module, trace: &StepTrace) -> HashSet<ParamId> {
    struct Ids<'a> {
        paths: BTreeSet<&'a str>,
        path: Vec<String>,
        ids: HashSet<ParamId>,
    }
    impl ModuleVisitor for Ids<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.paths.contains(&self.path.join(".")[..]) {
                self.ids.insert(param.id);
            }
        }
    }
    let mut ids = Ids { paths: trace.read_once(), path: vec![], ids: HashSet::new() };
    model.visit(&mut ids);
    ids.ids
}

/// Adds up and scales gradients, one after the other.
struct Sums {
    options: StepOptions,
    gradients: GradientsParams,
    sum: GradientsParams,
}

impl ModuleVisitor for Sums {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(mut gradient) = self.gradients.remove::<D>(param.id) else { return };
        if let Some(sum) = self.sum.remove::<D>(param.id) {
            gradient = sum + gradient;
        }
        if self.options.scale_gradients {
            gradient = gradient * 0.5;
        }
        self.gradients.register(param.id, gradient);
    }
}

fn cross_entropy(logits: Tensor<2>) -> Tensor<1> {
    let logits = logits.cast(DType::F32);
    let targets = Tensor::<1, Int>::zeros([logits.dims()[0]], &logits.device());
    CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, targets)
}

/// A residual network of equal layers.
pub(crate) struct Mlp {
    pub(crate) width: usize,
    pub(crate) depth: usize,
}

#[derive(Module, Debug)]
pub(crate) struct MlpModel {
    blocks: Vec<MlpBlock>,
    out: Linear,
}

#[derive(Module, Debug)]
pub(crate) struct MlpBlock {
    linear: Linear,
    norm: LayerNorm,
}

impl Case for Mlp {
    type Model = MlpModel;
    type Part = MlpBlock;
    type X = Tensor<2>;

    fn build(&self, device: &Device) -> MlpModel {
        let block = |_| MlpBlock {
            linear: LinearConfig::new(self.width, self.width).init(device),
            norm: LayerNormConfig::new(self.width).init(device),
        };
        MlpModel { blocks: (0..self.depth).map(block).collect(), out: LinearConfig::new(self.width, 10).init(device) }
    }

    fn begin(&self, model: &MlpModel, batch: usize, device: &Device) -> Tensor<2> {
        Tensor::<2>::zeros([batch, self.width], device).cast(model.out.weight.val().dtype())
    }

    fn parts(&self, model: &MlpModel) -> Vec<MlpBlock> {
        model.blocks.clone()
    }

    fn run(part: &MlpBlock, x: Tensor<2>) -> Tensor<2> {
        Gelu::new().forward(part.norm.forward(part.linear.forward(x.clone()))) + x
    }

    fn end(&self, model: &MlpModel, x: Tensor<2>) -> Tensor<1> {
        cross_entropy(model.out.forward(x))
    }
}

/// A ResNet on square images of `size` pixels.
pub(crate) struct Images {
    pub(crate) config: ResNetConfig,
    pub(crate) size: usize,
}

impl Case for Images {
    type Model = ResNet;
    type Part = ResNetBlock;
    type X = Tensor<4>;

    fn build(&self, device: &Device) -> ResNet {
        self.config.init(device).unwrap()
    }

    fn begin(&self, _: &ResNet, batch: usize, device: &Device) -> Tensor<4> {
        Tensor::zeros([batch, 3, self.size, self.size], device)
    }

    fn parts(&self, model: &ResNet) -> Vec<ResNetBlock> {
        model.blocks()
    }

    fn run(part: &ResNetBlock, x: Tensor<4>) -> Tensor<4> {
        part.forward(x)
    }

    fn end(&self, model: &ResNet, x: Tensor<4>) -> Tensor<1> {
        cross_entropy(model.head(x))
    }
}

/// A GPT on sequences of its full context.
pub(crate) struct Text(pub(crate) GptConfig);

impl Case for Text {
    type Model = Gpt;
    type Part = GptBlock;
    type X = Tensor<3>;

    fn build(&self, device: &Device) -> Gpt {
        self.0.init(device).unwrap()
    }

    fn begin(&self, model: &Gpt, batch: usize, device: &Device) -> Tensor<3> {
        model.embed(Tensor::<2, Int>::zeros([batch, self.0.context], device))
    }

    fn parts(&self, model: &Gpt) -> Vec<GptBlock> {
        model.blocks()
    }

    fn run(part: &GptBlock, x: Tensor<3>) -> Tensor<3> {
        part.forward(x)
    }

    fn end(&self, model: &Gpt, x: Tensor<3>) -> Tensor<1> {
        let logits_btv = model.head(x);
        let [b, t, v] = logits_btv.dims();
        cross_entropy(logits_btv.reshape([b * t, v]))
    }
}

impl Case for LeanConfig {
    type Model = Lean;
    type Part = LeanBlock;
    type X = Tensor<3>;

    fn build(&self, device: &Device) -> Lean {
        self.init(device)
    }

    fn begin(&self, model: &Lean, batch: usize, device: &Device) -> Tensor<3> {
        model.embed(Tensor::zeros([batch, self.time], device))
    }

    fn parts(&self, model: &Lean) -> Vec<LeanBlock> {
        model.blocks.clone()
    }

    fn run(part: &LeanBlock, x: Tensor<3>) -> Tensor<3> {
        part.forward(x)
    }

    fn end(&self, model: &Lean, x: Tensor<3>) -> Tensor<1> {
        model.loss(x)
    }
}
