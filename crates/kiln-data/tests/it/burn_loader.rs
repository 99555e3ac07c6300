//! The loader behind burn's `DataLoader` trait.

use burn::data::dataloader::DataLoader;
use burn::tensor::Device;
use kiln_data::{BurnLoader, Error, Loader, LoaderConfig, Order};

/// Ids, and whether the device they were sent to tracks gradients.
type Batch = (Vec<usize>, bool);

const SAMPLES: usize = 23;

/// Shuffled batches of five ids, for a device without gradients.
fn burn_loader() -> BurnLoader<Vec<usize>, Batch> {
    let config = LoaderConfig::new(5).with_order(Order::Shuffled { seed: 3 });
    let loader = Loader::new(SAMPLES, config, |plan| Ok(plan.ids.clone())).unwrap();
    BurnLoader::new(loader, &Device::flex(), |ids, device| (ids, device.is_autodiff()))
}

fn ids(loader: &dyn DataLoader<Batch>) -> Vec<usize> {
    loader.iter().flat_map(|batch| batch.unwrap().0).collect()
}

fn sorted(mut ids: Vec<usize>) -> Vec<usize> {
    ids.sort_unstable();
    ids
}

#[test]
fn every_iteration_is_another_complete_epoch() {
    let loader = burn_loader();
    let (first, second) = (ids(&loader), ids(&loader));
    assert_ne!(first, second);
    assert_eq!([sorted(first.clone()), sorted(second.clone())], [(); 2].map(|()| (0..SAMPLES).collect::<Vec<_>>()));
    let again = burn_loader();
    assert_eq!([ids(&again), ids(&again)], [first, second]);
}

#[test]
fn a_later_run_goes_on_with_the_epoch_that_comes() {
    let loader = burn_loader();
    let epochs = [(); 3].map(|()| ids(&loader));
    assert_eq!(ids(&burn_loader().starting_at(2)), epochs[2]);
}

#[test]
fn progress_counts_the_items_of_the_loader() {
    let loader = burn_loader();
    assert_eq!(loader.num_items(), SAMPLES);
    let mut batches = loader.iter();
    let mut seen = vec![];
    loop {
        let progress = batches.progress();
        assert_eq!((progress.items_total, progress.unit.as_deref()), (loader.num_items(), Some("items")));
        seen.push(progress.items_processed);
        if batches.next().is_none() {
            break;
        }
    }
    assert_eq!(seen, [0, 5, 10, 15, 20, 23]);
    assert!(batches.progress().is_completed());
}

#[test]
fn a_slice_yields_its_own_ids_only() {
    let loader = burn_loader();
    for (start, end) in [(0, 10), (4, 17), (20, 23), (7, 8), (0, SAMPLES)] {
        let slice = loader.slice(start, end);
        assert_eq!((slice.num_items(), sorted(ids(&*slice))), (end - start, (start..end).collect()));
        assert_eq!(slice.iter().progress().items_total, end - start);
    }
    let inner = loader.slice(4, 17).slice(3, 5);
    assert_eq!(sorted(ids(&*inner)), [7, 8]);
    assert!(ids(&*loader.slice(9, 9)).is_empty());
}

#[test]
fn slices_that_cover_the_loader_cover_an_epoch() {
    let devices = [(); 3].map(|()| Device::flex());
    let parts = burn::data::dataloader::split::split_dataloader(std::sync::Arc::new(burn_loader()), &devices);
    assert_eq!(sorted(parts.iter().flat_map(|part| ids(&**part)).collect()), (0..SAMPLES).collect::<Vec<_>>());
}

#[test]
fn another_device_gets_the_same_batches() {
    let loader = burn_loader();
    let moved = loader.to_device(&Device::flex().autodiff());
    for (here, there) in loader.iter().zip(moved.iter()) {
        let (here, there) = (here.unwrap(), there.unwrap());
        assert_eq!((&here.0, here.1, there.1), (&there.0, false, true));
    }
    assert!(moved.slice(0, 5).iter().all(|batch| batch.unwrap().1));
}

#[test]
fn failures_arrive_at_their_batch_and_the_rest_follows() {
    let make = |plan: &kiln_data::BatchPlan| match plan.index {
        1 => Err(Error::Tokenizer { reason: "refused".into() }),
        2 => panic!("cursed"),
        index => Ok(index),
    };
    let loader = Loader::new(4, LoaderConfig::new(1), make).unwrap();
    let loader = BurnLoader::new(loader, &Device::flex(), |index, _| index);
    let got: Vec<_> = loader.iter().map(|batch| batch.map_err(|error| error.to_string())).collect();
    let panicked = "batch 2 of epoch 0: the loading code panicked: cursed";
    assert_eq!(got, [Ok(0), Err("tokenizer: refused".into()), Err(panicked.into()), Ok(3)]);
}
