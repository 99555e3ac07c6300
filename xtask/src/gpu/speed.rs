//! Item 10: Kiln's speed, memory and largest batch within a limit, at the sizes of PyTorch's in item 3.

use anyhow::{Result, bail};
use burn::tensor::Device;
use kiln_memory::BackendProfile;
use kiln_precision::Precision;
use kiln_training::{OptimizerConfig, StepSettings, Trainer, step};
use serde_json::json;

use super::beside::{Cases, LARGEST, STEPS};
use super::context::Context;
use super::measure::{MIB, Peak, apart, mib, quartiles, short, timed};
use super::models::{classify, predict, settings};
use crate::train::checkpointing::Checkpointed;
use crate::train::drive::Init;
use crate::train::recorded::Recorded;

/// Seconds that a batch size takes to be compiled, tuned and measured, at most: with fewer left no other is tried.
const TRIAL: u64 = 20;

pub(crate) fn run(context: &mut Context) -> Result<()> {
    let cases = Cases::new(context)?;
    let (images, text, limit) = (&cases.images, &cases.text, cases.limit);
    let profile = crate::profile::of(&context.device, &context.name)?;
    // PyTorch's limit is one of its allocator as well: the driver's context is in neither.
    let profile = BackendProfile { fixed_bytes: 0, ..profile };
    let precisions = [Precision::BF16, Precision::F32];
    let resnets: Init<'_, _> = &|device: &Device| images.config.init(device);
    let gpts: Init<'_, _> = &|device: &Device| text.config.init(device);

    // The sizes that other items have tuned come first.
    for index in 0..cases.image_batches.len().max(cases.text_batches.len()) {
        for precision in precisions {
            let (resnet, gpt) = setups(context, precision);
            if let Some(size) = cases.image_batches.get(index) {
                context.part(&format!("{}, {precision}, batch {size}", images.name), 4, |context| {
                    speed(context, &images.name, &classify(), &images.batch(*size), &resnet, resnets)
                });
            }
            if let Some(size) = cases.text_batches.get(index) {
                context.part(&format!("{}, {precision}, batch {size}", text.name), 4, |context| {
                    speed(context, &text.name, &predict(), &text.batch(*size), &gpt, gpts)
                });
            }
        }
    }
    for precision in precisions {
        let (resnet, gpt) = setups(context, precision);
        context.part(&format!("{}, {precision}: largest batch", images.name), 4, |context| {
            largest(context, &images.name, &classify(), &images.batch(1), &resnet, resnets, limit, &profile)
        });
        context.part(&format!("{}, {precision}: largest batch", text.name), 4, |context| {
            largest(context, &text.name, &predict(), &text.batch(1), &gpt, gpts, limit, &profile)
        });
    }
    Ok(())
}

/// The pipelines' own optimizers, with clipping as they do.
fn setups(context: &Context, precision: Precision) -> (StepSettings, StepSettings) {
    let device = context.autodiff();
    let of = |optimizer, norm| StepSettings { max_norm: Some(norm), ..settings(optimizer, precision, &device) };
    (of(OptimizerConfig::sgd(), 5.0), of(OptimizerConfig::adamw(), 1.0))
}

fn speed<T: Checkpointed<Batch: Sync> + Sync>(
    context: &mut Context,
    name: &str,
    task: &T,
    batch: &T::Batch,
    settings: &StepSettings,
    init: Init<'_, T::Model>,
) -> Result<()> {
    let (device, plain, card) = (context.autodiff(), context.device.clone(), context.card());
    let samples = task.samples(batch);
    let rounds = context.pick(20, 3, 1);
    device.seed(1);
    let trainer = || anyhow::Ok(Trainer::new(init(&device)?, 0, settings.clone())?);
    let one = |trainer: &mut Trainer<_>| timed(&plain, || Ok(step(task, trainer, batch)?)).map(|(_, time)| time);
    let first = apart(&plain, || one(&mut trainer()?))?; // kernels are compiled and tuned
    let (bytes, times) = apart(&plain, || {
        let peak = Peak::start(&plain, card);
        let mut trainer = trainer()?;
        for _ in 0..2 {
            one(&mut trainer)?;
        }
        let (mut times, mut spent) = (vec![], 0.0);
        // A slow network leaves time for the others.
        while times.len() < rounds && (times.len() < 3 || spent < 4e3) {
            times.push(one(&mut trainer)?);
            spent += times[times.len() - 1];
        }
        Ok((peak.end(), times))
    })?;
    let [low, median, high] = quartiles(times);
    let cells = [
        ("who", json!("kiln")),
        ("network", json!(name)),
        ("precision", json!(settings.policy.compute().to_string())),
        ("batch", json!(samples)),
        ("samples/s", short(1e3 * samples as f64 / median)),
        ("ms a step", short(median)),
        ("quartiles, ms", json!(format!("{low:.1} to {high:.1}"))),
        ("memory, MiB", mib(bytes.taken)),
        ("first step, ms", short(first)),
    ];
    context.record.row(STEPS, &cells);
    let what = format!("{name}, {}, batch {samples}", settings.policy.compute());
    context.record.check(what, median > 0.0, format!("{:.1} samples/s", 1e3 * samples as f64 / median));
    Ok(())
}

#[allow(clippy::too_many_arguments, reason = "a network, how it is trained, and what it may take")]
fn largest<T: Checkpointed<Batch: Sync> + Sync>(
    context: &mut Context,
    name: &str,
    task: &T,
    sample: &T::Batch,
    settings: &StepSettings,
    init: Init<'_, T::Model>,
    limit: u64,
    profile: &BackendProfile,
) -> Result<()>
where
    T::Model: 'static,
{
    let (device, plain, card) = (context.autodiff(), context.device.clone(), context.card());
    let recorded = Recorded::of(task, settings, &task.repeated(sample, 3), init)?;
    let whole = recorded.trace(1, 1);
    let most = context.pick(4096, 512, 64);
    let Some(predicted) = whole.largest_batch(limit - limit / 50, most, profile)? else {
        bail!("not even one sample is predicted to fit into {:.0} MiB", limit as f64 / MIB);
    };
    let (mut best, mut fails): (Option<(usize, u64)>, Option<usize>) = (None, None);
    let mut next = predicted;
    for trial in 0..2 {
        if trial > 0 && context.left().as_secs() < TRIAL {
            break;
        }
        let batch = task.repeated(sample, next);
        let steps = |count| {
            let peak = Peak::start(&plain, card);
            let mut trainer = Trainer::new(init(&device)?, 0, settings.clone())?;
            for _ in 0..count {
                let _ = step(task, &mut trainer, &batch)?;
            }
            anyhow::Ok(peak.end().taken)
        };
        if context.on_cuda() {
            apart(&plain, || steps(1))?; // kernels are compiled and tuned
        }
        let taken = apart(&plain, || steps(2))?;
        if taken <= limit {
            best = best.max(Some((next, taken)));
        } else {
            fails = Some(fails.map_or(next, |fails| fails.min(next)));
        }
        match following(next, taken, limit, best.map(|best| best.0), fails, most) {
            Some(size) => next = size,
            None => break,
        }
    }
    let cells = [
        ("who", json!("kiln")),
        ("network", json!(name)),
        ("precision", json!(settings.policy.compute().to_string())),
        ("limit, MiB", mib(limit)),
        ("predicted", json!(predicted)),
        ("ran within", json!(best.map(|best| best.0))),
        ("its memory, MiB", json!(best.map(|best| mib(best.1)))),
        ("was too much", json!(fails)),
    ];
    context.record.row(LARGEST, &cells);
    let says = format!("{predicted} predicted; ran within {:?}, too much {fails:?}", best.map(|best| best.0));
    context.record.check(
        format!("{name}, {}: a batch runs within the limit", settings.policy.compute()),
        best.is_some(),
        says,
    );
    Ok(())
}

/// The size to try next, from what the last one took: nearer to the limit, between the largest that ran within and the
/// smallest that did not. None when that is near enough.
fn following(
    last: usize,
    taken: u64,
    limit: u64,
    best: Option<usize>,
    fails: Option<usize>,
    most: usize,
) -> Option<usize> {
    let guess = (last as f64 * 0.98 * limit as f64 / taken.max(1) as f64) as usize;
    let above = best.map_or(1, |best| best + 1);
    let below = fails.map_or(most, |fails| fails - 1);
    let near = |best: usize| guess.abs_diff(best) <= best / 50;
    if above > below || best.is_some_and(near) { None } else { Some(guess.clamp(above, below)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_goes_towards_the_limit_and_ends() {
        // 10 a sample, nothing else: from above and from below to 98 and no further.
        assert_eq!(following(200, 2000, 1000, None, Some(200), 4096), Some(98));
        assert_eq!(following(98, 980, 1000, Some(98), Some(200), 4096), None);
        assert_eq!(following(50, 500, 1000, Some(50), None, 4096), Some(98));
        // Never what is known to be too much, nor what has run.
        assert_eq!(following(50, 100, 1000, Some(50), Some(60), 4096), Some(59));
        assert_eq!(following(59, 100, 1000, Some(59), Some(60), 4096), None);
        assert_eq!(following(60, 100, 1000, Some(60), None, 64), Some(64));
    }
}
