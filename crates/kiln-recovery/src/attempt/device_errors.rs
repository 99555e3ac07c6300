//! Errors of wgpu that no caller sees.
//!
//! wgpu gives an error that nobody asked for (an allocation that failed, a launch that it refuses) to a handler, and CubeCL's panics on the
//! device's own thread. CubeCL encodes launches in batches: when the panic ends a batch, the launches behind it are left out, and tensors
//! that they would have written pass for written (`compute/stream.rs` and `compute/device_poison.rs` of cubecl-wgpu 0.11.3). The panic
//! hook is the one place where such an error is seen.

use std::any::Any;
use std::sync::{Mutex, Once, PoisonError};

use burn::tensor::{Device, ExecutionError};

/// How CubeCL's handler begins its message.
const HEAD: &str = "wgpu error: ";

/// The errors of this process so far: how many, and the last of them.
static SEEN: Mutex<(u64, String)> = Mutex::new((0, String::new()));

/// The errors since it was made.
pub(super) struct DeviceErrors {
    before: u64,
}

impl DeviceErrors {
    /// `None` for a device of another kind, which reports each error where it is read.
    pub(super) fn of(device: &Device) -> Option<Self> {
        static HOOK: Once = Once::new();
        if !format!("{device:?}").contains("Wgpu") {
            return None;
        }
        HOOK.call_once(|| {
            let others = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                note(panic.payload());
                others(panic);
            }));
        });
        Some(Self { before: seen(|seen| seen.0) })
    }

    /// Waits for the device.
    ///
    /// # Errors
    /// The last error, of any wgpu device of the process, and the loss of the device.
    pub(super) fn none(self, device: &Device) -> Result<(), ExecutionError> {
        device.sync()?;
        seen(
            |(count, last)| {
                if *count == self.before { Ok(()) } else { Err(ExecutionError::with_context(last.clone())) }
            },
        )
    }
}

fn seen<T>(read: impl FnOnce(&mut (u64, String)) -> T) -> T {
    read(&mut SEEN.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Counts a panic, if it is one of CubeCL's handler.
fn note(payload: &dyn Any) {
    let text = payload.downcast_ref::<String>().filter(|text| text.starts_with(HEAD));
    if let Some(text) = text {
        seen(|seen| *seen = (seen.0 + 1, text.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{Failure, Kind};

    #[test]
    fn an_error_of_the_handler_is_counted_and_other_panics_are_not() {
        let device = Device::flex();
        assert!(DeviceErrors::of(&device).is_none());
        let errors = || DeviceErrors { before: seen(|seen| seen.0) };
        let fails = errors();
        note(&"wgpu error: of another type");
        note(&String::from("index out of bounds"));
        assert_eq!(errors().none(&device).map_err(|error| error.to_string()), Ok(()));
        note(&String::from("wgpu error: Out of Memory"));
        let error = fails.none(&device).unwrap_err();
        assert_eq!(Failure::from_device(&error).map(|failure| failure.kind()), Some(Kind::OutOfMemory));
        assert_eq!(errors().none(&device).map_err(|error| error.to_string()), Ok(()));
    }
}
