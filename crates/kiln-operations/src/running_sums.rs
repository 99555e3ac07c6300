//! Sums of gradients over the micro-batches of a batch, to which operations add one row after the other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::backend::DispatchTensor;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor};

use crate::relay::{SentSum, SumRelay, SumUse};

/// Sums of the gradients of parameters, one for each use of a parameter, such as the two of an embedding that is the output layer too.
///
/// It is a handle: a clone has the same sums.
///
/// During a [pass](RunningSums::pass) an operation of this crate adds the gradients of its [`in_order`](crate::Operation::in_order) inputs to
/// what is there, row by row in the order of the rows, and computes all sums over rows so. Therefore the sums of a batch have the same bits
/// however it is cut into micro-batches. Gradients that burn's own operations make stay in burn's container.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::tensor::Device;
/// use kiln_operations::RunningSums;
///
/// let layer = LinearConfig::new(3, 2).init(&Device::flex().autodiff());
/// let sums = RunningSums::default();
/// for _micro_batch in 0..4 {
///     sums.pass(&layer, 0).during(|| { /* forward and backward pass with the layers of kiln-layers */ });
/// }
/// assert!(sums.finish(&layer)?.is_empty());
/// # Ok::<(), kiln_operations::SumError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct RunningSums {
    sums: Arc<Mutex<HashMap<ParamId, Vec<Sum>>>>,
    /// The other replicas that add to them, if there are any.
    pub(crate) relay: Option<SumRelay>,
    /// Whether long sequences are taken in parts.
    pub(crate) in_parts: bool,
}

/// The sum of one use.
#[derive(Debug)]
pub(crate) struct Sum {
    pub(crate) operation: &'static str,
    /// Its number among the uses by such an operation in a pass.
    pub(crate) number: usize,
    /// Not here while an operation adds to it.
    pub(crate) tensor: Option<DispatchTensor>,
    /// What it is to be multiplied by, if that is known.
    pub(crate) factor: Option<Factor>,
    /// Forward passes that have added to it and whose backward passes have not said the factor yet.
    pub(crate) open: usize,
}

/// The number that a sum is to be multiplied by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Factor {
    Known(f32),
    /// Not known while a step is recorded.
    Unknown,
    /// Two micro-batches have different ones.
    Several([f32; 2]),
}

impl Factor {
    pub(crate) fn known(self) -> Option<f32> {
        if let Self::Known(factor) = self { Some(factor) } else { None }
    }
}

/// Why sums cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SumError {
    /// The losses of rows have other factors in one micro-batch than in another.
    #[error(
        "the losses of rows are multiplied by {0} in one micro-batch and by {1} in another, expected a mean over the weight of the \
         micro-batch"
    )]
    Factors(f32, f32),
    /// A forward pass has added to the sum of a parameter, and no backward pass followed: a loss that is only looked at must be computed without
    /// a graph.
    #[error("the output of {operation} has no backward pass, expected one in each micro-batch")]
    Dropped {
        /// The operation.
        operation: &'static str,
    },
}

impl RunningSums {
    /// The sums of a batch that several replicas compute. Each sum comes from the replica before, and goes on in the replica's
    /// [last](crate::SumPass::last) pass.
    pub fn relayed(relay: SumRelay) -> Self {
        Self { relay: Some(relay), ..Self::default() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<ParamId, Vec<Sum>>> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sums during whose passes long sequences are taken in parts, whose gradients are in burn's container and not added in order. By default
    /// sequences are taken as a whole.
    #[must_use]
    pub fn with_sequences_in_parts(self) -> Self {
        Self { in_parts: true, ..self }
    }

    /// Whether there is no sum.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// The number of uses of a parameter that have a sum.
    pub fn uses_of(&self, parameter: ParamId) -> usize {
        self.lock().get(&parameter).map_or(0, Vec::len)
    }

    /// The gradients of the parameters of `model` that have a sum. The sums of several uses are added in the order of the first pass.
    ///
    /// # Errors
    /// [`SumError`] for a loss whose sum over the micro-batches cannot be had.
    pub fn finish(self, model: &impl Module) -> Result<GradientsParams, SumError> {
        struct Finish<'a> {
            relay: Option<SumRelay>,
            sums: &'a mut HashMap<ParamId, Vec<Sum>>,
            gradients: Result<GradientsParams, SumError>,
        }
        impl ModuleVisitor for Finish<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let (Some(sums), Ok(gradients)) = (self.sums.remove(&param.id), &mut self.gradients) else { return };
                let mut total: Option<Tensor<D>> = None;
                for Sum { operation, number, tensor, factor, open } in sums {
                    if open > 0 {
                        self.gradients = Err(SumError::Dropped { operation });
                        return;
                    }
                    if let Some(Factor::Several([one, other])) = factor {
                        self.gradients = Err(SumError::Factors(one, other));
                        return;
                    }
                    // The sum may be with another replica, or go there now if the last pass has not used it.
                    let sum = tensor.map(Tensor::<D>::from_dispatch);
                    let sum = match &self.relay {
                        Some(relay) => sum.and_then(|sum| {
                            let of = SumUse { parameter: param.id, operation: operation.into(), number };
                            let (values, shape) = (sum.clone().reshape([sum.shape().num_elements()]), sum.shape());
                            let factor = factor.and_then(Factor::known);
                            Some(relay.give(of, SentSum { values, shape, factor })?.values.reshape(param.shape()))
                        }),
                        None => sum,
                    };
                    let Some(sum) = sum else { continue };
                    let sum = match factor {
                        Some(Factor::Known(factor)) if factor != 1.0 => sum * factor,
                        Some(Factor::Unknown) => sum * 0.5, // any other number than 1: what counts is the operation
                        _ => sum,
                    };
                    total = Some(match total {
                        Some(total) => total + sum,
                        None => sum,
                    });
                }
                if let Some(total) = total {
                    gradients.register(param.id, total);
                }
            }
        }
        let mut finish =
            Finish { relay: self.relay.clone(), sums: &mut self.lock(), gradients: Ok(GradientsParams::new()) };
        model.visit(&mut finish);
        finish.gradients
    }
}

/// The uses of the parameters of a model that have sums, for a step that is recorded as one of several micro-batches.
#[derive(Clone, Debug, Default)]
pub struct SumUses(Vec<Vec<(&'static str, usize)>>);

impl RunningSums {
    /// The uses of the parameters of `model`.
    pub fn uses(&self, model: &impl Module) -> SumUses {
        struct Uses<'a>(&'a RunningSums, SumUses);
        impl ModuleVisitor for Uses<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let sums = self.0.lock();
                let sums = sums.get(&param.id).into_iter().flatten();
                self.1.0.push(sums.map(|sum| (sum.operation, sum.number)).collect());
            }
        }
        let mut uses = Uses(self, SumUses::default());
        model.visit(&mut uses);
        uses.1
    }
}

impl SumUses {
    /// Sums of zeros for a model with the same parameters, whose values do not matter.
    pub fn zeros(&self, model: &impl Module) -> RunningSums {
        struct Zeros<'a>(std::slice::Iter<'a, Vec<(&'static str, usize)>>, RunningSums);
        impl ModuleVisitor for Zeros<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                for &(operation, number) in self.0.next().into_iter().flatten() {
                    let zeros = Tensor::<D>::zeros(param.shape(), (&param.device().inner(), DType::F32));
                    let tensor = Some(zeros.into_dispatch());
                    let sum = Sum { operation, number, tensor, factor: None, open: 0 };
                    self.1.lock().entry(param.id).or_default().push(sum);
                }
            }
        }
        let mut zeros = Zeros(self.0.iter(), RunningSums::default());
        model.visit(&mut zeros);
        zeros.1
    }
}
