//! The models of the cases, which one task trains: a chain of blocks with all that stages must get right, and reference models.

use std::fmt::{self, Debug};
use std::ops::Range;
use std::sync::Arc;

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Initializer, Linear, LinearConfig};
use burn::tensor::activation::{log_softmax, tanh};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use kiln_accumulation::Weight;
use kiln_models::{
    Gpt, GptBlock, GptConfig, GptHalf, ResNet, ResNetBlock, ResNetConfig, Stem, Vit, VitBlock, VitConfig,
};
use kiln_precision::in_f32;
use kiln_training::{Batch, Metric, Metrics, Pass, Task};

use crate::support::{CLASSES, classes, inputs};

/// Features of a sample, and classes of a tied output layer.
const FEATURES: usize = 8;
/// Token ids of texts, and the length of a text.
pub(crate) const VOCABULARY: usize = 20;
pub(crate) const TOKENS: usize = 8;

/// A model of a case. Paths of its parameters begin with the name of the variant.
#[derive(Module, Debug)]
pub(crate) enum Model {
    Chain(Chain),
    ResNet(ResNet),
    Gpt(Gpt),
    Vit(Vit),
}

/// What a [`Model`] is made from.
#[derive(Clone, Debug)]
pub(crate) enum Make {
    Chain(Parts),
    /// For images of 8 by 8 pixels.
    ResNet(ResNetConfig),
    /// For at least [`VOCABULARY`] and for [`TOKENS`].
    Gpt(GptConfig),
    /// For images of 12 by 12 pixels.
    Vit(VitConfig),
}

/// ResNet-18.
pub(crate) fn resnet(width: usize, lean: bool) -> Make {
    Make::ResNet(ResNetConfig::resnet18(CLASSES).with_width(width).with_stem(Stem::Cifar).with_lean(lean))
}

/// A decoder whose vocabulary is more than a part of an update in a store, so that it is in memory some rows at a time.
pub(crate) fn large_vocabulary() -> GptConfig {
    GptConfig::tiny(140_000, TOKENS).with_layers(1).with_width(8).with_heads(2)
}

/// A decoder of two layers.
pub(crate) fn gpt(dropout: f64, lean: bool) -> GptConfig {
    GptConfig::tiny(VOCABULARY, TOKENS).with_layers(2).with_dropout(dropout).with_lean(lean)
}

/// A vision transformer of three blocks, of which the last two leave out branches at this rate.
pub(crate) fn vit(drop_path: f64, lean: bool) -> Make {
    let config = VitConfig::named("vit_tiny", CLASSES).unwrap().with_width(8, 2).with_blocks(3);
    Make::Vit(config.with_image(12).with_patch(4).with_drop_path(drop_path).with_lean(lean))
}

impl Make {
    pub(crate) fn init(&self, device: &Device) -> Model {
        match self {
            Self::Chain(parts) => Model::Chain(Chain::new(parts, device)),
            Self::ResNet(config) => Model::ResNet(config.init(device).unwrap()),
            Self::Gpt(config) => Model::Gpt(config.init(device).unwrap()),
            Self::Vit(config) => Model::Vit(config.init(device).unwrap()),
        }
    }

    /// The blocks of the one chain of the model.
    pub(crate) fn blocks(&self) -> usize {
        match self.init(&Device::flex()) {
            Model::Chain(model) => model.blocks.len(),
            Model::ResNet(model) => model.blocks().len(),
            Model::Gpt(model) => model.blocks().len(),
            Model::Vit(model) => model.blocks().len(),
        }
    }

    /// The blocks of the chain of a step in a store.
    pub(crate) fn blocks_in_store(&self) -> usize {
        if matches!(self, Self::Gpt(config) if config.dropout == 0.0) { 2 * self.blocks() } else { self.blocks() }
    }
}

/// What a [`Chain`] is made of.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub(crate) blocks: usize,
    pub(crate) width: usize,
    /// Whether there is batch-norm before, in and behind the blocks.
    pub(crate) norms: bool,
    /// Whether the layer before the blocks is the output layer as well.
    pub(crate) tied: bool,
    /// Whether the layer before the blocks has a bias.
    pub(crate) bias: bool,
    pub(crate) dropout: f64,
    /// Whether what comes before the blocks is frozen.
    pub(crate) frozen_first: bool,
    /// The blocks that are frozen.
    pub(crate) frozen: Range<usize>,
    /// Whether the weights of the blocks are zeros at first, so that batch-norm meets zeros.
    pub(crate) zeros: bool,
}

impl Parts {
    pub(crate) fn new(blocks: usize) -> Self {
        let (frozen_first, frozen, zeros, width) = (false, 0..0, false, 6);
        Self { blocks, width, norms: true, tied: true, bias: true, dropout: 0.0, frozen_first, frozen, zeros }
    }
}

#[derive(Module, Debug)]
pub(crate) struct Block {
    layer: Linear,
    norm: Option<BatchNorm>,
    drop: Dropout,
    #[module(skip)]
    index: usize,
}

#[derive(Module, Debug)]
pub(crate) struct Chain {
    first: Linear,
    pub(crate) norm: Option<BatchNorm>,
    blocks: Vec<Block>,
    /// One layer between each two chains of a pass.
    between: Vec<Linear>,
    last_norm: Option<BatchNorm>,
    last: Option<Linear>,
}

fn normed(norm: Option<&BatchNorm>, x: Tensor<2>) -> Tensor<2> {
    match norm {
        Some(norm) => in_f32(x, |x| norm.forward(x)),
        None => x,
    }
}

impl Block {
    fn new(index: usize, parts: &Parts, device: &Device) -> Self {
        let layer = LinearConfig::new(parts.width, parts.width);
        let layer = if parts.zeros { layer.with_initializer(Initializer::Zeros) } else { layer };
        let block = Self {
            layer: layer.init(device),
            norm: parts.norms.then(|| BatchNormConfig::new(parts.width).init(device)),
            drop: DropoutConfig::new(parts.dropout).init(),
            index,
        };
        if parts.frozen.contains(&index) { block.no_grad() } else { block }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let inside = normed(self.norm.as_ref(), self.layer.forward(x.clone()));
        x + self.drop.forward(tanh(inside))
    }
}

impl Chain {
    fn new(parts: &Parts, device: &Device) -> Self {
        let width = parts.width;
        let norm = || parts.norms.then(|| BatchNormConfig::new(width).init(device));
        let (first, first_norm) = (LinearConfig::new(FEATURES, width).with_bias(parts.bias).init(device), norm());
        Self {
            first: if parts.frozen_first { first.no_grad() } else { first },
            norm: if parts.frozen_first { first_norm.no_grad() } else { first_norm },
            blocks: (0..parts.blocks).map(|index| Block::new(index, parts, device)).collect(),
            between: (0..3).map(|_| LinearConfig::new(width, width).init(device)).collect(),
            last_norm: norm(),
            last: (!parts.tied).then(|| LinearConfig::new(width, FEATURES).init(device)),
        }
    }

    fn head(&self, x: Tensor<2>) -> Tensor<2> {
        let x = normed(self.last_norm.as_ref(), x);
        match &self.last {
            Some(last) => last.forward(x),
            None => {
                let weight = self.first.weight.val();
                let weight = if weight.device() == x.device() { weight } else { weight.to_device(&x.device()) };
                x.matmul(weight.transpose())
            }
        }
    }
}

/// Samples by number.
#[derive(Clone, Debug)]
pub(crate) struct Samples {
    pub(crate) ids: Vec<usize>,
    /// How many tokens of a sample carry a loss.
    pub(crate) tokens: fn(usize) -> usize,
}

impl Samples {
    pub(crate) fn of(ids: impl IntoIterator<Item = usize>) -> Self {
        Self { ids: ids.into_iter().collect(), tokens: |_| 1 }
    }
}

impl Batch for Samples {
    fn len(&self) -> usize {
        self.ids.len()
    }

    fn slice(&self, samples: Range<usize>) -> Self {
        Self { ids: self.ids[samples].to_vec(), tokens: self.tokens }
    }

    fn slice_bytes(&self) -> u64 {
        (size_of::<usize>() * self.ids.len()) as u64
    }

    fn weight(&self) -> Weight {
        Weight::Tokens(self.ids.iter().map(|id| (self.tokens)(*id)).sum())
    }
}

/// A place in the forward pass of a micro-batch through a [`Chain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Before,
    Block(usize),
    Behind,
}

/// Called at every place of the forward pass of the micro-batch that begins with this sample.
pub(crate) type Hook = Arc<dyn Fn(Place, usize) + Send + Sync>;

/// How the value before the blocks of a [`Chain`] reaches the output layer, besides through the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortcut {
    None,
    /// As a part of the chains' value.
    Carried,
    /// Without going through the chains.
    Bypass,
    /// As [`Bypass`](Self::Bypass), but without a gradient.
    Detached,
    /// A separate value of the same layer, without going through the chains.
    Branch,
}

/// Trains a [`Model`] to classify samples, or to predict the next token of a text.
#[derive(Clone)]
pub(crate) struct Classify {
    pub(crate) make: Make,
    /// The blocks of each chain of a pass through a [`Chain`], by number. A layer is between two chains.
    pub(crate) chains: Vec<Vec<usize>>,
    pub(crate) hook: Hook,
    pub(crate) shortcut: Shortcut,
}

impl Debug for Classify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, chains {:?}, shortcut {:?}", self.make, self.chains, self.shortcut)
    }
}

impl Classify {
    pub(crate) fn new(make: Make) -> Self {
        let blocks = if let Make::Chain(parts) = &make { parts.blocks } else { 0 };
        Self { make, chains: vec![(0..blocks).collect()], hook: Arc::new(|_, _| {}), shortcut: Shortcut::None }
    }

    fn chain_logits(&self, pass: &Pass<'_, Model>, model: &Chain, ids: &[usize]) -> Tensor<2> {
        let start = ids[0];
        (self.hook)(Place::Before, start);
        let input = inputs(ids, [ids.len(), FEATURES], pass.device());
        let input = input.cast(model.first.weight.val().dtype());
        let mut x = normed(model.norm.as_ref(), model.first.forward(input.clone()));
        let mut carried = (self.shortcut == Shortcut::Carried).then(|| x.clone());
        let beside = match self.shortcut {
            Shortcut::None | Shortcut::Carried => None,
            Shortcut::Bypass => Some(x.clone()),
            Shortcut::Detached => Some(x.clone().detach()),
            Shortcut::Branch => Some(tanh(model.first.forward(input))),
        };
        for (number, blocks) in self.chains.iter().enumerate() {
            if number > 0 {
                x = tanh(model.between[number - 1].forward(x));
            }
            let hook = self.hook.clone();
            let blocks = blocks.iter().map(|block| &model.blocks[*block]);
            (x, carried) = pass.chain(blocks, (x, carried), move |block: &Block, (x, carried)| {
                hook(Place::Block(block.index), start);
                (block.forward(x), carried)
            });
        }
        (self.hook)(Place::Behind, start);
        for shortcut in carried.into_iter().chain(beside) {
            x = x + shortcut;
        }
        model.head(x)
    }

    /// The mean loss over tokens, and the sum of the logits or, of a text, the loss again.
    fn passed(&self, pass: &Pass<'_, Model>, batch: &Samples) -> [Tensor<1>; 2] {
        let ids = &batch.ids;
        let classes = classes(ids, pass.device());
        let logits = match pass.model() {
            Model::Chain(model) => self.chain_logits(pass, model, ids),
            Model::ResNet(model) => {
                model.head(pass.chain(&model.blocks(), images(ids, 8, pass.device()), ResNetBlock::forward))
            }
            Model::Vit(model) => {
                model.head(pass.chain(&model.blocks(), images(ids, 12, pass.device()), VitBlock::forward))
            }
            Model::Gpt(model) => {
                let text = text(ids, model.vocab(), pass.device());
                let rows = model.words().and_then(|words| pass.rows(words));
                let x = model.embed_by_rows(rows.clone(), text.clone().slice([0..ids.len(), 0..TOKENS]));
                let x = match model.halves().filter(|_| pass.streams()) {
                    Some(halves) => pass.chain(&halves, x, GptHalf::forward),
                    None => pass.chain(&model.blocks(), x, GptBlock::forward),
                };
                let targets = pass.to_device(text).slice([0..ids.len(), 1..TOKENS + 1]);
                let loss = model.loss_by_rows(rows, x, targets);
                return [loss.clone(), loss];
            }
        };
        let (n, logits, classes) = (ids.len(), logits.cast(DType::F32), pass.to_device(classes));
        assert_eq!(pass.device(), &logits.device(), "the pass is where its tensors are");
        let carried: Vec<f32> = ids.iter().map(|id| (batch.tokens)(*id) as f32).collect();
        let carried = Tensor::<1>::from_floats(carried.as_slice(), pass.device());
        let entropy = -log_softmax(logits.clone(), 1).gather(1, classes.reshape([n, 1])).reshape([n]);
        [(entropy * carried).sum() / batch.weight().count() as f64, logits.sum()]
    }
}

impl Task for Classify {
    type Model = Model;
    type Batch = Samples;

    fn loss(&self, pass: &Pass<'_, Model>, batch: &Samples) -> Tensor<1> {
        let [loss, _] = self.passed(pass, batch);
        loss
    }

    fn metrics(&self, pass: &Pass<'_, Model>, batch: &Samples) -> Metrics {
        let [_, sum] = self.passed(pass, batch);
        Metrics::new().with("sum", Metric::mean(sum, batch.len()))
    }
}

/// Images of different brightness: every micro-batch has a range of its own.
pub(crate) fn images(ids: &[usize], size: usize, device: &Device) -> Tensor<4> {
    let light: Vec<f32> = ids.iter().map(|id| 1.0 + (id % 5) as f32 / 4.0).collect();
    let light = Tensor::<4>::from_data(TensorData::new(light, [ids.len(), 1, 1, 1]), device);
    inputs(ids, [ids.len(), 3, size, size], device) * light
}

/// Texts of one token more than a decoder reads.
fn text(ids: &[usize], vocabulary: usize, device: &Device) -> Tensor<2, Int> {
    let token = |id: usize, i: usize| ((id * 3 + i * (id % 5 + 1)) % VOCABULARY * (vocabulary / VOCABULARY)) as i64;
    let text: Vec<i64> = ids.iter().flat_map(|id| (0..=TOKENS).map(move |i| token(*id, i))).collect();
    Tensor::from_data(TensorData::new(text, [ids.len(), TOKENS + 1]), device)
}
