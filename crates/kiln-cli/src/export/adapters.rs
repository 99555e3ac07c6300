//! The adapters of a decoder's run, as peft reads them.

use anyhow::{Context, Result, bail};
use kiln_compression::Adapters;
use kiln_data::printable;
use kiln_models::{Decoder, DecoderConfig};
use kiln_precision::Policy;

use super::folder::Folder;
use crate::cli::TrainedArgs;
use crate::device;
use crate::pipelines::{CompressionSettings, GptSettings, checkpoint_of, load_to_evaluate, peft};
use crate::trained::weights;
use crate::usage::Usage;

/// The parameters of the first layers of a decoder.
const EMBEDDINGS: [&str; 3] = ["embed_tokens.", "wte.", "wpe."];

/// The weights that adapters were trained beside, in transformers.
const FOUR_BITS: &str = "from transformers import BitsAndBytesConfig\n\nweights = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=\"nf4\", bnb_4bit_use_double_quant=True)\n";

/// Writes `adapter_config.json` and `adapter_model.safetensors`, and lines of Python that load them.
///
/// # Errors
/// [`Usage`] for a run without adapters and for a file of merged weights, and those of the model and the files.
pub(super) fn export(folder: &Folder, trained: &TrainedArgs, settings: &GptSettings) -> Result<()> {
    let (run, path) = (printable(&trained.run), weights(trained)?);
    let compression = settings.compression.as_ref().filter(|own| own.lora.is_some());
    if compression.is_some_and(|own| own.prune.is_some() || own.quantize.is_some()) {
        bail!(Usage(format!(
            "--format is peft, and the adapters of '{run}' belong to pruned or quantised weights, expected adapters alone"
        )));
    }
    if compression.is_none() {
        bail!(Usage(format!(
            "--format is peft, and '{run}' has no adapters, expected a run of `train gpt --lora RANK`"
        )));
    }
    if checkpoint_of(&path)?.is_none() {
        bail!(Usage(format!(
            "--format is peft, and '{run}' has its adapters merged, expected a run with a checkpoint"
        )));
    }
    let device = device::open(&settings.run.device)?;
    let plain: Decoder = settings.model.init(&device)?;
    let model = load_to_evaluate(plain, compression, &Policy::default(), &path)
        .with_context(|| format!("cannot read the adapters of '{run}'"))?;
    let class = match &settings.model {
        DecoderConfig::Gpt(_) => "GPT2LMHeadModel",
        _ => "AutoModelForCausalLM",
    };
    let adapters = Adapters::of(&model)?;
    if let Some((words, _)) = adapters.iter().find(|(path, _)| EMBEDDINGS.iter().any(|own| path.starts_with(own))) {
        let expected = "expected adapters of linear layers";
        bail!(Usage(format!(
            "--format is peft, which has other files for adapters of embeddings, and '{run}' has one of '{words}', {expected}"
        )));
    }
    adapters.save(folder.directory(), |path| peft::layer(&settings.model, path))?;
    let began = settings.run.init.as_deref();
    let base = began.map_or_else(|| "the model that the run began with".into(), printable);
    let (settings, argument) = match compression.is_some_and(CompressionSettings::has_codes) {
        true => (FOUR_BITS, ", quantization_config=weights"),
        false => ("", ""),
    };
    folder.text(
        "README.md",
        &format!(
            "# Adapters\n\nOf {base}. With transformers and peft:\n\n```python\nfrom peft import PeftModel\nfrom transformers import {class}\n\n{settings}\
             model = PeftModel.from_pretrained({class}.from_pretrained(\"BASE\"{argument}), \".\")\n```\n"
        ),
    )
}
