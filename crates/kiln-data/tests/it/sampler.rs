//! Orders, replicas, buckets and resuming: which samples make a batch.

use std::collections::BTreeSet;
use std::fs;

use kiln_data::{LoaderState, Order, Remainder, Replica, Sampler, Tokenizer, Weights};
use proptest::prelude::*;

const REMAINDERS: [Remainder; 3] = [Remainder::Keep, Remainder::Drop, Remainder::Pad];

fn shuffled(samples: usize, batch_size: usize, remainder: Remainder, replica: Replica) -> Sampler {
    Sampler::new(samples, batch_size, Order::Shuffled { seed: 5 }, remainder, replica).unwrap()
}

fn epoch(sampler: &Sampler, epoch: u64) -> Vec<Vec<usize>> {
    (0..sampler.batches()).map(|index| sampler.ids(epoch, index)).collect()
}

/// Lengths between 1 and 40 that have nothing to do with the order.
fn lengths(samples: usize) -> Vec<u32> {
    (0..samples as u32).map(|id| id.wrapping_mul(2_654_435_761) % 40 + 1).collect()
}

fn order() -> impl Strategy<Value = (fn(u64, usize) -> Order, u64)> {
    let weighted = |seed, samples| {
        let labels: Vec<usize> = (0..samples).map(|id| id % 5).collect();
        Order::Weighted { seed, weights: Weights::balanced(&labels).unwrap() }
    };
    let orders: [fn(u64, usize) -> Order; 3] = [|_, _| Order::Sequential, |seed, _| Order::Shuffled { seed }, weighted];
    (prop::sample::select(orders.to_vec()), any::<u64>())
}

proptest! {
    #[test]
    fn batches_are_the_same_for_any_number_of_replicas(
        (order, seed) in order(), samples in 24usize..600, batches in 1usize..4, pool in 0usize..5, number in 0u64..9,
        remainder in prop::sample::select(REMAINDERS.to_vec()),
    ) {
        let size = (24 * batches).min(samples / 24 * 24);
        let of = |replica| {
            let sampler = Sampler::new(samples, size, order(seed, samples), remainder, replica)?;
            if pool > 0 { sampler.bucketed(lengths(samples), pool) } else { Ok(sampler) }
        };
        let alone = of(Replica::ALONE).unwrap();
        let expected = epoch(&alone, number);
        for count in [1, 2, 3, 8] {
            let last = samples % size;
            if remainder == Remainder::Keep && last > 0 && last < count {
                prop_assert!(of(Replica::new(0, count).unwrap()).is_err());
                continue;
            }
            let parts: Vec<Vec<Vec<usize>>> =
                (0..count).map(|index| epoch(&of(Replica::new(index, count).unwrap()).unwrap(), number)).collect();
            for (batch, expected) in expected.iter().enumerate() {
                let sizes: BTreeSet<usize> = parts.iter().map(|part| part[batch].len()).collect();
                let (least, most) = (*sizes.first().unwrap(), *sizes.last().unwrap());
                prop_assert!(least > 0 && most - least <= usize::from(expected.len() < size), "{sizes:?}");
                prop_assert_eq!(&parts.iter().flat_map(|part| part[batch].clone()).collect::<Vec<_>>(), expected);
            }
            // A state saved by one replica resumes in any other.
            let state = alone.state(number, expected.len() / 2);
            prop_assert_eq!(of(Replica::new(count - 1, count).unwrap()).unwrap().resume(&state).unwrap(), (number, state.batch));
        }
    }

    #[test]
    fn an_epoch_takes_every_sample_once_or_leaves_out_or_repeats_less_than_a_batch(
        samples in 1usize..500, size in 1usize..60, seed: u64, pool in 0usize..5, number: u64,
    ) {
        let size = size.min(samples);
        for order in [Order::Sequential, Order::Shuffled { seed }] {
            for remainder in REMAINDERS {
                let sampler = Sampler::new(samples, size, order.clone(), remainder, Replica::ALONE).unwrap();
                let plain = epoch(&sampler, number);
                let sampler = if pool > 0 { sampler.bucketed(lengths(samples), pool).unwrap() } else { sampler };
                let batches = epoch(&sampler, number);
                prop_assert_eq!(batches.len(), sampler.batches());
                prop_assert!(batches.iter().rev().skip(1).all(|batch| batch.len() == size));
                prop_assert!(sampler.ids(number, batches.len()).is_empty() && sampler.ids(number, usize::MAX).is_empty());

                let mut ids = batches.concat();
                for batch in 0..=batches.len() {
                    prop_assert_eq!(sampler.samples_in(batch), batches[..batch].concat().len());
                }
                let last = samples % size;
                let expected = match remainder {
                    Remainder::Keep => samples,
                    Remainder::Drop => samples - last,
                    Remainder::Pad => samples.next_multiple_of(size),
                };
                prop_assert_eq!(ids.len(), expected);
                if expected > samples {
                    prop_assert_eq!(&batches[batches.len() - 1][last..], &plain.concat()[..size - last]);
                    ids.truncate(samples);
                }
                prop_assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
                prop_assert!(ids.iter().all(|id| *id < samples));
                // The same samples as without buckets, sorted.
                for (sorted, plain) in batches.chunks(pool.max(1)).zip(plain.chunks(pool.max(1))) {
                    let set = |batches: &[Vec<usize>]| batches.concat().into_iter().collect::<BTreeSet<_>>();
                    prop_assert_eq!(set(sorted), set(plain));
                }
            }
        }
    }

    #[test]
    fn buckets_hold_samples_of_neighbouring_lengths(
        samples in 1usize..400, size in 1usize..20, pool in 1usize..9, seed: u64, number in 0u64..5,
    ) {
        let size = size.min(samples);
        let lengths = lengths(samples);
        let sampler = Sampler::new(samples, size, Order::Shuffled { seed }, Remainder::Drop, Replica::ALONE).unwrap();
        let batches = epoch(&sampler.bucketed(lengths.clone(), pool).unwrap(), number);
        for pool in batches.chunks(pool) {
            let mut ranges: Vec<(u32, u32)> = vec![];
            for batch in pool {
                let of: Vec<u32> = batch.iter().map(|id| lengths[*id]).collect();
                prop_assert!(of.is_sorted());
                ranges.push((of[0], of[of.len() - 1]));
            }
            ranges.sort_unstable();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ranges:?} overlap");
        }
    }

    #[test]
    fn a_state_is_read_back_from_its_text(epoch: u64, batch: usize, samples: usize, batch_size: usize, order: u64) {
        let state = LoaderState { epoch, batch, samples, batch_size, order };
        prop_assert_eq!(state.to_string().parse::<LoaderState>().unwrap(), state);
        let json = serde_json::to_string(&state).unwrap();
        prop_assert_eq!(serde_json::from_str::<LoaderState>(&json).unwrap(), state);
    }

    #[test]
    fn a_damaged_state_is_refused_or_another(position in 0usize..90, with in any::<char>(), text: String) {
        let state = shuffled(1000, 10, Remainder::Keep, Replica::ALONE).state(3, 77);
        let mut changed: Vec<char> = state.to_string().chars().collect();
        let position = position % changed.len();
        changed[position] = with;
        let changed: String = changed.into_iter().collect();
        for text in [&changed, &text] {
            match text.parse::<LoaderState>() {
                Ok(read) => prop_assert_eq!(&read.to_string(), text),
                Err(error) => prop_assert_eq!(error.to_string().lines().count(), 1),
            }
        }
    }
}

#[test]
fn the_order_of_a_pools_batches_is_another_in_every_pool_and_epoch() {
    let lengths: Vec<u32> = (0..400).map(|id| id % 50).collect();
    let of = |order| Sampler::new(400, 10, order, Remainder::Keep, Replica::ALONE).unwrap();
    let shortest = |sampler: &Sampler, number| -> Vec<usize> {
        let first: Vec<u32> = epoch(sampler, number).iter().map(|batch| lengths[batch[0]]).collect();
        first
            .chunks(10)
            .map(|pool| pool.iter().position(|length| length == pool.iter().min().unwrap()).unwrap())
            .collect()
    };
    let random = of(Order::Shuffled { seed: 3 }).bucketed(lengths.clone(), 10).unwrap();
    let placed: BTreeSet<Vec<usize>> = (0..6).map(|number| shortest(&random, number)).collect();
    assert!(
        placed.len() == 6 && placed.iter().any(|pools| pools.iter().collect::<BTreeSet<_>>().len() > 2),
        "{placed:?}"
    );
    let sorted = of(Order::Sequential).bucketed(lengths.clone(), 10).unwrap();
    assert_eq!(shortest(&sorted, 1), [0; 4]);
}

#[test]
fn a_billion_samples_take_no_table() {
    let sampler = shuffled(1_000_000_000, 8, Remainder::Drop, Replica::new(1, 2).unwrap());
    let ids = sampler.ids(0, 10_000_000 / 8);
    assert_eq!(ids.len(), 4);
    assert!(ids.iter().all(|id| *id < 1_000_000_000));
    // The end of the longest epoch that there can be.
    let all = shuffled(usize::MAX / 2, 2, Remainder::Pad, Replica::ALONE);
    assert_eq!((all.ids(0, all.batches() - 1).len(), all.samples_in(usize::MAX)), (2, usize::MAX / 2 + 1));
}

#[test]
fn a_state_of_another_run_is_refused() {
    let here = shuffled(1000, 10, Remainder::Keep, Replica::ALONE);
    let state = |sampler: &Sampler| sampler.state(4, 60);
    assert_eq!(
        here.resume(&state(&shuffled(1000, 10, Remainder::Keep, Replica::new(1, 5).unwrap()))).unwrap(),
        (4, 60)
    );
    assert_eq!(here.resume(&here.state(4, 100)).unwrap(), (4, 100));
    let seed = Sampler::new(1000, 10, Order::Shuffled { seed: 6 }, Remainder::Keep, Replica::ALONE).unwrap();
    let another = "loader state is of another order (its kind, seed, weights, remainder, or buckets), expected a state of the same run";
    let cases = [
        (
            state(&shuffled(999, 10, Remainder::Keep, Replica::ALONE)),
            "loader state is of 999 samples, where this run has 1000, expected a state of the same run",
        ),
        (
            state(&shuffled(1000, 20, Remainder::Keep, Replica::ALONE)),
            "loader state is of 20 samples a batch, where this run has 10, expected a state of the same run",
        ),
        (state(&seed), another),
        (state(&shuffled(1000, 10, Remainder::Drop, Replica::ALONE)), another),
        (state(&here.clone().bucketed(vec![1; 1000], 4).unwrap()), another),
        (here.state(4, 101), "loader state is batch 101 of 100, expected a batch of the epoch or its end"),
    ];
    for (state, message) in cases {
        assert_eq!(here.resume(&state).unwrap_err().to_string(), message);
    }
    let buckets = |length, pool| here.clone().bucketed(vec![length; 1000], pool).unwrap();
    for other in [buckets(2, 4), buckets(1, 5)] {
        assert!(buckets(1, 4).resume(&state(&other)).is_err());
    }
    let weighted = |weight| {
        let weights = Weights::new(&[[weight].as_slice(), &[1.0; 999]].concat()).unwrap();
        Sampler::new(1000, 10, Order::Weighted { seed: 5, weights }, Remainder::Keep, Replica::ALONE).unwrap()
    };
    assert!(
        weighted(1.0).resume(&state(&weighted(1.0))).is_ok() && weighted(1.0).resume(&state(&weighted(2.0))).is_err()
    );
    // The text form is part of saved runs, and with it the fingerprint.
    assert_eq!(state(&here).to_string(), "epoch=4 batch=60 samples=1000 batch_size=10 order=048d303a7551c1c6");
}

#[test]
fn impossible_settings_are_refused() {
    let of = |samples, size, order, remainder, count: usize| {
        let replica = Replica::new(0, count).unwrap();
        Sampler::new(samples, size, order, remainder, replica).map(drop).unwrap_err().to_string()
    };
    let weighted = Order::Weighted { seed: 0, weights: Weights::new(&[1.0; 3]).unwrap() };
    let cases = [
        (of(9, 0, Order::Sequential, Remainder::Keep, 1), "batch size is 0, expected at least 1"),
        (of(0, 4, Order::Sequential, Remainder::Keep, 1), "samples is 0, expected at least 1"),
        (
            of(3, 4, Order::Sequential, Remainder::Pad, 1),
            "batch size is 4, with 3 samples, expected at most the number of samples",
        ),
        (
            of(90, 4, Order::Sequential, Remainder::Pad, 3),
            "batch size is 4, with 3 replicas, expected a multiple of the replicas",
        ),
        (of(4, 2, weighted, Remainder::Keep, 1), "weights is 3 for 4 samples, expected one weight a sample"),
        (
            of(10, 4, Order::Sequential, Remainder::Keep, 4),
            "remainder is kept, a last batch of 2 for 4 replicas, expected at least one sample a replica, or a remainder that is dropped or padded",
        ),
        (Replica::new(2, 2).unwrap_err().to_string(), "replica is 2 of 2, expected an index below the count"),
        (Replica::new(0, 0).unwrap_err().to_string(), "replica is 0 of 0, expected an index below the count"),
    ];
    for (error, message) in cases {
        assert_eq!(error, message);
    }
    let sampler = shuffled(10, 2, Remainder::Keep, Replica::ALONE);
    let refused = |lengths: usize, pool| sampler.clone().bucketed(vec![1; lengths], pool).unwrap_err().to_string();
    assert_eq!(refused(10, 0), "pool is 0, expected at least 1");
    assert_eq!(refused(9, 3), "lengths is 9 for 10 samples, expected one length a sample");
}

/// Part of the tokens that are padding when every batch is as long as its longest sample.
fn padding(batches: &[Vec<usize>], lengths: &[u32]) -> f64 {
    let (mut padded, mut real) = (0, 0);
    for batch in batches {
        let longest = batch.iter().map(|id| lengths[*id]).max().unwrap();
        padded += batch.len() as u64 * u64::from(longest);
        real += batch.iter().map(|id| u64::from(lengths[*id])).sum::<u64>();
    }
    1.0 - real as f64 / padded as f64
}

#[test]
fn buckets_save_padding_on_the_paragraphs_of_a_book() {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures");
    let book = fs::read_to_string(format!("{fixtures}/moby-dick/moby-dick.txt")).unwrap();
    let tokenizer = Tokenizer::bpe(format!("{fixtures}/bpe")).unwrap();
    let paragraphs = book.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty());
    let lengths: Vec<u32> = paragraphs.map(|text| tokenizer.encode(text).unwrap().len() as u32).collect();
    let plain = shuffled(lengths.len(), 32, Remainder::Drop, Replica::ALONE);
    let waste = |pool: usize| padding(&epoch(&plain.clone().bucketed(lengths.clone(), pool).unwrap(), 0), &lengths);
    let (none, wastes) = (padding(&epoch(&plain, 0), &lengths), [1, 4, 16, 64].map(waste));
    assert_eq!(wastes[0], none);
    assert!(wastes.is_sorted_by(|a, b| a > b) && none > 0.5 && wastes[2] < 0.25, "{none}, {wastes:?}");
}
