//! Parameters that a store has in bf16: the same bits as in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{DType, Device, Tensor};
use kiln_checkpointing::{
    Blob, Chain, Creation, Error, FileStore, HostStore, InitialValues, Parts, Plan, Store, Streamed,
};
use kiln_optimizers::{AdamW8bit, StochasticBf16};

use super::{BLOCKS, Block, STEPS, blocks, input, plans, weights};
use crate::support::{alone, loss};

/// Casts parameters to bf16.
struct Narrow;

impl ModuleMapper for Narrow {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| Tensor::from_inner(tensor.inner().cast(DType::BF16)).require_grad())
    }
}

fn optimizers() -> [(&'static str, ModuleOptimizer); 2] {
    let adamw = AdamWConfig::new();
    let in_8bit = AdamW8bit::new(&adamw).unwrap().with_min_elements(1);
    [("adamw", StochasticBf16::new(adamw.build(), 3).into()), ("adamw8bit", StochasticBf16::new(in_8bit, 3).into())]
}

/// Adds the gradients of a micro-batch in f32.
struct Add<'a>(&'a mut GradientsParams, GradientsParams);

impl ModuleVisitor for Add<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = self.1.remove::<D>(param.id) else { return };
        let gradient = gradient.cast(DType::F32);
        let sum = self.0.remove::<D>(param.id).map_or_else(|| gradient.clone(), |sum| sum + gradient.clone());
        self.0.register(param.id, sum);
    }
}

fn in_memory(mut optimizer: ModuleOptimizer) -> Vec<Vec<u32>> {
    let mut model = blocks().map(&mut Narrow);
    let mut all = vec![weights(&model)];
    for step in 0..STEPS {
        let mut sums = GradientsParams::new();
        for micro_batch in 0..2 {
            let x = input(step, micro_batch).cast(DType::BF16);
            let y = Chain::new(&model).run(&Plan::none(BLOCKS), x, Block::forward).unwrap();
            let gradients = GradientsParams::from_grads(loss(y.cast(DType::F32)).backward(), &model);
            model.visit(&mut Add(&mut sums, gradients));
        }
        model = optimizer.step(1e-2, model, sums);
        all.push(weights(&model));
    }
    all
}

fn step(
    (streamed, model): &(Streamed, Vec<Block>),
    optimizer: &ModuleOptimizer,
    plan: &Plan,
    step: usize,
) -> Result<(), Error> {
    for micro_batch in 0..2 {
        let x = input(step, micro_batch).cast(DType::BF16);
        let y = Chain::new(model).streamed(streamed).run(plan, x, Block::forward)?;
        let _ = loss(y.cast(DType::F32)).backward();
    }
    streamed.update(model, optimizer, 1e-2, 1.0)?;
    streamed.commit(&format!("{}", step + 1))
}

/// All parameters of a model in a dtype.
fn all_in(model: &impl Module, dtype: DType) -> BTreeMap<String, DType> {
    struct Paths(Vec<String>, Vec<String>);
    impl ModuleVisitor for Paths {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.pop();
        }
        fn visit_float<const D: usize>(&mut self, _: &Param<Tensor<D>>) {
            self.1.push(self.0.join("."));
        }
    }
    let mut paths = Paths(vec![], vec![]);
    model.visit(&mut paths);
    paths.1.into_iter().map(|path| (path, dtype)).collect()
}

/// A store that has parameters in bf16, whose values come as f32, divided or not.
fn narrowed(store: impl Store + 'static, parts: Option<Parts>) -> (Streamed, Vec<Block>) {
    let how = Creation { dtypes: all_in(&blocks(), DType::BF16), parts, ..Creation::default() };
    Streamed::create_with(store, blocks(), &how).unwrap()
}

/// Parts of four rows of a block's weight, and for state in blocks of all of its elements.
const PARTS: [Parts; 2] = [Parts { bytes: 4 * 8 * 4, multiple_of: 1 }, Parts { bytes: 4 * 8 * 4, multiple_of: 64 }];

#[test]
fn a_streamed_run_has_the_bits_of_the_run_in_memory() {
    let _alone = alone();
    for (name, optimizer) in optimizers() {
        let expected = in_memory(optimizer.clone());
        assert!(expected[0] != expected[1] && expected[1] != expected[2]);
        let parts = PARTS[usize::from(name == "adamw8bit")];
        for plan in plans() {
            let own = Streamed::create(HostStore::new(), blocks().map(&mut Narrow)).unwrap();
            let divided = narrowed(HostStore::new(), Some(parts));
            assert_eq!(divided.0.parts(divided.1[0].linear.weight.id).len(), if name == "adamw" { 2 } else { 1 });
            for run in [own, narrowed(HostStore::new(), None), divided] {
                for (done, expected) in expected.iter().enumerate() {
                    let filled = run.0.filled(run.1.clone()).unwrap();
                    assert!(weights(&filled) == *expected, "{name}, {plan}, after {done} steps");
                    step(&run, &optimizer, &plan, done).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_run_goes_on_from_a_store_whose_model_is_built_in_f32() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let (_, optimizer) = optimizers().into_iter().next().unwrap();
    let (expected, plan) = (in_memory(optimizer.clone()), Plan::stream(BLOCKS, 2).unwrap());
    let mut run = narrowed(FileStore::open(directory.path()).unwrap(), Some(PARTS[0]));
    for (done, expected) in expected.iter().enumerate().skip(1) {
        step(&run, &optimizer, &plan, done - 1).unwrap();
        drop(run);
        run = Streamed::open(FileStore::open(directory.path()).unwrap(), blocks()).unwrap();
        assert_eq!(run.1[0].linear.weight.val().dtype(), DType::BF16);
        let filled = run.0.filled(run.1.clone()).unwrap();
        assert!(weights(&filled) == *expected, "after {done} steps");
    }
}

#[test]
fn an_optimizer_that_does_not_widen_changes_nothing() {
    let _alone = alone();
    let run = narrowed(HostStore::new(), None);
    let values = |run: &(Streamed, Vec<Block>)| weights(&run.0.filled(run.1.clone()).unwrap());
    let (before, plan) = (values(&run), Plan::stream(BLOCKS, 1).unwrap());
    for optimizer in [AdamWConfig::new().init(), SgdConfig::new().init()] {
        match step(&run, &optimizer, &plan, 0) {
            Err(Error::StoreMismatch { reason }) => {
                assert!(reason.contains("of BF16 with a gradient of F32"), "{reason}")
            }
            other => panic!("{other:?}"),
        }
        assert!(values(&run) == before);
        run.0.discard();
    }
    let (_, optimizer) = optimizers().into_iter().next().unwrap();
    step(&run, &optimizer, &plan, 0).unwrap();
    assert!(values(&run) == in_memory(optimizer)[1]);
}

#[test]
fn a_parameter_in_bf16_is_divided_as_one_in_f32() {
    let _alone = alone();
    let rows = |rows: std::ops::Range<usize>, device: &Device| {
        let values = rows.flat_map(|row| (0..8).map(move |column| 1.0 + (8 * row + column) as f32 / 512.0));
        Tensor::<1>::from_floats(&values.collect::<Vec<f32>>()[..], device).reshape([-1, 8])
    };
    let how = Creation {
        parts: Some(PARTS[0]),
        dtypes: [("0.linear.weight".into(), DType::BF16)].into(),
        values: InitialValues::default().with_rows("0.linear.weight", rows),
        ..Creation::default()
    };
    let (streamed, model) = Streamed::create_with(HostStore::new(), blocks(), &how).unwrap();
    let [narrow, wide] = [&model[0], &model[1]].map(|block| block.linear.weight.id);
    assert_eq!([streamed.parts(narrow), streamed.parts(wide)], [[0..4, 4..8], [0..4, 4..8]]);
    assert_eq!([narrow, wide].map(|id| streamed.value_of_part(id, 0).unwrap().len()), [2 * 4 * 8, 4 * 4 * 8]);
    let read = streamed.rows(narrow).unwrap().read(1);
    assert_eq!(read, rows(4..8, &Device::flex()).cast(DType::BF16).into_data().convert_dtype(DType::F32));
    let value = streamed.value::<2>(narrow, &Device::flex()).unwrap().unwrap();
    assert_eq!(value.into_data(), rows(0..8, &Device::flex()).cast(DType::BF16).into_data());
}

/// A store that counts the bytes that it moves.
#[derive(Default)]
struct Counting {
    store: HostStore,
    moved: Arc<AtomicUsize>,
}

impl Store for Counting {
    fn read(&self, blob: Blob, take: &mut dyn FnMut(&[u8], usize)) -> Result<bool, Error> {
        self.store.read(blob, &mut |piece, rest| {
            self.moved.fetch_add(piece.len(), Relaxed);
            take(piece, rest);
        })
    }

    fn write(&self, blob: Blob, bytes: &[u8]) -> Result<(), Error> {
        self.moved.fetch_add(bytes.len(), Relaxed);
        self.store.write(blob, bytes)
    }

    fn commit(&self, blobs: &[Blob], note: &str) -> Result<(), Error> {
        self.store.commit(blobs, note)
    }

    fn note(&self) -> Result<Option<String>, Error> {
        self.store.note()
    }
}

/// Bytes that the second step moves for each parameter, with the norm of all gradients.
fn moved(dtype: DType, optimizer: &ModuleOptimizer) -> f64 {
    let store = Counting::default();
    let moved = store.moved.clone();
    let layers: Vec<Linear> = (0..4).map(|_| LinearConfig::new(256, 256).init(&super::device())).collect();
    let how = Creation { dtypes: all_in(&layers, dtype), ..Creation::default() };
    let (streamed, layers) = Streamed::create_with(store, layers, &how).unwrap();
    for _ in 0..2 {
        moved.store(0, Relaxed);
        let x = Tensor::<2>::ones([1, 256], &super::device()).cast(dtype);
        let chain = Chain::new(&layers).streamed(&streamed);
        let y = chain.run(&Plan::stream(4, 1).unwrap(), x, |layer, x| layer.forward(x)).unwrap();
        let _ = loss(y.cast(DType::F32)).backward();
        streamed.each_gradient(&Device::flex(), |_| {}).unwrap();
        streamed.update(&layers, optimizer, 1e-3, 1.0).unwrap();
        streamed.commit("").unwrap();
    }
    moved.load(Relaxed) as f64 / layers.iter().map(Module::num_params).sum::<usize>() as f64
}

#[test]
fn state_in_8_bits_and_parameters_in_bf16_move_little_more_than_half() {
    let _alone = alone();
    let adamw = AdamWConfig::new();
    let in_8bit = AdamW8bit::new(&adamw).unwrap();
    let whole = moved(DType::F32, &adamw.init());
    let narrow = moved(DType::F32, &in_8bit.clone().into());
    let least = moved(DType::BF16, &StochasticBf16::new(in_8bit, 3).into());
    eprintln!("bytes for each parameter: {whole:.1}, with 8-bit state {narrow:.1}, and bf16 parameters {least:.1}");
    // Values are read three times and written once, gradients are written once and read twice, moments are read and written.
    assert!((44.0..44.9).contains(&whole), "{whole}");
    assert!((32.0..33.0).contains(&narrow), "{narrow}");
    assert!(least <= 0.6 * whole, "{least} of {whole}");
}
