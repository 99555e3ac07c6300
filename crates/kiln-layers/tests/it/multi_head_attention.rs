//! Multi-head attention compared with burn's module.

use burn::module::Module;
use burn::nn::attention::{MhaInput, MultiHeadAttentionConfig as StockConfig, generate_autoregressive_mask};
use burn::tensor::{DType, Device, Tensor};
use kiln_layers::{Mask, MultiHeadAttention, MultiHeadAttentionConfig};

use crate::compare::{distance, tensor, values};

#[test]
fn outputs_and_gradients_are_those_of_burns_module() {
    let device = Device::flex().autodiff();
    for bias in [true, false] {
        let stock = StockConfig::new(24, 3).with_dropout(0.0);
        let stock = stock.with_query_bias(bias).with_key_bias(bias).with_value_bias(bias).init(&device);
        let ours = MultiHeadAttention::from_burn(stock.clone()).unwrap();
        let x = || tensor([2, 19, 24], 1, 1.0, DType::F32, &device).require_grad();
        let gradient = tensor([2, 19, 24], 2, 1.0, DType::F32, &device);
        let expected = {
            let x = x();
            let mask = generate_autoregressive_mask(2, 19, &device);
            let y = stock.forward(MhaInput::self_attn(x.clone()).mask_attn(mask)).context;
            let gradients = (y.clone() * gradient.clone()).sum().backward();
            let weights = [&stock.query, &stock.key, &stock.value].map(|part| part.weight.grad(&gradients).unwrap());
            let weight = Tensor::cat(weights.to_vec(), 1);
            [values(&y), values(&x.grad(&gradients).unwrap()), values(&weight)]
        };
        let x = x();
        let y = ours.forward(x.clone(), Mask::Causal).unwrap();
        let gradients = (y.clone() * gradient).sum().backward();
        let weight = ours.qkv.weight.grad(&gradients).unwrap();
        let got = [values(&y), values(&x.grad(&gradients).unwrap()), values(&weight)];
        for (got, expected) in got.iter().zip(&expected) {
            let far = distance(got, expected);
            assert!(far < 3e-5, "{far}");
        }
    }
}

#[test]
fn parameters_of_burns_module_come_back_bit_for_bit() {
    let device = Device::flex();
    for bias in [true, false] {
        let stock = StockConfig::new(12, 2).with_query_bias(bias).with_key_bias(bias).with_value_bias(bias);
        let stock = stock.with_dropout(0.25).init(&device);
        let back = MultiHeadAttention::from_burn(stock.clone()).unwrap().into_burn();
        let linear = |module: &burn::nn::attention::MultiHeadAttention| {
            [&module.query, &module.key, &module.value, &module.output]
                .map(|linear| (values(&linear.weight.val()), linear.bias.as_ref().map(|bias| values(&bias.val()))))
        };
        assert_eq!(linear(&back), linear(&stock));
        assert_eq!((back.n_heads, back.d_k, back.d_model), (2, 6, 12));
        assert_eq!(back.dropout.prob, 0.25);
        // A record of burn's module loads into the converted module, whose parameters make this crate's module again.
        let loaded = back.load_record(stock.clone().into_record());
        assert_eq!(linear(&loaded), linear(&stock));
        assert_eq!(loaded.num_params(), stock.num_params());
    }
}

#[test]
fn dropout_is_for_training_and_follows_the_seed_of_the_device() {
    let device = Device::flex().autodiff();
    let module = MultiHeadAttentionConfig::new(16, 2).with_dropout(0.5).init(&device).unwrap();
    let x = tensor([1, 30, 16], 1, 1.0, DType::F32, &device);
    let run = |seed: u64| {
        device.seed(seed);
        values(&module.forward(x.clone(), Mask::None).unwrap())
    };
    // Tests that run at the same time draw from the same generator.
    assert!((0..50).any(|_| run(1) == run(1)));
    assert_ne!(run(1), run(2));
    let plain = module.clone().valid();
    let evaluate = || values(&plain.forward(x.clone().inner(), Mask::None).unwrap());
    assert_eq!(evaluate(), evaluate());
}

#[test]
fn modules_that_cannot_be_converted_are_errors() {
    let device = Device::flex();
    let message = |config: StockConfig| MultiHeadAttention::from_burn(config.init(&device)).unwrap_err().to_string();
    assert_eq!(message(StockConfig::new(8, 2).with_quiet_softmax(true)), "quiet softmax is on, expected softmax");
    assert_eq!(
        message(StockConfig::new(8, 2).with_key_bias(false)),
        "the number of biases of queries, keys and values is 2, expected 3 or none"
    );
    assert_eq!(
        MultiHeadAttentionConfig::new(8, 3).init(&device).unwrap_err().to_string(),
        "the number of heads is 3 for a width of 8, expected a divisor of the width"
    );
    let module = MultiHeadAttentionConfig::new(8, 2).init(&device).unwrap();
    assert_eq!(
        module.forward(Tensor::zeros([1, 2, 9], &device), Mask::None).unwrap_err().to_string(),
        "the last dimension of the input is 9, and the width of the module is 8; expected the same"
    );
}

#[test]
fn frozen_modules_stay_frozen() {
    let device = Device::flex().autodiff();
    let stock = StockConfig::new(12, 2).init(&device).no_grad();
    let ours = MultiHeadAttention::from_burn(stock).unwrap();
    assert!(!ours.qkv.weight.is_require_grad() && !ours.qkv.bias.as_ref().unwrap().is_require_grad());
    let back = ours.into_burn();
    assert!(!back.key.weight.is_require_grad() && !back.value.bias.unwrap().is_require_grad());
}
