//! A `libvulkan.so.1` for tests of programs that run out of memory. It passes calls on to the library that `KILN_VULKAN` names, and
//! refuses buffers with `VK_ERROR_OUT_OF_DEVICE_MEMORY` when a test says so: by number, or beyond a number of bytes. Buffers that no kernel
//! reads, which are for copies from and to the host, have numbers of their own and are not counted. Kernels in SPIR-V declare shared memory as
//! drivers without explicit layouts read it. With `KILN_VULKAN_WGSL`, devices lack the memory model that CubeCL needs for SPIR-V, so that kernels are
//! WGSL. It works with every driver.
//!
//! The functions for tests have the names and meaning of kiln-cuda-sim's, as far as they are here (`kiln_sim_count`, `kiln_sim_arm`,
//! `kiln_sim_take`, `kiln_sim_give`, `kiln_sim_reset_peaks`, `kiln_sim_command`).

#![allow(unsafe_code, reason = "Vulkan is a C interface")]

mod buffers;
mod shared_memory;

use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute;
use std::sync::OnceLock;

use libloading::Library;

use buffers::BUFFERS;
use shared_memory::mended;

/// `VK_ERROR_OUT_OF_DEVICE_MEMORY` and `VK_ERROR_INITIALIZATION_FAILED`.
const OUT_OF_DEVICE_MEMORY: i32 = -2;
const INITIALIZATION_FAILED: i32 = -3;

/// A function of Vulkan whose type its name says.
type Function = Option<extern "system" fn()>;
/// `vkGetInstanceProcAddr` and `vkGetDeviceProcAddr`.
type Find = unsafe extern "system" fn(*mut c_void, *const c_char) -> Function;
type CreateBuffer = unsafe extern "system" fn(*mut c_void, *const BufferCreateInfo, *const c_void, *mut u64) -> i32;
type DestroyBuffer = unsafe extern "system" fn(*mut c_void, u64, *const c_void);

/// The beginning of `VkBufferCreateInfo`.
#[repr(C)]
pub struct BufferCreateInfo {
    kind: i32,
    next: *const c_void,
    flags: u32,
    size: u64,
    usage: u32,
}

/// `VK_BUFFER_USAGE_UNIFORM_BUFFER_BIT` and `VK_BUFFER_USAGE_STORAGE_BUFFER_BIT`.
const OF_KERNELS: u32 = 0x10 | 0x20;

type CreateShaderModule =
    unsafe extern "system" fn(*mut c_void, *const ShaderModuleCreateInfo, *const c_void, *mut u64) -> i32;

/// `vkGetPhysicalDeviceFeatures2`.
type Features = unsafe extern "system" fn(*mut c_void, *mut Structure);

/// The beginning of a structure in a chain, and the first member of those with features.
#[repr(C)]
pub struct Structure {
    kind: i32,
    next: *mut Structure,
    first: u32,
}

/// `VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES`.
const MEMORY_MODEL: i32 = 1_000_211_000;

/// `VkShaderModuleCreateInfo`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ShaderModuleCreateInfo {
    kind: i32,
    next: *const c_void,
    flags: u32,
    /// Bytes of the code.
    size: usize,
    code: *const u32,
}

static FIND_OF_DEVICE: OnceLock<Find> = OnceLock::new();
static CREATE: OnceLock<CreateBuffer> = OnceLock::new();
static DESTROY: OnceLock<DestroyBuffer> = OnceLock::new();
static FEATURES: OnceLock<Features> = OnceLock::new();
static CREATE_MODULE: OnceLock<CreateShaderModule> = OnceLock::new();

/// The machine's own `vkGetInstanceProcAddr`.
fn find() -> Option<Find> {
    static FOUND: OnceLock<Option<(Find, Library)>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let path = std::env::var_os("KILN_VULKAN")?;
        // SAFETY: a Vulkan library's initialisation has no conditions, and the function has this type in all of them.
        let library = unsafe { Library::new(path) }.ok()?;
        // SAFETY: as above. The library stays loaded, beside the function.
        let find = unsafe { *library.get::<Find>(b"vkGetInstanceProcAddr").ok()? };
        Some((find, library))
    });
    found.as_ref().map(|(find, _)| *find)
}

/// Vulkan's function of this name.
///
/// # Safety
/// That of Vulkan's.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn vkGetInstanceProcAddr(instance: *mut c_void, name: *const c_char) -> Function {
    // SAFETY: the caller's contract.
    let found = unsafe { find()?(instance, name) };
    // SAFETY: a name is a C string.
    match (unsafe { CStr::from_ptr(name) }.to_bytes(), found) {
        (b"vkGetInstanceProcAddr", Some(_)) => function(vkGetInstanceProcAddr as *const ()),
        (b"vkGetDeviceProcAddr", Some(own)) => {
            // SAFETY: the function of this name has this type.
            FIND_OF_DEVICE.get_or_init(|| unsafe { transmute::<extern "system" fn(), Find>(own) });
            function(find_of_device as *const ())
        }
        (b"vkGetPhysicalDeviceFeatures2" | b"vkGetPhysicalDeviceFeatures2KHR", Some(own)) => {
            // SAFETY: the functions of these names have this type.
            FEATURES.get_or_init(|| unsafe { transmute::<extern "system" fn(), Features>(own) });
            function(features as *const ())
        }
        _ => found,
    }
}

unsafe extern "system" fn find_of_device(device: *mut c_void, name: *const c_char) -> Function {
    // SAFETY: the caller's contract.
    let found = unsafe { FIND_OF_DEVICE.get()?(device, name) };
    // SAFETY: a name is a C string; functions of these names have these types.
    match (unsafe { CStr::from_ptr(name) }.to_bytes(), found) {
        (b"vkCreateBuffer", Some(own)) => {
            CREATE.get_or_init(|| unsafe { transmute::<extern "system" fn(), CreateBuffer>(own) });
            function(create_buffer as *const ())
        }
        (b"vkDestroyBuffer", Some(own)) => {
            DESTROY.get_or_init(|| unsafe { transmute::<extern "system" fn(), DestroyBuffer>(own) });
            function(destroy_buffer as *const ())
        }
        (b"vkCreateShaderModule", Some(own)) => {
            CREATE_MODULE.get_or_init(|| unsafe { transmute::<extern "system" fn(), CreateShaderModule>(own) });
            function(create_shader_module as *const ())
        }
        _ => found,
    }
}

/// A function without its type, which Vulkan's callers give back to it.
fn function(of: *const ()) -> Function {
    // SAFETY: a pointer to a function; a caller gives it the type that its name has before a call.
    Some(unsafe { transmute::<*const (), extern "system" fn()>(of) })
}

/// The features of a device, without its memory model if kernels are to be WGSL.
unsafe extern "system" fn features(device: *mut c_void, mut chain: *mut Structure) {
    let Some(own) = FEATURES.get() else { return };
    // SAFETY: the caller's contract.
    unsafe { own(device, chain) };
    let hidden = std::env::var_os("KILN_VULKAN_WGSL").is_some();
    // SAFETY: a chain of structures that begin so, whose last one has no next.
    while let Some(structure) = unsafe { chain.as_mut() }.filter(|_| hidden) {
        if structure.kind == MEMORY_MODEL {
            structure.first = 0;
        }
        chain = structure.next;
    }
}

unsafe extern "system" fn create_buffer(
    device: *mut c_void,
    info: *const BufferCreateInfo,
    allocator: *const c_void,
    buffer: *mut u64,
) -> i32 {
    // SAFETY: the caller's contract: a valid description.
    let BufferCreateInfo { size, usage, .. } = unsafe { &*info };
    // Others are copies in host memory.
    let counts = usage & OF_KERNELS != 0;
    let allowed = if counts { BUFFERS.allows(*size) } else { BUFFERS.allows_copy() };
    let Some(create) = CREATE.get().filter(|_| allowed) else { return OUT_OF_DEVICE_MEMORY };
    // SAFETY: the caller's contract.
    let result = unsafe { create(device, info, allocator, buffer) };
    if result == 0 && counts {
        // SAFETY: a call that succeeded has written it.
        BUFFERS.add(unsafe { *buffer }, *size);
    }
    result
}

unsafe extern "system" fn create_shader_module(
    device: *mut c_void,
    info: *const ShaderModuleCreateInfo,
    allocator: *const c_void,
    module: *mut u64,
) -> i32 {
    let Some(create) = CREATE_MODULE.get() else { return INITIALIZATION_FAILED };
    // SAFETY: the caller's contract: a valid description, whose code has so many bytes, a multiple of four.
    let (info, code) = unsafe { (*info, std::slice::from_raw_parts((*info).code, (*info).size / 4)) };
    let code = mended(code);
    // SAFETY: the caller's contract. The description is valid, and its code lives until the call ends.
    unsafe { create(device, &ShaderModuleCreateInfo { code: code.as_ptr(), ..info }, allocator, module) }
}

unsafe extern "system" fn destroy_buffer(device: *mut c_void, buffer: u64, allocator: *const c_void) {
    BUFFERS.remove(buffer);
    if let Some(destroy) = DESTROY.get() {
        // SAFETY: the caller's contract.
        unsafe { destroy(device, buffer, allocator) }
    }
}

/// A number of the summary: `allocations`, `refused`, `faults`, `live_bytes`, `peak_bytes`, `free`. `u64::MAX` for another name.
///
/// # Safety
/// `name` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_sim_count(_: u32, name: *const c_char) -> u64 {
    // SAFETY: the caller's contract.
    BUFFERS.count(unsafe { CStr::from_ptr(name) }.to_bytes())
}

/// Refuses buffers by their numbers from now on: `alloc:3x2:OUT_OF_MEMORY,copy:9x1:OUT_OF_MEMORY` refuses the third and fourth
/// of kernels and the ninth of copies.
/// Returns 0, or 1 for a text of another form.
///
/// # Safety
/// `faults` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_sim_arm(faults: *const c_char) -> u32 {
    // SAFETY: the caller's contract.
    let text = unsafe { CStr::from_ptr(faults) }.to_str().unwrap_or("not UTF-8");
    u32::from(BUFFERS.arm(text).is_none())
}

/// Takes bytes away from those that are free. Returns 0, or 1 if they are not.
#[unsafe(no_mangle)]
pub extern "C" fn kiln_sim_take(_: u32, bytes: u64) -> u32 {
    u32::from(!BUFFERS.take(bytes))
}

/// Gives back bytes that were taken away.
#[unsafe(no_mangle)]
pub extern "C" fn kiln_sim_give(_: u32, bytes: u64) -> u32 {
    BUFFERS.give(bytes);
    0
}

/// The peak is what is live now.
#[unsafe(no_mangle)]
pub extern "C" fn kiln_sim_reset_peaks(_: u32) -> u32 {
    BUFFERS.reset_peak();
    0
}

/// The command `{"do":"disarm"}`. Returns -1 for another one.
///
/// # Safety
/// `command` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_sim_command(command: *const c_char, _: *mut c_char, _: i32) -> i64 {
    // SAFETY: the caller's contract.
    if unsafe { CStr::from_ptr(command) }.to_bytes() != b"{\"do\":\"disarm\"}" {
        return -1;
    }
    BUFFERS.disarm();
    1
}
