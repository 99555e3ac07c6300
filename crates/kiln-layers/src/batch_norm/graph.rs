//! Batch norm as an operation of burn's graph.

use burn::backend::TensorMetadata;
#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
#[cfg(feature = "cube")]
use burn_cubecl::{CubeDevice, tensor::CubeTensor};
#[cfg(feature = "cube")]
use kiln_operations::CubeKernel;
use kiln_operations::{Computed, Cost, Kernel, KernelBackend, Operation, all};

use super::settings::{AGAIN, BACKWARD, BatchNormOutput, BatchNormSaved, FORWARD, invertible};
use super::{NormActivation, NormSettings};

/// The computations of batch norm.
#[derive(Clone, Copy, Debug)]
enum BatchNormKernel {
    /// Normalises over all dimensions except the second, adds the residual if there is one, and applies the activation. From x, weight,
    /// bias, running mean, running variance, and maybe a residual. Returns the output, the statistics, and with a momentum the new
    /// running mean and variance.
    Forward(NormSettings),
    /// The output without a residual again, with the same bits. From x, statistics, weight and bias.
    Again(NormActivation),
    /// The gradients of input, weight, bias and, if it is wanted, residual. From the output's gradient, x and y if they are `kept`,
    /// statistics, weight and bias. Other gradients that are not wanted have no meaning.
    Backward { settings: NormSettings, kept: [bool; 2], wanted: [bool; 4] },
}

/// The next input, if there is one.
fn next<T>(inputs: &mut impl Iterator<Item = T>, is_there: bool) -> Option<T> {
    if is_there { inputs.next() } else { None }
}

impl BatchNormKernel {
    /// The outputs of a forward pass in their order.
    fn made<T>(settings: NormSettings, output: BatchNormOutput<T>) -> Vec<T> {
        let running = output.running.into_iter().filter(|_| settings.momentum.is_some());
        [output.y, output.statistics].into_iter().chain(running).collect()
    }

    /// The inputs of a backward pass.
    fn saved<T>(settings: NormSettings, kept: [bool; 2], inputs: Vec<T>) -> (T, BatchNormSaved<T>) {
        let mut inputs = inputs.into_iter();
        let gradient = next(&mut inputs, true).unwrap_or_else(|| unreachable!("the first input is the gradient"));
        let [x, y] = kept.map(|kept| next(&mut inputs, kept));
        let [statistics, weight, bias] = all(inputs.collect());
        (gradient, BatchNormSaved { x, y, statistics, weight, bias, settings })
    }

    /// The outputs of a backward pass in their order. `unused` stands for a gradient that is not wanted.
    fn gradients<T: Clone>([x, weight, bias, residual]: [Option<T>; 4], unused: &T) -> Vec<T> {
        let others = [x, weight, bias].map(|gradient| gradient.unwrap_or_else(|| unused.clone()));
        others.into_iter().chain(residual).collect()
    }
}

impl Kernel for BatchNormKernel {
    fn cost(&self) -> &'static Cost {
        match self {
            Self::Forward(_) => &FORWARD,
            Self::Again(_) => &AGAIN,
            Self::Backward { .. } => &BACKWARD,
        }
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        match self {
            Self::Forward(settings) => {
                let statistics = (Shape::new([3, inputs[1].0[0]]), DType::F32);
                let running = if settings.momentum.is_some() { &inputs[3..5] } else { &[] };
                [&[inputs[0].clone(), statistics], running].concat()
            }
            Self::Again(_) => inputs[..1].to_vec(),
            Self::Backward { wanted, .. } => {
                let channels = &inputs[inputs.len() - 2..];
                let residual = if wanted[3] { &inputs[..1] } else { &[] };
                [&inputs[..1], channels, residual].concat()
            }
        }
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        match *self {
            Self::Forward(settings) => {
                let mut inputs = inputs;
                let residual = inputs.split_off(5).pop();
                let [x, weight, bias, mean, variance] = all(inputs);
                let channels = [weight, bias, mean, variance];
                Self::made(settings, super::composed::forward::<B>(x, residual, channels, settings))
            }
            Self::Again(activation) => {
                let [x, statistics, weight, bias] = all(inputs);
                vec![super::composed::again::<B>(x, statistics, [weight, bias], activation)]
            }
            Self::Backward { settings, kept, wanted } => {
                let (gradient, saved) = Self::saved(settings, kept, inputs);
                let unused = saved.weight.clone();
                Self::gradients(super::composed::backward::<B>(saved, gradient, wanted), &unused)
            }
        }
    }

    #[cfg(feature = "cube")]
    fn cube(&self, device: &CubeDevice, inputs: &[(Shape, DType)]) -> Option<CubeKernel<Self>> {
        let one_dtype = !matches!(self, Self::Forward(_)) || inputs[3].1 == inputs[4].1;
        (inputs[0].0.num_elements() > 0 && one_dtype && crate::columns::takes(device, 11)).then_some(Self::launch)
    }

    #[cfg(feature = "flex")]
    fn flex(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        match *self {
            Self::Forward(settings) => {
                let mut inputs = inputs;
                let residual = inputs.split_off(5).pop();
                let [x, weight, bias, mean, variance] = all(inputs);
                let channels = [weight, bias, mean, variance];
                Self::made(settings, super::flex::forward(x, residual.as_ref(), &channels, settings))
            }
            Self::Again(activation) => {
                let [x, statistics, weight, bias] = all(inputs);
                vec![super::flex::again(&x, &statistics, [&weight, &bias], activation)]
            }
            Self::Backward { settings, kept, wanted } => {
                let (gradient, saved) = Self::saved(settings, kept, inputs);
                Self::gradients(super::flex::backward(&saved, gradient, wanted), &saved.weight)
            }
        }
    }
}

#[cfg(feature = "cube")]
impl BatchNormKernel {
    fn launch(&self, mut inputs: Vec<CubeTensor>) -> Vec<CubeTensor> {
        match *self {
            Self::Forward(settings) => {
                let residual = inputs.split_off(5).pop();
                let [x, weight, bias, mean, variance] = all(inputs);
                Self::made(settings, super::cube::forward(x, residual, [weight, bias, mean, variance], settings))
            }
            Self::Again(activation) => {
                let [x, statistics, weight, bias] = all(inputs);
                vec![super::cube::again(x, statistics, [weight, bias], activation)]
            }
            Self::Backward { settings, kept, wanted } => {
                let (gradient, saved) = Self::saved(settings, kept, inputs);
                let unused = saved.weight.clone();
                Self::gradients(super::cube::backward(saved, gradient, wanted[3]), &unused)
            }
        }
    }
}

/// The output, the new running statistics, and the statistics of the pass. `channels` are weight, bias, running mean and running
/// variance.
pub(crate) fn norm_forward<B: KernelBackend>(
    x: FloatTensor<B>,
    residual: Option<FloatTensor<B>>,
    channels: [FloatTensor<B>; 4],
    settings: NormSettings,
) -> BatchNormOutput<FloatTensor<B>> {
    let constant = settings.momentum.is_none().then(|| [channels[2].clone(), channels[3].clone()]);
    let inputs = [x].into_iter().chain(channels).chain(residual).collect();
    let mut outputs = B::run(&BatchNormKernel::Forward(settings), inputs);
    let running = constant.unwrap_or_else(|| all(outputs.split_off(2)));
    let [y, statistics] = all(outputs);
    BatchNormOutput { y, running, statistics }
}

/// Computes the output of the norm with input `x` and no residual again. `saved` has no input of its own.
pub(crate) fn norm_again<B: KernelBackend>(
    x: FloatTensor<B>,
    saved: &BatchNormSaved<FloatTensor<B>>,
) -> FloatTensor<B> {
    let BatchNormSaved { statistics, weight, bias, settings, .. } = saved.clone();
    let [y] = all(B::run(&BatchNormKernel::Again(settings.activation), vec![x, statistics, weight, bias]));
    y
}

/// The gradients that are wanted, of input, weight, bias and residual.
pub(crate) fn norm_backward<B: KernelBackend>(
    saved: BatchNormSaved<FloatTensor<B>>,
    gradient: FloatTensor<B>,
    wanted: [bool; 4],
) -> [Option<FloatTensor<B>>; 4] {
    let BatchNormSaved { x, y, statistics, weight, bias, settings } = saved;
    let kernel = BatchNormKernel::Backward { settings, kept: [x.is_some(), y.is_some()], wanted };
    let inputs = [gradient].into_iter().chain(x).chain(y).chain([statistics, weight, bias]).collect();
    let mut gradients = B::run(&kernel, inputs).into_iter();
    wanted.map(|wanted| gradients.next().filter(|_| wanted))
}

impl NormSettings {
    /// The saved tensors of a norm with this weight and bias, without its input.
    pub(crate) fn saved<T>(self, [weight, bias]: [T; 2], y: Option<T>, statistics: T) -> BatchNormSaved<T> {
        BatchNormSaved { x: None, y, statistics, weight, bias, settings: self }
    }

    /// Whether the backward pass needs the normalised values. If the statistics are constant, only the gradients of weight and bias,
    /// which are `wanted` or not, and hard-swish need them.
    pub(crate) fn needs_normalised(self, wanted: &[bool]) -> bool {
        self.activation == NormActivation::HardSwish || self.momentum.is_some() || wanted.contains(&true)
    }

    /// Whether the normalised values can be computed with little loss from the output of leaky ReLU, in `dtype`. Where reading weight
    /// and bias would wait for the device, they are not read, and the answer is no.
    fn is_invertible<B: KernelBackend>(self, weight: &FloatTensor<B>, bias: &FloatTensor<B>, dtype: DType) -> bool {
        let NormActivation::LeakyRelu { slope } = self.activation else { return false };
        let (Some(weight), Some(bias)) = (B::values(weight), B::values(bias)) else { return false };
        weight.iter().zip(bias).all(|(weight, bias)| invertible(*weight, bias, slope, dtype))
    }
}

/// Inputs: x, weight, bias, running mean, running variance, and maybe a residual. Outputs: y, and the new running mean and variance.
impl Operation for NormSettings {
    const NAME: &'static str = "batch norm";

    type Saved<B: KernelBackend> = BatchNormSaved<FloatTensor<B>>;

    fn forward<B: KernelBackend>(
        &self,
        mut inputs: Vec<FloatTensor<B>>,
        wanted: &[bool],
    ) -> Computed<B, Self::Saved<B>> {
        let residual = inputs.split_off(5).pop();
        let [x, weight, bias, mean, variance] = all(inputs);
        let normalised = self.needs_normalised(&wanted[1..3]);
        let kept = wanted.contains(&true).then(|| {
            let inverted = self.is_invertible::<B>(&weight, &bias, x.dtype());
            let signs = self.activation != NormActivation::None && (residual.is_some() || inverted || !normalised);
            ((normalised && !inverted).then(|| x.clone()), signs, [weight.clone(), bias.clone()])
        });
        let BatchNormOutput { y, running: [mean, variance], statistics } =
            norm_forward::<B>(x, residual, [weight, bias, mean, variance], *self);
        let saved = kept.map(|(x, signs, of_norm)| BatchNormSaved {
            x,
            ..self.saved(of_norm, signs.then(|| y.clone()), statistics)
        });
        Computed { outputs: vec![y, mean, variance], saved }
    }

    fn gradient<B: KernelBackend>(
        &self,
        saved: Self::Saved<B>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        let residual = wanted.get(5) == Some(&true);
        let [x, weight, bias, residual] =
            norm_backward::<B>(saved, gradient, [wanted[0], wanted[1], wanted[2], residual]);
        vec![x, weight, bias, None, None, residual]
    }
}
