//! Which steps have the same bits however their batch is cut.

use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{DropoutConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor};
use kiln_layers::LinearCrossEntropy;
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
    in_parts: false,
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

/// A linear layer, dropout and a loss on `[samples, 3, 4]` or, if samples are `folded`, on `[3 x samples, 4]`.
fn with_dropout(folded: bool) -> StepTrace {
    recorded(
        |device| LinearConfig::new(4, 4).init(device),
        move |layer: &Linear, recorder| {
            let (samples, device) = (recorder.batch(), recorder.device());
            let x = kiln_layers::linear(layer, Tensor::<3>::zeros([samples, 3, 4], device)).unwrap();
            let drop = DropoutConfig::new(0.1).init();
            let rows = match folded {
                true => kiln_layers::dropout_layer(&drop, x.reshape([3 * samples, 4])).unwrap(),
                false => kiln_layers::dropout_layer(&drop, x).unwrap().reshape([3 * samples, 4]),
            };
            let targets = Tensor::<1, Int>::zeros([3 * samples], device);
            LinearCrossEntropy::new().forward_by_class(rows, layer.weight.val(), targets).unwrap()
        },
        IN_ORDER,
    )
}

#[test]
fn dropout_by_sample_needs_samples_along_the_first_dimension() {
    assert_eq!(with_dropout(false).mixes_samples(), None);
    let folded = with_dropout(true).mixes_samples();
    assert!(matches!(&folded, Some(Mixes::Operation { name, .. }) if name == "kiln::dropout_of_samples"), "{folded:?}");
}

#[test]
fn long_sequences_in_parts_are_not_added_up_in_order() {
    let loss = |model: &Gpt, recorder: &Recorder| {
        let ids = || Tensor::<2, Int>::zeros([recorder.batch(), 8200], recorder.device());
        model.loss(model.features(ids()), ids())
    };
    let gpt = |device: &Device| GptConfig::tiny(20, 8200).init(device).unwrap();
    assert_eq!(recorded(gpt, loss, IN_ORDER).mixes_samples(), None);
    assert!(recorded(gpt, loss, StepOptions { in_parts: true, ..IN_ORDER }).mixes_samples().is_some());
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
