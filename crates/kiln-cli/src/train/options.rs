//! Combines the options of `train` with the settings of the run.

use std::path::PathBuf;

use anyhow::{Result, bail};
use kiln_compression::AdapterKind;
use kiln_data::printable;
use kiln_models::DecoderConfig;
use kiln_runs::{CHECKPOINTS, CONFIG};
use kiln_training::{BatchRule, BatchScaling, Checkpoints, Exact, OptimizerConfig};

use crate::cli::{AdapterArgs, CallArgs, LoraArgs, TeacherArgs};
use crate::given::Given;
use crate::pipelines::{
    CompressionSettings, LoraSettings, Pipeline, RunSettings, SettingsOf, TeacherSettings, peft, settings_beside,
};
use crate::settings_file::SettingsFile;
use crate::usage::Usage;

/// The options with which a run can continue. Others would change its model, its data and their order, or its precision. The device may
/// change; another device rounds differently. `config` and `out` are refused later, by a message of their own.
const MAY_CHANGE_ON_RESUME: [&str; 31] = [
    "resume",
    "config",
    "out",
    "json",
    "quiet",
    "verbose",
    "device",
    "workers",
    "loader_memory",
    "bad_samples",
    "memory",
    "store",
    "micro_batch",
    "checkpointing",
    "wait_for_memory",
    "inject_oom",
    "clip_norm",
    "learning_rate",
    "epochs",
    "max_steps",
    "evaluate_every",
    "patience",
    "reduce_after",
    "save_every",
    "keep",
    "replicas",
    "shard_optimizer",
    "stages",
    "pipeline_schedule",
    "schedule",
    "warmup",
];

/// The default layers of a model that have adapters: all linear layers of its blocks.
fn targets(model: &DecoderConfig) -> Vec<String> {
    let names: &[&str] = match model {
        DecoderConfig::Gpt(_) => &["c_attn", "c_proj", "c_fc"],
        _ => &["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    };
    names.iter().map(ToString::to_string).collect()
}

/// Refuses changes of settings with which a run cannot continue.
pub(super) fn refuse_changes(call: &CallArgs) -> Result<()> {
    let Some(run) = &call.resume else { return Ok(()) };
    match call.given.other_than(&MAY_CHANGE_ON_RESUME) {
        Some(option) => bail!(Usage(format!(
            "{option} cannot change in a run that goes on, expected a new run: --from {run} begins one with the weights and the optimizer's \
             state of this one, --init {run} with the weights that fit",
            run = printable(&run)
        ))),
        None => Ok(()),
    }
}

/// The settings file of a run of a pipeline: its own if it is resumed, that of the other run if it starts from one, else `--config`. A run
/// that starts from another one takes over its settings, but neither its initial weights nor the plan that its memory budget led to.
pub(super) fn settings_file<P: Pipeline>(
    options: &Given<RunSettings>,
    call: &CallArgs,
) -> Result<Option<SettingsFile>> {
    let Some(path) = settings_path(options, call)? else { return Ok(None) };
    let mut file = if call.resume.is_some() { SettingsFile::of_run(&path)? } else { SettingsFile::read(&path)? };
    file.expect(&P::KIND)?;
    let [init, from] = ["init", "from"].map(|option| call.given.any(&[option]));
    if from {
        file.remove_adapters();
    }
    if init {
        file.remove("run", &["from"]);
    }
    // The options ask for whole epochs. The length of a continued run is decided later.
    if call.given.any(&["epochs"]) && !call.given.any(&["max_steps", "resume"]) {
        file.remove("run", &["max_steps"]);
    }
    if from {
        file.remove("run", &["init", "store"]);
        if file.get("run", "memory").is_some() {
            file.remove("run", &["checkpointing", "optimizer_offload", "planned_micro_batch"]);
            let exact = file.get("run", "exact").cloned().and_then(|exact| exact.try_into::<Exact>().ok());
            if exact != Some(Exact::Always) {
                file.remove("run", &["micro_batch"]);
            }
        }
    }
    Ok(Some(file))
}

fn settings_path(options: &Given<RunSettings>, call: &CallArgs) -> Result<Option<PathBuf>> {
    if let Some(from) = options.path("from") {
        let shown = printable(&from);
        return match settings_beside(&from) {
            Some(file) => Ok(Some(file)),
            None => bail!(
                "cannot start from '{shown}': it belongs to no run directory, expected one with a {CONFIG}, or one of its checkpoints"
            ),
        };
    }
    let Some(resume) = &call.resume else { return Ok(call.config.clone()) };
    if call.config.is_some() || call.out.is_some() {
        bail!(Usage("--resume goes on under the run's own settings, expected neither --config nor --out".into()));
    }
    let file = resume.join(CONFIG);
    if !file.is_file() {
        bail!("cannot resume '{}': it is no run directory, expected a {CONFIG} in it", printable(&resume));
    }
    Ok(Some(file))
}

/// Applies the options of every pipeline to settings that are otherwise complete. The meaning of those about the optimizer depends on the
/// recipe's optimizer.
///
/// # Errors
/// [`Usage`] for an unknown name, invalid numbers of an optimizer, and a base batch of 0.
pub(super) fn apply<P: Pipeline>(
    settings: &mut SettingsOf<P>,
    options: &Given<RunSettings>,
    call: &CallArgs,
) -> Result<()> {
    options.apply(&mut settings.run)?;
    if let Some(rate) = call.learning_rate {
        settings.schedule.peak = rate;
    }
    settings.schedule.decay = call.schedule.unwrap_or(settings.schedule.decay);
    settings.schedule.warmup = call.warmup.unwrap_or(settings.schedule.warmup);
    if let Some(name) = call.optimizer {
        let before = settings.optimizer;
        settings.optimizer = before.switched(name).map_err(|error| Usage(error.to_string()))?;
        let factor = usual_rate(&settings.optimizer) / usual_rate(&before);
        if call.learning_rate.is_none() && factor != 1.0 {
            settings.schedule.peak *= factor;
            tracing::info!("learning rate {:.2e} for {name}; --learning-rate sets another", settings.schedule.peak);
        }
    }
    if let Some(decay) = call.weight_decay {
        settings.optimizer = settings.optimizer.with_weight_decay(decay);
    }
    settings.optimizer.check().map_err(|error| Usage(error.to_string()))?;
    settings.run.check_precision()?;
    let others = [("--allow-bf16", call.allow_bf16), ("--allow-8bit-optimizer", call.allow_8bit_optimizer)];
    if settings.run.exact == Exact::Always
        && let Some((option, _)) = others.iter().find(|(_, allows)| *allows)
    {
        bail!(Usage(format!("--exact cannot be used with {option}, which may change the numbers of the run")));
    }
    if let Some(base_batch) = call.base_batch {
        if base_batch == 0 {
            bail!(Usage("--base-batch is 0, expected at least 1".into()));
        }
        let usual = if settings.optimizer.follows_gradient() { BatchRule::Linear } else { BatchRule::Sqrt };
        settings.run.batch_scaling = Some(BatchScaling { rule: call.batch_rule.unwrap_or(usual), base_batch });
    }
    // The initial weights are in a checkpoint of the run, or of the one that it starts from.
    settings.run.weights_in_checkpoint = match &call.resume {
        Some(run) => !Checkpoints::new(run.join(CHECKPOINTS), 1)?.list()?.is_empty(),
        None => call.given.any(&["from"]),
    };
    Ok(())
}

/// The usual highest learning rate of an optimizer. If another optimizer replaces the recipe's own, the recipe's rate is multiplied by
/// the ratio of their usual rates. Lion's is a fifth of AdamW's (Chen et al. 2023, section 5: a third to a tenth). Muon takes steps of
/// AdamW's size.
fn usual_rate(optimizer: &OptimizerConfig) -> f64 {
    match optimizer.name() {
        "sgd" | "sgd8bit" => 0.1,
        "lion" => 2e-4,
        _ => 1e-3,
    }
}

impl TeacherArgs {
    pub(super) fn apply(&self, compression: &mut Option<CompressionSettings>) {
        if let Some(checkpoint) = self.teacher.clone() {
            let (temperature, share) = (self.temperature.unwrap_or(1.5), self.teacher_share.unwrap_or(0.7));
            compression.get_or_insert_default().teacher = Some(TeacherSettings { checkpoint, temperature, share });
        }
    }
}

impl LoraArgs {
    pub(super) fn apply(&self, compression: &mut Option<CompressionSettings>, model: &DecoderConfig) -> Result<()> {
        let lora = match &self.given {
            Some(folder) => {
                let (AdapterKind { rank, alpha, dora }, targets) = peft::described(folder)?;
                let (base_bits, from) = (self.adapters.base_bits, Some(folder.clone()));
                Some(LoraSettings { rank, alpha, targets, dora, base_bits, from })
            }
            None => self.adapters.settings(model),
        };
        if let Some(lora) = lora {
            compression.get_or_insert_default().lora = Some(lora);
        }
        Ok(())
    }
}

impl AdapterArgs {
    /// The adapters of a model that the options ask for.
    pub(crate) fn settings(&self, model: &DecoderConfig) -> Option<LoraSettings> {
        let rank = self.lora?;
        let targets = match self.lora_targets.is_empty() {
            true => targets(model),
            false => self.lora_targets.clone(),
        };
        let alpha = self.lora_alpha.unwrap_or(2.0 * rank as f64);
        Some(LoraSettings { rank, alpha, targets, dora: self.dora, base_bits: self.base_bits, from: None })
    }

    /// The options as words of a command.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = vec![];
        let mut add = |option: &str, value: Option<String>| {
            words.extend(value.into_iter().flat_map(|value| [option.to_owned(), value]));
        };
        add("--lora", self.lora.map(|rank| rank.to_string()));
        add("--lora-alpha", self.lora_alpha.map(|alpha| alpha.to_string()));
        add("--lora-targets", Some(self.lora_targets.join(",")).filter(|targets| !targets.is_empty()));
        words.extend(self.dora.then(|| "--dora".into()));
        words.extend(self.base_bits.into_iter().flat_map(|bits| ["--base-bits".to_owned(), bits.to_string()]));
        words
    }
}
