//! The tables of the guide to parallel training: schedules, divisions of blocks, and layouts for 8 and for 1,000 GPUs.
//!
//! Everything is calculated; no device is used: `cargo run --example cluster`

pub(crate) mod estimate;
pub(crate) mod layout;

use std::io::{Write, stdout};

use estimate::{Estimate, Result, best_layouts, estimate};
use kiln_parallel::{BlockCost, DeviceLimit, Schedule, SplitOptions, StageCost, Stages, simulate};
use layout::{Cluster, EAGER, Inside, Layout, Link, Model};

const GIGA: f64 = 1e9;

#[allow(dead_code, reason = "a test prints the tables too")]
fn main() -> Result {
    print(&mut stdout().lock())
}

/// All tables; nothing in them depends on the machine.
pub(crate) fn print(out: &mut impl Write) -> Result {
    charts(out)?;
    schedules(out)?;
    transfers(out)?;
    balance(out)?;
    eight_gpus(out)?;
    thousand_gpus(out)?;
    stages_of_a_thousand(out)?;
    links(out)?;
    sharding(out)?;
    published(out)
}

/// Opens a table.
fn table(out: &mut impl Write, title: &str, columns: &[&str]) -> Result {
    writeln!(out, "\n{title}\n\n| {} |", columns.join(" | "))?;
    writeln!(out, "|{}", "---|".repeat(columns.len()))?;
    Ok(())
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn charts(out: &mut impl Write) -> Result {
    let cost = StageCost { forward: 1.0, backward: 2.0, transfer: 0.0 };
    for schedule in [Schedule::GPipe, EAGER] {
        writeln!(out, "{schedule}:\n{}", simulate(schedule, 8, &[cost; 4])?)?;
    }
    Ok(())
}

/// Bubble and held micro-batches of equal stages.
fn schedules(out: &mut impl Write) -> Result {
    let columns =
        ["stages", "micro-batches", "bubble, sequential", "GPipe", "1F1B", "held, GPipe", "held, 1F1B, first stage"];
    table(out, "Equal stages, a backward pass twice as long as a forward pass, no transfers:", &columns)?;
    let cost = StageCost { forward: 1.0, backward: 2.0, transfer: 0.0 };
    for stages in [2, 4, 8, 16, 32] {
        for micro_batches in [stages, 4 * stages, 16 * stages] {
            let run = |schedule| simulate(schedule, micro_batches, &vec![cost; stages]);
            let (one, gpipe, eager) = (run(Schedule::Sequential)?, run(Schedule::GPipe)?, run(EAGER)?);
            let bubbles = [one.bubble(), gpipe.bubble(), eager.bubble()].map(percent).join(" | ");
            let held = format!("{} | {}", gpipe.most_held(0), eager.most_held(0));
            writeln!(out, "| {stages} | {micro_batches} | {bubbles} | {held} |")?;
        }
    }
    Ok(())
}

/// What transfers do to a pipeline that overlaps them with computation.
fn transfers(out: &mut impl Write) -> Result {
    let columns = ["transfer / forward pass", "bubble, GPipe", "bubble, 1F1B", "1F1B / GPipe, time"];
    table(out, "8 equal stages, 32 micro-batches, with transfers:", &columns)?;
    for share in [0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0] {
        let costs = [StageCost { forward: 1.0, backward: 2.0, transfer: share }; 8];
        let (gpipe, eager) = (simulate(Schedule::GPipe, 32, &costs)?, simulate(EAGER, 32, &costs)?);
        let slower = eager.seconds() / gpipe.seconds();
        let bubbles = [gpipe.bubble(), eager.bubble()].map(percent).join(" | ");
        writeln!(out, "| {} | {bubbles} | {slower:.2} |", percent(share))?;
    }
    Ok(())
}

/// A chain like a convolutional network: activations are large at its begin, parameters at its end.
fn convolutional() -> Vec<BlockCost> {
    const MIB: u64 = 1 << 20;
    let block = |i: usize| {
        let level = i / 4; // 4 blocks of each resolution
        BlockCost {
            seconds: [0.012, 0.010, 0.010, 0.014][level],
            parameter_bytes: [1, 5, 20, 80][level] * MIB,
            activation_bytes: [320, 160, 80, 40][level] * MIB,
            workspace_bytes: 64 * MIB,
            output_bytes: [64, 32, 16, 8][level] * MIB,
        }
    };
    (0..16).map(block).collect()
}

fn balance(out: &mut impl Write) -> Result {
    let (blocks, micro_batches) = (convolutional(), 16);
    let options = SplitOptions::new(EAGER, micro_batches).with_link(10.0 * GIGA);
    let mut show = |title: &str, stages: &Stages| -> Result {
        let timeline = simulate(EAGER, micro_batches, &stages.costs())?;
        let (seconds, bubble) = (timeline.seconds(), percent(timeline.bubble()));
        writeln!(out, "\n{title}: {seconds:.3} s a step, bubble {bubble}\n\n```text\n{stages}```")?;
        Ok(())
    };
    let plenty = [DeviceLimit::new(1 << 40); 4];
    show("Equal numbers of blocks", &Stages::even(16, 4)?.with_costs(&blocks, &plenty, &options)?)?;
    show("Split, memory without limit", &Stages::split(&blocks, &plenty, &options)?)?;
    let limit = [DeviceLimit::new(4 << 30); 4];
    show("Split, 4 GiB on each device", &Stages::split(&blocks, &limit, &options)?)?;
    let mixed = [0.5, 1.0, 1.0, 2.0].map(|speed| DeviceLimit { bytes: 8 << 30, speed });
    show("Split, devices of speed 0.5, 1, 1, 2 with 8 GiB", &Stages::split(&blocks, &mixed, &options)?)?;
    if let Err(error) = Stages::split(&blocks, &[DeviceLimit::new(1 << 30); 4], &options) {
        writeln!(out, "\nSplit, 1 GiB on each device: {error}")?;
    }
    Ok(())
}

/// Hosts of 8 GPUs. A GPU of 80 GB has 72 GB for training.
fn hosts(hosts: usize) -> Cluster {
    Cluster {
        hosts,
        gpus_per_host: 8,
        flops: 400e12,
        memory: 72.0 * GIGA,
        inside: Link { bytes_per_second: 300.0 * GIGA, latency: 10e-6 },
        between: Link { bytes_per_second: 320.0 * GIGA, latency: 20e-6 },
    }
}

/// GPT with the layers and widths of published models.
fn gpt(name: &str, batch: usize) -> Model {
    let (layers, width) = match name {
        "1.7 B" => (24, 2304.0),
        "7.5 B" => (36, 4096.0),
        "18 B" => (40, 6144.0),
        "39 B" => (48, 8192.0),
        "175 B" => (96, 12288.0),
        "530 B" => (105, 20480.0),
        _ => (128, 25600.0),
    };
    Model { layers, width, batch }
}

const COLUMNS: [&str; 12] = [
    "model",
    "stages",
    "replicas",
    "micro-batches",
    "inside a host",
    "optimizer",
    "recomputed",
    "step",
    "bubble",
    "sums",
    "a GPU",
    "TFLOP/s a GPU",
];

fn row(out: &mut impl Write, name: &str, found: &Estimate) -> Result {
    let Layout { stages, replicas, micro_batches, inside, shard_optimizer, recompute, .. } = found.layout;
    let inside = match inside {
        _ if stages == 1 || replicas == 1 => "-",
        Inside::Replicas => "replicas",
        Inside::Stages => "stages",
    };
    let optimizer = if shard_optimizer { "sharded" } else { "whole" };
    let recompute = if recompute { "yes" } else { "no" };
    let (seconds, bubble, sums) = (found.seconds, percent(found.bubble), percent(found.reduction / found.seconds));
    let (memory, flops) = (found.memory.total() / GIGA, found.flops / 1e12);
    writeln!(
        out,
        "| {name} | {stages} | {replicas} | {micro_batches} | {inside} | {optimizer} | {recompute} | {seconds:.2} s | {bubble} | \
         {sums} | {memory:.1} GB | {flops:.0} |"
    )?;
    Ok(())
}

/// The layouts that fit, with gradients of 4 bytes or else of 2, and the name of the row.
fn fitting(name: &str, cluster: &Cluster, batch: usize) -> Result<(String, Vec<Estimate>)> {
    for (gradient_bytes, note) in [(4.0, ""), (2.0, ", gradients of 2 bytes")] {
        let found = best_layouts(&gpt(name, batch), cluster, gradient_bytes)?;
        if !found.is_empty() {
            return Ok((format!("{name}{note}"), found));
        }
    }
    Ok((name.to_owned(), vec![]))
}

/// The fastest layout of each number of stages, or the fastest of all.
fn rows(out: &mut impl Write, name: &str, found: &[Estimate], each: bool) -> Result {
    if found.is_empty() {
        writeln!(out, "| {name} | no layout fits |{}", " |".repeat(COLUMNS.len() - 2))?;
    }
    let mut stages: Vec<usize> = found.iter().map(|found| found.layout.stages).collect();
    if each {
        stages.sort_unstable();
        stages.dedup();
    } else {
        stages.truncate(1);
    }
    for stages in stages {
        if let Some(best) = found.iter().find(|found| found.layout.stages == stages) {
            row(out, name, best)?;
        }
    }
    Ok(())
}

fn eight_gpus(out: &mut impl Write) -> Result {
    let title = "8 GPUs in one host, 512 sequences of 2,048 tokens, the fastest layout with each number of stages:";
    table(out, title, &COLUMNS)?;
    for name in ["1.7 B", "7.5 B", "18 B", "39 B"] {
        let (name, found) = fitting(name, &hosts(1), 512)?;
        rows(out, &name, &found, true)?;
    }
    Ok(())
}

fn thousand_gpus(out: &mut impl Write) -> Result {
    let slow = Cluster { between: Link { bytes_per_second: 10.0 * GIGA, latency: 50e-6 }, ..hosts(125) };
    for (title, cluster) in [("320 GB/s", hosts(125)), ("10 GB/s", slow)] {
        let title = format!("1,000 GPUs on 125 hosts, {title} between hosts, 2,000 sequences, the fastest layout:");
        table(out, &title, &COLUMNS)?;
        for name in ["7.5 B", "39 B", "175 B", "530 B", "1 T"] {
            let (name, found) = fitting(name, &cluster, 2000)?;
            rows(out, &name, &found, false)?;
        }
    }
    Ok(())
}

fn stages_of_a_thousand(out: &mut impl Write) -> Result {
    table(out, "175 B on the 1,000 GPUs with 320 GB/s, the fastest layout with each number of stages:", &COLUMNS)?;
    let (name, found) = fitting("175 B", &hosts(125), 2000)?;
    rows(out, &name, &found, true)?;
    table(out, "The same with larger batches, the fastest layout:", &COLUMNS)?;
    for batch in [1000, 2000, 4000, 8000, 16000] {
        let (name, found) = fitting("175 B", &hosts(125), batch)?;
        rows(out, &format!("{name}, {batch} sequences"), &found, false)?;
    }
    Ok(())
}

/// Bytes that a GPU sends in a step, by what the GPUs of a host share.
fn links(out: &mut impl Write) -> Result {
    let columns =
        ["stages", "replicas", "inside a host", "optimizer", "gradients", "inside, GB", "between, GB", "step"];
    table(out, "175 B on the 1,000 GPUs, what the GPU that sends the most sends in a step:", &columns)?;
    let model = gpt("175 B", 2000);
    for (stages, replicas) in [(25, 40), (40, 25)] {
        for inside in [Inside::Replicas, Inside::Stages] {
            for (shard_optimizer, gradient_bytes) in [(false, 4.0), (true, 4.0), (true, 2.0)] {
                let plain = Layout::new(stages, replicas, 2000 / replicas);
                let layout = Layout { inside, shard_optimizer, gradient_bytes, recompute: true, ..plain };
                let found = estimate(&model, &hosts(125), &layout)?;
                let (sent, seconds) = (found.traffic, found.seconds);
                let inside = if inside == Inside::Replicas { "replicas" } else { "stages" };
                let optimizer = if shard_optimizer { "sharded" } else { "whole" };
                writeln!(
                    out,
                    "| {stages} | {replicas} | {inside} | {optimizer} | {gradient_bytes} bytes | {:.1} | {:.1} | {seconds:.2} s |",
                    sent.inside / GIGA,
                    sent.between / GIGA
                )?;
            }
        }
    }
    Ok(())
}

/// Memory of 8 GPUs, step by step.
fn sharding(out: &mut impl Write) -> Result {
    let columns = ["model", "layout", "weights", "gradients", "optimizer", "activations", "a GPU", "step"];
    table(out, "8 GPUs, micro-batches of one sequence, 64 sequences, GB on the GPU that needs the most:", &columns)?;
    for name in ["1.7 B", "7.5 B", "18 B"] {
        let model = gpt(name, 64);
        let replicas = Layout::new(1, 8, 8);
        let sharded = Layout { shard_optimizer: true, ..replicas };
        let layouts = [
            ("8 replicas", replicas),
            ("8 replicas, optimizer sharded", sharded),
            ("8 replicas, sharded, recomputed", Layout { recompute: true, ..sharded }),
            (
                "8 replicas, sharded, recomputed, gradients of 2 bytes",
                Layout { recompute: true, gradient_bytes: 2.0, ..sharded },
            ),
            ("4 stages x 2 replicas, sharded", Layout { shard_optimizer: true, ..Layout::new(4, 2, 32) }),
            ("8 stages", Layout::new(8, 1, 64)),
            ("8 stages, recomputed", Layout { recompute: true, ..Layout::new(8, 1, 64) }),
        ];
        for (title, layout) in layouts {
            let found = estimate(&model, &hosts(1), &layout)?;
            let memory = found.memory;
            let parts = [memory.parameters, memory.gradients, memory.optimizer, memory.activations];
            let parts = parts.map(|bytes| format!("{:.1}", bytes / GIGA)).join(" | ");
            let (total, seconds) = (memory.total() / GIGA, found.seconds);
            let time = if found.fits { format!("{seconds:.2} s") } else { "does not fit".into() };
            writeln!(out, "| {name} | {title} | {parts} | {total:.1} | {time} |")?;
        }
    }
    Ok(())
}

/// Published runs of a model: the batch, the stages of a replica, and for each number of replicas the TFLOP/s that a GPU reached.
pub(crate) type Runs = (&'static str, usize, usize, [(usize, f64); 3]);

/// GPT on 8-way tensor-parallel hosts (Narayanan et al. 2021, table 2).
pub(crate) const PUBLISHED: [Runs; 2] = [
    ("175 B", 1536, 12, [(4, 153.0), (8, 149.0), (16, 141.0)]),
    ("530 B", 2240, 35, [(2, 171.0), (4, 167.0), (8, 159.0)]),
];

/// What is calculated for each run. Each host is taken as one GPU, whose speed is chosen so that the first run agrees.
pub(crate) fn calculated((name, batch, stages, runs): Runs) -> Result<[Estimate; 3]> {
    let model = gpt(name, batch);
    let run = |replicas: usize, speed: f64| {
        let layout = Layout { recompute: true, ..Layout::new(stages, replicas, batch / replicas) };
        let between = Link { bytes_per_second: 200.0 * GIGA, latency: 20e-6 };
        let (flops, memory) = (8.0 * speed * 1e12, 8.0 * 80.0 * GIGA);
        let cluster = Cluster { hosts: stages * replicas, gpus_per_host: 1, flops, memory, between, ..hosts(1) };
        estimate(&model, &cluster, &layout)
    };
    let (first, published) = runs[0];
    let mut speed = published;
    for _ in 0..4 {
        speed *= published / teraflops(&run(first, speed)?);
    }
    let [first, second, third] = runs.map(|(replicas, _)| run(replicas, speed));
    Ok([first?, second?, third?])
}

/// TFLOP/s of one of the 8 GPUs of a host that is taken as one.
pub(crate) fn teraflops(host: &Estimate) -> f64 {
    host.flops / 8.0 / 1e12
}

fn published(out: &mut impl Write) -> Result {
    let columns = ["model", "stages", "replicas", "GPUs", "published TFLOP/s a GPU", "calculated", "difference"];
    table(out, "Published and calculated strong scaling:", &columns)?;
    for published in PUBLISHED {
        let (name, _, stages, runs) = published;
        for (row, ((replicas, published), found)) in runs.iter().zip(calculated(published)?).enumerate() {
            let (found, gpus) = (teraflops(&found), 8 * stages * replicas);
            let difference = if row == 0 { "chosen".into() } else { percent(found / published - 1.0) };
            writeln!(out, "| {name} | {stages} | {replicas} | {gpus} | {published} | {found:.1} | {difference} |")?;
        }
    }
    Ok(())
}
