//! The usual learning rates of optimizers.

use kiln_training::OptimizerConfig;

/// The usual highest learning rate of an optimizer. If another optimizer replaces the recipe's own, the recipe's rate is multiplied by
/// the ratio of their usual rates. Lion's is a fifth of AdamW's (Chen et al. 2023, section 5: a third to a tenth). Muon takes steps of
/// AdamW's size.
pub fn usual_rate(optimizer: &OptimizerConfig) -> f64 {
    match optimizer.name() {
        "sgd" | "sgd8bit" => 0.1,
        "lion" => 2e-4,
        _ => 1e-3,
    }
}
