//! bf16 to f32, and stochastic rounding back, on the CPU: one pass each, in tasks of a fixed size.
//!
//! Scratch memory: none, besides a copy of values that are not contiguous. Work of the rounding for each value: 6 products and about 40
//! integer operations.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use half::bf16;
use rayon::prelude::*;

use super::bits::rounded;
use super::noise::Key;
use kiln_operations::cpu::stored::tensor;
use kiln_operations::simd;

/// Values of a task.
const TASK: usize = 16 * 1024;

/// Values of bf16 in f32.
pub(super) fn widened(values: &FlexTensor) -> FlexTensor {
    let values = values.to_contiguous();
    let from: &[bf16] = values.storage();
    let mut to = vec![0.0_f32; from.len()];
    in_tasks(&mut to, from, |to, from, _| widen(to, from));
    tensor(to, values.shape())
}

/// Rounds values to bf16, with the noise of the elements from `first` on.
pub(super) fn round(values: &FlexTensor, first: usize, key: Key) -> FlexTensor {
    let values = values.to_contiguous();
    let from: &[f32] = values.storage();
    let mut to = vec![bf16::ZERO; from.len()];
    in_tasks(&mut to, from, |to, from, start| slice(to, from, (first + start) as u32, key));
    tensor(to, values.shape())
}

/// Runs tasks in parallel, with the first index of each.
fn in_tasks<A: Send, B: Sync>(to: &mut [A], from: &[B], run: impl Fn(&mut [A], &[B], usize) + Sync) {
    match from.len() <= TASK {
        true => run(to, from, 0),
        false => {
            let tasks = to.par_chunks_mut(TASK).zip(from.par_chunks(TASK)).enumerate();
            tasks.for_each(|(task, (to, from))| run(to, from, task * TASK));
        }
    }
}

simd! { fn widen(to: &mut [f32], from: &[bf16]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = f32::from_bits(u32::from(from.to_bits()) << 16);
    }
}}

simd! { fn slice(to: &mut [bf16], from: &[f32], first: u32, key: Key) {
    let mut index = first;
    for (to, from) in to.iter_mut().zip(from) {
        *to = bf16::from_bits(rounded(*from, key.noise(index)));
        index = index.wrapping_add(1);
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
