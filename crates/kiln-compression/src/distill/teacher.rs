//! What a teacher says about each row: all logits, what makes them, or the largest only.
// N rows, C classes, D width of the teacher, K stored classes

use burn::tensor::activation::log_softmax;
use burn::tensor::{DType, Int, Tensor};

use crate::Error;

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
        let log_p_nc = log_softmax(logits_nc.detach().cast(DType::F32), 1);
        let (log_probabilities, indices) = log_p_nc.topk_with_indices(k, 1);
        Ok(Self { indices, log_probabilities, tail: Tail::default() })
    }

    /// The same with another rule for the other classes.
    pub fn with_tail(mut self, tail: Tail) -> Self {
        self.tail = tail;
        self
    }
}

impl Teacher {
    /// The teacher apart from the graph that made it. It stays on its device: burn's capture device cannot leave autodiff.
    pub(super) fn detached(self) -> Self {
        match self {
            Self::Logits(logits) => Self::Logits(logits.detach()),
            Self::Linear { hidden, weight } => Self::Linear { hidden: hidden.detach(), weight: weight.detach() },
            Self::TopK(TopK { indices, log_probabilities, tail }) => {
                Self::TopK(TopK { indices, log_probabilities: log_probabilities.detach(), tail })
            }
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
}
