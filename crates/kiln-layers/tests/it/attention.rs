//! Attention compared with the formula that computes the whole matrix of scores.

use burn::tensor::{Bool, DType, Device, Tensor, TensorData};
use kiln_layers::{AttentionOptions, Mask, RotaryOptions, attention, rotary, self_attention};
use proptest::prelude::*;

use crate::compare::{config, distance, tensor, tolerance, values};

/// The masks of a case, apart from causality.
#[derive(Clone, Debug, Default)]
pub(crate) struct Masks {
    pub(crate) causal: bool,
    /// The newest keys that a query sees, if it is causal.
    pub(crate) window: Option<usize>,
    pub(crate) lengths: Option<Vec<usize>>,
    /// The dimensions of a boolean mask that hides two pairs of seven.
    pub(crate) pairs: Option<[usize; 4]>,
}

impl Masks {
    fn pairs(&self, device: &Device) -> Option<Tensor<4, Bool>> {
        let shape = self.pairs?;
        let hidden: Vec<bool> = (0..shape.iter().product()).map(|place: usize| place * 5 % 7 < 2).collect();
        Some(Tensor::from_data(TensorData::new(hidden, shape), device))
    }

    pub(crate) fn options(&self, device: &Device) -> AttentionOptions {
        let mut options = AttentionOptions::from(match self.window {
            _ if !self.causal => Mask::None,
            Some(window) => Mask::Window(window),
            None => Mask::Causal,
        });
        if let Some(lengths) = &self.lengths {
            options = options.with_key_lengths(lengths.clone());
        }
        match self.pairs(device) {
            Some(pairs) => options.with_masked(pairs),
            None => options,
        }
    }

    /// All hidden pairs, `[batch, heads, time, keys]`.
    pub(crate) fn hidden(&self, [batch, heads, time, keys]: [usize; 4], device: &Device) -> Tensor<4, Bool> {
        let mut hidden = vec![false; batch * heads * time * keys];
        for (place, hidden) in hidden.iter_mut().enumerate() {
            let (sample, query, key) = (place / (heads * time * keys), place / keys % time, place % keys);
            *hidden = self.causal && key + time > query + keys;
            *hidden |= self.window.is_some_and(|window| self.causal && key + time + window <= query + keys);
            *hidden |= self.lengths.as_ref().is_some_and(|lengths| key >= lengths[sample]);
        }
        let hidden = Tensor::from_data(TensorData::new(hidden, [batch, heads, time, keys]), device);
        match self.pairs(device) {
            Some(pairs) => hidden.bool_or(pairs.expand([batch, heads, time, keys])),
            None => hidden,
        }
    }
}

/// The probabilities of all pairs; rows that see nothing are zero.
pub(crate) fn probabilities(scores: Tensor<4>, hidden: Tensor<4, Bool>) -> Tensor<4> {
    let scores = scores.mask_fill(hidden.clone(), -1e30);
    let powers = (scores.clone() - scores.max_dim(3).detach()).exp().mask_fill(hidden, 0.0);
    powers.clone() / powers.sum_dim(3).clamp_min(1e-30)
}

/// `[batch, heads, time, depth]` from `[batch, kv_heads, keys, depth]`.
fn repeated(x: Tensor<4>, heads: usize) -> Tensor<4> {
    let [batch, kv_heads, keys, depth] = x.dims();
    let group = heads / kv_heads;
    x.reshape([batch, kv_heads, 1, keys * depth])
        .expand([batch, kv_heads, group, keys * depth])
        .reshape([batch, heads, keys, depth])
}

fn formula(queries: Tensor<4>, keys: Tensor<4>, values: Tensor<4>, masks: &Masks, scale: f64) -> Tensor<4> {
    let [batch, heads, time, _] = queries.dims();
    let [_, _, count, _] = keys.dims();
    let hidden = masks.hidden([batch, heads, time, count], &queries.device());
    let (keys, values) = (repeated(keys, heads), repeated(values, heads));
    probabilities(queries.matmul(keys.transpose()) * scale, hidden).matmul(values)
}

/// Sizes of a case: batch, heads, heads of keys, time, keys, depth.
type Sizes = [usize; 6];

/// The largest differences of output and gradients from the formula.
fn far([batch, heads, kv_heads, time, keys, depth]: Sizes, masks: &Masks, dtype: DType, scale: Option<f64>) -> f64 {
    let device = Device::flex().autodiff();
    let gradient = tensor([batch, heads, time, depth], 4, 1.0, DType::F32, &device);
    let run = |plain: bool| {
        let q = tensor([batch, heads, time, depth], 1, 2.0, dtype, &device).require_grad();
        let k = tensor([batch, kv_heads, keys, depth], 2, 2.0, dtype, &device).require_grad();
        let v = tensor([batch, kv_heads, keys, depth], 3, 2.0, dtype, &device).require_grad();
        let y = match plain {
            true => {
                let [q, k, v] = [&q, &k, &v].map(|x| x.clone().cast(DType::F32));
                formula(q, k, v, masks, scale.unwrap_or(1.0 / (depth as f64).sqrt()))
            }
            false => {
                let options = masks.options(&device);
                let options = scale.map_or(options.clone(), |scale| options.with_scale(scale));
                attention(q.clone(), k.clone(), v.clone(), options).unwrap()
            }
        };
        let gradients = (y.clone().cast(DType::F32) * gradient.clone()).sum().backward();
        let [q, k, v] = [q, k, v].map(|x| values(&x.grad(&gradients).unwrap()));
        [values(&y), q, k, v]
    };
    run(false).iter().zip(&run(true)).map(|(got, expected)| apart(got, expected)).fold(0.0, f64::max)
}

/// The largest difference, relative to the largest value of `expected`. If a query sees one key, gradients are zero except for rounding,
/// and it is the difference itself.
fn apart(got: &[f64], expected: &[f64]) -> f64 {
    let largest = expected.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
    distance(got, expected) * f64::max(largest, 1e-6) / f64::max(largest, 0.1)
}

fn all_masks([batch, heads, _, time, keys, _]: Sizes) -> Vec<Masks> {
    let lengths = Some((0..batch).map(|sample| keys * (sample + 1) / batch).collect::<Vec<_>>());
    let causal = Masks { causal: true, ..Masks::default() };
    vec![
        Masks::default(),
        causal.clone(),
        Masks { lengths: lengths.clone(), ..Masks::default() },
        Masks { lengths: lengths.clone(), pairs: Some([batch, 1, 1, keys]), ..causal.clone() },
        Masks { pairs: Some([1, heads, time, keys]), ..Masks::default() },
        Masks { window: Some(1), ..causal.clone() },
        Masks { window: Some(keys.div_ceil(3)), pairs: Some([batch, 1, time, keys]), ..causal.clone() },
        Masks { window: Some(5), lengths: lengths.clone(), ..causal.clone() },
        Masks { pairs: Some([batch, heads, time, 1]), lengths, ..causal },
    ]
}

#[test]
fn values_and_gradients_are_those_of_the_formula() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        // One position; primes; more keys than queries and fewer; beyond one block of queries, of keys and beyond one span.
        for sizes in [[1, 1, 1, 1, 1, 1], [2, 3, 1, 13, 13, 8], [2, 4, 2, 5, 29, 3], [1, 2, 2, 31, 7, 4]] {
            for masks in all_masks(sizes) {
                let far = far(sizes, &masks, dtype, None);
                assert!(far < 2.0 * tolerance(dtype), "{dtype:?} {sizes:?} {masks:?}: {far}");
            }
        }
    }
}

#[test]
fn values_and_gradients_beyond_one_block_are_those_of_the_formula() {
    for (sizes, dtype) in [
        ([1, 2, 1, 300, 300, 16], DType::F32),
        ([1, 1, 1, 600, 600, 8], DType::BF16),
        ([2, 2, 2, 131, 521, 8], DType::F32),
        ([1, 1, 1, 1031, 263, 4], DType::F16),
    ] {
        for masks in all_masks(sizes) {
            let far = far(sizes, &masks, dtype, None);
            assert!(far < 2.0 * tolerance(dtype), "{dtype:?} {sizes:?} {masks:?}: {far}");
        }
    }
}

proptest! {
    #![proptest_config(config(48))]

    #[test]
    fn any_sizes_and_masks_give_the_formula(
        (batch, kv_heads, group) in (1usize..3, 1usize..3, 1usize..4),
        (time, keys, depth) in (1usize..150, 1usize..290, 1usize..20),
        (causal, window) in (any::<bool>(), prop::option::of(1usize..300)),
        shares in prop::option::of((0.0f64..=1.0, 0.0f64..=1.0)),
        pairs in prop::option::of(any::<[bool; 4]>()),
        scale in prop::option::of(-1.0f64..1.0),
    ) {
        let sizes = [batch, kv_heads * group, kv_heads, time, keys, depth];
        let lengths = shares.map(|(first, second)| {
            [first, second][..batch].iter().map(|share| (share * keys as f64) as usize).collect()
        });
        let full = [batch, kv_heads * group, time, keys];
        let pairs = pairs.map(|whole| [0, 1, 2, 3].map(|dimension| if whole[dimension] { full[dimension] } else { 1 }));
        let far = far(sizes, &Masks { causal, window, lengths, pairs }, DType::F32, scale);
        prop_assert!(far < 1e-4, "{far}");
    }
}

#[test]
fn packed_inputs_give_what_separate_ones_give_bit_for_bit() {
    let device = Device::flex().autodiff();
    let (batch, time, heads, depth) = (2, 141, 3, 10);
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for masks in all_masks([batch, heads, heads, time, time, depth]) {
            let options = masks.options(&device).with_dropout(0.2, 7);
            let gradient = tensor([batch, time, heads * depth], 2, 1.0, DType::F32, &device);
            let qkv = || tensor([batch, time, 3 * heads * depth], 1, 2.0, dtype, &device).require_grad();
            let packed = {
                let qkv = qkv();
                let y = self_attention(qkv.clone(), heads, options.clone()).unwrap();
                let gradients = (y.clone().cast(DType::F32) * gradient.clone()).sum().backward();
                [values(&y), values(&qkv.grad(&gradients).unwrap())]
            };
            let separate = {
                let qkv = qkv();
                let part = |part: usize| -> Tensor<4> {
                    let columns = part * heads * depth..(part + 1) * heads * depth;
                    let part = qkv.clone().slice([0..batch, 0..time, columns]);
                    part.reshape([batch, time, heads, depth]).swap_dims(1, 2)
                };
                let y = attention(part(0), part(1), part(2), options).unwrap();
                let y = y.swap_dims(1, 2).reshape([batch, time, heads * depth]);
                let gradients = (y.clone().cast(DType::F32) * gradient.clone()).sum().backward();
                [values(&y), values(&qkv.grad(&gradients).unwrap())]
            };
            assert_eq!(packed, separate, "{dtype:?} {masks:?}");
        }
    }
}

#[test]
fn views_give_what_copies_give() {
    let device = Device::flex().autodiff();
    let whole = tensor([2, 20, 3, 16], 1, 2.0, DType::F32, &device);
    let other = tensor([2, 3, 16, 20], 2, 2.0, DType::F32, &device);
    let run = |copies: bool| {
        let views = [
            whole.clone().swap_dims(1, 2).slice([0..2, 0..3, 3..20]),
            other.clone().swap_dims(2, 3),
            whole.clone().slice([0..2, 0..20, 1..2, 0..16]).swap_dims(1, 2).expand([2, 3, 20, 16]).flip([2]),
        ];
        // Tensors go through the host, so that the copies do not have the strides of the views.
        let [q, k, v] = views.map(|x| if copies { Tensor::<4>::from_data(x.into_data(), &device) } else { x });
        let [q, k, v] = [q, k, v].map(Tensor::require_grad);
        let y = attention(q.clone(), k.clone(), v.clone(), Mask::Causal).unwrap();
        let gradient = tensor([2, 16, 17, 3], 3, 1.0, DType::F32, &device).permute([0, 3, 2, 1]);
        let gradients = (y.clone() * gradient).sum().backward();
        let [q, k, v] = [q, k, v].map(|x| values(&x.grad(&gradients).unwrap()));
        [values(&y), q, k, v]
    };
    assert_eq!(run(false), run(true));
}

#[test]
fn only_wanted_gradients_are_computed_and_they_are_the_same() {
    let device = Device::flex().autodiff();
    let leaves = [1, 2, 3].map(|seed| tensor([1, 2, 30, 4], seed, 2.0, DType::F32, &device));
    let run = |wanted: [bool; 3]| {
        let mut leaves = leaves.clone().into_iter().zip(wanted);
        let mut next = || leaves.next().map(|(x, wanted)| if wanted { x.require_grad() } else { x }).unwrap();
        let (q, k, v) = (next(), next(), next());
        let y = attention(q.clone(), k.clone(), v.clone(), Mask::Causal).unwrap();
        let gradients = y.sum().backward();
        [q, k, v].map(|x| x.grad(&gradients).map(|gradient| values(&gradient)))
    };
    let all = run([true; 3]);
    for number in 1..7 {
        let wanted = [number & 1 == 1, number & 2 == 2, number & 4 == 4];
        for (number, (got, all)) in run(wanted).into_iter().zip(&all).enumerate() {
            assert_eq!(got.as_ref(), all.as_ref().filter(|_| wanted[number]));
        }
    }
}

#[test]
fn rows_that_see_nothing_are_zero_and_give_no_gradient() {
    let device = Device::flex().autodiff();
    // Sample 0 has no keys; in sample 1 the boolean mask hides all keys from query 3, and so do both masks together from query 5.
    let mut hidden = vec![false; 9 * 9];
    hidden[3 * 9..4 * 9].fill(true);
    hidden[5 * 9..5 * 9 + 4].fill(true);
    let hidden = Tensor::<4, Bool>::from_data(TensorData::new(hidden, [1, 1, 9, 9]), &device);
    let options = AttentionOptions::new().with_key_lengths(vec![0, 4]).with_masked(hidden);
    let qkv = tensor([2, 9, 3 * 8], 1, 2.0, DType::F32, &device).require_grad();
    let y = self_attention(qkv.clone(), 2, options.with_dropout(0.3, 1)).unwrap();
    let gradients = y.clone().sum().backward();
    let (y, dqkv) = (values(&y), values(&qkv.grad(&gradients).unwrap()));
    assert!(y.iter().chain(&dqkv).all(|value| value.is_finite()));
    let zero = |values: &[f64]| values.iter().all(|value| *value == 0.0);
    assert!(zero(&y[..9 * 8]) && zero(&dqkv[..9 * 24]));
    for row in 0..9 {
        let (y, dq) = (&y[(9 + row) * 8..][..8], &dqkv[(9 + row) * 24..][..8]);
        assert_eq!(zero(y), row == 3 || row == 5, "row {row}");
        assert!(!(row == 3 || row == 5) || zero(dq), "row {row}");
    }
    // More queries than keys: the first ones see none.
    let q = tensor([1, 1, 5, 4], 1, 1.0, DType::F32, &device);
    let k = tensor([1, 1, 3, 4], 2, 1.0, DType::F32, &device);
    let y = values(&attention(q, k.clone(), k, Mask::Causal).unwrap());
    assert!(zero(&y[..8]) && !zero(&y[8..12]));
}

#[test]
fn hidden_keys_may_hold_anything_beyond_the_lengths() {
    let device = Device::flex();
    let clean = tensor([1, 10, 3 * 4], 1, 1.0, DType::F32, &device);
    let dirty = clean.clone().slice_assign([0..1, 6..10, 4..12], Tensor::full([1, 4, 8], f32::NAN, &device));
    let options = || AttentionOptions::new().with_key_lengths(vec![6]);
    let [clean, dirty] = [clean, dirty].map(|qkv| values(&self_attention(qkv, 1, options()).unwrap()));
    assert_eq!(clean, dirty);
}

#[test]
fn empty_tensors_give_empty_results() {
    let device = Device::flex().autodiff();
    for shape in [[0, 5, 12], [2, 0, 12]] {
        let qkv = Tensor::<3>::zeros(shape, &device).require_grad();
        let y = self_attention(qkv.clone(), 2, Mask::Causal).unwrap();
        assert_eq!(y.dims(), [shape[0], shape[1], 4]);
        assert_eq!(qkv.grad(&y.sum().backward()).unwrap().dims(), shape);
    }
    let q = Tensor::<4>::ones([1, 2, 3, 4], &device).require_grad();
    let k = Tensor::<4>::ones([1, 1, 0, 4], &device).require_grad();
    let y = attention(q.clone(), k.clone(), k.clone(), Mask::None).unwrap();
    assert_eq!(values(&y), [0.0; 24]);
    let gradients = y.sum().backward();
    assert_eq!(values(&q.grad(&gradients).unwrap()), [0.0; 24]);
    assert_eq!(k.grad(&gradients).unwrap().dims(), [1, 1, 0, 4]);
}

#[test]
fn extreme_scores_pick_the_largest_and_a_causal_prefix_is_that_of_a_shorter_sequence() {
    let device = Device::flex().autodiff();
    let qkv = tensor([1, 200, 3 * 16], 1, 60.0, DType::F32, &device).require_grad();
    let long = self_attention(qkv.clone(), 2, Mask::Causal).unwrap();
    let gradients = long.clone().sum().backward();
    let gradient = values(&qkv.grad(&gradients).unwrap());
    assert!(values(&long).iter().chain(&gradient).all(|value| value.is_finite()));
    let short = self_attention(qkv.slice([0..1, 0..90]), 2, Mask::Causal).unwrap();
    let far = distance(&values(&short), &values(&long)[..90 * 16]);
    assert!(far < 1e-5, "{far}");

    // Scores of 1e4 and -1e4: the weight of one key is 1, those of the others are 0.
    let q = Tensor::<4>::full([1, 1, 2, 1], 100.0, &device).require_grad();
    let k: Vec<f32> = (0..300).map(|key| if key == 270 { 100.0 } else { -100.0 }).collect();
    let k = Tensor::<4>::from_data(TensorData::new(k, [1, 1, 300, 1]), &device);
    let v = tensor([1, 1, 300, 1], 2, 1.0, DType::F32, &device);
    let y = attention(q.clone(), k, v.clone(), Mask::None).unwrap();
    assert_eq!(values(&y), [values(&v)[270]; 2]);
    assert_eq!(values(&q.grad(&y.sum().backward()).unwrap()), [0.0; 2]);
}

#[test]
fn nan_reaches_the_queries_that_see_it() {
    let device = Device::flex();
    for bits in [0x7fc0_0000u32, 0xffff_ffff, 0x7f80_0001] {
        let q = tensor([1, 1, 6, 4], 1, 1.0, DType::F32, &device);
        let nan = Tensor::<4>::full([1, 1, 1, 4], f32::from_bits(bits), &device);
        let k = tensor([1, 1, 6, 4], 2, 1.0, DType::F32, &device).slice_assign([0..1, 0..1, 3..4, 0..4], nan);
        let v = tensor([1, 1, 6, 4], 3, 1.0, DType::F32, &device);
        for (row, y) in values(&attention(q, k, v, Mask::Causal).unwrap()).chunks(4).enumerate() {
            assert!(y.iter().all(|value| value.is_nan() == (row >= 3)), "{row}");
        }
    }
}

#[test]
fn same_bits_for_one_to_four_threads() {
    let run = || {
        let device = Device::flex().autodiff();
        let q = tensor([2, 4, 530, 8], 1, 1.0, DType::BF16, &device).require_grad();
        let k = tensor([2, 2, 530, 8], 2, 1.0, DType::BF16, &device).require_grad();
        let options = AttentionOptions::from(Mask::Causal).with_dropout(0.1, 3).with_key_lengths(vec![530, 97]);
        let y = attention(q.clone(), k.clone(), k.clone(), options).unwrap();
        let gradients = y.clone().sum().backward();
        [values(&y), values(&q.grad(&gradients).unwrap()), values(&k.grad(&gradients).unwrap())]
    };
    let on = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(run);
    let expected = on(1);
    for threads in 2..=4 {
        assert_eq!(on(threads), expected, "{threads} threads");
    }
}

#[test]
fn a_recording_device_records_one_operation_for_each_call() {
    let device = Device::capture();
    let graph = device.capture_scope(|scope| {
        let options = || {
            let masked = Tensor::<4, Bool>::full([2, 1, 5, 5], false, &device);
            AttentionOptions::from(Mask::Causal).with_masked(masked).with_dropout(0.1, 3)
        };
        let packed = self_attention(Tensor::zeros([2, 5, 48], &device), 2, options()).unwrap();
        assert_eq!(packed.dims(), [2, 5, 16]);
        let k = Tensor::<4>::zeros([2, 2, 5, 8], &device);
        let rotated = rotary(k.clone(), RotaryOptions::new()).unwrap();
        let y = attention(Tensor::zeros([2, 4, 5, 8], &device), rotated, k, options()).unwrap();
        assert_eq!(y.dims(), [2, 4, 5, 8]);
        std::mem::forget((packed, y));
        scope.complete([], [])
    });
    let graph = format!("{:?}", graph.unwrap());
    for name in ["attention", "grouped_attention", "rotary"] {
        assert_eq!(graph.matches(&format!("\"kiln::{name}\"")).count(), 1, "{name}");
    }
}

#[test]
fn mistakes_are_errors_that_name_both_sides() {
    let device = Device::flex();
    let message = |result: Result<Tensor<4>, kiln_layers::Error>| result.unwrap_err().to_string();
    let zeros = |shape: [usize; 4]| Tensor::<4>::zeros(shape, &device);
    let call = |q: [usize; 4], k: [usize; 4], options: AttentionOptions| {
        message(attention(zeros(q), zeros(k), zeros(k), options))
    };
    let (q, k, plain) = ([2, 4, 5, 8], [2, 2, 6, 8], AttentionOptions::new);
    assert_eq!(
        call(q, [3, 2, 6, 8], plain()),
        "the number of samples of the queries is 2, and that of the keys is 3; expected the same"
    );
    assert_eq!(
        call(q, [2, 2, 6, 7], plain()),
        "the depth of the queries is 8, and that of the keys is 7; expected the same"
    );
    assert_eq!(
        call(q, [2, 3, 6, 8], plain()),
        "the number of heads of the keys is 3 beside 4 of the queries, expected a divisor of the queries' heads"
    );
    assert_eq!(
        call(q, k, plain().with_key_lengths(vec![1])),
        "the number of key lengths is 1, and the number of samples is 2; expected the same"
    );
    assert_eq!(
        call(q, k, plain().with_key_lengths(vec![1, 7])),
        "a key length is 7 of 6 keys, expected at most the number of keys"
    );
    let masked = Tensor::<4, Bool>::full([2, 1, 5, 5], false, &device);
    assert_eq!(
        call(q, k, plain().with_masked(masked)),
        "dimension 3 of the boolean mask, if not 1, is 5, and the number of keys is 6; expected the same"
    );
    assert_eq!(
        call(q, k, plain().with_dropout(1.0, 3)),
        "the dropout rate is 1, expected a number from 0, less than 1"
    );
    assert_eq!(call(q, k, plain().with_scale(f64::NAN)), "the scale is NaN, expected a finite number in f32");
    let half = zeros(k).cast(DType::F16);
    assert_eq!(
        message(attention(zeros(q), zeros(k), half, plain())),
        "the queries is F32, and the values is F16; expected the same"
    );
}

#[test]
fn a_window_has_the_bits_of_a_mask_of_its_pairs() {
    let device = Device::flex().autodiff();
    let run = |[time, keys]: [usize; 2], dtype: DType, options: AttentionOptions| {
        let q = tensor([1, 4, time, 8], 1, 2.0, dtype, &device).require_grad();
        let [k, v] = [2, 3].map(|seed| tensor([1, 2, keys, 8], seed, 2.0, dtype, &device).require_grad());
        let y = attention(q.clone(), k.clone(), v.clone(), options).unwrap();
        let gradients = y.clone().cast(DType::F32).square().sum().backward();
        [values(&y), values(&q.grad(&gradients).unwrap()), values(&k.grad(&gradients).unwrap())]
    };
    for [time, keys] in [[300, 300], [130, 600], [600, 130], [700, 1]] {
        for window in [1, 9, 257] {
            let passed = (0..time * keys).map(|pair| pair % keys + time + window <= pair / keys + keys);
            let passed: Vec<bool> = passed.collect();
            let masked = Tensor::<4, Bool>::from_data(TensorData::new(passed, [1, 1, time, keys]), &device);
            for dtype in [DType::F32, DType::BF16] {
                let window_of = run([time, keys], dtype, Mask::Window(window).into());
                let mask_of =
                    run([time, keys], dtype, AttentionOptions::from(Mask::Causal).with_masked(masked.clone()));
                assert!(window_of == mask_of, "{time} {keys} {window} {dtype:?}");
            }
        }
    }
}
