//! Dropout of attention weights: its rate, its independence, and the gradients of its mask.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use kiln_layers::{AttentionOptions, attention};

use crate::attention::{Masks, probabilities};
use crate::compare::{distance, tensor, values};

/// The weights after dropout, read from attention to rows of the identity.
fn dropped(rate: f64, seed: u64, time: usize, heads: usize) -> Vec<f64> {
    let device = Device::flex();
    let q = Tensor::<4>::zeros([1, heads, time, time], &device);
    let v = Tensor::<2>::eye(time, &device).expand([1, heads, time, time]);
    let y = attention(q.clone(), q, v, AttentionOptions::new().with_dropout(rate, seed)).unwrap();
    values(&(y * time as f64 * (1.0 - rate)))
}

#[test]
fn dropout_drops_the_rate_of_weights_independently() {
    let (time, rate) = (300, 0.3);
    let weights = dropped(rate, 5, time, 2);
    assert!(weights.iter().all(|weight| weight.abs() < 1e-4 || (weight - 1.0).abs() < 1e-4));
    let kept = |weights: &mut dyn Iterator<Item = f64>| {
        let (sum, count) = weights.fold((0.0, 0.0), |(sum, count), weight| (sum + weight, count + 1.0));
        (sum / count - (1.0 - rate)) / (rate * (1.0 - rate) / count).sqrt()
    };
    // Standard deviations from the rate: of all weights, and at the worst of 600 rows and 300 columns.
    assert!(kept(&mut weights.iter().copied()).abs() < 4.0);
    for row in weights.chunks(time) {
        assert!(kept(&mut row.iter().copied()).abs() < 5.0);
    }
    for column in 0..time {
        assert!(kept(&mut weights[column..].iter().step_by(time).copied()).abs() < 5.0);
    }
    // Neighbours in a row, in a column and in the other head agree as often as independent weights do.
    let agree = rate * rate + (1.0 - rate) * (1.0 - rate);
    for distance in [1, 16, 64, time, time * time] {
        let pairs = weights.iter().zip(&weights[distance..]);
        let same = pairs.clone().filter(|(left, right)| (*left - *right).abs() < 0.5).count() as f64;
        assert!((same / pairs.count() as f64 - agree).abs() < 0.01, "{distance}");
    }
    let equal = |left: &[f64], right: &[f64]| left.iter().zip(right).all(|(left, right)| (left - right).abs() < 0.5);
    assert!(equal(&weights, &dropped(rate, 5, time, 2)));
    assert!(!equal(&weights, &dropped(rate, 6, time, 2)));
    // A number depends only on its position: the same query and key in a shorter sequence.
    let short = dropped(rate, 5, 100, 1);
    for row in 0..100 {
        assert!(equal(&short[row * 100..][..100], &weights[row * time..][..100]));
    }
    // The seed may be a tensor.
    let device = Device::flex();
    let q = tensor([1, 1, 40, 4], 1, 1.0, DType::F32, &device);
    let run = |options: AttentionOptions| values(&attention(q.clone(), q.clone(), q.clone(), options).unwrap());
    let seed = Tensor::<1, Int>::from_data(TensorData::new(vec![5i64], [1]), (&device, DType::I64));
    let options = AttentionOptions::new;
    assert_eq!(run(options().with_dropout(rate, 5)), run(options().with_dropout(rate, seed)));
}

#[test]
fn dropout_has_the_gradients_of_its_mask() {
    let device = Device::flex().autodiff();
    let (time, depth, rate) = (270, 8, 0.4);
    for causal in [false, true] {
        let kept: Vec<f32> = dropped(rate, 11, time, 2).into_iter().map(|weight| weight.round() as f32).collect();
        let kept = Tensor::<4>::from_data(TensorData::new(kept, [1, 2, time, time]), &device);
        let masks = Masks { causal, ..Masks::default() };
        let gradient = tensor([1, 2, time, depth], 4, 1.0, DType::F32, &device);
        let run = |plain: bool| {
            let [q, k, v] =
                [1, 2, 3].map(|seed| tensor([1, 2, time, depth], seed, 2.0, DType::F32, &device).require_grad());
            let y = match plain {
                true => {
                    let scores = q.clone().matmul(k.clone().transpose()) / (depth as f64).sqrt();
                    let weights = probabilities(scores, masks.hidden([1, 2, time, time], &device));
                    (weights * kept.clone() / (1.0 - rate)).matmul(v.clone())
                }
                false => {
                    let options = masks.options(&device).with_dropout(rate, 11);
                    attention(q.clone(), k.clone(), v.clone(), options).unwrap()
                }
            };
            let gradients = (y.clone() * gradient.clone()).sum().backward();
            let [q, k, v] = [q, k, v].map(|x| values(&x.grad(&gradients).unwrap()));
            [values(&y), q, k, v]
        };
        for (part, (got, expected)) in run(false).iter().zip(&run(true)).enumerate() {
            let far = distance(got, expected);
            assert!(far < 1e-4, "causal {causal}, part {part}: {far}");
        }
    }
}

#[test]
fn a_sample_has_the_dropped_weights_of_its_number_in_the_batch() {
    let device = Device::flex();
    let x = tensor([5, 2, 9, 4], 1, 1.0, DType::F32, &device);
    let of_samples = |first: usize, count: usize| {
        let x = x.clone().narrow(0, first, count);
        let options = AttentionOptions::new().with_dropout(0.3, 5);
        let model = burn::nn::LinearConfig::new(1, 1).init(&device);
        kiln_operations::RunningSums::default().pass(&model, first).during(|| {
            let x = x.autodiff().require_grad();
            let y = attention(x.clone(), x.clone(), x.clone(), options).unwrap();
            let gradients = (y.clone() * y.clone()).sum().backward();
            [values(&y.inner()), values(&x.grad(&gradients).unwrap())].concat()
        })
    };
    let whole = of_samples(0, 5);
    let (of_sample, all) = (2 * 9 * 4, 5 * 2 * 9 * 4);
    for (first, count) in [(0, 2), (2, 3), (4, 1)] {
        let part = of_samples(first, count);
        let places = first * of_sample..(first + count) * of_sample;
        assert_eq!(part[..count * of_sample], whole[places.clone()]);
        assert_eq!(part[count * of_sample..], whole[all..][places]);
    }
}
