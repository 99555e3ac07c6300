//! An operation of one's own: x², one node of burn's graph with its own gradient, predicted like the layers of Kiln.

use burn::backend::tensor::FloatTensor;
use burn::nn::{Linear, LinearConfig};
use burn::{optim::SgdConfig, tensor::Tensor};
use kiln_memory::{BackendProfile, Error, Prediction, Recorder, StepOptions, record_step};
use kiln_operations::{Computed, Cost, Kernel, KernelBackend, Operation, run};

#[derive(Clone, Debug)]
enum Square {
    Forward,
    Backward,
}

static FORWARD: Cost = Cost { multiply_adds: |call| call.elements(0) as f64, ..Cost::new("own::square") };
static BACKWARD: Cost = Cost { gpu_scratch: |call, _| call.bytes(0), ..Cost::new("own::square_backward") };

impl Kernel for Square {
    fn cost(&self) -> &'static Cost {
        if matches!(self, Self::Forward) { &FORWARD } else { &BACKWARD }
    }

    fn composed<B: KernelBackend>(&self, mut inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        let x = inputs.remove(0);
        match self {
            Self::Forward => vec![B::float_mul(x.clone(), x)],
            Self::Backward => vec![B::float_mul(B::float_mul_scalar(x, 2f32.into()), inputs.remove(0))],
        }
    }
}

impl Operation for Square {
    const NAME: &'static str = "square";

    type Saved<B: KernelBackend> = FloatTensor<B>;

    fn forward<B: KernelBackend>(&self, x: Vec<FloatTensor<B>>, _: &[bool]) -> Computed<B, FloatTensor<B>> {
        Computed { saved: Some(x[0].clone()), outputs: B::run(&Self::Forward, x) }
    }

    fn gradient<B: KernelBackend>(
        &self,
        x: FloatTensor<B>,
        dy: FloatTensor<B>,
        _: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        B::run(&Self::Backward, vec![x, dy]).into_iter().map(Some).collect()
    }
}

pub(crate) fn square<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(run(Square::Forward, vec![x.into_dispatch()]).remove(0))
}

pub(crate) fn predicted() -> Result<Prediction, Error> {
    let forward = |layer: &Linear, step: &Recorder| {
        square(layer.forward(Tensor::<2>::zeros([step.batch(), 512], step.device()))).mean()
    };
    let (build, sgd) = (|device: &_| LinearConfig::new(512, 512).init(device), SgdConfig::new().build());
    record_step(build, forward, &sgd, StepOptions::default())?.predict(64, &BackendProfile::cuda())
}

#[allow(dead_code, clippy::print_stdout, reason = "a test calls the functions above")]
fn main() {
    println!("predicted peak of a step: {:?}", predicted().map(|step| step.peak_bytes));
}
