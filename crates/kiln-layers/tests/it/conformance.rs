//! What holds for every operation on rows and on images, over a list of cases: each is compared with burn's own operations in f32.

use burn::module::{Param, ParamId};
use burn::nn::pool::MaxPool2dConfig;
use burn::nn::{
    BatchNorm, BatchNormConfig, GroupNorm, GroupNormConfig, LayerNorm, LayerNormConfig, Linear, PaddingConfig2d,
    RmsNorm, RmsNormConfig, RotaryEncodingConfig,
};
use burn::tensor::{DType, Device, Tensor, activation};
use kiln_layers::{
    Activation, Norm, RotaryOptions, activation_linear, add_relu, batch_norm, gelu, gelu_tanh, group_norm, layer_norm,
    linear, max_pool2d, norm_linear, relu, residual, rms_norm, rotary, silu, softmax, swiglu,
};
use proptest::prelude::*;

use crate::compare::{config, distance, tensor, tolerance, values};

/// The operation on its inputs and parameters.
type Run = Box<dyn Fn(Vec<Tensor<4>>) -> Tensor<4> + Send + Sync>;

/// An operation, and the one of burn that it is compared with.
struct Case {
    name: String,
    /// Shape and scale of each input.
    inputs: Vec<([usize; 4], f32)>,
    /// Shape of each parameter, and what is added to its numbers.
    parameters: Vec<([usize; 4], f32)>,
    /// How many of the parameters are always in f32.
    wide: usize,
    ours: Run,
    stock: Run,
    /// How many times the roundings of a result may add up.
    factor: f64,
    /// Whether values that are equal or zero in 16 bits, but not in f32, have another gradient.
    exact: bool,
}

fn case(
    name: impl Into<String>,
    inputs: &[([usize; 4], f32)],
    parameters: &[([usize; 4], f32)],
    ours: impl Fn(Vec<Tensor<4>>) -> Tensor<4> + Send + Sync + 'static,
    stock: impl Fn(Vec<Tensor<4>>) -> Tensor<4> + Send + Sync + 'static,
) -> Case {
    let name = name.into();
    let sums = ["linear", "group_norm", "batch_norm"].iter().any(|sums| name.starts_with(sums));
    let factor = if sums { 2.0 } else { 1.0 };
    let (inputs, parameters, wide, exact) = (inputs.to_vec(), parameters.to_vec(), 0, false);
    let (ours, stock) = (Box::new(ours), Box::new(stock));
    Case { name, inputs, parameters, wide, ours, stock, factor, exact }
}

/// Parameters that are already in the graph.
fn vector(x: &Tensor<4>) -> Param<Tensor<1>> {
    Param::initialized(ParamId::new(), x.clone().reshape([x.dims()[3]]))
}

fn layer_norm_of(x: &[Tensor<4>]) -> LayerNorm {
    let mut norm = LayerNormConfig::new(x[1].dims()[3]).with_epsilon(3e-4).init(&x[0].device());
    (norm.gamma, norm.beta) = (vector(&x[1]), x.get(2).map(vector));
    norm
}

fn rms_norm_of(x: &[Tensor<4>]) -> RmsNorm {
    let norm = RmsNormConfig::new(x[1].dims()[3]).with_epsilon(3e-4).init(&x[0].device());
    RmsNorm { gamma: vector(&x[1]), ..norm }
}

/// A layer with a bias, stored by rows, or without one, stored by columns.
fn linear_of(by_rows: bool, x: &[Tensor<4>]) -> Linear {
    let [_, _, rows, columns] = x[0].dims();
    let weight = x[0].clone().reshape([rows, columns]);
    let weight = if by_rows { weight } else { weight.transpose() };
    Linear { weight: Param::initialized(ParamId::new(), weight), bias: x.get(1).map(vector) }
}

fn group_norm_of(groups: usize, x: &[Tensor<4>]) -> GroupNorm {
    let config = GroupNormConfig::new(groups, x[0].dims()[1]).with_epsilon(1e-2);
    let mut norm = config.with_affine(x.len() > 1).init(&x[0].device());
    (norm.gamma, norm.beta) = (x.get(1).map(vector), x.get(2).map(vector));
    norm
}

fn batch_norm_of(x: &[Tensor<4>]) -> BatchNorm {
    let norm = BatchNormConfig::new(x[0].dims()[1]).with_epsilon(1e-2).init(&x[0].device());
    BatchNorm { gamma: vector(&x[1]), beta: vector(&x[2]), ..norm }
}

type Function = fn(Tensor<4>) -> Tensor<4>;

const ACTIVATIONS: [(Activation, Function, Function); 4] = [
    (Activation::Gelu, |x| gelu(x).unwrap(), activation::gelu),
    (Activation::GeluTanh, |x| gelu_tanh(x).unwrap(), activation::gelu_approximate),
    (Activation::Silu, |x| silu(x).unwrap(), activation::silu),
    (Activation::Relu, |x| relu(x).unwrap(), activation::relu),
];

/// Operations on rows of `width` values, which linear layers project to `outputs`.
fn rows([height, width, outputs]: [usize; 3]) -> Vec<Case> {
    let (row, of) = ([1, 1, 1, width], |scale| ([1, 2, height, width], scale));
    let mut cases: Vec<Case> = ACTIVATIONS
        .map(|(kind, ours, stock)| {
            case(format!("{kind:?}"), &[of(6.0)], &[], move |mut x| ours(x.remove(0)), move |x| stock(x[0].clone()))
        })
        .into();
    let gated = |x: Vec<Tensor<4>>| activation::silu(x[0].clone()) * x[1].clone();
    /// Both inputs, which nobody else holds.
    fn both(mut x: Vec<Tensor<4>>) -> (Tensor<4>, Tensor<4>) {
        (x.remove(0), x.remove(0))
    }
    cases.push(case(
        "swiglu",
        &[of(6.0), of(2.0)],
        &[],
        |x| {
            let (gate, up) = both(x);
            swiglu(gate, up).unwrap()
        },
        gated,
    ));
    cases.push(case(
        "softmax",
        &[of(4.0)],
        &[],
        |mut x| softmax(x.remove(0)).unwrap(),
        |x| activation::softmax(x[0].clone(), 3),
    ));
    cases.push(Case {
        exact: true,
        ..case(
            "add_relu",
            &[of(1.0), of(1.0)],
            &[],
            |x| {
                let (a, b) = both(x);
                add_relu(a, b).unwrap()
            },
            |x| activation::relu(x[0].clone() + x[1].clone()),
        )
    });
    cases.push(Case {
        exact: true,
        ..case(
            "residual",
            &[of(1.0), of(1.0)],
            &[],
            |x| {
                let (x, branch) = both(x);
                residual(x, branch).unwrap()
            },
            |x| x[0].clone() + x[1].clone(),
        )
    });
    if width % 2 == 0 {
        cases.push(case(
            "rotary",
            &[of(1.0)],
            &[],
            |mut x| rotary(x.remove(0), RotaryOptions::new().with_first_position(5)).unwrap(),
            move |x| RotaryEncodingConfig::new(height + 5, width).init(&x[0].device()).apply(x[0].clone(), 5),
        ));
    }
    // By rows with a bias, by columns without.
    for by_rows in [true, false] {
        let weight = if by_rows { [1, 1, width, outputs] } else { [1, 1, outputs, width] };
        let layer = move |x: &[Tensor<4>]| linear_of(by_rows, x);
        let parameters = [(weight, 0.0), ([1, 1, 1, outputs], 0.0)];
        let parameters = &parameters[..if by_rows { 2 } else { 1 }];
        cases.push(case(
            format!("linear, by rows {by_rows}"),
            &[of(1.5)],
            parameters,
            move |x| linear(&layer(&x[1..]), x[0].clone()).unwrap(),
            move |x| layer(&x[1..]).forward(x[0].clone()),
        ));
        for (kind, _, stock) in ACTIVATIONS {
            cases.push(case(
                format!("linear after {kind:?}, by rows {by_rows}"),
                &[of(1.5)],
                parameters,
                move |x| activation_linear(kind, &layer(&x[1..]), x[0].clone()).unwrap(),
                move |x| layer(&x[1..]).forward(stock(x[0].clone())),
            ));
        }
        // In a norm of few values, the gradient is only the rounding of sums that cancel.
        if width > 4 {
            for (name, norms) in [("layer norm", vec![(row, 1.0), (row, 0.0)]), ("RMS norm", vec![(row, 1.0)])] {
                let count = norms.len();
                let case = case(
                    format!("linear after {name}, by rows {by_rows}"),
                    &[of(1.5)],
                    &[&norms[..], parameters].concat(),
                    move |x| {
                        let layer = layer(&x[1 + count..]);
                        match count {
                            2 => norm_linear(&layer_norm_of(&x[..3]), &layer, x[0].clone()).unwrap(),
                            _ => norm_linear(Norm::Rms(&rms_norm_of(&x[..2])), &layer, x[0].clone()).unwrap(),
                        }
                    },
                    move |x| {
                        let layer = layer(&x[1 + count..]);
                        layer.forward(match count {
                            2 => layer_norm_of(&x[..3]).forward(x[0].clone()),
                            _ => rms_norm_of(&x[..2]).forward(x[0].clone()),
                        })
                    },
                );
                cases.push(Case { wide: count, ..case });
            }
        }
    }
    if width > 4 {
        let ours = |x: Vec<Tensor<4>>| layer_norm(&layer_norm_of(&x), x[0].clone()).unwrap();
        let stock = |x: Vec<Tensor<4>>| layer_norm_of(&x).forward(x[0].clone());
        cases.push(case("layer_norm", &[of(2.0)], &[(row, 1.0), (row, 0.0)], ours, stock));
        let ours = |x: Vec<Tensor<4>>| rms_norm(&rms_norm_of(&x), x[0].clone()).unwrap();
        let stock = |x: Vec<Tensor<4>>| rms_norm_of(&x).forward(x[0].clone());
        cases.push(case("rms_norm", &[of(2.0)], &[(row, 1.0)], ours, stock));
    }
    cases
}

/// Operations on images of twice as many channels as groups.
fn images([samples, groups, height, width]: [usize; 4]) -> Vec<Case> {
    let channels = 2 * groups;
    let (x, row) = (([samples, channels, height, width], 2.0), [1, 1, 1, channels]);
    let affine = [(row, 1.0), (row, 0.0)];
    let pool = MaxPool2dConfig::new([2, 3]).with_strides([2, 1]);
    let pool = pool.with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).init();
    let same = pool.clone();
    let mut cases = vec![Case {
        exact: true,
        ..case(
            "max_pool2d",
            &[x],
            &[],
            move |x| max_pool2d(&pool, x[0].clone()).unwrap(),
            move |x| same.forward(x[0].clone()),
        )
    }];
    for parameters in [&affine[..], &[]] {
        cases.push(case(
            format!("group_norm, affine {}", !parameters.is_empty()),
            &[x],
            parameters,
            move |x| group_norm(&group_norm_of(groups, &x), x[0].clone()).unwrap(),
            move |x| group_norm_of(groups, &x).forward(x[0].clone()),
        ));
    }
    let ours = |x: Vec<Tensor<4>>| batch_norm(&batch_norm_of(&x), x[0].clone()).unwrap();
    let stock = |x: Vec<Tensor<4>>| batch_norm_of(&x).forward(x[0].clone());
    cases.push(Case { wide: 2, ..case("batch_norm", &[x], &affine, ours, stock) });
    cases
}

/// The leaves of a case; inputs may be views: with their last dimensions swapped, or every other value of the last dimension.
fn leaves(case: &Case, [dtype, of_parameters]: [DType; 2], layouts: [u8; 2]) -> Vec<Tensor<4>> {
    let device = Device::flex().autodiff();
    let inputs = case.inputs.iter().zip(layouts).enumerate().map(|(at, ((shape, scale), layout))| {
        let (mut swapped, mut long) = (*shape, *shape);
        swapped.swap(3, 2);
        long[3] *= 2;
        match layout {
            0 => tensor(*shape, at as u64 + 1, *scale, dtype, &device),
            1 => tensor(swapped, at as u64 + 1, *scale, dtype, &device).swap_dims(3, 2),
            _ => tensor(long, at as u64 + 1, *scale, dtype, &device).slice_dim(3, burn::tensor::s![..;2]),
        }
    });
    let parameters = case.parameters.iter().enumerate().map(|(at, (shape, shift))| {
        let dtype = if at < case.wide { DType::F32 } else { of_parameters };
        (tensor(*shape, at as u64 + 5, 0.4, DType::F32, &device) + *shift).cast(dtype)
    });
    inputs.chain(parameters).collect()
}

/// The output, and the gradients of those leaves that are wanted. The output's gradient has values of `dtype`, so that no dtype rounds
/// them before they are summed.
fn run(
    leaves: &[Tensor<4>],
    dtype: DType,
    wanted: impl Fn(usize) -> bool,
    f: impl Fn(Vec<Tensor<4>>) -> Tensor<4>,
) -> Vec<Option<Vec<f64>>> {
    let leaves: Vec<_> =
        leaves.iter().enumerate().map(|(at, leaf)| leaf.clone().set_require_grad(wanted(at))).collect();
    let y = f(leaves.clone());
    let upstream = tensor(y.dims(), 99, 1.0, dtype, &y.device());
    let gradients = (y.clone().cast(DType::F32) * upstream.cast(DType::F32)).sum().backward();
    let gradients = leaves.iter().map(|leaf| leaf.grad(&gradients).map(|gradient| values(&gradient)));
    std::iter::once(Some(values(&y))).chain(gradients).collect()
}

/// Compares a case in these dtypes with burn's operation on the same numbers in f32.
fn check(case: &Case, dtypes: [DType; 2], layouts: [u8; 2], factor: f64) {
    let leaves = leaves(case, dtypes, layouts);
    let got = run(&leaves, dtypes[0], |_| true, &case.ours);
    let expected =
        run(&leaves, dtypes[0], |_| true, |x| (case.stock)(x.into_iter().map(|x| x.cast(DType::F32)).collect()));
    let rounding = dtypes.map(tolerance).into_iter().fold(0.0, f64::max);
    for (part, (got, expected)) in got.iter().zip(&expected).enumerate() {
        let (Some(got), Some(expected)) = (got, expected) else { panic!("{}: no gradient of part {part}", case.name) };
        // A gradient that is a difference of almost equal products is compared relative to the size of these products.
        let apart = got.iter().zip(expected).fold(0.0, |far, (a, b)| f64::max(far, (a - b).abs()));
        let far = distance(got, expected).min(if case.name == "softmax" { apart } else { f64::INFINITY });
        // Sums over rows may be small beside what is summed.
        let limit = rounding * if part > case.inputs.len() { factor.max(2.0) } else { factor };
        assert!(far < limit, "{} in {dtypes:?} of {:?}, part {part}: {far}", case.name, case.inputs);
    }
}

/// Dtypes of inputs and of parameters.
fn dtypes(case: &Case) -> Vec<[DType; 2]> {
    use DType::{BF16, F16, F32};
    match (case.exact, case.name.starts_with("linear")) {
        (true, _) => vec![[F32, F32]],
        (_, false) => vec![[F32, F32], [F16, F32], [BF16, F32], [F16, F16], [BF16, BF16]],
        _ => vec![[F32, F32], [F16, F16], [BF16, BF16], [BF16, F32], [F32, F16]],
    }
}

#[test]
fn values_and_gradients_are_those_of_burn() {
    // One value; primes; more rows than a chunk and more inputs and outputs than a block has.
    let of_rows = [[1, 1, 1], [3, 14, 7], [259, 9, 270], [259, 270, 9]].map(rows);
    let of_images = [[1, 1, 3, 2], [3, 3, 5, 7], [2, 4, 11, 13], [2, 6, 9, 4]].map(images);
    for case in of_rows.into_iter().chain(of_images).flatten() {
        for dtypes in dtypes(&case) {
            check(&case, dtypes, [0, 0], case.factor);
        }
    }
}

/// Cases of rows and images that are large enough for several threads.
fn large() -> impl Iterator<Item = Case> {
    rows([131, 258, 70]).into_iter().chain(images([5, 3, 33, 40]))
}

#[test]
fn the_bits_are_those_of_one_thread() {
    for case in large() {
        for dtypes in dtypes(&case).into_iter().take(2) {
            let leaves = leaves(&case, dtypes, [0, 0]);
            let on = |threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| run(&leaves, dtypes[0], |_| true, &case.ours))
            };
            let expected = on(1);
            assert!((2..=4).all(|threads| on(threads) == expected), "{} in {dtypes:?}", case.name);
        }
    }
}

#[test]
fn only_wanted_gradients_come_out_and_they_are_the_same() {
    for case in rows([5, 14, 7]).into_iter().chain(images([2, 2, 5, 6])) {
        let leaves = leaves(&case, [DType::F32; 2], [0, 0]);
        let all = run(&leaves, DType::F32, |_| true, &case.ours);
        for wanted in 0..leaves.len() {
            let got = run(&leaves, DType::F32, |at| at == wanted, &case.ours);
            for (part, gradient) in got.iter().enumerate().skip(1) {
                let expected = if part == wanted + 1 { &all[part] } else { &None };
                assert!(gradient == expected, "{}, leaf {wanted}, part {part}", case.name);
            }
        }
    }
}

#[test]
fn inputs_that_others_hold_stay_and_give_the_same_bits() {
    for case in large() {
        for dtype in [DType::F32, DType::BF16] {
            let fresh = || leaves(&case, [dtype; 2], [0, 0]).into_iter().map(Tensor::inner).collect::<Vec<_>>();
            let held = fresh();
            let expected = values(&(case.ours)(held.clone()));
            assert!(values(&(case.ours)(fresh())) == expected, "{}", case.name);
            assert!(held.iter().map(values).eq(fresh().iter().map(values)), "{}: an input has changed", case.name);
        }
    }
}

#[test]
fn empty_inputs_have_empty_results_and_gradients() {
    for case in rows([0, 14, 7]).into_iter().chain(images([0, 2, 4, 4])) {
        if ["max_pool2d", "batch_norm"].contains(&case.name.as_str()) {
            continue;
        }
        let got = run(&leaves(&case, [DType::F32; 2], [0, 0]), DType::F32, |_| true, &case.ours);
        let empty = |part: &Option<Vec<f64>>| part.as_ref().is_some_and(Vec::is_empty);
        assert!(got[..=case.inputs.len()].iter().all(empty), "{}: {got:?}", case.name);
        let zeros = got[case.inputs.len() + 1..].iter().flatten().flatten();
        assert!(zeros.into_iter().all(|value| *value == 0.0), "{}: {got:?}", case.name);
    }
}

fn layouts() -> impl Strategy<Value = [u8; 2]> {
    [0u8..3, 0u8..3]
}

/// Checks all cases in the dtype of this number.
fn check_all(cases: Vec<Case>, dtype: usize, layouts: [u8; 2]) {
    for case in cases {
        let dtypes = dtypes(&case);
        check(&case, dtypes[dtype % dtypes.len()], layouts, 4.0);
    }
}

proptest! {
    #![proptest_config(config(24))]

    /// `PROPTEST_CASES=20000` runs this for minutes.
    #[test]
    fn rows_of_any_size_and_layout(sizes in [1usize..70, 1usize..70, 1usize..70], dtype in 0usize..5, layouts in layouts()) {
        check_all(rows(sizes), dtype, layouts);
    }

    #[test]
    fn images_of_any_size_and_layout(
        sizes in [1usize..6, 1usize..9, 2usize..24, 2usize..24], dtype in 0usize..5, layouts in layouts()
    ) {
        check_all(images(sizes), dtype, layouts);
    }
}
