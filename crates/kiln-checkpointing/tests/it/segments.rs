//! Single segments: their inputs and outputs, shared parameters, and the errors.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{Dropout, DropoutConfig, Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::activation::gelu;
use burn::tensor::{Bool, DType, Device, Distribution, Int, Tensor};
use kiln_checkpointing::{Chain, Checkpoint, Error, Plan, checkpoint};
use kiln_operations::accumulate_into;

use crate::HEAP;
use crate::support::{alone, bits, float_bits, gradients, input_gradients, leaf, loss};

fn device() -> Device {
    Device::flex().autodiff()
}

fn linear() -> Linear {
    LinearConfig::new(8, 8).init(&device())
}

fn input() -> Tensor<2> {
    leaf(Tensor::random([5, 8], Distribution::Normal(0.0, 1.0), &device()))
}

/// A decoder whose output layer is its embedding.
#[derive(Module, Debug)]
struct Tied {
    embedding: Embedding,
    inner: Linear,
}

impl Tied {
    fn embed(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        gelu(self.inner.forward(self.embedding.forward(ids)))
    }

    fn head(&self, x: Tensor<3>) -> Tensor<3> {
        x.matmul(self.embedding.weight.val().transpose().unsqueeze())
    }
}

#[test]
fn parameters_are_shared_between_segments_and_integers_alone_are_an_input() {
    let _alone = alone();
    let model = Tied { embedding: EmbeddingConfig::new(11, 8).init(&device()), inner: linear() };
    let ids = Tensor::<2, Int>::from_ints([[1, 2, 3], [4, 5, 10]], &device());
    let plain = model.head(model.embed(ids.clone()));
    let x = checkpoint(&model, ids.clone(), |model, ids| model.embed(ids));
    assert!(x.is_tracked(), "an input without floats, and a segment that has parameters");
    let recomputed = checkpoint(&model, x, |model, x| model.head(x));
    assert_eq!(float_bits(plain.clone()), float_bits(recomputed.clone()));
    assert_eq!(bits(&model, &gradients(plain)), bits(&model, &gradients(recomputed)));
    // One use in a segment and one outside.
    let outside = || model.head(checkpoint(&model, ids.clone(), |model, ids| model.embed(ids)));
    let plain = model.head(model.embed(ids.clone()));
    assert_eq!(bits(&model, &gradients(plain)), bits(&model, &gradients(outside())));
}

#[test]
fn outputs_may_be_many_of_any_rank_and_unused() {
    let _alone = alone();
    let model = linear();
    let (x, mask) = (input(), Tensor::<2, Bool>::tril_mask([5, 8], 0, &device()));
    let forward = |model: &Linear, (x, mask): (Tensor<2>, Tensor<2, Bool>)| {
        let y = model.forward(x.clone()).mask_fill(mask.clone(), 0.0);
        let pooled: Tensor<1> = y.clone().mean_dim(0).reshape([8]);
        (y, (pooled, mask), vec![x.clone() * 2.0, x])
    };
    type Outputs = (Tensor<2>, (Tensor<1>, Tensor<2, Bool>), Vec<Tensor<2>>);
    type Pick = fn(&Outputs) -> Tensor<1>;
    let with = |segment: bool, pick: Pick| {
        let inputs = (x.clone(), mask.clone());
        let out = if segment { checkpoint(&model, inputs, forward) } else { forward(&model, inputs) };
        let found = gradients(pick(&out));
        (bits(&model, &found), input_gradients(x.clone(), &found))
    };
    let picks: [Pick; 4] = [
        |(y, _, _)| y.clone().flatten(0, 1),
        |(_, (pooled, _), _)| pooled.clone(),
        |(_, _, rest)| rest[0].clone().flatten(0, 1),
        |(y, (pooled, _), rest)| {
            Tensor::cat(vec![y.clone().flatten(0, 1), pooled.clone(), rest[1].clone().flatten(0, 1)], 0)
        },
    ];
    for (index, pick) in picks.into_iter().enumerate() {
        assert!(with(true, pick) == with(false, pick), "outputs {index}");
    }
}

#[test]
fn an_input_that_the_segment_ignores_gets_a_gradient_of_zero() {
    let _alone = alone();
    let (model, x, unused) = (linear(), input(), input());
    // Not leaves: operations before them ask for a gradient.
    let forward = |model: &Linear, (x, _): (Tensor<2>, Tensor<2>)| model.forward(x);
    let y = checkpoint(&model, (x.clone() * 2.0, unused.clone() * 2.0), forward);
    let found = gradients(y);
    assert!(input_gradients(unused, &found).iter().all(|bits| f32::from_bits(*bits) == 0.0));
    let plain = gradients(model.forward(x.clone() * 2.0));
    assert_eq!(input_gradients(x.clone(), &found), input_gradients(x, &plain));
}

#[test]
fn segments_without_gradients_run_plain() {
    let _alone = alone();
    let model = linear().no_grad();
    let x = Tensor::<2>::ones([5, 8], &device());
    assert!(!checkpoint(&model, x.clone(), |model, x| model.forward(x)).is_tracked());
    let y = checkpoint(&model.valid(), x.inner(), |model, x: Tensor<2>| model.forward(x));
    assert!(!y.is_autodiff());
    // A frozen layer passes gradients on and has none.
    let x = input();
    let found = gradients(checkpoint(&model, x.clone(), |model, x| model.forward(x)));
    assert_eq!(input_gradients(x.clone(), &found), input_gradients(x.clone(), &gradients(model.forward(x))));
    assert!(model.weight.val().grad(&found).is_none());
}

#[test]
fn a_captured_tensor_that_needs_a_gradient_is_refused() {
    let _alone = alone();
    let (model, other) = (linear(), linear());
    let (x, captured) = (input(), input());
    let refused = |outcome: Result<Tensor<2>, Error>| outcome.map(|_| ()).unwrap_err();
    let named = Checkpoint::new().named("encoder");
    let error = refused(named.run(&model, x.clone(), move |_, x| other.forward(x)));
    assert_eq!(error, Error::Captures { segment: "encoder".into() });
    let error = refused(Checkpoint::new().run(&model, x.clone(), move |model, x| model.forward(x) + captured.clone()));
    assert!(error.to_string().contains("segments.rs:"), "the place is its name: {error}");
    // Constants may be captured.
    let constant = Tensor::<2>::ones([5, 8], &device());
    assert!(Checkpoint::new().run(&model, x, move |model, x| model.forward(x) + constant.clone()).is_ok());
}

#[test]
fn parameters_computed_from_others_are_refused() {
    let _alone = alone();
    struct Double;
    impl ModuleMapper for Double {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let (id, tensor, mapper) = param.consume();
            Param::from_mapped_value(id, tensor * 2.0, mapper)
        }
    }
    let doubled = linear().map(&mut Double);
    let error = Checkpoint::new().run(&doubled, input(), |model, x| model.forward(x)).map(|_| ()).unwrap_err();
    assert!(matches!(&error, Error::NotALeaf { path, .. } if path == "weight"), "{error}");
}

#[test]
fn a_replay_that_differs_is_noticed_and_the_next_step_works() {
    let _alone = alone();
    let (model, x) = (linear(), input());
    let panic_of = |f: &dyn Fn()| {
        let panic = catch_unwind(AssertUnwindSafe(f)).unwrap_err();
        panic.downcast_ref::<String>().cloned().unwrap_or_default()
    };
    let twice = |first: fn(Tensor<2>) -> Tensor<2>, then: fn(Tensor<2>) -> Tensor<2>| {
        let passes = std::sync::Arc::new(AtomicUsize::new(0));
        let y = Checkpoint::new().named("changing").run(&model, x.clone(), move |model, x| {
            let y = model.forward(x);
            if passes.fetch_add(1, Relaxed) == 0 { first(y) } else { then(y) }
        });
        gradients(y.unwrap());
    };
    let shape = panic_of(&|| twice(|y| y, |y| y.slice([0..4, 0..8])));
    assert!(
        shape.contains("segment changing: output 0") && shape.contains("[4, 8]") && shape.contains("[5, 8]"),
        "{shape}"
    );
    let dtype = panic_of(&|| twice(|y| y, |y| y.cast(DType::BF16)));
    assert!(dtype.contains("BF16") && dtype.contains("F32"), "{dtype}");
    let count = panic_of(&|| {
        let passes = std::sync::Arc::new(AtomicUsize::new(0));
        let y = checkpoint(&model, x.clone(), move |model, x| vec![model.forward(x); 1 + passes.fetch_add(1, Relaxed)]);
        gradients(y);
    });
    assert!(count.contains("returned 2 tensors, expected 1"), "{count}");

    let found = gradients(checkpoint(&model, x.clone(), |model, x| model.forward(x)));
    assert_eq!(bits(&model, &found), bits(&model, &gradients(model.forward(x.clone()))));
}

#[derive(Module, Debug)]
struct Block {
    linear: Linear,
    drop: Dropout,
}

#[allow(clippy::ptr_arg, reason = "a module is a `Vec`")]
fn body(blocks: &Vec<Block>, x: Tensor<2>) -> Tensor<2> {
    blocks.iter().fold(x, |x, block| block.drop.forward(gelu(block.linear.forward(x.clone()))) + x)
}

fn chain(count: usize, dropout: f64) -> Vec<Block> {
    let block = |_| Block { linear: linear(), drop: DropoutConfig::new(dropout).init() };
    (0..count).map(block).collect()
}

#[test]
fn forked_modules_train_on_threads() {
    let _alone = alone();
    let model = chain(4, 0.0);
    let x = input().detach();
    let expected = bits(&model, &gradients(body(&model, x.clone())));
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (model, x) = (model.clone().fork(&device()), x.clone());
            std::thread::spawn(move || {
                let pass = || Checkpoint::new().deterministic().run(&model, x.clone(), body).unwrap();
                (0..20).for_each(|_| drop(gradients(pass())));
                bits(&model, &gradients(pass()))
            })
        })
        .collect();
    for thread in threads {
        assert!(thread.join().unwrap() == expected);
    }
}

#[test]
fn training_with_segments_is_training_without_and_leaves_nothing_behind() {
    let _alone = alone();
    let (start, x) = (chain(6, 0.0), input().detach());
    let train = |segments: bool, steps: usize| {
        let (mut model, mut optimizer) = (start.valid().train(), AdamWConfig::new().init());
        let mut live = vec![];
        for _ in 0..steps {
            let y = match segments {
                true => model.chunks(2).fold(x.clone(), |x, blocks| checkpoint(&blocks.to_vec(), x, body)),
                false => body(&model, x.clone()),
            };
            let gradients = GradientsParams::from_grads((y - 1.0).square().mean().backward(), &model);
            model = optimizer.step(1e-2, model, gradients);
            live.push(HEAP.live_bytes());
        }
        let weights: Vec<Vec<u32>> = model.iter().map(|block| float_bits(block.linear.weight.val())).collect();
        (weights, live)
    };
    let ((plain, _), (recomputed, live)) = (train(false, 30), train(true, 30));
    assert!(plain == recomputed, "weights after 30 steps");
    assert!(live[29] <= live[9] + 1024, "live bytes grow: {live:?}");

    // A graph that is never run backward is given back with the next one that is.
    let model = chain(6, 0.2);
    let pass = || model.chunks(2).fold(x.clone(), |x, blocks| checkpoint(&blocks.to_vec(), x, body));
    drop(gradients(pass()));
    let before = HEAP.live_bytes();
    for _ in 0..50 {
        let _ = pass();
    }
    drop(gradients(pass()));
    let after = HEAP.live_bytes();
    assert!(after <= before + 4096, "{before} bytes became {after}");
}

#[test]
fn deterministic_segments_leave_the_random_numbers_alone() {
    let _alone = alone();
    let model = linear();
    let next = |run: &dyn Fn() -> Tensor<2>| {
        device().seed(9);
        drop(gradients(run()));
        float_bits(Tensor::<1>::random([3], Distribution::Default, &device()))
    };
    let x = input();
    let _ = model.forward(x.clone()); // initialises the layer
    let plain = next(&|| model.forward(x.clone()));
    let quiet = Checkpoint::new().deterministic();
    assert_eq!(next(&|| quiet.run(&model, x.clone(), |model, x| model.forward(x)).unwrap()), plain);
    assert_ne!(next(&|| checkpoint(&model, x.clone(), |model, x| model.forward(x))), plain);
}

#[test]
fn offloaded_inputs_come_back_in_their_dtype() {
    let _alone = alone();
    let model = linear();
    let inputs = || (input(), leaf((input() * 3.0).cast(DType::BF16)), Tensor::<1, Int>::from_ints([1, 2], &device()));
    let forward = |model: &Linear, (x, low, ids): (Tensor<2>, Tensor<2>, Tensor<1, Int>)| {
        assert_eq!((low.dtype(), ids.dims()), (DType::BF16, [2]));
        model.forward(x) + low.cast(DType::F32)
    };
    let x = inputs();
    let plain = gradients(forward(&model, x.clone()));
    let offloaded = Checkpoint::new().offload().run(&model, x.clone(), forward).unwrap();
    let found = gradients(offloaded);
    let all = |found| (bits(&model, found), input_gradients(x.clone(), found));
    assert!(all(&found) == all(&plain));
}

/// The most bytes above those before, while a second micro-batch of `layers` is added to the sums of the first.
fn peak_of_a_second_micro_batch(layers: &[Linear], plan: &Plan, own_sums: bool) -> usize {
    let layers = layers.to_vec();
    let x = Tensor::<2>::random([2, 128], Distribution::Normal(0.0, 1.0), &device());
    let run = || Chain::new(&layers).run(plan, x.clone(), |layer, x| gelu(layer.forward(x))).unwrap();
    let mut sums = GradientsParams::from_grads(loss(run()).backward(), &layers);
    HEAP.reset_peak();
    let before = HEAP.live_bytes();
    match own_sums {
        true => drop(accumulate_into(loss(run()), &layers, &mut sums, |_| true).backward()),
        false => drop(loss(run()).backward()),
    }
    HEAP.peak_bytes() - before
}

#[test]
fn a_gradient_beside_its_sum_is_that_of_one_parameter() {
    let _alone = alone();
    let layers: Vec<_> = (0..16).map(|_| LinearConfig::new(128, 128).init(&device())).collect();
    let one = 4 * 128 * 128;
    for plan in [Plan::none(16), Plan::every(16, 1).unwrap(), Plan::every(16, 16).unwrap()] {
        let peaks = [true, false].map(|own_sums| peak_of_a_second_micro_batch(&layers, &plan, own_sums));
        assert!(peaks[0] < 4 * one && peaks[1] > 15 * one, "{plan}: {peaks:?}, a weight has {one} bytes");
    }
}
