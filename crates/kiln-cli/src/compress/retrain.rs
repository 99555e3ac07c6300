//! `compress prune`, `shrink` and `distill`: models that are made smaller and trained.

use std::process::ExitCode;

use anyhow::{Result, bail};
use bytesize::ByteSize;
use kiln_compression::{
    ChannelPruning, Channels, Gradual, Scope, Shapes, reshape_like, shrink as without_channels, sparsity,
};
use kiln_report::CompressionPage;
use kiln_training::Recompute;

use super::before::{Compressible, before, dense_bytes, written};
use crate::cli::{CompressDistill, CompressPrune, CompressShrink};
use crate::pipelines::{CompressionSettings, Findings, PruneSettings, SettingsOf, TeacherSettings};
use crate::usage::Usage;
use crate::values::absolute;

/// Default numbers of passes over the data: for a pruned model, and for one that lost channels.
const EPOCHS: u64 = 6;
const SHRUNK_EPOCHS: u64 = 10;
/// Shares of the run's highest learning rate.
const RATE: f64 = 0.1;
const SHRUNK_RATE: f64 = 0.5;
/// Updates of the masks while sparsity grows, and the share of the steps that it grows in.
const UPDATES: usize = 40;
const GROWS: f64 = 0.6;

fn shown(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

/// The figures of a smaller model, beside the metric and the bytes of the one before.
fn findings<P: Compressible>(
    was: f64,
    more: &[(&str, f64)],
    [dense, bytes]: [u64; 2],
    page: CompressionPage,
) -> Findings {
    let bytes = [("bytes_before", dense as f64), ("bytes", bytes as f64)];
    let named = more.iter().copied().chain(bytes).map(|(name, value)| (name.to_owned(), value));
    let figures = [(format!("{}_before", P::METRIC), was)].into_iter().chain(named).collect();
    Findings { figures, files: vec![written(page)], ..Findings::default() }
}

pub(super) fn prune<P: Compressible>(settings: SettingsOf<P>, arguments: &CompressPrune) -> Result<ExitCode> {
    let compress = &arguments.compress;
    let (mut before, _) = before::<P>(settings, compress)?;
    before.set_length(compress, EPOCHS, RATE);
    let steps = before.steps();
    let to_step = ((steps as f64 * GROWS) as usize).max(1);
    let every = (to_step / UPDATES).max(1);
    let schedule = Gradual { from_step: 0, to_step, every, initial: 0.0, final_sparsity: arguments.sparsity };
    let scope = if arguments.per_layer { Scope::Layer } else { Scope::Global };
    let pattern = arguments.pattern.as_deref().map(pattern).transpose()?;
    let settings = PruneSettings { schedule, scope, pattern, skip: arguments.skip.clone() };
    before.compression().prune = Some(settings);
    let (was, dense) = (before.metric, dense_bytes(&before.model));
    let start = before.model.clone();
    before.train(Some(start), compress, move |model, _, _| {
        let sparsity = sparsity(model);
        // Each weight of a pruned layer has a bit that says whether it is kept.
        let pruned: usize = sparsity.layers.iter().map(|layer| layer.pruned).sum();
        let bits: usize = sparsity.layers.iter().map(|layer| layer.total).sum();
        let bytes = dense - 4 * pruned as u64 + (bits as u64).div_ceil(8);
        let page = CompressionPage {
            title: "Pruned weights".into(),
            figures: vec![
                ["sparsity".into(), "0".into(), format!("{:.4}", sparsity.total())],
                ["bytes, without zeros".into(), shown(dense), shown(bytes)],
            ],
            facts: vec![(format!("{} before", P::METRIC), format!("{was:.4}"))],
            columns: ["layer", "weights", "left out", "share"].map(str::to_owned).into(),
            rows: sparsity
                .layers
                .iter()
                .map(|layer| {
                    let share = format!("{:.3}", layer.ratio());
                    vec![layer.path.clone(), layer.total.to_string(), layer.pruned.to_string(), share]
                })
                .collect(),
        };
        Ok(findings::<P>(was, &[("sparsity", sparsity.total())], [dense, bytes], page))
    })
}

/// `2:4` as its two numbers.
fn pattern(text: &str) -> Result<[usize; 2]> {
    let numbers = text.split_once(':').and_then(|(n, m)| Some([n.parse().ok()?, m.parse().ok()?]));
    match numbers {
        Some([n, m]) if 0 < n && n < m => Ok([n, m]),
        _ => bail!(Usage(format!("--pattern is '{text}', expected N:M with N below M, as in 2:4"))),
    }
}

pub(super) fn shrink<P: Compressible>(settings: SettingsOf<P>, arguments: &CompressShrink) -> Result<ExitCode> {
    let compress = &arguments.compress;
    let (mut before, _) = before::<P>(settings, compress)?;
    before.set_length(compress, SHRUNK_EPOCHS, SHRUNK_RATE);
    let settings = before.settings.clone();
    let shapes = Shapes::of(&before.model);
    let channels = Channels::of(
        |device| {
            // These settings have made a model above.
            let plain = P::plain(&settings.model, false, device).unwrap_or_else(|error| panic!("{error}"));
            reshape_like(plain, &shapes).unwrap_or_else(|error| panic!("{error}"))
        },
        |model: &P::Model, device| P::forward_once(&settings, model, device),
    )?;
    let round_to = arguments.round_to as usize;
    let how = ChannelPruning::MultiplyAdds { left: arguments.multiply_adds, round_to };
    let kept = channels.choose(&before.model, &how).map_err(|error| Usage(error.to_string()))?;
    let [was_macs, macs] = [channels.multiply_adds(&channels.all()), channels.multiply_adds(&kept)];
    let dense = dense_bytes(&before.model);
    let small = without_channels(before.model.clone(), &kept)?;
    let bytes = dense_bytes(&small);
    tracing::info!("{was_macs} multiply-adds become {macs}, {} become {}", shown(dense), shown(bytes));
    let (old, new) = (Shapes::of(&before.model), Shapes::of(&small));
    let rows: Vec<Vec<String>> = old
        .0
        .iter()
        .filter(|(path, shape)| shape.len() > 1 && new.0.get(*path) != Some(shape))
        .map(|(path, shape)| vec![path.clone(), format!("{shape:?}"), format!("{:?}", new.0[path])])
        .collect();
    before.compression().shapes = Some(new);
    let was = before.metric;
    before.train(Some(small), compress, move |_, _, _| {
        let page = CompressionPage {
            title: "Removed channels".into(),
            figures: vec![
                ["multiply-adds".into(), was_macs.to_string(), macs.to_string()],
                ["bytes".into(), shown(dense), shown(bytes)],
            ],
            facts: vec![(format!("{} before", P::METRIC), format!("{was:.4}"))],
            columns: ["weight", "before", "after"].map(str::to_owned).into(),
            rows: rows.clone(),
        };
        let work = [("multiply_adds_before", was_macs as f64), ("multiply_adds", macs as f64)];
        Ok(findings::<P>(was, &work, [dense, bytes], page))
    })
}

pub(super) fn distill<P: Compressible>(settings: SettingsOf<P>, arguments: &CompressDistill) -> Result<ExitCode> {
    let compress = &arguments.compress;
    let (mut before, _) = before::<P>(settings, compress)?;
    let (epochs, steps) = (before.settings.run.epochs, before.settings.run.max_steps);
    // A student is trained from the beginning, as its teacher was.
    before.set_length(compress, epochs, 1.0);
    if (compress.epochs, compress.max_steps) == (None, None) {
        before.settings.run.max_steps = steps;
    }
    // A plan is for the blocks of its own model.
    before.settings.run.checkpointing = Recompute::None;
    P::make_student(&mut before.settings, arguments.model.as_deref(), arguments.width)?;
    let checkpoint = absolute(&compress.run).map_err(Usage)?.into();
    let teacher = TeacherSettings { checkpoint, temperature: arguments.temperature, share: arguments.share };
    *before.compression() = CompressionSettings { teacher: Some(teacher), ..CompressionSettings::default() };
    let (was, dense) = (before.metric, dense_bytes(&before.model));
    before.train(None, compress, move |model, _, _| {
        let bytes = dense_bytes(model);
        let page = CompressionPage {
            title: "A student and its teacher".into(),
            figures: vec![["bytes".into(), shown(dense), shown(bytes)]],
            facts: vec![(format!("{} of the teacher", P::METRIC), format!("{was:.4}"))],
            columns: vec![],
            rows: vec![],
        };
        Ok(findings::<P>(was, &[], [dense, bytes], page))
    })
}
