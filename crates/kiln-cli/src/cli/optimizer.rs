//! Options about the optimizer.

use clap::Args;

use super::values::OPTIMIZER;

/// The optimizer, and where its state is.
#[derive(Args, Default)]
pub(crate) struct OptimizerArgs {
    /// The optimizer, with its usual settings
    ///
    /// Without --learning-rate the recipe's rate is converted. State: adamw 8 bytes a parameter, adamw8bit 2, adamw4bit 1,
    /// sgd and lion 4, sgd8bit 1.
    #[arg(long, value_parser = OPTIMIZER, value_name = "NAME", help_heading = "Training")]
    pub(crate) optimizer: Option<String>,
    /// Weight decay of the optimizer; norms and biases have none [default: the optimizer's]
    ///
    /// That is 0.1 of adamw, adafactor and muon, 0.5 of lion, and 0.0005 of sgd.
    #[arg(long, visible_alias = "wd", value_name = "X", help_heading = "Training")]
    pub(crate) weight_decay: Option<f64>,
    /// Keep the optimizer's state in host memory; the numbers stay the same
    ///
    /// A parameter's state is copied to the device while the parameter is updated.
    #[arg(long, help_heading = "Memory")]
    pub(crate) optimizer_offload: bool,
    /// With --memory: keep optimizer state in 8 bits if the run does not fit otherwise
    #[arg(long, requires = "memory", help_heading = "Memory")]
    pub(crate) allow_8bit_optimizer: bool,
}

impl OptimizerArgs {
    /// The options, and whether each is given.
    pub(crate) fn given(&self) -> [(&'static str, bool); 4] {
        [
            ("--optimizer", self.optimizer.is_some()),
            ("--weight-decay", self.weight_decay.is_some()),
            ("--optimizer-offload", self.optimizer_offload),
            ("--allow-8bit-optimizer", self.allow_8bit_optimizer),
        ]
    }
}
