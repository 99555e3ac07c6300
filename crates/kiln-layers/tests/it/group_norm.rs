//! Instance norm compared with burn's own, and inputs that do not fit a group norm.

use burn::nn::{GroupNormConfig, InstanceNormConfig};
use burn::tensor::{DType, Device, Tensor};
use kiln_layers::{group_norm, instance_norm};

use crate::compare::{distance, tensor, values};

#[test]
fn instance_norm_is_one_group_a_channel_of_views_and_empty_images_too() {
    let device = Device::flex().autodiff();
    let instance = InstanceNormConfig::new(6).init(&device);
    let x = tensor([6, 3, 5, 7], 1, 2.0, DType::F32, &device).swap_dims(0, 1).slice([0..3, 0..6, 1..5, 0..7]);
    let far = distance(&values(&instance_norm(&instance, x.clone()).unwrap()), &values(&instance.forward(x)));
    assert!(far < 3e-5, "{far}");
    let x = Tensor::<4>::zeros([2, 6, 0, 4], &device).require_grad();
    let y = instance_norm(&instance, x.clone()).unwrap();
    assert_eq!((y.dims(), x.grad(&y.sum().backward()).unwrap().dims()), ([2, 6, 0, 4], [2, 6, 0, 4]));
    let norm = GroupNormConfig::new(2, 6).init(&device);
    let text = group_norm(&norm, Tensor::<3>::zeros([2, 4, 5], &device)).unwrap_err().to_string();
    assert_eq!(text, "the number of channels of the input is 4, and that of the norm is 6; expected the same");
}
