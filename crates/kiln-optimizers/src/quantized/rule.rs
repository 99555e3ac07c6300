//! The arithmetic of the updates of one block, whose moments are decoded, changed and encoded again.
//!
//! Products and sums are rounded one by one, and in the same order as in the operations of `composed`, so that both have the same bits.

use burn::tensor::Tensor;

use crate::blocks::{ByRoot, ByTable, CodeBook, Codec, Noise};
use crate::fused::Betas;
use crate::simd::simd;

/// The most values of a block.
pub(super) const MOST: usize = 256;

/// How a step changes a parameter and its `N` moments, from the gradient.
pub(super) trait Rule<const N: usize>: Copy + Send + Sync {
    /// The name of the recorded operation: with moments of 8 bits, and of 4.
    const NAMES: [&'static str; 2];

    /// Changes a block in f32.
    fn apply(self, block: Block<'_>, moments: [Moments<'_>; N], noise: Option<(Noise, u32)>);

    /// The parameter and its moments after a step, of which the latter come decoded and in f32.
    fn compose<const D: usize>(
        self,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        moments: [Tensor<D>; N],
    ) -> (Tensor<D>, [Tensor<D>; N]);
}

/// Corresponding values of a parameter and its gradient.
pub(super) struct Block<'a> {
    pub(super) parameter: &'a mut [f32],
    pub(super) gradient: &'a [f32],
}

/// The values of a moment in a block.
pub(super) struct Moments<'a> {
    pub(super) book: CodeBook,
    /// One code a byte.
    pub(super) codes: &'a mut [u8],
    pub(super) scale: &'a mut f32,
    /// Scratch memory.
    pub(super) kept: &'a mut [f32; MOST],
}

/// A step of AdamW.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdamWRule {
    pub(super) betas: Betas,
    pub(super) epsilon: f32,
    /// What weight decay leaves of the parameter: 1 without decay.
    pub(super) keep: f32,
    /// The learning rate, with the correction of the first moment.
    pub(super) rate: f32,
    /// The factor of the second moment's root that corrects it.
    pub(super) root: f32,
}

impl Rule<2> for AdamWRule {
    const NAMES: [&'static str; 2] = ["kiln::adamw_8bit_update", "kiln::adamw_4bit_update"];

    fn apply(self, block: Block<'_>, [first, second]: [Moments<'_>; 2], noise: Option<(Noise, u32)>) {
        match second.book {
            CodeBook::Root => adamw_by_root(self, block, first, second, noise),
            _ => adamw_by_table(self, block, first, second, noise),
        }
    }

    fn compose<const D: usize>(
        self,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        [first, second]: [Tensor<D>; 2],
    ) -> (Tensor<D>, [Tensor<D>; 2]) {
        let Betas { first: beta_1, second: beta_2 } = self.betas;
        let first = first.mul_scalar(beta_1) + gradient.clone().mul_scalar(1.0 - beta_1);
        let second = second.mul_scalar(beta_2) + (gradient.clone() * gradient).mul_scalar(1.0 - beta_2);
        let denominator = second.clone().sqrt().mul_scalar(self.root).add_scalar(self.epsilon);
        let delta = first.clone().mul_scalar(self.rate) / denominator;
        (parameter.mul_scalar(self.keep) - delta, [first, second])
    }
}

simd! {
    fn adamw_by_root(
        rule: AdamWRule,
        block: Block<'_>,
        first: Moments<'_>,
        second: Moments<'_>,
        noise: Option<(Noise, u32)>,
    ) {
        let codec = ByTable::new(first.book);
        adamw(rule, block, (first, codec), (second, ByRoot), noise);
    }
}

simd! {
    fn adamw_by_table(
        rule: AdamWRule,
        block: Block<'_>,
        first: Moments<'_>,
        second: Moments<'_>,
        noise: Option<(Noise, u32)>,
    ) {
        let codecs = (ByTable::new(first.book), ByTable::new(second.book));
        adamw(rule, block, (first, codecs.0), (second, codecs.1), noise);
    }
}

#[inline(always)]
fn adamw(
    rule: AdamWRule,
    block: Block<'_>,
    (first, by_first): (Moments<'_>, impl Codec),
    (second, by_second): (Moments<'_>, impl Codec),
    noise: Option<(Noise, u32)>,
) {
    let count = block.parameter.len().min(MOST);
    let (parameter, gradient) = (&mut block.parameter[..count], &block.gradient[..count]);
    let (codes_1, codes_2) = (&mut first.codes[..count], &mut second.codes[..count]);
    let (kept_1, kept_2) = (&mut first.kept[..count], &mut second.kept[..count]);
    let (scale_1, scale_2) = (*first.scale, *second.scale);
    let (mut largest_1, mut largest_2) = (0, 0);
    for i in 0..count {
        let m = by_first.decode(codes_1[i]) * scale_1;
        let v = by_second.decode(codes_2[i]) * scale_2;
        let (m, v) = rule.betas.next(gradient[i], m, v);
        let root = v.sqrt();
        parameter[i] = parameter[i] * rule.keep - m * rule.rate / (root * rule.root + rule.epsilon);
        largest_1 = largest_1.max(magnitude(m));
        largest_2 = largest_2.max(magnitude(v));
        kept_1[i] = by_first.kept(m, root);
        kept_2[i] = by_second.kept(v, root);
    }
    *first.scale = f32::from_bits(largest_1);
    *second.scale = f32::from_bits(largest_2);
    encode(codes_1, kept_1, *first.scale, by_first, noise);
    encode(codes_2, kept_2, *second.scale, by_second, noise.map(|(noise, index)| (noise.other(), index)));
}

/// A step of SGD with momentum.
#[derive(Clone, Copy, Debug)]
pub(super) struct MomentumRule {
    /// The factor of the parameter that is added to the gradient.
    pub(super) penalty: Option<f32>,
    /// The factor of the velocity.
    pub(super) factor: f32,
    /// The factor of the gradient.
    pub(super) share: f32,
    pub(super) nesterov: bool,
    pub(super) rate: f32,
}

impl Rule<1> for MomentumRule {
    const NAMES: [&'static str; 2] = ["kiln::momentum_8bit_update", "kiln::momentum_4bit_update"];

    fn apply(self, block: Block<'_>, [velocity]: [Moments<'_>; 1], noise: Option<(Noise, u32)>) {
        momentum(self, block, velocity, noise);
    }

    fn compose<const D: usize>(
        self,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        [velocity]: [Tensor<D>; 1],
    ) -> (Tensor<D>, [Tensor<D>; 1]) {
        let gradient = match self.penalty {
            Some(penalty) => parameter.clone().mul_scalar(penalty) + gradient,
            None => gradient,
        };
        let velocity = gradient.clone().mul_scalar(self.share) + velocity.mul_scalar(self.factor);
        let delta = match self.nesterov {
            true => velocity.clone().mul_scalar(self.factor) + gradient,
            false => velocity.clone(),
        };
        (parameter - delta.mul_scalar(self.rate), [velocity])
    }
}

simd! {
    fn momentum(rule: MomentumRule, block: Block<'_>, velocity: Moments<'_>, noise: Option<(Noise, u32)>) {
        let codec = ByTable::new(velocity.book);
        let count = block.parameter.len().min(MOST);
        let (parameter, gradient) = (&mut block.parameter[..count], &block.gradient[..count]);
        let (codes, kept) = (&mut velocity.codes[..count], &mut velocity.kept[..count]);
        let scale = *velocity.scale;
        let mut largest = 0;
        for i in 0..count {
            let g = match rule.penalty {
                Some(penalty) => parameter[i] * penalty + gradient[i],
                None => gradient[i],
            };
            let v = g * rule.share + codec.decode(codes[i]) * scale * rule.factor;
            let delta = if rule.nesterov { v * rule.factor + g } else { v };
            parameter[i] -= delta * rule.rate;
            largest = largest.max(magnitude(v));
            kept[i] = v;
        }
        *velocity.scale = f32::from_bits(largest);
        encode(codes, kept, *velocity.scale, codec, noise);
    }
}

/// The absolute value as bits, which are ordered as the numbers are. NaN is above infinity, so that no scale hides it.
#[inline(always)]
fn magnitude(value: f32) -> u32 {
    value.to_bits() & 0x7FFF_FFFF
}

#[inline(always)]
fn encode(codes: &mut [u8], kept: &[f32], scale: f32, codec: impl Codec, noise: Option<(Noise, u32)>) {
    let prepared = codec.prepared(scale);
    match noise {
        None => codes.iter_mut().zip(kept).for_each(|(code, kept)| *code = codec.nearest(*kept, prepared)),
        Some((noise, first)) => {
            for ((code, kept), place) in codes.iter_mut().zip(kept).zip(0u32..) {
                *code = codec.at_random(*kept, prepared, noise.at(first.wrapping_add(place)));
            }
        }
    }
}
