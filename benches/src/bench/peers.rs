//! Peers: other programs that take equal steps, alternately with Kiln.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::case::{Case, all};
use super::child::Process;
use super::results::Peer;
use super::statistics::{Spread, ratios};

/// Kiln's cases, and the options of benches/peers/train.py for equal steps. The peer clips in every case, which costs Kiln next to
/// nothing.
const PEERS: [(&str, &str); 8] = [
    ("resnet/clip", "--model resnet-small"),
    ("resnet/bf16", "--model resnet-small --precision bf16"),
    ("resnet/micro-batches", "--model resnet-small --micro-batch 16"),
    ("resnet/every-1", "--model resnet-small --checkpoint all"),
    ("gpt/clip", "--model gpt-small"),
    ("gpt/bf16", "--model gpt-small --precision bf16"),
    ("gpt/micro-batches", "--model gpt-small --micro-batch 2"),
    ("gpt/every-1", "--model gpt-small --checkpoint all"),
];
const TRAIN: &str = "benches/peers/train.py";
const MEASURE: &str = "benches/peers/measure.py";
const PHOTOS: &str = "benches/peers/photos";
/// Steps of either side in a round.
const STEPS: usize = 20;

/// The last line that train.py prints.
#[derive(Deserialize)]
struct Said {
    step_ms: Median,
    processor_ms: Median,
    peak_bytes: Tensors,
    torch: String,
}

#[derive(Deserialize)]
struct Median {
    median: f64,
}

#[derive(Deserialize)]
struct Tensors {
    /// On the CPU, if requested.
    tensors: Option<u64>,
    /// On a GPU.
    allocated: Option<u64>,
}

/// A Python that can import torch. If there is none, a warning gives the reason.
pub(crate) fn python() -> Option<String> {
    let python = std::env::var("KILN_PYTHON").unwrap_or_else(|_| "python3".into());
    let output = Command::new(&python).args(["-c", "import torch, torchvision"]).output();
    let why = match output {
        Ok(output) if output.status.success() => return Some(python),
        Ok(output) => String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or("it fails").to_owned(),
        Err(error) => error.to_string(),
    };
    tracing::warn!(
        "no peers: '{python}' cannot import torch ({why}); KILN_PYTHON names another, see benches/peers/README.md"
    );
    None
}

/// Takes the steps of those `cases` that have a peer, alternating between both programs.
pub(crate) fn measure(cases: &[Case], device: &str, rounds: usize, python: &str) -> Result<Vec<Peer>> {
    let mut peers = vec![];
    for (name, options) in PEERS {
        if !cases.iter().any(|case| case.to_string() == name) {
            continue;
        }
        tracing::info!("peer of {name}: {rounds} rounds of {STEPS} steps");
        peers.push(pair(name, options, device, rounds, python)?);
    }
    Ok(peers)
}

fn pair(name: &str, options: &str, device: &str, rounds: usize, python: &str) -> Result<Peer> {
    let case = all().into_iter().find(|case| case.to_string() == name).with_context(|| format!("no case {name}"))?;
    let mut kiln = Process::start(&case, device)?;
    let (mut own, mut theirs) = ([vec![], vec![]], [vec![], vec![]]);
    let (mut peak_bytes, mut kiln_peak_bytes, mut version) = (None, 0, String::new());
    for round in 0..rounds {
        let said = train(python, options, device, round == 0)?;
        theirs[0].push(Some(said.step_ms.median / 1e3));
        theirs[1].push(Some(said.processor_ms.median / 1e3));
        peak_bytes = peak_bytes.or(said.peak_bytes.tensors).or(said.peak_bytes.allocated);
        version = format!("torch {}", said.torch);
        let turns = (0..STEPS).map(|_| kiln.turn()).collect::<Result<Vec<_>>>()?;
        let counted = || turns.iter().filter(|turn| turn.counts);
        own[0].push(Spread::of(counted().map(|turn| turn.seconds)).map(|spread| spread.median));
        own[1].push(Spread::of(counted().filter_map(|turn| turn.processor_seconds)).map(|spread| spread.median));
        kiln_peak_bytes = turns.iter().map(|turn| turn.peak_bytes).max().unwrap_or(0).max(kiln_peak_bytes);
    }
    let _ = kiln.finish()?;
    let spread = |values: Vec<f64>| Spread::of(values).with_context(|| format!("{name}: no round counts"));
    Ok(Peer {
        case: name.into(),
        program: format!("train.py {options}"),
        version,
        seconds: spread(theirs[0].iter().flatten().copied().collect())?,
        processor_seconds: spread(theirs[1].iter().flatten().copied().collect())?,
        ratio: spread(ratios(&own[0], &theirs[0]))?,
        processor_ratio: spread(ratios(&own[1], &theirs[1]))?,
        peak_bytes,
        kiln_peak_bytes,
    })
}

/// One run of the peer, with as many threads as Kiln has.
fn train(python: &str, options: &str, device: &str, peak: bool) -> Result<Said> {
    let mut command = Command::new(python);
    command.arg(TRAIN).args(options.split(' ')).args(["--steps", &STEPS.to_string()]);
    if device.starts_with("cuda") {
        command.args(["--device", "cuda"]);
    } else {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        command.args(["--threads", &threads.to_string()]);
        if peak {
            command.arg("--allocator-peak");
        }
    }
    // torch's threads would wait for each other in a busy loop, which slows down other programs on the processor.
    let output = command.env("OMP_WAIT_POLICY", "passive").output().context("cannot run the peer")?;
    let text = String::from_utf8_lossy(&output.stdout);
    match output.status.success().then(|| text.lines().last()).flatten() {
        Some(line) => said(line),
        None => bail!("{TRAIN} {options} failed: {}", String::from_utf8_lossy(&output.stderr).trim()),
    }
}

fn said(line: &str) -> Result<Said> {
    serde_json::from_str(line).with_context(|| format!("{TRAIN} ends with '{line}'"))
}

/// Measures the loading of photographs with measure.py, if photos.py has made them.
pub(crate) fn photographs(python: &str, rounds: usize) -> Result<()> {
    if !Path::new(PHOTOS).join("12mp").is_dir() {
        tracing::info!("no photographs in {PHOTOS}: loaders are not compared; photos.py there makes them");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("loaders.json");
    let mut measuring = Command::new(python);
    measuring.args([MEASURE, "--photos", PHOTOS, "--only", "12mp", "--rounds", &rounds.to_string(), "--kiln"]);
    measuring.arg(std::env::current_exe()?).arg("--out").arg(&out);
    let mut showing = Command::new(python);
    showing.args([MEASURE, "--table"]).arg(&out);
    for command in [&mut measuring, &mut showing] {
        let status = command.status().context("cannot run the peer")?;
        if !status.success() {
            bail!("{MEASURE} failed: {status}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_belongs_to_a_case() {
        let names: Vec<String> = all().iter().map(Case::to_string).collect();
        assert!(PEERS.iter().all(|(name, _)| names.contains(&name.to_string())));
    }

    #[test]
    fn committed_results_of_the_peer_are_understood() {
        let text = include_str!("../../../benches/results/peers-cpu.json");
        let line = text.lines().find(|line| line.contains("\"resnet-small, 1 thread\"")).unwrap();
        let whole: serde_json::Value = serde_json::from_str(line).unwrap();
        let found = said(&whole["result"].to_string()).unwrap();
        assert!(found.step_ms.median > 0.0 && found.processor_ms.median > 0.0);
        assert!(found.peak_bytes.tensors.is_some() && found.torch.starts_with("2."));
        assert!(said("no JSON").is_err_and(|error| error.to_string().contains("no JSON")));
    }
}
