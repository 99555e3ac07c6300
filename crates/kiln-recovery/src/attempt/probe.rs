//! A check that tensors were written.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, ExecutionError, Tensor};

use crate::failure::Failure;

/// Checks that tensors were written. After a failed allocation a tensor looks valid until something reads it.
///
/// # Cost
/// No tensor is copied to the host. On a device with a queue (CubeCL: CUDA, wgpu, its CPU runtime) burn's read is a check and a
/// lazy copy, and the probe does not use the copy: the cost is one call to the device's thread for each tensor. A tensor that
/// is not contiguous is made contiguous first. On a device that computes at once (Flex) the probe reads one element, which
/// takes less than two microseconds.
///
/// # Why not one read for all
/// Gathering one element of each tensor and reading the result would be a single call. But concatenation on CubeCL writes its
/// output piece by piece, unless fusion makes one kernel of it. When one piece is skipped because its input is unwritten, the
/// next piece marks the whole output as written, and the failure is hidden (`cat_with_slice_assign` of burn-backend 0.22.1 and
/// `Taint` of cubecl-server 0.11.3; seen in `tools/cuda-sim/kiln-tests/tests/cuda/lost.rs`).
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use kiln_recovery::Probe;
///
/// let loss = Tensor::<1>::zeros([1], &Device::flex());
/// let logits = Tensor::<2>::zeros([32, 10], &Device::flex());
/// let mut probe = Probe::new();
/// probe.add(&loss).add(&logits);
/// probe.finish()?;
/// # Ok::<(), burn::tensor::ExecutionError>(())
/// ```
#[derive(Debug, Default)]
#[must_use = "call `finish` to get the result of a probe"]
pub struct Probe {
    device: Option<(Device, Read)>,
    checked: usize,
    found: Option<ExecutionError>,
}

/// How to read a tensor of a device.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Read {
    /// The whole tensor, lazily, so that nothing is copied.
    Lazily,
    /// One element, because a read copies.
    First,
}

impl Read {
    /// Devices with memory pools are CubeCL's, whose reads are lazy.
    fn on(device: &Device) -> Self {
        if device.memory_pool_usage().is_some() { Self::Lazily } else { Self::First }
    }
}

impl Probe {
    /// A probe without tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Checks a tensor immediately.
    pub fn add<const D: usize>(&mut self, tensor: &Tensor<D>) -> &mut Self {
        // An empty tensor needs no memory.
        if tensor.dims().contains(&0) {
            return self;
        }
        self.checked += 1;
        // Detached from the autodiff graph, which must not record the read.
        let tensor = tensor.clone().inner();
        let read = match self.read_on(tensor.device()) {
            Read::Lazily => tensor.try_into_data(),
            Read::First => tensor.slice(std::array::from_fn::<_, D, _>(|_| 0..1)).try_into_data(),
        };
        if let Err(error) = read {
            self.keep(error);
        }
        self
    }

    /// Checks every float parameter of a module.
    pub fn module<M: Module>(&mut self, module: &M) -> &mut Self {
        struct Parameters<'a>(&'a mut Probe);
        impl ModuleVisitor for Parameters<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.0.add(&param.val());
            }
        }
        module.visit(&mut Parameters(self));
        self
    }

    /// Checks the gradients of a module's parameters.
    pub fn gradients<M: Module>(&mut self, module: &M, gradients: &GradientsParams) -> &mut Self {
        struct Gradients<'a>(&'a mut Probe, &'a GradientsParams);
        impl ModuleVisitor for Gradients<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let Some(gradient) = self.1.get::<D>(param.id) {
                    self.0.add(&gradient);
                }
            }
        }
        module.visit(&mut Gradients(self, gradients));
        self
    }

    /// The number of tensors checked.
    pub fn checked(&self) -> usize {
        self.checked
    }

    /// The result.
    ///
    /// # Errors
    /// The most specific error of the tensors: the loss of the device, else a failed allocation, else an error with another
    /// cause, else a consequence of one of these. [`Failure::from_device`] classifies it.
    pub fn finish(self) -> Result<(), ExecutionError> {
        self.found.map_or(Ok(()), Err)
    }

    fn read_on(&mut self, device: Device) -> Read {
        match &self.device {
            Some((known, read)) if *known == device => *read,
            _ => {
                let read = Read::on(&device);
                self.device = Some((device, read));
                read
            }
        }
    }

    /// Only the tensor whose allocation failed names the cause, so all tensors are checked and the most specific error is kept.
    fn keep(&mut self, error: ExecutionError) {
        let outranked = self.found.as_ref().is_some_and(|found| {
            let (new, kept) = (Failure::from_device(&error), Failure::from_device(found));
            !Failure::outranks(new.as_ref(), kept.as_ref())
        });
        if !outranked {
            self.found = Some(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::nn::LinearConfig;

    /// The result of a probe when tensors gave these errors, in this order.
    fn answer(reasons: &[&str]) -> String {
        let mut probe = Probe::new();
        for reason in reasons {
            probe.keep(match reason.strip_prefix("poisoned ") {
                Some(reason) => ExecutionError::device_poisoned(reason),
                None => ExecutionError::with_context(*reason),
            });
        }
        probe.finish().unwrap_err().reason().to_owned()
    }

    #[test]
    fn the_most_telling_error_is_kept() {
        let sibling = "Memory location was never initialized";
        let cause = "out of device memory allocating 64 bytes";
        let kernel = "A compilation error happened during launch";
        assert_eq!(answer(&[sibling, cause, sibling]), cause);
        assert_eq!(answer(&[sibling, kernel, sibling]), kernel);
        assert_eq!(answer(&[kernel, cause]), cause);
        assert_eq!(answer(&[cause, kernel]), cause);
        assert_eq!(answer(&[cause, "poisoned gone", sibling]), "gone");
        assert_eq!(answer(&[sibling, "torn down before it could say"]), sibling);
    }

    #[test]
    fn every_parameter_and_every_gradient_is_asked_for() {
        let device = Device::flex().autodiff();
        let model = LinearConfig::new(3, 2).init(&device);
        let loss = model.forward(Tensor::<2>::ones([4, 3], &device)).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        let mut probe = Probe::new();
        probe.add(&loss).module(&model).gradients(&model, &gradients);
        assert_eq!(probe.checked(), 5);
        assert_eq!(probe.finish().map_err(|error| error.to_string()), Ok(()));
    }

    #[test]
    fn tensors_without_elements_and_transposed_ones_are_asked_for_in_no_other_way() {
        let device = Device::flex();
        let mut probe = Probe::new();
        probe.add(&Tensor::<2>::zeros([0, 3], &device));
        assert_eq!(probe.checked(), 0);
        probe.add(&Tensor::<3>::zeros([2, 3, 4], &device).permute([2, 0, 1]));
        assert_eq!((probe.checked(), probe.finish().is_ok()), (1, true));
    }
}
