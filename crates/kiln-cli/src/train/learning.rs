//! Options of teachers and adapters, in the format of the settings file.

use anyhow::Result;
use toml::{Table, Value};

use super::overlay::{Overlay, absolute};
use crate::cli::{LoraArgs, TeacherArgs};

/// The default layers of a GPT that have adapters.
const TARGETS: [&str; 3] = ["c_attn", "c_proj", "c_fc"];

impl TeacherArgs {
    /// The given options, which a continued run refuses.
    pub(super) fn given(&self) -> [(&'static str, bool); 3] {
        [
            ("--teacher", self.teacher.is_some()),
            ("--temperature", self.temperature.is_some()),
            ("--teacher-share", self.teacher_share.is_some()),
        ]
    }

    /// # Errors
    /// Those of [`absolute`].
    pub(super) fn lay_over(&self, overlay: &mut Overlay) -> Result<()> {
        let Some(teacher) = &self.teacher else { return Ok(()) };
        let table = Table::from_iter([
            ("checkpoint".to_owned(), Value::from(absolute(teacher)?)),
            ("temperature".to_owned(), Value::from(self.temperature.unwrap_or(1.5))),
            ("share".to_owned(), Value::from(self.teacher_share.unwrap_or(0.7))),
        ]);
        overlay.set("compression", "teacher", Some(table));
        Ok(())
    }
}

impl LoraArgs {
    /// The given options, which a continued run refuses.
    pub(super) fn given(&self) -> [(&'static str, bool); 5] {
        [
            ("--weights", self.weights.is_some()),
            ("--lora", self.lora.is_some()),
            ("--lora-alpha", self.lora_alpha.is_some()),
            ("--lora-targets", !self.lora_targets.is_empty()),
            ("--dora", self.dora),
        ]
    }

    /// # Errors
    /// Those of [`absolute`].
    pub(super) fn lay_over(&self, overlay: &mut Overlay) -> Result<()> {
        overlay.set("compression", "weights", self.weights.as_deref().map(absolute).transpose()?);
        let Some(rank) = self.lora else { return Ok(()) };
        let targets = match self.lora_targets.is_empty() {
            true => TARGETS.map(str::to_owned).to_vec(),
            false => self.lora_targets.clone(),
        };
        let table = Table::from_iter([
            ("rank".to_owned(), Value::from(i64::from(rank))),
            ("alpha".to_owned(), Value::from(self.lora_alpha.unwrap_or(2.0 * f64::from(rank)))),
            ("targets".to_owned(), Value::from(targets)),
            ("dora".to_owned(), Value::from(self.dora)),
        ]);
        overlay.set("compression", "lora", Some(table));
        Ok(())
    }
}
