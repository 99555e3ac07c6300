//! Item 10: Kiln's speed, memory and largest batch within a limit, at the sizes of PyTorch's in item 3.

use anyhow::{Result, bail};
use bytesize::ByteSize;
use kiln_memory::{BackendProfile, PREDICTION_MARGIN, fits_within, warm_threads};
use kiln_precision::Precision;
use kiln_training::{Planner, Task, Trainer};
use serde_json::json;

use super::comparison::{Cases, LARGEST, STEPS};
use super::context::Context;
use super::measure::{Peak, apart, mib, quartiles, short, timed};
use super::networks::{Network, whole_batch};

/// The most seconds for compiling, tuning and measuring one batch size. If fewer are left, no further size begins.
const TRIAL: u64 = 20;
/// The pipelines' own norms for clipping.
const IMAGES_CLIP: f64 = 5.0;
const TEXT_CLIP: f64 = 1.0;

pub(crate) fn run(context: &mut Context) -> Result<()> {
    let cases = Cases::new(context)?;
    let profile = kiln_cli::profile::of(&context.device, &context.name)?;
    // PyTorch's limit is one of its allocator, so that neither side includes the driver's context.
    let limit = Limit { bytes: cases.limit, profile: BackendProfile { fixed_bytes: 0, ..profile } };
    let precisions = context.able(&[Precision::BF16, Precision::F32]);
    let (resnet, gpt) = (cases.images.network().clipped(IMAGES_CLIP), cases.text.network().clipped(TEXT_CLIP));

    // The sizes that other items have tuned are first.
    for index in 0..cases.image_batches.len().max(cases.text_batches.len()) {
        for precision in precisions.clone() {
            if let Some(size) = cases.text_batches.get(index) {
                speed(context, &gpt, precision, *size);
            }
            if let Some(size) = cases.image_batches.get(index) {
                speed(context, &resnet, precision, *size);
            }
        }
    }
    let (images, text) = (cases.images.on_burns_layers(), cases.text.on_burns_layers());
    speed(context, &text.network().clipped(TEXT_CLIP), precisions[0], cases.text_batches[0]);
    speed(context, &images.network().clipped(IMAGES_CLIP), precisions[0], cases.image_batches[0]);
    if context.warm {
        return Ok(());
    }
    for precision in precisions {
        let what = format!("{}, {precision}: largest batch", resnet.name);
        context.part(&what, 4, |context| largest(context, &resnet, precision, &limit));
        let what = format!("{}, {precision}: largest batch", gpt.name);
        context.part(&what, 4, |context| largest(context, &gpt, precision, &limit));
    }
    Ok(())
}

/// The memory that a batch must fit into.
struct Limit {
    bytes: u64,
    profile: BackendProfile,
}

fn speed<T: Task<Batch: Sync>>(context: &mut Context, network: &Network<'_, T>, precision: Precision, samples: usize) {
    let what = format!("{}, {precision}, batch {samples}", network.name);
    context.part(&what, 4, |context| steps(context, network, precision, samples));
}

fn steps<T: Task<Batch: Sync>>(
    context: &mut Context,
    network: &Network<'_, T>,
    precision: Precision,
    samples: usize,
) -> Result<()> {
    let (device, plain, gpu) = (context.autodiff(), context.device.clone(), context.gpu());
    let batch = network.batch(samples);
    let rounds = context.pick(20, 3, 1);
    let trainer = || network.trainer(precision, &device, &batch);
    let one = |trainer: &mut Trainer<T>| timed(&plain, || Ok(trainer.step(&batch)?));
    let (_, first) = apart(&plain, || one(&mut trainer()?))?; // kernels are compiled and tuned
    let what = format!("{}, {precision}, batch {samples}", network.name);
    if context.warm {
        context.record.check(what, true, format!("compiled and tuned in {:.1} s", 1e-3 * first));
        return Ok(());
    }
    let (bytes, times, loss) = apart(&plain, || {
        let peak = Peak::start(&plain, gpu);
        let mut trainer = trainer()?;
        for _ in 0..2 {
            let _ = one(&mut trainer)?;
        }
        let (mut times, mut spent, mut loss) = (vec![], 0.0, 0.0);
        // A slow network leaves time for the others.
        while times.len() < rounds && (times.len() < 3 || spent < 4e3) {
            let (report, milliseconds) = one(&mut trainer)?;
            (loss, spent) = (report.loss, spent + milliseconds);
            times.push(milliseconds);
        }
        let bytes = peak.end();
        #[cfg(feature = "cube")]
        if context.on_cuda() {
            let _ = super::launches::record(&mut context.record, &plain, &what, || Ok(trainer.step(&batch)?))?;
        }
        Ok((bytes, times, loss))
    })?;
    let [low, median, high] = quartiles(times);
    let speed = 1e3 * samples as f64 / median;
    let cells = [
        ("who", json!("kiln")),
        ("network", json!(network.name)),
        ("precision", json!(precision.to_string())),
        ("batch", json!(samples)),
        ("samples/s", short(speed)),
        ("ms a step", short(median)),
        ("quartiles, ms", json!(format!("{low:.1} to {high:.1}"))),
        ("memory, MiB", mib(bytes.taken)),
        ("first step, ms", short(first)),
    ];
    context.record.row(STEPS, &cells);
    context.record.check(what, loss.is_finite(), format!("{speed:.1} samples/s; loss {loss} of the last step"));
    Ok(())
}

fn largest<T: Task<Batch: Sync>>(
    context: &mut Context,
    network: &Network<'_, T>,
    precision: Precision,
    limit: &Limit,
) -> Result<()> {
    let (device, plain, gpu) = (context.autodiff(), context.device.clone(), context.gpu());
    let planner = network.builder(precision).planner(&limit.profile, &network.batch(3), 1)?;
    let most = context.pick(4096, 512, 64);
    let Some(predicted) = largest_predicted(&planner, precision, limit.bytes, most)? else {
        bail!("not even one sample is predicted to fit into {}", ByteSize(limit.bytes));
    };
    let (mut best, mut fails): (Option<(usize, u64)>, Option<usize>) = (None, None);
    let mut next = predicted;
    // Two sizes are enough if one of them runs within the limit. Right after threads took scratch memory, both may fail.
    for trial in 0..5 {
        if trial > 0 && context.left().as_secs() < TRIAL || trial > 1 && best.is_some() {
            break;
        }
        let batch = network.batch(next);
        let steps = |count| {
            warm_threads(&plain);
            let peak = Peak::start(&plain, gpu);
            let mut trainer = network.trainer(precision, &device, &batch)?;
            for _ in 0..count {
                let _ = trainer.step(&batch)?;
            }
            anyhow::Ok(peak.end().taken)
        };
        if context.on_cuda() {
            apart(&plain, || steps(1))?; // kernels are compiled and tuned
        }
        let taken = apart(&plain, || steps(2))?;
        if taken <= limit.bytes {
            best = best.max(Some((next, taken)));
        } else {
            fails = Some(fails.map_or(next, |fails| fails.min(next)));
        }
        match following(next, taken, limit.bytes, best.map(|best| best.0), fails, most) {
            Some(size) => next = size,
            None => break,
        }
    }
    let cells = [
        ("who", json!("kiln")),
        ("network", json!(network.name)),
        ("precision", json!(precision.to_string())),
        ("limit, MiB", mib(limit.bytes)),
        ("predicted", json!(predicted)),
        ("ran within", json!(best.map(|best| best.0))),
        ("its memory, MiB", json!(best.map(|best| mib(best.1)))),
        ("was too much", json!(fails)),
    ];
    context.record.row(LARGEST, &cells);
    let says = format!("{predicted} predicted; ran within {:?}, too much {fails:?}", best.map(|best| best.0));
    context.record.check(format!("{}, {precision}: a batch runs within the limit", network.name), best.is_some(), says);
    Ok(())
}

/// The largest batch of at most `most` samples that is predicted to fit.
fn largest_predicted(planner: &Planner, precision: Precision, limit: u64, most: usize) -> Result<Option<usize>> {
    let fits = |samples| anyhow::Ok(fits_within(whole_batch(planner, precision, samples)?.peak_bytes, limit));
    if !fits(1)? {
        return Ok(None);
    }
    let (mut fitting, mut beyond) = (1, most + 1);
    while beyond - fitting > 1 {
        let middle = fitting.midpoint(beyond);
        if fits(middle)? {
            fitting = middle;
        } else {
            beyond = middle;
        }
    }
    Ok(Some(fitting))
}

/// The size to try next, estimated from the memory of the last one. It is nearer to the limit, between the largest size that ran within
/// it and the smallest that did not. `None` if the largest is near enough.
fn following(
    last: usize,
    taken: u64,
    limit: u64,
    best: Option<usize>,
    fails: Option<usize>,
    most: usize,
) -> Option<usize> {
    let guess = (last as f64 * (1.0 - PREDICTION_MARGIN) * limit as f64 / taken.max(1) as f64) as usize;
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
        // 10 bytes a sample and nothing else: the search from above and from below ends at 98.
        assert_eq!(following(200, 2000, 1000, None, Some(200), 4096), Some(98));
        assert_eq!(following(98, 980, 1000, Some(98), Some(200), 4096), None);
        assert_eq!(following(50, 500, 1000, Some(50), None, 4096), Some(98));
        // It returns neither a size that is known to be too large, nor one that was measured.
        assert_eq!(following(50, 100, 1000, Some(50), Some(60), 4096), Some(59));
        assert_eq!(following(59, 100, 1000, Some(59), Some(60), 4096), None);
        assert_eq!(following(60, 100, 1000, Some(60), None, 64), Some(64));
    }
}
