//! Item 7: a step that runs out of memory at its beginning, in its backward pass, in its update, and throughout.
//!
//! On a GPU the memory is really occupied, by tensors of other threads. The CPU device cannot survive a failed allocation, so that the
//! failures are injected there. That tests the list, but not a device.

use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, anyhow};
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use bytesize::ByteSize;
use kiln_data::ImageBatch;
use kiln_memory::{Meter, Span};
use kiln_models::Classifier;
use kiln_precision::Precision;
use kiln_recovery::{Failure, Injector, Kind, reclaim};
use kiln_training::{Boundary, Pass, StepReport, Task, Trainer, TrainerBuilder};
use serde_json::json;

use super::ballast::Ballast;
use super::context::Context;
use super::failures::{caught, one_line};
use super::measure::{Difference, Peak, apart, difference, mib, parameters_of, settle, short, used};
use super::messages::{self, Message};
use super::networks::{Images, Network};
use kiln_cli::HEAP;
use kiln_cli::pipelines::Classify;

/// The most seconds for compiling and tuning the first batch size. If fewer are left, no other size begins.
const TUNING: u64 = 25;

/// The parameters of a recovered step, relative to those of the undisturbed one.
const TOLERANCE: f64 = 1e-5;

pub(crate) fn run(context: &mut Context) -> Result<()> {
    let images = Images::new(context, "resnet18")?;
    let batch = images.batch(context.pick(64, 32, 32));
    let (device, plain, gpu) = (context.autodiff(), context.device.clone(), context.gpu());
    let network = images.network();
    let start = Start { model: network.model(&device)?, network };

    // The sizes that the batch may be cut to are compiled and tuned while there is memory.
    for size in [batch.len(), batch.len() / 2, batch.len() / 4] {
        if size < batch.len() && context.left().as_secs() < TUNING {
            context.record.note(format!("micro-batches of {size} are not tuned beforehand: the item's time is short"));
            continue;
        }
        let part = batch.slice(0..size);
        let _ = apart(&plain, || Ok(start.builder().build(&device, &part)?.step(&part)?))?;
    }
    let (need, expected) = apart(&plain, || {
        let peak = Peak::start(&plain, gpu);
        let mut undisturbed = start.builder().build(&device, &batch)?;
        let report = undisturbed.step(&batch)?;
        let need = peak.end().taken;
        Ok((need, (report, parameters_of(undisturbed.model())?)))
    })?;
    context.record.note(format!("the undisturbed step takes {}", ByteSize(need)));

    for boundary in [Boundary::CopyIn, Boundary::Forward, Boundary::Update] {
        let name = match boundary {
            Boundary::CopyIn => "before the forward pass",
            Boundary::Forward => "before the backward pass",
            _ => "before the update",
        };
        context.part(name, 6, |context| {
            let builder = match context.on_cuda() {
                true => start.builder().with_guard(taking_all_memory_at(boundary, plain.clone(), gpu)),
                false => start.builder().with_guard(failing_at(boundary)),
            };
            let mut trainer = builder.build(&device, &batch)?;
            disturbed(context, name, &mut trainer, &batch, &expected)
        });
    }
    context.part("throughout", 6, |context| throughout(context, &start, &batch, need, &expected));
    context.part("afterwards", 2, |context| {
        settle(&plain);
        let report = start.builder().build(&device, &batch)?.step(&batch)?;
        let says = format!("loss {} as in the undisturbed step, {}", report.loss, expected.0.loss);
        context.record.check("the device is as before", (report.loss - expected.0.loss).abs() <= 1e-6, says);
        Ok(())
    });
    // This part is last, because failures of all kinds are combined in it.
    if context.on_cuda() {
        context.part("messages", 6, |context| texts(context, &start.model, &batch));
    }
    Ok(())
}

/// The network and the parameters that every trainer of the item starts from.
struct Start<'a> {
    network: Network<'a, Classify>,
    model: Classifier,
}

impl Start<'_> {
    /// A trainer with recovery.
    fn builder(&self) -> TrainerBuilder<'_, Classify> {
        self.network.builder_from(&self.model, Precision::F32).with_prediction(false)
    }
}

/// Injects a failure at the first `boundary`.
fn failing_at(boundary: Boundary) -> impl Fn(Boundary) -> Result<(), Failure> {
    let faults = Injector::calls([1]).only_at(boundary.name());
    move |boundary| faults.check(boundary.name())
}

/// Occupies all memory at the first `boundary`, and releases it when the step is tried again. In the update it does so after some chunks,
/// because the first ones may use memory that earlier chunks freed.
fn taking_all_memory_at(
    boundary: Boundary,
    device: Device,
    gpu: Option<u32>,
) -> impl Fn(Boundary) -> Result<(), Failure> {
    enum State {
        Armed,
        Filled(Ballast, usize),
        Done,
    }
    let gpu = gpu.unwrap_or(0);
    let state = Mutex::new(State::Armed);
    move |at| {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = match std::mem::replace(&mut *state, State::Done) {
            State::Armed if at == boundary => {
                settle(&device);
                match full(&device, gpu) {
                    Ok(ballast) => State::Filled(ballast, if boundary == Boundary::Update { 3 } else { 0 }),
                    Err(error) => {
                        tracing::warn!("{error:#}");
                        State::Done
                    }
                }
            }
            State::Filled(ballast, left) if at == boundary || at == Boundary::CopyIn => match left {
                0 => State::Done,
                left => State::Filled(ballast, left - 1),
            },
            state => state,
        };
        Ok(())
    }
}

/// Fails if the heap exceeds `limit` bytes above the present live bytes: nothing else limits the heap.
fn limiting_the_heap_to(limit: u64) -> impl Fn(Boundary) -> Result<(), Failure> {
    struct Attempt {
        span: Span,
        failed: bool,
    }
    let meter = Meter::of_heap(&HEAP);
    let attempt = Mutex::new(Attempt { span: meter.span(), failed: false });
    move |boundary| {
        let mut attempt = attempt.lock().unwrap_or_else(PoisonError::into_inner);
        if attempt.failed {
            *attempt = Attempt { span: meter.span(), failed: false };
        }
        let peak = attempt.span.peak_bytes();
        // A smaller micro-batch does not make the update smaller.
        if peak <= limit || boundary == Boundary::Update {
            return Ok(());
        }
        attempt.failed = true;
        Err(Failure::new(Kind::OutOfMemory, format!("{} took {peak} of {limit} bytes", boundary.name())))
    }
}

/// Occupies all memory, including the free parts of the pages of the calling thread's stream.
fn full(device: &Device, gpu: u32) -> Result<Ballast> {
    let mut ballast = Ballast::fill(device, gpu, 0)?;
    ballast.fill_holes(device);
    Ok(ballast)
}

type Expected = (StepReport, Vec<f32>);

/// Takes the step, and records it beside the undisturbed one.
fn recovered(
    context: &mut Context,
    name: &str,
    trainer: &mut Trainer<Classify>,
    batch: &ImageBatch,
    (undisturbed, parameters): &Expected,
) -> Result<(StepReport, Difference)> {
    let report = trainer.step(batch)?;
    let found = difference(&parameters_of(trainer.model())?, parameters);
    let cells = [
        ("memory runs out", json!(name)),
        ("failed attempts", json!(report.failures)),
        ("micro-batches", json!(report.micro_batches)),
        ("loss", json!(report.loss)),
        ("undisturbed", json!(undisturbed.loss)),
        ("parameters that differ", json!(found.differ)),
        ("of", json!(parameters.len())),
        ("relative difference", short(found.relative)),
        ("seconds lost", short(report.lost_seconds)),
    ];
    context.record.row("Recovered steps", &cells);
    Ok((report, found))
}

fn disturbed(
    context: &mut Context,
    name: &str,
    trainer: &mut Trainer<Classify>,
    batch: &ImageBatch,
    expected: &Expected,
) -> Result<()> {
    let (report, found) = recovered(context, name, trainer, batch, expected)?;
    let says = format!("{} failed attempts, expected at least 1", report.failures);
    context.record.check(format!("{name}: memory ran out"), report.failures > 0, says);
    let says = format!("relative difference of the parameters {:.1e} of {TOLERANCE:.0e}", found.relative);
    context.record.check(format!("{name}: the same result"), found.relative <= TOLERANCE, says);
    Ok(())
}

/// Memory stays short, so that the batch must be cut.
fn throughout(
    context: &mut Context,
    start: &Start<'_>,
    batch: &ImageBatch,
    need: u64,
    expected: &Expected,
) -> Result<()> {
    let (device, plain) = (context.autodiff(), context.device.clone());
    // Leaves less than a step of the whole batch takes, and more than parameters, their gradients and the sums of those.
    let leave = need / 10 * 8;
    let (mut trainer, _ballast) = match context.gpu() {
        Some(gpu) => {
            let trainer = start.builder().build(&device, batch)?;
            settle(&plain);
            let ballast = Ballast::fill(&plain, gpu, leave)?;
            context.record.note(format!("other tensors have {}", ByteSize(ballast.bytes)));
            (trainer, Some(ballast))
        }
        None => (start.builder().with_guard(limiting_the_heap_to(leave)).build(&device, batch)?, None),
    };
    let name = format!("throughout: {} of {} are left", ByteSize(leave), ByteSize(need));
    let (report, found) = recovered(context, &name, &mut trainer, batch, expected)?;
    let says = format!("{} failed attempts, {} micro-batches", report.failures, report.micro_batches);
    context.record.check("throughout: the batch is cut", report.failures > 0 && report.micro_batches > 1, says);
    // Batch-norm normalises each micro-batch: the result is that of the smaller ones, which is close but not equal.
    let finite = report.loss.is_finite() && found.most.is_finite();
    context.record.check(
        "throughout: the step is taken",
        finite,
        format!("loss {}, all parameters finite", report.loss),
    );
    Ok(())
}

/// Writes the exact messages of failures to `messages.toml`.
fn texts(context: &mut Context, model: &Classifier, batch: &ImageBatch) -> Result<()> {
    let (device, plain) = (context.autodiff(), context.device.clone());
    let gpu = context.record.findings.provenance.gpu.clone();
    let of = gpu.map_or_else(String::new, |gpu| format!("{}, driver {}", gpu.name, gpu.driver));
    let mut found: Vec<Message> = vec![];
    let mut keep = |what: &str, result: Result<()>| {
        let text = result.err().map(|error| format!("{error:#}"));
        found.extend(text.map(|text| Message::new(format!("seen on {of}: {what}"), text)));
    };
    // The device's original messages.
    let read = |tensor: Tensor<1>| tensor.try_into_data().map(drop).map_err(|error| anyhow!("{}", error.reason()));

    keep("a tensor of 1 TiB, read", caught(|| read(Tensor::<1>::empty([1_usize << 38], &plain).narrow(0, 0, 1))));
    reclaim(&plain);
    settle(&plain);
    // Operations are tuned while there is memory.
    let large = || Tensor::<1>::zeros([1 << 28], &plain);
    let square = Tensor::<2>::ones([1 << 12, 1 << 12], &plain);
    let product = || read(square.clone().matmul(square.clone()).slice([0..1, 0..1]).reshape([1]));
    product()?;
    read(large().sum())?;
    settle(&plain);
    let ballast = full(&plain, context.gpu().context("no card")?)?;
    keep("zeros of 1 GiB on a full card, read", caught(|| read(large().narrow(0, 0, 1))));
    keep("an operation on them", caught(|| read((large() * 2.0 + 1.0).narrow(0, 0, 1))));
    keep("a sum of them", caught(|| read(large().sum())));
    keep(
        "into_data of them",
        caught(|| {
            drop(large().narrow(0, 0, 1).into_data());
            Ok(())
        }),
    );
    keep("a matrix product of 64 MiB on a full card", caught(product));
    keep(
        "an upload of 1 GiB to a full card",
        caught(|| {
            let data = burn::tensor::TensorData::new(vec![0f32; 1 << 28], [1 << 28]);
            read(Tensor::<1>::from_data(data, &plain).narrow(0, 0, 1))
        }),
    );
    let copy = model.valid().train();
    keep(
        "the loss of a ResNet on a full card",
        caught(|| read(Classify::plain().loss(&Pass::plain(&copy, &device), batch).inner())),
    );
    keep("sync after all of them", caught(|| Ok(plain.sync()?)));
    drop((ballast, copy, square));
    reclaim(&plain);

    messages::write(context.record.folder(), &found)?;
    for message in &found {
        let cells = [("kind", json!(message.kind())), ("text", json!(one_line(message.text())))];
        context.record.row("Messages, shortened; whole in messages.toml", &cells);
    }
    let unknown: Vec<&str> = found.iter().filter(|message| !message.is_recoverable()).map(Message::text).collect();
    let says = format!("{} messages, {} that kiln-recovery does not know as such", found.len(), unknown.len());
    context.record.check("failures are known by their messages", !found.is_empty() && unknown.is_empty(), says);
    let freed = used(context.gpu()).map(mib);
    context.record.note(format!("MiB of the card that are in use when other tensors are gone: {freed:?}"));
    Ok(())
}
