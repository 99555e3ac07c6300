//! What cannot be recorded, predicted or planned, and what is said about it.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

mod steps;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use kiln_memory::{BackendProfile, Error, Recomputed, Recorder, StepOptions, StepTrace, record_step};
use kiln_precision::Precision;
use steps::{adamw, flex, gpt, sgd, tiny};

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self { layers: (0..3).map(|_| LinearConfig::new(8, 8).init(device)).collect() }
    }
}

fn input(step: &Recorder) -> Tensor<2> {
    Tensor::zeros([step.batch(), 8], step.device())
}

/// A step whose forward pass does something between the second layer and the third.
fn with(between: impl Fn(Tensor<2>, &Recorder) -> Tensor<2>) -> Result<StepTrace, Error> {
    let forward = |net: &Net, step: &Recorder| {
        let x = net.layers[1].forward(net.layers[0].forward(input(step)));
        net.layers[2].forward(between(x, step)).mean()
    };
    record_step(Net::new, forward, &AdamWConfig::new().build(), StepOptions::default())
}

#[track_caller]
fn message<T>(result: Result<T, Error>) -> String {
    result.map(|_| ()).unwrap_err().to_string()
}

#[test]
fn look() {
    eprintln!(
        "1 {}",
        message(with(|x, _| {
            let _ = x.clone().into_data();
            x
        }))
    );
    eprintln!(
        "2 {}",
        message(with(|x, _| {
            let s: f32 = x.clone().mean().into_scalar();
            x * s
        }))
    );
    eprintln!(
        "3 {}",
        message(with(|x, s| {
            s.device().seed(3);
            x
        }))
    );
    eprintln!("4 {}", message(with(|_, _| panic!("what the user said"))));
    eprintln!(
        "4b {}",
        message(with(|x, s| {
            assert!(s.batch() > 100, "a batch of {}", s.batch());
            x
        }))
    );
    eprintln!("5 {}", message(with(|x, s| if s.batch() > 2 { x.sqrt() } else { x })));
    eprintln!("5b {}", message(with(|x, s| if s.batch() > 2 { x.sqrt() } else { x.exp() })));
    eprintln!("6 {}", message(with(|x, s| x.reshape([s.batch() * 2, 7]))));
    let step = |f: fn(&Net, &Recorder) -> Tensor<1>| {
        record_step(Net::new, f, &AdamWConfig::new().build(), StepOptions::default())
    };
    eprintln!("7 {}", message(step(|n, s| n.layers[0].forward(input(s)).flatten(0, 1))));
    eprintln!("8 {}", message(step(|_, s| input(s).mean())));
    eprintln!(
        "9 {}",
        message(step(|n, s| {
            let x = n.layers[0].forward(input(s));
            Tensor::from_inner(x.inner()).mean()
        }))
    );
    let frozen = record_step(
        |d| Net::new(d).no_grad(),
        |n: &Net, s| n.layers[0].forward(input(s)).mean(),
        &sgd(),
        StepOptions::default(),
    );
    eprintln!("10 {}", message(frozen));
    eprintln!(
        "10b {}",
        message(record_step(
            |_: &Device| -> Net { panic!("no such file") },
            |n: &Net, s| n.layers[0].forward(input(s)).mean(),
            &sgd(),
            StepOptions::default()
        ))
    );
    eprintln!(
        "10c {}",
        message(record_step(
            |_: &Device| -> Net { Net::new(&Device::flex()) },
            |n: &Net, s| n.layers[0].forward(input(s)).mean(),
            &sgd(),
            StepOptions::default()
        ))
    );
    eprintln!("10d {}", message(with(|x, s| { x + Tensor::ones([s.batch(), 8], &Device::flex()) })));
    eprintln!(
        "10e {}",
        message(with(|x, _| {
            let i = x.clone().argmax(1).into_data();
            let _ = i;
            x
        }))
    );
    for batches in [[0, 1], [3, 3], [5, 2]] {
        let options = StepOptions { batches, ..StepOptions::default() };
        eprintln!(
            "11 {}",
            message(record_step(
                Net::new,
                |n: &Net, s: &Recorder| n.layers[0].forward(input(s)).mean(),
                &sgd(),
                options
            ))
        );
    }
    let trace = with(|x, _| x).unwrap();
    for batch in [0, usize::MAX, 1 << 60, 1 << 54, 1 << 48, 1 << 44, 1 << 40] {
        for p in [flex(), BackendProfile::cuda()] {
            eprintln!(
                "12 {batch} {}",
                match std::panic::catch_unwind(|| trace.predict(batch, &p)) {
                    Ok(Ok(p)) => p.peak_bytes.to_string(),
                    Ok(Err(e)) => e.to_string(),
                    Err(_) => "PANIC".into(),
                }
            );
        }
    }
    let gpt = gpt(tiny(), Precision::F32, &adamw(), StepOptions::default());
    for batch in [usize::MAX, 1 << 50, 1 << 48, 1 << 44, 1 << 40, 1 << 36, 1 << 30] {
        for p in [flex(), BackendProfile::cuda()] {
            eprintln!(
                "13 {batch} {}",
                match std::panic::catch_unwind(|| gpt.predict(batch, &p)) {
                    Ok(Ok(p)) => p.peak_bytes.to_string(),
                    Ok(Err(e)) => e.to_string(),
                    Err(_) => "PANIC".into(),
                }
            );
        }
    }
    let plan = |segments: &[std::ops::Range<usize>]| {
        let s: Vec<_> = segments.iter().map(|b| Recomputed { blocks: b.clone(), offloaded: false }).collect();
        message(gpt.with_plan(&s))
    };
    eprintln!("14 {}", plan(&[0..2, 1..3]));
    eprintln!("14 {}", plan(&[0..5]));
    eprintln!("14 {}", plan(&[2..3, 0..1]));
    eprintln!("14 {}", plan(&[2..2]));
    eprintln!("14 {}", message(trace.with_plan(&[Recomputed { blocks: 0..1, offloaded: false }])));
}
#[test]
fn absurd() {
    for p in [Precision::F32, Precision::BF16, Precision::F16] {
        for (name, trace) in steps::models(p, &adamw(), StepOptions::default()) {
            for shift in 16..62 {
                for profile in [BackendProfile { threads: 256, ..flex() }, BackendProfile::cuda()] {
                    match std::panic::catch_unwind(|| trace.predict(1 << shift, &profile)) {
                        Ok(Ok(p)) => {
                            if p.peak_bytes < 1 << shift {
                                eprintln!("{name} {shift} LOW {}", p.peak_bytes)
                            }
                        }
                        Ok(Err(_)) => {}
                        Err(_) => eprintln!("{name} {shift} PANIC"),
                    }
                }
            }
        }
    }
}
