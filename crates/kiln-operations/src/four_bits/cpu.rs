//! Values of codes on burn's CPU device: blocks are tasks.

use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Shape};
use rayon::prelude::*;

use super::layout::{BLOCK, GROUP, LEVELS, OF_WORD, OFFSET, SHIFTS};
use crate::cpu::stored::{Stored, bf16, f16, tensor};

/// Blocks of a task.
const TASK: usize = 64;

pub(super) fn widened(tensors: [FlexTensor; 3], shape: [usize; 2], dtype: DType) -> FlexTensor {
    fn run<E: Stored>([levels, codes, scales]: [FlexTensor; 3], shape: [usize; 2]) -> FlexTensor {
        let (levels, codes, scales) = (levels.storage::<f32>(), codes.storage::<i32>(), scales.storage::<i32>());
        let (values, groups) = levels.split_at(OFFSET + 1);
        let mut made = bytemuck::zeroed_vec::<E>(shape[0] * shape[1]);
        made.par_chunks_mut(TASK * BLOCK).enumerate().for_each_init(Vec::new, |kept, (task, made)| {
            E::written(made, kept, |made| {
                for (index, made) in made.chunks_mut(BLOCK).enumerate() {
                    let block = task * TASK + index;
                    let code = scales[block / 4] >> (8 * (block % 4)) & 255;
                    let scale = values[LEVELS + code as usize] * groups[block / GROUP] + values[OFFSET];
                    let words = &codes[block * (BLOCK / OF_WORD)..];
                    block_values(made, words, std::array::from_fn(|level| values[level] * scale));
                }
            });
        });
        tensor(made, Shape::new(shape))
    }
    if shape.contains(&0) {
        return crate::cpu::stored::zeros(Shape::new(shape), dtype);
    }
    let tensors = tensors.map(|tensor| tensor.to_contiguous());
    match dtype {
        DType::F32 => run::<f32>(tensors, shape),
        DType::F16 => run::<f16>(tensors, shape),
        DType::BF16 => run::<bf16>(tensors, shape),
        other => unreachable!("{other:?} is not a dtype of weights"),
    }
}

fn block_values(values: &mut [f32], words: &[i32], levels: [f32; LEVELS]) {
    for (values, word) in values.chunks_mut(OF_WORD).zip(words) {
        for (value, shift) in values.iter_mut().zip(SHIFTS) {
            *value = levels[(word >> shift & 15) as usize];
        }
    }
}
