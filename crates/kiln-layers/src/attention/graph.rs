//! Attention as operations of burn's graph: with packed inputs, and with separate queries, keys and values.

#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
#[cfg(feature = "cube")]
use burn_cubecl::{CubeDevice, tensor::CubeTensor};
#[cfg(feature = "cube")]
use kiln_operations::CubeKernel;
use kiln_operations::{Computed, Cost, Kernel, KernelBackend, Operation, all};

use super::cost::{GROUPED, GROUPED_BACKWARD, PACKED, PACKED_BACKWARD};
use super::terms::{Settings, Terms};

/// The computations of attention. The boolean mask and the dropout seed, if there are any, follow the other inputs.
///
/// The logarithms of sums are those of each row's exponentials, `[batch, heads, time]` in f32.
#[derive(Clone, Copy, Debug)]
enum Pass {
    /// Output `[batch, time, width]` and logarithms of sums, from packed queries, keys and values `[batch, time, 3 width]`.
    Packed,
    /// The gradient of the packed inputs, from these, output, logarithms of sums and the output's gradient.
    PackedBackward,
    /// Output and logarithms of sums, from queries `[batch, heads, time, depth]` and keys and values `[batch, kv_heads, keys, depth]`.
    Grouped,
    /// The gradients of the three inputs, from these, output, logarithms of sums and the output's gradient. Those that are not wanted
    /// have no meaning.
    GroupedBackward([bool; 3]),
}

#[cfg(feature = "cube")]
impl Pass {
    /// The inputs besides masks.
    fn tensors(self) -> usize {
        match self {
            Self::Packed => 1,
            Self::PackedBackward => 4,
            Self::Grouped => 3,
            Self::GroupedBackward(_) => 6,
        }
    }
}

#[derive(Clone, Debug)]
struct Attend {
    pass: Pass,
    settings: Settings,
}

impl Attend {
    /// The first `N` inputs, and masks, dropout and settings from the others.
    fn terms<B: KernelBackend, const N: usize>(
        &self,
        mut inputs: Vec<FloatTensor<B>>,
    ) -> ([FloatTensor<B>; N], Terms<B>) {
        let terms = Terms::of(self.settings.clone(), inputs.split_off(N));
        (all(inputs), terms)
    }
}

/// Runs the forward or the backward pass of packed attention, or that of separate inputs, in a module's functions.
macro_rules! pass {
    ($attend:expr, $inputs:expr, $kernels:path, $B:ty) => {{
        use $kernels as kernels;
        match $attend.pass {
            Pass::Packed => {
                let ([qkv], terms) = $attend.terms::<$B, 1>($inputs);
                kernels::packed_forward(&qkv, &terms).into()
            }
            Pass::PackedBackward => {
                let ([qkv, output, log_sums, gradient], terms) = $attend.terms::<$B, 4>($inputs);
                vec![kernels::packed_backward(&[qkv, output, log_sums], &gradient, &terms)]
            }
            Pass::Grouped => {
                let (inputs, terms) = $attend.terms::<$B, 3>($inputs);
                kernels::grouped_forward(&inputs, &terms).into()
            }
            Pass::GroupedBackward(wanted) => {
                let ([queries, keys, values, output, log_sums, gradient], terms) = $attend.terms::<$B, 6>($inputs);
                let (inputs, saved) = ([queries, keys, values], [output, log_sums]);
                let gradients = kernels::grouped_backward(&inputs, &saved, &gradient, &terms, wanted);
                let gradients = gradients.into_iter().zip(inputs);
                gradients.map(|(gradient, unused)| gradient.unwrap_or(unused)).collect()
            }
        }
    }};
}

impl Kernel for Attend {
    fn cost(&self) -> &'static Cost {
        match self.pass {
            Pass::Packed => &PACKED,
            Pass::PackedBackward => &PACKED_BACKWARD,
            Pass::Grouped => &GROUPED,
            Pass::GroupedBackward(_) => &GROUPED_BACKWARD,
        }
    }

    fn scalars(&self) -> Vec<i64> {
        let window = self.settings.window.map_or(i64::MAX, |window| window as i64);
        vec![self.settings.heads as i64, self.settings.causal.into(), window]
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        let (shape, dtype) = &inputs[0];
        match self.pass {
            Pass::Packed => vec![
                (Shape::new([shape[0], shape[1], shape[2] / 3]), *dtype),
                (Shape::new([shape[0], self.settings.heads, shape[1]]), DType::F32),
            ],
            Pass::PackedBackward => inputs[..1].to_vec(),
            Pass::Grouped => {
                vec![inputs[0].clone(), (Shape::new([shape[0], shape[1], shape[2]]), DType::F32)]
            }
            Pass::GroupedBackward(_) => inputs[..3].to_vec(),
        }
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        pass!(self, inputs, super::composed, B)
    }

    #[cfg(feature = "cube")]
    fn cube(&self, device: &CubeDevice, inputs: &[(Shape, DType)]) -> Option<CubeKernel<Self>> {
        let (shape, dtype) = &inputs[0];
        let depth = match self.pass {
            Pass::Packed | Pass::PackedBackward => shape[2] / 3 / self.settings.heads,
            Pass::Grouped | Pass::GroupedBackward(_) => shape[3],
        };
        let has_values = inputs[..self.pass.tensors()].iter().all(|(shape, _)| shape.num_elements() > 0);
        let taken = has_values && super::cube::takes(device, *dtype, depth);
        taken.then_some(Self::launch)
    }

    #[cfg(feature = "flex")]
    fn flex(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        pass!(self, inputs, super::flex, burn::backend::Flex)
    }
}

#[cfg(feature = "cube")]
impl Attend {
    fn launch(&self, mut inputs: Vec<CubeTensor>) -> Vec<CubeTensor> {
        use super::cube::{grouped_backward, grouped_forward, packed_backward, packed_forward};
        let masks = inputs.split_off(self.pass.tensors());
        match self.pass {
            Pass::Packed => {
                let [qkv] = all(inputs);
                packed_forward(qkv, &self.settings, masks).into()
            }
            Pass::PackedBackward => vec![packed_backward(all(inputs), &self.settings, masks)],
            Pass::Grouped => grouped_forward(all(inputs), &self.settings, masks).into(),
            Pass::GroupedBackward(_) => grouped_backward(all(inputs), &self.settings, masks).into(),
        }
    }
}

/// The output of packed attention, and the logarithms of sums. `masks` are the boolean mask and the dropout seed, if there are any.
pub(crate) fn packed<B: KernelBackend>(
    qkv: FloatTensor<B>,
    settings: &Settings,
    masks: &[FloatTensor<B>],
) -> [FloatTensor<B>; 2] {
    let inputs = [&[qkv], masks].concat();
    all(B::run(&Attend { pass: Pass::Packed, settings: settings.clone() }, inputs))
}

/// The gradient of packed inputs. `saved` has inputs, output and logarithms of sums.
pub(crate) fn packed_backward<B: KernelBackend>(
    saved: [FloatTensor<B>; 3],
    gradient: FloatTensor<B>,
    settings: &Settings,
    masks: Vec<FloatTensor<B>>,
) -> FloatTensor<B> {
    let inputs = saved.into_iter().chain([gradient]).chain(masks).collect();
    let [gradient] = all(B::run(&Attend { pass: Pass::PackedBackward, settings: settings.clone() }, inputs));
    gradient
}

/// The output of attention of separate queries, keys and values, and the logarithms of sums.
pub(crate) fn grouped<B: KernelBackend>(
    inputs: [FloatTensor<B>; 3],
    settings: &Settings,
    masks: &[FloatTensor<B>],
) -> [FloatTensor<B>; 2] {
    let inputs = inputs.into_iter().chain(masks.iter().cloned()).collect();
    all(B::run(&Attend { pass: Pass::Grouped, settings: settings.clone() }, inputs))
}

/// The gradients of queries, keys and values. `saved` has these, output and logarithms of sums. Those that are not `wanted` have no meaning.
pub(crate) fn grouped_backward<B: KernelBackend>(
    saved: [FloatTensor<B>; 5],
    gradient: FloatTensor<B>,
    settings: &Settings,
    masks: Vec<FloatTensor<B>>,
    wanted: [bool; 3],
) -> [FloatTensor<B>; 3] {
    let inputs = saved.into_iter().chain([gradient]).chain(masks).collect();
    all(B::run(&Attend { pass: Pass::GroupedBackward(wanted), settings: settings.clone() }, inputs))
}

/// Attention of packed queries, keys and values.
#[derive(Clone, Debug)]
pub(super) struct SelfAttention(pub(super) Settings);

impl Operation for SelfAttention {
    const NAME: &'static str = "attention";

    /// Packed inputs, output and logarithms of sums, and masks.
    type Saved<B: KernelBackend> = ([FloatTensor<B>; 3], Vec<FloatTensor<B>>);

    fn forward<B: KernelBackend>(
        &self,
        mut inputs: Vec<FloatTensor<B>>,
        wanted: &[bool],
    ) -> Computed<B, Self::Saved<B>> {
        let masks = inputs.split_off(1);
        let [qkv] = all(inputs);
        let kept = wanted[0].then(|| qkv.clone());
        let [output, log_sums] = packed::<B>(qkv, &self.0, &masks);
        let saved = kept.map(|qkv| ([qkv, output.clone(), log_sums], masks));
        Computed { outputs: vec![output], saved }
    }

    fn gradient<B: KernelBackend>(
        &self,
        (saved, masks): Self::Saved<B>,
        gradient: FloatTensor<B>,
        _: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        vec![Some(packed_backward::<B>(saved, gradient, &self.0, masks))]
    }
}

/// Attention of separate queries, keys and values.
#[derive(Clone, Debug)]
pub(super) struct GroupedAttention(pub(super) Settings);

impl Operation for GroupedAttention {
    const NAME: &'static str = "attention";

    /// Queries, keys, values, output and logarithms of sums, and masks.
    type Saved<B: KernelBackend> = [Vec<FloatTensor<B>>; 2];

    fn forward<B: KernelBackend>(
        &self,
        mut inputs: Vec<FloatTensor<B>>,
        wanted: &[bool],
    ) -> Computed<B, Self::Saved<B>> {
        let masks = inputs.split_off(3);
        let kept = wanted.contains(&true).then(|| inputs.clone());
        let [output, log_sums] = grouped::<B>(all(inputs), &self.0, &masks);
        let saved = kept.map(|mut kept| {
            kept.extend([output.clone(), log_sums]);
            [kept, masks]
        });
        Computed { outputs: vec![output], saved }
    }

    fn gradient<B: KernelBackend>(
        &self,
        [saved, masks]: Self::Saved<B>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        let flags = [wanted[0], wanted[1], wanted[2]];
        let gradients = grouped_backward::<B>(all(saved), gradient, &self.0, masks, flags);
        gradients.into_iter().zip(wanted).map(|(gradient, wanted)| wanted.then_some(gradient)).collect()
    }
}
