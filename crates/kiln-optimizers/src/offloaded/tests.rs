//! State that is copied from step to step, as on a device with its own memory, and state that stays, on the CPU device.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, DynOptimizer, DynState, LambConfig,
    LearningRate, LionConfig, MuonConfig, Optimizer, RecordState, RmsPropConfig, SgdConfig, StateSink, StateSource,
};
use burn::tensor::{DType, Device, Tensor, TensorData};
use proptest::prelude::*;

use super::*;
use crate::elementwise::Elementwise;
use crate::fused::{FusedAdam, FusedAdamW, FusedSgd};
use crate::place::Place;
use crate::quantized::{AdamW4bit, AdamW8bit};

const PLACES: [Place; 2] = [Place::Host, Place::Device];

fn values<const D: usize>(shape: [usize; D], seed: usize, dtype: DType) -> Tensor<D> {
    let value = |i: usize| ((i * 37 + seed * 101) % 97) as f32 / 48.5 - 1.0;
    let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
    Tensor::<D>::from_data(TensorData::new(values, shape), (&Device::flex(), DType::F32)).cast(dtype)
}

fn bits<const D: usize>(tensor: &Tensor<D>) -> TensorData {
    tensor.to_data()
}

type Record = Vec<(String, String)>;

fn sink(state: &impl RecordState) -> StateSink {
    let mut sink = StateSink::default();
    state.state_flatten("p", &mut sink);
    sink
}

/// The leaves of a state's record, by their bits.
fn record(state: &impl RecordState) -> Record {
    lines(sink(state))
}

fn lines(sink: StateSink) -> Record {
    let tensors = sink
        .tensors
        .into_iter()
        .map(|(name, data)| (name, format!("{:?} {:?} {:?}", data.dtype(), data.shape(), data.as_bytes())));
    let scalars = sink.scalars.into_iter().map(|(name, value)| (name, format!("{value:?}")));
    tensors.chain(scalars).collect()
}

/// Reads the state of one optimizer from the record of another's state.
fn reloaded<S: RecordState>(state: &impl RecordState) -> S {
    let sink = sink(state);
    let mut source = StateSource::new(sink.scalars.into_iter().collect());
    sink.tensors.into_iter().for_each(|(name, data)| source.insert_tensor(name, data));
    S::state_unflatten("p", &mut source, &Device::flex()).unwrap()
}

/// Takes steps with an optimizer alone and with its state offloaded: parameters and records must have the same bits.
fn same<O: Optimizer, const D: usize>(
    name: &str,
    alone: &O,
    offloaded: &Offloaded<O>,
    shape: [usize; D],
    dtype: DType,
) {
    for place in PLACES {
        let (mut got, mut expected) = (values(shape, 1, dtype), values(shape, 1, dtype));
        let (mut state, mut expected_state) = (None, None);
        for step in 0..4 {
            let gradient = values(shape, step + 2, dtype);
            (got, state) = offloaded.step_at(place, 1e-2, got, gradient.clone(), state);
            (expected, expected_state) = alone.step(1e-2, expected, gradient, expected_state);
            let at = format!(
                "{name} in {offloaded:?} {place:?} {shape:?} {dtype:?} step {step}",
                offloaded = offloaded.elements
            );
            assert_eq!(bits(&got), bits(&expected), "{at}");
            assert_eq!(state.as_ref().map(record), expected_state.as_ref().map(record), "{at}");
        }
    }
}

fn whole<O: Optimizer, const D: usize>(name: &str, optimizer: O, shape: [usize; D], dtype: DType) {
    same(name, &optimizer, &Offloaded::new(optimizer.clone()), shape, dtype);
}

fn chunked<O: Elementwise, const D: usize>(name: &str, optimizer: O, shape: [usize; D], sizes: &[usize], dtype: DType) {
    whole(name, optimizer.clone(), shape, dtype);
    for elements in sizes {
        same(name, &optimizer, &Offloaded::by_chunks(optimizer.clone(), *elements).unwrap(), shape, dtype);
    }
}

/// All optimizers that are claimed to be elementwise.
fn elementwise<const D: usize>(shape: [usize; D], sizes: &[usize], dtype: DType) {
    let decay = || Some(WeightDecayConfig::new(0.05));
    let momentum = || Some(MomentumConfig::new().with_nesterov(true));
    chunked("sgd", SgdConfig::new().build(), shape, sizes, dtype);
    chunked(
        "momentum",
        SgdConfig::new().with_momentum(momentum()).with_weight_decay(decay()).build(),
        shape,
        sizes,
        dtype,
    );
    chunked("adam", AdamConfig::new().with_amsgrad(true).with_weight_decay(decay()).build(), shape, sizes, dtype);
    chunked("adamw", AdamWConfig::new().with_cautious_weight_decay(true).build(), shape, sizes, dtype);
    chunked("lion", LionConfig::new().with_weight_decay(0.1).build(), shape, sizes, dtype);
    chunked(
        "rmsprop",
        RmsPropConfig::new().with_centered(true).with_weight_decay(decay()).build(),
        shape,
        sizes,
        dtype,
    );
    chunked("adagrad", AdaGradConfig::new().with_lr_decay(0.1).with_weight_decay(decay()).build(), shape, sizes, dtype);
    chunked("adan", AdanConfig::new().with_weight_decay(0.1).build(), shape, sizes, dtype);
    chunked("fused sgd", FusedSgd::from(SgdConfig::new().with_momentum(momentum())), shape, sizes, dtype);
    chunked("fused adam", FusedAdam::from(AdamConfig::new()), shape, sizes, dtype);
    chunked("fused adamw", FusedAdamW::from(AdamWConfig::new()), shape, sizes, dtype);
}

#[test]
fn bits_are_those_of_the_optimizer_alone() {
    elementwise([1], &[1, 2], DType::F32);
    elementwise([0, 3], &[1], DType::F32);
    elementwise([13], &[1, 2, 3, 4, 6, 7, 12, 13, 14], DType::F32);
    elementwise([3, 5], &[1, 4, 15], DType::F32);
    elementwise([2, 3, 4], &[5, 7], DType::F32);
    elementwise([2, 2, 3, 3], &[1, 8, 36], DType::F32);
    elementwise([257, 131], &[4096], DType::F32);
}

#[test]
fn state_that_a_record_would_change_stays_where_it_is() {
    elementwise([3, 5], &[4], DType::BF16);
    elementwise([3, 5], &[4], DType::F64);
}

#[test]
fn optimizers_that_need_the_whole_parameter() {
    for shape in [[4, 6], [1, 7]] {
        whole("adafactor", AdafactorConfig::new().build(), shape, DType::F32);
        whole("muon", MuonConfig::new().build(), shape, DType::F32);
        whole("lamb", LambConfig::new().build(), shape, DType::F32);
    }
    whole("adafactor", AdafactorConfig::new().build(), [5], DType::F32);
    // State in U8 and F32, which its record keeps.
    for shape in [[64, 64], [67, 129]] {
        whole("8-bit adamw", AdamW8bit::new(&AdamWConfig::new()).unwrap(), shape, DType::F32);
        whole("4-bit adamw", AdamW4bit::new(&AdamWConfig::new()).unwrap(), shape, DType::F32);
    }
    whole("lamb", LambConfig::new().build(), [1], DType::F32);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn bits_are_the_same_in_any_chunks(rows in 1_usize..12, columns in 1_usize..12, elements in 1_usize..150) {
        let optimizer = AdamWConfig::new().build();
        same("adamw", &optimizer, &Offloaded::by_chunks(optimizer.clone(), elements).unwrap(), [rows, columns], DType::F32);
    }

    #[test]
    fn a_run_resumes_with_and_without_offload_and_in_other_chunks(
        steps in prop::collection::vec((0_usize..3, 1_usize..40, 0_usize..2), 1..6),
    ) {
        let alone = AdamConfig::new().with_amsgrad(true).build();
        let (mut got, mut expected) = (values([5, 7], 1, DType::F32), values([5, 7], 1, DType::F32));
        let mut last: Option<OffloadedState<_>> = None;
        let mut expected_state = None;
        for (step, (how, elements, place)) in steps.into_iter().enumerate() {
            let gradient = values([5, 7], step + 2, DType::F32);
            (expected, expected_state) = alone.step(0.1, expected, gradient.clone(), expected_state);
            // This step gets the state of the last one from a record, or as it is.
            let state = last.as_ref().map(|state| if how == 0 { state.clone() } else { reloaded(state) });
            if how == 2 {
                let (tensor, state) = alone.step(0.1, got, gradient, state.as_ref().map(reloaded));
                (got, last) = (tensor, state.as_ref().map(reloaded));
            } else {
                let optimizer = Offloaded::by_chunks(alone.clone(), elements).unwrap();
                (got, last) = optimizer.step_at(PLACES[place], 0.1, got, gradient, state);
            }
            prop_assert_eq!(bits(&got), bits(&expected));
            prop_assert_eq!(last.as_ref().map(record), expected_state.as_ref().map(record));
        }
    }
}

/// An optimizer whose state has a number for each block of four elements, and which can be made to fail.
#[derive(Clone)]
struct Blocks {
    /// Steps that are left until one panics.
    left: Arc<AtomicUsize>,
}

#[derive(Clone)]
struct BlocksState {
    largest: Tensor<1>,
}

impl RecordState for BlocksState {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        out.push_tensor(prefix, "largest", self.largest.to_data());
    }
    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        Some(Self { largest: Tensor::from_data(source.take_tensor(prefix, "largest")?, device) })
    }
}

impl Optimizer for Blocks {
    type State<const D: usize> = BlocksState;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<BlocksState>,
    ) -> (Tensor<D>, Option<BlocksState>) {
        assert!(self.left.fetch_sub(1, Relaxed) > 1, "the step fails");
        let (dims, count) = (tensor.dims(), tensor.shape().num_elements());
        let gradient: Tensor<1> = grad.reshape([count]);
        let blocks = count.div_ceil(4);
        let padded = Tensor::<1>::zeros([blocks * 4], &gradient.device()).slice_assign(0..count, gradient.abs());
        let largest: Tensor<1> = padded.reshape([blocks, 4]).max_dim(1).reshape([blocks]);
        let largest = match state {
            Some(state) => largest.max_pair(state.largest),
            None => largest,
        };
        let each: Tensor<1> = largest.clone().reshape([blocks, 1]).expand([blocks, 4]).reshape([blocks * 4]);
        (tensor - each.slice(0..count).reshape(dims) * lr, Some(BlocksState { largest }))
    }

    fn to_device<const D: usize>(state: BlocksState, device: &Device) -> BlocksState {
        BlocksState { largest: state.largest.to_device(device) }
    }
}

impl Elementwise for Blocks {}

fn blocks(left: usize) -> Blocks {
    Blocks { left: Arc::new(AtomicUsize::new(left)) }
}

#[test]
fn state_with_a_row_for_each_block_is_divided_by_rows() {
    for elements in [4, 8, 12, 20] {
        for shape in [[5, 9], [4, 8], [1, 3]] {
            same("blocks", &blocks(1000), &Offloaded::by_chunks(blocks(1000), elements).unwrap(), shape, DType::F32);
        }
        // From the record of a whole parameter, and in other chunks.
        for (place, next) in PLACES.into_iter().flat_map(|place| [4, 8, 12, 20, 5].map(|next| (place, next))) {
            let gradient = || values([5, 9], 2, DType::F32);
            let (tensor, state) = blocks(9).step(0.1, values([5, 9], 1, DType::F32), gradient(), None);
            let first = Offloaded::by_chunks(blocks(99), elements).unwrap();
            let (got, got_state) = first.step_at(place, 0.1, tensor.clone(), gradient(), state.as_ref().map(reloaded));
            let (expected, state) = blocks(9).step(0.1, tensor, gradient(), state);
            assert_eq!(bits(&got), bits(&expected), "{elements} {next}");
            // Chunks of five elements would divide a block: the parameter is updated as a whole.
            let second = Offloaded::by_chunks(blocks(99), next).unwrap();
            let (got, got_state) = second.step_at(place, 0.1, got, gradient(), got_state);
            let (expected, state) = blocks(9).step(0.1, expected, gradient(), state);
            assert_eq!(bits(&got), bits(&expected), "{elements} {next}");
            assert_eq!(got_state.as_ref().map(record), state.as_ref().map(record));
        }
    }
}

#[test]
fn a_step_that_panics_leaves_parameter_and_state_as_they_were() {
    for place in PLACES {
        for chunk in 1..=4 {
            let working = Offloaded::by_chunks(blocks(1000), 8).unwrap();
            let gradient = || values([4, 8], 3, DType::F32);
            let (tensor, state) = working.step_at(place, 0.1, values([4, 8], 1, DType::F32), gradient(), None);
            let (bits_before, record_before) = (bits(&tensor), state.as_ref().map(record));
            let failing = Offloaded::by_chunks(blocks(chunk), 8).unwrap();
            let (held, held_state) = (tensor.clone(), state.clone());
            let step = || failing.step_at(place, 0.1, held, gradient(), held_state);
            assert!(catch_unwind(AssertUnwindSafe(step)).is_err());
            assert_eq!(bits(&tensor), bits_before);
            assert_eq!(state.as_ref().map(record), record_before);
            let (again, _) = working.step_at(place, 0.1, tensor.clone(), gradient(), state.clone());
            let (expected, _) = blocks(9).step(0.1, tensor, gradient(), state.as_ref().map(reloaded));
            assert_eq!(bits(&again), bits(&expected));
        }
    }
}

#[test]
fn a_step_can_be_recorded() {
    let device = Device::capture();
    let optimizer = Offloaded::by_chunks(AdamWConfig::new().build(), 8).unwrap();
    let captured = device.clone().capture_scope(|scope| {
        let tensor = Tensor::<2>::zeros([4, 5], &device);
        let (tensor, state) = optimizer.step(0.1, tensor.clone(), tensor.ones_like(), None);
        let gradient = tensor.ones_like();
        std::mem::forget(optimizer.step(0.1, tensor, gradient, state));
        scope.complete([], [])
    });
    let operations = captured.unwrap().graph;
    let marks = operations.operations.iter().filter_map(|operation| match operation {
        burn::backend::ir::OperationIr::Custom(mark) => Some(mark.id.as_str()),
        _ => None,
    });
    // Two steps of two chunks: the second chunk's state comes before the first one's goes.
    let [from, to] = ["kiln::state_from_host", "kiln::state_to_host"];
    assert_eq!(marks.collect::<Vec<_>>(), [from, from, to, to].repeat(2));
}

#[test]
fn an_optimizer_behind_a_pointer_has_the_same_bits_and_records() {
    for place in PLACES {
        let alone = AdamWConfig::new().build();
        let any = OffloadedAny::new(Arc::new(alone.clone()));
        let shape = [3, 5];
        let (mut got, mut expected) = (values(shape, 1, DType::F32), values(shape, 1, DType::F32));
        let (mut state, mut expected_state): (Option<DynState>, _) = (None, None);
        for step in 0..4 {
            let gradient = values(shape, step + 2, DType::F32);
            let tensor;
            (tensor, state) = any.step_at(place, 2, 1e-2, got.into_bridge(), gradient.clone().into_bridge(), state);
            got = Tensor::from_bridge(tensor);
            (expected, expected_state) = alone.step(1e-2, expected, gradient, expected_state);
            assert_eq!(bits(&got), bits(&expected), "{place:?} step {step}");
            let written = || {
                let mut sink = StateSink::default();
                any.state_flatten("p", state.as_ref().unwrap(), &mut sink);
                sink
            };
            assert_eq!(lines(written()), record(expected_state.as_ref().unwrap()), "{place:?} step {step}");
            // The state goes through its record, as in a run that is resumed.
            let sink = written();
            let mut source = StateSource::new(sink.scalars.into_iter().collect());
            sink.tensors.into_iter().for_each(|(name, data)| source.insert_tensor(name, data));
            state = any.state_unflatten(2, "p", &mut source, &Device::flex());
        }
    }
}
