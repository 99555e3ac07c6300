//! A network of one's own on data of one's own, trained within a byte budget.

use std::error::Error;

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor, TensorData};
use kiln_training::{CountingAllocator, MemoryBudget, Pass, Task, Trainer};

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

/// Predicts a byte of text from the ones before it.
#[derive(Module, Debug)]
struct Net {
    embed: Embedding,
    blocks: Vec<Linear>,
    head: Linear,
}

struct NextByte;

impl Task for NextByte {
    type Model = Net;
    type Batch = (TensorData, TensorData);

    fn loss(&self, pass: &Pass<'_, Net>, (bytes, next): &Self::Batch) -> Tensor<1> {
        let x = pass.model().embed.forward(pass.input(bytes)).flatten::<2>(1, 2);
        let x = pass.chain(&pass.model().blocks, x, |block, x| relu(block.forward(x.clone())) + x);
        let loss = CrossEntropyLossConfig::new().init(pass.device());
        loss.forward(pass.model().head.forward(x), pass.input(next))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let text = std::fs::read("fixtures/moby-dick/moby-dick.txt")?;
    let batches: Vec<_> = (0..60).map(|i| batch(&text, i)).collect();
    let mut trainer = Trainer::builder(NextByte, Net::new)
        .with_memory(MemoryBudget::Bytes(16 << 20))
        .with_optimizer(|_| AdamWConfig::new().build())
        .with_schedule(3e-3)
        .with_epochs(2)
        .with_allocator(&HEAP)
        .build(&Device::flex(), &batches[0])?;
    trainer.plan().inspect(|plan| say(plan.to_string()));
    let before = trainer.evaluate(&batches[..5])?.metrics;
    let _ = trainer.fit(&batches)?;
    say(format!("before {before:?}, after {:?}", trainer.evaluate(&batches[..5])?.metrics));
    Ok(())
}

const CONTEXT: usize = 16;
const BATCH: usize = 2048;

impl Net {
    fn new(device: &Device) -> Self {
        let width = 16 * CONTEXT;
        Self {
            embed: EmbeddingConfig::new(256, 16).init(device),
            blocks: (0..4).map(|_| LinearConfig::new(width, width).init(device)).collect(),
            head: LinearConfig::new(width, 256).init(device),
        }
    }
}

/// Contexts `[BATCH, CONTEXT]` and the bytes that follow them, `[BATCH]`.
fn batch(text: &[u8], index: usize) -> (TensorData, TensorData) {
    let windows = text.windows(CONTEXT + 1).skip(index * BATCH).take(BATCH);
    let (mut bytes, mut next) = (vec![], vec![]);
    for window in windows {
        bytes.extend(window[..CONTEXT].iter().map(|byte| i64::from(*byte)));
        next.push(i64::from(window[CONTEXT]));
    }
    (TensorData::new(bytes, [BATCH, CONTEXT]), TensorData::new(next, [BATCH]))
}

#[allow(clippy::print_stdout, reason = "an example shows what it does")]
fn say(text: String) {
    println!("{text}");
}
