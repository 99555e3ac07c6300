//! What a teacher says about each row: all logits, what makes them, or the largest only.
// N rows, C classes, D width of the teacher, K stored classes

use burn::tensor::activation::log_softmax;
use burn::tensor::{DType, Int, Tensor};

use crate::Error;

/// The lowest logarithm of a probability: its exponential is 0 in f32, and 0 times it is 0.
const LOWEST: f32 = -1.0e4;
/// The least mass of the classes that are not stored.
const LEAST_MASS: f32 = 1.0e-12;

/// The outputs of a teacher for N rows. No gradient reaches them.
#[derive(Clone, Debug)]
pub enum Teacher {
    /// Logits `[N, C]`.
    Logits(Tensor<2>),
    /// The inputs `[N, D]` and weights `[D, C]` of the output layer. Logits exist for a few rows at a time.
    Linear {
        /// `[N, D]`.
        hidden: Tensor<2>,
        /// `[D, C]`.
        weight: Tensor<2>,
    },
    /// The largest logits of each row.
    TopK(TopK),
}

impl From<Tensor<2>> for Teacher {
    fn from(logits_nc: Tensor<2>) -> Self {
        Self::Logits(logits_nc)
    }
}

impl From<TopK> for Teacher {
    fn from(top_k: TopK) -> Self {
        Self::TopK(top_k)
    }
}

/// What the classes that are not stored get.
///
/// Shen and Xing 2022, *A Fast Knowledge Distillation Framework for Visual Recognition*, arXiv 2112.01528, section 3.3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tail {
    /// The rest of the mass, in equal parts ("marginal smoothing with top-K"). At temperature 1 the mass is that of the teacher. At other
    /// temperatures the softmax is that of equal logits which have this mass at temperature 1.
    #[default]
    Spread,
    /// Nothing; the stored classes share the whole mass ("marginal re-norm with top-K").
    Dropped,
}

/// The K largest outputs of a teacher for N rows, as logarithms of the probabilities at temperature 1. A softmax does not depend on a
/// shift, so these give the probabilities at any temperature.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use kiln_compression::{DistillationLoss, TopK};
///
/// let device = Device::flex();
/// let teacher_logits = Tensor::<2>::from_data([[4.0, 0.0, 1.0, 2.0]], &device);
/// let top = TopK::of(teacher_logits, 2)?;
/// let student_logits = Tensor::<2>::from_data([[1.0, 2.0, 3.0, 4.0]], &device);
/// let loss = DistillationLoss::new(2.0)?.forward(student_logits, top)?;
/// # Ok::<(), kiln_compression::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TopK {
    /// Classes, `[N, K]`; those of a row differ.
    pub indices: Tensor<2, Int>,
    /// Logarithms of their probabilities among all classes at temperature 1, `[N, K]`.
    pub log_probabilities: Tensor<2>,
    /// The rule for the other classes.
    pub tail: Tail,
}

impl TopK {
    /// The `k` largest of the logits `[N, C]`.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] unless `k` is from 1 to C.
    pub fn of(logits_nc: Tensor<2>, k: usize) -> Result<Self, Error> {
        let classes = logits_nc.dims()[1];
        if k == 0 || k > classes {
            let expected = "from 1 to the number of classes";
            return Err(Error::InvalidSetting { what: "the number of stored classes", value: k.to_string(), expected });
        }
        let log_p_nc = log_softmax(logits_nc.without_autodiff().cast(DType::F32), 1);
        let (log_probabilities, indices) = log_p_nc.topk_with_indices(k, 1);
        Ok(Self { indices, log_probabilities, tail: Tail::default() })
    }

    /// The same with another rule for the other classes.
    pub fn with_tail(mut self, tail: Tail) -> Self {
        self.tail = tail;
        self
    }

    /// The sum over rows of KL(teacher || student) at temperature `t`; `log_q_nc` are the student's logarithms of the probabilities.
    fn divergence(self, log_q_nc: Tensor<2>, t: f64) -> Tensor<1> {
        let [n, classes] = log_q_nc.dims();
        let [_, k] = self.indices.dims();
        let log_p_nk = self.log_probabilities.cast(DType::F32).clamp_min(LOWEST);
        let log_q_nk = log_q_nc.clone().gather(1, self.indices);
        let others = classes.saturating_sub(k);
        if self.tail == Tail::Dropped || others == 0 {
            let log_p_nk = log_softmax(log_p_nk / t, 1);
            return (log_p_nk.clone().exp() * (log_p_nk - log_q_nk)).sum();
        }
        // All others have one logit: the logarithm of their mean probability.
        let mass_n1: Tensor<2> = (-log_p_nk.clone().exp().sum_dim(1) + 1.0).clamp_min(LEAST_MASS);
        let other_n1 = (mass_n1 / others as f64).log() / t;
        let scaled = Tensor::cat(vec![log_p_nk / t, other_n1.clone() + (others as f64).ln()], 1);
        // The last column is the mass of all others together.
        let log_m = log_softmax(scaled, 1);
        let (log_p_nk, log_mass_n1) = (log_m.clone().narrow(1, 0, k), log_m.narrow(1, k, 1));
        let log_each_n1 = log_mass_n1.clone() - (others as f64).ln();
        let stored = (log_p_nk.clone().exp() * (log_p_nk - log_q_nk.clone())).sum();
        let mean_log_q_n1 = (log_q_nc.sum_dim(1) - log_q_nk.sum_dim(1)) / others as f64;
        let rest = (log_mass_n1.exp() * (log_each_n1 - mean_log_q_n1)).reshape([n]).sum();
        stored + rest
    }
}

impl Teacher {
    /// The teacher apart from the graph that made it.
    pub(super) fn detached(self) -> Self {
        match self {
            Self::Logits(logits) => Self::Logits(logits.without_autodiff()),
            Self::Linear { hidden, weight } => {
                Self::Linear { hidden: hidden.without_autodiff(), weight: weight.without_autodiff() }
            }
            Self::TopK(TopK { indices, log_probabilities, tail }) => Self::TopK(TopK {
                indices: indices.without_autodiff(),
                log_probabilities: log_probabilities.without_autodiff(),
                tail,
            }),
        }
    }

    /// Checks that it says something about `rows` rows of `classes` classes.
    pub(super) fn check(&self, [rows, classes]: [usize; 2]) -> Result<(), Error> {
        let shape = |what, found: &[usize], expected: String| Error::Shape { what, found: found.to_vec(), expected };
        match self {
            Self::Logits(logits) if logits.dims() != [rows, classes] => {
                Err(shape("the teacher's logits", &logits.dims(), format!("[{rows}, {classes}]")))
            }
            Self::Linear { hidden, weight } => {
                let [[n, d], [e, c]] = [hidden.dims(), weight.dims()];
                match () {
                    () if n != rows => Err(shape("the teacher's hidden states", &[n, d], format!("[{rows}, width]"))),
                    () if [e, c] != [d, classes] => {
                        Err(shape("the teacher's weight", &[e, c], format!("[{d}, {classes}]")))
                    }
                    () => Ok(()),
                }
            }
            Self::TopK(TopK { indices, log_probabilities, .. }) => {
                let [n, k] = indices.dims();
                if n != rows || k == 0 || k > classes {
                    return Err(shape("the teacher's indices", &[n, k], format!("[{rows}, 1 to {classes}]")));
                }
                match log_probabilities.dims() == [n, k] {
                    true => Ok(()),
                    false => Err(shape("the teacher's values", &log_probabilities.dims(), format!("[{n}, {k}]"))),
                }
            }
            Self::Logits(_) => Ok(()),
        }
    }

    /// `rows` rows from `first` on.
    pub(super) fn narrow(&self, first: usize, rows: usize) -> Self {
        match self {
            Self::Logits(logits) => Self::Logits(logits.clone().narrow(0, first, rows)),
            Self::Linear { hidden, weight } => {
                Self::Linear { hidden: hidden.clone().narrow(0, first, rows), weight: weight.clone() }
            }
            Self::TopK(TopK { indices, log_probabilities, tail }) => Self::TopK(TopK {
                indices: indices.clone().narrow(0, first, rows),
                log_probabilities: log_probabilities.clone().narrow(0, first, rows),
                tail: *tail,
            }),
        }
    }

    /// The sum over rows of KL(teacher || student) at temperature `t`, from the student's logits `[N, C]`, in f32.
    pub(super) fn divergence(self, student_nc: Tensor<2>, t: f64) -> Tensor<1> {
        let log_q_nc = log_softmax(student_nc.cast(DType::F32) / t, 1);
        let logits_nc = match self {
            Self::TopK(top_k) => return top_k.divergence(log_q_nc, t),
            Self::Logits(logits) => logits,
            Self::Linear { hidden, weight } => hidden.matmul(weight),
        };
        let log_p_nc = log_softmax(logits_nc.cast(DType::F32) / t, 1).clamp_min(LOWEST);
        (log_p_nc.clone().exp() * (log_p_nc - log_q_nc)).sum()
    }
}
