//! What the device says of tensors that were never written, and what the probe makes of it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, ExecutionError, Tensor};
use kiln_recovery::{Failure, Kind, Probe, reclaim};
use kiln_training::Task;

use crate::pages::{self, Count};
use crate::run::{Layout, device, in_use};
use crate::tasks::{Case, Images};

/// A tensor whose page was refused.
fn lost(device: &Device) -> Tensor<1> {
    let make = || Layout::Own.within(device, (), |()| Tensor::<1>::ones([1 << 20], device));
    let (tensor, count) = pages::refusing(&[1], || {
        let tensor = make();
        println!("sync {:?}", device.sync());
        tensor
    });
    println!("{count:?}");
    tensor
}

fn show<const D: usize>(what: &str, tensor: Tensor<D>) {
    match tensor.try_into_data() {
        Ok(data) => println!("{what}: ok {:?}", data.iter::<f32>().take(10).collect::<Vec<_>>()),
        Err(error) => println!(
            "{what}: {} RAW {:?}",
            Failure::from_device(&error).map_or("NONE".into(), |f| f.to_string()),
            error
                .reason()
                .lines()
                .filter(
                    |l| !l.trim_start().starts_with("at ") && !l.trim_start().starts_with(|c: char| c.is_ascii_digit())
                )
                .collect::<Vec<_>>()
        ),
    }
}

#[test]
fn lost_tensors() {
    let _one = pages::exclusive();
    let device = device().inner();
    let good = || Tensor::<1>::ones([4], &device);
    show("good", good());
    show("cat good", Tensor::cat(vec![good() * 2.0, good()], 0));
    let lost = lost(&device);
    println!("sync {:?}", device.sync().is_ok());
    show("lost", lost.clone());
    show("lost slice", lost.clone().slice([0..4]));
    println!("try_to_data {:?}", lost.try_to_data().is_err());
    println!(
        "into_data {:?}",
        catch_unwind(AssertUnwindSafe(|| lost.clone().into_data()))
            .map(|_| ())
            .map_err(|p| Failure::from_panic(p.as_ref()).map(|f| f.to_string()))
    );
    let part = lost.clone().slice([0..4]);
    device.sync().unwrap();
    show("cat lost, good", Tensor::cat(vec![part.clone(), good() * 3.0], 0));
    show("cat good, lost", Tensor::cat(vec![good() * 3.0, part.clone()], 0));
    show("cat good, lost, good", Tensor::cat(vec![good() * 3.0, part.clone(), good() * 5.0], 0));
    let two = |n: usize| Tensor::<2>::ones([4, n], &device);
    let lost2 = lost.clone().slice([0..20]).reshape([4, 5]);
    device.sync().unwrap();
    show("cat2 dim1", Tensor::cat(vec![lost2.clone(), two(3)], 1));
    show("cat2 dim0", Tensor::cat(vec![lost2.clone(), two(5)], 0));
    let t = two(5).transpose().matmul(two(5));
    show("cat2 matmul", Tensor::cat(vec![lost2.clone(), t], 0));
    let many: Vec<_> = std::iter::once(lost2.clone()).chain((0..40).map(|i| two(5) * i)).collect();
    device.sync().unwrap();
    show("cat many", Tensor::cat(many, 0));
    let many: Vec<_> = std::iter::once(part.clone()).chain((0..40).map(|_| Tensor::<2>::ones([4, 1000], &device).sum())).collect();
    device.sync().unwrap();
    show("cat sums", Tensor::cat(many, 0));
    show("stack", Tensor::stack::<2>(vec![part.clone(), good()], 0));
    let ints = vec![part.clone().int(), good().int()];
    device.sync().unwrap();
    println!("int cat {:?}", Tensor::cat(ints, 0).try_into_data().map_err(|e| Failure::from_device(&e).map(|f| f.kind())));
    let bools = vec![part.clone().greater_elem(0.0), good().greater_elem(0.0)];
    device.sync().unwrap();
    println!("bool cat {:?}", Tensor::cat(bools, 0).try_into_data().map_err(|e| Failure::from_device(&e).map(|f| f.kind())));
    show("sum", good() + part.clone());
    show("slice_assign", good().slice_assign([0..2], part.clone().slice([0..2])));
    show(
        "then slice_assign",
        Tensor::<1>::ones([8], &device).slice_assign([0..4], part.clone()).slice_assign([4..8], good()),
    );
    show("assign into lost", lost.clone().slice_assign([0..4], good()).slice([0..4]));
    show("assign into lost, elsewhere", lost.clone().slice_assign([0..4], good()).slice([8..12]));
    show("mask", lost.clone().slice([0..4]).mask_fill(good().greater_elem(0.0), 1.0));
    let big = Tensor::<1>::empty([1_usize << 38], &device);
    show("1 TiB", big);
    let fresh = good() + 1.0;
    show("fresh", fresh);
}

fn gradients<C: Case>(case: &C, model: &C::Model) -> (Tensor<1>, GradientsParams) {
    let loss = case.loss(model, &case.batch(0), &device());
    let gradients = GradientsParams::from_grads(loss.backward(), model);
    (loss.inner(), gradients)
}

fn read<M: Module>(model: &M, gradients: &GradientsParams) -> Vec<Result<Vec<u32>, ExecutionError>> {
    struct Read<'a>(&'a GradientsParams, Vec<Result<Vec<u32>, ExecutionError>>);
    impl ModuleVisitor for Read<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.get::<D>(param.id) {
                self.1.push(gradient.try_into_data().map(|data| data.iter::<f32>().map(f32::to_bits).collect()));
            }
        }
    }
    let mut read = Read(gradients, vec![]);
    model.visit(&mut read);
    read.1
}

#[test]
fn probe_finds_net() {
    probe_finds(&Images { samples: 8, side: 8, channels: 4, batch_norm: false });
}

#[test]
fn probe_finds_gpt() {
    probe_finds(&crate::tasks::Text {
        samples: 4,
        config: kiln_models::GptConfig { vocab: 16, context: 8, layers: 1, heads: 2, width: 16, dropout: 0.0 },
    });
}

fn probe_finds<C: Case>(case: &C)
where
    C::Model: Sync,
{
    let _one = pages::exclusive();
    let model = case.model(&device());
    let plain = device().inner();
    let run = |numbers: &[usize]| {
        reclaim(&plain);
        pages::refusing(numbers, || {
            Layout::Own.within(&plain, (), |()| {
                catch_unwind(AssertUnwindSafe(|| {
                    let (loss, gradients) = gradients(case, &model);
                    let mut probe = Probe::new();
                    probe.add(&loss).gradients(&model, &gradients);
                    (probe.finish(), read(&model, &gradients))
                }))
            })
        })
    };
    let t0 = std::time::Instant::now();
    let _ = run(&[]);
    println!("first {:?}", t0.elapsed());
    let t0 = std::time::Instant::now();
    let _ = run(&[]);
    println!("second {:?}", t0.elapsed());
    let base = in_use();
    let (expected, count) = run(&[]);
    let expected: Vec<Vec<u32>> = expected.unwrap().1.into_iter().map(Result::unwrap).collect();
    let (mut found, mut panicked, mut harmless, mut holes) = (0, 0, 0, 0);
    let mut texts = std::collections::BTreeMap::<String, usize>::new();
    println!("{count:?}");
    let every = count.seen.div_ceil(std::env::var("S").map_or(1000, |s| s.parse().unwrap()));
    for number in (1..=count.seen).step_by(every) {
        let (outcome, Count { refused, .. }) = run(&[number]);
        match outcome {
            Err(payload) => {
                panicked += 1;
                let f = Failure::from_panic(payload.as_ref());
                println!("panic {f:?}");
            }
            Ok((verdict, values)) => {
                let wrong = values.iter().zip(&expected).filter(|(v, e)| v.as_ref().is_ok_and(|v| v != *e)).count();
                match &verdict {
                    Ok(()) if wrong == 0 => harmless += 1,
                    Ok(()) => {
                        holes += 1;
                        println!("HOLE {number} refused {refused} wrong {wrong}");
                    }
                    Err(e) => {
                        found += 1;
                        if wrong > 0 {
                            println!("{number}: found, and {wrong} gradients read wrong");
                        }
                        let f = Failure::from_device(e);
                        *texts
                            .entry(format!("{:?}", f.map(|f| (f.kind(), f.is_consequence(), f.message().to_owned()))))
                            .or_default() += 1;
                        for v in values.iter().filter_map(|v| v.as_ref().err()) {
                            let f = Failure::from_device(v);
                            *texts
                                .entry(format!(
                                    "sibling {:?}",
                                    f.map(|f| (f.kind(), f.is_consequence(), f.message().to_owned()))
                                ))
                                .or_default() += 1;
                        }
                    }
                }
            }
        }
        if in_use() != base {
            println!("{number}: leak {} {base}", in_use());
        }
    }
    println!("{count:?}: found {found}, panicked {panicked}, harmless {harmless}, holes {holes}");
    let _ = Kind::TooBig;
    for (t, n) in texts {
        println!("{n} x {}", t.chars().take(500).collect::<String>());
    }
}
