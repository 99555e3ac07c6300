//! An update in burn's operations, for devices without a kernel of this crate. It goes slice by slice, so that temporary tensors are
//! small.
//!
//! Temporary memory: at most about 64 bytes for each value of a slice, counted and not measured. Parameter, codes and scales are written
//! in place, slice by slice, if no other handle to them exists and the backend supports it.

use std::ops::Range;

use burn::tensor::{DType, Device, FloatDType, Int, IntDType, Tensor, TensorData};

#[cfg(all(test, feature = "flex"))]
use super::flex::update as fused_update;
use super::moment::QuantizedMoment;
#[cfg(test)]
use super::options::{AdamWRule, MomentumRule};
use super::rule::Rule;
use crate::blocks::{CodeBook, Noise};

/// Values of a slice: a multiple of the block size of every code book.
const SLICE: usize = 1 << 20;

/// The parameter and its moments after a step on the gradient, which is multiplied by a number.
pub(super) fn update<R: Rule<N>, const D: usize, const N: usize>(
    rule: R,
    parameter: Tensor<D>,
    gradient: (Tensor<D>, f32),
    moments: [QuantizedMoment; N],
    noise: Option<Noise>,
) -> (Tensor<D>, [QuantizedMoment; N]) {
    by_slices(rule, parameter, gradient, moments, noise, SLICE)
}

fn by_slices<R: Rule<N>, const D: usize, const N: usize>(
    rule: R,
    parameter: Tensor<D>,
    (gradient, scale): (Tensor<D>, f32),
    mut moments: [QuantizedMoment; N],
    noise: Option<Noise>,
    slice: usize,
) -> (Tensor<D>, [QuantizedMoment; N]) {
    let (dims, dtype, device) = (parameter.dims(), parameter.dtype(), parameter.device());
    let count = dims.iter().product();
    let mut parameter = parameter.reshape([count]);
    let gradient = gradient.reshape([count]);
    let block = moments.first().map_or(slice, |moment| moment.book.block());
    let books = moments.each_ref().map(|moment| Book::new(moment.book, &device));
    // Whole blocks come first. A shorter block at the end is a slice of its own.
    let whole = count - count % block;
    let begins = (0..whole).step_by(slice).chain((whole < count).then_some(whole));
    for begin in begins {
        let end = if begin < whole { (begin + slice).min(whole) } else { count };
        let row = block.min(end - begin);
        let rows = [(end - begin) / row, row];
        let read = |tensor: &Tensor<1>| tensor.clone().slice(begin..end).cast(FloatDType::F32).reshape(rows);
        let parts = moments.each_ref().map(|moment| Part::of(moment, begin..end));
        let mut decoded = books.iter().zip(&parts).map(|(book, part)| book.decode(part, rows));
        let values = std::array::from_fn(|_| decoded.next().unwrap_or_else(|| unreachable!("one book a moment")));
        let scaled = match read(&gradient) {
            gradient if scale == 1.0 => gradient,
            gradient => gradient * scale,
        };
        let (next, values) = rule.compose(read(&parameter), scaled, values);
        parameter = parameter.slice_assign(begin..end, next.reshape([end - begin]).cast(float_dtype(dtype)));
        let mut values = values.into_iter().zip(&books).zip([noise, noise.map(Noise::other)]);
        moments = moments.map(|moment| match values.next() {
            Some(((values, book), noise)) => {
                let noise = noise.map(|noise| noise_of(noise, begin, rows, &device));
                book.encode(values, noise).write(moment, begin..end)
            }
            None => moment,
        });
    }
    (parameter.reshape(dims), moments)
}

fn float_dtype(dtype: DType) -> FloatDType {
    match dtype {
        DType::F16 => FloatDType::F16,
        DType::BF16 => FloatDType::BF16,
        _ => FloatDType::F32,
    }
}

fn noise_of(noise: Noise, begin: usize, [rows, row]: [usize; 2], device: &Device) -> Tensor<2> {
    let numbers: Vec<f32> = (begin..begin + rows * row).map(|index| noise.at(index as u32)).collect();
    Tensor::from_data(TensorData::new(numbers, [rows, row]), (device, DType::F32))
}

/// Codes of whole blocks, one code in each element, and their scales.
struct Part {
    codes: Tensor<1, Int>,
    scales: Tensor<1>,
}

impl Part {
    fn of(moment: &QuantizedMoment, range: Range<usize>) -> Self {
        let (book, count) = (moment.book, range.len());
        let bytes = book.code_bytes(range.start)..book.code_bytes(range.end);
        let codes = moment.codes.clone().slice(bytes.clone()).cast(IntDType::I32);
        let codes = match book.bits() {
            4 => {
                let (first, second) = (codes.clone().bitwise_right_shift_scalar(4), codes.bitwise_and_scalar(15));
                let both: Tensor<2, Int> = Tensor::stack(vec![first, second], 1);
                both.reshape([2 * bytes.len()]).slice(0..count)
            }
            _ => codes,
        };
        Self { codes, scales: moment.scales.clone().slice(scales_of(book, &range)) }
    }

    /// Puts the part into a moment.
    fn write(self, moment: QuantizedMoment, range: Range<usize>) -> QuantizedMoment {
        let (book, count) = (moment.book, range.len());
        let bytes = book.code_bytes(range.start)..book.code_bytes(range.end);
        let codes = match book.bits() {
            4 => {
                let codes = match count % 2 {
                    0 => self.codes,
                    _ => {
                        let zero = Tensor::zeros([1], (&self.codes.device(), DType::I32));
                        Tensor::cat(vec![self.codes, zero], 0)
                    }
                };
                let pairs = codes.reshape([bytes.len(), 2]);
                let half = |index| pairs.clone().slice([0..bytes.len(), index..index + 1]).reshape([bytes.len()]);
                half(0).mul_scalar(16) + half(1)
            }
            _ => self.codes,
        };
        QuantizedMoment {
            book,
            codes: moment.codes.slice_assign(bytes, codes.cast(IntDType::U8)),
            scales: moment.scales.slice_assign(scales_of(book, &range), self.scales),
        }
    }
}

fn scales_of(book: CodeBook, range: &Range<usize>) -> Range<usize> {
    range.start / book.block()..range.end.div_ceil(book.block())
}

/// A code book on a device.
struct Book {
    book: CodeBook,
    entries: Tensor<1>,
    thresholds: Tensor<1>,
}

impl Book {
    fn new(book: CodeBook, device: &Device) -> Self {
        let numbers = |numbers: &[f32]| {
            Tensor::from_data(TensorData::new(numbers.to_vec(), [numbers.len()]), (device, DType::F32))
        };
        Self { book, entries: numbers(book.entries()), thresholds: numbers(&book.table().thresholds) }
    }

    fn decode(&self, part: &Part, rows: [usize; 2]) -> Tensor<2> {
        self.entries_of(part.codes.clone()).reshape(rows) * part.scales.clone().reshape([rows[0], 1])
    }

    fn entries_of(&self, codes: Tensor<1, Int>) -> Tensor<1> {
        self.entries.clone().select(0, codes)
    }

    fn encode(&self, values: Tensor<2>, noise: Option<Tensor<2>>) -> Part {
        let count = values.shape().num_elements();
        // The sum is 0, or NaN if a value is not finite: `max_dim` may pass over NaN.
        let scales = values.clone().abs().max_dim(1) + values.clone().mul_scalar(0.0).sum_dim(1);
        let is_zero = scales.clone().equal_scalar(0.0);
        let is_positive = values.clone().greater_scalar(0.0).reshape([count]);
        let (part, codes) = match self.book {
            CodeBook::Root => {
                let factor = scales.full_like(255.0) / scales.clone().sqrt();
                let places = values.sqrt() * factor.mask_fill(is_zero, 0.0);
                let part = (places.clone() * places.clone()).mul_scalar(1.0f32 / 65025.0);
                let codes = places.add_scalar(0.5).floor().clamp(0.0, 255.0);
                (part, codes.cast(IntDType::I32).reshape([count]))
            }
            _ => {
                let part = values / scales.clone().mask_fill(is_zero, 1.0);
                (part.clone(), self.search(part.reshape([count])))
            }
        };
        let least = i64::from(self.book.table().least.max(u8::from(self.book == CodeBook::Root)));
        let at_least = |codes: Tensor<1, Int>| {
            let low = codes.clone().lower_scalar(least).bool_and(is_positive.clone());
            if least == 0 { codes } else { codes.mask_fill(low, least) }
        };
        let codes = at_least(codes);
        let codes = match noise {
            None => codes,
            Some(noise) => {
                let (part, noise) = (part.reshape([count]), noise.reshape([count]));
                let entries = self.entries_of(codes.clone());
                let up = part.clone().greater_equal(entries.clone());
                let most = self.book.entries().len() as i64 - 1;
                let (above, below) = (codes.clone().add_scalar(1), codes.clone().sub_scalar(1));
                let other = at_least(below.mask_where(up, above).clamp(0, most));
                let share = (part - entries.clone()) / (self.entries_of(other.clone()) - entries);
                codes.mask_where(noise.lower(share), other)
            }
        };
        Part { codes, scales: scales.reshape([-1]) }
    }

    /// The number of thresholds that are not above each value, by a binary search.
    fn search(&self, values: Tensor<1>) -> Tensor<1, Int> {
        let mut codes = Tensor::<1, Int>::zeros([values.dims()[0]], (&values.device(), DType::I32));
        for bit in (0..self.book.bits()).rev() {
            let half = 1i64 << bit;
            let threshold = self.thresholds.clone().select(0, codes.clone().add_scalar(half - 1));
            let is_above = values.clone().greater_equal(threshold);
            codes = codes.clone().mask_where(is_above, codes.add_scalar(half));
        }
        codes
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::backend::Flex;

    use super::*;
    use crate::fused::Betas;
    use crate::place::{float, int};

    /// Numbers that look random: of both signs, and of all sizes from 1 down to 2^-20.
    fn numbers(count: usize, seed: u64) -> Vec<f32> {
        let noise = Noise::new(seed, 0);
        let number = |index| (2.0 * noise.at(index) - 1.0) * 2f32.powi(-((noise.other().at(index) * 20.0) as i32));
        (0..count as u32).map(number).collect()
    }

    fn tensor<const D: usize>(shape: [usize; D], seed: u64, dtype: DType) -> Tensor<D> {
        let data = TensorData::new(numbers(shape.iter().product(), seed), shape);
        Tensor::<D>::from_data(data, (&Device::flex(), DType::F32)).cast(float_dtype(dtype))
    }

    /// Updates by both implementations over three steps. Parameters, codes and scales must have the same bits after each.
    fn same<R: Rule<N>, const D: usize, const N: usize>(
        name: &str,
        rule: R,
        books: [CodeBook; N],
        shape: [usize; D],
        dtype: DType,
        noise: Option<Noise>,
    ) {
        let start = tensor(shape, 1, dtype);
        let zeros = || books.map(|book| QuantizedMoment::zeros(book, &start));
        let (mut left, mut right) = ((start.clone(), zeros()), (start.clone(), zeros()));
        for (step, scale) in [(0, 1.0), (1, 0.3), (2, 1.0)] {
            let gradient = tensor(shape, 2 + step, dtype) * [1.0, 1e-12, 1e3][step as usize];
            left = by_slices(rule, left.0, (gradient.clone(), scale), left.1, noise, 512);
            let codes =
                right.1.map(|moment| (moment.book, int::<Flex, 1>(moment.codes), float::<Flex, 1>(moment.scales)));
            let gradient = float::<Flex, D>(gradient);
            let parameter = float::<Flex, D>(right.0);
            let (parameter, codes) = fused_update(rule, parameter, (&gradient, scale), codes, noise);
            right = (
                Tensor::from_primitive::<Flex>(parameter),
                codes.map(|(book, codes, scales)| QuantizedMoment {
                    book,
                    codes: Tensor::from_primitive::<Flex>(codes),
                    scales: Tensor::from_primitive::<Flex>(scales),
                }),
            );
            let bits = |data: TensorData| data.as_bytes().to_vec();
            let what = format!("{name} {books:?} {shape:?} {dtype:?}, step {step}");
            assert!(bits(left.0.to_data()) == bits(right.0.to_data()), "parameter of {what}");
            for (left, right) in left.1.iter().zip(&right.1) {
                assert!(bits(left.scales.to_data()) == bits(right.scales.to_data()), "scales of {what}");
                assert!(bits(left.codes.to_data()) == bits(right.codes.to_data()), "codes of {what}");
            }
        }
    }

    #[test]
    fn operations_and_kernel_have_the_same_bits() {
        let betas = Betas { first: 0.9, second: 0.95 };
        let adamw = AdamWRule { betas, epsilon: 1e-8, keep: 0.999, rate: 3e-3, root: 1.7 };
        let momentum = MomentumRule { penalty: Some(1e-2), factor: 0.9, share: 0.7, nesterov: true, rate: 0.1 };
        for noise in [None, Some(Noise::new(3, 4))] {
            for books in [
                [CodeBook::Dynamic, CodeBook::Root],
                [CodeBook::Dynamic, CodeBook::DynamicUnsigned],
                [CodeBook::Dynamic4, CodeBook::Linear4],
            ] {
                same("AdamW", adamw, books, [1], DType::F32, noise);
                same("AdamW", adamw, books, [7, 19, 11], DType::F32, noise);
                same("AdamW", adamw, books, [4, 256], DType::F32, noise);
                same("AdamW", adamw, books, [41, 33], DType::BF16, noise);
                same("AdamW", adamw, books, [300], DType::F16, noise);
            }
            same("SGD", momentum, [CodeBook::Dynamic], [1031], DType::F32, noise);
            let plain = MomentumRule { penalty: None, nesterov: false, ..momentum };
            same("SGD", plain, [CodeBook::Dynamic], [16, 16, 5], DType::F32, noise);
        }
    }
}
