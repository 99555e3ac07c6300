//! The two halves of a block of Llama as one operation each, compared with the operations that they are made of.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::{Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::{DType, Device, Gradients, Tensor};
use kiln_layers::{
    AttentionOptions, Mask, Projections, RotaryOptions, RotaryPairs, attention, gated_feed_forward, linear,
    norm_grouped_attention, norm_linear, rms_norm, rotary, swiglu,
};

use crate::compare::{distance, tensor, tolerance, values};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
pub(crate) const WIDTH: usize = 12;

#[derive(Module, Debug)]
pub(crate) struct FeedForward {
    norm: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
}

#[derive(Module, Debug)]
pub(crate) struct Attention {
    norm: RmsNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    head_norms: Vec<RmsNorm>,
    heads: usize,
}

/// Gives parameters numbers around their own value, in a dtype.
pub(crate) struct Numbers(pub(crate) DType, pub(crate) u64);

impl ModuleMapper for Numbers {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.1 += 1;
        param.map(|value| {
            let noise = tensor(value.dims(), self.1, 0.4, DType::F32, &value.device());
            // Norms begin with ones. What burn draws for a bias differs from run to run, and is rounded to 0.
            let center = if D == 1 { value.detach().round() } else { noise.zeros_like() };
            (center + noise).cast(self.0).detach().require_grad()
        })
    }
}

impl FeedForward {
    pub(crate) fn new(bias: bool, dtype: DType, device: &Device) -> Self {
        let layer = |from, to| LinearConfig::new(from, to).with_bias(bias).init(device);
        let norm = RmsNormConfig::new(WIDTH).with_epsilon(1e-3).init(device);
        let (gate, up, down) = (layer(WIDTH, 20), layer(WIDTH, 20), layer(20, 10));
        Self { norm, gate, up, down }.map(&mut Numbers(dtype, 0))
    }

    pub(crate) fn one(&self, x: Tensor<3>) -> Tensor<3> {
        gated_feed_forward(&self.norm, [&self.gate, &self.up, &self.down], x).unwrap()
    }

    fn many(&self, x: Tensor<3>) -> Tensor<3> {
        let [gate, up] = [&self.gate, &self.up].map(|layer| norm_linear(&self.norm, layer, x.clone()).unwrap());
        linear(&self.down, swiglu(gate, up).unwrap()).unwrap()
    }
}

fn positions() -> RotaryOptions {
    RotaryOptions::new().with_pairs(RotaryPairs::Halves)
}

impl Attention {
    /// Heads of queries, heads of keys and values, and their depth.
    pub(crate) fn new(
        [heads, kv_heads, depth]: [usize; 3],
        bias: bool,
        normed: bool,
        dtype: DType,
        device: &Device,
    ) -> Self {
        let layer = |to: usize| LinearConfig::new(WIDTH, to * depth).with_bias(bias).init(device);
        let norm = |width| RmsNormConfig::new(width).with_epsilon(1e-3).init(device);
        let head_norms = if normed { vec![norm(depth), norm(depth)] } else { vec![] };
        let (query, key, value) = (layer(heads), layer(kv_heads), layer(kv_heads));
        Self { norm: norm(WIDTH), query, key, value, head_norms, heads }.map(&mut Numbers(dtype, 0))
    }

    fn projections(&self) -> Projections<'_> {
        let Self { norm, query, key, value, head_norms, heads } = self;
        let head_norms = match head_norms.as_slice() {
            [query, key] => Some([query, key]),
            _ => None,
        };
        Projections { norm, query, key, value, head_norms, rotary: positions(), heads: *heads }
    }

    pub(crate) fn one(&self, x: Tensor<3>, options: AttentionOptions) -> Tensor<3> {
        norm_grouped_attention(self.projections(), x, options).unwrap()
    }

    fn many(&self, x: Tensor<3>, options: AttentionOptions) -> Tensor<3> {
        let [samples, time, _] = x.dims();
        let depth = self.query.weight.dims()[1] / self.heads;
        let of = |layer: &Linear, norm: Option<&RmsNorm>| {
            let y = norm_linear(&self.norm, layer, x.clone()).unwrap().reshape([
                samples as i32,
                time as i32,
                -1,
                depth as i32,
            ]);
            norm.map_or(y.clone(), |norm| rms_norm(norm, y).unwrap()).swap_dims(1, 2)
        };
        let turned = |x: Tensor<4>| rotary(x, positions()).unwrap();
        let (query, key) = (of(&self.query, self.head_norms.first()), of(&self.key, self.head_norms.get(1)));
        let y = attention(turned(query), turned(key), of(&self.value, None), options).unwrap();
        y.swap_dims(1, 2).reshape([samples as i32, time as i32, -1])
    }
}

/// Gradients of all parameters that have one.
struct Found<'a>(&'a Gradients, Vec<Vec<f64>>);

impl ModuleVisitor for Found<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.1.extend(param.val().grad(self.0).map(|gradient| values(&gradient)));
    }
}

/// The output, and the gradients of the input and of all parameters.
pub(crate) fn run<M: Module>(
    model: &M,
    x: &Tensor<3>,
    f: impl Fn(&M, Tensor<3>) -> Tensor<3>,
) -> (Vec<f64>, Vec<Vec<f64>>) {
    let x = x.clone().require_grad();
    let y = f(model, x.clone());
    let dy = tensor(y.dims(), 99, 1.0, x.dtype(), &x.device());
    let gradients = (y.clone() * dy).sum().backward();
    let mut found = Found(&gradients, vec![values(&x.grad(&gradients).unwrap())]);
    model.visit(&mut found);
    (values(&y), found.1)
}

fn assert_as_many<M: Module>(
    model: &M,
    dtype: DType,
    what: &str,
    one: impl Fn(&M, Tensor<3>) -> Tensor<3>,
    many: impl Fn(&M, Tensor<3>) -> Tensor<3>,
) {
    let x = tensor([3, 7, WIDTH], 1, 2.0, dtype, &Device::flex().autodiff());
    let ((y, gradients), (expected, of_many)) = (run(model, &x, one), run(model, &x, many));
    assert_eq!(y, expected, "the output of {what}");
    assert_eq!(gradients.len(), of_many.len());
    for (number, (gradient, expected)) in gradients.iter().zip(&of_many).enumerate() {
        // Gradients of the norm's output are added up before they go through the norm, and not behind it.
        let far = distance(gradient, expected);
        assert!(far <= 2.0 * tolerance(dtype), "gradient {number} of {what} is off by {far}");
    }
}

#[test]
fn one_operation_has_the_output_of_many_and_their_gradients() {
    let device = Device::flex().autodiff();
    for (dtype, bias) in DTYPES.into_iter().flat_map(|dtype| [true, false].map(|bias| (dtype, bias))) {
        let what = format!("{dtype:?} {bias}");
        let model = FeedForward::new(bias, dtype, &device);
        assert_as_many(&model, dtype, &what, FeedForward::one, FeedForward::many);
        let padded = AttentionOptions::from(Mask::Causal).with_key_lengths(vec![7, 2, 5]);
        for (sizes, normed, options) in [
            ([4, 2, 6], false, AttentionOptions::from(Mask::Causal)),
            ([3, 1, 2], true, padded.clone().with_dropout(0.3, 7)),
            ([2, 2, 8], bias, padded),
        ] {
            let model = Attention::new(sizes, bias, normed, dtype, &device);
            let what = format!("{what} {sizes:?} {normed}");
            let options = || options.clone();
            assert_as_many(&model, dtype, &what, |m, x| m.one(x, options()), |m, x| m.many(x, options()));
        }
    }
}

#[test]
fn frozen_parameters_get_no_gradient_and_change_no_other() {
    let device = Device::flex().autodiff();
    let x = tensor([3, 7, WIDTH], 1, 2.0, DType::F32, &device);
    let mut model = FeedForward::new(true, DType::F32, &device);
    let (_, all) = run(&model, &x, FeedForward::one);
    model.norm = model.norm.no_grad();
    model.gate = model.gate.no_grad();
    model.down = model.down.no_grad();
    let (_, some) = run(&model, &x, FeedForward::one);
    // The input, and weight and bias of `up`.
    assert_eq!(some, [&all[0], &all[4], &all[5]].map(Clone::clone));

    let mut model = Attention::new([4, 2, 6], false, true, DType::F32, &device);
    let of = |model: &Attention| run(model, &x, |model, x| model.one(x, Mask::Causal.into())).1;
    let all = of(&model);
    model.query = model.query.no_grad();
    model.head_norms[0] = model.head_norms[0].clone().no_grad();
    assert_eq!(of(&model), [0, 1, 3, 4, 6].map(|gradient: usize| all[gradient].clone()));
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let device = Device::flex();
    let model = Attention::new([4, 2, 6], false, false, DType::F32, &device.clone().autodiff());
    let x = || Tensor::<3>::zeros([1, 5, WIDTH], &device);
    let refused = |projections: Projections<'_>, x: Tensor<3>| {
        norm_grouped_attention(projections, x, Mask::Causal).unwrap_err().to_string()
    };
    let whole = model.projections();
    for (projections, expected) in [
        (
            Projections { heads: 5, ..whole },
            "the number of heads is 5, expected a divisor of the outputs of the queries",
        ),
        (
            Projections { heads: 0, ..whole },
            "the number of heads is 0, expected a divisor of the outputs of the queries",
        ),
        (
            Projections { heads: 1, ..whole },
            "the number of outputs of the keys is 12, expected a multiple of the depth of a head",
        ),
        (
            Projections { value: &model.query, ..whole },
            "the number of outputs of the keys is 12, and that of the values is 24; expected the same",
        ),
        (
            Projections { head_norms: Some([&model.norm, &model.norm]), ..whole },
            "the last dimension of the input is 6, and the length of the weight is 12; expected the same",
        ),
        (
            Projections { rotary: RotaryOptions::new().with_theta(-1.0), ..whole },
            "theta is -1, expected a positive number",
        ),
    ] {
        assert_eq!(refused(projections, x()), expected);
    }
    let narrow = Tensor::zeros([1, 5, 8], &device);
    let expected = "the last dimension of the input is 8, and the length of the weight is 12; expected the same";
    assert_eq!(refused(whole, narrow.clone()), expected);
    let layers = FeedForward::new(true, DType::F32, &device.clone().autodiff());
    let of = |layers: [&Linear; 3], x| gated_feed_forward(&model.norm, layers, x).unwrap_err().to_string();
    assert_eq!(of([&layers.gate, &layers.up, &layers.down], narrow), expected);
    let expected = "the number of outputs of the gate is 20, and that of the layer beside it is 24; expected the same";
    assert_eq!(of([&layers.gate, &model.query, &layers.down], x()), expected);
    let expected =
        "the last dimension of the input is 20, and the number of rows of the weight is 12; expected the same";
    assert_eq!(of([&layers.gate, &layers.up, &layers.up], x()), expected);
}
