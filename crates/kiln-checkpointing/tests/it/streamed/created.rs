//! How parameters get into a store.

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{Embedding, EmbeddingConfig, Initializer, Linear, LinearConfig};
use burn::store::ModuleSnapshot;
use burn::store::burn_pack::Tensor as Filed;
use burn::tensor::{Bytes, Tensor};
use kiln_checkpointing::{Creation, FileStore, HostStore, InitialValues, Parts, Streamed};

use super::{device, weights};
use crate::HEAP;
use crate::support::alone;

const ROWS: usize = 4096;
const WIDTH: usize = 64;
const NORMAL: Initializer = Initializer::Normal { mean: 0.0, std: 0.1 };

#[derive(Module, Debug)]
struct Model {
    first: Linear,
    words: Embedding,
    last: Linear,
}

/// A model whose parameters are not initialised yet.
fn model() -> Model {
    device().seed(5);
    Model {
        first: LinearConfig::new(8, 8).init(&device()),
        words: EmbeddingConfig::new(ROWS, WIDTH).with_initializer(NORMAL).init(&device()),
        last: LinearConfig::new(8, 8).init(&device()),
    }
}

fn how(path: &str) -> Creation {
    let values = InitialValues::default()
        .with_rows(path, |rows, device| NORMAL.init::<2, _>([rows.len(), WIDTH], device).into_value());
    Creation { parts: Some(Parts { bytes: 64 << 10, multiple_of: 1 }), values, ..Creation::default() }
}

#[test]
fn a_matrix_that_is_made_by_rows_has_the_same_bits_in_the_memory_of_some_rows() {
    let _alone = alone();
    let expected = weights(&model());
    for path in ["words.weight", "other"] {
        // A store of the host is on the same heap: the values themselves count.
        let (before, values) = (HEAP.live_bytes(), 4 * ROWS * WIDTH);
        HEAP.reset_peak();
        let (streamed, hollow) = Streamed::create_with(HostStore::new(), model(), &how(path)).unwrap();
        let took = HEAP.peak_bytes() - before;
        assert_eq!(took < values + (256 << 10), path == "words.weight", "{path}: {took} bytes for {values}");
        assert!(weights(&streamed.filled(hollow.clone()).unwrap()) == expected, "{path}");
        assert!(hollow.words.weight.is_require_grad() && weights(&hollow) != expected);
    }
}

#[test]
fn rows_are_not_used_for_a_parameter_that_has_values() {
    let _alone = alone();
    let model = model();
    let expected = weights(&model); // initialises all
    device().seed(6);
    let (streamed, hollow) = Streamed::create_with(HostStore::new(), model, &how("words.weight")).unwrap();
    assert!(weights(&streamed.filled(hollow).unwrap()) == expected);
}

#[test]
fn a_store_is_opened_again_in_the_memory_of_some_rows() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let open = || FileStore::open(directory.path()).unwrap();
    let (streamed, hollow) = Streamed::create_with(open(), model(), &how("words.weight")).unwrap();
    let expected = weights(&streamed.filled(hollow).unwrap());
    drop(streamed);
    let before = HEAP.live_bytes();
    HEAP.reset_peak();
    let (streamed, hollow) = Streamed::open_with(open(), model(), &how("words.weight").values).unwrap();
    let took = HEAP.peak_bytes() - before;
    assert!(took < 256 << 10, "{took} bytes");
    assert!(weights(&streamed.filled(hollow).unwrap()) == expected);
}

#[test]
fn rows_of_another_shape_are_refused() {
    let _alone = alone();
    let narrow = InitialValues::default()
        .with_rows("words.weight", |rows, device| NORMAL.init::<2, _>([rows.len(), 3], device).into_value());
    let how = Creation { values: narrow, ..Creation::default() };
    let refused = Streamed::create_with(HostStore::new(), model(), &how).unwrap_err().to_string();
    assert!(refused.contains("rows of words.weight are [4096, 3] of F32, expected [4096, 64] of F32"), "{refused}");
}

/// A file with the values of `model`, as tensors whose bytes are in it.
fn filed(model: &Model, file: &std::path::Path) -> Vec<Filed> {
    let mut written = vec![];
    let tensors = model.collect(None, None, false).into_iter().map(|tensor| {
        let bytes = tensor.to_bytes().unwrap();
        let start = written.len();
        written.extend_from_slice(&bytes);
        (tensor, bytes.len() as u64, start as u64)
    });
    let tensors: Vec<_> = tensors.collect();
    std::fs::write(file, &written).unwrap();
    let of_file = |(tensor, length, start): (Filed, u64, u64)| {
        Filed::new(tensor.name, tensor.dtype, tensor.shape, None, Bytes::from_file(file, length, start))
    };
    tensors.into_iter().map(of_file).collect()
}

#[test]
fn tensors_of_a_file_are_read_some_rows_at_a_time_and_the_others_have_the_bits_of_a_model_in_memory() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("values");
    let mut tensors = filed(&model().map(&mut Doubled), &file);
    tensors.retain(|tensor| !tensor.name.starts_with("last"));
    let values = InitialValues::default().with_tensors(tensors);
    let expected = weights(&values.give(model()).unwrap());
    assert!(expected != weights(&model()));
    let (before, all) = (HEAP.live_bytes(), 4 * ROWS * WIDTH);
    HEAP.reset_peak();
    let how = Creation { parts: Some(Parts { bytes: 64 << 10, multiple_of: 1 }), values, ..Creation::default() };
    let (streamed, hollow) = Streamed::create_with(HostStore::new(), model(), &how).unwrap();
    let took = HEAP.peak_bytes() - before;
    assert!(took < all + (256 << 10), "{took} bytes for {all}");
    assert!(weights(&streamed.filled(hollow).unwrap()) == expected);
}

#[test]
fn tensors_of_another_shape_are_refused() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let mut tensors = filed(&model(), &folder.path().join("values"));
    let words = tensors.iter_mut().find(|tensor| tensor.name == "words.weight").unwrap();
    words.shape = [WIDTH, ROWS].into();
    let how = Creation { values: InitialValues::default().with_tensors(tensors), ..Creation::default() };
    let refused = Streamed::create_with(HostStore::new(), model(), &how).unwrap_err().to_string();
    assert!(refused.contains("values of words.weight are [64, 4096] of F32, expected [4096, 64] of F32"), "{refused}");
    let refused = how.values.give(model()).unwrap_err().to_string();
    assert!(refused.contains("words.weight"), "{refused}");
}

struct Doubled;

impl ModuleMapper for Doubled {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| tensor * 2.0)
    }
}
