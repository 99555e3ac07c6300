//! A copy of the built library for each test, with its own machine, and the calls that the tests make.

use std::ffi::{CString, c_char, c_void};
use std::path::{Path, PathBuf};

use libloading::{Library, Symbol};
use serde_json::Value;

/// The library that cargo built beside this test.
pub(crate) fn built() -> PathBuf {
    let exe = std::env::current_exe().expect("this program's path");
    let folders = exe.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join("libkiln_cuda_sim.so")).find(|path| path.exists());
    found.expect("libkiln_cuda_sim.so beside the test program")
}

/// Puts the library into `folder` under the name that programs look for.
pub(crate) fn install(folder: &Path) {
    std::fs::copy(built(), folder.join("libcuda.so.1")).expect("a copy of the library");
}

/// One loaded copy.
pub(crate) struct Driver {
    library: Library,
    _folder: tempfile::TempDir,
}

/// Kernels for the tests.
pub(crate) const PTX: &str = include_str!("../ptx-driver/kernels.ptx");

macro_rules! calls {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        #[allow(non_snake_case, clippy::too_many_arguments)] // the driver's own names and arguments
        impl Driver {
            $(pub(crate) fn $name(&self, $($argument: $type),*) -> u32 {
                type Call = extern "C" fn($($type),*) -> u32;
                // SAFETY: the type is that of the function in the driver's C interface.
                let call: Symbol<'_, Call> = unsafe { self.library.get(stringify!($name).as_bytes()) }.expect(stringify!($name));
                call($($argument),*)
            })*
        }
    };
}

calls! {
    cuInit(flags: u32);
    cuDriverGetVersion(version: *mut i32);
    cuDeviceGetCount(count: *mut i32);
    cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32);
    cuDeviceTotalMem_v2(bytes: *mut usize, device: i32);
    cuDevicePrimaryCtxRetain(context: *mut usize, device: i32);
    cuDevicePrimaryCtxReset_v2(device: i32);
    cuCtxSetCurrent(context: usize);
    cuCtxSynchronize();
    cuCtxEnablePeerAccess(context: usize, flags: u32);
    cuCtxDisablePeerAccess(context: usize);
    cuMemAlloc_v2(address: *mut u64, bytes: usize);
    cuMemAllocAsync(address: *mut u64, bytes: usize, stream: usize);
    cuMemFreeAsync(address: u64, stream: usize);
    cuMemFree_v2(address: u64);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemAllocHost_v2(pointer: *mut *mut u8, bytes: usize);
    cuMemFreeHost(pointer: *mut u8);
    cuMemcpyHtoD_v2(target: u64, source: *const c_void, bytes: usize);
    cuMemcpyDtoH_v2(target: *mut c_void, source: u64, bytes: usize);
    cuMemcpyDtoD_v2(target: u64, source: u64, bytes: usize);
    cuMemcpyPeer(target: u64, to: usize, source: u64, from: usize, bytes: usize);
    cuMemcpy2DAsync_v2(description: *const [usize; 16], stream: usize);
    cuMemsetD8_v2(target: u64, value: u8, count: usize);
    cuMemsetD32_v2(target: u64, value: u32, count: usize);
    cuStreamCreate(stream: *mut usize, flags: u32);
    cuStreamDestroy_v2(stream: usize);
    cuStreamSynchronize(stream: usize);
    cuStreamQuery(stream: usize);
    cuStreamWaitEvent(stream: usize, event: usize, flags: u32);
    cuStreamBeginCapture_v2(stream: usize, mode: u32);
    cuStreamEndCapture(stream: usize, graph: *mut usize);
    cuGraphInstantiateWithFlags(instance: *mut usize, graph: usize, flags: u64);
    cuGraphGetNodes(graph: usize, nodes: *mut usize, count: *mut usize);
    cuGraphNodeGetType(node: usize, kind: *mut u32);
    cuGraphLaunch(instance: usize, stream: usize);
    cuGraphDestroy(graph: usize);
    cuEventCreate(event: *mut usize, flags: u32);
    cuEventRecord(event: usize, stream: usize);
    cuEventSynchronize(event: usize);
    cuEventElapsedTime(milliseconds: *mut f32, from: usize, to: usize);
    cuEventDestroy_v2(event: usize);
    cuModuleLoadData(module: *mut usize, image: *const c_char);
    cuModuleLoadDataEx(module: *mut usize, image: *const c_char, count: u32, options: *const u32, values: *const usize);
    cuModuleUnload(module: usize);
    cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char);
    cuModuleGetGlobal_v2(address: *mut u64, bytes: *mut usize, module: usize, name: *const c_char);
    cuFuncSetAttribute(function: usize, attribute: i32, value: i32);
    cuFuncGetAttribute(value: *mut i32, attribute: i32, function: usize);
    cuLaunchKernel(
        function: usize, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: usize, each: *const *const c_void, extra: *const usize
    );
    cuArrayCreate_v2();
    kiln_sim_configure(lines: *const c_char);
    kiln_sim_take(device: u32, bytes: u64);
    kiln_sim_give(device: u32, bytes: u64);
    kiln_sim_arm(faults: *const c_char);
    kiln_sim_reset_peaks(device: u32);
}

impl Driver {
    /// A machine of its own with these settings, names without `KILN_SIM_`.
    pub(crate) fn load(settings: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        install(folder.path());
        // SAFETY: the library runs nothing of its own when it is loaded.
        let library = unsafe { Library::new(folder.path().join("libcuda.so.1")) }.expect("the library");
        let driver = Self { library, _folder: folder };
        assert_eq!(driver.kiln_sim_configure(text(settings).as_ptr()), 0);
        driver
    }

    /// As [`Driver::load`], with the first GPU's context current in this thread.
    pub(crate) fn ready(settings: &str) -> Self {
        let driver = Self::load(settings);
        assert_eq!(driver.cuInit(0), 0);
        driver.enter(0);
        driver
    }

    /// Makes a GPU's primary context current in this thread; gives it.
    pub(crate) fn enter(&self, device: i32) -> usize {
        let mut context = 0;
        assert_eq!(self.cuDevicePrimaryCtxRetain(&mut context, device), 0);
        assert_eq!(self.cuCtxSetCurrent(context), 0);
        context
    }

    /// Allocates, which must succeed.
    pub(crate) fn alloc(&self, bytes: usize) -> u64 {
        self.try_alloc(bytes).expect("memory")
    }

    /// Allocates; gives the code where it is refused.
    pub(crate) fn try_alloc(&self, bytes: usize) -> Result<u64, u32> {
        let mut address = 0;
        match self.cuMemAlloc_v2(&mut address, bytes) {
            0 => Ok(address),
            code => Err(code),
        }
    }

    pub(crate) fn upload(&self, values: &[f32]) -> u64 {
        let address = self.alloc(size_of_val(values));
        assert_eq!(self.cuMemcpyHtoD_v2(address, values.as_ptr().cast(), size_of_val(values)), 0);
        address
    }

    pub(crate) fn download(&self, address: u64, count: usize) -> Result<Vec<f32>, u32> {
        let mut values = vec![f32::NAN; count];
        match self.cuMemcpyDtoH_v2(values.as_mut_ptr().cast(), address, count * 4) {
            0 => Ok(values),
            code => Err(code),
        }
    }

    /// A kernel of [`PTX`].
    pub(crate) fn kernel(&self, name: &str) -> usize {
        let (mut module, mut function) = (0, 0);
        assert_eq!(self.cuModuleLoadData(&mut module, text(PTX).as_ptr()), 0);
        assert_eq!(self.cuModuleGetFunction(&mut function, module, text(name).as_ptr()), 0);
        function
    }

    /// Launches one block of 32 threads with 64-bit arguments.
    pub(crate) fn launch(&self, function: usize, stream: usize, arguments: &[u64]) -> u32 {
        let each: Vec<*const c_void> = arguments.iter().map(|argument| std::ptr::from_ref(argument).cast()).collect();
        self.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, each.as_ptr(), std::ptr::null())
    }

    pub(crate) fn stream(&self) -> usize {
        let mut stream = 0;
        assert_eq!(self.cuStreamCreate(&mut stream, 1), 0);
        stream
    }

    /// Does a control command, which must succeed; gives its answer.
    pub(crate) fn command(&self, command: &str) -> Value {
        type Call = extern "C" fn(*const c_char, *mut u8, i32) -> i64;
        // SAFETY: the type is that of the function in the library.
        let call: Symbol<'_, Call> = unsafe { self.library.get(b"kiln_sim_command") }.expect("kiln_sim_command");
        let mut answer = vec![0_u8; 16 << 10];
        let bytes = call(text(command).as_ptr(), answer.as_mut_ptr(), answer.len() as i32);
        let answer: Value =
            serde_json::from_slice(&answer[..usize::try_from(bytes).expect("an answer")]).expect("JSON");
        assert_eq!(answer["ok"], true, "{answer}");
        answer["answer"].clone()
    }

    /// Bytes, peaks and counts of a GPU.
    pub(crate) fn card(&self, device: usize) -> Value {
        self.command(r#"{"do":"read"}"#)["devices"][device].clone()
    }

    pub(crate) fn number(&self, name: &str, device: u32) -> u64 {
        // SAFETY: the type is that of the functions with one argument in the library.
        let call: Symbol<'_, extern "C" fn(u32) -> u64> =
            unsafe { self.library.get(name.as_bytes()) }.expect("a function");
        call(device)
    }

    /// Asks for the name or text of a code.
    pub(crate) fn ask_text(&self, name: &str, code: u32, text: &mut *const c_char) -> u32 {
        type Call = extern "C" fn(u32, *mut *const c_char) -> u32;
        // SAFETY: the type is that of both functions in the driver's C interface.
        let call: Symbol<'_, Call> = unsafe { self.library.get(name.as_bytes()) }.expect("a function");
        call(code, text)
    }

    /// Whether the library has a function of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        // SAFETY: the symbol is looked up, not called.
        unsafe { self.library.get::<*const c_void>(name.as_bytes()) }.is_ok()
    }
}

pub(crate) fn text(text: &str) -> CString {
    CString::new(text).expect("no zero byte")
}
