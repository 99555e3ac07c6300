//! Kernels, streams, events and graphs, through the C interface.

use serde_json::json;

use crate::driver_library::{Driver, PTX, text};

#[test]
fn kernels_compute_and_are_counted() {
    let driver = Driver::ready("TOTAL=1G");
    let kernel = driver.kernel("twice");
    let input: Vec<f32> = (0..32).map(|x| x as f32).collect();
    let (from, to) = (driver.upload(&input), driver.alloc(128));
    assert_eq!(driver.launch(kernel, driver.stream(), &[from, to]), 0);
    let expected: Vec<f32> = input.iter().map(|x| x * 2.0 + 2.0).collect();
    assert_eq!(driver.download(to, 32), Ok(expected));
    let counts = &driver.card(0)["counts"];
    assert_eq!((&counts["launches"], &counts["executed"]), (&json!(1), &json!(1)));
    assert!(counts["warp_instructions"].as_u64() > Some(5));
}

#[test]
fn arguments_may_come_as_one_block() {
    let driver = Driver::ready("TOTAL=1G");
    let (kernel, memory) = (driver.kernel("twice"), driver.upload(&[3.0; 32]));
    let block = [memory, memory];
    let bytes = size_of_val(&block);
    let extra = [1, block.as_ptr() as usize, 2, (&raw const bytes) as usize, 0];
    let launch = |extra: *const usize| driver.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, 0, std::ptr::null(), extra);
    assert_eq!(launch(extra.as_ptr()), 0);
    assert_eq!(driver.download(memory, 32), Ok(vec![8.0; 32]));
    assert_eq!(launch(std::ptr::null()), 1, "no arguments at all");
}

#[test]
fn kernels_that_are_skipped_are_checked_and_counted_but_write_nothing() {
    let driver = Driver::ready("TOTAL=1G\nEXECUTE=skip");
    let (kernel, memory) = (driver.kernel("twice"), driver.upload(&[3.0; 32]));
    assert_eq!(driver.launch(kernel, 0, &[memory, memory]), 0);
    assert_eq!(driver.download(memory, 32), Ok(vec![3.0; 32]));
    assert_eq!(driver.card(0)["counts"]["executed"], json!(0));
    driver.command(r#"{"do":"execute","kernels":"run"}"#);
    assert_eq!(driver.launch(kernel, 0, &[memory, memory]), 0);
    assert_eq!(driver.download(memory, 32), Ok(vec![8.0; 32]));
}

#[test]
fn kernels_that_are_measured_write_nothing_and_their_bytes_are_counted() {
    let driver = Driver::ready("TOTAL=1G\nEXECUTE=measure");
    let (kernel, from, to) = (driver.kernel("twice"), driver.upload(&[3.0; 32]), driver.upload(&[1.0; 32]));
    assert_eq!(driver.launch(kernel, 0, &[from, to]), 0);
    assert_eq!(driver.download(to, 32), Ok(vec![1.0; 32]));
    let counts = &driver.card(0)["counts"];
    // 32 lanes read and write 4 bytes each; the module's variable is no parameter.
    assert_eq!((&counts["kernels_read_bytes"], &counts["kernels_written_bytes"]), (&json!(128), &json!(128)));
    assert_eq!((&counts["launches"], &counts["executed"]), (&json!(1), &json!(0)));
}

#[test]
fn variables_of_modules_are_device_memory() {
    let driver = Driver::ready("TOTAL=1G");
    let (mut module, mut kernel, mut address, mut bytes) = (0, 0, 0, 0);
    assert_eq!(driver.cuModuleLoadData(&mut module, text(PTX).as_ptr()), 0);
    assert_eq!(driver.cuModuleGetGlobal_v2(&mut address, &mut bytes, module, text("bias").as_ptr()), 0);
    assert_eq!((bytes, driver.download(address, 1)), (4, Ok(vec![2.0])));
    assert_eq!(driver.cuMemcpyHtoD_v2(address, (&raw const *[10.0_f32].first().expect("one")).cast(), 4), 0);
    assert_eq!(driver.cuModuleGetFunction(&mut kernel, module, text("twice").as_ptr()), 0);
    let memory = driver.upload(&[1.0; 32]);
    assert_eq!(driver.launch(kernel, 0, &[memory, memory]), 0);
    assert_eq!(driver.download(memory, 1), Ok(vec![12.0]));
    assert_eq!(driver.cuMemFree_v2(address), 1, "it is the module's");
    assert_eq!(driver.cuModuleGetGlobal_v2(&mut address, &mut bytes, module, text("none").as_ptr()), 500);
}

#[test]
fn new_memory_may_be_filled_to_show_who_reads_it_unwritten() {
    let driver = Driver::ready("TOTAL=1G\nFILL=ff");
    assert!(driver.download(driver.alloc(64), 16).expect("a copy").iter().all(|value| value.is_nan()));
}

#[test]
fn events_keep_the_hosts_time() {
    let driver = Driver::ready("TOTAL=1G");
    let (stream, mut start, mut end, mut silent) = (driver.stream(), 0, 0, 0);
    assert_eq!(driver.cuEventCreate(&mut start, 0), 0);
    assert_eq!(driver.cuEventCreate(&mut end, 0), 0);
    assert_eq!(driver.cuEventCreate(&mut silent, 2), 0);
    let mut milliseconds = 0.0;
    assert_eq!(driver.cuEventElapsedTime(&mut milliseconds, start, end), 400, "not recorded");
    assert_eq!(driver.cuEventRecord(start, stream), 0);
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert_eq!(driver.cuEventRecord(end, stream), 0);
    assert_eq!(driver.cuEventSynchronize(end), 0);
    assert_eq!(driver.cuEventElapsedTime(&mut milliseconds, start, end), 0);
    assert!(milliseconds >= 5.0, "{milliseconds}");
    assert_eq!(driver.cuEventElapsedTime(&mut milliseconds, end, start), 0);
    assert!(milliseconds <= -5.0, "{milliseconds}");
    assert_eq!(driver.cuEventRecord(silent, stream), 0);
    assert_eq!(driver.cuEventElapsedTime(&mut milliseconds, start, silent), 400, "it keeps no time");
    assert_eq!(driver.cuEventDestroy_v2(end), 0);
    assert_eq!(driver.cuEventDestroy_v2(end), 400);
}

#[test]
fn a_recorded_graph_runs_again_on_what_the_memory_holds_then() {
    let driver = Driver::ready("TOTAL=1G");
    let (kernel, stream, memory) = (driver.kernel("twice"), driver.stream(), driver.upload(&[0.0; 32]));
    let (mut graph, mut instance, mut count) = (0, 0, 0);
    assert_eq!(driver.cuStreamBeginCapture_v2(0, 0), 900, "the default stream does not record");
    assert_eq!(driver.cuStreamBeginCapture_v2(stream, 0), 0);
    assert_eq!(driver.launch(kernel, stream, &[memory, memory]), 0);
    assert_eq!(driver.launch(kernel, stream, &[memory, memory]), 0);
    assert_eq!(driver.cuStreamEndCapture(stream, &mut graph), 0);
    assert_eq!(driver.download(memory, 1), Ok(vec![0.0]), "recording does nothing");
    assert_eq!((driver.cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count), count), (0, 2));
    let (mut nodes, mut kind) = ([0; 2], 99);
    assert_eq!(driver.cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count), 0);
    assert_eq!((driver.cuGraphNodeGetType(nodes[1], &mut kind), kind), (0, 0));
    assert_eq!(driver.cuGraphInstantiateWithFlags(&mut instance, graph, 0), 0);
    assert_eq!(driver.cuGraphDestroy(graph), 0);
    assert_eq!((driver.cuGraphLaunch(instance, stream), driver.cuGraphLaunch(instance, stream)), (0, 0));
    assert_eq!(driver.download(memory, 1), Ok(vec![30.0])); // 0, 2, 6, 14, 30
    assert_eq!(driver.cuGraphLaunch(graph, stream), 400);
}

#[test]
fn what_a_recording_cannot_hold_spoils_it() {
    let driver = Driver::ready("TOTAL=1G");
    let (stream, mut graph) = (driver.stream(), 0);
    assert_eq!(driver.cuStreamBeginCapture_v2(stream, 0), 0);
    assert_eq!(driver.cuStreamSynchronize(stream), 900);
    assert_eq!((driver.cuStreamEndCapture(stream, &mut graph), graph), (901, 0));
    assert_eq!(driver.cuStreamSynchronize(stream), 0);
    assert_eq!(driver.cuStreamEndCapture(stream, &mut graph), 401);

    // another stream that waits for an event of the recording records too
    let (side, mut event, mut count) = (driver.stream(), 0, 0);
    let (kernel, memory) = (driver.kernel("twice"), driver.upload(&[0.0; 32]));
    assert_eq!(driver.cuEventCreate(&mut event, 2), 0);
    assert_eq!(driver.cuStreamBeginCapture_v2(stream, 0), 0);
    assert_eq!(driver.cuEventRecord(event, stream), 0);
    assert_eq!(driver.cuStreamWaitEvent(side, event, 0), 0);
    assert_eq!(driver.launch(kernel, side, &[memory, memory]), 0);
    assert_eq!(driver.cuStreamEndCapture(side, &mut graph), 903, "it did not begin the recording");
    assert_eq!(driver.cuStreamEndCapture(stream, &mut graph), 0);
    assert_eq!((driver.cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count), count), (0, 1));
}

#[test]
fn an_allocation_in_a_recording_is_a_node() {
    let driver = Driver::ready("TOTAL=1G");
    let (stream, mut graph, mut instance, mut address, mut node, mut count, mut kind) =
        (driver.stream(), 0, 0, 0, 0, 1, 0);
    assert_eq!(driver.cuMemAllocAsync(&mut address, 64, stream), 0);
    assert_eq!((driver.cuMemFreeAsync(address, stream), driver.number("kiln_sim_live_bytes", 0)), (0, 0));
    assert_eq!(driver.cuStreamBeginCapture_v2(stream, 0), 0);
    assert_eq!(driver.cuMemAllocAsync(&mut address, 64, stream), 0);
    assert_eq!(driver.cuStreamEndCapture(stream, &mut graph), 0);
    assert_eq!(driver.cuGraphGetNodes(graph, &mut node, &mut count), 0);
    assert_eq!((driver.cuGraphNodeGetType(node, &mut kind), kind), (0, 10));
    assert_eq!(driver.cuGraphInstantiateWithFlags(&mut instance, graph, 0), 0);
    assert_eq!((driver.cuGraphLaunch(instance, stream), driver.cuGraphLaunch(instance, stream)), (0, 1));
}

#[test]
fn threads_use_a_card_at_once() {
    let driver = Driver::ready("TOTAL=1G");
    let kernel = driver.kernel("twice");
    let work = |seed: f32| {
        driver.enter(0);
        let stream = driver.stream();
        for _ in 0..50 {
            let memory = driver.upload(&[seed; 32]);
            assert_eq!(driver.launch(kernel, stream, &[memory, memory]), 0);
            assert_eq!(driver.download(memory, 32), Ok(vec![seed * 2.0 + 2.0; 32]));
            assert_eq!(driver.cuMemFree_v2(memory), 0);
        }
    };
    std::thread::scope(|scope| (0..4_u8).for_each(|seed| drop(scope.spawn(move || work(f32::from(seed))))));
    let memory = &driver.card(0)["memory"];
    assert_eq!((&memory["live_bytes"], &memory["allocations"]), (&json!(0), &json!(200)));
    assert!(memory["peak_bytes"].as_u64() <= Some(4 * 128));
}
