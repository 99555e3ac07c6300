//! `cuInit`, `cuDevice*` and the texts of errors.

use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::sync::{Mutex, OnceLock};

use serde_json::json;

use super::driver;
use super::machine::{call_any_time, initialise, machine};
use super::pointer::{Out, Text};
use crate::driver::{Answer, Code, Sim};

/// The GPU that a `CUdevice` names.
pub(super) fn ordinal(sim: &Sim, device: i32) -> Answer<usize> {
    let ordinal = usize::try_from(device).map_err(|_| Code::INVALID_DEVICE)?;
    sim.state().device(ordinal).map(|_| ordinal)
}

/// Begins to use the driver.
#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: u32) -> u32 {
    call_any_time("cuInit", || {
        initialise()?;
        let none = machine().is_some_and(|sim| sim.state().devices.is_empty());
        match (flags, none) {
            (0, false) => Ok(()),
            (0, true) => Err(Code::NO_DEVICE),
            _ => Err(Code::INVALID_VALUE),
        }
    })
}

/// The driver's version, 12080 for 12.8.
#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: Out<i32>) -> u32 {
    call_any_time("cuDriverGetVersion", || {
        let sim = machine().ok_or(Code::NOT_INITIALIZED)?;
        version.put(sim.settings.driver as i32)
    })
}

/// The name of a code, as a text that stays.
#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(code: u32, name: Out<*const c_char>) -> u32 {
    call_any_time("cuGetErrorName", || name.put(lasting(Code(code).name())?))
}

/// The sentence for a code, as a text that stays.
#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(code: u32, text: Out<*const c_char>) -> u32 {
    call_any_time("cuGetErrorString", || text.put(lasting(Code(code).text())?))
}

/// A copy of a text with a zero byte behind it that lives for the rest of the process; each is made once.
fn lasting(text: Option<&'static str>) -> Answer<*const c_char> {
    static TEXTS: OnceLock<Mutex<HashMap<&'static str, CString>>> = OnceLock::new();
    let text = text.ok_or(Code::INVALID_VALUE)?;
    let mut texts = TEXTS.get_or_init(Mutex::default).lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    Ok(texts.entry(text).or_insert_with(|| CString::new(text).unwrap_or_default()).as_ptr())
}

driver! {
    /// How many GPUs there are.
    fn cuDeviceGetCount(count: Out<i32>) |sim| {
        count.put(sim.state().devices.len() as i32)
    }

    /// The handle of a GPU, which is its ordinal.
    fn cuDeviceGet(device: Out<i32>, number: i32) |sim| {
        ordinal(sim, number)?;
        device.put(number)
    }

    /// The name of a GPU.
    fn cuDeviceGetName(name: Out<c_char>, length: i32, device: i32) |sim| {
        let on = ordinal(sim, device)?;
        let capability = sim.state().device(on)?.card.capability;
        name.put_text(&format!("Kiln simulated sm_{capability}"), length)
    }

    /// 16 bytes that are different for each GPU.
    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: i32) |sim| {
        uuid.put(uuid_of(ordinal(sim, device)?))
    }

    /// As `cuDeviceGetUuid`.
    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) |sim| {
        uuid.put(uuid_of(ordinal(sim, device)?))
    }

    /// Memory of a GPU in bytes.
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) |sim| {
        let on = ordinal(sim, device)?;
        bytes.put(sim.state().device(on)?.ledger.total as usize)
    }

    /// A property of a GPU; 0 for one that is not simulated, which the log notes.
    fn cuDeviceGetAttribute(value: Out<i32>, attribute: i32, device: i32) |sim| {
        let on = ordinal(sim, device)?;
        let known = sim.state().device(on)?.card.attribute(attribute, on);
        if known.is_none() {
            sim.log.write("attribute", json!({ "device": on, "attribute": attribute, "value": 0 }));
        }
        value.put(known.unwrap_or(0))
    }

    /// The compute capability of a GPU.
    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) |sim| {
        let on = ordinal(sim, device)?;
        let capability = sim.state().device(on)?.card.capability as i32;
        major.put(capability / 10)?;
        minor.put(capability % 10)
    }

    /// The PCI address of a GPU as a text.
    fn cuDeviceGetPCIBusId(text: Out<c_char>, length: i32, device: i32) |sim| {
        text.put_text(&bus_id(ordinal(sim, device)?), length)
    }

    /// The GPU at a PCI address.
    fn cuDeviceGetByPCIBusId(device: Out<i32>, text: Text) |sim| {
        let wanted = text.text()?.to_ascii_lowercase();
        let found = (0..sim.state().devices.len()).find(|on| bus_id(*on) == wanted).ok_or(Code::INVALID_DEVICE)?;
        device.put(found as i32)
    }

    /// Whether a GPU reaches the memory of another; here each reaches each.
    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) |sim| {
        can.put(i32::from(ordinal(sim, device)? != ordinal(sim, peer)?))
    }

    /// A property of a pair of GPUs: rank 0, access and native atomics yes.
    fn cuDeviceGetP2PAttribute(value: Out<i32>, attribute: i32, device: i32, peer: i32) |sim| {
        if ordinal(sim, device)? == ordinal(sim, peer)? {
            return Err(Code::INVALID_DEVICE);
        }
        value.put(i32::from(matches!(attribute, 2 | 3)))
    }
}

fn bus_id(ordinal: usize) -> String {
    format!("0000:{:02x}:00.0", ordinal + 1)
}

fn uuid_of(ordinal: usize) -> [u8; 16] {
    let mut uuid = *b"kiln-cuda-sim \0\0";
    uuid[15] = ordinal as u8;
    uuid
}
