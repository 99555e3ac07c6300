//! GPUs, contexts, memory and copies, through the C interface.

use serde_json::json;

use crate::driver_library::{Driver, text};

const GIB: usize = 1 << 30;

#[test]
fn nothing_works_before_cu_init_and_without_a_context() {
    let driver = Driver::load("");
    let mut number = 0;
    assert_eq!(driver.cuDeviceGetCount(&mut number), 3);
    assert_eq!((driver.cuDriverGetVersion(&mut number), number), (0, 12_080), "the version needs neither");
    assert_eq!(driver.cuInit(1), 1, "flags must be 0");
    assert_eq!(driver.cuInit(0), 0);
    assert_eq!((driver.cuDeviceGetCount(&mut number), number), (0, 1));
    assert_eq!(driver.try_alloc(16), Err(201));
    driver.enter(0);
    assert!(driver.try_alloc(16).is_ok());
}

#[test]
fn settings_come_before_the_first_call_or_not_at_all() {
    let driver = Driver::load("TOTAL=3G\nSM=86");
    assert_eq!(driver.cuInit(0), 0);
    assert_eq!(driver.kiln_sim_configure(text("TOTAL=4G").as_ptr()), 401);
    let (mut bytes, mut major, mut minor) = (0, 0, 0);
    assert_eq!((driver.cuDeviceTotalMem_v2(&mut bytes, 0), bytes), (0, 3 * GIB));
    assert_eq!((driver.cuDeviceGetAttribute(&mut major, 75, 0), major), (0, 8));
    assert_eq!((driver.cuDeviceGetAttribute(&mut minor, 76, 0), minor), (0, 6));
    assert_eq!(driver.cuDeviceTotalMem_v2(&mut bytes, 1), 101);

    let wrong = Driver::load("TOTAL=lots");
    assert_eq!(wrong.cuInit(0), 3);
    let none = Driver::load("DEVICES=0");
    assert_eq!(none.cuInit(0), 100);
}

#[test]
fn memory_runs_out_where_the_card_ends_and_comes_back() {
    let driver = Driver::ready("TOTAL=80G\nTAKEN=10G\nGRANULE=2M");
    let (mut free, mut total) = (0, 0);
    assert_eq!(driver.cuMemGetInfo_v2(&mut free, &mut total), 0);
    assert_eq!((free, total), (70 * GIB, 80 * GIB));
    let large = driver.alloc(69 * GIB);
    assert_eq!(driver.try_alloc(GIB + 1), Err(2), "rounded up it does not fit");
    let small = driver.alloc(GIB - 1);
    assert_eq!(driver.try_alloc(1), Err(2));
    assert_eq!(driver.cuMemFree_v2(large), 0);
    assert_eq!(driver.cuMemFree_v2(large), 1, "freed twice");
    assert_eq!(driver.cuMemFree_v2(small + 8), 1, "not the start");
    assert_eq!(driver.cuMemFree_v2(0), 0);
    let memory = &driver.card(0)["memory"];
    assert_eq!(memory["peak_bytes"], json!(70 * GIB - 1));
    assert_eq!(memory["live_bytes"], json!(GIB - 1));
    assert_eq!((&memory["refused"], &memory["live"]), (&json!(2), &json!(1)));
    assert_eq!(driver.number("kiln_sim_peak_bytes", 0), 70 * GIB as u64 - 1);
    assert_eq!(driver.kiln_sim_reset_peaks(0), 0);
    assert_eq!(driver.number("kiln_sim_peak_bytes", 0), GIB as u64 - 1);
    assert_eq!(driver.number("kiln_sim_peak_bytes", 9), u64::MAX);
}

#[test]
fn others_take_memory_away_and_give_it_back_during_a_run() {
    let driver = Driver::ready("TOTAL=1000\nGRANULE=1");
    let _held = driver.alloc(400);
    assert_eq!(driver.kiln_sim_take(0, 601), 1, "more than is free");
    assert_eq!(driver.kiln_sim_take(0, 600), 0);
    assert_eq!(driver.try_alloc(1), Err(2));
    assert_eq!(driver.kiln_sim_give(0, 100), 0);
    assert!(driver.try_alloc(100).is_ok());
    let answer = driver.command(r#"{"do":"give","device":0,"bytes":999}"#);
    assert_eq!(answer, json!({ "given": 500, "free": 500, "taken": 0 }));
}

#[test]
fn copies_carry_bytes_and_stay_inside_allocations() {
    let driver = Driver::ready("TOTAL=1G");
    let values = [1.0, 2.0, 3.0, 4.0];
    let (a, b) = (driver.upload(&values), driver.alloc(16));
    assert_eq!(driver.cuMemcpyDtoD_v2(b, a + 8, 8), 0);
    assert_eq!(driver.download(b, 4), Ok(vec![3.0, 4.0, 0.0, 0.0]), "new memory is zero");
    assert_eq!(driver.cuMemsetD32_v2(b, 1.5_f32.to_bits(), 3), 0);
    assert_eq!(driver.download(b, 4), Ok(vec![1.5, 1.5, 1.5, 0.0]));
    assert_eq!(driver.cuMemsetD8_v2(b, 0xff, 17), 1, "past the end");
    assert_eq!(driver.cuMemsetD32_v2(b + 2, 0, 1), 1, "not aligned");
    assert_eq!(driver.download(a, 5), Err(1), "past the end");
    assert_eq!(driver.cuMemcpyHtoD_v2(a, a as *const _, 4), 1, "the host does not reach device memory");
    assert_eq!(driver.cuMemcpyHtoD_v2(values.as_ptr() as u64, values.as_ptr().cast(), 4), 1, "no device memory");
    assert_eq!(driver.download(a, 4), Ok(values.to_vec()), "an argument that is wrong is no sticky error");
    let counts = &driver.card(0)["counts"];
    assert_eq!((&counts["host_to_device_bytes"], &counts["device_to_device_bytes"]), (&json!(16), &json!(8)));
}

#[test]
fn rows_are_copied_with_their_pitch() {
    let driver = Driver::ready("TOTAL=1G");
    let source = driver.upload(&(0..12).map(|x| x as f32).collect::<Vec<_>>());
    let mut rows = [0.0_f32; 6];
    // CUDA_MEMCPY2D: x, y, kind, host, device, array, pitch of either side, then width and height
    let mut copy = [0_usize; 16];
    (copy[2], copy[4], copy[6]) = (2, source as usize, 16);
    (copy[9], copy[10], copy[13]) = (1, rows.as_mut_ptr() as usize, 8);
    (copy[14], copy[15]) = (8, 3);
    assert_eq!(driver.cuMemcpy2DAsync_v2(&copy, 0), 0);
    assert_eq!(rows, [0.0, 1.0, 4.0, 5.0, 8.0, 9.0]);
    copy[15] = 4;
    assert_eq!(driver.cuMemcpy2DAsync_v2(&copy, 0), 1, "a row past the end");
}

#[test]
fn pinned_memory_is_counted_apart() {
    let driver = Driver::ready("TOTAL=1G");
    let mut pinned = std::ptr::null_mut();
    assert_eq!(driver.cuMemAllocHost_v2(&mut pinned, 4096), 0);
    assert_eq!(driver.number("kiln_sim_live_bytes", 0), 0);
    assert_eq!(driver.command(r#"{"do":"read"}"#)["host"]["peak_bytes"], json!(4096));
    assert_eq!(driver.cuMemFree_v2(pinned as u64), 1, "not device memory");
    assert_eq!(driver.cuMemFreeHost(pinned), 0);
    assert_eq!(driver.cuMemFreeHost(pinned), 1);
}

#[test]
fn cards_keep_apart_until_they_are_told_to_reach_each_other() {
    let driver = Driver::load("DEVICES=2\nTOTAL=1G,2G");
    assert_eq!(driver.cuInit(0), 0);
    let second = driver.enter(1);
    let there = driver.upload(&[5.0; 32]);
    let first = driver.enter(0);
    let here = driver.alloc(128);
    assert_eq!(driver.card(1)["memory"]["live_bytes"], json!(128));
    assert_eq!(driver.try_alloc(1 << 30), Err(2));
    assert_eq!(driver.cuMemcpyPeer(here, first, there, second, 128), 0);
    assert_eq!(driver.download(here, 1), Ok(vec![5.0]));
    assert_eq!(driver.card(0)["counts"]["peer_bytes"], json!(128));

    let kernel = driver.kernel("twice");
    assert_eq!(driver.cuCtxEnablePeerAccess(second, 0), 0);
    assert_eq!(driver.cuCtxEnablePeerAccess(second, 0), 704);
    assert_eq!(driver.launch(kernel, 0, &[there, here]), 0);
    assert_eq!(driver.download(here, 32), Ok(vec![12.0; 32]));
    assert_eq!(driver.cuCtxDisablePeerAccess(second), 0);
    assert_eq!(driver.cuCtxDisablePeerAccess(second), 705);
    assert_eq!(driver.launch(kernel, 0, &[there, here]), 0);
    assert_eq!(driver.cuCtxSynchronize(), 700, "no longer reachable");
    driver.enter(1);
    assert_eq!(driver.cuCtxSynchronize(), 0, "the other card is well");
}

#[test]
fn every_symbol_of_the_interface_is_there() {
    let driver = Driver::ready("");
    let names = include_str!("../symbols.txt");
    let missing: Vec<&str> = names.lines().filter(|name| !driver.has(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(!driver.has("cuNoSuchFunction"));
    assert_eq!(driver.cuArrayCreate_v2(), 801, "one that is not simulated says so");
}
