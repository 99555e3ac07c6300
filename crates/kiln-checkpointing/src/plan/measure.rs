//! Memory and time of each block of a chain, measured by running it.

use std::time::Instant;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

use super::chain::Chain;
use super::cost::Cost;
use crate::autograd::{TensorMap, Tensors, Untracked, devices_of};

/// Bytes in use around the run of a closure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes in use before it.
    pub before: u64,
    /// Bytes in use after it.
    pub after: u64,
    /// The most bytes in use while it ran.
    pub peak: u64,
}

/// Runs each block of `chain` by itself, forward and backward on `x`, and measures its memory and time. A block runs once
/// before it is measured, so that memory that is allocated once and kept is not counted.
///
/// `memory_of` runs a closure once and reports the bytes in use around it, from a counting allocator on the CPU or the memory pool's figures
/// on a GPU.
///
/// Running statistics move and random numbers are drawn: measure a copy of the model (`model.valid().train()`) where that
/// matters.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::tensor::{Device, Tensor};
/// use kiln_checkpointing::{Chain, MemoryUse, measure_blocks};
/// # fn bytes_in_use() -> u64 { 0 }
/// # fn peak_bytes() -> u64 { 0 }
/// # fn reset_peak() {}
///
/// // The three functions are those of your allocator or device.
/// let memory_of = |run: &mut dyn FnMut()| {
///     let before = bytes_in_use();
///     reset_peak();
///     run();
///     MemoryUse { before, after: bytes_in_use(), peak: peak_bytes() }
/// };
/// let device = Device::flex().autodiff();
/// let layers: Vec<_> = (0..3).map(|_| LinearConfig::new(8, 8).init(&device)).collect();
/// let x = Tensor::<2>::ones([4, 8], &device);
/// let costs = measure_blocks(&Chain::new(&layers), x, |layer, x| layer.forward(x), &memory_of);
/// assert_eq!((costs.len(), costs[0].input, costs[0].gradients), (3, 4 * 8 * 4, (8 * 8 + 8) * 4));
/// ```
pub fn measure_blocks<B, X, F>(
    chain: &Chain<B>,
    x: X,
    f: F,
    memory_of: &dyn Fn(&mut dyn FnMut()) -> MemoryUse,
) -> Vec<Cost>
where
    B: Module + 'static,
    X: Tensors,
    F: Fn(&B, X) -> X,
{
    let devices = devices_of(&chain.blocks().to_vec(), x.clone());
    let sync = || {
        // A device that cannot finish reports that at the next operation.
        devices.iter().for_each(|device| drop(device.sync()));
    };
    let mut x = x.map(&mut Untracked);
    let mut costs = vec![];
    for block in chain.blocks() {
        if let Some(loss) = loss(f(block, x.clone().map(&mut Leaf))) {
            drop(loss.backward());
        }
        sync();
        let (mut output, mut forward) = (None, 0.0);
        let pass = memory_of(&mut || {
            let started = Instant::now();
            output = Some(f(block, x.clone().map(&mut Leaf)));
            sync();
            forward = started.elapsed().as_secs_f64();
        });
        let Some(y) = output else { break }; // a function that does not run the closure measures nothing
        let (input, gradients) = (bytes(x), gradient_bytes(block));
        let saved = (pass.after + input).saturating_sub(pass.before + bytes(y.clone()));
        let mut workspace = pass.peak.saturating_sub(pass.after);
        x = y.clone().map(&mut Untracked);
        if let Some(loss) = loss(y) {
            let (mut loss, mut found) = (Some(loss), None);
            let backward = memory_of(&mut || {
                found = loss.take().map(|loss| loss.backward());
                sync();
            });
            drop(found);
            workspace = workspace.max(backward.peak.saturating_sub(pass.after + gradients));
        }
        costs.push(Cost { input, saved, workspace, gradients, parameters: gradients, forward, ..Cost::default() });
    }
    costs
}

/// Makes leaves that need a gradient, as a block in the middle of a chain has them.
struct Leaf;

impl TensorMap for Leaf {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        if tensor.is_autodiff() { Untracked.float(tensor).require_grad() } else { tensor }
    }
}

/// The sum of all outputs that need a gradient.
fn loss(outputs: impl Tensors) -> Option<Tensor<1>> {
    struct Sum(Option<Tensor<1>>);
    impl TensorMap for Sum {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            if tensor.is_tracked() {
                let sum = tensor.clone().sum();
                self.0 = Some(match self.0.take() {
                    Some(loss) => loss + sum,
                    None => sum,
                });
            }
            tensor
        }
    }
    let mut sum = Sum(None);
    let _ = outputs.map(&mut sum);
    sum.0
}

/// Counts the bytes of tensors, and of parameters that need a gradient.
struct Bytes(u64);

impl Bytes {
    fn add<const D: usize>(&mut self, tensor: &Tensor<D>) {
        self.0 += (tensor.shape().num_elements() * tensor.dtype().size()) as u64;
    }
}

impl TensorMap for Bytes {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.add(&tensor);
        tensor
    }
}

impl ModuleVisitor for Bytes {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        if tensor.is_require_grad() {
            self.add(&tensor);
        }
    }
}

fn bytes(tensors: impl Tensors) -> u64 {
    let mut bytes = Bytes(0);
    let _ = tensors.map(&mut bytes);
    bytes.0
}

fn gradient_bytes(module: &impl Module) -> u64 {
    let mut bytes = Bytes(0);
    module.visit(&mut bytes);
    bytes.0
}
