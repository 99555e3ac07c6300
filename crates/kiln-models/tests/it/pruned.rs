//! Models whose parameters have fewer channels than they were built with.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Tensor, Tolerance};
use kiln_models::MobileNetV2Config;

/// Halves the channels inside of the first inverted residual with an expansion.
#[derive(Default)]
struct Halve(Vec<String>);

impl ModuleMapper for Halve {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.0.push(name.to_owned());
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.0.pop();
    }
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let path = self.0.join(".");
        let Some(inside) = path.strip_prefix("blocks.1.") else { return param };
        let axis = match inside {
            "project.conv.weight" => 1,
            _ if inside.starts_with("project") => return param,
            _ => 0,
        };
        param.map(|tensor| {
            let half = tensor.dims()[axis] / 2;
            tensor.narrow(axis, 0, half)
        })
    }
}

#[test]
fn a_depthwise_convolution_has_the_groups_of_its_weight() {
    let device = Device::flex();
    let config = MobileNetV2Config::new(5).with_width(0.25);
    let x = Tensor::<4>::ones([1, 3, 32, 32], &device);
    let lean = config.init(&device).unwrap();
    let stock = config.with_lean(false).init(&device).unwrap();
    let stock = stock.load_record(lean.clone().into_record());
    let [lean, stock] = [lean, stock].map(|model| model.map(&mut Halve::default()).forward(x.clone()).into_data());
    assert_eq!(lean.shape()[..], [1, 5]);
    lean.assert_approx_eq::<f32>(&stock, Tolerance::default());
}
