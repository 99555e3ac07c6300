//! The arithmetic of the updates, on moments in f32.
//!
//! Products and sums are rounded one by one, in the order of the operations of `composed`, so that both give the same bits.

#[cfg(feature = "cube")]
use burn::backend::{Cube, tensor::FloatTensor};
use burn::tensor::Tensor;

#[cfg(feature = "cube")]
use super::cube::{BlockwiseUpdate, Moment};
use super::options::{AdamWRule, MomentumRule};
#[cfg(feature = "cube")]
use crate::blocks::Noise;
use crate::fused::Betas;
use kiln_operations::{Cost, simd};

/// A rule that changes a parameter and its `N` moments in a step, from the gradient.
pub(super) trait Rule<const N: usize>: Copy + Send + Sync {
    /// The costs of the recorded operation: with moments of 8 bits, and of 4 bits. Its inputs are parameter, codes and scales of each
    /// moment, and gradient. The kernels make no temporary tensors.
    const COSTS: [&'static Cost; 2];

    /// Changes corresponding values of parameter and moments. The gradient is multiplied by a number first.
    fn apply(self, parameter: &mut [f32], gradient: (&[f32], f32), moments: [&mut [f32]; N]);

    /// The parameter and its moments after a step, by burn's operations. The moments are decoded, in f32.
    fn compose<const D: usize>(
        self,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        moments: [Tensor<D>; N],
    ) -> (Tensor<D>, [Tensor<D>; N]);

    /// The parameter and its moments after a step, by a kernel of a CubeCL device. The gradient is multiplied by a number first. `tables` are
    /// the tables of the moments' code books.
    #[cfg(feature = "cube")]
    fn launch(
        self,
        parameter: FloatTensor<Cube>,
        gradient: (FloatTensor<Cube>, f32),
        moments: [Moment; N],
        tables: FloatTensor<Cube>,
        noise: Option<Noise>,
    ) -> (FloatTensor<Cube>, [Moment; N]);
}

impl Rule<2> for AdamWRule {
    const COSTS: [&'static Cost; 2] = [
        &Cost { in_place: &[(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)], ..Cost::new("kiln::adamw_8bit_update") },
        &Cost { in_place: &[(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)], ..Cost::new("kiln::adamw_4bit_update") },
    ];

    fn apply(self, parameter: &mut [f32], gradient: (&[f32], f32), [first, second]: [&mut [f32]; 2]) {
        adamw(parameter, gradient, first, second, self);
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

    #[cfg(feature = "cube")]
    fn launch(
        self,
        parameter: FloatTensor<Cube>,
        gradient: (FloatTensor<Cube>, f32),
        [first, second]: [Moment; 2],
        tables: FloatTensor<Cube>,
        noise: Option<Noise>,
    ) -> (FloatTensor<Cube>, [Moment; 2]) {
        let books = [first.book, second.book];
        let (parameter, c1, s1, c2, s2) = Cube::blockwise_adamw(
            parameter,
            gradient.0,
            first.codes,
            first.scales,
            second.codes,
            second.scales,
            tables,
            (self, gradient.1),
            books,
            noise,
        );
        let first = Moment { book: books[0], codes: c1, scales: s1 };
        (parameter, [first, Moment { book: books[1], codes: c2, scales: s2 }])
    }
}

simd! {
    fn adamw(parameter: &mut [f32], gradient: (&[f32], f32), first: &mut [f32], second: &mut [f32], rule: AdamWRule) {
        for (((p, g), m), v) in parameter.iter_mut().zip(gradient.0).zip(first).zip(second) {
            (*m, *v) = rule.betas.next(*g * gradient.1, *m, *v);
            *p = *p * rule.keep - *m * rule.rate / (v.sqrt() * rule.root + rule.epsilon);
        }
    }
}

impl Rule<1> for MomentumRule {
    const COSTS: [&'static Cost; 2] = [
        &Cost { in_place: &[(0, 0), (1, 1), (2, 2)], ..Cost::new("kiln::momentum_8bit_update") },
        &Cost { in_place: &[(0, 0), (1, 1), (2, 2)], ..Cost::new("kiln::momentum_4bit_update") },
    ];

    fn apply(self, parameter: &mut [f32], gradient: (&[f32], f32), [velocity]: [&mut [f32]; 1]) {
        momentum(parameter, gradient, velocity, self);
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

    #[cfg(feature = "cube")]
    fn launch(
        self,
        parameter: FloatTensor<Cube>,
        gradient: (FloatTensor<Cube>, f32),
        [Moment { book, codes, scales }]: [Moment; 1],
        tables: FloatTensor<Cube>,
        noise: Option<Noise>,
    ) -> (FloatTensor<Cube>, [Moment; 1]) {
        let (parameter, codes, scales) =
            Cube::blockwise_momentum(parameter, gradient.0, codes, scales, tables, (self, gradient.1), book, noise);
        (parameter, [Moment { book, codes, scales }])
    }
}

simd! {
    fn momentum(parameter: &mut [f32], gradient: (&[f32], f32), velocity: &mut [f32], rule: MomentumRule) {
        for ((p, g), v) in parameter.iter_mut().zip(gradient.0).zip(velocity) {
            let g = *g * gradient.1;
            let g = match rule.penalty {
                Some(penalty) => *p * penalty + g,
                None => g,
            };
            *v = g * rule.share + *v * rule.factor;
            let delta = if rule.nesterov { *v * rule.factor + g } else { *v };
            *p -= delta * rule.rate;
        }
    }
}
