//! The training step and loop that Kiln's techniques compose into.
//!
//! - [`Trainer`]: a model, its optimizer and where the run is; one [`step`](Trainer::step) either happens as a
//!   whole or leaves them as they were. It composes autocast and loss scale (kiln-precision) with micro-batches
//!   (kiln-accumulation).
//! - [`fit`]: epochs, measurements and checkpoints around it; [`Task`] says what the model is trained to do.
//! - [`Checkpoints`]: atomic, verified, the newest k. A run that was killed and resumed gives the same numbers as
//!   one that was not, because everything random is a function of [`RunState`].
//! - [`ScheduleConfig`], [`OptimizerConfig`]: warm-up and cosine; SGD and AdamW without decay on norms and
//!   biases. Gradients are clipped by their global norm.
//!
//! *Architecture invariant*: the only crate that may see two techniques. It declares none of their settings again, and
//! it knows no model: a [`Task`] brings model, batch and loss together.
//!
//! ```
//! use burn::nn::{Linear, LinearConfig};
//! use burn::nn::loss::{MseLoss, Reduction};
//! use burn::tensor::{Device, Tensor};
//! use kiln_training::{OptimizerConfig, ScheduleConfig, StepSettings, Trainer};
//!
//! let device = Device::flex().autodiff();
//! device.seed(1);
//! let model = LinearConfig::new(2, 1).init(&device);
//! let optimizer = OptimizerConfig::Sgd { momentum: 0.9, weight_decay: 0.0, nesterov: false };
//! let schedule = ScheduleConfig { peak: 0.1, warmup: 0.1, floor: 0.1 };
//! let settings = StepSettings { max_norm: Some(1.0), ..StepSettings::new(optimizer, schedule, 100, device.clone()) };
//! let mut trainer = Trainer::new(model, 1, settings)?;
//!
//! let inputs = Tensor::<2>::from_data([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], &device);
//! let targets = Tensor::<2>::from_data([[2.0], [3.0], [5.0]], &device);
//! let mut losses = vec![];
//! for _ in 0..100 {
//!     let report = trainer.step(|model: &Linear, _| {
//!         MseLoss::new().forward(model.forward(inputs.clone()), targets.clone(), Reduction::Mean)
//!     })?;
//!     losses.push(report.loss);
//! }
//! assert!(losses[99] < 1e-3 * losses[0]);
//! # Ok::<(), kiln_training::Error>(())
//! ```

mod checkpoint;
mod error;
mod evaluate;
mod fit;
mod metrics;
mod optimizer;
mod predict;
mod schedule;
mod settings;
mod state;
mod step;
mod trainer;
mod update;

pub use checkpoint::{Checkpoints, load_model};
pub use error::Error;
pub use evaluate::{Evaluation, evaluate, measure};
pub use fit::{Event, Every, Finish, Task, fit, step};
pub use metrics::{bits_per_byte, perplexity, top_k_correct};
pub use optimizer::OptimizerConfig;
pub use predict::record;
pub use schedule::ScheduleConfig;
pub use settings::StepSettings;
pub use state::RunState;
pub use step::StepReport;
pub use trainer::{Boundary, Guard, Trainer};

pub use kiln_recovery::Setting;

/// Its examples use two crates, which only this one may.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/accumulation.md")]
struct Accumulation;
