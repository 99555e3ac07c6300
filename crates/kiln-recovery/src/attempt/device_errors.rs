//! Errors of wgpu that no caller sees.
//!
//! wgpu gives an error that nobody asked for (an allocation that failed, a launch that it refuses) to a handler, and CubeCL's panics on the
//! device's own thread. CubeCL encodes launches in batches: when the panic ends a batch, the launches behind it are left out, and tensors
//! that they would have written pass for written (`compute/stream.rs` and `compute/device_poison.rs` of cubecl-wgpu 0.11.3). The panic
//! hook is the one place where such an error is seen.

use std::any::Any;
use std::sync::{Mutex, Once, PoisonError};

use burn::tensor::{Device, ExecutionError};

use crate::failure::Failure;

/// How CubeCL's handler begins its message.
const HEAD: &str = "wgpu error: ";
/// The last errors that are kept.
const KEPT: usize = 16;

/// How many errors this process has had, and the last of them.
static SEEN: Mutex<(usize, Vec<String>)> = Mutex::new((0, Vec::new()));

/// The errors of wgpu since it was made, of all devices of the process. [`attempt`](crate::attempt()) looks for them by itself; work that is
/// undone in another way does so with this.
///
/// The first one on a device of wgpu adds a panic hook in front of the program's; a program that sets its own later must do so before. On
/// devices of other kinds, which report each error where it is read, it does nothing.
#[derive(Debug)]
#[must_use = "call `none` when the work is done"]
pub struct DeviceErrors {
    /// Those of wgpu.
    devices: Vec<Device>,
    before: usize,
}

impl DeviceErrors {
    /// Begins to look, for work on these devices.
    pub fn on<'a>(devices: impl IntoIterator<Item = &'a Device>) -> Self {
        static HOOK: Once = Once::new();
        let of_wgpu = |device: &&Device| format!("{device:?}").contains("Wgpu");
        let devices: Vec<Device> = devices.into_iter().filter(of_wgpu).cloned().collect();
        if !devices.is_empty() {
            HOOK.call_once(|| {
                let others = std::panic::take_hook();
                std::panic::set_hook(Box::new(move |panic| {
                    note(panic.payload());
                    others(panic);
                }));
            });
        }
        Self { devices, before: seen(|(count, _)| *count) }
    }

    /// Waits for the devices of wgpu, and checks that there was no error.
    ///
    /// # Errors
    /// The first error that is one of memory, else the first one, and the loss of a device.
    pub fn none(self) -> Result<(), ExecutionError> {
        if self.devices.is_empty() {
            return Ok(());
        }
        self.devices.iter().try_for_each(Device::sync)?;
        seen(|(count, last)| {
            let new = &last[last.len() - (*count - self.before).min(last.len())..];
            let errors = || new.iter().map(|text| ExecutionError::with_context(text.clone()));
            let of_memory = errors().find(|error| Failure::from_device(error).is_some());
            of_memory.or_else(|| errors().next()).map_or(Ok(()), Err)
        })
    }
}

fn seen<T>(read: impl FnOnce(&mut (usize, Vec<String>)) -> T) -> T {
    read(&mut SEEN.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Keeps a panic's message, if it is one of CubeCL's handler.
fn note(payload: &dyn Any) {
    let text = payload.downcast_ref::<String>().filter(|text| text.starts_with(HEAD));
    if let Some(text) = text {
        seen(|(count, last)| {
            *count += 1;
            if last.len() == KEPT {
                last.remove(0);
            }
            last.push(text.clone());
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Kind;

    #[test]
    fn an_error_of_the_handler_is_kept_and_other_panics_are_not() {
        assert!(DeviceErrors::on([&Device::flex()]).none().is_ok());
        // As on a device of wgpu, whatever this one is.
        let errors = || DeviceErrors { devices: vec![Device::flex()], before: seen(|(count, _)| *count) };
        let fails = errors();
        note(&"wgpu error: of another type");
        note(&String::from("index out of bounds"));
        assert!(errors().none().is_ok());
        note(&String::from("wgpu error: Validation Error"));
        let later = errors();
        note(&String::from("wgpu error: Out of Memory"));
        note(&String::from("wgpu error: Validation Error"));
        for errors in [fails, later] {
            let error = errors.none().unwrap_err();
            assert_eq!(Failure::from_device(&error).map(|failure| failure.kind()), Some(Kind::OutOfMemory));
        }
        assert!(errors().none().is_ok());
        let many = errors();
        (0..2 * KEPT).for_each(|_| note(&String::from("wgpu error: Validation Error")));
        assert!(Failure::from_device(&many.none().unwrap_err()).is_none());
    }
}
