//! Composed attention beside the kernels of the Flex device.

use std::sync::Arc;

use burn::backend::Flex;
use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::{BoolStore, Bytes, DType, Shape};

use super::hidden::{Block, dropped};
use super::{Call, grouped_backward, grouped_forward, packed_backward, packed_forward};
use crate::attention::graph::AttentionKernels;
use crate::attention::terms::Settings;
use crate::attention::terms::{Masked, Seed, Terms};
use crate::composed::tests::{DTYPES, assert_close, numbers};
use crate::cpu::stored::{from_f32, to_f32};

fn terms(heads: usize, causal: bool) -> Terms<Flex> {
    let settings = Settings { heads, causal, key_lengths: None, scale: 0.3, dropout: 0.0 };
    Terms { masked: Masked::None, seed: Seed::None, settings }
}

#[test]
fn packed_as_the_kernels() {
    for dtype in DTYPES {
        for (samples, time, heads, depth) in [(0, 3, 1, 2), (1, 1, 1, 1), (3, 13, 3, 5), (1, 130, 2, 8)] {
            for causal in [false, true] {
                let (what, terms) = (format!("{dtype:?} {time} {causal}"), terms(heads, causal));
                let qkv = numbers([samples, time, 3 * heads * depth], 1, 2.0, dtype);
                let gradient = numbers([samples, time, heads * depth], 2, 1.0, dtype);
                let kernel = Flex::packed_attention(qkv.clone(), &terms);
                let composed = packed_forward::<Flex>(&qkv, &terms);
                for (composed, kernel) in composed.iter().zip(&kernel) {
                    assert_close(composed, kernel, &what);
                }
                let [output, log_sums] = kernel;
                let saved = [qkv, output, log_sums];
                let kernel = Flex::packed_attention_backward(saved.clone(), gradient.clone(), &terms);
                assert_close(&packed_backward::<Flex>(&saved, &gradient, &terms), &kernel, &what);
            }
        }
    }
}

/// Every third pair is hidden, and all of the second query.
fn pairs(time: usize, keys: usize) -> FlexTensor {
    let hidden: Vec<bool> = (0..time * keys).map(|pair| pair % 3 == 1 || pair / keys == 1).collect();
    let layout = Layout::contiguous(Shape::new([1, 1, time, keys]));
    FlexTensor::new(Bytes::from_elems(hidden), layout, DType::Bool(BoolStore::Native))
}

#[test]
fn grouped_as_the_kernels() {
    for dtype in DTYPES {
        // Fewer keys than queries, and more.
        for (time, keys) in [(13, 7), (7, 40)] {
            for (causal, lengths, masked) in [(true, false, false), (false, true, false), (true, true, true)] {
                let (what, mut terms) = (format!("{dtype:?} {time} {causal} {lengths} {masked}"), terms(4, causal));
                terms.settings.key_lengths = lengths.then(|| Arc::from([0, keys, 3]));
                if masked {
                    terms.masked = Masked::Pairs(pairs(time, keys));
                }
                let inputs = [numbers([3, 4, time, 5], 1, 2.0, dtype)]
                    .into_iter()
                    .chain([2, 3].map(|seed| numbers([3, 2, keys, 5], seed, 2.0, dtype)));
                let inputs: [FlexTensor; 3] = inputs.collect::<Vec<_>>().try_into().unwrap();
                let gradient = numbers([3, 4, time, 5], 4, 1.0, dtype);
                let kernels = Flex::grouped_attention(inputs.clone(), &terms);
                let composed = grouped_forward::<Flex>(&inputs, &terms);
                assert_close(&composed[0], &kernels[0], &what);
                let wanted = [true, false, true];
                let kernels =
                    Flex::grouped_attention_backward(inputs.clone(), kernels, gradient.clone(), &terms, wanted);
                let composed = grouped_backward::<Flex>(&inputs, &composed, &gradient, &terms, wanted);
                for (composed, kernel) in composed.iter().zip(&kernels) {
                    assert_eq!(composed.is_some(), kernel.is_some());
                    if let (Some(composed), Some(kernel)) = (composed, kernel) {
                        assert_close(composed, kernel, &what);
                    }
                }
            }
        }
    }
}

/// Without masks and with equal scores, each output is the mean over the keys of what was not dropped; the backward pass drops the same.
#[test]
fn dropout_drops_its_rate_and_the_same_in_both_passes() {
    let (samples, heads, time) = (2, 2, 64);
    let seed = FlexTensor::new(Bytes::from_elems(vec![77i64 << 31]), Layout::contiguous(Shape::new([1])), DType::I64);
    let mut terms = terms(heads, false);
    terms.settings.dropout = 0.25;
    terms.seed = Seed::Number(seed);
    let ones = from_f32(vec![1.0; samples * time * heads], Shape::new([samples, time, heads]), DType::F32);
    // Queries are 0, keys and values 1.
    let row = |column: usize| if column < heads { 0.0 } else { 1.0 };
    let values = (0..samples * time * 3 * heads).map(|index| row(index % (3 * heads))).collect();
    let qkv = from_f32(values, Shape::new([samples, time, 3 * heads]), DType::F32);
    let [output, log_sums] = packed_forward::<Flex>(&qkv, &terms);
    let kept = to_f32(&output).iter().sum::<f32>() / (samples * time * heads) as f32;
    assert!((kept - 1.0).abs() < 0.02, "{kept}");
    let gradient = packed_backward::<Flex>(&[qkv, output.clone(), log_sums], &ones, &terms);
    let of_values: f32 = to_f32(&gradient).chunks(3 * heads).map(|row| row[2 * heads..].iter().sum::<f32>()).sum();
    assert!((of_values / to_f32(&output).iter().sum::<f32>() - 1.0).abs() < 1e-4, "{of_values}");

    // A block in the middle drops what the whole drops there.
    let call = Call::<Flex>::packed(&gradient, &terms);
    let bits = |queries: std::ops::Range<usize>| {
        let block = Block { samples: 1..2, queries, keys: time };
        let dropped = dropped::<Flex>(&block, call.sizes, &terms).unwrap();
        dropped.to_contiguous().bytes().to_vec()
    };
    let (all, part) = (bits(0..time), bits(10..20));
    assert_eq!(part[..10 * time], all[10 * time..20 * time]);
}
