//! Distillation: a small model learns from the outputs of a large one, all rows at once or a few at a time.
// N rows, C classes, D and E widths of the student and of the teacher

use burn::tensor::activation::log_softmax;
use burn::tensor::{DType, Tensor};

use crate::Error;

/// Bytes of logits and their temporaries that exist at once.
const BYTES: u64 = 128 << 20;
/// Tensors of `[rows, classes]` in f32 that are alive at most: the logits of both models, their logarithms of the softmax, and
/// the temporaries of the backward pass.
const TENSORS: u64 = 8;
/// The lowest logarithm of a probability: its exponential is 0 in f32, and 0 times it is 0.
const LOWEST: f32 = -1.0e4;

/// The outputs of a teacher for N rows. No gradient reaches them.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "one exists at a time, for one batch or one chunk of rows")]
pub enum Teacher {
    /// Logits `[N, C]`.
    Logits(Tensor<2>),
    /// The inputs `[N, E]` and weights `[E, C]` of the output layer. Logits exist for a few rows at a time.
    Linear {
        /// `[N, E]`.
        hidden: Tensor<2>,
        /// `[E, C]`.
        weight: Tensor<2>,
    },
}

impl From<Tensor<2>> for Teacher {
    fn from(logits_nc: Tensor<2>) -> Self {
        Self::Logits(logits_nc)
    }
}

impl Teacher {
    /// The teacher apart from the graph that made it. It stays on its device: burn's capture device cannot leave autodiff.
    fn detached(self) -> Self {
        match self {
            Self::Logits(logits) => Self::Logits(logits.detach()),
            Self::Linear { hidden, weight } => Self::Linear { hidden: hidden.detach(), weight: weight.detach() },
        }
    }

    /// Checks that it has `rows` rows of `classes` classes.
    fn check(&self, [rows, classes]: [usize; 2]) -> Result<(), Error> {
        let shape = |what, found: &[usize], expected: String| Error::Shape { what, found: found.to_vec(), expected };
        match self {
            Self::Logits(logits) if logits.dims() != [rows, classes] => {
                Err(shape("the teacher's logits", &logits.dims(), format!("[{rows}, {classes}]")))
            }
            Self::Logits(_) => Ok(()),
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
        }
    }

    /// `rows` rows from `first` on.
    fn narrow(&self, first: usize, rows: usize) -> Self {
        match self {
            Self::Logits(logits) => Self::Logits(logits.clone().narrow(0, first, rows)),
            Self::Linear { hidden, weight } => {
                Self::Linear { hidden: hidden.clone().narrow(0, first, rows), weight: weight.clone() }
            }
        }
    }

    /// The logarithms of its probabilities `[N, C]` at temperature `t`, in f32.
    fn log_probabilities(self, t: f64) -> Tensor<2> {
        let logits_nc = match self {
            Self::Logits(logits) => logits,
            Self::Linear { hidden, weight } => hidden.matmul(weight),
        };
        log_probabilities(logits_nc, t).clamp_min(LOWEST)
    }
}

/// KL(teacher || student) of the softmax at temperature T, times T², as mean over rows: Hinton, Vinyals and Dean 2015, arXiv 1503.02531,
/// section 2. It is computed in f32, and is torch's `kl_div(log_softmax(s / T), log_softmax(t / T), log_target=True,
/// reduction="batchmean") * T * T`.
///
/// ```
/// use burn::tensor::{Device, Distribution, Tensor};
/// use kiln_compression::{DistillationLoss, Teacher};
///
/// // N rows, D and E widths, C classes
/// let device = Device::flex().autodiff();
/// let random = |shape: [usize; 2]| Tensor::<2>::random(shape, Distribution::Default, &device);
/// let loss = DistillationLoss::new(2.0)?;
/// let from_logits = loss.forward(random([16, 100]), random([16, 100]))?;
///
/// // With a large vocabulary the logits of both models exist for a few rows at a time.
/// let (hidden_nd, weight_dc) = (random([16, 8]).require_grad(), random([8, 100]));
/// let teacher = Teacher::Linear { hidden: random([16, 12]), weight: random([12, 100]) };
/// let gradients = loss.forward_linear(hidden_nd.clone(), weight_dc, teacher)?.backward();
/// assert!(hidden_nd.grad(&gradients).is_some());
/// # Ok::<(), kiln_compression::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct DistillationLoss {
    temperature: f64,
    rows: Option<usize>,
}

impl DistillationLoss {
    /// The loss at a temperature above 0.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a temperature that is not a positive number.
    pub fn new(temperature: f64) -> Result<Self, Error> {
        match temperature.is_finite() && temperature > 0.0 {
            true => Ok(Self { temperature, rows: None }),
            false => Err(Error::invalid("the temperature", temperature, "a finite number above 0")),
        }
    }

    /// Limits the rows of logits that [`forward_linear`](Self::forward_linear) holds at once; 0 counts as 1. By default as many as take
    /// 128 MiB with their temporaries: eight tensors in f32.
    pub fn with_rows(mut self, rows: usize) -> Self {
        self.rows = Some(rows.max(1));
        self
    }

    /// The loss `[1]` of the student's logits `[N, C]`.
    ///
    /// # Errors
    /// [`Error::Shape`] when the teacher has another number of rows or classes.
    pub fn forward(&self, student_nc: Tensor<2>, teacher: impl Into<Teacher>) -> Result<Tensor<1>, Error> {
        let (teacher, shape) = (teacher.into(), student_nc.dims());
        teacher.check(shape)?;
        let log_p = teacher.detached().log_probabilities(self.temperature);
        Ok(divergence(log_p, log_probabilities(student_nc, self.temperature)) * self.of_a_row(shape[0]))
    }

    /// The loss `[1]` of the logits `hidden_nd` `[N, D]` × `weight_dc` `[D, C]`, of which few rows exist at once.
    ///
    /// The gradients of hidden states and weight are computed here, with the loss, for one chunk of rows after another; only plain tensor
    /// operations are used, so that a step can be recorded and recomputed. The backward pass only multiplies them. Gradients of the logits
    /// of the batch never exist either.
    ///
    /// # Errors
    /// [`Error::Shape`] when the weight does not fit the hidden states, or the teacher has another number of rows or classes.
    pub fn forward_linear(
        &self,
        hidden_nd: Tensor<2>,
        weight_dc: Tensor<2>,
        teacher: impl Into<Teacher>,
    ) -> Result<Tensor<1>, Error> {
        let ([n, d], [weight_d, c], teacher) = (hidden_nd.dims(), weight_dc.dims(), teacher.into());
        if d != weight_d {
            let found = vec![weight_d, c];
            return Err(Error::Shape { what: "the student's weight", found, expected: format!("[{d}, classes]") });
        }
        teacher.check([n, c])?;
        let teacher = teacher.detached();
        let (tracked_h, tracked_w) = (hidden_nd.is_tracked(), weight_dc.is_tracked());
        let (inner_h, inner_w) = (hidden_nd.clone().detach(), weight_dc.clone().detach());
        let mut value = Tensor::<1>::zeros([1], (&inner_h.device(), DType::F32));
        let (mut of_hidden, mut of_weight) = (Vec::new(), None);
        for (first, rows) in chunks(n, self.rows.unwrap_or_else(|| rows_at_once(BYTES, c))) {
            let hidden = inner_h.clone().narrow(0, first, rows);
            let logits = hidden.clone().matmul(inner_w.clone());
            let dtype = logits.dtype();
            let log_q = log_probabilities(logits, self.temperature);
            let log_p = teacher.narrow(first, rows).log_probabilities(self.temperature);
            value = value + divergence(log_p.clone(), log_q.clone());
            if !tracked_h && !tracked_w {
                continue;
            }
            // The student's probabilities minus the teacher's are the gradient of logits over the temperature.
            let of_logits = ((log_q.exp() - log_p.exp()) / self.temperature).cast(dtype);
            if tracked_h {
                of_hidden.push(of_logits.clone().matmul(inner_w.clone().transpose()));
            }
            if tracked_w {
                let part = hidden.transpose().matmul(of_logits).cast(DType::F32);
                of_weight = Some(match of_weight {
                    Some(sum) => sum + part,
                    None => part,
                });
            }
        }
        let factor = self.of_a_row(n);
        let mut loss = value * factor;
        if !of_hidden.is_empty() {
            loss = with_gradient(loss, hidden_nd, Tensor::cat(of_hidden, 0).cast(DType::F32) * factor);
        }
        if let Some(of_weight) = of_weight {
            loss = with_gradient(loss, weight_dc, of_weight * factor);
        }
        Ok(loss)
    }

    /// The factor of the sum over rows.
    fn of_a_row(&self, rows: usize) -> f64 {
        self.temperature * self.temperature / rows.max(1) as f64
    }
}

/// The logarithms of the probabilities `[N, C]` that logits mean at temperature `t`, in f32.
fn log_probabilities(logits_nc: Tensor<2>, t: f64) -> Tensor<2> {
    log_softmax(logits_nc.cast(DType::F32) / t, 1)
}

/// The sum over rows of KL(p || q).
fn divergence(log_p_nc: Tensor<2>, log_q_nc: Tensor<2>) -> Tensor<1> {
    sum(log_p_nc.clone().exp() * (log_p_nc - log_q_nc))
}

/// `loss`, of which `x` has the gradient `gradient`: the sum of their product has this gradient, and minus itself the value 0.
fn with_gradient(loss: Tensor<1>, x: Tensor<2>, gradient: Tensor<2>) -> Tensor<1> {
    let carrier = sum(x.cast(DType::F32) * gradient);
    loss + carrier.clone() - carrier.detach()
}

/// The sum of all elements, `[1]`. Many elements are added one dimension after the other, which has a fixed order.
fn sum(x: Tensor<2>) -> Tensor<1> {
    match x.shape().num_elements() < kiln_operations::LARGE_SUM {
        true => x.sum(),
        false => x.sum_dim(1).sum_dim(0).reshape([1]),
    }
}

/// The number of rows whose temporaries fit in `bytes`, at least 1.
fn rows_at_once(bytes: u64, classes: usize) -> usize {
    let row = TENSORS * 4 * classes.max(1) as u64;
    usize::try_from(bytes / row).unwrap_or(usize::MAX).max(1)
}

/// First row and number of rows of each chunk of `rows` rows, at most `at_once` each.
fn chunks(rows: usize, at_once: usize) -> impl Iterator<Item = (usize, usize)> {
    let at_once = at_once.max(1);
    (0..rows).step_by(at_once).map(move |first| (first, at_once.min(rows - first)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rows_fit_and_one_more_would_not(bytes in 0u64..1 << 40, classes in 1usize..1 << 20) {
            let rows = rows_at_once(bytes, classes) as u64;
            let row = 32 * classes as u64;
            prop_assert!(rows == 1 || rows * row <= bytes);
            prop_assert!((rows + 1) * row > bytes);
        }

        #[test]
        fn chunks_cover_every_row_once(rows in 0usize..500, at_once in 0usize..600) {
            let mut next = 0;
            for (first, count) in chunks(rows, at_once) {
                prop_assert_eq!(first, next);
                prop_assert!((1..=at_once.max(1)).contains(&count));
                next += count;
            }
            prop_assert_eq!(next, rows);
        }
    }
}
