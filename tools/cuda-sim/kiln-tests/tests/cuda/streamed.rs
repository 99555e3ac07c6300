//! Blocks whose parameters are in host memory or in files, on a card.

use burn::module::{Module, ModuleVisitor, Param, list_param_ids};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::tensor::activation::gelu;
use burn::tensor::{Distribution, Tensor};
use kiln_accumulation::{Fed, Weight, Window};
use kiln_checkpointing::{Chain, FileStore, HostStore, Plan, Streamed};

use crate::run::{device, in_use};
use crate::sim::with_card;

const LAYERS: usize = 8;
const WIDTH: usize = 128;

fn layers() -> Vec<Linear> {
    device().seed(1);
    let layers: Vec<Linear> = (0..LAYERS).map(|_| LinearConfig::new(WIDTH, WIDTH).init(&device())).collect();
    let _ = bits(&layers); // initialises them in their order
    layers
}

fn loss(model: &[Linear], streamed: Option<&Streamed>, number: u64) -> Tensor<1> {
    device().seed(number);
    let x = Tensor::<2>::random([16, WIDTH], Distribution::Normal(0.0, 1.0), &device());
    let (chain, plan) = match streamed {
        Some(streamed) => (Chain::new(model).streamed(streamed), Plan::stream(LAYERS, 1).unwrap()),
        None => (Chain::new(model), Plan::every(LAYERS, 1).unwrap()),
    };
    chain.deterministic().run(&plan, x, |layer, x| gelu(layer.forward(x))).unwrap().square().mean()
}

fn bits(module: &impl Module) -> Vec<u32> {
    struct Bits(Vec<u32>);
    impl ModuleVisitor for Bits {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend(param.val().into_data().iter::<f32>().map(f32::to_bits));
        }
    }
    let mut bits = Bits(vec![]);
    module.visit(&mut bits);
    bits.0
}

fn optimizer() -> ModuleOptimizer {
    AdamWConfig::new().init()
}

/// Two steps of two micro-batches with all on the card: the bits, and the live bytes after it.
fn on_the_card() -> (Vec<u32>, u64) {
    let (mut model, mut optimizer) = (layers(), optimizer());
    for step in 0..2 {
        let mut window = Window::open(Weight::Samples(32)).unwrap().used_once(list_param_ids(&model));
        for micro_batch in 0..2 {
            let fed = window.feed(&model, Weight::Samples(16), loss(&model, None, 10 * step + micro_batch)).unwrap();
            match fed {
                Fed::Open(next) => window = next,
                Fed::Complete(batch) => {
                    model = optimizer.step(1e-2, model, batch.into_gradients());
                    break;
                }
            }
        }
    }
    (bits(&model), in_use())
}

fn streamed(model: Vec<Linear>, streamed: &Streamed) -> (Vec<u32>, u64) {
    let optimizer = optimizer();
    for step in 0..2 {
        for micro_batch in 0..2 {
            let _ = (loss(&model, Some(streamed), 10 * step + micro_batch) * 0.5).backward();
        }
        streamed.update(&model, &optimizer, 1e-2, 1.0).unwrap();
        streamed.commit("").unwrap();
    }
    let live = in_use();
    (bits(&streamed.filled(model).unwrap()), live)
}

#[test]
fn streamed_blocks_follow_blocks_on_the_card_and_are_not_on_it() {
    with_card(&[], |_| {
        let (expected, all) = on_the_card();
        let directory = tempfile::tempdir().unwrap();
        let (store, model) = Streamed::create(HostStore::new(), layers()).unwrap();
        let (found, live) = streamed(model, &store);
        println!("{all} bytes on the card, {live} with all blocks streamed");
        // Kernels that burn fuses differently round differently.
        let far = |found: &[u32]| {
            let value = |bits: &u32| f64::from(f32::from_bits(*bits));
            found.iter().zip(&expected).map(|(a, b)| (value(a) - value(b)).abs()).fold(0.0, f64::max)
        };
        println!("weights are {:.1e} apart", far(&found));
        assert!(found.len() == expected.len() && far(&found) < 1e-6, "from host memory: {:.1e}", far(&found));
        assert!(live < all / 12, "{live} of {all}: the values, gradients and moments of no block");
        let (store, model) = Streamed::create(FileStore::open(directory.path()).unwrap(), layers()).unwrap();
        assert!(streamed(model, &store).0 == found, "from files");
    });
}
