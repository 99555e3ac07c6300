//! Composed attention compared with the kernels of the Flex device.

use std::sync::Arc;

use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{BoolStore, Bytes, DType, Shape};

use super::hidden::{Block, dropped};
use super::{Call, grouped_backward, grouped_forward, packed_backward, packed_forward};
use crate::attention::flex;
use crate::attention::terms::{Settings, Terms};
use crate::composed::tests::{DTYPES, assert_close, assert_independent, numbers};
use kiln_operations::cpu::stored::{from_f32, to_f32};

fn terms(heads: usize, causal: bool) -> Terms<Flex> {
    let settings =
        Settings { heads, causal, window: None, key_lengths: None, scale: 0.3, dropout: 0.0, first_sample: 0 };
    Terms { masked: None, seed: None, settings }
}

#[test]
fn packed_as_the_kernels() {
    for dtype in DTYPES {
        for (samples, time, heads, depth) in [(0, 3, 1, 2), (1, 1, 1, 1), (3, 13, 3, 5), (1, 130, 2, 8)] {
            for causal in [false, true] {
                let (what, terms) = (format!("{dtype:?} {time} {causal}"), terms(heads, causal));
                let qkv = numbers([samples, time, 3 * heads * depth], 1, 2.0, dtype);
                let gradient = numbers([samples, time, heads * depth], 2, 1.0, dtype);
                let kernel = flex::packed_forward(&qkv, &terms);
                let composed = packed_forward::<Flex>(&qkv, &terms);
                for (composed, kernel) in composed.iter().zip(&kernel) {
                    assert_close(composed, kernel, &what);
                }
                let [output, log_sums] = kernel;
                let saved = [qkv, output, log_sums];
                let kernel = flex::packed_backward(&saved, &gradient, &terms);
                assert_close(&packed_backward::<Flex>(&saved, &gradient, &terms), &kernel, &what);
            }
        }
    }
}

/// A mask that hides every third pair, and all pairs of the second query.
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
            for (causal, lengths, masked, window) in [
                (true, false, false, None),
                (false, true, false, None),
                (true, true, true, None),
                (true, false, false, Some(3)),
                (true, true, true, Some(5)),
            ] {
                let what = format!("{dtype:?} {time} {causal} {lengths} {masked} {window:?}");
                let mut terms = terms(4, causal);
                terms.settings.window = window;
                terms.settings.key_lengths = lengths.then(|| Arc::from([0, keys, 3]));
                if masked {
                    terms.masked = Some(pairs(time, keys));
                }
                let inputs = [numbers([3, 4, time, 5], 1, 2.0, dtype)]
                    .into_iter()
                    .chain([2, 3].map(|seed| numbers([3, 2, keys, 5], seed, 2.0, dtype)));
                let inputs: [FlexTensor; 3] = inputs.collect::<Vec<_>>().try_into().unwrap();
                let gradient = numbers([3, 4, time, 5], 4, 1.0, dtype);
                let kernels = flex::grouped_forward(&inputs, &terms);
                let composed = grouped_forward::<Flex>(&inputs, &terms);
                assert_close(&composed[0], &kernels[0], &what);
                for wanted in [[true; 3], [true, false, true], [false, true, false]] {
                    let (inputs, gradient) = (inputs.clone(), gradient.clone());
                    let composed = grouped_backward::<Flex>(&inputs, &composed, &gradient, &terms, wanted);
                    let kernels = flex::grouped_backward(&inputs, &kernels, &gradient, &terms, wanted);
                    for ((composed, kernel), wanted) in composed.iter().zip(&kernels).zip(wanted) {
                        assert_eq!([composed.is_some(), kernel.is_some()], [wanted; 2]);
                        if let (Some(composed), Some(kernel)) = (composed, kernel) {
                            assert_close(composed, kernel, &what);
                        }
                    }
                }
            }
        }
    }
}

/// Terms with dropout.
fn dropping(heads: usize, causal: bool, rate: f64) -> Terms<Flex> {
    let seed = FlexTensor::new(Bytes::from_elems(vec![77i64 << 31]), Layout::contiguous(Shape::new([1])), DType::I64);
    let mut terms = terms(heads, causal);
    terms.settings.dropout = rate;
    terms.seed = Some(seed);
    terms
}

/// The weights that are kept, as 1 or 0, `[samples, heads, time, keys]`. They are read from equal scores and values that are rows of the
/// identity.
fn kept([samples, kv_heads, time, keys]: [usize; 4], terms: &Terms<Flex>) -> Vec<f32> {
    let (heads, rate) = (terms.settings.heads, terms.settings.dropout as f32);
    let filled = |shape: [usize; 4], value: &dyn Fn(usize) -> f32| {
        from_f32((0..shape.iter().product()).map(value).collect(), Shape::new(shape), DType::F32)
    };
    let identity = |index: usize| if index / keys % keys == index % keys { 1.0 } else { 0.0 };
    let queries = filled([samples, heads, time, keys], &|_| 0.0);
    let inputs = [
        queries,
        filled([samples, kv_heads, keys, keys], &|_| 0.0),
        filled([samples, kv_heads, keys, keys], &identity),
    ];
    let [output, _] = grouped_forward::<Flex>(&inputs, terms);
    to_f32(&output.to_contiguous()).iter().map(|weight| (weight * keys as f32 * (1.0 - rate)).round()).collect()
}

#[test]
fn dropout_is_independent_for_samples_heads_queries_and_keys() {
    for rate in [0.25, 0.6] {
        let (time, keys) = (64, 48);
        let kept = kept([2, 2, time, keys], &dropping(4, false, rate));
        assert_independent(&kept, keys, 1.0 - rate, &[1, keys, time * keys, 4 * time * keys]);
    }
}

/// Output and gradients of grouped attention with dropout are those of the formula with its mask.
#[test]
fn grouped_dropout_has_the_outputs_and_gradients_of_its_mask() {
    let (samples, heads, kv_heads, depth, rate) = (3, 4, 2, 5, 0.3);
    for (time, keys, causal) in [(13, 7, false), (40, 30, false), (30, 40, true)] {
        let (what, terms) = (format!("{time} {keys} {causal}"), dropping(heads, causal, rate));
        // Causal terms hide some weights. It does not matter whether these are kept.
        let kept = kept([samples, kv_heads, time, keys], &dropping(heads, false, rate));
        let inputs = [
            ([samples, heads, time, depth], 1),
            ([samples, kv_heads, keys, depth], 2),
            ([samples, kv_heads, keys, depth], 3),
        ]
        .map(|(shape, seed)| numbers(shape, seed, 2.0, DType::F32));
        let gradient = numbers([samples, heads, time, depth], 4, 1.0, DType::F32);
        let [q, k, v] = inputs.each_ref().map(to_f32);
        let of_output = to_f32(&gradient);
        let [mut output, mut of_q, mut of_k, mut of_v] =
            [vec![0.0; q.len()], vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]];
        for head in 0..samples * heads {
            let of_keys = head * kv_heads / heads * keys;
            for query in head * time..(head + 1) * time {
                let row = |values: &[f32], row: usize| values[row * depth..][..depth].to_vec();
                let dot =
                    |left: &[f32], right: &[f32]| left.iter().zip(right).map(|(left, right)| left * right).sum::<f32>();
                let add = |sum: &mut [f32], row: usize, factor: f32, values: &[f32]| {
                    sum[row * depth..].iter_mut().zip(values).for_each(|(sum, value)| *sum += factor * value);
                };
                let seen = if causal { (query % time + 1 + keys).saturating_sub(time).min(keys) } else { keys };
                let powers: Vec<f32> =
                    (0..seen).map(|key| (0.3 * dot(&row(&q, query), &row(&k, of_keys + key))).exp()).collect();
                let sum: f32 = powers.iter().sum();
                let mask = |key: usize| kept[query * keys + key] / (1.0 - rate) as f32;
                let weights: Vec<f32> = powers.iter().map(|power| power / sum).collect();
                let of_weights = |key: usize| mask(key) * dot(&row(&of_output, query), &row(&v, of_keys + key));
                let mean: f32 = (0..seen).map(|key| weights[key] * of_weights(key)).sum();
                for (key, weight) in weights.iter().enumerate() {
                    let change = 0.3 * weight * (of_weights(key) - mean);
                    add(&mut output, query, weight * mask(key), &row(&v, of_keys + key));
                    add(&mut of_v, of_keys + key, weight * mask(key), &row(&of_output, query));
                    add(&mut of_q, query, change, &row(&k, of_keys + key));
                    add(&mut of_k, of_keys + key, change, &row(&q, query));
                }
            }
        }
        let composed = grouped_forward::<Flex>(&inputs, &terms);
        let gradients = grouped_backward::<Flex>(&inputs, &composed, &gradient, &terms, [true; 3]);
        assert_close(&composed[0], &from_f32(output, inputs[0].shape(), DType::F32), &what);
        for ((gradient, expected), input) in gradients.iter().zip([of_q, of_k, of_v]).zip(&inputs) {
            assert_close(gradient.as_ref().unwrap(), &from_f32(expected, input.shape(), DType::F32), &what);
        }
    }
}

/// Without masks and with equal scores, each output is the mean over the keys of the weights that are not dropped. The backward pass
/// drops the same weights.
#[test]
fn dropout_drops_its_rate_and_the_same_in_both_passes() {
    let (samples, heads, time) = (2, 2, 64);
    let terms = dropping(heads, false, 0.25);
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

    // A block in the middle drops the same weights there as the whole call.
    let call = Call::<Flex>::packed(&gradient, &terms);
    let bits = |queries: std::ops::Range<usize>| {
        let block = Block { samples: 1..2, queries, keys: 0..time };
        let dropped = dropped::<Flex>(&block, call.sizes, &terms).unwrap();
        dropped.to_contiguous().bytes().to_vec()
    };
    let (all, part) = (bits(0..time), bits(10..20));
    assert_eq!(part[..10 * time], all[10 * time..20 * time]);
}
