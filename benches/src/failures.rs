//! `cargo xtask failures`: small exact runs in which memory is refused at random places, all of which must end with the same weights.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Int, Tensor, TensorData};
use clap::Args;
use kiln_cli::usage::Usage;
use kiln_models::{Gpt, GptBlock, GptConfig};
use kiln_recovery::{Injector, Patience};
use kiln_training::{Error, Exact, LossFn, OptimizerConfig, Pass, StepReport, Trainer};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sha2::{Digest, Sha256};

use crate::lines;

/// Steps of a run.
const STEPS: u64 = 20;
const VOCAB: usize = 32;
/// Samples of a batch, and tokens of a sample.
const SHAPE: [usize; 2] = [4, 12];
/// The chances of a failure at a boundary of a step, one after the other.
const CHANCES: [f64; 4] = [0.01, 0.05, 0.1, 0.2];

/// A small GPT with dropout is trained for 20 steps, again and again. At each boundary of a step memory is refused with a chance of 1, 5, 10 or 20
/// %. A step that gives up is taken again. All runs must take each step once, and end with the weights of a run without failures. Ctrl-C ends the
/// command; the same command goes on. The exit status is 1 when a run differs.
#[derive(Args)]
pub struct FailuresArguments {
    /// Number of failures
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub failures: u64,
    /// What the places of failures depend on
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// The runs that have ended, a line for each [default: failures-SEED.tsv]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// A run that has ended.
#[derive(Clone, Debug, PartialEq)]
struct Ended {
    /// Failures in it.
    failures: u64,
    /// How often a step or its update ended with an error, and was taken up again.
    given_up: u64,
    /// The SHA-256 of its weights.
    weights: String,
}

/// Takes runs until they have had so many failures, and compares their weights.
///
/// # Errors
/// Those of the file, and of a run that ends for another reason than memory.
pub fn run(arguments: &FailuresArguments) -> Result<ExitCode> {
    ensure!(arguments.failures > 0, Usage("--failures is 0, expected at least 1".into()));
    let path = arguments.out.clone().unwrap_or_else(|| format!("failures-{}.tsv", arguments.seed).into());
    let mut ended = read(&path, arguments.seed)?;
    let expected = taken(Injector::off())?.weights;
    let failures = |ended: &[Ended]| ended.iter().map(|ended| ended.failures).sum::<u64>();
    while failures(&ended) < arguments.failures {
        let run = ended.len() as u64;
        let chance = CHANCES[ended.len() % CHANCES.len()];
        let seed = arguments.seed.wrapping_mul(1 << 32).wrapping_add(run);
        let found = taken(Injector::chance(chance, seed)?).with_context(|| format!("run {run}"))?;
        let Ended { failures: had, given_up, weights } = &found;
        lines::append(&path, &format!("{}\t{had}\t{given_up}\t{weights}", arguments.seed))?;
        ended.push(found);
        if ended.len().is_multiple_of(100) {
            tracing::info!("{} failures in {} runs", failures(&ended), ended.len());
        }
    }
    let differ = ended.iter().filter(|ended| ended.weights != expected).count();
    let given_up: u64 = ended.iter().map(|ended| ended.given_up).sum();
    let text = format!(
        "{} failures in {} runs of {STEPS} steps, which were taken up again {given_up} times: {}\n",
        failures(&ended),
        ended.len(),
        if differ == 0 { format!("the same weights, {expected:.12}..") } else { format!("{differ} RUNS DIFFER") }
    );
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(ExitCode::from(u8::from(differ > 0)))
}

/// The runs in a file.
fn read(path: &Path, seed: u64) -> Result<Vec<Ended>> {
    let expected = format!("seed {seed}, failures, errors and weights of a run, between tabs");
    lines::read(path, &expected, |line| {
        let [of, failures, given_up, weights] = line.split('\t').collect::<Vec<_>>().try_into().ok()?;
        (of.parse() == Ok(seed)).then_some(())?;
        Some(Ended { failures: failures.parse().ok()?, given_up: given_up.parse().ok()?, weights: weights.to_owned() })
    })
}

/// Takes a run, without a line for each failure.
fn taken(faults: Injector) -> Result<Ended> {
    tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::new(), || taken_aloud(faults))
}

fn taken_aloud(faults: Injector) -> Result<Ended> {
    let config = GptConfig { layers: 2, heads: 2, width: 32, ..GptConfig::tiny(VOCAB, SHAPE[1]) }.with_dropout(0.1);
    let task = LossFn::new(|pass: &Pass<'_, Gpt>, tokens: &TensorData| {
        let (model, tokens): (_, Tensor<2, Int>) = (pass.model(), pass.input(tokens));
        let x = pass.chain(&model.blocks(), model.embed(tokens.clone()), GptBlock::forward);
        model.loss(x, tokens)
    });
    let faults = Arc::new(faults);
    let guard = faults.clone();
    let mut trainer = Trainer::try_builder(task, |device| config.init(device))
        .with_optimizer(|model| OptimizerConfig::adamw().groups(model))
        .with_schedule(1e-2)
        .with_clip_norm(1.0)
        .with_patience(Patience::new(Duration::ZERO))
        .with_guard(move |boundary| guard.check(boundary.name()))
        .with(|settings| settings.memory.exact = Exact::Always)
        .build(&Device::flex(), &batch(0))?;
    let (mut given_up, mut hash) = (0, Sha256::new());
    for step in 0..STEPS {
        let report = step_until_done(&mut trainer, &batch(step), &mut given_up)?;
        ensure!(report.step == step + 1, "step {} is reported as {}", step + 1, report.step);
    }
    trainer.model().visit(&mut Values(&mut hash));
    let weights = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Ended { failures: faults.injected(), given_up, weights })
}

/// Takes a step, as a program does that has made room after each error.
fn step_until_done<T: kiln_training::Task<Batch = TensorData>>(
    trainer: &mut Trainer<T>,
    batch: &TensorData,
    given_up: &mut u64,
) -> Result<StepReport> {
    let mut tried = trainer.step(batch);
    loop {
        tried = match tried {
            Ok(report) => return Ok(report),
            Err(Error::Exhausted { .. } | Error::Memory(_)) => trainer.step(batch),
            Err(Error::Unfinished { .. }) => trainer.complete_update(),
            Err(error) => return Err(error.into()),
        };
        *given_up += 1;
    }
}

/// The tokens of a step.
fn batch(step: u64) -> TensorData {
    let mut random = StdRng::seed_from_u64(step);
    let tokens: Vec<i64> = (0..SHAPE.iter().product()).map(|_| random.random_range(0..VOCAB as i64)).collect();
    TensorData::new(tokens, SHAPE)
}

/// Adds parameters to a hash.
struct Values<'a>(&'a mut Sha256);

impl ModuleVisitor for Values<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.update(param.val().into_data().as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A hundredth of what the command does.
    #[test]
    fn ten_thousand_failures_lose_no_step() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("runs.tsv");
        let take = |failures| {
            let arguments = FailuresArguments { failures, seed: 7, out: Some(out.clone()) };
            assert_eq!(run(&arguments).unwrap(), ExitCode::SUCCESS);
            read(&out, 7).unwrap()
        };
        let first = take(100);
        // A command that was killed goes on.
        let text = fs::read_to_string(&out).unwrap();
        fs::write(&out, format!("{text}7\t12")).unwrap();
        let all = take(10_000);
        assert_eq!(all[..first.len()], first);
        assert!(all.iter().all(|ended| ended.weights == all[0].weights));
        assert!(all.iter().any(|ended| ended.given_up > 0) && all.iter().any(|ended| ended.given_up == 0));
        // The last line is another run's.
        fs::write(&out, "7\t5\t0\tabc\n").unwrap();
        let arguments = |seed| FailuresArguments { failures: 5, seed, out: Some(out.clone()) };
        assert_eq!(run(&arguments(7)).unwrap(), ExitCode::from(1));
        // Files of another seed, and of another program, stay as they are.
        for text in ["7\t5\t0\tabc\n", "notes of mine, without an end"] {
            fs::write(&out, text).unwrap();
            let refused = run(&arguments(8)).unwrap_err().to_string();
            assert!(refused.contains("expected seed 8, failures"), "{refused}");
            assert_eq!(fs::read_to_string(&out).unwrap(), text);
        }
    }
}
