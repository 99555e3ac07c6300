//! Measures times, bytes and differences.

use std::time::Instant;

use anyhow::{Result, anyhow};
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor};
use kiln_memory::{GpuMemory, Meter, Span};
use serde_json::{Value, json};

use super::failures::caught;
use kiln_cli::HEAP;
use kiln_cli::units::MIB;

/// Bytes as MiB, to a tenth.
pub(crate) fn mib(bytes: u64) -> Value {
    json!((bytes as f64 / MIB * 10.0).round() / 10.0)
}

/// `value` with four significant digits; no figure here is more accurate.
pub(crate) fn short(value: f64) -> Value {
    json!(format!("{value:.3e}").parse::<f64>().unwrap_or(value))
}

/// First quartile, median and third quartile; zeros if there are no values.
pub(crate) fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values.get((values.len().saturating_sub(1)) * quarter / 4).copied().unwrap_or(0.0))
}

/// Waits for the device and releases unused memory, so that the next figures do not include earlier work.
pub(crate) fn settle(device: &Device) {
    let _ = device.sync();
    device.memory_cleanup();
    let _ = device.sync();
}

/// Runs `work` with new pools, and releases them afterwards.
///
/// Each thread has a stream of CubeCL with pools of its own, whose pages only grow. On the thread of earlier work a step would also hold
/// that work's pages and the workspace of kernels that were tried. To measure memory, first compile and tune the work `apart`, then
/// measure it `apart`. On the heap every byte is counted, so that `work` runs on the calling thread.
pub(crate) fn apart<T: Send>(device: &Device, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    if device.memory_pool_usage().is_none() {
        return work();
    }
    on_a_thread(|| {
        let done = caught(work);
        settle(device);
        done
    })
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| scope.spawn(work).join().unwrap_or_else(|_| Err(anyhow!("a thread panicked"))))
}

/// Milliseconds of `work`, from an idle device to an idle device.
pub(crate) fn timed<T>(device: &Device, work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    device.sync()?;
    let begun = Instant::now();
    let done = work()?;
    device.sync()?;
    Ok((done, 1e3 * begun.elapsed().as_secs_f64()))
}

/// The memory that work takes: the highest bytes of the heap, or the pages that pools hold at the end. A pool releases pages when it is
/// cleaned, or after a long time without use. So its pages after a few steps are the most that the steps needed, if they ran [`apart`]
/// with kernels that were tuned before.
pub(crate) struct Peak {
    device: Device,
    gpu: Option<u32>,
    heap: Span,
    reserved: u64,
    used: Option<u64>,
}

/// The figures of a [`Peak`], in bytes above those before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes {
    /// Exact on the heap; the pages of a pool.
    pub(crate) taken: u64,
    /// Of the whole GPU, from NVIDIA's management library.
    pub(crate) gpu: Option<u64>,
}

impl Peak {
    /// Starts the measurement, with an idle and cleaned device.
    pub(crate) fn start(device: &Device, gpu: Option<u32>) -> Self {
        settle(device);
        let heap = Meter::of_heap(&HEAP).span();
        let reserved = device.memory_pool_usage().map_or(0, |usage| usage.bytes_reserved);
        Self { device: device.clone(), gpu, heap, reserved, used: used(gpu) }
    }

    pub(crate) fn end(self) -> Bytes {
        let _ = self.device.sync();
        let taken = match self.device.memory_pool_usage() {
            Some(usage) => usage.bytes_reserved.saturating_sub(self.reserved),
            None => self.heap.peak_bytes(),
        };
        let gpu = self.used.zip(used(self.gpu)).map(|(before, after)| after.saturating_sub(before));
        Bytes { taken, gpu }
    }
}

/// Bytes of a GPU that any program uses.
pub(crate) fn used(gpu: Option<u32>) -> Option<u64> {
    GpuMemory::of_nvidia(gpu?).map(|memory| memory.total - memory.free)
}

/// All gradients of a module, in the order of its parameters.
pub(crate) fn gradients_of(module: &impl Module, gradients: &GradientsParams) -> Result<Vec<f32>> {
    let mut read = Read { gradients: Some(gradients), values: Ok(vec![]) };
    module.visit(&mut read);
    read.values
}

/// All float parameters of a module.
pub(crate) fn parameters_of(module: &impl Module) -> Result<Vec<f32>> {
    let mut read = Read { gradients: None, values: Ok(vec![]) };
    module.visit(&mut read);
    read.values
}

struct Read<'a> {
    gradients: Option<&'a GradientsParams>,
    values: Result<Vec<f32>>,
}

impl ModuleVisitor for Read<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = match self.gradients {
            Some(gradients) => gradients.get::<D>(param.id),
            None => Some(param.val()),
        };
        let (Some(tensor), Ok(values)) = (tensor, &mut self.values) else { return };
        match tensor.inner().cast(DType::F32).try_into_data() {
            Ok(data) => values.extend(data.iter::<f32>()),
            Err(error) => self.values = Err(error.into()),
        }
    }
}

/// The difference between values and a reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Difference {
    /// Values that differ in any bit.
    pub(crate) differ: usize,
    /// The largest difference.
    pub(crate) most: f64,
    /// Norm of the difference over the norm of the reference.
    pub(crate) relative: f64,
}

/// Compares values. The figures are NaN if there is a NaN, or if the lengths differ.
pub(crate) fn difference<T: Copy + PartialEq + Into<f64>>(values: &[T], reference: &[T]) -> Difference {
    if values.len() != reference.len() {
        return Difference { differ: values.len().max(reference.len()), most: f64::NAN, relative: f64::NAN };
    }
    let pairs = || values.iter().zip(reference).map(|(a, b)| ((*a).into(), (*b).into()));
    let most = pairs().fold(0.0, |most: f64, (a, b): (f64, f64)| {
        let difference = (a - b).abs();
        if most.is_nan() || difference.is_nan() { f64::NAN } else { most.max(difference) }
    });
    let norm = |of: &dyn Fn(f64, f64) -> f64| pairs().map(|(a, b)| of(a, b).powi(2)).sum::<f64>().sqrt();
    let relative = norm(&|a, b| a - b) / norm(&|_, b| b).max(f64::MIN_POSITIVE);
    Difference { differ: values.iter().zip(reference).filter(|(a, b)| a != b).count(), most, relative }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_relative_to_the_reference_and_see_what_is_no_number() {
        assert_eq!(difference(&[1.0, 2.0], &[1.0, 2.0]), Difference { differ: 0, most: 0.0, relative: 0.0 });
        let found = difference(&[3.0, 4.5], &[3.0, 4.0]);
        assert_eq!((found.differ, found.most, found.relative), (1, 0.5, 0.1));
        assert!(difference(&[1.0, f64::NAN, 2.0], &[1.0, 1.0, 2.0]).most.is_nan());
        assert!(difference(&[1.0], &[1.0, 2.0]).relative.is_nan());
    }

    #[test]
    fn work_apart_gives_its_value_or_its_error() {
        let here = std::thread::current().id();
        assert!(on_a_thread(|| Ok(std::thread::current().id())).unwrap() != here);
        assert_eq!(on_a_thread::<()>(|| Err(anyhow!("no memory"))).unwrap_err().to_string(), "no memory");
        assert_eq!(apart(&Device::flex(), || Ok(7)).unwrap(), 7);
    }

    #[test]
    fn figures_are_short() {
        assert_eq!(short(0.000123456), json!(0.0001235));
        assert_eq!(mib(3 << 19), json!(1.5));
        assert_eq!(quartiles(vec![4.0, 1.0, 3.0, 2.0, 5.0]), [2.0, 3.0, 4.0]);
        assert_eq!(quartiles(vec![]), [0.0; 3]);
    }
}
