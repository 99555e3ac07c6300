use std::time::Instant;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

use crate::checkpoint::devices_of;
use crate::first::Untracked;
use crate::{Chain, Cost, TensorMap, Tensors};

/// Reads how many bytes are in use: a counting allocator on the CPU, the memory pool's figures on a GPU.
#[derive(Clone, Copy)]
pub struct Gauge<'a> {
    /// Bytes in use now.
    pub live: &'a dyn Fn() -> u64,
    /// The most bytes in use since the last reset.
    pub peak: &'a dyn Fn() -> u64,
    /// Begins a new peak.
    pub reset_peak: &'a dyn Fn(),
}

/// Runs every block of `chain` by itself, forward and backward on `x`, and notes what it takes. Each block runs once before it is
/// measured, so that memory that is allocated once is not counted.
///
/// Running statistics move and random numbers are drawn: measure on a copy of the model (`model.valid().train()`) where that
/// matters.
pub fn measure<B, X, F>(chain: &Chain<B>, x: X, f: F, gauge: &Gauge) -> Vec<Cost>
where
    B: Module + 'static,
    X: Tensors,
    F: Fn(&B, X) -> X,
{
    let devices = devices_of(&chain.blocks().to_vec(), x.clone());
    let sync = || {
        // A device that cannot finish shows it in what follows.
        devices.iter().for_each(|device| drop(device.sync()));
    };
    let mut x = x.map(&mut Untracked);
    let mut costs = vec![];
    for block in chain.blocks() {
        let pass = |x: X| {
            let y = f(block, x.map(&mut Leaf));
            let mut loss = Loss(None);
            let _ = y.clone().map(&mut loss);
            (y, loss.0)
        };
        if let (_, Some(loss)) = pass(x.clone()) {
            drop(loss.backward());
        }
        sync();
        let before = (gauge.live)();
        (gauge.reset_peak)();
        let started = Instant::now();
        let y = f(block, x.clone().map(&mut Leaf));
        sync();
        let forward = started.elapsed().as_secs_f64();
        let (live, peak) = ((gauge.live)(), (gauge.peak)());
        let [input, output] = [bytes(x), bytes(y.clone())];
        let gradients = gradient_bytes(block);
        let saved = (live + input).saturating_sub(before + output);
        let mut workspace = peak.saturating_sub(live);
        let next = y.clone().map(&mut Untracked);
        let mut loss = Loss(None);
        let _ = y.map(&mut loss);
        if let Some(loss) = loss.0 {
            (gauge.reset_peak)();
            let gradients_of = loss.backward();
            sync();
            workspace = workspace.max((gauge.peak)().saturating_sub(live + gradients));
            drop(gradients_of);
        }
        costs.push(Cost { input, saved, workspace, gradients, forward });
        x = next;
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

struct Loss(Option<Tensor<1>>);

impl TensorMap for Loss {
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

fn bytes(tensors: impl Tensors) -> u64 {
    struct Bytes(u64);
    impl TensorMap for Bytes {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            self.0 += (tensor.shape().num_elements() * tensor.dtype().size()) as u64;
            tensor
        }
    }
    let mut bytes = Bytes(0);
    let _ = tensors.map(&mut bytes);
    bytes.0
}

fn gradient_bytes(module: &impl Module) -> u64 {
    struct Bytes(u64);
    impl ModuleVisitor for Bytes {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = param.val();
            if tensor.is_require_grad() {
                self.0 += (tensor.shape().num_elements() * tensor.dtype().size()) as u64;
            }
        }
    }
    let mut bytes = Bytes(0);
    module.visit(&mut bytes);
    bytes.0
}
