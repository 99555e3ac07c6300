//! Calls that fail, how often they fail, and errors that stay.

use std::ffi::{CStr, c_char};

use serde_json::json;

use crate::driver_library::{Driver, PTX, text};

/// The calls that need the context, each as a name and its code.
fn calls(driver: &Driver, address: u64, stream: usize, event: usize, kernel: usize) -> Vec<(&'static str, u32)> {
    let (mut free, mut total, mut handle, mut pinned) = (0, 0, 0, std::ptr::null_mut());
    let mut milliseconds = 0.0;
    vec![
        ("alloc", driver.try_alloc(16).err().unwrap_or(0)),
        ("pinned", driver.cuMemAllocHost_v2(&mut pinned, 16)),
        ("info", driver.cuMemGetInfo_v2(&mut free, &mut total)),
        ("copy", driver.download(address, 1).err().unwrap_or(0)),
        ("memset", driver.cuMemsetD8_v2(address, 0, 1)),
        ("launch", driver.launch(kernel, stream, &[address, address])),
        ("context", driver.cuCtxSynchronize()),
        ("stream", driver.cuStreamSynchronize(stream)),
        ("query", driver.cuStreamQuery(stream)),
        ("wait", driver.cuStreamWaitEvent(stream, event, 0)),
        ("record", driver.cuEventRecord(event, stream)),
        ("elapsed", driver.cuEventElapsedTime(&mut milliseconds, event, event)),
        ("new stream", driver.cuStreamCreate(&mut handle, 1)),
        ("new event", driver.cuEventCreate(&mut handle, 0)),
        ("module", driver.cuModuleLoadData(&mut handle, text(PTX).as_ptr())),
        ("free", driver.cuMemFree_v2(address)),
        ("event gone", driver.cuEventDestroy_v2(event)),
        ("stream gone", driver.cuStreamDestroy_v2(stream)),
    ]
}

#[test]
fn a_wild_kernel_poisons_the_card_until_it_is_reset() {
    let driver = Driver::ready("TOTAL=1G");
    let (kernel, stream) = (driver.kernel("twice"), driver.stream());
    let (mut event, short) = (0, driver.alloc(124));
    assert_eq!(driver.cuEventCreate(&mut event, 0), 0);
    let whole = driver.upload(&[1.0; 32]);
    assert_eq!(driver.launch(kernel, stream, &[whole, short]), 0, "the launch itself is taken");
    for (name, code) in calls(&driver, whole, stream, event, kernel) {
        assert_eq!(code, 700, "{name}");
    }
    let mut number = 0;
    assert_eq!(driver.cuDeviceGetCount(&mut number), 0, "questions about the card are answered");
    assert_eq!(driver.cuDeviceGetAttribute(&mut number, 16, 0), 0);
    let mut context = 0;
    assert_eq!(driver.cuDevicePrimaryCtxRetain(&mut context, 0), 700);

    assert_eq!(driver.cuDevicePrimaryCtxReset_v2(0), 0);
    assert_eq!(driver.try_alloc(16), Err(201), "the context went with the reset");
    driver.enter(0);
    let (kernel, stream, again) = (driver.kernel("twice"), driver.stream(), driver.upload(&[1.0; 32]));
    let mut event = 0;
    assert_eq!(driver.cuEventCreate(&mut event, 0), 0);
    assert_eq!(driver.cuEventRecord(event, stream), 0);
    for (name, code) in calls(&driver, again, stream, event, kernel) {
        assert_eq!(code, 0, "{name}");
    }
}

#[test]
fn running_out_of_memory_does_not_stick() {
    let driver = Driver::ready("TOTAL=1000\nGRANULE=1");
    assert_eq!(driver.try_alloc(1001), Err(2));
    assert_eq!(driver.cuCtxSynchronize(), 0);
    assert!(driver.try_alloc(1000).is_ok());
}

#[test]
fn faults_come_at_their_count_and_stick_if_their_code_does() {
    let driver = Driver::ready("TOTAL=1G\nFAULTS=alloc:2:OUT_OF_MEMORY,record:1:INVALID_HANDLE");
    assert!(driver.try_alloc(16).is_ok());
    assert_eq!(driver.try_alloc(16), Err(2));
    assert!(driver.try_alloc(16).is_ok());
    let (mut event, stream) = (0, driver.stream());
    assert_eq!(driver.cuEventCreate(&mut event, 0), 0);
    assert_eq!((driver.cuEventRecord(event, stream), driver.cuEventRecord(event, stream)), (400, 0));

    assert_eq!(driver.kiln_sim_arm(text("sync:2:LAUNCH_FAILED").as_ptr()), 0);
    assert_eq!((driver.cuCtxSynchronize(), driver.cuStreamSynchronize(stream)), (0, 719));
    assert_eq!(driver.try_alloc(16), Err(719));
    let card = driver.card(0);
    assert_eq!((&card["poisoned"], &card["counts"]["faults"]), (&json!(719), &json!(3)));
    assert_eq!(driver.kiln_sim_arm(text("nonsense").as_ptr()), 1);
}

#[test]
fn launches_of_a_wrong_shape_are_refused_and_do_not_stick() {
    let driver = Driver::ready("TOTAL=1G\nSM=90");
    let (kernel, shaped) = (driver.kernel("twice"), driver.kernel("shaped"));
    let whole = driver.upload(&[1.0; 32]);
    let each = [(&raw const whole).cast(), (&raw const whole).cast()];
    let launch = |function, grid: [u32; 3], block: [u32; 3], shared| {
        let [x, y, z] = block;
        driver.cuLaunchKernel(function, grid[0], grid[1], grid[2], x, y, z, shared, 0, each.as_ptr(), std::ptr::null())
    };
    assert_eq!(launch(kernel, [0, 1, 1], [32, 1, 1], 0), 1);
    assert_eq!(launch(kernel, [1, 65_536, 1], [32, 1, 1], 0), 1);
    assert_eq!(launch(kernel, [1, 1, 1], [1025, 1, 1], 0), 1);
    assert_eq!(launch(kernel, [1, 1, 1], [1, 1, 65], 0), 1);
    assert_eq!(launch(shaped, [1, 1, 1], [32, 1, 1], 0), 1, "it demands 64 threads");
    assert_eq!(launch(shaped, [1, 1, 1], [64, 1, 1], 48 << 10), 1, "48 KiB are for static and dynamic together");
    assert_eq!(launch(shaped, [1, 1, 1], [64, 1, 1], 47 << 10), 0);
    assert_eq!(driver.cuFuncSetAttribute(shaped, 8, 232_448), 1, "more than the card has beside the static part");
    assert_eq!(driver.cuFuncSetAttribute(shaped, 8, 100 << 10), 0);
    assert_eq!(launch(shaped, [1, 1, 1], [64, 1, 1], 100 << 10), 0);
    let mut most = 0;
    assert_eq!((driver.cuFuncGetAttribute(&mut most, 8, shaped), most), (0, 100 << 10));
    assert_eq!(driver.launch(9999, 0, &[]), 400);
    assert_eq!(driver.cuCtxSynchronize(), 0);
}

#[test]
fn a_kernel_without_end_times_out() {
    let driver = Driver::ready("MAX_INSTRUCTIONS=10000");
    assert_eq!(driver.launch(driver.kernel("forever"), 0, &[]), 0);
    assert_eq!(driver.cuCtxSynchronize(), 702);
}

#[test]
fn modules_are_judged_by_card_driver_and_text() {
    let driver = Driver::ready("SM=80\nDRIVER=12.0");
    let load = |ptx: &str| {
        let mut log = [0_u8; 200];
        let values = [log.as_mut_ptr() as usize, log.len()];
        let mut module = 0;
        let code = driver.cuModuleLoadDataEx(&mut module, text(ptx).as_ptr(), 2, [5, 6].as_ptr(), values.as_ptr());
        let words = CStr::from_bytes_until_nul(&log).expect("a text").to_string_lossy().into_owned();
        (code, words)
    };
    assert_eq!(load(PTX), (0, String::new()));
    let (code, words) = load(&PTX.replace("sm_80", "sm_90"));
    assert_eq!((code, words.contains("sm_90")), (209, true), "{words}");
    let (code, words) = load(&PTX.replace(".version 8.0", ".version 8.1"));
    assert_eq!((code, words.contains("8.1")), (222, true), "{words}");
    let (code, words) = load(&PTX.replace("add.f32", "levitate.f32"));
    assert_eq!((code, words.contains("levitate")), (218, true), "{words}");
    assert_eq!(load("not PTX").0, 218);
    assert_eq!(load("\u{7f}ELF").0, 209);
    assert_eq!(driver.card(0)["counts"]["modules_refused"], json!(4));
    let (mut module, mut function) = (0, 0);
    assert_eq!(driver.cuModuleLoadData(&mut module, text(PTX).as_ptr()), 0);
    assert_eq!(driver.cuModuleGetFunction(&mut function, module, text("missing").as_ptr()), 500);
    assert_eq!(driver.cuModuleUnload(module), 0);
    assert_eq!(driver.cuModuleGetFunction(&mut function, module, text("twice").as_ptr()), 400);
}

#[test]
fn codes_have_names_and_texts() {
    let library = Driver::load("");
    let ask = |name: &str, code: u32| {
        let mut text: *const c_char = std::ptr::null();
        let answer = library.ask_text(name, code, &mut text);
        // SAFETY: the driver gave a text that stays for the rest of the process.
        (answer, (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_str().expect("UTF-8").to_owned()))
    };
    assert_eq!(ask("cuGetErrorName", 2), (0, Some("CUDA_ERROR_OUT_OF_MEMORY".to_owned())));
    assert_eq!(ask("cuGetErrorString", 700), (0, Some("an illegal memory access was encountered".to_owned())));
    assert_eq!(ask("cuGetErrorName", 12_345), (1, None));
}
