//! Updates on CubeCL devices: one launch for up to sixteen parameters, or fewer where kernels read fewer tensors.
//!
//! Memory: new values of parameters and state, which replace the old ones after the update. A parameter, or a state, that is not stored as
//! contiguous rows is copied first.

use std::collections::VecDeque;

use burn::backend::Cube;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeDevice;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};
use kiln_operations::cube::{empty, has, most_tensors};
use kiln_operations::launch;

use super::rule::{AnyRule, Betas};

/// The most parameters of a launch.
const PARAMETERS: usize = 16;
/// Units of a cube (threads of a block).
const UNITS: usize = 256;
/// The most cubes that share a parameter.
const CUBES: usize = 1024;
/// The most states of a parameter.
const STATES: usize = 2;

/// Parameters of a launch on a device whose kernels have so many tensors. Fewer are filled up, so that there is one kernel for all.
fn at_once(tensors: usize) -> usize {
    (tensors.saturating_sub(2) / (3 + 2 * STATES)).clamp(1, PARAMETERS)
}

/// Whether a device has kernels for updates of several parameters.
pub(super) fn has_kernel(device: &CubeDevice) -> bool {
    has(device, UNITS, 0, 0) && at_once(most_tensors(&device.client())) > 1
}

/// An update that waits for others.
pub(super) struct Joined {
    settings: Settings,
    gradient: FloatTensor<Cube>,
    /// The parameter and its state.
    values: Vec<FloatTensor<Cube>>,
}

impl Joined {
    /// An update by a rule of a parameter and its state, on a gradient that is multiplied by `scale` first.
    pub(super) fn new(rule: AnyRule, scale: f32, gradient: FloatTensor<Cube>, values: Vec<FloatTensor<Cube>>) -> Self {
        Self { settings: Settings { rule, scale }, gradient, values }
    }
}

/// What parameters of one kernel have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Settings {
    rule: AnyRule,
    /// The factor of the gradient.
    scale: f32,
}

/// Updates that wait, and then their results.
pub(super) enum Join {
    Waiting {
        updates: Vec<Joined>,
        /// Whether updates that are not joined were left for the second run.
        left: bool,
    },
    Done(VecDeque<Vec<FloatTensor<Cube>>>),
}

impl Default for Join {
    fn default() -> Self {
        Self::Waiting { updates: vec![], left: false }
    }
}

impl Join {
    /// The values after an update, in the order in which the updates waited. Until then those from before it.
    pub(super) fn next(&mut self, update: Joined) -> Vec<FloatTensor<Cube>> {
        match self {
            Self::Waiting { updates, .. } => {
                let values = update.values.clone();
                updates.push(update);
                values
            }
            Self::Done(results) => {
                results.pop_front().unwrap_or_else(|| unreachable!("the second run updates what the first one did"))
            }
        }
    }

    /// Whether an update that is not joined is left for the second run: it would be computed twice.
    pub(super) fn leaves(&mut self) -> bool {
        match self {
            Self::Waiting { left, .. } => {
                *left = true;
                true
            }
            Self::Done(_) => false,
        }
    }

    /// Computes the updates that wait. Returns tensors of one element that are written if all results are. `None` if no update needs a second
    /// run.
    pub(super) fn compute(&mut self) -> Option<Vec<FloatTensor<Cube>>> {
        let Self::Waiting { updates, left } = self else { return None };
        if updates.is_empty() && !*left {
            return None;
        }
        let mut updates: Vec<Option<Joined>> = std::mem::take(updates).into_iter().map(Some).collect();
        let mut results = vec![vec![]; updates.len()];
        let mut written = vec![];
        for first in 0..updates.len() {
            let Some(update) = updates[first].take() else { continue };
            let (settings, device) = (update.settings, update.gradient.client.device().clone());
            let alike = |update: &mut Joined| update.settings == settings && *update.gradient.client.device() == device;
            let others =
                updates.iter_mut().enumerate().filter_map(|(index, update)| Some((index, update.take_if(alike)?)));
            let (indices, taken): (Vec<usize>, Vec<Joined>) = [(first, update)].into_iter().chain(others).unzip();
            let mut made = computed(settings, taken).into_iter();
            for index in indices {
                results[index] = made.by_ref().take(settings.rule.states() + 1).collect();
            }
            written.extend(made);
        }
        *self = Self::Done(results.into());
        Some(written)
    }
}

/// The new values of all parameters, each followed by its state, and a tensor of one element that is written if they all are.
fn computed(settings: Settings, updates: Vec<Joined>) -> Vec<FloatTensor<Cube>> {
    let described = |tensor: &FloatTensor<Cube>| (tensor.shape.clone(), tensor.dtype);
    let values = updates.iter().flat_map(|update| update.values.iter().map(described));
    let outputs = values.chain([(Shape::new([1]), DType::F32)]).collect();
    let inputs = updates.into_iter().flat_map(|update| [update.gradient].into_iter().chain(update.values)).collect();
    launch("kiln::update_together", inputs, outputs, move |tensors| launched(settings, tensors))
}

/// A parameter on its way through a launch.
struct Parameter {
    gradient: CubeTensor,
    values: Vec<CubeTensor>,
    next: Vec<CubeTensor>,
}

impl Parameter {
    /// Values that a unit takes.
    fn vector(&self) -> usize {
        let values = self.gradient.meta.num_elements();
        if self.gradient.is_contiguous() && values.is_multiple_of(4) { 4 } else { 1 }
    }

    /// What makes a kernel another one: values that a unit takes, and the rank of a gradient whose rows lie apart.
    fn kind(&self) -> (usize, usize) {
        (self.vector(), if self.gradient.is_contiguous() { 0 } else { self.gradient.meta.shape().num_dims() })
    }
}

/// The new values of all parameters, each followed by its state, and the tensor that shows that they are written. The inputs are gradient,
/// parameter and state of each.
fn launched(settings: Settings, tensors: Vec<CubeTensor>) -> Vec<CubeTensor> {
    let values = settings.rule.states() + 1;
    let mut tensors = tensors.into_iter();
    let mut parameters = vec![];
    while let Some(gradient) = tensors.next() {
        let values: Vec<CubeTensor> = tensors.by_ref().take(values).map(into_contiguous).collect();
        let like = |value: &CubeTensor| empty(value, value.meta.shape().clone(), value.dtype);
        let next = values.iter().map(like).collect();
        parameters.push(Parameter { gradient, values, next });
    }
    let mut order: Vec<&Parameter> = parameters.iter().collect();
    order.sort_by_key(|parameter| parameter.kind());
    let most = parameters.first().map_or(1, |first| at_once(most_tensors(&first.gradient.client)));
    // Each launch reads what the one before has written last: it is skipped if that one was, for lack of memory.
    let mut written: Option<CubeTensor> = None;
    for parameters in order.chunk_by(|a, b| a.kind() == b.kind()).flat_map(|alike| alike.chunks(most)) {
        written = Some(launch_some(settings, parameters, most, written));
    }
    parameters.into_iter().flat_map(|parameter| parameter.next).chain(written).collect()
}

/// One launch for at most `most` parameters of one kind, after `before`. Returns a tensor of one element that it writes as well.
fn launch_some(settings: Settings, parameters: &[&Parameter], most: usize, before: Option<CubeTensor>) -> CubeTensor {
    let first = parameters[0];
    let after = empty(&first.gradient, Shape::new([1]), DType::F32);
    let before = before.unwrap_or_else(|| first.gradient.clone());
    let (client, vector) = (first.gradient.client.clone(), first.vector());
    let size = |parameter: &&Parameter| parameter.gradient.meta.num_elements() / vector;
    let cubes = parameters.iter().map(size).max().unwrap_or_default().div_ceil(UNITS).min(CUBES);
    let address = |parameter: &&Parameter| {
        parameter.values[0].required_address_type().max(parameter.gradient.required_address_type())
    };
    let (mut values, mut gradients, mut states) = (SequenceArg::new(), SequenceArg::new(), SequenceArg::new());
    let (mut next, mut next_states) = (SequenceArg::new(), SequenceArg::new());
    for parameter in parameters.iter().chain(std::iter::repeat(&first)).take(most) {
        gradients.push(parameter.gradient.clone().into_linear_view());
        for (index, (value, output)) in parameter.values.iter().zip(&parameter.next).enumerate() {
            let (value, output) = (value.clone().into_linear_view(), output.clone().into_linear_view());
            if index == 0 {
                values.push(value);
                next.push(output);
            } else {
                states.push(value);
                next_states.push(output);
            }
        }
    }
    let Settings { rule, scale } = settings;
    update_many::launch(
        &client,
        CubeCount::Static(cubes as u32, parameters.len() as u32, 1),
        CubeDim::new_1d(UNITS as u32),
        parameters.iter().map(address).max().unwrap_or_default(),
        vector,
        values,
        gradients,
        states,
        next,
        next_states,
        before.into_buffer_arg(),
        after.clone().into_buffer_arg(),
        numbers(rule, scale),
        Kind::of(rule),
        rule.penalty().is_some(),
    );
    after
}

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    AdamW,
    Adam,
    Sgd,
    Momentum,
    Nesterov,
}

impl Kind {
    fn of(rule: AnyRule) -> Self {
        match rule {
            AnyRule::AdamW(_) => Self::AdamW,
            AnyRule::Adam(_) => Self::Adam,
            AnyRule::Sgd(_) => Self::Sgd,
            AnyRule::Momentum(rule) if rule.nesterov => Self::Nesterov,
            AnyRule::Momentum(_) => Self::Momentum,
        }
    }
}

/// The numbers of the rules. Those that a rule lacks are 0.
#[derive(CubeType, CubeLaunch)]
struct Numbers {
    /// The factor of the gradient.
    scale: f32,
    beta_1: f32,
    rest_1: f32,
    beta_2: f32,
    rest_2: f32,
    correction_1: f32,
    correction_2: f32,
    epsilon: f32,
    keep: f32,
    /// The factor of the parameter that is added to the gradient.
    penalty: f32,
    factor: f32,
    share: f32,
    rate: f32,
}

fn numbers(rule: AnyRule, scale: f32) -> NumbersLaunch {
    let (betas, corrections, epsilon, keep, factor, share, rate) = match rule {
        AnyRule::AdamW(rule) => (Some(rule.betas), rule.corrections, rule.epsilon, rule.keep, 0.0, 0.0, rule.rate),
        AnyRule::Adam(rule) => (Some(rule.betas), (rule.correction, 0.0), rule.epsilon, 0.0, 0.0, 0.0, rule.rate),
        AnyRule::Sgd(rule) => (None, (0.0, 0.0), 0.0, 0.0, 0.0, 0.0, rule.rate),
        AnyRule::Momentum(rule) => (None, (0.0, 0.0), 0.0, 0.0, rule.factor, rule.share, rule.sgd.rate),
    };
    let of = |betas: Betas| [betas.first, 1.0 - betas.first, betas.second, 1.0 - betas.second];
    let [beta_1, rest_1, beta_2, rest_2] = betas.map_or([0.0; 4], of);
    let penalty = rule.penalty().unwrap_or(0.0);
    NumbersLaunch::new(
        scale,
        beta_1,
        rest_1,
        beta_2,
        rest_2,
        corrections.0,
        corrections.1,
        epsilon,
        keep,
        penalty,
        factor,
        share,
        rate,
    )
}

/// A product that is rounded by itself. Compilers do not fuse it with a sum, as they may do with `a * b`.
#[cube]
fn product<N: Size>(a: Vector<f32, N>, b: f32) -> Vector<f32, N> {
    fma(a, Vector::new(b), Vector::new(-0.0f32))
}

/// A running mean or sum after one more value.
#[cube]
fn next_mean<N: Size>(mean: Vector<f32, N>, factor: f32, value: Vector<f32, N>, share: f32) -> Vector<f32, N> {
    product::<N>(mean, factor) + product::<N>(value, share)
}

/// The next values of parameters and their state. The rules are those of `rule.rs`.
#[cube(launch, address_type = "dynamic")]
fn update_many<N: Size>(
    parameters: Sequence<LinearView<'static, Vector<f32, N>>>,
    gradients: Sequence<LinearView<'static, Vector<f32, N>>>,
    states: Sequence<LinearView<'static, Vector<f32, N>>>,
    mut next: Sequence<LinearViewMut<'static, Vector<f32, N>>>,
    mut next_states: Sequence<LinearViewMut<'static, Vector<f32, N>>>,
    before: &[f32],
    after: &mut [f32],
    numbers: Numbers,
    #[comptime] kind: Kind,
    #[comptime] has_penalty: bool,
) {
    if CUBE_POS == 0 && UNIT_POS == 0 {
        after[0] = before[0];
    }
    #[unroll]
    for index in 0..parameters.len() {
        if CUBE_POS_Y as usize == index {
            let parameter = parameters.index(index);
            let gradient = gradients.index(index);
            let next = next.index_mut(index);
            let mut place = ABSOLUTE_POS_X as usize;
            while place < parameter.shape() {
                let p = parameter.read(place);
                let scaled = product::<N>(gradient.read(place), numbers.scale);
                let g = if comptime!(has_penalty) { product::<N>(p, numbers.penalty) + scaled } else { scaled };
                match comptime!(kind) {
                    Kind::AdamW | Kind::Adam => {
                        let (first, second) = comptime!((2 * index, 2 * index + 1));
                        let square = fma(g, g, Vector::new(-0.0f32));
                        let m = next_mean::<N>(states.index(first).read(place), numbers.beta_1, g, numbers.rest_1);
                        let v =
                            next_mean::<N>(states.index(second).read(place), numbers.beta_2, square, numbers.rest_2);
                        next_states.index_mut(first).write(place, m);
                        next_states.index_mut(second).write(place, v);
                        let epsilon = Vector::new(numbers.epsilon);
                        if comptime!(kind == Kind::AdamW) {
                            let root = (v / Vector::new(numbers.correction_2)).sqrt() + epsilon;
                            let delta = m / Vector::new(numbers.correction_1) / root;
                            next.write(place, product::<N>(p, numbers.keep) - product::<N>(delta, numbers.rate));
                        } else {
                            let delta = product::<N>(m, numbers.correction_1) / (v.sqrt() + epsilon);
                            next.write(place, p - product::<N>(delta, numbers.rate));
                        }
                    }
                    Kind::Sgd => next.write(place, p - product::<N>(g, numbers.rate)),
                    Kind::Momentum | Kind::Nesterov => {
                        let v = next_mean::<N>(states.index(index).read(place), numbers.factor, g, numbers.share);
                        next_states.index_mut(index).write(place, v);
                        let delta =
                            if comptime!(kind == Kind::Nesterov) { product::<N>(v, numbers.factor) + g } else { v };
                        next.write(place, p - product::<N>(delta, numbers.rate));
                    }
                }
                place += UNITS * CUBE_COUNT_X as usize;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::at_once;

    #[test]
    fn a_launch_has_as_many_parameters_as_a_device_takes() {
        assert_eq!([1023, 114, 113, 30, 6].map(at_once), [16, 16, 15, 4, 1]);
    }
}
