//! The loader's promises: order, completeness, resumption, back-pressure, failures in their place, clean ends.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kiln_data::{BatchPlan, Error, Loader, LoaderConfig, Order, Remainder, sample_rng};
use proptest::prelude::*;
use rand::RngExt;

fn remainder(drop_last: bool) -> Remainder {
    if drop_last { Remainder::Drop } else { Remainder::Keep }
}

/// Sleeps up to half a millisecond, a different time for every batch and call.
fn jitter(plan: &BatchPlan) {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let micros = sample_rng(CALLS.fetch_add(1, SeqCst) as u64, plan.epoch, plan.index as u64).random_range(0..500);
    std::thread::sleep(Duration::from_micros(micros));
}

/// A loader whose batches are their plans, made after random delays.
fn loader(samples: usize, config: LoaderConfig) -> Loader<BatchPlan> {
    let make = |plan: &BatchPlan| {
        jitter(plan);
        Ok(plan.clone())
    };
    Loader::new(samples, config, make).unwrap()
}

fn take(loader: &Loader<BatchPlan>, epoch: u64, first: usize) -> Vec<BatchPlan> {
    loader.epoch(epoch, first).map(Result::unwrap).collect()
}

fn shuffled(batch_size: usize, workers: usize, prefetch: usize) -> LoaderConfig {
    LoaderConfig::new(batch_size).with_order(Order::Shuffled { seed: 5 }).with_workers(workers).with_prefetch(prefetch)
}

/// A loader of five batches of one sample each.
fn five<O: Send + 'static>(
    workers: usize,
    make: impl Fn(&BatchPlan) -> Result<O, Error> + Send + Sync + 'static,
) -> Loader<O> {
    Loader::new(5, LoaderConfig::new(1).with_workers(workers), make).unwrap()
}

#[test]
fn batches_and_their_order_do_not_depend_on_workers_and_prefetch() {
    let expected = take(&loader(203, shuffled(10, 1, 1)), 2, 0);
    assert_eq!(expected.iter().map(|plan| plan.ids.len()).collect::<Vec<_>>(), [vec![10; 20], vec![3]].concat());
    assert!(expected.iter().enumerate().all(|(i, plan)| (plan.epoch, plan.index) == (2, i)));
    for (workers, prefetch) in [(1, 4), (2, 1), (2, 4), (3, 2), (3, 30), (8, 3), (8, 16)] {
        assert_eq!(take(&loader(203, shuffled(10, workers, prefetch)), 2, 0), expected, "{workers}, {prefetch}");
    }
}

#[test]
fn sequential_batches_count_up() {
    let plans = take(&loader(7, LoaderConfig::new(3)), 9, 0);
    assert_eq!(plans.into_iter().map(|plan| plan.ids).collect::<Vec<_>>(), [vec![0, 1, 2], vec![3, 4, 5], vec![6]]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_epoch_is_complete_and_can_be_entered_at_every_batch(
        samples in 1usize..150, size in 1usize..40, workers in 1usize..9, prefetch in 1usize..12, seed: u64,
        drop_last: bool, epoch in 0u64..5, start in 0.0f64..=1.0,
    ) {
        let size = size.min(samples);
        let order = Order::Shuffled { seed };
        let config = LoaderConfig::new(size).with_order(order).with_remainder(remainder(drop_last)).with_workers(workers).with_prefetch(prefetch);
        let loader = loader(samples, config);
        let plans = take(&loader, epoch, 0);
        prop_assert_eq!(plans.len(), loader.batches());
        prop_assert!(plans.iter().rev().skip(1).all(|plan| plan.ids.len() == size));

        let ids: Vec<usize> = plans.iter().flat_map(|plan| plan.ids.clone()).collect();
        let expected = if drop_last { samples / size * size } else { samples };
        prop_assert_eq!(ids.len(), expected);
        prop_assert_eq!(ids.iter().filter(|id| **id < samples).collect::<BTreeSet<_>>().len(), expected);

        let first = (start * plans.len() as f64) as usize;
        prop_assert_eq!(&take(&loader, epoch, first), &plans[first..]);
    }
}

#[test]
fn an_epoch_is_resumed_at_every_batch_and_ends_after_its_last() {
    for drop_last in [false, true] {
        let loader = loader(50, shuffled(7, 3, 2).with_remainder(remainder(drop_last)));
        let whole = take(&loader, 1, 0);
        assert_eq!((whole.len(), loader.batches(), loader.samples()), (8 - usize::from(drop_last), whole.len(), 50));
        for first in 0..=whole.len() {
            assert_eq!(take(&loader, 1, first), whole[first..]);
        }
        assert_eq!(take(&loader, 1, whole.len() + 1), []);
        let mut batches = loader.epoch(1, whole.len() - 1);
        assert!(batches.next().is_some() && batches.next().is_none() && batches.next().is_none());
    }
}

#[test]
fn epochs_differ_and_several_run_at_once() {
    let loader = loader(60, shuffled(10, 2, 2));
    let (zero, one) = (take(&loader, 0, 0), take(&loader, 1, 0));
    assert_ne!(zero[0].ids, one[0].ids);
    let together: Vec<_> = loader.epoch(0, 0).zip(loader.epoch(1, 0)).collect();
    for (index, (a, b)) in together.into_iter().enumerate() {
        assert_eq!((&a.unwrap(), &b.unwrap()), (&zero[index], &one[index]));
    }
}

/// Counts what exists of it.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

#[test]
fn never_more_than_prefetch_batches_wait() {
    for (workers, prefetch) in [(1, 1), (1, 3), (2, 2), (3, 7), (8, 1), (8, 4)] {
        let (waiting, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (count, peak) = (waiting.clone(), most.clone());
        let make = move |plan: &BatchPlan| {
            peak.fetch_max(count.fetch_add(1, SeqCst) + 1, SeqCst);
            jitter(plan);
            Ok(Counted(count.clone()))
        };
        let config = LoaderConfig::new(1).with_workers(workers).with_prefetch(prefetch);
        let loader = Loader::new(40, config, make).unwrap();
        for (index, batch) in loader.epoch(0, 0).enumerate() {
            drop(batch.unwrap());
            if index % 10 == 0 {
                // A consumer that stalls: the workers fill up to the bound, and no further.
                while waiting.load(SeqCst) < prefetch {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(2));
                assert_eq!(waiting.load(SeqCst), prefetch);
            }
        }
        // One more than wait: the batch that is being handed over.
        assert!(most.load(SeqCst) <= prefetch + 1, "{} batches with {workers} workers", most.load(SeqCst));
        assert_eq!(waiting.load(SeqCst), 0);
    }
}

#[test]
fn a_failure_is_delivered_at_its_own_batch() {
    for workers in [1, 2, 8] {
        let loader = five(workers, |plan| {
            jitter(plan);
            match plan.index {
                1 => panic!("sample {} is cursed", plan.ids[0]),
                2 => panic!("no arguments"),
                3 => std::panic::panic_any(7),
                4 => Err(Error::Tokenizer { reason: "refused".into() }),
                _ => Ok(plan.index),
            }
        });
        let got: Vec<_> = loader.epoch(6, 0).map(|batch| batch.map_err(|error| error.to_string())).collect();
        let panicked = |batch, why| Err(format!("batch {batch} of epoch 6: the loading code panicked: {why}"));
        let [one, two] = [panicked(1, "sample 1 is cursed"), panicked(2, "no arguments")];
        assert_eq!(got, [Ok(0), one, two, panicked(3, "no message"), Err("tokenizer: refused".into())]);
    }
}

#[test]
fn batches_after_a_panic_still_arrive() {
    for workers in [1, 3] {
        let loader = five(workers, |plan| if plan.index % 2 == 0 { panic!("even") } else { Ok(plan.index) });
        let got: Vec<Option<usize>> = loader.epoch(0, 0).map(Result::ok).collect();
        assert_eq!(got, [None, Some(1), None, Some(3), None]);
        let Some(Err(Error::Panic { epoch: 4, batch: 2, message })) = loader.epoch(4, 2).next() else {
            panic!("expected a panic at batch 2 of epoch 4");
        };
        assert_eq!(message, "even");
    }
}

#[test]
fn dropping_the_iterator_ends_its_threads() {
    for taken in 0..=5 {
        let token = Arc::new(());
        let held = token.clone();
        let loader = five(3, move |plan| {
            jitter(plan);
            let _ = &held;
            Ok(())
        });
        let mut batches = loader.epoch(0, 0);
        drop(loader); // the threads and the iterator are now the only owners of `held`
        assert_eq!(batches.by_ref().take(taken).count(), taken);
        assert_eq!(Arc::strong_count(&token), 2);
        drop(batches);
        assert_eq!(Arc::strong_count(&token), 1);
    }
}

/// Reports that it is dropped.
struct Batch(Sender<()>);

impl Drop for Batch {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

#[test]
fn dropping_the_iterator_makes_no_batch_that_nobody_takes() {
    let (started, starts) = channel();
    let (dropped, drops): (_, Receiver<()>) = channel();
    let drops = Mutex::new(drops);
    let make = move |plan: &BatchPlan| {
        started.send(plan.index).unwrap();
        if plan.index == 1 {
            drops.lock().unwrap().recv().unwrap(); // until the iterator is being dropped
        }
        Ok(Batch(dropped.clone()))
    };
    let config = LoaderConfig::new(1).with_workers(1).with_prefetch(50);
    let batches = Loader::new(100, config, make).unwrap().epoch(0, 0);
    assert_eq!((starts.recv(), starts.recv()), (Ok(0), Ok(1))); // batch 0 waits, batch 1 is being made
    drop(batches);
    assert_eq!(starts.iter().count(), 0);
}

#[test]
fn impossible_settings_are_refused() {
    let good = || LoaderConfig::new(4);
    let cases = [
        (9, LoaderConfig::new(0), "batch size is 0, expected at least 1"),
        (9, good().with_workers(0), "workers is 0, expected from 1 to 1024"),
        (9, good().with_prefetch(0), "prefetch is 0, expected from 1 to 1024"),
        (9, good().with_workers(1025), "workers is 1025, expected from 1 to 1024"),
        (0, good(), "samples is 0, expected at least 1"),
        (3, good(), "batch size is 4, with 3 samples, expected at most the number of samples"),
    ];
    for (samples, config, message) in cases {
        let error = Loader::new(samples, config, |_| Ok(())).err().unwrap();
        assert_eq!(error.to_string(), message);
    }
    assert!(Loader::new(4, good(), |_| Ok(())).is_ok());
}

#[test]
fn a_configuration_refuses_misspelled_fields() {
    let json = serde_json::to_string(&shuffled(8, 2, 3)).unwrap();
    assert_eq!(serde_json::from_str::<LoaderConfig>(&json).unwrap(), shuffled(8, 2, 3));
    let error = serde_json::from_str::<LoaderConfig>(&json.replace("prefetch", "prefech")).unwrap_err();
    assert!(error.to_string().contains("prefech"), "{error}");
}
