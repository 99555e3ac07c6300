//! Whole processes: the log, the control socket, and `cudarc` finding the library as it finds any CUDA driver.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use serde_json::{Value, json};

use crate::driver_library::{PTX, install};

/// Starts one test of this program, which is ignored otherwise, with the library in `folder` as its driver.
fn child(folder: &Path, test: &str, settings: &[(&str, &str)]) -> Child {
    install(folder);
    let mut command = Command::new(std::env::current_exe().expect("this program's path"));
    command.args(["--exact", test, "--ignored", "--nocapture"]).env("LD_LIBRARY_PATH", folder);
    for (name, value) in settings {
        command.env(format!("KILN_SIM_{name}"), value);
    }
    command
        .env("KILN_SIM_LOG", folder.join("log.jsonl"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child")
}

fn log(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("log.jsonl")).expect("the log");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// A process that uses the driver as a CubeCL program does. It waits for a line on its input before it allocates.
#[test]
#[ignore = "the other tests of this file run it in a process of its own"]
fn program() {
    let context = CudaContext::new(0).expect("a context");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a line");
    let stream = context.new_stream().expect("a stream");
    let module = context.load_module(cudarc::nvrtc::Ptx::from_src(PTX)).expect("a module");
    let kernel = module.load_function("twice").expect("a kernel");
    let input = stream.clone_htod(&[1.5_f32; 32]).expect("room");
    let mut output = stream.alloc_zeros::<f32>(32).expect("room");
    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the kernel takes two pointers to as many numbers as there are threads.
    unsafe { stream.launch_builder(&kernel).arg(&input).arg(&mut output).launch(config) }.expect("a launch");
    assert_eq!(stream.clone_dtoh(&output).expect("a copy"), [5.0; 32]);
    let refused = stream.alloc_zeros::<u8>(1 << 30).expect_err("more than is free");
    assert!(refused.to_string().contains("OUT_OF_MEMORY"), "{refused}");
}

#[test]
fn cudarc_works_on_it_and_the_log_tells_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let child = child(folder.path(), "driver_process::program", &[("TOTAL", "1G"), ("TRACE", "1")]);
    let output = child.wait_with_output().expect("an end");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let log = log(folder.path());
    let of = |event: &str| log.iter().filter(|record| record["event"] == event).collect::<Vec<_>>();
    assert_eq!(of("start").len(), 1);
    assert_eq!(of("alloc").iter().map(|record| &record["bytes"]).collect::<Vec<_>>(), [128, 128]);
    assert_eq!(of("refused")[0]["bytes"], json!(1 << 30));
    assert_eq!(of("launch")[0]["kernel"], "twice");
    assert_eq!(of("not_supported"), Vec::<&Value>::new());
    let summary = log.last().expect("a summary");
    assert_eq!((&summary["event"], &summary["devices"][0]["memory"]["peak_bytes"]), (&json!("summary"), &json!(256)));
}

#[test]
fn another_process_changes_the_machine_through_the_socket() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("control");
    let settings = [("TOTAL", "8G"), ("CONTROL", socket.to_str().expect("UTF-8"))];
    let mut child = child(folder.path(), "driver_process::program", &settings);
    let connect = || {
        (0..500)
            .find_map(|_| UnixStream::connect(&socket).map_err(|_| std::thread::sleep(Duration::from_millis(10))).ok())
    };
    let mut connection = connect().expect("the socket");
    let mut answers = BufReader::new(connection.try_clone().expect("a copy")).lines();
    let mut ask = |command: Value| -> Value {
        writeln!(connection, "{command}").expect("a command sent");
        serde_json::from_str(&answers.next().expect("an answer").expect("a line")).expect("JSON")
    };
    assert_eq!(ask(json!({ "do": "take", "bytes": (7_u64 << 30) + 1 }))["answer"]["free"], json!((1 << 30) - 1));
    assert_eq!(ask(json!({ "do": "nonsense" }))["ok"], false);
    assert_eq!(ask(json!({ "do": "read" }))["answer"]["devices"][0]["memory"]["live"], 0);
    writeln!(child.stdin.take().expect("its input"), "go").expect("a line sent");
    let output = child.wait_with_output().expect("an end");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(log(folder.path()).iter().filter(|record| record["event"] == "command").count(), 1);
}
