//! `--memory` on the CPU device: what the operating system counts as the memory of the process stays within it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::support::{done, kiln, refused, stderr, text};

const MIB: u64 = 1 << 20;
/// The folder of what the runs keep of the machine.
const CACHE: &str = "cache";
/// Runs that are drawn. `KILN_BUDGET_RUNS=200 KILN_BUDGET_SEED=1 cargo test --test cli drawn_at_random -- --nocapture` draws more of them.
const DRAWN: u64 = 4;
/// What is taken beside the budget before a run counts as over it.
const SLACK: u64 = 4 * MIB;
/// The largest budget that a run may refuse.
const MOST: u64 = 1 << 30;
/// How a run refuses a budget: before it begins, and after attempts at a step. Steps of less than ten MiB are predicted up to a tenth too low,
/// so that a run which has no more than a few MiB beside the process may give up its first step.
const REFUSALS: [&str; 3] = ["has no room for a step", "a step does not fit into", "does not fit into memory after"];

/// A run that has ended.
struct Ended {
    /// The most bytes that it had in memory, by the system's count.
    most: u64,
    refuses: bool,
}

/// Runs the program, in a control group if there is one. What it keeps of the machine is in `at`.
fn run(at: &Path, arguments: &[&str], container: Option<&Container>) -> Ended {
    let mut command = kiln(at, arguments);
    command.env("XDG_CACHE_HOME", at.join(CACHE));
    if let Some(container) = container {
        command = container.hold(&command);
    }
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut most = 0;
    let ended = loop {
        let text = fs::read_to_string(&status).unwrap_or_default();
        // A process that has ended and was not waited for has no memory.
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let bytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        most = most.max(bytes.unwrap_or(0) << 10);
        if let Some(ended) = child.try_wait().unwrap() {
            break ended;
        }
        thread::sleep(Duration::from_millis(1));
    };
    let said = stderr(&child.wait_with_output().unwrap());
    assert!(most > 0, "{arguments:?}: {said}");
    let refuses = ended.code() == Some(1) && REFUSALS.iter().any(|refusal| said.contains(refusal));
    assert!(refuses || ended.success() && said.contains("process: at most"), "{arguments:?}: {said}");
    Ended { most, refuses }
}

fn most_resident(at: &Path, arguments: &[&str]) -> u64 {
    let ended = run(at, arguments, None);
    assert!(!ended.refuses, "{arguments:?} is refused");
    ended.most
}

/// The bytes that a run of these options takes beside a step.
fn beside(at: &Path, options: &[&str]) -> u64 {
    let said = stderr(&done(at, &[options, &["--max-steps", "1", "--memory", "1GiB"]].concat()));
    let (_, rest) = said.split_once("the process takes ").unwrap();
    let (mebibytes, _) = rest.split_once(" MiB of 1.0 GiB beside a step").unwrap();
    mebibytes.parse::<f64>().unwrap() as u64 * MIB
}

#[test]
fn training_evaluating_saving_and_resuming_stay_within_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let data = text(at, 60_000).display().to_string();
    let gpt = ["train", "gpt", "--data", &data, "--batch-size", "16", "--evaluate-every", "2", "--save-every", "2"];
    let resnet = ["train", "resnet", "--batch-size", "512", "--evaluate-every", "2", "--save-every", "2"];
    for (name, options) in [("gpt", &gpt[..]), ("resnet", &resnet[..])] {
        let beside = beside(at, options);
        for room in [8 * MIB, 24 * MIB] {
            let (budget, out) = ((beside + room).to_string() + "B", format!("{name}-{room}"));
            let most =
                most_resident(at, &[options, &["--max-steps", "3", "--memory", &budget, "--out", &out]].concat());
            assert!(most <= beside + room, "{out}: {most} of {budget}");
            let most = most_resident(at, &["train", options[1], "--resume", &out, "--max-steps", "5"]);
            assert!(most <= beside + room, "{out}, resumed: {most} of {budget}");
        }
    }
    let parts = ["a budget of 4.0 MiB has no room for a step: the process takes "];
    refused(at, &["train", "gpt", "--data", &data, "--memory", "4MiB"], 1, &parts);
}

fn pick<'a>(random: &mut StdRng, of: &[&'a str]) -> &'a str {
    of[random.random_range(0..of.len())]
}

/// The options of a run that is drawn: model, data, precision, optimizer, evaluation and checkpoints.
fn drawn(random: &mut StdRng, data: &str) -> String {
    let model = match random.random_range(0..4) {
        0 => format!("gpt --data {data} --context {}", pick(random, &["32", "64", "128"])),
        1 => format!("gpt --data {data} --dropout 0.1"),
        2 => "resnet".to_owned(),
        _ => {
            format!("resnet --model {}", pick(random, &["resnet34 --width 16", "mobilenet_v2 --width 0.5", "vit_tiny"]))
        }
    };
    let batch = pick(random, &["8", "16", "64", "256"]);
    let precision = pick(random, &["f32", "bf16", "bf16 --parameters bf16"]);
    let optimizer = pick(random, &["adamw", "adamw8bit", "sgd"]);
    let evaluate = pick(random, &["0", "1", "3"]);
    let save = pick(random, &["1", "2", "5"]);
    format!(
        "{model} --batch-size {batch} --precision {precision} --optimizer {optimizer} --evaluate-every {evaluate} --save-every {save}"
    )
}

#[test]
fn runs_drawn_at_random_stay_within_their_budgets() {
    let number = |name, default| std::env::var(name).map_or(default, |text: String| text.parse::<u64>().unwrap());
    let mut random = StdRng::seed_from_u64(number("KILN_BUDGET_SEED", 3));
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let data = text(at, 60_000).display().to_string();
    let (runs, mut refused) = (number("KILN_BUDGET_RUNS", DRAWN), 0);
    let mut over = vec![];
    for run in 0..runs {
        let (options, out) = (drawn(&mut random, &data), format!("run-{run}"));
        // A budget that is refused is drawn again, a third higher.
        let mut budget = random.random_range(44..160) * MIB;
        // The first run on a machine measures it.
        if random.random_bool(0.25) {
            let _ = fs::remove_dir_all(at.join(CACHE));
        }
        let mut fits = |what: &str, arguments: &str, budget: u64| {
            let container = Container::of(budget + SLACK);
            let Ended { most, refuses } =
                self::run(at, &arguments.split(' ').collect::<Vec<&str>>(), container.as_ref());
            let (taken, what) = (most as f64 / MIB as f64, if refuses { ", refused" } else { what });
            eprintln!("{taken:6.1} of {:6.1} MiB{what}: {options}", budget as f64 / MIB as f64);
            // A budget below what the program takes is refused by a program that has taken it. Much of that is code, which the system
            // takes back: a control group holds the program, or ends it, so that it does not refuse. Without one, it has taken no more than to
            // refuse any budget.
            let least = || {
                let _ = fs::remove_dir_all(at.join(CACHE)); // it measures the machine, as the run may have done
                let any = format!("train {options} --max-steps 3 --memory 4MiB --out refused");
                self::run(at, &any.split(' ').collect::<Vec<&str>>(), None).most
            };
            if most > budget + SLACK && !(refuses && (container.is_some() || most < least() + SLACK)) {
                over.push(format!("{arguments}{what}: {most} of {budget}"));
            }
            !refuses
        };
        while !fits("", &format!("train {options} --max-steps 3 --memory {budget}B --out {out}"), budget) {
            refused += 1;
            let _ = fs::remove_dir_all(at.join(&out));
            budget += budget / 3;
            assert!(budget <= MOST, "{options} refuses {budget}");
        }
        if random.random_bool(0.5) {
            let resumed = format!("train {} --resume {out} --max-steps 5", options.split(' ').next().unwrap());
            assert!(fits(", resumed", &resumed, budget), "a run that trains within a budget resumes within it");
        }
        fs::remove_dir_all(at.join(&out)).unwrap();
    }
    eprintln!("{runs} runs, {refused} budgets refused, {} over", over.len());
    assert!(over.is_empty(), "{over:#?}");
}

/// A control group whose processes the kernel ends when they take more than the limit.
struct Container(std::path::PathBuf);

impl Container {
    /// `None` where this process may not make one.
    fn of(limit: u64) -> Option<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let root = Path::new("/sys/fs/cgroup");
        static GROUPS: AtomicU64 = AtomicU64::new(0);
        let name = format!("kiln-{}-{}", std::process::id(), GROUPS.fetch_add(1, Ordering::Relaxed));
        let (folder, file) = if root.join("memory").is_dir() {
            let own = groups.lines().find_map(|line| line.split_once(":memory:"));
            let own = own.map_or("", |(_, own)| own.trim_start_matches('/'));
            let own = root.join("memory").join(own);
            (if own.is_dir() { own } else { root.join("memory") }.join(name), "memory.limit_in_bytes")
        } else {
            (root.join(name), "memory.max")
        };
        fs::create_dir(&folder).ok()?;
        let container = Self(folder);
        fs::write(container.0.join(file), limit.to_string()).ok()?;
        // What is swapped out does not count: nothing shall be.
        let swap = if file == "memory.max" { "memory.swap.max" } else { "memory.swappiness" };
        fs::write(container.0.join(swap), "0").ok()?;
        let moved = container.hold(&Command::new("true")).status().ok()?;
        moved.success().then_some(container)
    }

    /// A command that runs in the group.
    fn hold(&self, command: &Command) -> Command {
        let mut held = Command::new("sh");
        held.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]).arg(&self.0);
        held.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => held.env(name, value),
                None => held.env_remove(name),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            held.current_dir(folder);
        }
        held
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_container_of_the_budget_holds_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let data = text(at, 60_000).display().to_string();
    let train =
        |budget: &str| format!("train gpt --data {data} --batch-size 128 --max-steps 3 --save-every 2 {budget}");
    let budget = 80 * MIB;
    let Some(container) = Container::of(budget + SLACK) else {
        return eprintln!("no control group can be made here: not tried");
    };
    let inside = |arguments: &str| {
        let mut command = kiln(at, &arguments.split(' ').collect::<Vec<&str>>());
        container.hold(command.env("XDG_CACHE_HOME", at.join(CACHE))).output().unwrap()
    };
    // The same run without a budget takes more than there is.
    let killed = inside(&train("--out whole"));
    assert_eq!(killed.status.code(), None, "{}", stderr(&killed));
    for arguments in
        [train(&format!("--memory {budget}B --out within")), "train gpt --resume within --max-steps 5".into()]
    {
        let lives = inside(&arguments);
        assert!(lives.status.success(), "{arguments}: {}", stderr(&lives));
    }
}
