//! A decoder for Hugging Face transformers.

use anyhow::{Context, Result};
use kiln_data::{TokenizerKind, printable};
use kiln_models::{Decoder, DecoderConfig, SafetensorsModel};
use kiln_report::counted;
use serde_json::{Value, json};

use super::classify::{inputs_note, write};
use super::folder::{Folder, WEIGHTS};
use super::python::Loading;
use super::readme::Readme;
use crate::cli::TrainedArgs;
use crate::device;
use crate::pipelines::{GptSettings, load_merged};
use crate::trained::{simulates_inputs, weights};

/// The files of a folder, beside the tokenizer, that say how a conversation is written and where a text ends.
const OF_FOLDER: [&str; 4] =
    ["tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "chat_template.jinja"];

pub(super) fn export(folder: &Folder, trained: &TrainedArgs, settings: &GptSettings) -> Result<()> {
    let (path, compression) = (weights(trained)?, settings.compression.as_ref());
    let device = device::open(&settings.run.device)?;
    let model: Decoder = load_merged(settings.model.init(&device)?, compression, &path)
        .with_context(|| format!("cannot read the model of '{}'", printable(&trained.run)))?;
    model.save_safetensors(folder.file(WEIGHTS))?;
    folder.json("config.json", &hugging_face(settings)?)?;

    let prompt = "Call me";
    let (input, text) = match &settings.data.text.tokenizer {
        TokenizerKind::Bytes => {
            let ids = format!("ids = torch.tensor([list(\"{prompt}\".encode())])  # a token is a byte");
            (vec!["import torch".to_owned(), ids], "bytes(ids[0].tolist()).decode(errors=\"replace\")")
        }
        TokenizerKind::Bpe(directory) => {
            for file in ["vocab.json", "merges.txt"] {
                folder.copy(&directory.join(file))?;
            }
            folder.json("tokenizer_config.json", &tokenizer_config(settings))?;
            let lines = vec![
                "from transformers import GPT2Tokenizer".to_owned(),
                "tokenizer = GPT2Tokenizer.from_pretrained(\".\")".to_owned(),
                format!("ids = tokenizer(\"{prompt}\", return_tensors=\"pt\").input_ids"),
            ];
            (lines, "tokenizer.decode(ids[0])")
        }
        TokenizerKind::Folder(directory) => {
            folder.copy(&directory.join("tokenizer.json"))?;
            for file in OF_FOLDER.map(|file| directory.join(file)) {
                if file.is_file() {
                    folder.copy(&file)?;
                }
            }
            let lines = vec![
                "from transformers import PreTrainedTokenizerFast".to_owned(),
                "tokenizer = PreTrainedTokenizerFast(tokenizer_file=\"tokenizer.json\")".to_owned(),
                format!("ids = tokenizer(\"{prompt}\", return_tensors=\"pt\", add_special_tokens=False).input_ids"),
            ];
            (lines, "tokenizer.decode(ids[0])")
        }
    };
    let (title, import, expression) = match &settings.model {
        DecoderConfig::Gpt(_) => (
            "GPT-2-style decoder",
            "from transformers import GPT2LMHeadModel",
            "GPT2LMHeadModel.from_pretrained(\".\")",
        ),
        _ => (
            "Decoder of the Llama family",
            "from transformers import AutoModelForCausalLM",
            "AutoModelForCausalLM.from_pretrained(\".\")",
        ),
    };
    let context = settings.model.context();
    let mut notes = vec![format!("It reads at most {} at once.", counted(context, "token"))];
    if simulates_inputs(compression, &path) {
        notes.push(inputs_note());
    }
    let new = (context / 2).max(1);
    let readme = Readme {
        title: title.into(),
        loading: Loading::FromConfig { imports: vec![import], expression },
        packages: "transformers",
        input,
        call: format!("ids = model.generate(ids, max_new_tokens={new}, do_sample=True, top_k=None)\ntext = {text}"),
        notes,
        onnx: vec![
            "import torch".into(),
            "model.config.use_cache = False".into(),
            format!("ids = torch.zeros(1, {context}, dtype=torch.int64)"),
            "torch.onnx.export(model, (ids,), \"model.onnx\", input_names=[\"ids\"], output_names=[\"logits\"])".into(),
        ],
    };
    write(folder, &readme)
}

/// The content of config.json, with the special tokens of the folder that the run began with, if it began with one.
fn hugging_face(settings: &GptSettings) -> Result<Value> {
    let mut config = settings.model.to_hugging_face()?;
    let own = match &settings.data.text.tokenizer {
        TokenizerKind::Folder(directory) => {
            let text = std::fs::read_to_string(directory.join("config.json")).unwrap_or_default();
            serde_json::from_str(&text).unwrap_or(Value::Null)
        }
        _ => Value::Null,
    };
    for token in ["bos_token_id", "eos_token_id", "pad_token_id"] {
        config[token] = own[token].clone();
    }
    Ok(config)
}

/// The tokenizer's config. Without it, transformers would add GPT-2's end-of-text token to a vocabulary that lacks it.
fn tokenizer_config(settings: &GptSettings) -> Value {
    json!({
        "tokenizer_class": "GPT2Tokenizer",
        "add_prefix_space": false,
        "model_max_length": settings.model.context(),
        "unk_token": null,
        "bos_token": null,
        "eos_token": null,
    })
}
