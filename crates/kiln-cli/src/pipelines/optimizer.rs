//! The learning rates that optimizers usually begin with.

use kiln_training::OptimizerConfig;

/// The highest rate of a run whose recipe was made for none of the optimizers: what a recipe's rate is converted by when another optimizer
/// takes the place of its own. Lion's is a fifth of AdamW's (Chen et al. 2023, section 5: a third to a tenth). Muon takes steps of AdamW's
/// size.
pub fn usual_rate(optimizer: &OptimizerConfig) -> f64 {
    match optimizer.name() {
        "sgd" | "sgd8bit" => 0.1,
        "lion" => 2e-4,
        _ => 1e-3,
    }
}
