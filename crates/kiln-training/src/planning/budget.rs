//! The memory that a step may take.

use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use super::{gpu, host_memory};
use crate::error::Error;

/// The memory that a step may take: parameters, gradients, optimizer state, activations, and on the CPU the loader's share. A number of bytes
/// can be that of the whole process there ([`TrainerBuilder::with_process`](crate::TrainerBuilder::with_process)).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MemoryBudget {
    /// A number of bytes.
    Bytes(u64),
    /// A fraction, above 0 and at most 1, of the memory that is free when the run is built. On the CPU, control groups (as those of a
    /// container) limit the free memory.
    FractionOfFree(f64),
}

impl MemoryBudget {
    /// The budget in bytes on `device`.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for zero bytes and for a fraction out of range. [`Error::UnknownMemory`] if the free memory of the
    /// device is not known: that of NVIDIA's GPUs takes the feature `nvml` of kiln-memory, that of AMD's takes Linux, others never tell.
    pub fn bytes(self, device: &Device) -> Result<u64, Error> {
        let fraction = match self {
            Self::Bytes(0) => return Err(invalid("0 bytes", "at least 1 byte")),
            Self::Bytes(bytes) => return Ok(bytes),
            Self::FractionOfFree(fraction) if fraction > 0.0 && fraction <= 1.0 => fraction,
            Self::FractionOfFree(fraction) => {
                return Err(invalid(&fraction.to_string(), "a fraction above 0, at most 1"));
            }
        };
        let free = match device.memory_pool_usage() {
            Some(_) => gpu::memory(device).map(|memory| memory.free),
            None => host_memory::available(),
        };
        let free = free.ok_or_else(|| Error::UnknownMemory { device: format!("{device:?}") })?;
        Ok((free as f64 * fraction) as u64)
    }
}

fn invalid(value: &str, expected: &'static str) -> Error {
    Error::InvalidSetting { name: "memory budget", value: value.into(), expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_bytes_or_a_fraction_of_free_memory() {
        let device = Device::flex();
        assert_eq!(MemoryBudget::Bytes(7).bytes(&device).unwrap(), 7);
        // Other processes allocate and free memory between the two calls.
        let of_free = |fraction| MemoryBudget::FractionOfFree(fraction).bytes(&device).unwrap() as f64;
        for fraction in [0.5, 0.125] {
            let share = of_free(fraction) / of_free(1.0);
            assert!((0.75 * fraction..1.25 * fraction).contains(&share), "{fraction}: {share}");
        }
        for bad in [MemoryBudget::Bytes(0), MemoryBudget::FractionOfFree(0.0), MemoryBudget::FractionOfFree(1.5)] {
            let message = bad.bytes(&device).unwrap_err().to_string();
            assert!(message.starts_with("memory budget is "), "{message}");
        }
    }
}
