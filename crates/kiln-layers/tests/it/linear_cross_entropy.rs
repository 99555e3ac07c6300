//! The loss of a linear layer compared with its definition, computed in f64 on the host.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use kiln_layers::{LinearCrossEntropy, Reduction};
use proptest::prelude::*;

use crate::compare::{config, distance, tensor, tolerance, values};

const IGNORED: i64 = -100;
/// The gradient of the loss.
const UPSTREAM: f64 = 4.0;

/// The memory layout of a matrix.
#[derive(Clone, Copy, Debug)]
enum Layout {
    Rows,
    /// The transposed view of another matrix.
    Transposed,
    /// Some columns of a wider matrix.
    Columns,
    /// The transposed view of some rows of a longer matrix.
    TransposedRows,
    /// Every other column of a wider matrix.
    Strided,
}

impl Layout {
    const ALL: [Self; 5] = [Self::Rows, Self::Transposed, Self::Columns, Self::TransposedRows, Self::Strided];

    fn matrix(self, [rows, columns]: [usize; 2], seed: u64, dtype: DType, device: &Device) -> Tensor<2> {
        let tensor = |shape: [usize; 2]| tensor(shape, seed, 1.0, dtype, device);
        match self {
            Self::Rows => tensor([rows, columns]),
            Self::Transposed => tensor([columns, rows]).transpose(),
            Self::Columns => tensor([rows, columns + 5]).narrow(1, 3, columns),
            Self::TransposedRows => tensor([columns + 3, rows]).narrow(0, 2, columns).transpose(),
            Self::Strided => tensor([rows, 2 * columns]).reshape([rows, columns, 2]).narrow(2, 1, 1).squeeze_dim(2),
        }
    }
}

#[derive(Clone, Debug)]
struct Case {
    rows: usize,
    width: usize,
    classes: usize,
    dtype: DType,
    hidden: Layout,
    weight: Layout,
    bias: bool,
    class_weights: bool,
    row_weights: bool,
    ignore: bool,
    smoothing: f32,
    reduction: Reduction,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            rows: 8,
            width: 4,
            classes: 10,
            dtype: DType::F32,
            hidden: Layout::Rows,
            weight: Layout::Rows,
            bias: false,
            class_weights: false,
            row_weights: false,
            ignore: false,
            smoothing: 0.0,
            reduction: Reduction::Mean,
        }
    }
}

impl Case {
    fn targets(&self) -> Vec<i64> {
        let target = |row: usize| match row % 5 {
            1 if self.ignore => IGNORED,
            3 if self.ignore => self.classes as i64,
            _ => (row * 7 % self.classes) as i64,
        };
        (0..self.rows).map(target).collect()
    }

    /// The loss, and its gradients of hidden rows, weight and bias, by the operation.
    fn run(&self) -> [Vec<f64>; 4] {
        let device = Device::flex().autodiff();
        let hidden = self.hidden.matrix([self.rows, self.width], 1, self.dtype, &device).require_grad();
        let weight = self.weight.matrix([self.width, self.classes], 2, self.dtype, &device).require_grad();
        let bias = tensor([self.classes], 3, 1.0, self.dtype, &device).require_grad();
        let mut layer = LinearCrossEntropy::new()
            .with_ignore_index(IGNORED)
            .with_label_smoothing(self.smoothing)
            .with_reduction(self.reduction);
        if self.class_weights {
            layer = layer.with_class_weights(self.weights_of_classes(&device));
        }
        let targets = integers(&self.targets(), DType::I64, &device);
        let used = self.bias.then(|| bias.clone());
        let loss = match self.row_weights {
            true => {
                let weights = self.weights_of_rows(&device);
                layer.forward_weighted(hidden.clone(), weight.clone(), used, targets, weights)
            }
            false => layer.forward(hidden.clone(), weight.clone(), used, targets),
        };
        let loss = loss.unwrap();
        let gradients = match self.reduction {
            Reduction::None => (loss.clone() * self.upstream(&device)).sum().backward(),
            _ => (loss.clone() * UPSTREAM).backward(),
        };
        let of_bias = if self.bias { values(&bias.grad(&gradients).unwrap()) } else { vec![] };
        let (of_hidden, of_weight) = (hidden.grad(&gradients).unwrap(), weight.grad(&gradients).unwrap());
        assert_eq!((of_hidden.dtype(), of_weight.dtype()), (self.dtype, self.dtype));
        [values(&loss), values(&of_hidden), values(&of_weight), of_bias]
    }

    fn weights_of_classes(&self, device: &Device) -> Tensor<1> {
        tensor([self.classes], 4, 1.0, self.dtype, device).abs()
    }

    fn weights_of_rows(&self, device: &Device) -> Tensor<1> {
        // The third row does not count.
        let weights = tensor([self.rows], 5, 1.0, DType::F32, device).abs();
        weights * Tensor::<1, Int>::arange(0..self.rows as i64, device).not_equal_elem(2).float()
    }

    /// The gradient of each row's loss.
    fn upstream(&self, device: &Device) -> Tensor<1> {
        tensor([self.rows], 6, 1.0, DType::F32, device)
    }

    /// The loss and its gradients by the definition in f64, each with its largest term. The term limits how exact a result can be if
    /// terms cancel.
    fn definition(&self) -> [(Vec<f64>, f64); 4] {
        let device = Device::flex();
        let Self { rows, width, classes, .. } = *self;
        let hidden = self.hidden.matrix([rows, width], 1, self.dtype, &device);
        let weight = self.weight.matrix([width, classes], 2, self.dtype, &device);
        let (hidden, weight) = (values(&hidden), values(&weight));
        let bias = match self.bias {
            true => values(&tensor([classes], 3, 1.0, self.dtype, &device)),
            false => vec![0.0; classes],
        };
        let of_classes =
            if self.class_weights { values(&self.weights_of_classes(&device)) } else { vec![1.0; classes] };
        let of_rows = if self.row_weights { values(&self.weights_of_rows(&device)) } else { vec![1.0; rows] };
        let upstream = values(&self.upstream(&device));
        let targets = self.targets();
        let target = |row: usize| usize::try_from(targets[row]).ok().filter(|target| *target < classes);
        let total: f64 = (0..rows).filter_map(|row| target(row).map(|target| of_rows[row] * of_classes[target])).sum();
        let smoothing = f64::from(self.smoothing);

        let mut losses = vec![0.0; rows];
        let [mut dhidden, mut dweight, mut dbias] =
            [vec![0.0; rows * width], vec![0.0; width * classes], vec![0.0; classes]];
        let mut terms = [0.0f64; 4];
        for row in 0..rows {
            let Some(target) = target(row) else { continue };
            let hidden = &hidden[row * width..][..width];
            let logits: Vec<f64> = (0..classes)
                .map(|class| bias[class] + (0..width).map(|k| hidden[k] * weight[k * classes + class]).sum::<f64>())
                .collect();
            let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let log_sum = largest + logits.iter().map(|logit| (logit - largest).exp()).sum::<f64>().ln();
            let wanted = |class: usize| {
                let on_target = if class == target { 1.0 - smoothing } else { 0.0 };
                of_classes[class] * (on_target + smoothing / classes as f64)
            };
            let mass: f64 = (0..classes).map(wanted).sum();
            losses[row] =
                of_rows[row] * (0..classes).map(|class| wanted(class) * (log_sum - logits[class])).sum::<f64>();
            let scale = of_rows[row]
                * match self.reduction {
                    Reduction::Mean => UPSTREAM / total,
                    Reduction::Sum => UPSTREAM,
                    _ => upstream[row],
                };
            for class in 0..classes {
                let probability = (logits[class] - log_sum).exp();
                let gradient = scale * (mass * probability - wanted(class));
                let term = scale.abs() * (mass * probability).max(wanted(class));
                terms[0] = terms[0].max(of_rows[row] * wanted(class) * logits[class].abs());
                terms[3] = terms[3].max(term);
                dbias[class] += gradient;
                for k in 0..width {
                    terms[1] = terms[1].max(term * weight[k * classes + class].abs());
                    terms[2] = terms[2].max(term * hidden[k].abs());
                    dhidden[row * width + k] += gradient * weight[k * classes + class];
                    dweight[k * classes + class] += gradient * hidden[k];
                }
            }
        }
        let sum: f64 = losses.iter().sum();
        let loss = match self.reduction {
            Reduction::Mean => {
                terms[0] /= total;
                vec![sum / total]
            }
            Reduction::Sum => vec![sum],
            _ => losses,
        };
        let [of_loss, of_hidden, of_weight, of_bias] = terms;
        let dbias = if self.bias { dbias } else { vec![] };
        [(loss, of_loss), (dhidden, of_hidden), (dweight, of_weight), (dbias, of_bias)]
    }

    fn check(&self) {
        for (part, (mut got, (mut expected, term))) in self.run().into_iter().zip(self.definition()).enumerate() {
            got.push(term);
            expected.push(term);
            let far = distance(&got, &expected);
            assert!(far < tolerance(self.dtype), "part {part} of {self:?}: {far}");
        }
    }
}

fn integers(targets: &[i64], dtype: DType, device: &Device) -> Tensor<1, Int> {
    Tensor::<1, Int>::from_data(TensorData::new(targets.to_vec(), [targets.len()]), (device, DType::I64)).cast(dtype)
}

fn cases() -> impl Strategy<Value = Case> {
    let layout = || prop::sample::select(&Layout::ALL[..]);
    let sizes = (1usize..40, 1usize..24, prop_oneof![1usize..70, 300usize..800]);
    let dtype = prop::sample::select(vec![DType::F32, DType::F16, DType::BF16]);
    let reduction = prop::sample::select(vec![Reduction::Mean, Reduction::Sum, Reduction::None]);
    let smoothing = prop::sample::select(vec![0.0f32, 0.1, 1.0]);
    (sizes, dtype, [layout(), layout()], any::<[bool; 4]>(), smoothing, reduction).prop_map(
        |((rows, width, classes), dtype, [hidden, weight], flags, smoothing, reduction)| {
            let [bias, class_weights, row_weights, ignore] = flags;
            Case {
                rows,
                width,
                classes,
                dtype,
                hidden,
                weight,
                bias,
                class_weights,
                row_weights,
                ignore,
                smoothing,
                reduction,
            }
        },
    )
}

proptest! {
    #![proptest_config(config(96))]

    #[test]
    fn loss_and_gradients_are_those_of_the_definition(case in cases()) {
        case.check();
    }
}

#[test]
fn rows_beyond_one_chunk_of_logits_give_the_same() {
    // Chunks have 256 rows of this many classes.
    for weight in [Layout::Rows, Layout::Transposed] {
        for dtype in [DType::F32, DType::BF16] {
            let case = Case { rows: 600, width: 3, classes: 17_000, dtype, weight, bias: true, ..Case::default() };
            case.check();
        }
    }
}

#[test]
fn one_class_has_a_loss_of_zero() {
    for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
        let case = Case {
            rows: 13,
            width: 13,
            classes: 1,
            bias: true,
            class_weights: true,
            smoothing: 1.0,
            ..Case::default()
        };
        let [losses, ..] = Case { reduction, ..case }.run();
        assert!(losses.iter().all(|loss| *loss == 0.0), "{losses:?}");
    }
}

#[test]
fn as_torch() {
    let device = Device::flex().autodiff();
    let hidden = Tensor::<2>::from_floats([[1.0, -2.0], [0.5, 3.0], [2.0, 0.25], [-1.0, 1.5]], &device).require_grad();
    let weight = Tensor::<2>::from_floats([[0.5, -1.0, 2.0, 0.0], [1.5, 0.25, -0.75, 1.0]], &device).require_grad();
    let bias = Tensor::<1>::from_floats([0.1, -0.2, 0.3, 0.0], &device).require_grad();
    let layer = LinearCrossEntropy::new()
        .with_class_weights(Tensor::from_floats([1.0, 2.0, 0.5, 0.25], &device))
        .with_ignore_index(IGNORED)
        .with_label_smoothing(0.2);
    let losses = |reduction| {
        let targets = integers(&[2, IGNORED, 0, 1], DType::I64, &device);
        let layer = layer.clone().with_reduction(reduction);
        layer.forward(hidden.clone(), weight.clone(), Some(bias.clone()), targets).unwrap()
    };
    let near = |got: &[f64], expected: &[f64]| assert!(distance(got, expected) < 1e-6, "{got:?}, {expected:?}");
    near(&values(&losses(Reduction::None)), &[0.9378476, 0.0, 3.0043125, 2.6968448]);
    near(&values(&losses(Reduction::Sum)), &[6.6390052]);
    let loss = losses(Reduction::Mean);
    near(&values(&loss), &[1.8968586]);
    let gradients = loss.backward();
    let of_hidden = [0.1107329, -0.0646437, 0.0, 0.0, 0.417152, -0.5297774, 0.4664668, 0.3930317];
    near(&values(&hidden.grad(&gradients).unwrap()), &of_hidden);
    let of_weight = [-0.6782162, 0.2847099, 0.5511941, -0.1576877, 0.2949491, -0.5043588, -0.0346554, 0.2440651];
    near(&values(&weight.grad(&gradients).unwrap()), &of_weight);
    near(&values(&bias.grad(&gradients).unwrap()), &[-0.0229256, -0.4247146, 0.29055, 0.1570902]);
}

#[test]
fn a_loss_of_no_rows() {
    let device = Device::flex().autodiff();
    let run = |rows: usize, reduction| {
        let hidden = tensor([rows, 4], 1, 1.0, DType::F32, &device).require_grad();
        let weight = tensor([4, 6], 2, 1.0, DType::F32, &device).require_grad();
        let layer = LinearCrossEntropy::new().with_ignore_index(1).with_reduction(reduction);
        let targets = integers(&vec![1; rows], DType::I64, &device);
        let loss = layer.forward(hidden.clone(), weight.clone(), None, targets).unwrap();
        let gradients = loss.clone().sum().backward();
        assert_eq!(values(&hidden.grad(&gradients).unwrap()), vec![0.0; 4 * rows]);
        assert_eq!(values(&weight.grad(&gradients).unwrap()), vec![0.0; 24]);
        values(&loss)
    };
    for rows in [0, 3] {
        assert!(run(rows, Reduction::Mean)[0].is_nan());
        assert_eq!(run(rows, Reduction::Sum), [0.0]);
        assert_eq!(run(rows, Reduction::None), vec![0.0; rows]);
    }
}

#[test]
fn a_loss_scale_reaches_f16_gradients_before_they_are_rounded() {
    let device = Device::flex().autodiff();
    let (rows, scale) = (4096, 65536.0);
    let gradient = |dtype| {
        let hidden = tensor([rows, 8], 1, 1.0, DType::F16, &device).cast(dtype).require_grad();
        let weight = tensor([8, 50], 2, 0.01, DType::F16, &device).cast(dtype).require_grad();
        let targets = Tensor::<1, Int>::arange(0..rows as i64, &device).remainder_scalar(50);
        let loss = LinearCrossEntropy::new().forward(hidden.clone(), weight.clone(), None, targets).unwrap();
        let gradients = (loss * scale).backward();
        [values(&hidden.grad(&gradients).unwrap()), values(&weight.grad(&gradients).unwrap())]
    };
    let (half, single) = (gradient(DType::F16), gradient(DType::F32));
    for (got, expected) in half.iter().zip(&single) {
        assert!(distance(got, expected) < tolerance(DType::F16));
    }
    // Without the scale they are subnormal in f16.
    assert!(single[0].iter().all(|value| value.abs() / scale < 6e-5));
}

#[test]
fn targets_of_any_integer_dtype() {
    let device = Device::flex();
    let loss = |dtype| {
        let (hidden, weight) =
            (tensor([5, 4], 1, 1.0, DType::F32, &device), tensor([4, 9], 2, 1.0, DType::F32, &device));
        let targets = integers(&[0, 8, 3, 9, 2], dtype, &device);
        values(&LinearCrossEntropy::new().forward(hidden, weight, None, targets).unwrap())
    };
    for dtype in [DType::I32, DType::I16, DType::I8, DType::U64, DType::U32, DType::U16, DType::U8] {
        assert_eq!(loss(dtype), loss(DType::I64), "{dtype:?}");
    }
}

#[test]
fn only_wanted_gradients_are_computed() {
    let device = Device::flex().autodiff();
    let run = |wanted: [bool; 3], reduction| {
        let leaf = |tensor: Tensor<2>, wanted| if wanted { tensor.require_grad() } else { tensor };
        let hidden = leaf(tensor([6, 4], 1, 1.0, DType::BF16, &device), wanted[0]);
        let weight = leaf(tensor([4, 9], 2, 1.0, DType::BF16, &device), wanted[1]);
        let bias = tensor([9], 3, 1.0, DType::BF16, &device);
        let bias = if wanted[2] { bias.require_grad() } else { bias };
        let targets = Tensor::<1, Int>::arange(0..6, &device);
        let layer = LinearCrossEntropy::new().with_reduction(reduction);
        let loss = layer.forward(hidden.clone(), weight.clone(), Some(bias.clone()), targets).unwrap();
        let parts = [values(&loss)];
        let gradients = loss.sum().backward();
        let gradients = [
            hidden.grad(&gradients).map(|gradient| values(&gradient)),
            weight.grad(&gradients).map(|gradient| values(&gradient)),
            bias.grad(&gradients).map(|gradient| values(&gradient)),
        ];
        (parts, gradients)
    };
    for reduction in [Reduction::Mean, Reduction::None] {
        let (loss, all) = run([true; 3], reduction);
        for number in 0..3 {
            let mut wanted = [false; 3];
            wanted[number] = true;
            let (same, some) = run(wanted, reduction);
            assert_eq!(loss, same);
            for other in 0..3 {
                assert_eq!(some[other], if other == number { all[other].clone() } else { None });
            }
        }
    }
}

#[test]
fn without_autodiff_the_loss_is_the_same() {
    let loss = |device: &Device, wanted: bool| {
        let hidden = tensor([4, 8], 1, 1.0, DType::F32, device);
        let hidden = if wanted { hidden.require_grad() } else { hidden };
        let weight = tensor([8, 10], 2, 1.0, DType::F32, device);
        let targets = integers(&[1, 2, 3, 4], DType::I64, device);
        values(&LinearCrossEntropy::new().forward(hidden, weight, None, targets).unwrap())
    };
    let tracked = Device::flex().autodiff();
    assert_eq!(loss(&tracked, true), loss(&Device::flex(), false));
    assert_eq!(loss(&tracked, true), loss(&tracked, false));
}

#[test]
fn extreme_logits() {
    let device = Device::flex().autodiff();
    // The logits of a row are its hidden value and zero.
    let losses = |hidden: [f32; 5], bias: [f32; 2]| {
        let hidden = Tensor::<1>::from_floats(hidden, &device).unsqueeze_dim::<2>(1).require_grad();
        let weight = Tensor::<2>::from_floats([[1.0, 0.0]], &device);
        let bias = Tensor::<1>::from_floats(bias, &device);
        let layer = LinearCrossEntropy::new().with_reduction(Reduction::None);
        let loss = layer.forward(hidden.clone(), weight, Some(bias), integers(&[0; 5], DType::I64, &device)).unwrap();
        let gradients = loss.clone().sum().backward();
        (values(&loss), values(&hidden.grad(&gradients).unwrap()))
    };
    let (loss, gradient) = losses([1e4, -1e4, f32::NAN, 3e38, 0.0], [0.0, 0.0]);
    assert_eq!((loss[0], loss[1], loss[3]), (0.0, 1e4, 0.0));
    assert_eq!((gradient[0], gradient[1], gradient[3], gradient[4]), (0.0, -1.0, 0.0, -0.5));
    assert!(loss[2].is_nan() && gradient[2].is_nan());
    // A class that is impossible.
    let (loss, gradient) = losses([1.0; 5], [0.0, f32::NEG_INFINITY]);
    assert_eq!((loss, gradient), (vec![0.0; 5], vec![0.0; 5]));
    let (loss, _) = losses([1.0; 5], [f32::NEG_INFINITY, 0.0]);
    assert_eq!(loss, [f64::INFINITY; 5]);
}

#[test]
fn same_bits_for_any_number_of_threads() {
    for weight in [Layout::Rows, Layout::Transposed] {
        let case = Case {
            rows: 300,
            width: 9,
            classes: 17_000,
            dtype: DType::BF16,
            weight,
            bias: true,
            row_weights: true,
            ignore: true,
            ..Case::default()
        };
        let on = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(|| case.run());
        let expected = on(1);
        for threads in 2..=4 {
            assert!(on(threads) == expected, "{weight:?}, {threads} threads");
        }
    }
}

#[test]
fn weights_that_do_not_fit_are_refused() {
    let device = Device::flex();
    let message = |classes: usize, rows: usize| {
        let layer = LinearCrossEntropy::new().with_class_weights(Tensor::zeros([classes], &device));
        let (hidden, weight) = (Tensor::zeros([4, 8], &device), Tensor::zeros([8, 3], &device));
        let targets = Tensor::zeros([4], &device);
        layer.forward_weighted(hidden, weight, None, targets, Tensor::zeros([rows], &device)).unwrap_err().to_string()
    };
    assert_eq!(
        message(2, 4),
        "the number of classes of the weight is 3, and the number of class weights is 2; expected the same"
    );
    assert_eq!(message(3, 5), "the number of hidden rows is 4, and the number of row weights is 5; expected the same");
}
