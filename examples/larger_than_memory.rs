//! Trains 128 layers in the memory of one: their values, gradients and moments (2.1 GB) are in a directory. Run it again, and it goes on.

use std::error::Error;
use std::fs;

use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Distribution, Tensor};
use kiln_checkpointing::{Chain, FileStore, Plan, Store, Streamed};

const LAYERS: usize = 128;
const WIDTH: usize = 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::flex().autodiff();
    device.seed(1);
    // burn initialises a layer when it is first used: here, when its turn comes to be written.
    let layers: Vec<Linear> = (0..LAYERS).map(|_| LinearConfig::new(WIDTH, WIDTH).init(&device)).collect();
    let store = FileStore::open(std::env::args().nth(1).as_deref().unwrap_or("target/larger_than_memory"))?;
    let is_new = store.note()?.is_none();
    let (streamed, layers) = if is_new { Streamed::create(store, layers)? } else { Streamed::open(store, layers)? };
    let (plan, optimizer): (_, ModuleOptimizer) = (Plan::stream(LAYERS, 1)?, AdamWConfig::new().init());

    let done = streamed.note().parse().unwrap_or(0);
    for step in done + 1..=done + 3 {
        device.seed(step); // each step's data is a function of its number
        let x = Tensor::<2>::random([64, WIDTH], Distribution::Normal(0.0, 1.0), &device);
        let chain = Chain::new(&layers).streamed(&streamed).deterministic();
        let y = chain.run(&plan, x.clone(), |layer, x| gelu(layer.forward(x.clone())) * 0.1 + x)?;
        let loss = (y + x.roll_dim(1, 1)).square().mean(); // to learn: the negative of x, one place further
        say(format!("step {step}: loss {:.4}", loss.clone().into_scalar::<f32>()));
        let _ = loss.backward(); // gradients go to the store
        streamed.update(&layers, &optimizer, 1e-3, 1.0)?;
        streamed.commit(&step.to_string())?; // all of the step, or nothing
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    say(status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default().to_owned());
    Ok(())
}

#[allow(clippy::print_stdout, reason = "a program's output")]
fn say(line: String) {
    println!("{line}");
}
