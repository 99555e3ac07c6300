//! Stochastic rounding on the CPU: one pass, in tasks of a fixed size.
//!
//! Scratch memory: none, besides a copy of values that are not contiguous. Work for each value: 6 products and about 40 integer
//! operations.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use half::bf16;
use rayon::prelude::*;

use super::noise::Key;
use super::round::rounded;
use crate::cpu::tensor;
use crate::simd::simd;

/// Values of a task.
const TASK: usize = 16 * 1024;

/// Values in bf16, rounded with the noise of the elements from `first` on.
pub(super) fn round(values: &FlexTensor, first: usize, key: Key) -> FlexTensor {
    let values = values.to_contiguous();
    let from: &[f32] = values.storage();
    let mut to = vec![bf16::ZERO; from.len()];
    let run = |(task, (to, from)): (usize, (&mut [bf16], &[f32]))| slice(to, from, (first + task * TASK) as u32, key);
    match from.len() <= TASK {
        true => run((0, (&mut to, from))),
        false => to.par_chunks_mut(TASK).zip(from.par_chunks(TASK)).enumerate().for_each(run),
    }
    tensor(to, values.shape())
}

simd! { fn slice(to: &mut [bf16], from: &[f32], first: u32, key: Key) {
    for (offset, (to, from)) in to.iter_mut().zip(from).enumerate() {
        *to = bf16::from_bits(rounded(*from, key.noise(first.wrapping_add(offset as u32))));
    }
}}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Tensor, TensorData};

    use super::*;

    #[test]
    fn a_tensor_is_rounded_element_by_element_whatever_its_tasks_are() {
        let values: Vec<f32> =
            (0..3 * TASK + 5).map(|i| (i as f32 * 0.37).sin() * 10_f32.powi(i as i32 % 60 - 30)).collect();
        let key = Key::new(3, 4, 5);
        let first = u32::MAX as usize - 1000; // the index goes on from 0
        let expected: Vec<u16> =
            values.iter().enumerate().map(|(i, value)| rounded(*value, key.noise((first + i) as u32))).collect();
        let tensor = Tensor::<1>::from_data(TensorData::from(values.as_slice()), &Device::flex());
        let got = super::super::round::round(tensor, first, key).into_data();
        let got: Vec<u16> = got.as_slice::<bf16>().unwrap().iter().map(|value| value.to_bits()).collect();
        assert!(got == expected);
    }
}
