//! Runs a test in a process of its own, with a GPU that kiln-cuda-sim emulates, or with one that wgpu finds.
#![allow(unsafe_code, reason = "functions of a library that is found when the test runs")]

use std::ffi::{CStr, CString, c_char};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use burn::tensor::{DType, Device, DeviceKind};
use libloading::{Library, Symbol};

const ALONE: &str = "KILN_TEST_ALONE";
/// Set to run tests on the machine's own GPU, through `cuda`, `wgpu` or `vulkan`. Tests that ask more of the emulator than refused memory fail there.
const ON_GPU: &str = "KILN_TEST_GPU";
/// The emulator's log.
const LOG: &str = "KILN_SIM_LOG";
/// The last output line of a test that reached its end.
const ENDED: &str = "the test reached its end";
/// A test that takes longer counts as hanging.
const LIMIT: Duration = Duration::from_secs(900);

/// Numbers in new memory are NaN, so that a kernel that reads what was never written is noticed; accesses that race fail; and the warps of a
/// block run in a random order.
pub(crate) const STRICT: [(&str, &str); 3] = [("FILL", "ff"), ("RACES", "1"), ("ORDER", "7")];

/// Whether the tests run through wgpu.
pub(crate) fn on_wgpu() -> bool {
    in_wgsl() || std::env::var(ON_GPU).is_ok_and(|runtime| runtime == "vulkan")
}

/// Whether the tests run through wgpu with kernels in WGSL. Otherwise they are SPIR-V, where the driver takes it.
pub(crate) fn in_wgsl() -> bool {
    std::env::var(ON_GPU).is_ok_and(|runtime| runtime == "wgpu")
}

/// The device that is tested.
pub(crate) fn gpu() -> Device {
    if on_wgpu() { Device::wgpu(DeviceKind::DefaultDevice) } else { Device::cuda(0) }
}

/// The dtypes of floats that the device computes with.
pub(crate) fn dtypes() -> impl Iterator<Item = DType> {
    let all = [DType::F32, DType::F16, DType::BF16];
    let found: Vec<DType> = all.into_iter().filter(|dtype| gpu().supports_dtype(*dtype)).collect();
    assert!(found.len() >= if on_wgpu() { 2 } else { 3 }, "{found:?}");
    found.into_iter()
}

/// The GPU of this process.
pub(crate) struct Card {
    library: Library,
}

/// The allocations that are refused.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refuse<'a> {
    /// Allocations with these numbers, counted from 1. After a refusal CubeCL frees memory and asks once more, which is refused too.
    Pages(&'a [u64]),
    /// Every allocation that would exceed the initial bytes by more than this.
    Beyond(u64),
}

/// Counts of allocations while they were watched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count {
    /// Allocations that were asked for.
    pub(crate) seen: u64,
    /// Those of them that were refused.
    pub(crate) refused: u64,
    /// Bytes that were held at the beginning.
    pub(crate) before: u64,
    /// The most bytes that were held at once.
    pub(crate) peak: u64,
}

/// Runs `test` in a process of its own, in which `libcuda.so.1` is kiln-cuda-sim with these settings (names without `KILN_SIM_`). Kernels
/// run on one thread, so that sums by atomic additions repeat.
///
/// The process finds the test by its name, which is the name of its thread: run tests with more than one thread.
pub(crate) fn with_card(settings: &[(&str, &str)], test: impl FnOnce(&Card)) {
    with_cards(settings, &[""], |card, _| test(card));
}

/// Runs `test` as [`with_card`] does, for each of `cases`, one process after the other. Words of a case such as `SM=75` are settings too.
pub(crate) fn with_cards(settings: &[(&str, &str)], cases: &[&str], test: impl FnOnce(&Card, &str)) {
    with_tries(1, settings, cases, test);
}

/// Held by each process of a test: shared by those that may run beside others.
static CORES: RwLock<()> = RwLock::new(());

/// Runs `test` as [`with_cards`] does, while no other test runs; a case passes if one of three processes passes. CubeCL frees tensors on a
/// thread of its own: if that thread waits for a core, tensors live longer than the step needs them.
pub(crate) fn with_cards_alone(settings: &[(&str, &str)], cases: &[&str], test: impl FnOnce(&Card, &str)) {
    let _alone = CORES.write().unwrap_or_else(PoisonError::into_inner);
    run_cases(3, settings, cases, test);
}

/// Runs `test` as [`with_cards`] does, for peaks of pages: a case passes if one of `tries` processes passes. CubeCL frees tensors on a
/// thread of its own. The timing of that thread decides whether a page is reused, so that equal steps take more pages in one process than
/// in another.
pub(crate) fn with_tries(tries: usize, settings: &[(&str, &str)], cases: &[&str], test: impl FnOnce(&Card, &str)) {
    let _beside_others = CORES.read().unwrap_or_else(PoisonError::into_inner);
    run_cases(tries, settings, cases, test);
}

fn run_cases(tries: usize, settings: &[(&str, &str)], cases: &[&str], test: impl FnOnce(&Card, &str)) {
    if let Ok(case) = std::env::var(ALONE) {
        // Loaded before wgpu asks for it, and as long as the process lives: wgpu would find the machine's own library the second time.
        let card = Card { library: load() };
        // A driver that lacks what CubeCL needs for SPIR-V is given WGSL.
        assert!(!on_wgpu() || gpu().supports_dtype(DType::U8) != in_wgsl(), "these kernels are in another language");
        test(&card, &case);
        println!("{ENDED}");
        return;
    }
    let thread = std::thread::current();
    let name = thread.name().filter(|name| name.contains("::")).expect("run these tests with --test-threads=2 or more");
    let folder = tempfile::tempdir().unwrap();
    let links: &[&str] = match std::env::var_os(ON_GPU) {
        None => &["libcuda.so", "libcuda.so.1"],
        Some(_) if on_wgpu() => &["libvulkan.so.1"],
        Some(_) => &[],
    };
    for link in links {
        std::os::unix::fs::symlink(driver(), folder.path().join(link)).unwrap();
    }
    // Settings of an emulated card say nothing to wgpu.
    let is_setting = |case: &str| on_wgpu() && case.contains('=');
    let cases = if is_setting(cases[0]) { &cases[..1] } else { cases };
    let run = |case: &str| {
        let output = folder.path().join("output");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([name, "--exact", "--nocapture", "--test-threads=1"]);
        command.env(ALONE, case);
        if on_wgpu() {
            // Optimizers load their state onto burn's default device.
            command.env("KILN_VULKAN", own_vulkan()).env("BURN_DEVICE", "wgpu");
            command.envs(in_wgsl().then_some(("KILN_VULKAN_WGSL", "1")));
        } else {
            command.env("CUDA_PATH", compiler());
        }
        if !links.is_empty() {
            command.env("LD_LIBRARY_PATH", folder.path());
        }
        command.env("KILN_SIM_THREADS", "1");
        let log = folder.path().join("log.jsonl");
        let _ = std::fs::remove_file(&log);
        if std::env::var_os(LOG).is_none() {
            command.env(LOG, &log);
        }
        let of_case = case.split(' ').filter_map(|word| word.split_once('='));
        let settings = settings.iter().copied().chain(of_case);
        command.envs(settings.map(|(name, value)| (format!("KILN_SIM_{name}"), value)));
        let file = File::create(&output).unwrap();
        command.stdout(file.try_clone().unwrap()).stderr(file);
        let status = wait(command);
        let output = std::fs::read_to_string(&output).unwrap();
        println!("{output}");
        // Mesa's software device crashes now and then when a process ends while threads of CubeCL run.
        let ended = status.is_some_and(|status| status.success() || on_wgpu()) && output.contains(ENDED);
        (ended, status)
    };
    for case in cases {
        let mut outcomes = (0..tries).map(|_| run(case));
        let (ended, status) = outcomes.by_ref().find(|(ended, _)| *ended).unwrap_or((false, None));
        assert!(ended, "{name} {case} ended with {status:?} in the last of {tries} tries");
    }
}

/// Returns `None` if the process had to be killed.
fn wait(mut command: Command) -> Option<ExitStatus> {
    let (start, mut child) = (Instant::now(), command.spawn().unwrap());
    while start.elapsed() < LIMIT {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

/// The library that cargo built beside this test.
fn driver() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let name = if on_wgpu() { "libkiln_vulkan_faults.so" } else { "libkiln_cuda_sim.so" };
    let found = exe.ancestors().map(|folder| folder.join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("no {name} beside this test: build its package"))
}

/// The path of the machine's own Vulkan library.
fn own_vulkan() -> String {
    // SAFETY: the library's initialisation has no conditions.
    let _library = unsafe { Library::new("libvulkan.so.1") }.expect("no Vulkan here: run scripts/lavapipe.sh");
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let paths = maps.lines().filter_map(|line| Some(&line[line.find('/')?..]));
    paths.filter(|path| path.contains("libvulkan.so")).map(str::to_owned).next().expect("it is loaded")
}

/// The folder that holds `nvvm/libdevice/libdevice.10.bc`.
fn compiler() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cache")));
    let places =
        [std::env::var_os("CUDA_PATH").map(PathBuf::from), cache.map(|cache| cache.join("kiln-cuda/nvidia/cu13"))];
    let found = places.into_iter().flatten().find(|path| path.join("nvvm/libdevice/libdevice.10.bc").exists());
    found.expect("no libdevice.10.bc in CUDA_PATH: run scripts/cuda-compiler.sh")
}

fn load() -> Library {
    // SAFETY: the library's initialisation only allocates.
    unsafe { Library::new(if on_wgpu() { "libvulkan.so.1" } else { "libcuda.so.1" }) }.unwrap()
}

impl Card {
    /// A function of kiln-cuda-sim.
    ///
    /// # Safety
    /// `F` must be the type that the function has there.
    unsafe fn function<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the caller's contract.
        let symbol: Result<Symbol<'_, F>, _> = unsafe { self.library.get(name.as_bytes()) };
        *symbol.unwrap_or_else(|error| panic!("{name}: {error}: is this driver kiln-cuda-sim?"))
    }

    /// Bytes that the program has allocated from the driver.
    pub(crate) fn live(&self) -> u64 {
        self.count("live_bytes")
    }

    /// The maximum of [`live`](Self::live) since [`watch`](Self::watch).
    pub(crate) fn peak(&self) -> u64 {
        self.count("peak_bytes")
    }

    /// A number of the emulator's summary.
    pub(crate) fn count(&self, name: &str) -> u64 {
        let text = CString::new(name).unwrap();
        // SAFETY: the type in its README.
        let count: extern "C" fn(u32, *const c_char) -> u64 = unsafe { self.function("kiln_sim_count") };
        match count(0, text.as_ptr()) {
            u64::MAX => panic!("the driver has no number {name}"),
            number => number,
        }
    }

    /// The modules that NVIDIA's assembler accepted: registers per thread, and bytes that spill to memory.
    pub(crate) fn assembled(&self) -> Vec<[u64; 2]> {
        let log = std::fs::read_to_string(std::env::var_os(LOG).unwrap()).unwrap();
        let lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let modules = lines.filter(|line| line["event"] == "module");
        modules.map(|module| ["registers", "spilled"].map(|name| module[name].as_u64().unwrap())).collect()
    }

    /// Resets the peak.
    pub(crate) fn watch(&self) {
        // SAFETY: the type in its README.
        let reset: extern "C" fn(u32) -> u32 = unsafe { self.function("kiln_sim_reset_peaks") };
        assert_eq!(reset(0), 0);
    }

    /// Makes another process allocate memory.
    pub(crate) fn take(&self, bytes: u64) {
        // SAFETY: the type in its README.
        let take: extern "C" fn(u32, u64) -> u32 = unsafe { self.function("kiln_sim_take") };
        assert_eq!(take(0, bytes), 0, "{bytes} bytes are not free");
    }

    /// Makes the other process free memory.
    pub(crate) fn give(&self, bytes: u64) {
        // SAFETY: the type in its README.
        let give: extern "C" fn(u32, u64) -> u32 = unsafe { self.function("kiln_sim_give") };
        assert_eq!(give(0, bytes), 0);
    }

    /// Schedules faults, as the setting `KILN_SIM_FAULTS` does.
    pub(crate) fn arm(&self, faults: &str) {
        let text = CString::new(faults).unwrap();
        // SAFETY: the type in its README.
        let arm: extern "C" fn(*const c_char) -> u32 = unsafe { self.function("kiln_sim_arm") };
        assert_eq!(arm(text.as_ptr()), 0, "{faults}");
    }

    /// Removes all scheduled faults.
    pub(crate) fn disarm(&self) {
        self.command(c"{\"do\":\"disarm\"}");
    }

    /// Runs `work` while launched kernels do nothing on the emulator.
    pub(crate) fn without_kernels<T>(&self, work: impl FnOnce() -> T) -> T {
        if on_wgpu() {
            return work();
        }
        self.execute("skip");
        let result = work();
        self.execute("run");
        result
    }

    /// Says how launches are handled from now on: `run`, `skip` or `measure`.
    pub(crate) fn execute(&self, kernels: &str) {
        let text = format!("{{\"do\":\"execute\",\"kernels\":\"{kernels}\"}}");
        self.command(&CString::new(text).unwrap());
    }

    fn command(&self, text: &CStr) {
        // SAFETY: the type in its README; an answer of length 0 is not written.
        let command: extern "C" fn(*const c_char, *mut c_char, i32) -> i64 =
            unsafe { self.function("kiln_sim_command") };
        assert!(command(text.as_ptr(), std::ptr::null_mut(), 0) > 0, "{text:?}");
    }

    /// Refuses allocations while `work` runs.
    pub(crate) fn refusing<T>(&self, refuse: Refuse<'_>, work: impl FnOnce() -> T) -> (T, Count) {
        let before = self.live();
        let refused = || self.count("refused") + self.count("faults");
        self.watch();
        let taken = match refuse {
            Refuse::Pages(pages) => {
                let faults: Vec<String> = pages.iter().map(|page| format!("alloc:{page}x2:OUT_OF_MEMORY")).collect();
                self.arm(&faults.join(","));
                0
            }
            Refuse::Beyond(bytes) => self.count("free") - bytes,
        };
        self.take(taken);
        let start = (self.count("allocations"), refused());
        let value = work();
        let refused = refused() - start.1;
        let seen = self.count("allocations") - start.0 + refused;
        self.give(taken);
        self.disarm();
        (value, Count { seen, refused, before, peak: self.peak() })
    }
}
