//! An operation that Kiln does not have is differentiated, recorded and predicted like Kiln's own.

use burn::tensor::{Device, Tensor};
use kiln_memory::Category;

#[path = "../../examples/own_operation.rs"]
mod own;

#[test]
fn a_users_operation_has_gradients_and_a_predicted_cost() {
    for device in [Device::flex(), Device::flex().autodiff()] {
        let x = Tensor::<1>::from_data([1.0, -3.0], &device);
        own::square(x).into_data().assert_eq(&[1.0f32, 9.0].into(), true);
    }
    let x = Tensor::<1>::from_data([1.0, -3.0], &Device::flex().autodiff()).require_grad();
    let gradients = own::square(x.clone()).sum().backward();
    x.grad(&gradients).unwrap().into_data().assert_eq(&[2.0f32, -6.0].into(), true);

    let prediction = own::predicted().unwrap();
    for name in ["own::square", "own::square_backward"] {
        assert_eq!(prediction.operations.iter().filter(|operation| operation.name == name).count(), 1, "{name}");
    }
    let scratch = prediction.buffers.iter().filter(|buffer| buffer.category == Category::Workspace);
    let scratch: Vec<_> = scratch.map(|buffer| (buffer.operation.as_str(), buffer.bytes)).collect();
    assert!(scratch.contains(&("own::square_backward", 64 * 512 * 4)), "{scratch:?}");
}
