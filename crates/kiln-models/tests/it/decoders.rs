//! Decoders compute the results of transformers (`fixtures/decoders/record.py`), configured and loaded from its folders.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Int, Tensor, TensorData};
use kiln_models::{Decoder, DecoderConfig, Error, LlamaConfig, NOT_LEARNED, SafetensorsModel, Scaling};
use safetensors::{Dtype, SafeTensors};

/// The cases. The first is in several files, the second in bf16, the third in f16.
const CASES: [&str; 7] = ["llama", "llama-biased", "qwen2", "qwen3", "mistral", "gpt2", "smollm"];

fn folder(case: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/decoders").join(case)
}

type Recorded = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// The tensors of a file in f32.
fn recorded(path: &Path) -> Recorded {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let numbers = |dtype, data: &[u8]| -> Vec<f32> {
        match dtype {
            Dtype::I64 => data.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b) as f32).collect(),
            _ => data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        }
    };
    file.iter()
        .map(|(key, view)| (key.to_owned(), (view.shape().to_vec(), numbers(view.dtype(), view.data()))))
        .collect()
}

fn load(case: &str, device: &Device) -> Decoder {
    let folder = folder(case);
    DecoderConfig::from_folder(&folder).unwrap().load(&folder, device).unwrap()
}

fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// Largest difference over the largest magnitude of the expected values.
#[track_caller]
fn assert_close(what: &str, got: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    let error = got.iter().zip(expected).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(error <= tolerance * scale, "{what}: off by {error:e}, largest value {scale:e}");
}

/// The norms of the gradients of all parameters, by transformers' names.
struct Norms<'a>(&'a Gradients, Vec<String>, Vec<(String, f32)>);

impl ModuleVisitor for Norms<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.1.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.1.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let name = self.1.join(".").replace("gamma", "weight").replace("beta", "bias");
        let gradient = param.val().grad(self.0).unwrap_or_else(|| panic!("{name} has no gradient"));
        self.2.push((name, (gradient.clone() * gradient).sum().sqrt().into_scalar()));
    }
}

#[test]
fn logits_losses_and_gradients_are_those_of_transformers() {
    let device = Device::flex().autodiff();
    for (case, lean) in CASES.into_iter().flat_map(|case| [true, false].map(|lean| (case, lean))) {
        let expected = recorded(&folder(case).join("expected.safetensors"));
        let config = match DecoderConfig::from_folder(folder(case)).unwrap() {
            DecoderConfig::Gpt(config) => DecoderConfig::Gpt(config.with_lean(lean)),
            DecoderConfig::Llama(config) => DecoderConfig::Llama(config.with_lean(lean)),
            _ => unreachable!(),
        };
        let model = config.load(folder(case), &device).unwrap();
        let (shape, ids) = &expected["input"];
        let ids = ids.iter().map(|id| *id as i64).collect::<Vec<_>>();
        let ids_bt = Tensor::<2, Int>::from_data(TensorData::new(ids, shape.clone()), &device);
        assert_close(case, &host(model.forward(ids_bt.clone())), &expected["logits"].1, 1e-4);
        let [_, t] = ids_bt.dims();
        let (inputs, targets) = (ids_bt.clone().narrow(1, 0, t - 1), ids_bt.narrow(1, 1, t - 1));
        let x_btc = model.blocks().iter().fold(model.embed_by_rows(None, inputs), |x, block| block.forward(x));
        let loss = model.loss_by_rows(None, x_btc, targets);
        assert_close(&format!("the loss of {case}"), &host(loss.clone()), &expected["loss"].1, 1e-5);
        let gradients = loss.backward();
        let mut norms = Norms(&gradients, vec![], vec![]);
        model.visit(&mut norms);
        let names = ["", "model.", "transformer."];
        for (name, norm) in &norms.2 {
            let found = names.iter().find_map(|prefix| expected.get(&format!("grad_norm.{prefix}{name}")));
            let (_, recorded) = found.unwrap_or_else(|| panic!("{name} of {case} was not recorded"));
            let (off, recorded) = ((norm - recorded[0]).abs(), recorded[0]);
            // The bias of keys changes no softmax: its gradient is 0 but for rounding.
            assert!(off <= 1e-3 * recorded + 1e-6, "{name} of {case}: {norm:e}, expected {recorded:e}");
        }
        assert_eq!(norms.2.len(), expected.keys().filter(|key| key.starts_with("grad_norm.")).count(), "{case}");
    }
}

#[test]
fn a_loss_of_some_targets_is_the_mean_over_these() {
    let device = Device::flex();
    for (case, lean) in ["llama", "smollm", "gpt2"].into_iter().flat_map(|case| [true, false].map(|lean| (case, lean)))
    {
        let config = DecoderConfig::from_folder(folder(case)).unwrap().with_lean(lean);
        let model = config.load(folder(case), &device).unwrap();
        let ids = |ids: [i64; 6]| Tensor::<1, Int>::from_data(ids, &device).reshape([2, 3]);
        let (inputs, targets) = ([5, 6, 7, 8, 9, 10], [6, 7, 11, 9, 10, 12]);
        let x_btc = model.blocks().iter().fold(model.embed_by_rows(None, ids(inputs)), |x, block| block.forward(x));
        let loss = |learned: &[usize]| {
            let mut some = [NOT_LEARNED; 6];
            learned.iter().for_each(|at| some[*at] = targets[*at]);
            host(model.learned_loss_by_rows(None, x_btc.clone(), ids(some)))[0]
        };
        let whole = host(model.loss_by_rows(None, x_btc.clone(), ids(targets)))[0];
        assert_close(case, &[loss(&[0, 1, 2, 3, 4, 5])], &[whole], 1e-6);
        let some = [1, 2, 4];
        let mean = some.iter().map(|at| loss(&[*at])).sum::<f32>() / some.len() as f32;
        assert_close(case, &[loss(&some)], &[mean], 1e-5);
    }
}

#[test]
fn what_is_saved_has_the_names_and_values_of_what_was_loaded() {
    let device = Device::flex();
    let written = tempfile::tempdir().unwrap();
    for case in CASES {
        let model = load(case, &device);
        let path = written.path().join("model.safetensors");
        model.save_safetensors(&path).unwrap();
        let config = DecoderConfig::from_folder(folder(case)).unwrap();
        fs::write(written.path().join("config.json"), config.to_hugging_face().unwrap().to_string()).unwrap();
        let read = DecoderConfig::from_folder(written.path()).unwrap();
        assert_eq!(read, config, "{case}");
        let again = read.load(written.path(), &device).unwrap();
        let ids = || Tensor::<2, Int>::from_data(TensorData::new((0..20_i64).collect(), [1, 20]), &device);
        assert_eq!(host(model.forward(ids())), host(again.forward(ids())), "{case}");
        if case != "llama" {
            let bytes = [fs::read(&path).unwrap(), fs::read(folder(case).join("model.safetensors")).unwrap()];
            let [ours, theirs] = bytes.each_ref().map(|bytes| SafeTensors::deserialize(bytes).unwrap());
            let names = |file: &SafeTensors<'_>| {
                let mut names: Vec<_> =
                    file.iter().map(|(name, view)| (name.to_owned(), view.shape().to_vec())).collect();
                names.sort();
                names
            };
            assert_eq!(names(&ours), names(&theirs), "{case}");
        }
    }
}

/// A copy of a case's folder with a changed `config.json`.
fn changed(case: &str, old: &str, new: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in fs::read_dir(folder(case)).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    let config = fs::read_to_string(copy.path().join("config.json")).unwrap();
    assert!(config.contains(old), "{config}");
    fs::write(copy.path().join("config.json"), config.replace(old, new)).unwrap();
    copy
}

#[test]
fn folders_that_cannot_be_taken_are_refused_by_name() {
    let missing = tempfile::tempdir().unwrap();
    let error = DecoderConfig::from_folder(missing.path()).unwrap_err().to_string();
    assert!(error.contains("config.json") && error.contains("expected the folder of a Hugging Face model"), "{error}");
    for (case, old, new, expected) in [
        (
            "llama",
            "\"llama\"",
            "\"falcon\"",
            "model_type is 'falcon', expected one of gpt2, llama, mistral, qwen2, qwen3",
        ),
        ("llama", "\"model_type\"", "\"kind\"", "it has no model_type, expected one of gpt2"),
        ("llama", "{\n  \"arch", "\n  \"arch", "it is no JSON"),
        ("llama", "\"silu\"", "\"gelu\"", "hidden_act is 'gelu', expected silu"),
        (
            "llama",
            "\"rope_type\": \"llama3\"",
            "\"rope_type\": \"yarn\"",
            "rope_type is 'yarn', expected default, linear or llama3",
        ),
        ("llama", "\"factor\"", "\"other\"", "its rotary frequencies have no factor"),
        ("llama", "\"hidden_size\": 32,", "", "not the configuration of llama: missing field `hidden_size`"),
        (
            "mistral",
            "\"vocab_size\"",
            "\"quantization_config\": {\"quant_method\": \"awq\"}, \"vocab_size\"",
            "its weights are quantised ('awq'), expected a model in f32, f16 or bf16",
        ),
        ("gpt2", "gelu_new", "relu", "activation_function is 'relu', expected gelu_new"),
        (
            "gpt2",
            "\"scale_attn_by_inverse_layer_idx\": false",
            "\"scale_attn_by_inverse_layer_idx\": true",
            "scale_attn_by_inverse_layer_idx is true, expected false",
        ),
    ] {
        let copy = changed(case, old, new);
        let error = DecoderConfig::from_folder(copy.path()).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("config.json"), "{error}");
    }
    for (case, old, new, expected) in [
        (
            "qwen3",
            "\"num_hidden_layers\": 3",
            "\"num_hidden_layers\": 4",
            "11 tensors are missing, the first is 'layers.3.input_layernorm.gamma'",
        ),
        (
            "qwen3",
            "\"num_hidden_layers\": 3",
            "\"num_hidden_layers\": 2",
            "11 tensors are not of this model, the first is 'layers.2.",
        ),
        ("llama-biased", "\"mlp_bias\": true", "\"mlp_bias\": false", "9 tensors are not of this model"),
        (
            "mistral",
            "\"num_key_value_heads\": 2",
            "\"num_key_value_heads\": 3",
            "kv_heads is 3, expected a divisor of the heads, 4",
        ),
        (
            "mistral",
            "\"vocab_size\": 97",
            "\"vocab_size\": 98",
            "'embed_tokens.weight' is [97, 32] in the file and [98, 32] in the model",
        ),
    ] {
        let copy = changed(case, old, new);
        let error = match DecoderConfig::from_folder(copy.path()).unwrap().load(copy.path(), &Device::flex()) {
            Ok(_) => panic!("{new} was accepted"),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn what_files_leave_out_or_say_twice_is_as_transformers_reads_it() {
    let read = |case: &str, old: &str, new: &str| match DecoderConfig::from_folder(changed(case, old, new).path()) {
        Ok(DecoderConfig::Llama(config)) => config,
        other => panic!("{other:?}"),
    };
    let whole = read("mistral", "", "");
    assert_eq!((whole.window, whole.kv_heads), (Some(6), 2));
    assert_eq!(read("mistral", "\"sliding_window\": 6,", "").window, Some(4096));
    assert_eq!(read("mistral", "\"sliding_window\": 6", "\"sliding_window\": null").window, None);
    assert_eq!(read("qwen3", "\"head_dim\": 16,", "").depth, 128);
    // Older files have the frequencies by other names, and some have both names of their kind.
    let old = "\"rope_parameters\": {\n    \"rope_theta\": 10000.0,\n    \"rope_type\": \"default\"\n  }";
    let new =
        "\"rope_theta\": 500.0, \"rope_scaling\": {\"type\": \"linear\", \"rope_type\": \"linear\", \"factor\": 2.0}";
    let config = read("mistral", old, new);
    assert_eq!((config.theta, config.scaling), (500.0, Scaling::Linear { factor: 2.0 }));
    // No family has a window and norms of heads of which all see the same tokens, without a list of blocks.
    let mixed = LlamaConfig { head_norms: true, hidden_bias: true, ..whole };
    let error = DecoderConfig::Llama(mixed).to_hugging_face().unwrap_err().to_string();
    assert!(error.contains("qwen3") && error.contains("llama, mistral, qwen2, qwen3"), "{error}");
}

#[test]
fn files_of_an_index_are_read_from_its_folder_alone() {
    let refused = |copy: &Path| match DecoderConfig::from_folder(copy).unwrap().load(copy, &Device::flex()) {
        Err(Error::Load { reason, .. }) => reason,
        other => panic!("{:?}", other.map(|_| ())),
    };
    let index = "model.safetensors.index.json";
    let copy = changed("llama", "", "");
    let text = fs::read_to_string(copy.path().join(index)).unwrap();
    let of = |old: &str, new: &str| {
        fs::write(copy.path().join(index), text.replace(old, new)).unwrap();
        refused(copy.path())
    };
    assert!(
        of("model-00001", "../model-00001").contains("'../model-00001-of-00004.safetensors', expected one beside it")
    );
    assert!(of("model-00002", "model-00009").contains("model-00009-of-00004.safetensors: no such file"));
    assert!(of("model.norm.weight", "model.norm.bias").contains("'model.norm.bias' is missing in"));
    assert!(of("weight_map", "map").contains("not an index of safetensors files"));
    fs::remove_file(copy.path().join(index)).unwrap();
    assert!(refused(copy.path()).contains("neither model.safetensors nor model.safetensors.index.json"));
}
