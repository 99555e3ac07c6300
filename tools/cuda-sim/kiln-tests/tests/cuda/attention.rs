//! Attention on CUDA with masks and dropout, compared with a calculation in f64: output and gradients, with and without tensor cores.

use burn::tensor::{Bool, DType, Device, Tensor, TensorData};
use kiln_layers::{AttentionOptions, Mask, attention};

use crate::layers::{mixed, numbers};
use crate::sim::{STRICT, dtypes, gpu, on_wgpu, with_cards};

const SEED: u64 = 0x1234_5678_9abc_def0;

#[derive(Clone, Copy, Debug)]
struct Case {
    heads: usize,
    kv_heads: usize,
    time: usize,
    keys: usize,
    depth: usize,
    causal: bool,
    window: Option<usize>,
    lengths: Option<[usize; 2]>,
    /// The shape of the boolean mask.
    masked: Option<[usize; 4]>,
    dropout: f64,
}

const SAMPLES: usize = 2;

/// Whether the boolean mask hides an element of its own.
fn hides(index: usize) -> bool {
    index.wrapping_mul(0x9E37_79B9) >> 7 & 3 == 0
}

impl Case {
    fn is_hidden(&self, sample: usize, head: usize, query: usize, key: usize) -> bool {
        let later = self.causal && key + self.time > query + self.keys;
        let passed = self.window.is_some_and(|window| key + self.time + window <= query + self.keys);
        let padding = self.lengths.is_some_and(|lengths| key >= lengths[sample]);
        let masked = self.masked.is_some_and(|shape| {
            let place = [sample, head, query, key].into_iter().zip(shape);
            hides(place.fold(0, |index, (at, length)| index * length + if length == 1 { 0 } else { at }))
        });
        later || passed || padding || masked
    }

    fn factor(&self, sample: usize, head: usize, query: usize, key: usize) -> f64 {
        let seed = mixed(mixed(SEED as u32) ^ (SEED >> 32) as u32);
        let of_head = mixed(((sample * self.heads + head) as u32).wrapping_add(seed));
        let word = mixed(mixed((query as u32).wrapping_add(of_head)) ^ mixed(key as u32 + 1));
        if f64::from(word) < (self.dropout * 2f64.powi(32)).floor() { 0.0 } else { 1.0 / (1.0 - self.dropout) }
    }

    fn options(&self, device: &Device) -> AttentionOptions {
        let causal = if self.causal { Mask::Causal } else { Mask::None };
        let mut options = AttentionOptions::from(self.window.map_or(causal, Mask::Window));
        if let Some(lengths) = self.lengths {
            options = options.with_key_lengths(lengths.to_vec());
        }
        if let Some(shape) = self.masked {
            let values: Vec<bool> = (0..shape.iter().product()).map(hides).collect();
            options = options.with_masked(Tensor::<4, Bool>::from_data(TensorData::new(values, shape), device));
        }
        if self.dropout > 0.0 { options.with_dropout(self.dropout, SEED) } else { options }
    }

    /// Output and gradients of queries, keys and values.
    fn expected(&self, [q, k, v, gradient]: [&[f64]; 4]) -> [Vec<f64>; 4] {
        let Self { heads, kv_heads, time, keys, depth, .. } = *self;
        let mut results = [vec![0.0; q.len()], vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; k.len()]];
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        for (sample, head, query) in
            (0..SAMPLES * heads * time).map(|at| (at / time / heads, at / time % heads, at % time))
        {
            let at =
                ((sample * heads + head) * time + query) * depth..((sample * heads + head) * time + query + 1) * depth;
            let of_key = |key: usize| {
                let first = ((sample * kv_heads + head / (heads / kv_heads)) * keys + key) * depth;
                first..first + depth
            };
            let scale = 1.0 / (depth as f64).sqrt();
            let seen: Vec<usize> = (0..keys).filter(|key| !self.is_hidden(sample, head, query, *key)).collect();
            let scores: Vec<f64> = seen.iter().map(|key| dot(&q[at.clone()], &k[of_key(*key)]) * scale).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
            let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp() / sum).collect();
            let factors: Vec<f64> = seen.iter().map(|key| self.factor(sample, head, query, *key)).collect();
            let factors = if self.dropout > 0.0 { factors } else { vec![1.0; seen.len()] };
            for ((key, weight), factor) in seen.iter().zip(&weights).zip(&factors) {
                for (d, value) in v[of_key(*key)].iter().enumerate() {
                    results[0][at.start + d] += weight * factor * value;
                }
            }
            let of_output = dot(&results[0][at.clone()], &gradient[at.clone()]);
            for ((key, weight), factor) in seen.iter().zip(&weights).zip(&factors) {
                let change = weight * (factor * dot(&gradient[at.clone()], &v[of_key(*key)]) - of_output) * scale;
                for d in 0..depth {
                    results[1][at.start + d] += change * k[of_key(*key).start + d];
                    results[2][of_key(*key).start + d] += change * q[at.start + d];
                    results[3][of_key(*key).start + d] += weight * factor * gradient[at.start + d];
                }
            }
        }
        results
    }

    fn check(&self, dtype: DType, tolerance: f64) {
        let device = gpu().autodiff();
        let of_queries = [SAMPLES, self.heads, self.time, self.depth];
        let of_keys = [SAMPLES, self.kv_heads, self.keys, self.depth];
        let [q, k, v, weights] = [(of_queries, 1), (of_keys, 2), (of_keys, 3), (of_queries, 4)]
            .map(|(shape, seed)| numbers(shape, seed, dtype, &device));
        let [q, k, v] = [q, k, v].map(Tensor::require_grad);
        let values = |tensor: Tensor<4>| tensor.cast(DType::F32).into_data().iter::<f64>().collect::<Vec<_>>();
        let y = attention(q.clone(), k.clone(), v.clone(), self.options(&device)).unwrap();
        let gradients = (y.clone() * weights.clone()).sum().backward();
        let got = [
            values(y),
            values(q.grad(&gradients).unwrap()),
            values(k.grad(&gradients).unwrap()),
            values(v.grad(&gradients).unwrap()),
        ];
        let inputs = [q, k, v, weights].map(|tensor| values(tensor.detach()));
        let expected = self.expected(inputs.each_ref().map(Vec::as_slice));
        for (part, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert_eq!(got.len(), expected.len());
            // The softmax of one key has no gradient, so that those of queries and keys are rounding alone.
            if self.window == Some(1) && (1..3).contains(&part) {
                continue;
            }
            let largest = expected.iter().fold(0.05f64, |largest, value| largest.max(value.abs()));
            for (at, (got, expected)) in got.iter().zip(expected).enumerate() {
                let close = (got - expected).abs() < tolerance * largest;
                assert!(close, "{self:?} {dtype:?} part {part}, value {at}: {got}, {expected}");
            }
        }
    }
}

#[test]
fn masks_and_dropout() {
    let plain = Case {
        heads: 2,
        kv_heads: 2,
        time: 37,
        keys: 37,
        depth: 64,
        causal: false,
        window: None,
        lengths: None,
        masked: None,
        dropout: 0.0,
    };
    let few = Case { heads: 4, time: 21, keys: 45, depth: 16, ..plain };
    let cases = [
        plain,
        Case { causal: true, dropout: 0.1, ..plain },
        Case { lengths: Some([37, 5]), masked: Some([2, 1, 1, 37]), ..plain },
        Case { causal: true, masked: Some([1, 4, 21, 45]), dropout: 0.5, ..few },
        // Blocks of older keys, and of later queries, are not computed.
        Case { causal: true, window: Some(9), time: 101, keys: 101, dropout: 0.1, depth: 32, ..plain },
        Case { causal: true, window: Some(4), lengths: Some([30, 45]), masked: Some([1, 1, 21, 45]), ..few },
        Case { causal: true, window: Some(1), time: 45, keys: 21, ..few },
        Case { causal: true, window: Some(2), time: 45, keys: 21, ..few },
        // Many blocks, and heads of keys that serve two of queries.
        Case { causal: true, window: Some(40), time: 140, keys: 150, kv_heads: 1, ..plain },
        // A sample of which no key is seen.
        Case { lengths: Some([0, 45]), dropout: 0.25, ..few },
        // Queries before the first key.
        Case { causal: true, time: 45, keys: 21, masked: Some([1, 1, 45, 21]), ..few },
        Case { time: 20, keys: 33, depth: 128, dropout: 0.1, masked: Some([2, 2, 20, 33]), ..plain },
    ];
    with_cards(&STRICT, &["SM=90", "SM=75"], |_, card| {
        for dtype in dtypes() {
            let tolerance = match dtype {
                // sm_75 has tensor cores for f16 alone, and wgpu has no TF32.
                DType::F32 if card == "SM=75" || on_wgpu() => 2e-5,
                DType::F32 => 2e-3,
                DType::F16 => 4e-3,
                _ => 3e-2,
            };
            cases.iter().for_each(|case| case.check(dtype, tolerance));
        }
    });
}
