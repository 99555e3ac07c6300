use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::Module;
use burn::tensor::Device;

use crate::autocast::{forget_last_used, last_used};
use crate::{Error, Policy};

/// Finds operations that would get operands of different dtypes, without running the program: builds the model with
/// `init` on burn's capture device, puts it under `policy`, and records `forward`.
///
/// burn does not convert operands. The CPU device panics at a mixed operation; on CubeCL devices (CUDA) a matmul of
/// mixed dtypes *returns garbage without an error*, so check a program of your own once before it runs there, or in a
/// test. `forward` gets the model and the device to make its input on, and returns what it likes; nothing may be read
/// back. A few milliseconds, no memory for data.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
/// use kiln_precision::{Error, Policy, Precision, check_dtypes};
///
/// let policy = Policy::new(Precision::BF16);
/// let init = |device: &Device| LinearConfig::new(4, 2).init(device);
/// let right = |model: &Linear, device: &Device| {
///     model.forward(Tensor::<2>::zeros([3, 4], device).cast(burn::tensor::DType::BF16))
/// };
/// check_dtypes(&policy, init, right)?;
/// let forgot_the_cast = |model: &Linear, device: &Device| model.forward(Tensor::<2>::zeros([3, 4], device));
/// assert!(matches!(check_dtypes(&policy, init, forgot_the_cast), Err(Error::MixedDtypes { .. })));
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// [`Error::MixedDtypes`] with the path of the layer, those of [`Policy::autocast`], and [`Error::Record`] for a program
/// that panics for another reason or reads data back.
pub fn check_dtypes<M: Module, O>(
    policy: &Policy,
    init: impl FnOnce(&Device) -> M,
    forward: impl FnOnce(&M, &Device) -> O,
) -> Result<(), Error> {
    let device = Device::capture();
    let mut checked = Ok(());
    let run = || {
        device.capture_scope(|scope| {
            checked = policy.autocast(init(&device)).map(|model| {
                forget_last_used();
                drop(forward(&model, &device));
            });
            scope.complete([], [])
        })
    };
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(_)) => checked,
        Ok(Err(e)) => Err(Error::Record(format!("{e:?}"))),
        Err(panic) => {
            let message = panic.downcast_ref::<String>().cloned();
            let message = message.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            let message = message.unwrap_or_default().replace('\n', " ");
            Err(match message.contains("DType") {
                true => Error::MixedDtypes { layer: layer(), message },
                false => Error::Record(message),
            })
        }
    }
}

/// The path of the layer whose parameter was read last.
fn layer() -> String {
    let path = last_used();
    let path = path.as_deref().unwrap_or("(before the first layer)");
    path.rsplit_once('.').map_or(path, |(layer, _)| layer).to_owned()
}
