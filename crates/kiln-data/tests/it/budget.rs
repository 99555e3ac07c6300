//! The loader's byte budget, its statistics, bad samples, and device prefetch.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use kiln_data::{BadSamples, BatchPlan, Error, Loader, LoaderConfig, Order, Weights, Worker, sample_rng};
use proptest::prelude::*;
use rand::RngExt;

/// Bytes that are held now, and the most there were.
#[derive(Default)]
struct Gauge {
    held: AtomicU64,
    peak: AtomicU64,
}

impl Gauge {
    fn hold(self: &Arc<Self>, bytes: u64) -> Held {
        self.peak.fetch_max(self.held.fetch_add(bytes, SeqCst) + bytes, SeqCst);
        Held { gauge: self.clone(), bytes }
    }
}

struct Held {
    gauge: Arc<Gauge>,
    bytes: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.gauge.held.fetch_sub(self.bytes, SeqCst);
    }
}

/// Bytes that sample `id` takes while it is decoded: a few are large.
fn image_bytes(id: usize, most: u64) -> u64 {
    let random: f64 = sample_rng(11, 0, id as u64).random_range(0.0..1.0);
    (most as f64 * random.powi(4)) as u64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// Batches and images of any size, slow and fast: the loader stays within the budget and never blocks for ever.
    #[test]
    fn bytes_in_flight_stay_within_the_budget(
        samples in 4usize..60, size in 1usize..5, workers in 1usize..9, prefetch in 1usize..9, sample_bytes in 0u64..60,
        spare in 0u64..600, seed: u64,
    ) {
        let gauge = Arc::new(Gauge::default());
        let budget = 2 * size as u64 * sample_bytes + spare;
        let config = LoaderConfig::new(size).with_workers(workers).with_prefetch(prefetch).with_budget(budget).with_order(Order::Shuffled { seed });
        let bytes = move |plan: &BatchPlan| plan.ids.len() as u64 * sample_bytes;
        let held = gauge.clone();
        let make = move |plan: &BatchPlan, worker: &Worker| {
            let batch = held.hold(bytes(plan));
            for id in &plan.ids {
                let image = image_bytes(*id, worker.image_limit());
                worker.within(plan, image, || {
                    let _image = held.hold(image);
                    std::thread::sleep(Duration::from_micros(image % 40));
                    Ok(())
                })?;
            }
            Ok((plan.ids.clone(), batch))
        };
        let loader = Loader::budgeted(samples, config, bytes, make).unwrap();
        let mut ids = BTreeSet::new();
        for batch in loader.epoch(0, 0) {
            ids.extend(batch.unwrap().0);
        }
        prop_assert_eq!(ids.len(), samples);
        prop_assert!(gauge.peak.load(SeqCst) <= budget, "{} of {budget}", gauge.peak.load(SeqCst));
        let stats = loader.stats();
        prop_assert!(stats.peak_bytes <= budget);
        prop_assert_eq!((stats.samples, stats.bytes_in_flight), (samples as u64, 0));
    }
}

#[test]
fn an_image_above_its_half_is_a_bad_sample_and_says_how_large() {
    let config = LoaderConfig::new(2).with_budget(50).with_bad_samples(BadSamples::skip(1));
    let make = |plan: &BatchPlan, worker: &Worker| {
        let load = |id| worker.within(plan, if id == 2 { 51 } else { 50 }, || Ok(id));
        plan.ids.iter().filter_map(|id| worker.sample(plan, *id, load).transpose()).collect::<Result<Vec<_>, _>>()
    };
    let loader = Loader::budgeted(4, config, |_| 0, make).unwrap();
    let batches: Vec<_> = loader.epoch(0, 0).map(Result::unwrap).collect();
    assert_eq!(batches, [vec![0, 1], vec![3]]);
    let [report] = &loader.bad_samples()[..] else { panic!("{:?}", loader.bad_samples()) };
    assert_eq!((report.id, report.reason.as_str()), (2, "it takes 51 bytes to load, expected at most 50"));
    assert_eq!(loader.stats().bad_samples, 1);
}

#[test]
fn a_budget_below_two_batches_is_refused() {
    let config = LoaderConfig::new(1).with_budget(199);
    let error = Loader::budgeted(9, config, |_| 100, |_, _| Ok(())).err().unwrap();
    assert_eq!(error.to_string(), "budget is 199 bytes, with batches of 100, expected at least two batches");
}

fn broken(id: usize) -> Result<usize, Error> {
    match id % 10 {
        3 => Err(Error::Format { path: Path::new("3.jpg").into(), reason: "truncated".into() }),
        7 => panic!("no sample\nfor me"),
        _ => Ok(id),
    }
}

fn with_broken(samples: usize, config: LoaderConfig) -> Loader<Vec<usize>> {
    let make = |plan: &BatchPlan, worker: &Worker| {
        let got: Result<Vec<_>, _> =
            plan.ids.iter().filter_map(|id| worker.sample(plan, *id, broken).transpose()).collect();
        match got? {
            ids if ids.is_empty() => {
                Err(Error::NothingLeft { epoch: plan.epoch, batch: plan.index, samples: plan.ids.len() })
            }
            ids => Ok(ids),
        }
    };
    Loader::budgeted(samples, config, |_| 0, make).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn every_id_is_delivered_or_reported(
        samples in 20usize..90, size in 1usize..6, workers in 1usize..9, substitute: bool, seed: u64,
    ) {
        let bad_samples = if substitute { BadSamples::substitute(90) } else { BadSamples::skip(90) };
        let order = Order::Shuffled { seed };
        let config = LoaderConfig::new(size).with_workers(workers).with_order(order).with_bad_samples(bad_samples);
        let loader = with_broken(samples, config);
        let (mut delivered, mut empty) = (vec![], 0);
        for batch in loader.epoch(0, 0) {
            match batch {
                Ok(ids) => delivered.extend(ids),
                Err(Error::NothingLeft { samples, .. }) => empty += samples,
                Err(other) => panic!("{other}"),
            }
        }
        let reported: BTreeSet<usize> = loader.bad_samples().iter().map(|report| report.id).collect();
        let expected: BTreeSet<usize> = (0..samples).filter(|id| [3, 7].contains(&(id % 10))).collect();
        prop_assert_eq!(&reported, &expected);
        let unique: BTreeSet<usize> = delivered.iter().copied().collect();
        prop_assert_eq!(unique.union(&reported).count(), samples);
        prop_assert!(unique.is_disjoint(&reported));
        match substitute {
            true => prop_assert_eq!((delivered.len(), empty), (samples, 0)),
            false => prop_assert_eq!((delivered.len(), unique.len()), (samples - reported.len(), delivered.len())),
        }
        // The number of workers makes no difference.
        let one = loader.config().clone().with_workers(1);
        let again: Vec<usize> = with_broken(samples, one).epoch(0, 0).flatten().flatten().collect();
        prop_assert_eq!(again, delivered);
    }
}

#[test]
fn a_panic_in_a_sample_says_which() {
    let loader = with_broken(10, LoaderConfig::new(10));
    let error = loader.epoch(0, 0).next().unwrap().unwrap_err();
    assert!(matches!(&error, Error::Format { .. }), "{error}"); // 3 comes before 7
    let loader = with_broken(10, LoaderConfig::new(10).with_bad_samples(BadSamples::skip(1)));
    let error = loader.epoch(0, 0).next().unwrap().unwrap_err();
    let expected = "more than 1 samples could not be read; the last: sample 7: the code that reads it panicked: \
                    no sample for me";
    assert_eq!(error.to_string(), expected);
}

/// A batch waits for bytes that are never free: dropping the iterator ends it, with device prefetch too.
#[test]
fn dropping_the_iterator_ends_workers_that_wait_for_bytes() {
    for finished in [false, true] {
        let (entered, entries) = mpsc::channel();
        let (ended, endings) = mpsc::channel();
        let make = move |plan: &BatchPlan, worker: &Worker| {
            worker.within(plan, 100, || {
                entered.send(()).unwrap();
                ended.send(worker.within(plan, 50, || Ok(()))).unwrap();
                Ok(())
            })
        };
        let config = LoaderConfig::new(1).with_budget(100);
        let mut loader = Loader::budgeted(1, config, |_| 0, make).unwrap();
        if finished {
            loader = loader.with_device_prefetch(100, Ok);
        }
        let batches = loader.epoch(0, 0);
        entries.recv().unwrap();
        drop(batches);
        assert!(matches!(endings.recv().unwrap(), Err(Error::Cancelled)));
        assert_eq!(loader.stats().bytes_in_flight, 0);
    }
}

/// Batches of many sizes beside images, with device prefetch or without: within the budget until the consumer drops them.
#[test]
fn batches_of_any_size_with_device_prefetch_stay_within_the_budget() {
    for (finished, seed) in [false, true].into_iter().flat_map(|finished| (0..20).map(move |seed| (finished, seed))) {
        let size = move |plan: &BatchPlan| sample_rng(seed, 0, plan.index as u64).random_range(1..=100);
        let gauge = Arc::new(Gauge::default());
        let config = LoaderConfig::new(1).with_budget(300).with_workers(3).with_prefetch(8);
        let held = gauge.clone();
        let make = move |plan: &BatchPlan, worker: &Worker| {
            let batch = held.hold(size(plan));
            worker.within(plan, 120, || {
                let _image = held.hold(120);
                Ok(())
            })?;
            Ok((plan.index, batch))
        };
        let mut loader = Loader::budgeted(40, config, size, make).unwrap().with_largest_batch(100).unwrap();
        if finished {
            loader = loader.with_device_prefetch(1000, Ok);
        }
        let order: Vec<usize> = loader.epoch(0, 0).map(|batch| batch.unwrap().0).collect();
        assert_eq!(order, (0..40).collect::<Vec<_>>());
        assert!(gauge.peak.load(SeqCst) <= 300, "{} of 300", gauge.peak.load(SeqCst));
        assert!(loader.stats().peak_bytes <= 300 && loader.stats().bytes_in_flight == 0);
    }
}

/// Two epochs of one thread share a budget with room for little more than a batch: neither waits for the other.
#[test]
fn two_epochs_at_a_time_do_not_wait_for_each_other() {
    let config = LoaderConfig::new(1).with_budget(100);
    let loader = Loader::budgeted(5, config, |_| 40, |plan, _| Ok(plan.index)).unwrap();
    let pairs: Vec<_> = loader.epoch(0, 0).zip(loader.epoch(1, 0)).map(|(a, b)| (a.unwrap(), b.unwrap())).collect();
    assert_eq!(pairs, (0..5).map(|index| (index, index)).collect::<Vec<_>>());
}

#[test]
fn a_batch_beyond_the_part_of_batches_is_an_error_and_the_next_comes() {
    let config = LoaderConfig::new(1).with_budget(200).with_prefetch(1);
    let bytes = |plan: &BatchPlan| if plan.index == 1 { 90 } else { 40 };
    let loader = Loader::budgeted(3, config.clone(), bytes, |plan, _| Ok(plan.index)).unwrap();
    let got: Vec<_> = loader.epoch(0, 0).map(|batch| batch.map_err(|error| error.to_string())).collect();
    assert_eq!(got, [Ok(0), Err("it takes 90 bytes to load, expected at most 80".into()), Ok(2)]);
    let loader = Loader::budgeted(3, config, bytes, |plan, _| Ok(plan.index)).unwrap();
    assert!(loader.clone().with_largest_batch(101).is_err());
    assert_eq!(loader.with_largest_batch(90).unwrap().epoch(0, 0).flatten().count(), 3);
}

/// Substitutes are drawn with the order's weights, and statistics count delivered samples only.
#[test]
fn substitutes_are_drawn_as_samples_are_and_skipped_samples_are_not_counted() {
    let order = Order::Weighted { seed: 5, weights: Weights::new(&[1.0, 0.0, 1.0, 1.0, 0.0, 1.0]).unwrap() };
    let config = LoaderConfig::new(6).with_order(order).with_bad_samples(BadSamples::substitute(6));
    let make = |plan: &BatchPlan, worker: &Worker| {
        let read = |id| if id == 3 { broken(3) } else { Ok(id) };
        plan.ids.iter().filter_map(|id| worker.sample(plan, *id, read).transpose()).collect::<Result<Vec<_>, _>>()
    };
    let loader = Loader::budgeted(6, config.clone(), |_| 0, make).unwrap();
    for epoch in 0..20 {
        let ids: Vec<usize> = loader.epoch(epoch, 0).flat_map(Result::unwrap).collect();
        assert!(ids.len() == 6 && ids.iter().all(|id| [0, 2, 5].contains(id)), "{ids:?}");
    }
    let skip = config.with_order(Order::Sequential).with_bad_samples(BadSamples::skip(6));
    let loader = Loader::budgeted(6, skip, |_| 0, make).unwrap();
    assert_eq!(loader.epoch(0, 0).flat_map(Result::unwrap).count(), 5);
    assert_eq!((loader.stats().samples, loader.stats().batches), (5, 1));
}

#[test]
fn device_prefetch_keeps_the_order_and_its_depth() {
    let finished = Arc::new(AtomicUsize::new(0));
    let count = finished.clone();
    let config = LoaderConfig::new(2).with_workers(3).with_prefetch(4);
    let loader = Loader::budgeted(40, config, |_| 10, |plan, _| Ok(plan.ids.clone()));
    let loader = loader.unwrap().with_device_prefetch(25, move |ids| {
        count.fetch_add(1, SeqCst);
        Ok(ids)
    });
    let mut batches = loader.epoch(0, 0);
    assert_eq!(batches.next().unwrap().unwrap(), [0, 1]);
    while finished.load(SeqCst) < 3 {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(finished.load(SeqCst), 3); // one was taken, two wait
    let rest: Vec<usize> = batches.by_ref().flat_map(Result::unwrap).collect();
    assert_eq!(rest, (2..40).collect::<Vec<_>>());
    drop(loader.epoch(1, 3)); // in the middle, with batches waiting

    let panics = loader.with_device_prefetch(0, |_| panic!("no device"));
    let error = panics.epoch(0, 0).next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the code that copies batches to the device panicked: no device");
}
