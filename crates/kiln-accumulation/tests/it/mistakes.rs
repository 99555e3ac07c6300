//! Mistakes of the usual tutorials, each of which is an error or cannot be written.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Distribution, Tensor};
use kiln_accumulation::{Accumulator, Error, Fed, RunningStatistics, Weight, Window};

fn model(device: &Device) -> Linear {
    LinearConfig::new(4, 2).init(device)
}

fn loss(model: &Linear, device: &Device) -> Tensor<1> {
    model.forward(Tensor::<2>::random([3, 4], Distribution::Default, device)).mean()
}

fn refusal(outcome: Result<Fed, Error>) -> Error {
    outcome.map(|_| ()).unwrap_err()
}

#[test]
fn weights_that_do_not_fit_are_refused() {
    let device = Device::flex().autodiff();
    let model = model(&device);
    let window = || Window::open(Weight::Samples(4)).unwrap();
    let feed = |weight| refusal(window().feed(&model, weight, loss(&model, &device)));
    assert_eq!(feed(Weight::Samples(0)), Error::Zero { what: "weight" });
    assert_eq!(
        feed(Weight::Samples(5)).to_string(),
        "a micro-batch of 5 samples was fed to a window that lacks 4 samples, expected at most these"
    );
    assert_eq!(
        feed(Weight::Tokens(2)).to_string(),
        "a micro-batch of 2 tokens was fed to a window of 4 samples, expected the same unit"
    );
    assert_eq!(Window::open(Weight::Tokens(0)).unwrap_err(), Error::Zero { what: "weight" });
    for scale in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(Window::scaled(Weight::Samples(1), scale), Err(Error::Scale(_))), "{scale}");
    }
}

#[test]
fn losses_gradients_and_weights_that_do_not_fit_are_refused() {
    let device = Device::flex().autodiff();
    let model = model(&device);
    let unreduced = model.forward(Tensor::<2>::ones([3, 4], &device)).flatten(0, 1);
    let outcome = Window::open(Weight::Samples(3)).unwrap().feed(&model, Weight::Samples(3), unreduced);
    assert_eq!(refusal(outcome), Error::NotAScalar(6));
    assert_eq!(Accumulator::new().add(&model, GradientsParams::new()), Err(Error::NoGradients));
    let mut statistics = RunningStatistics::before(&model);
    for (weight, total) in [(1, 0), (3, 2)] {
        assert!(statistics.take(&model, Weight::Samples(weight), Weight::Samples(total)).is_err());
    }
    assert!(statistics.take(&model, Weight::Tokens(1), Weight::Samples(2)).is_err());
}

#[test]
fn a_forward_pass_without_gradients_is_refused() {
    let device = Device::flex();
    let window = || Window::open(Weight::Samples(3)).unwrap();
    // Under no-grad: on a device without autodiff.
    let plain = model(&device);
    let outcome = window().feed(&plain, Weight::Samples(3), loss(&plain, &device));
    assert_eq!(refusal(outcome), Error::NoGradients);
    // With a frozen model, and with the loss of another one.
    let device = device.autodiff();
    let frozen = model(&device).no_grad();
    let outcome = window().feed(&frozen, Weight::Samples(3), loss(&frozen, &device));
    assert_eq!(refusal(outcome), Error::NoGradients);
    let outcome = window().feed(&model(&device), Weight::Samples(3), loss(&model(&device), &device));
    assert_eq!(refusal(outcome), Error::NoGradients);
}

#[test]
fn a_short_last_micro_batch_completes_the_window() {
    // Counting micro-batches, as "step every 4" does, would leave it out.
    let device = Device::flex().autodiff();
    let model = model(&device);
    let mut window = Window::open(Weight::Samples(9)).unwrap();
    for size in [4, 4, 1] {
        assert!(window.missing().count() >= size);
        match window.feed(&model, Weight::Samples(size), loss(&model, &device)).unwrap() {
            Fed::Open(next) => window = next,
            Fed::Complete(batch) => {
                assert_eq!((size, batch.micro_batches, batch.weight), (1, 3, Weight::Samples(9)));
                return;
            }
        }
    }
    panic!("the window did not complete");
}

#[test]
fn low_precision_gradients_are_added_in_f32() {
    // 1 + 256 times 2^-9: in bf16 every addition would round back to 1.
    let device = Device::flex().autodiff();
    let model = model(&device);
    let gradients = |value: f32| {
        let mut gradients = GradientsParams::new();
        let weight = Tensor::<2>::full([4, 2], value, &device.clone().inner()).cast(DType::BF16);
        gradients.register(model.weight.id, weight);
        gradients
    };
    let mut sum = Accumulator::new();
    sum.add(&model, gradients(1.0)).unwrap();
    for _ in 0..256 {
        sum.add(&model, gradients(1.0 / 512.0)).unwrap();
    }
    let total = sum.finish().get::<2>(model.weight.id).unwrap();
    assert_eq!(total.dtype(), DType::F32);
    assert!(total.into_data().iter::<f32>().all(|value| value == 1.5));
}
