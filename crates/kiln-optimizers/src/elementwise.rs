//! The optimizers that can update a parameter chunk by chunk.

use burn::optim::{AdaGrad, Adam, AdamW, Adan, Lion, Optimizer, RmsProp, Sgd};

use crate::fused::{FusedAdam, FusedAdamW, FusedSgd};

/// An optimizer that updates each element of a parameter from that element's gradient and state alone. Updating a parameter in chunks
/// then gives the same bits as updating it whole.
///
/// The tensors of its state have the parameter's shape, or one row (along the first axis) for each block of equally many elements. Chunks
/// must then have whole blocks. All other state is in numbers that do not depend on the parameter's shape.
///
/// Adafactor, LAMB and Muon are not elementwise: they need sums over the whole parameter.
pub trait Elementwise: Optimizer {}

impl Elementwise for AdaGrad {}
impl Elementwise for Adam {}
impl Elementwise for AdamW {}
impl Elementwise for Adan {}
impl Elementwise for Lion {}
impl Elementwise for RmsProp {}
impl Elementwise for Sgd {}
impl Elementwise for FusedAdam {}
impl Elementwise for FusedAdamW {}
impl Elementwise for FusedSgd {}
