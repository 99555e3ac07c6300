//! Trains 64 layers in the memory of one: their values, gradients and moments (1.1 GB) are in a directory. Run it again, and it goes on.

use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Distribution, Tensor};
use kiln_checkpointing::{Chain, FileStore, Plan, Store, Streamed};

#[allow(clippy::print_stdout, reason = "an example shows what it does")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex().autodiff();
    device.seed(1);
    // burn initialises a layer when it is first used: here, when its turn comes to be written.
    let layers: Vec<Linear> = (0..64).map(|_| LinearConfig::new(1024, 1024).init(&device)).collect();
    let store = FileStore::open("target/larger_than_memory")?;
    let (streamed, layers) = match store.note()? {
        None => Streamed::create(store, layers)?,
        Some(_) => Streamed::open(store, layers)?,
    };
    let (plan, optimizer): (_, ModuleOptimizer) = (Plan::stream(64, 1)?, AdamWConfig::new().init());

    let done = streamed.note().parse().unwrap_or(0);
    for step in done + 1..=done + 3 {
        device.seed(step); // each step's data is a function of its number
        let x = Tensor::<2>::random([64, 1024], Distribution::Normal(0.0, 1.0), &device);
        let chain = Chain::new(&layers).streamed(&streamed).deterministic();
        let y = chain.run(&plan, x.clone(), |layer, x| gelu(layer.forward(x.clone())) * 0.1 + x)?;
        let loss = (y + x.roll_dim(1, 1)).square().mean(); // to learn: the negative of x, one place further
        println!("step {step}: loss {:.4}", loss.clone().into_scalar::<f32>());
        let _ = loss.backward(); // gradients go to the store
        streamed.update(&layers, &optimizer, 1e-3, 1.0)?;
        streamed.commit(&step.to_string())?; // all of the step, or nothing
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    println!("{}", status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default());
    Ok(())
}
