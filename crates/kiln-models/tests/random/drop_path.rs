//! Branches of a vision transformer that training leaves out: which, how often, and never in evaluation.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Distribution, Tensor};
use kiln_models::{Vit, VitConfig};

use crate::turn;

/// Two blocks, of which the second leaves out branches, on a device whose random numbers begin anew.
fn vit(drop_path: f64, lean: bool, device: &Device) -> Vit {
    device.seed(3);
    let config = VitConfig::named("vit_tiny", 4).unwrap().with_width(16, 2).with_blocks(2).with_image(8).with_patch(4);
    let model = config.with_drop_path(drop_path).with_lean(lean).init(device).unwrap();
    model.visit(&mut Draw);
    model
}

/// Draws the weights, which burn would do where they are first used.
struct Draw;

impl ModuleVisitor for Draw {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let _ = param.val();
    }
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

fn uniform<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Uniform(-1.0, 1.0), device)
}

#[test]
fn without_drop_path_no_random_number_is_drawn() {
    let _turn = turn();
    let device = Device::flex().autodiff();
    for lean in [true, false] {
        let model = vit(0.0, lean, &device);
        let images = uniform([2, 3, 8, 8], &device);
        device.seed(5);
        let expected = numbers(uniform([4], &device));
        device.seed(5);
        let _ = numbers(model.forward(images));
        assert_eq!(numbers(uniform([4], &device)), expected);
    }
}

#[test]
fn evaluation_leaves_nothing_out() {
    let _turn = turn();
    let device = Device::flex();
    for lean in [true, false] {
        let images = uniform([3, 3, 8, 8], &device);
        let expected = numbers(vit(0.0, lean, &device).forward(images.clone()));
        assert_eq!(numbers(vit(0.9, lean, &device).forward(images)), expected);
    }
}

/// The tokens behind the last block are x, x + 2a, x + 2b or x + 2a + 2c: a is the branch of attention, b and c what
/// the feed-forward layer makes of x and of x + 2a.
#[test]
fn a_sample_keeps_or_loses_a_whole_branch_by_itself() {
    let _turn = turn();
    let (device, samples) = (Device::flex().autodiff(), 400);
    for lean in [true, false] {
        let model = vit(0.5, lean, &device);
        let [patches, first, last] = &model.blocks()[..] else { panic!("three blocks") };
        let image = uniform([1, 3, 8, 8], &device).expand([samples, 3, 8, 8]);
        let x = patches.forward(image);
        let before = numbers(first.forward(x.clone()));
        // The first block has the rate 0.
        assert_eq!(before, numbers(vit(0.0, lean, &device).blocks()[1].forward(x.clone())));
        let after = numbers(last.forward(first.forward(x)));
        let each = after.len() / samples;
        let mut kinds: Vec<(Vec<f32>, usize)> = vec![];
        for sample in after.chunks(each) {
            let near = |kind: &Vec<f32>| kind.iter().zip(sample).all(|(a, b)| (a - b).abs() < 1e-5);
            match kinds.iter_mut().find(|(kind, _)| near(kind)) {
                Some((_, count)) => *count += 1,
                None => kinds.push((sample.to_vec(), 1)),
            }
        }
        assert_eq!(kinds.len(), 4, "lean {lean}");
        assert!(kinds.iter().all(|(_, count)| (60..140).contains(count)), "lean {lean}");
        let unchanged = |kind: &[f32]| kind.iter().zip(&before).all(|(a, b)| (a - b).abs() < 1e-6);
        assert_eq!(kinds.iter().filter(|(kind, _)| unchanged(kind)).count(), 1, "lean {lean}");
    }
}
