//! The settings of a run as plain values, in groups: a settings file and a command line fill them too.

use kiln_memory::BackendProfile;
use kiln_precision::{Policy, Precision, Scaling};
use kiln_recovery::Patience;
use serde::{Deserialize, Serialize};

use super::events::{Intervals, RunLength};
use crate::batch_scaling::BatchScaling;
use crate::checkpoints::Checkpoints;
use crate::planning::{Exact, MemoryBudget, Recompute};
use crate::progress::BestConfig;
use crate::transaction::StoreConfig;

/// The run itself: what its numbers depend on.
///
/// ```
/// use kiln_training::RunConfig;
///
/// let config: RunConfig = serde_json::from_str(r#"{"length": {"steps": 100}, "seed": 7}"#)?;
/// assert_eq!((config.seed, config.clip_norm), (7, None));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunConfig {
    /// The length of the run. Default: one epoch.
    pub length: RunLength,
    /// The seed of all randomness, including the model's parameters if burn initialises them. Default: 0.
    pub seed: u64,
    /// Samples of a batch, over all replicas. Default: as many as the batch that [`build`](crate::TrainerBuilder::build) gets.
    pub batch_size: Option<usize>,
    /// Interprets the schedule's rate as that of a base batch, and scales it to the effective batch: all samples of an update, over all
    /// replicas. Recovery makes micro-batches smaller, but changes neither the effective batch nor the rate. Default: none.
    pub batch_scaling: Option<BatchScaling>,
    /// The global norm that larger gradients are scaled down to. Default: none.
    pub clip_norm: Option<f64>,
    /// The precision of layers and parameters. Under a policy that is [storing](Policy::storing), parameters are in bf16. The trainer
    /// rounds updates of parameters in bf16 stochastically, whatever the optimizer: pass it as it is, not in a `StochasticBf16`. Default: f32.
    pub precision: Policy,
    /// How the loss is scaled. Default: as the precision needs it.
    pub loss_scaling: Option<Scaling>,
    /// Paths of modules and parameters that are frozen: they have no gradients, updates or optimizer state. A path names a whole module,
    /// such as `layer1` or `blocks.0`, or a parameter. The prediction of a step's memory accounts for it. Default: none.
    ///
    /// Batch-norm below such a path still normalises each batch by the batch's own statistics, and its running statistics still follow the
    /// batches. PyTorch behaves in the same way for parameters without gradient in a module in training mode.
    ///
    /// [`build`](crate::TrainerBuilder::build) ends with [`Error::UnknownPath`](crate::Error::UnknownPath) for a path that no parameter
    /// has.
    pub frozen: Vec<String>,
}

impl Default for RunConfig {
    fn default() -> Self {
        Self {
            length: RunLength::Epochs(1),
            seed: 0,
            batch_size: None,
            batch_scaling: None,
            clip_norm: None,
            precision: Policy::default(),
            loss_scaling: None,
            frozen: vec![],
        }
    }
}

/// The memory of a step: its budget, what may change to stay within it, and the response to a lack of memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryConfig {
    /// The memory that every step stays within: micro-batch and recomputed blocks are picked before the first step, and on a GPU also
    /// offload. On the CPU device the replicas of a process share the budget. So do stages on the same device. Default: no limit.
    pub budget: Option<MemoryBudget>,
    /// The most samples on the device at once. Default: as the budget allows.
    pub micro_batch: Option<usize>,
    /// Whether the budget, and memory that runs out, may change bits. Default: only where batches cannot be cut with the same bits.
    pub exact: Exact,
    /// The blocks of the model's chains that are recomputed. With a budget, [`Recompute::None`] lets the planner choose. Default: none.
    pub recompute: Recompute,
    /// Takes steps exactly as micro-batch, recomputed blocks and precision say, even if they are predicted to exceed the budget. Use it to
    /// resume a run with its earlier plan. Default: false.
    pub fixed_plan: bool,
    /// Where the parameters, gradients and optimizer state are if the plan streams blocks. The planner takes such a plan only if no other
    /// one fits into the budget. Default: a plan cannot.
    pub store: Option<StoreConfig>,
    /// Precisions that are allowed if a step does not fit into the budget in the run's own precision. Default: none.
    pub allowed_precisions: Vec<Precision>,
    /// Precisions that the step is also recorded in, so that [`Trainer::remedies`](crate::Trainer::remedies) can predict its memory and
    /// time. The run never uses them. Default: none.
    pub compared_precisions: Vec<Precision>,
    /// Bytes of the data loader, which are subtracted from the budget of the CPU device, whose memory is the host's. Default: 0.
    pub loader_bytes: u64,
    /// The device that steps are predicted for. What a GPU says of itself ([`BackendProfile::on`]) replaces figures here. Default: typical
    /// figures for the device's kind.
    pub profile: Option<BackendProfile>,
    /// Whether the step is recorded to predict its memory. Switch it off for a model that reads tensors back in its forward pass. Such a
    /// run can have neither a budget nor recomputed blocks. Default: true.
    pub prediction: bool,
    /// Whether a step is tried again if memory runs out. Otherwise it ends with [`Error::Memory`](crate::Error::Memory). Default: true.
    pub recovery: bool,
    /// How long a batch waits for memory that another program holds before it is given up. Default: five minutes.
    pub patience: Patience,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self {
            budget: None,
            micro_batch: None,
            exact: Exact::default(),
            recompute: Recompute::None,
            fixed_plan: false,
            store: None,
            allowed_precisions: vec![],
            compared_precisions: vec![],
            loader_bytes: 0,
            profile: None,
            prediction: true,
            recovery: true,
            patience: Patience::default(),
        }
    }
}

/// When a run is evaluated and saved, where to, and what may differ when it resumes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointConfig {
    /// The directory of the checkpoints. Default: the run is not saved.
    pub directory: Option<Checkpoints>,
    /// Times of evaluations and checkpoints in addition to the ends of epochs. Default: none.
    pub intervals: Intervals,
    /// Judges the run by one of its metrics. The checkpoint with the best value is kept beside the newest ones ([`Checkpoints::best`]). If
    /// it says so, the run ends early when the value stops improving. An evaluation with a new best value saves a checkpoint. Default: none.
    pub best: Option<BestConfig>,
    /// Whether a run may resume with another number of steps than it was saved with. Rates that depend on the number of steps are from then
    /// on those of a run that had the new number from its start. Default: false.
    pub other_length: bool,
    /// Whether a run resumes without its knowledge of micro-batches that fit, because the micro-batch or the budget has changed. Default:
    /// false.
    pub fresh_sizes: bool,
}
