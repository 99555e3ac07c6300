//! Replicas in processes that mpirun starts.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::support::{output, stderr, text};

/// The program in `ranks` processes, in `folder`.
fn mpirun(folder: &Path, ranks: usize, arguments: &[&str]) -> Command {
    let mut command = Command::new("mpirun");
    // Containers run as root and have fewer processors than a test has processes.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.args(["--oversubscribe", "-n", &ranks.to_string(), env!("CARGO_BIN_EXE_kiln")]);
    command.args(arguments).current_dir(folder).env_remove("KILN_LOG");
    command
}

fn train<'a>(data: &'a str, out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let run = ["train", "gpt", "--data", data, "--out", out, "--seed", "3", "--save-every", "4"];
    let model = ["--context", "16", "--batch-size", "4"];
    run.into_iter().chain(model).chain(more.iter().copied()).collect()
}

fn succeeded(done: &Output) {
    assert!(done.status.success(), "{}", stderr(done));
}

#[test]
fn processes_give_the_weights_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let data = text(at, 8000);
    let data = data.to_str().unwrap();
    let model = |run: &str| fs::read(at.join(run).join("model.safetensors")).unwrap();
    for (ranks, name, more) in
        [(2, "2", &[][..]), (4, "4", &["--shard-optimizer"]), (2, "exact", &["--shard-optimizer", "--exact"])]
    {
        let (threads, processes) = (format!("threads-{name}"), format!("processes-{name}"));
        let count = ranks.to_string();
        let common = [&["--max-steps", "8"], more].concat();
        succeeded(&output(at, &train(data, &threads, &[&common[..], &["--replicas", &count]].concat())));
        let done = mpirun(at, ranks, &train(data, &processes, &[&common[..], &["--replicas", "mpi"]].concat()));
        let done = { done }.output().unwrap();
        succeeded(&done);
        assert!(!stderr(&done).contains("improperly"), "{}", stderr(&done));
        assert!(model(&threads) == model(&processes), "{ranks} processes have other weights");
    }
    succeeded(&output(at, &train(data, "alone", &["--max-steps", "8"])));
    assert!(model("alone") == model("processes-exact"));
    // As many processes as there are, or threads, go on with a run.
    fs::remove_dir_all(at.join("processes-4/checkpoints/step-00000008")).unwrap();
    succeeded(&mpirun(at, 2, &["train", "gpt", "--resume", "processes-4"]).output().unwrap());
    fs::remove_dir_all(at.join("processes-2/checkpoints/step-00000008")).unwrap();
    succeeded(&output(at, &["train", "gpt", "--resume", "processes-2", "--replicas", "2"]));
    assert!(model("processes-2") == model("threads-2"));
}

/// The process of a rank, by its command line and environment.
fn process_of(rank: usize, mpirun: &Child) -> Option<u32> {
    let children =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<u32>().ok());
    children.into_iter().find(|process| {
        let read = |file: &str| fs::read(format!("/proc/{process}/{file}")).unwrap_or_default();
        let environment = read("environ");
        let wanted = format!("OMPI_COMM_WORLD_RANK={rank}");
        let of_rank = environment.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes());
        let status = String::from_utf8_lossy(&read("status")).into_owned();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse::<u32>().ok());
        of_rank && parent == Some(mpirun.id())
    })
}

#[test]
fn a_rank_that_is_killed_ends_the_others_and_the_run_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let data = text(at, 8000);
    let arguments = train(data.to_str().unwrap(), "run", &["--max-steps", "400", "--replicas", "mpi"]);
    let child = mpirun(at, 4, &arguments).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while !at.join("run/checkpoints/step-00000004").exists() {
        assert!(Instant::now() < deadline, "the run does not get on");
        std::thread::sleep(Duration::from_millis(5));
    }
    let victim = process_of(2, &child).unwrap().to_string();
    assert!(Command::new("kill").args(["-9", &victim]).status().unwrap().success());
    let killed = Instant::now();
    let ended = child.wait_with_output().unwrap();
    assert!(killed.elapsed() < Duration::from_secs(20), "the others lived on for {:?}", killed.elapsed());
    assert!(!ended.status.success());
    assert!(stderr(&ended).contains("rank 2"), "{}", stderr(&ended));
    let rest = mpirun(at, 2, &["train", "gpt", "--resume", "run", "--save-every", "100"]).output().unwrap();
    succeeded(&rest);
    assert!(stderr(&rest).contains("going on from"), "{}", stderr(&rest));
}
