//! Options about the optimizer.

use clap::Args;

/// The optimizer, where its state is, and the learning rate that fits the batch.
#[derive(Args, Default)]
pub(crate) struct OptimizerArgs {
    /// adamw, adamw8bit, adamw4bit, adafactor, lion, muon, sgd or sgd8bit, with its usual settings. Without --learning-rate the recipe's rate
    /// is converted [default: that of the recipe]
    #[arg(long, value_name = "NAME")]
    pub(crate) optimizer: Option<String>,
    /// Keep the optimizer's state in host memory, and copy it to the device while a parameter is updated; the numbers stay the same
    #[arg(long)]
    pub(crate) optimizer_offload: bool,
    /// With --memory: keep the optimizer's state in 8 bits if the run does not fit otherwise
    #[arg(long, requires = "memory")]
    pub(crate) allow_8bit_optimizer: bool,
    /// The learning rate is that of batches of N samples: scale it to --batch-size, linearly for sgd, else with the root
    #[arg(long, value_name = "N")]
    pub(crate) base_batch: Option<u32>,
    /// With --base-batch: linear or sqrt
    #[arg(long, value_name = "RULE", requires = "base_batch")]
    pub(crate) batch_rule: Option<String>,
}

impl OptimizerArgs {
    /// The options, and whether each is given.
    pub(crate) fn given(&self) -> [(&'static str, bool); 5] {
        [
            ("--optimizer", self.optimizer.is_some()),
            ("--optimizer-offload", self.optimizer_offload),
            ("--allow-8bit-optimizer", self.allow_8bit_optimizer),
            ("--base-batch", self.base_batch.is_some()),
            ("--batch-rule", self.batch_rule.is_some()),
        ]
    }
}
