//! Finds operations of mixed dtypes in a program without running it.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use burn::backend::capture::{CapturedGraph, TensorId};
use burn::backend::ir::OperationIr;
use burn::module::Module;
use burn::tensor::Device;

use super::cast::{forget_last_used, last_used, recording};
use super::policy::Policy;
use crate::Error;

/// Finds operations whose operands would have different dtypes, without running the program: builds the model with `init` on
/// burn's capture device, puts it under `policy`, and records `forward`.
///
/// burn does not convert operands. The CPU device panics at a mixed operation; on CubeCL devices (CUDA) a matmul of mixed dtypes
/// *returns garbage without an error*. Check your program once before it runs there, or in a test. `forward` receives the model
/// and the device for its input, may return anything, and must not read data back. A check takes a few milliseconds and no
/// memory for data. Where burn panics, its message is printed to stderr before the error is returned.
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
    forget_last_used();
    let run = || {
        let mut checked = Ok(());
        let (graph, parameters) = recording(|| {
            device.capture_scope(|scope| {
                checked = policy.autocast(init(&device)).map(|model| drop(forward(&model, &device)));
                scope.complete([], [])
            })
        });
        checked?;
        mixed(&graph.map_err(|e| Error::Record(format!("{e:?}")))?, parameters)
    };
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().cloned();
        let message = message.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let message = message.unwrap_or_default().replace('\n', " ");
        Err(match is_mismatch(&message) {
            true => Error::MixedDtypes { layer: last_layer(), message },
            false => Error::Record(message),
        })
    })
}

/// Finds the first recorded operation whose float operands have different dtypes. burn's recorder panics at most of them, but accepts
/// matmul and attention. Custom operations are skipped, since they check their operands themselves: kiln-layers' norms take f32 weights
/// with an input of 16 bits.
fn mixed(graph: &CapturedGraph, mut parameters: HashMap<TensorId, Arc<str>>) -> Result<(), Error> {
    for operation in &graph.graph.operations {
        let inputs: Vec<_> = operation.inputs().filter(|tensor| tensor.dtype.is_float()).collect();
        let path = inputs.iter().find_map(|tensor| parameters.get(&tensor.id)).cloned();
        let own_check = matches!(operation, OperationIr::Custom(_));
        if let (false, Some(first), Some(other)) =
            (own_check, inputs.first(), inputs.iter().find(|t| t.dtype != inputs[0].dtype))
        {
            let layer = path.as_deref().map_or_else(|| "(no parameter)".to_owned(), layer_of);
            let message = format!("{} of {:?} and {:?}", name(&format!("{operation:?}")), first.dtype, other.dtype);
            return Err(Error::MixedDtypes { layer, message });
        }
        // The result of an operation on one parameter alone, such as its transpose, still belongs to the parameter.
        if let (1, Some(path)) = (inputs.len(), path) {
            parameters.extend(operation.outputs().map(|output| (output.id, path.clone())));
        }
    }
    Ok(())
}

/// The name of an operation: the innermost one in burn's debug output, such as `Float(F32, Matmul(MatmulOpIr { ... }))`.
fn name(debug: &str) -> &str {
    let head = debug.split("OpIr").next().unwrap_or(debug);
    head.rsplit(|c: char| !c.is_alphanumeric()).next().filter(|name| !name.is_empty()).unwrap_or("an operation")
}

/// Whether a panic means that burn refused operands of two dtypes.
fn is_mismatch(message: &str) -> bool {
    message.contains("DTypeMismatch") || message.contains("dtype mismatch")
}

/// The path of the layer whose parameter was read last.
fn last_layer() -> String {
    last_used().map_or_else(|| "(before the first layer)".to_owned(), |path| layer_of(&path))
}

fn layer_of(parameter: &str) -> String {
    parameter.rsplit_once('.').map_or(parameter, |(layer, _)| layer).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mismatches_are_recognised_in_burns_messages() {
        assert!(is_mismatch("called `Result::unwrap()` on an `Err` value: DTypeMismatch"));
        assert!(is_mismatch("assertion `left == right` failed: matmul: dtype mismatch"));
        assert!(!is_mismatch("called `Result::unwrap()` on an `Err` value: ShapeMismatch"));
        assert!(!is_mismatch("the DType of nothing"));
        assert_eq!(name("Float(F32, Matmul(MatmulOpIr { lhs: 1 }))"), "Matmul");
    }
}
