//! How parameters get into a store.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Initializer, Linear, LinearConfig};
use kiln_checkpointing::{Creation, FileStore, HostStore, InitialRows, Streamed};

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
    let rows =
        InitialRows::default().with(path, |rows, device| NORMAL.init::<2, _>([rows.len(), WIDTH], device).into_value());
    Creation { part_bytes: Some(64 << 10), rows, ..Creation::default() }
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
    let (streamed, hollow) = Streamed::open_with(open(), model(), &how("words.weight").rows).unwrap();
    let took = HEAP.peak_bytes() - before;
    assert!(took < 256 << 10, "{took} bytes");
    assert!(weights(&streamed.filled(hollow).unwrap()) == expected);
}

#[test]
fn rows_of_another_shape_are_refused() {
    let narrow = InitialRows::default()
        .with("words.weight", |rows, device| NORMAL.init::<2, _>([rows.len(), 3], device).into_value());
    let how = Creation { rows: narrow, ..Creation::default() };
    let refused = Streamed::create_with(HostStore::new(), model(), &how).unwrap_err().to_string();
    assert!(refused.contains("rows of words.weight are [4096, 3] of F32, expected [4096, 64] of F32"), "{refused}");
}
