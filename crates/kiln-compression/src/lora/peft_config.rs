//! The configuration of adapters, as peft writes it.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

/// peft's `LoraConfig`, as far as it has meaning here.
#[derive(Serialize, Deserialize)]
pub(super) struct Config {
    pub(super) peft_type: String,
    pub(super) r: usize,
    pub(super) lora_alpha: f64,
    #[serde(default)]
    pub(super) use_rslora: bool,
    #[serde(default)]
    pub(super) use_dora: bool,
    #[serde(default)]
    pub(super) fan_in_fan_out: bool,
    #[serde(default = "none")]
    pub(super) bias: String,
    #[serde(default, deserialize_with = "any_targets")]
    pub(super) target_modules: BTreeSet<String>,
    #[serde(default)]
    pub(super) inference_mode: bool,
    #[serde(default)]
    pub(super) base_model_name_or_path: Option<String>,
    #[serde(default)]
    pub(super) task_type: Option<String>,
    #[serde(default, skip_serializing)]
    pub(super) rank_pattern: Option<HashMap<String, serde_json::Value>>,
    #[serde(default, skip_serializing)]
    pub(super) alpha_pattern: Option<HashMap<String, serde_json::Value>>,
}

pub(super) fn none() -> String {
    "none".into()
}

/// The targets are not read: the names of the weights say more. peft writes a list, a regular expression or nothing.
fn any_targets<'de, D: serde::Deserializer<'de>>(from: D) -> Result<BTreeSet<String>, D::Error> {
    serde::de::IgnoredAny::deserialize(from).map(|_| BTreeSet::new())
}

impl Config {
    pub(super) fn scale(&self) -> f64 {
        let rank = self.r as f64;
        self.lora_alpha / if self.use_rslora { rank.sqrt() } else { rank }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let pattern = |pattern: &Option<HashMap<_, _>>| pattern.as_ref().is_some_and(|p| !p.is_empty());
        if self.peft_type != "LORA" {
            return Err(format!("peft_type is '{}', expected 'LORA'", self.peft_type));
        }
        if self.r == 0 || !self.lora_alpha.is_finite() {
            return Err(format!("r is {} and lora_alpha {}", self.r, self.lora_alpha));
        }
        if self.bias != "none" {
            return Err(format!("bias is '{}', expected 'none'", self.bias));
        }
        if pattern(&self.rank_pattern) || pattern(&self.alpha_pattern) {
            return Err("rank_pattern and alpha_pattern are set, expected one rank and one alpha".into());
        }
        Ok(())
    }
}
