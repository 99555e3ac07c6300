//! The divergence of a student from its teacher, whole or a few rows at a time.
// N rows, C classes, D width of the student

use burn::tensor::{DType, Tensor};

use super::divergence::{Target, student};
use super::rows::{chunks, rows_at_once};
use super::sums::sum;
use super::teacher::Teacher;
use crate::Error;

/// Bytes of logits and their temporaries that exist at once.
const BYTES: u64 = 128 << 20;

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
            false => Err(Error::InvalidSetting {
                what: "the temperature",
                value: temperature.to_string(),
                expected: "a finite number above 0",
            }),
        }
    }

    /// The same with at most `rows` rows of logits at once in [`forward_linear`](Self::forward_linear); 0 counts as 1. By default
    /// [`rows_at_once`] for 128 MiB.
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
        let target = Target::of(teacher.detached(), shape[1], self.temperature);
        Ok(target.divergence(student(student_nc, self.temperature)) * self.of_a_row(shape[0]))
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
            let log_q = student(logits, self.temperature);
            let target = Target::of(teacher.narrow(first, rows), c, self.temperature);
            value = value + target.clone().divergence(log_q.clone());
            if !tracked_h && !tracked_w {
                continue;
            }
            let of_logits = (target.gradient(log_q) / self.temperature).cast(dtype);
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

/// `loss`, of which `x` has the gradient `gradient`: the sum of their product has this gradient, and minus itself the value 0.
fn with_gradient(loss: Tensor<1>, x: Tensor<2>, gradient: Tensor<2>) -> Tensor<1> {
    let carrier = sum(x.cast(DType::F32) * gradient);
    loss + carrier.clone() - carrier.detach()
}
