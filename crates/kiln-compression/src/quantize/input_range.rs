//! The range of a layer's input, followed while training, and inputs brought to the values that integers can have.

use std::cell::RefCell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::LocalKey;

use burn::module::{Flag, Module, Param, RunningState};
use burn::tensor::{DType, Device, Tensor};

use super::range::{Calibrator, Range, RangeMethod};
use crate::Error;
use crate::parameters::{Edit, Item, Place, edited, walk};

/// The range that the inputs of one layer have, as a moving average over batches, and their fake quantisation to unsigned 8-bit integers
/// with a zero point. [`FakeQuantizer::with_inputs`](super::FakeQuantizer::with_inputs) says how it moves.
#[derive(Module, Debug)]
pub(super) struct InputRange {
    /// `[2]`: the two ends, which are +∞ and -∞ before the first batch. They are one tensor, so that threads never see one without the other.
    running_range: RunningState<Tensor<1>>,
    observing: Param<Flag>,
    momentum: f64,
    #[module(skip)]
    path: Arc<str>,
}

/// The field of [`InputRange`] with the range, and its type, as visitors see them.
const PLACE: (&str, &str) = ("running_range", "InputRange");

impl InputRange {
    pub(super) fn new(path: &str, momentum: f64, device: &Device) -> Self {
        let unset = Tensor::from_data([f32::INFINITY, f32::NEG_INFINITY], (device, DType::F32));
        let observing = Param::from_bool(true);
        Self { running_range: RunningState::new(unset), observing, momentum, path: path.into() }
    }

    /// The elements `x` of an input, brought to the nearest of 256 values. The gradient passes where an element is in the range, and is
    /// zero outside.
    fn simulate(&self, x: Tensor<1>) -> Tensor<1> {
        let dtype = x.dtype();
        let values = x.clone().detach().cast(DType::F32);
        let range = self.moved(&values);
        let x = x.cast(DType::F32);
        fake_quantize_affine(x, values, range.clone().narrow(0, 0, 1), range.narrow(0, 1, 1)).cast(dtype)
    }

    /// The range after a batch with these elements.
    fn moved(&self, values: &Tensor<1>) -> Tensor<1> {
        let before = self.running_range.value_sync();
        let learns = values.device().is_autodiff() && self.observing.is_enabled() && self.momentum > 0.0;
        if !learns || values.dims() == [0] {
            return before;
        }
        let now = Tensor::cat(vec![values.clone().min(), values.clone().max()], 0);
        let unset = before.clone().narrow(0, 0, 1).greater(before.clone().narrow(0, 1, 1));
        let not_finite = values.clone().abs().mean().is_finite().bool_not();
        let moved = before.clone() + (now.clone() - before.clone()) * self.momentum;
        let moved = moved.mask_where(unset.expand([2]), now).mask_where(not_finite.expand([2]), before);
        self.running_range.update(moved.clone());
        moved
    }
}

/// `x` brought to the nearest of the values `(code - zero_point) * scale` with codes of 0 to 255, where scale and zero point come from the
/// range as in torch.ao: the range is widened to hold 0, and 0 is one of the values. `values` is `x` outside of the graph. The gradient
/// passes where the code needs no clamping, as in torch's `fake_quantize_per_tensor_affine`.
fn fake_quantize_affine(x: Tensor<1>, values: Tensor<1>, low: Tensor<1>, high: Tensor<1>) -> Tensor<1> {
    let (low, high) = (low.clamp_max(0.0), high.clamp_min(0.0));
    let unset = low.clone().equal(high.clone());
    let scale = ((high - low.clone()) / 255.0).clamp_min(f32::EPSILON);
    let zero_point = (-low / scale.clone()).round().clamp(0.0, 255.0);
    // As torch, by the reciprocal.
    let codes = (values.clone() * scale.clone().recip()).round() + zero_point.clone();
    let inside = codes.clone().greater_equal_elem(0.0).bool_and(codes.clone().lower_equal_elem(255.0));
    let simulated = (codes.clamp(0.0, 255.0) - zero_point) * scale;
    let [elements] = values.dims();
    let unset = unset.expand([elements]);
    let simulated = simulated.mask_where(unset.clone(), values);
    // The first part is exactly zero, and brings the gradient.
    let passed = x.mask_fill(inside.bool_or(unset).bool_not(), 0.0);
    (passed.clone() - passed.detach()) + simulated
}

/// The inputs that a calibration has observed, by layer.
struct Calibration {
    method: RangeMethod,
    seen: BTreeMap<String, Calibrator>,
    failed: Option<Error>,
}

impl Calibration {
    fn observe(&mut self, path: &str, values: &[f32]) -> Result<(), Error> {
        let calibrator = match self.seen.entry(path.to_owned()) {
            Entry::Occupied(seen) => seen.into_mut(),
            Entry::Vacant(new) => new.insert(Calibrator::new(self.method)?),
        };
        calibrator.observe(values)
    }
}

thread_local! {
    /// While [`input_map`] searches for an input range: that of the layer whose weight was read last.
    static SEARCH: RefCell<Option<Option<InputRange>>> = const { RefCell::new(None) };
    /// The calibration that runs.
    static CALIBRATION: RefCell<Option<Calibration>> = const { RefCell::new(None) };
}

/// Runs `f` while a thread-local has this value, and returns its value at the end. The value before is restored, also after a panic.
pub(super) fn during<T, R>(
    local: &'static LocalKey<RefCell<Option<T>>>,
    value: T,
    f: impl FnOnce() -> R,
) -> (R, Option<T>) {
    struct Restore<T: 'static>(&'static LocalKey<RefCell<Option<T>>>, Option<T>);
    impl<T> Drop for Restore<T> {
        fn drop(&mut self) {
            self.0.set(self.1.take());
        }
    }
    let restore = Restore(local, local.replace(Some(value)));
    let result = f();
    (result, restore.0.take())
}

/// Notes the input range of the layer whose weight is read, if [`input_map`] searches for it. Returns whether it does.
pub(super) fn note_range(range: Option<&InputRange>) -> bool {
    SEARCH.with_borrow_mut(|search| search.as_mut().map(|found| *found = range.cloned()).is_some())
}

/// A change of the elements of a layer's input.
pub type InputMap = Box<dyn FnOnce(Tensor<1>) -> Tensor<1>>;

/// The fake quantisation of the input of the layer whose weight `read_weight` reads; `None` if the layer's input is not simulated.
///
/// This is the hook of layers that ask for one, as those of kiln-models do: `kiln_models::on_layer_input(kiln_compression::input_map)`. In
/// a layer of one's own, [`simulate_input`] is simpler.
pub fn input_map(read_weight: &dyn Fn()) -> Option<InputMap> {
    let ((), found) = during(&SEARCH, None, read_weight);
    let range = found??;
    Some(Box::new(move |x| match observe(&range, &x) {
        true => x,
        false => range.simulate(x),
    }))
}

/// Notes the elements of an input while calibration runs; returns whether it does.
fn observe(range: &InputRange, x: &Tensor<1>) -> bool {
    if CALIBRATION.with_borrow(Option::is_none) {
        return false;
    }
    let values = x.clone().detach().cast(DType::F32).try_into_vec_as::<f32>();
    CALIBRATION.with_borrow_mut(|calibration| {
        let Some(calibration) = calibration else { return };
        let read = |reason: String| Error::Read { path: format!("the input of {}", range.path), reason };
        let values = values.map_err(|error| read(error.to_string()));
        if let Err(error) = values.and_then(|values| calibration.observe(&range.path, &values)) {
            calibration.failed.get_or_insert(error);
        }
    });
    true
}

/// The input `x` of a layer with this weight, as integers would carry it; `x` itself where the layer's input is not simulated.
///
/// ```
/// use burn::nn::Linear;
/// use burn::tensor::Tensor;
/// use kiln_compression::simulate_input;
///
/// fn forward(layer: &Linear, x: Tensor<2>) -> Tensor<2> {
///     layer.forward(simulate_input(&layer.weight, x))
/// }
/// ```
pub fn simulate_input<const D: usize, const W: usize>(weight: &Param<Tensor<W>>, x: Tensor<D>) -> Tensor<D> {
    match input_map(&|| drop(weight.val())) {
        Some(map) => {
            let shape = x.shape();
            let elements = shape.num_elements();
            map(x.reshape([elements])).reshape(shape)
        }
        None => x,
    }
}

/// Finds the ranges of layers' inputs: `run` runs a model without gradients on batches that represent the data, and nothing is simulated
/// meanwhile on this thread. Ranges are by the path of the layer's weight; [`set_input_ranges`] gives them to the model.
///
/// The model must have been made for it by [`FakeQuantizer::with_inputs`](super::FakeQuantizer::with_inputs).
///
/// # Errors
/// [`Error::InvalidSetting`] for a percentile out of range, [`Error::NotFinite`] for an input that is infinite or not a number, [`Error::Read`] when a
/// device cannot give an input.
pub fn calibrate<R>(method: RangeMethod, run: impl FnOnce() -> R) -> Result<(BTreeMap<String, Range>, R), Error> {
    let own = Calibration { method, seen: BTreeMap::new(), failed: None };
    let (result, calibration) = during(&CALIBRATION, own, run);
    let mut ranges = BTreeMap::new();
    if let Some(Calibration { seen, failed, .. }) = calibration {
        if let Some(error) = failed {
            return Err(error);
        }
        for (path, calibrator) in seen {
            ranges.insert(path, calibrator.range()?);
        }
    }
    Ok((ranges, result))
}

/// The ranges of a model's inputs by the path of the layer's weight. Ranges that were never set are left out.
pub fn input_ranges(model: &impl Module) -> BTreeMap<String, Range> {
    let mut found = BTreeMap::new();
    // `valid` folds the updates of all threads in.
    walk(&model.valid(), |place, item| {
        if let Item::Float(param) = item
            && place.is_in(PLACE)
            && let [low, high] = param.value().into_data().iter::<f32>().collect::<Vec<_>>()[..]
            && low <= high
        {
            found.insert(place.parameter(), Range { low, high });
        }
    });
    found
}

/// `model` with these ranges of its inputs; others stay as they are.
///
/// # Errors
/// [`Error::UnknownParameter`] for a path whose layer has no range, [`Error::InvalidSetting`] for ends that are not finite or not in order.
pub fn set_input_ranges<M: Module>(model: M, ranges: &BTreeMap<String, Range>) -> Result<M, Error> {
    struct Write<'a> {
        ranges: &'a BTreeMap<String, Range>,
        found: BTreeSet<String>,
    }
    impl Edit for Write<'_> {
        fn float<const D: usize>(&mut self, place: &Place, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            if !place.is_in(PLACE) {
                return param;
            }
            let path = place.parameter();
            let range = self.ranges.get(&path).copied();
            self.found.insert(path);
            match range {
                Some(Range { low, high }) => param
                    .map(|old| Tensor::<1>::from_data([low, high], (&old.device(), DType::F32)).reshape(old.shape())),
                None => param,
            }
        }
    }
    let in_order = |range: &Range| range.low.is_finite() && range.high.is_finite() && range.low <= range.high;
    if let Some((path, Range { low, high })) = ranges.iter().find(|(_, range)| !in_order(range)) {
        let value = format!("{low} to {high} for '{path}'");
        return Err(Error::invalid("the range of an input", value, "finite ends in order"));
    }
    let mut write = Write { ranges, found: BTreeSet::new() };
    // The ends of a range are shared by clones of a module; `valid` makes new ones.
    let autodiff = model.devices().iter().any(|device| device.is_autodiff());
    let own = if autodiff { model.valid().train() } else { model.valid() };
    let model = edited(own, &mut write);
    match ranges.keys().find(|path| !write.found.contains(*path)) {
        Some(path) => Err(Error::unknown(path, &write.found)),
        None => Ok(model),
    }
}
