//! `cargo xtask bench`: the cost of Kiln, measured on whole steps.

mod arguments;
mod case;
mod chart;
mod child;
mod compare;
mod functions;
mod measure;
mod peers;
mod profile;
mod publish;
mod results;
mod statistics;
mod steps;
mod table;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};

use case::{Case, Group, Work, all, chosen};
use compare::{Verdict, compare};
use publish::COMMITTED;
use results::Results;

use crate::provenance::Provenance;
use kiln_cli::output::print_json;
use kiln_cli::usage::Usage;

pub use arguments::BenchArguments;

const QUICK_ROUNDS: usize = 3;
const PEER_ROUNDS: usize = 3;

/// Measures, lists or publishes, as the arguments say.
///
/// # Errors
/// Those of a wrong call, and of a case that fails.
pub fn run(arguments: &BenchArguments) -> Result<ExitCode> {
    let device = arguments.device.as_str();
    if arguments.list {
        let mut out = std::io::stdout().lock();
        for case in all() {
            writeln!(out, "{case:<22} {}", case.what)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.readme {
        publish::publish(&workspace()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(name) = &arguments.case {
        let Some(case) = all().into_iter().find(|case| case.to_string() == *name) else {
            bail!(Usage(format!("no case '{name}'")));
        };
        return match case.work {
            _ if arguments.profile => profile::show(&case, device),
            Work::Step(takes) if case.group == Group::Resnet => {
                let (run, opened) = steps::resnet(&case, device, 0)?;
                let (case, device) = (case.clone(), device.to_owned());
                steps::turns(run, &opened, takes, move |rank| Ok(steps::resnet(&case, &device, rank)?.0))
            }
            Work::Step(takes) => {
                let (run, opened) = steps::gpt(&case, device, 0)?;
                let (case, device) = (case.clone(), device.to_owned());
                steps::turns(run, &opened, takes, move |rank| Ok(steps::gpt(&case, &device, rank)?.0))
            }
            Work::Function(function) => functions::run(function, device),
        };
    }
    let cases = chosen(all(), &arguments.names)?;
    if arguments.profile {
        profile::run(&cases, !arguments.names.is_empty(), device)?;
        return Ok(ExitCode::SUCCESS);
    }
    bench(arguments, &cases)
}

fn bench(arguments: &BenchArguments, cases: &[Case]) -> Result<ExitCode> {
    // A wrong file is reported before minutes of measuring.
    let threshold = arguments.threshold / 100.0;
    ensure!(
        threshold >= 0.0 && threshold.is_finite(),
        Usage(format!("--threshold is {}, expected at least 0", arguments.threshold))
    );
    let baseline = arguments.baseline.as_deref().map(Results::read).transpose()?;
    if let Some(baseline) = &baseline
        && !cases.iter().any(|case| baseline.case(&case.to_string()).is_some())
    {
        bail!("the baseline has none of the cases that are to be measured");
    }
    let out = out(arguments)?;
    let rounds = match arguments.rounds {
        Some(rounds) => rounds as usize,
        None if arguments.quick => QUICK_ROUNDS,
        None => 30,
    };
    ensure!(rounds > 0, Usage("--rounds is 0, expected at least 1".into()));
    let python = if arguments.peers { peers::python() } else { None };

    let mut provenance = Provenance::collect(&arguments.device);
    let measured = measure::measure(cases, &arguments.device, rounds)?;
    provenance.end();
    let mut results = Results::new(provenance, measured);
    if let Some(python) = &python {
        let rounds = if arguments.quick { 1 } else { PEER_ROUNDS };
        results.peers = peers::measure(cases, &arguments.device, rounds, python)?;
    }
    if let Some(out) = &out {
        results.write(out)?;
        tracing::info!("wrote {}", out.display());
    }
    match arguments.json {
        true => print_json(&results)?,
        false => show(&results)?,
    }
    if let Some(python) = &python {
        peers::photographs(python, if arguments.quick { 1 } else { PEER_ROUNDS })?;
    }
    match baseline {
        Some(baseline) => judge(&baseline, &results, threshold),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn show(results: &Results) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", results.provenance.line())?;
    for table in Group::ALL.into_iter().filter_map(|group| table::group(results, group)) {
        write!(out, "\n{table}")?;
    }
    if !results.peers.is_empty() {
        write!(out, "\n{}", table::peers(&results.peers))?;
    }
    Ok(())
}

/// Compares with the baseline. The exit status is 1 if a figure got worse. The table goes to stderr, so that stdout has only the results.
fn judge(baseline: &Results, results: &Results, threshold: f64) -> Result<ExitCode> {
    let compared = compare(baseline, results, threshold);
    let mut out = std::io::stderr().lock();
    writeln!(out, "\nbaseline: {}\n", baseline.provenance.line())?;
    write!(out, "{}", table::compared(&compared))?;
    let worse = compared.iter().filter(|one| one.verdict == Verdict::Worse).count();
    let percent = 100.0 * threshold;
    writeln!(out, "\n{worse} of {} figures are worse by more than {percent} % and their spread", compared.len())?;
    Ok(ExitCode::from(u8::from(worse > 0)))
}

/// The file for the results: `--out`, or the committed file for a run of all cases. Otherwise `None`.
fn out(arguments: &BenchArguments) -> Result<Option<PathBuf>> {
    let whole = arguments.names.is_empty() && !arguments.quick && arguments.baseline.is_none();
    let committed = match arguments.device.split_once(':') {
        Some((kind, _)) => Path::new(COMMITTED).with_file_name(format!("{kind}.json")),
        None => PathBuf::from(COMMITTED),
    };
    let there = |path: &Path| path.parent().is_some_and(|folder| folder.as_os_str().is_empty() || folder.is_dir());
    match &arguments.out {
        Some(path) if there(path) => Ok(Some(path.clone())),
        Some(path) => bail!(Usage(format!("--out '{}': its directory does not exist", path.display()))),
        None => Ok(Some(committed).filter(|path| whole && there(path))),
    }
}

/// The project's directory, in which the program must be called.
fn workspace() -> Result<PathBuf> {
    let here = PathBuf::from(".");
    ensure!(
        here.join("benches/results").is_dir(),
        Usage("no benches/results here, expected the project's own directory".into())
    );
    Ok(here)
}
