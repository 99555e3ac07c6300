//! Which steps have the same bits however their batch is cut.

use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor};
use kiln_memory::{BackendProfile, Mixes, Recorder, StepOptions, StepTrace, record_step};
use kiln_models::{Gpt, GptConfig};

fn recorded<M: Module + 'static>(
    build: impl Fn(&Device) -> M,
    loss: impl Fn(&M, &Recorder) -> Tensor<1>,
    options: StepOptions,
) -> StepTrace {
    record_step(build, loss, &AdamWConfig::new().build(), options).unwrap()
}

fn gpt(dropout: f64, lean: bool) -> impl Fn(&Device) -> Gpt {
    move |device| GptConfig { dropout, lean, ..GptConfig::tiny(300, 32) }.init(device).unwrap()
}

fn gpt_loss(model: &Gpt, recorder: &Recorder) -> Tensor<1> {
    let ids = || Tensor::<2, Int>::zeros([recorder.batch(), 32], recorder.device());
    model.loss(model.features(ids()), ids())
}

const IN_ORDER: StepOptions = StepOptions {
    accumulate: false,
    in_order: true,
    gradients_in_f32: true,
    keep_parameters: false,
    scale_gradients: false,
    reads_norm: true,
    update_chunks: None,
    batches: [2, 3],
};

#[test]
fn a_decoder_on_lean_layers_may_be_cut_anywhere() {
    for (accumulate, dropout) in [(false, 0.0), (true, 0.0), (false, 0.1), (true, 0.1)] {
        let trace = recorded(gpt(dropout, true), gpt_loss, StepOptions { accumulate, ..IN_ORDER });
        assert_eq!(trace.mixes_samples(), None);
    }
}

#[test]
fn what_depends_on_the_micro_batch_is_named() {
    let mixes = |trace: StepTrace| trace.mixes_samples().unwrap();
    assert_eq!(mixes(recorded(gpt(0.1, false), gpt_loss, IN_ORDER)), Mixes::Random);
    let stock = mixes(recorded(gpt(0.0, false), gpt_loss, IN_ORDER));
    assert!(matches!(stock, Mixes::Operation { .. }), "{stock}");
    // Added up by micro-batches.
    let apart = mixes(recorded(gpt(0.0, true), gpt_loss, StepOptions { in_order: false, ..IN_ORDER }));
    assert!(matches!(apart, Mixes::Operation { .. } | Mixes::Parameter(_)), "{apart}");
    let of_burn = mixes(recorded(
        |device| LinearConfig::new(4, 3).init(device),
        |layer: &Linear, recorder| {
            let x = Tensor::<2>::zeros([recorder.batch(), 4], recorder.device());
            let y = layer.forward(x);
            MseLoss::new().forward(y.clone(), y.zeros_like(), Reduction::Mean)
        },
        IN_ORDER,
    ));
    assert!(of_burn.to_string().contains("depends on the micro-batch"), "{of_burn}");
}

#[test]
fn the_second_use_of_a_weight_has_a_sum_of_its_own() {
    let profile = BackendProfile::flex();
    let peak = |in_order| {
        let options = StepOptions { accumulate: true, in_order, ..IN_ORDER };
        recorded(gpt(0.0, true), gpt_loss, options).predict(8, &profile).unwrap().peak_bytes
    };
    let words = 300 * 128 * 4;
    assert!(peak(true) <= peak(false) + words, "{} and {} bytes", peak(true), peak(false));
}
