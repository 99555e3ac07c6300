//! Inputs that do not fit together are errors that name both sides.

use burn::module::Param;
use burn::nn::{LayerNormConfig, LinearConfig};
use burn::tensor::{DType, Device, Int, Tensor};
use kiln_layers::{LinearCrossEntropy, Mask, gelu, layer_norm, linear, self_attention};

#[test]
fn sizes_dtypes_and_settings() {
    let device = Device::flex();
    let zeros = |shape: [usize; 2]| Tensor::<2>::zeros(shape, &device);
    let row = |length: usize| Tensor::<1>::zeros([length], &device);
    let targets = |count: usize| Tensor::<1, Int>::zeros([count], &device);
    let message = |result: Result<(), kiln_layers::Error>| result.unwrap_err().to_string();

    let double = zeros([2, 2]).cast(DType::F64);
    assert_eq!(message(gelu(double).map(|_| ())), "the input is F64, expected F32, F16 or BF16");
    let mut norm = LayerNormConfig::new(8).init(&device);
    assert_eq!(
        message(layer_norm(&norm, zeros([2, 7])).map(|_| ())),
        "the last dimension of the input is 7, and the length of the weight is 8; expected the same"
    );
    norm.beta = Some(Param::from_tensor(row(8).cast(DType::F16)));
    assert_eq!(
        message(layer_norm(&norm, zeros([2, 8])).map(|_| ())),
        "the weight is F32, and the bias is F16; expected the same"
    );
    let layer = LinearConfig::new(8, 3).init(&device);
    assert_eq!(
        message(linear(&layer, zeros([2, 7])).map(|_| ())),
        "the last dimension of the input is 7, and the number of rows of the weight is 8; expected the same"
    );
    let heads = |heads| message(self_attention(Tensor::zeros([1, 4, 24], &device), heads, Mask::Causal).map(|_| ()));
    for count in [0, 3, 5] {
        let text = heads(count);
        assert!(text.starts_with(&format!("the number of heads is {count}, expected")), "{text}");
    }
    assert_eq!(
        message(self_attention(Tensor::zeros([1, 4, 24], &device), 2, Mask::Window(0)).map(|_| ())),
        "the window of keys is 0, expected a positive number"
    );

    let loss = |hidden, weight, bias, rows| {
        message(LinearCrossEntropy::new().forward(hidden, weight, bias, targets(rows)).map(|_| ()))
    };
    assert_eq!(
        loss(zeros([4, 8]), zeros([7, 3]), None, 4),
        "the width of the hidden rows is 8, and the number of rows of the weight is 7; expected the same"
    );
    assert_eq!(
        loss(zeros([4, 8]), zeros([8, 3]), None, 5),
        "the number of hidden rows is 4, and the number of targets is 5; expected the same"
    );
    assert_eq!(
        loss(zeros([4, 8]), zeros([8, 3]), Some(row(2)), 4),
        "the number of classes of the weight is 3, and the length of the bias is 2; expected the same"
    );
    assert_eq!(
        loss(zeros([4, 8]).cast(DType::BF16), zeros([8, 3]), None, 4),
        "the hidden rows is BF16, and the weight is F32; expected the same"
    );
    let smoothed = LinearCrossEntropy::new().with_label_smoothing(1.5);
    let text = message(smoothed.forward(zeros([4, 8]), zeros([8, 3]), None, targets(4)).map(|_| ()));
    assert_eq!(text, "label smoothing is 1.5, expected a number from 0 to 1");
}
