//! The divergence of a student from a teacher's probabilities, and its gradient.
// N rows, C classes, K stored classes

use burn::tensor::activation::log_softmax;
use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor};

use super::sums::sum;
use super::teacher::{Tail, Teacher, TopK};

/// The lowest logarithm of a probability: its exponential is 0 in f32, and 0 times it is 0.
const LOWEST: f32 = -1.0e4;
/// The least mass of the classes that are not stored.
const LEAST_MASS: f32 = 1.0e-12;

/// The logarithms of a student's probabilities `[N, C]` at temperature `t`, in f32.
pub(super) fn student(logits_nc: Tensor<2>, t: f64) -> Tensor<2> {
    log_softmax(logits_nc.cast(DType::F32) / t, 1)
}

/// The logarithms of a teacher's probabilities at one temperature, in f32.
#[derive(Clone)]
#[allow(clippy::large_enum_variant, reason = "one exists at a time, for one chunk of rows")]
pub(super) enum Target {
    /// Of each class, `[N, C]`.
    All(Tensor<2>),
    /// Of some classes of each row.
    Stored {
        /// The classes, `[N, K]`.
        indices: Tensor<2, Int>,
        /// `[N, K]`.
        log_p_nk: Tensor<2>,
        /// Of all other classes of a row together, `[N, 1]`, and their number. None: they have no mass.
        rest: Option<(Tensor<2>, f64)>,
    },
}

impl Target {
    /// What `teacher` says about rows of `classes` classes at temperature `t`.
    pub(super) fn of(teacher: Teacher, classes: usize, t: f64) -> Self {
        let logits_nc = match teacher {
            Teacher::TopK(top_k) => return Self::of_top_k(top_k, classes, t),
            Teacher::Logits(logits) => logits,
            Teacher::Linear { hidden, weight } => hidden.matmul(weight),
        };
        Self::All(log_softmax(logits_nc.cast(DType::F32) / t, 1).clamp_min(LOWEST))
    }

    fn of_top_k(TopK { indices, log_probabilities, tail }: TopK, classes: usize, t: f64) -> Self {
        let [_, k] = indices.dims();
        let log_p_nk = log_probabilities.cast(DType::F32).clamp_min(LOWEST);
        let others = classes.saturating_sub(k);
        if tail == Tail::Dropped || others == 0 {
            return Self::Stored { indices, log_p_nk: log_softmax(log_p_nk / t, 1), rest: None };
        }
        // All others have one logit: the logarithm of their mean probability.
        let others = others as f64;
        let mass_n1: Tensor<2> = (-log_p_nk.clone().exp().sum_dim(1) + 1.0).clamp_min(LEAST_MASS);
        let other_n1 = (mass_n1 / others).log() / t;
        // The last column is the mass of all others together.
        let log_m = log_softmax(Tensor::cat(vec![log_p_nk / t, other_n1 + others.ln()], 1), 1);
        let (log_p_nk, log_mass_n1) = (log_m.clone().narrow(1, 0, k), log_m.narrow(1, k, 1));
        Self::Stored { indices, log_p_nk, rest: Some((log_mass_n1, others)) }
    }

    /// The sum over rows of KL(teacher || student).
    pub(super) fn divergence(self, log_q_nc: Tensor<2>) -> Tensor<1> {
        let (indices, log_p_nk, rest) = match self {
            Self::All(log_p_nc) => return sum(log_p_nc.clone().exp() * (log_p_nc - log_q_nc)),
            Self::Stored { indices, log_p_nk, rest } => (indices, log_p_nk, rest),
        };
        let log_q_nk = log_q_nc.clone().gather(1, indices);
        let stored = sum(log_p_nk.clone().exp() * (log_p_nk - log_q_nk.clone()));
        let Some((log_mass_n1, others)) = rest else { return stored };
        let log_each_n1 = log_mass_n1.clone() - others.ln();
        let mean_log_q_n1 = (log_q_nc.sum_dim(1) - log_q_nk.sum_dim(1)) / others;
        stored + (log_mass_n1.exp() * (log_each_n1 - mean_log_q_n1)).sum()
    }

    /// The gradient `[N, C]` of [`divergence`](Self::divergence) for the student's logits over the temperature: the student's
    /// probabilities minus the teacher's.
    pub(super) fn gradient(self, log_q_nc: Tensor<2>) -> Tensor<2> {
        let (shape, q_nc) = (log_q_nc.shape(), log_q_nc.exp());
        match self {
            Self::All(log_p_nc) => q_nc - log_p_nc.exp(),
            Self::Stored { indices, log_p_nk, rest } => {
                let each_n1 = match rest {
                    Some((log_mass_n1, others)) => log_mass_n1.exp() / others,
                    None => log_p_nk.clone().narrow(1, 0, 1).zeros_like(),
                };
                let beyond_nk = log_p_nk.exp() - each_n1.clone();
                q_nc - each_n1.expand(shape).scatter(1, indices, beyond_nk, IndexingUpdateOp::Add)
            }
        }
    }
}
