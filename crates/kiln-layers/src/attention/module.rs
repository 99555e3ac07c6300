//! Multi-head self-attention as a module.

use burn::config::Config;
use burn::module::{Module, Param};
use burn::nn::attention as stock;
use burn::nn::{Dropout, DropoutConfig, Gelu, Initializer, Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Int, Tensor};

use super::AttentionOptions;
use super::options::setting;
use crate::check::{result_device, same_size};
use crate::error::Error;
use crate::linear::{Input, linear};
use crate::projected_attention::projected_attention;

/// Configuration of [`MultiHeadAttention`]. The defaults are those of burn's module.
#[derive(Config, Debug)]
pub struct MultiHeadAttentionConfig {
    /// The width of inputs and outputs.
    pub d_model: usize,
    /// The number of heads, a divisor of the width.
    pub n_heads: usize,
    /// The probability that an attention weight is dropped in training.
    #[config(default = 0.1)]
    pub dropout: f64,
    /// Whether queries, keys and values have a bias.
    #[config(default = true)]
    pub qkv_bias: bool,
    /// Whether the output has a bias.
    #[config(default = true)]
    pub output_bias: bool,
    /// The initialisation of the parameters.
    #[config(default = "Initializer::KaimingUniform{gain:1.0/f64::sqrt(3.0), fan_out_only:false}")]
    pub initializer: Initializer,
}

/// Multi-head self-attention (Vaswani et al. 2017). Queries, keys and values come from one linear layer, and the whole matrix of scores
/// is never in memory. [`from_burn`](Self::from_burn) and [`into_burn`](Self::into_burn) convert between it and burn's module.
#[derive(Module, Debug)]
pub struct MultiHeadAttention {
    /// Computes queries, keys and values; its weight is `[d_model, 3 d_model]`.
    pub qkv: Linear,
    /// Combines the heads; its weight is `[d_model, d_model]`.
    pub output: Linear,
    /// Dropout of the attention weights, in training only.
    pub dropout: Dropout,
    /// The number of heads.
    pub n_heads: usize,
}

impl MultiHeadAttentionConfig {
    /// A module with new parameters.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for heads that do not divide the width and for a dropout rate that is not a probability.
    pub fn init(&self, device: &Device) -> Result<MultiHeadAttention, Error> {
        heads_divide(self.d_model, self.n_heads)?;
        if !(0.0..1.0).contains(&self.dropout) {
            let expected = "a number from 0, less than 1";
            return Err(setting("the dropout rate", self.dropout.to_string(), expected));
        }
        let linear = |columns: usize, bias: bool| {
            LinearConfig::new(self.d_model, columns).with_bias(bias).with_initializer(self.initializer.clone())
        };
        Ok(MultiHeadAttention {
            qkv: linear(3 * self.d_model, self.qkv_bias).init(device),
            output: linear(self.d_model, self.output_bias).init(device),
            dropout: DropoutConfig::new(self.dropout).init(),
            n_heads: self.n_heads,
        })
    }
}

impl MultiHeadAttention {
    /// Attention of each position of `x`, `[batch, time, d_model]`, to the others. The result has the same shape. `options` is a
    /// [`Mask`](super::Mask) or [`AttentionOptions`]. If the options have no dropout, the module adds its own in training, on devices
    /// with autodiff, with a seed from the device's generator. Keeps `x`, the output of attention, and one f32 value for each query of
    /// each head.
    ///
    /// # Errors
    /// [`Error::Size`] for another width, and those of [`self_attention`](crate::self_attention).
    pub fn forward(&self, x: Tensor<3>, options: impl Into<AttentionOptions>) -> Result<Tensor<3>, Error> {
        let ([_, _, width], [expected, _]) = (x.dims(), self.qkv.weight.dims());
        same_size(("the last dimension of the input", width), ("the width of the module", expected))?;
        let (mut options, device) = (options.into(), x.device());
        let result = result_device(device.clone(), [self.qkv.weight.device()]);
        let training = self.dropout.training.is_enabled() && result.is_autodiff();
        if training && self.dropout.prob > 0.0 && !options.drops() {
            let seeds = Distribution::Uniform(0.0, f64::from(i32::MAX));
            let seed = Tensor::<1, Int>::random([1], seeds, &device);
            options = options.with_dropout(self.dropout.prob, seed);
        }
        linear(&self.output, projected_attention(Input::Plain, &self.qkv, x, self.n_heads, options)?)
    }

    /// Converts burn's module, with the same parameters bit for bit. The layer for queries, keys and values is frozen if `query` is
    /// frozen.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a module with quiet softmax, for a module in which only some of queries, keys and values have a
    /// bias, and for heads that do not divide the width.
    pub fn from_burn(module: stock::MultiHeadAttention) -> Result<Self, Error> {
        heads_divide(module.d_model, module.n_heads)?;
        if module.quiet_softmax {
            return Err(setting("quiet softmax", "on".to_string(), "softmax"));
        }
        let parts = [module.query, module.key, module.value];
        let [query, ..] = &parts;
        let weight = Tensor::cat(parts.iter().map(|part| part.weight.val()).collect(), 1);
        let biases: Vec<Tensor<1>> = parts.iter().filter_map(|part| Some(part.bias.as_ref()?.val())).collect();
        let bias = match biases.len() {
            0 => None,
            3 => query.bias.as_ref().map(|like| parameter(Tensor::cat(biases, 0), like)),
            some => {
                let expected = "3 or none";
                return Err(setting("the number of biases of queries, keys and values", some.to_string(), expected));
            }
        };
        let qkv = Linear { weight: parameter(weight, &query.weight), bias };
        Ok(Self { qkv, output: module.output, dropout: module.dropout, n_heads: module.n_heads })
    }

    /// Converts to burn's module, with the same parameters bit for bit.
    pub fn into_burn(self) -> stock::MultiHeadAttention {
        let Linear { weight: all, bias: all_biases } = self.qkv;
        let (weight, bias) = (all.val(), all_biases.as_ref().map(|bias| bias.val()));
        let [d_model, _] = weight.dims();
        let part = |number: usize| {
            let columns = number * d_model..(number + 1) * d_model;
            Linear {
                weight: parameter(weight.clone().slice([0..d_model, columns.clone()]), &all),
                bias: bias.clone().zip(all_biases.as_ref()).map(|(bias, like)| parameter(bias.slice([columns]), like)),
            }
        };
        stock::MultiHeadAttention {
            query: part(0),
            key: part(1),
            value: part(2),
            output: self.output,
            dropout: self.dropout,
            activation: Gelu::new(),
            d_model,
            n_heads: self.n_heads,
            d_k: d_model / self.n_heads,
            min_float: -1.0e4,
            quiet_softmax: false,
        }
    }
}

fn heads_divide(width: usize, heads: usize) -> Result<(), Error> {
    match heads > 0 && width > 0 && width.is_multiple_of(heads) {
        true => Ok(()),
        false => {
            Err(setting("the number of heads", format!("{heads} for a width of {width}"), "a divisor of the width"))
        }
    }
}

/// A parameter of its own, outside of any graph. It is trained or frozen like `like`.
fn parameter<const D: usize>(value: Tensor<D>, like: &Param<Tensor<D>>) -> Param<Tensor<D>> {
    Param::from_tensor(value.detach()).set_require_grad(like.is_require_grad())
}
