//! An embedding and a loss whose weight is in memory some rows at a time have the bits of those with the weight in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use burn::module::{Param, ParamId};
use burn::nn::Embedding;
use burn::tensor::{DType, Device, Distribution, Int, Tensor, TensorData};
use kiln_layers::{Error, LinearCrossEntropy, Reduction, RowWeight, embedding, embedding_by_rows};
use kiln_operations::{RowParts, RunningSums, read_parameter};

/// A matrix in host memory.
#[derive(Debug)]
struct Memory {
    values: Vec<f32>,
    shape: [usize; 2],
    rows: usize,
    gradient: Mutex<Vec<f32>>,
    /// The parts that were read.
    read: Mutex<Vec<usize>>,
    uses: Mutex<usize>,
    /// The sums of parts that rows are added to in their order, and their factor.
    sums: Mutex<BTreeMap<usize, TensorData>>,
    factor: Mutex<f32>,
}

impl RowParts for Memory {
    fn shape(&self) -> [usize; 2] {
        self.shape
    }

    fn rows_of_part(&self) -> usize {
        self.rows
    }

    fn read(&self, part: usize) -> TensorData {
        self.read.lock().unwrap().push(part);
        let (rows, width) = (self.rows(part), self.shape[1]);
        let values = self.values[rows.start * width..rows.end * width].to_vec();
        TensorData::new(values, [rows.len(), width])
    }

    fn begin_use(&self) {
        *self.uses.lock().unwrap() += 1;
    }

    fn add_gradient(&self, part: usize, gradient: TensorData) {
        assert_eq!(gradient.shape().as_slice(), [self.rows(part).len(), self.shape[1]]);
        let mut all = self.gradient.lock().unwrap();
        let first = self.rows(part).start * self.shape[1];
        let values = gradient.as_slice::<f32>().unwrap();
        all[first..first + values.len()].iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        if part + 1 == self.count() {
            *self.uses.lock().unwrap() -= 1;
        }
    }

    fn take_sum(&self, part: usize) -> Option<TensorData> {
        self.sums.lock().unwrap().remove(&part)
    }

    fn put_sum(&self, part: usize, sum: TensorData, factor: f32) {
        assert_eq!(sum.shape().as_slice(), [self.rows(part).len(), self.shape[1]]);
        assert!(self.sums.lock().unwrap().insert(part, sum).is_none(), "part {part} was not taken out");
        *self.factor.lock().unwrap() = factor;
        if part + 1 == self.count() {
            *self.uses.lock().unwrap() -= 1;
        }
    }
}

fn device() -> Device {
    Device::flex().autodiff()
}

fn random<const D: usize>(shape: [usize; D], dtype: DType) -> Tensor<D> {
    Tensor::<D>::random(shape, Distribution::Normal(0.0, 1.0), &Device::flex()).cast(dtype)
}

/// A weight in f32, and the same in parts of `rows` rows behind a parameter without values.
fn weight([classes, width]: [usize; 2], rows: usize) -> (Tensor<2>, Arc<Memory>, Param<Tensor<2>>) {
    let values = random([classes, width], DType::F32);
    let all = values.to_data().try_to_vec::<f32>().unwrap();
    let none = || Mutex::new(vec![]);
    let gradient = Mutex::new(vec![0.0; all.len()]);
    let (uses, sums, factor) = (Mutex::new(0), Mutex::default(), Mutex::new(1.0));
    let parts = Memory { values: all, shape: [classes, width], rows, gradient, read: none(), uses, sums, factor };
    let hollow = Tensor::<2>::full([1, 1], f32::NAN, &Device::flex()).expand::<2, _>([classes, width]);
    let parameter = Param::initialized(ParamId::new(), hollow.autodiff().require_grad());
    (values, Arc::new(Memory { read: none(), ..parts }), parameter)
}

fn bits<const D: usize>(tensor: Tensor<D>) -> Vec<u32> {
    tensor.inner().cast(DType::F32).to_data().try_to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

fn gradient_bits(parts: &Memory) -> Vec<u32> {
    parts.gradient.lock().unwrap().iter().map(|value| value.to_bits()).collect()
}

#[test]
fn a_loss_by_rows_has_the_bits_of_one_in_memory() {
    let losses = [
        LinearCrossEntropy::new(),
        LinearCrossEntropy::new().with_ignore_index(3).with_reduction(Reduction::Sum),
        LinearCrossEntropy::new().with_label_smoothing(0.1),
    ];
    // Fewer classes than a block, several blocks, parts that are larger than a block and parts that are smaller.
    for (shape, rows) in [([60, 8], 16), ([2080, 640], 1024), ([5000, 4], 512), ([9000, 4], 4096), ([2049, 3], 2048)] {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            for (loss, samples) in losses.iter().zip([300, 700, 1]) {
                let (values, parts, parameter) = weight(shape, rows);
                let hidden = random([samples, shape[1]], dtype);
                let targets = (0..samples as i64).map(|row| row * 37 % (shape[0] as i64 + 1)).collect::<Vec<_>>();
                let targets = Tensor::<1, Int>::from_data(TensorData::new(targets, [samples]), &device());
                let weights = random([shape[0]], DType::F32).abs();
                let loss = if samples == 1 { loss.clone().with_class_weights(weights) } else { loss.clone() };

                let given = hidden.clone().autodiff().require_grad();
                let whole = values.autodiff().require_grad();
                let expected =
                    loss.forward(given.clone(), whole.clone().cast(dtype).transpose(), None, targets.clone());
                let expected = expected.unwrap();
                let gradients = (expected.clone() * 3.0).backward();

                let other = hidden.autodiff().require_grad();
                let found = loss.forward_by_rows(other.clone(), &RowWeight::new(&parameter, parts.clone()), targets);
                let found = found.unwrap();
                let others = (found.clone() * 3.0).backward();
                let name = format!("{shape:?} in {rows} rows, {dtype:?}, {samples} samples");
                assert_eq!(bits(found), bits(expected), "{name}");
                assert_eq!(bits(other.grad(&others).unwrap()), bits(given.grad(&gradients).unwrap()), "{name}");
                assert!(parameter.base().grad(&others).is_none(), "{name}");
                let expected = bits(whole.grad(&gradients).unwrap() + 0.0);
                assert_eq!(gradient_bits(&parts), expected, "{name}");
                let once: Vec<usize> = (0..parts.count()).collect();
                assert_eq!(*parts.read.lock().unwrap(), [once.clone(), once].concat(), "{name}");
                assert_eq!(*parts.uses.lock().unwrap(), 0, "{name}");
            }
        }
    }
}

#[test]
fn an_embedding_by_rows_has_the_bits_of_one_in_memory() {
    let (values, parts, parameter) = weight([100, 6], 16);
    // Part 5 is not needed.
    let ids = (0..60).map(|at| [0, 5, 17, 5, 55, 99, 70, 31, 16, 16][at % 10] + (at as i64 / 50)).collect::<Vec<_>>();
    let ids = ids.into_iter().map(|id| if id < 100 { id } else { 0 }).collect::<Vec<_>>();
    let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [2, 30]), &device());
    let upstream = random([2, 30, 6], DType::F32).autodiff();
    let layer = Embedding { weight: Param::initialized(ParamId::new(), values.autodiff().require_grad()) };
    let expected = embedding(&layer, ids.clone()).unwrap();
    let gradients = (expected.clone() * upstream.clone()).sum().backward();

    let weight = RowWeight::new(&parameter, parts.clone());
    let found = embedding_by_rows(&weight, ids).unwrap();
    let _ = (found.clone() * upstream).sum().backward();
    assert_eq!(bits(found), bits(expected));
    assert_eq!(gradient_bits(&parts), bits(layer.weight.base().grad(&gradients).unwrap() + 0.0));
    assert!(!parts.read.lock().unwrap().contains(&5));
    assert_eq!(*parts.uses.lock().unwrap(), 0);
}

#[test]
fn what_has_no_single_loss_is_refused() {
    let (_, parts, parameter) = weight([20, 4], 8);
    let weight = RowWeight::new(&parameter, parts);
    let targets = || Tensor::<1, Int>::zeros([3], &device());
    let none = LinearCrossEntropy::new().with_reduction(Reduction::None);
    let error = none.forward_by_rows(random([3, 4], DType::F32).autodiff(), &weight, targets()).unwrap_err();
    assert!(matches!(error, Error::InvalidSetting { .. }), "{error}");
    let error = LinearCrossEntropy::new().forward_by_rows(random([3, 5], DType::F32).autodiff(), &weight, targets());
    assert_eq!(
        error.unwrap_err().to_string(),
        "the width of the hidden rows is 5, and the width of the weight is 4; expected the same"
    );
}

/// The bits of the sum of all parts.
fn sum_bits(parts: &Memory) -> Vec<u32> {
    let (sums, factor) = (parts.sums.lock().unwrap(), *parts.factor.lock().unwrap());
    sums.values().flat_map(|sum| sum.try_to_vec::<f32>().unwrap()).map(|sum| (sum * factor).to_bits()).collect()
}

#[test]
fn rows_are_added_in_their_order_as_in_memory_in_any_cut() {
    const SAMPLES: usize = 70;
    for (shape, rows) in [([60, 8], 16), ([2080, 320], 1024), ([5000, 4], 512), ([9000, 4], 4096)] {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let (values, parts, parameter) = weight(shape, rows);
            let layer = Embedding { weight: Param::initialized(ParamId::new(), values.autodiff().require_grad()) };
            let (hidden, upstream) = (random([SAMPLES, shape[1]], dtype), random([SAMPLES, 1, shape[1]], dtype));
            let ids = (0..SAMPLES as i64).map(|row| row * 37 % shape[0] as i64).collect::<Vec<_>>();
            let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [SAMPLES]), &device());
            let sum_of = |is_loss: bool, by_rows: bool, cuts: &[usize]| {
                let (sums, mut first) = (RunningSums::default(), 0);
                for count in cuts {
                    let hidden = hidden.clone().narrow(0, first, *count).autodiff().require_grad();
                    let upstream = upstream.clone().narrow(0, first, *count).autodiff();
                    let ids = ids.clone().narrow(0, first, *count);
                    let (loss, by_row) = (LinearCrossEntropy::new(), RowWeight::new(&parameter, parts.clone()));
                    let read = || read_parameter(layer.weight.val(), dtype);
                    sums.pass(&layer, first).during(|| {
                        let mean = match (is_loss, by_rows) {
                            (true, true) => loss.forward_by_rows(hidden, &by_row, ids).unwrap(),
                            (true, false) => loss.forward_by_class(hidden, read(), ids).unwrap(),
                            (false, true) => {
                                (embedding_by_rows(&by_row, ids.reshape([*count, 1])).unwrap().cast(dtype) * upstream)
                                    .sum()
                            }
                            (false, false) => {
                                (embedding(&layer, ids.reshape([*count, 1])).unwrap().cast(dtype) * upstream).sum()
                            }
                        };
                        let weight = if is_loss { *count as f32 / 64.0 } else { 1.0 };
                        let _ = (mean.cast(DType::F32) * weight).backward();
                    });
                    first += count;
                }
                if !by_rows {
                    return bits(sums.finish(&layer).unwrap().get::<2>(layer.weight.id).unwrap().autodiff());
                }
                assert_eq!(*parts.uses.lock().unwrap(), 0);
                let sum = sum_bits(&parts);
                parts.sums.lock().unwrap().clear();
                sum
            };
            for is_loss in [true, false] {
                let expected = sum_of(is_loss, false, &[SAMPLES]);
                for cuts in [&[SAMPLES][..], &[1, 69], &[33, 17, 20]] {
                    let found = sum_of(is_loss, true, cuts);
                    assert!(found == expected, "{shape:?} in {rows} rows, {dtype:?}, {cuts:?}, loss: {is_loss}");
                }
            }
        }
    }
}
