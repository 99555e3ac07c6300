//! Blocks, modules and stores that do not fit are refused.

use std::fs;

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::LinearConfig;
use burn::tensor::{DType, Tensor};
use kiln_checkpointing::{Chain, Error, FileStore, HostStore, Plan, Streamed};

use super::{BLOCKS, Block, adamw, blocks, device, input, sgd, step};
use crate::support::{alone, loss};

#[test]
fn blocks_without_their_parameters_give_nan_and_need_a_store() {
    let _alone = alone();
    let (streamed, model) = Streamed::create(HostStore::new(), blocks()).unwrap();
    let outside = model[0].forward(input(0, 0)).into_data();
    assert!(outside.iter::<f32>().all(f32::is_nan));
    let refused = Chain::new(&model).run(&Plan::stream(BLOCKS, 1).unwrap(), input(0, 0), Block::forward).unwrap_err();
    assert_eq!(refused, Error::NoStore { plan: "stream".into() });
    let plan = Plan::parse("0..3 stream, 3..5 recompute", BLOCKS).unwrap();
    let refused = Chain::new(&model).streamed(&streamed).run(&plan, input(0, 0), Block::forward).unwrap_err();
    assert_eq!(refused, Error::NotStreamed { plan: plan.to_string(), block: 3 });
    // An update of other modules, and blocks in 16 bits.
    let _ = loss(
        Chain::new(&model)
            .streamed(&streamed)
            .run(&Plan::stream(BLOCKS, 1).unwrap(), input(0, 0), Block::forward)
            .unwrap(),
    )
    .backward();
    let refused = streamed.update(&model[..4].to_vec(), &adamw(), 1e-2, 1.0).unwrap_err();
    assert_eq!(refused.to_string(), "the store does not fit: the module to update has no parameter 4.norm.gamma");
    let narrow: Vec<_> = blocks().into_iter().map(|block| block.map(&mut Narrow)).collect();
    let refused = Streamed::create(HostStore::new(), narrow).unwrap_err();
    assert_eq!(refused.to_string(), "the store does not fit: parameter 0.norm.gamma is F16, expected F32 or BF16");
    // Evaluation: nothing is recorded on a device without gradients.
    let valid = model.valid();
    let x = input(0, 0).inner();
    let y = Chain::new(&valid)
        .streamed(&streamed)
        .run(&Plan::stream(BLOCKS, 1).unwrap(), x.clone(), Block::forward)
        .unwrap();
    let memory = blocks().valid().iter().fold(x, |x, block| block.forward(x));
    assert_eq!(y.into_data(), memory.into_data());
}

/// Casts parameters to f16.
struct Narrow;

impl ModuleMapper for Narrow {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| Tensor::from_inner(tensor.inner().cast(DType::F16)).require_grad())
    }
}

#[test]
fn stores_that_do_not_fit_are_refused_in_one_line() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let open = || FileStore::open(&path);
    let text = |error: Error| error.to_string().replace(&path.display().to_string(), "DIR");

    let refused = Streamed::open(open().unwrap(), blocks()).unwrap_err();
    assert_eq!(text(refused), "the store does not fit: it is empty, expected the parameters of the model");
    let created = Streamed::create(open().unwrap(), blocks()).unwrap();
    assert_eq!(text(open().unwrap_err()), "the store cannot be used: DIR: this process or another one uses it");
    drop(created);
    let refused = Streamed::create(open().unwrap(), blocks()).unwrap_err();
    assert_eq!(text(refused), "the store does not fit: it has parameters already, expected an empty one");
    let wider: Vec<_> = (0..BLOCKS).map(|_| LinearConfig::new(8, 9).init(&device())).collect();
    let refused = Streamed::open(open().unwrap(), wider).unwrap_err();
    let expected = "the store does not fit: it has 0.norm.gamma [8] of F32, the model 0.weight [8, 9] of F32";
    assert_eq!(text(refused), expected);
    let refused = Streamed::open(open().unwrap(), blocks()[1..].to_vec()).unwrap_err();
    assert_eq!(text(refused), "the store does not fit: it has 20 parameters, the model 16");

    // State of another optimizer.
    let (streamed, model) = Streamed::open(open().unwrap(), blocks()).unwrap();
    step(&streamed, &model, &adamw(), &Plan::stream(BLOCKS, 1).unwrap(), 0).unwrap();
    streamed.commit("").unwrap();
    drop(streamed);
    let (streamed, model) = Streamed::open(open().unwrap(), blocks()).unwrap();
    let refused = step(&streamed, &model, &sgd(), &Plan::stream(BLOCKS, 1).unwrap(), 1).unwrap_err();
    let expected = "the optimizer cannot read the state of 0.norm.gamma: use the one that has written it";
    assert_eq!(text(refused), format!("the store does not fit: {expected}"));
    drop(streamed);

    // One wrong bit, and a file that is cut.
    let file = path.join("2-value.1");
    let whole = fs::read(&file).unwrap();
    let mut wrong = whole.clone();
    wrong[5] ^= 1;
    for damaged in [&wrong[..], &whole[..whole.len() - 1]] {
        fs::write(&file, damaged).unwrap();
        let (streamed, model) = Streamed::open(open().unwrap(), blocks()).unwrap();
        let refused = text(streamed.filled(model).unwrap_err());
        assert!(refused.starts_with("the store cannot be used: DIR/2-value.1: it is damaged: 25"), "{refused}");
    }
    fs::remove_file(&file).unwrap();
    let (streamed, model) = Streamed::open(open().unwrap(), blocks()).unwrap();
    assert!(
        text(streamed.filled(model).unwrap_err()).starts_with("the store cannot be used: DIR/2-value.1: No such file")
    );
    drop(streamed);

    let index = path.join("store.json");
    let whole = fs::read_to_string(&index).unwrap();
    fs::write(&index, &whole[..whole.len() / 2]).unwrap();
    assert!(text(open().unwrap_err()).starts_with("the store cannot be used: DIR: store.json is damaged"));
    fs::write(&index, whole.replacen("\"file\":1", "\"file\":7", 1)).unwrap();
    let refused = text(open().unwrap_err());
    assert!(refused.ends_with("expected 0 or 1"), "{refused}");
    fs::write(&index, whole.replacen("\"format\":2", "\"format\":1", 1)).unwrap();
    assert_eq!(text(open().unwrap_err()), "the store cannot be used: DIR: store.json has format 1, expected 2");

    let other = directory.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("notes.txt"), "mine").unwrap();
    let refused = FileStore::open(&other).unwrap_err().to_string();
    assert!(refused.ends_with("it has a file 'notes.txt', expected a store or an empty directory"), "{refused}");
}
