//! The builder's settings of memory: budget, plan, what may take their place, and what happens when it runs out.

use std::ops::ControlFlow;
use std::time::Duration;

use kiln_memory::{BackendProfile, CountingAllocator};
use kiln_precision::Precision;
use kiln_recovery::Patience;

use super::builder::{AllowedOptimizer, TrainerBuilder};
use super::run::MakeOptimizer;
use crate::optimizer::OptimizerGroups;
use crate::planning::{Checkpointing, MemoryBudget, PlannedOptimizer};
use crate::task::Task;

impl<T: Task> TrainerBuilder<'_, T> {
    /// Keeps every step within `memory`: picks micro-batch and checkpoint plan, and offload on a card, before the first step. The replicas of
    /// a process share it on the CPU device, and so do stages on the same device.
    #[must_use]
    pub fn with_memory(self, memory: MemoryBudget) -> Self {
        Self { memory: Some(memory), ..self }
    }

    /// Allows `precision` where a step does not fit into the memory in the policy's own precision.
    #[must_use]
    pub fn allow_precision(mut self, precision: Precision) -> Self {
        self.other_precisions.push(precision);
        self
    }

    /// Allows another optimizer where a step does not fit into the memory with the run's own. Plans have it as
    /// [`PlannedOptimizer::Other`] of that `name`. So do plans of stages and of replicas, which must all come to the same one.
    #[must_use]
    pub fn allow_optimizer<O: Into<OptimizerGroups>>(
        self,
        name: impl Into<String>,
        optimizer: impl Fn(&T::Model) -> O + 'static,
    ) -> Self {
        self.allow(PlannedOptimizer::Other { name: name.into(), on_host: false }, optimizer)
    }

    /// The same for another optimizer whose state is in host memory.
    #[must_use]
    pub fn allow_optimizer_on_host<O: Into<OptimizerGroups>>(
        self,
        name: impl Into<String>,
        optimizer: impl Fn(&T::Model) -> O + 'static,
    ) -> Self {
        self.allow(PlannedOptimizer::Other { name: name.into(), on_host: true }, optimizer)
    }

    /// Allows the run's own optimizer with its state in host memory, where the numbers are the same: on a card the faster one of both that
    /// fits is taken. The CPU device has no other memory than the host's. A run in stages or replicas keeps the state on its devices.
    #[must_use]
    pub fn allow_offloaded_optimizer<O: Into<OptimizerGroups>>(
        self,
        optimizer: impl Fn(&T::Model) -> O + 'static,
    ) -> Self {
        self.allow(PlannedOptimizer::OwnOnHost, optimizer)
    }

    fn allow<O: Into<OptimizerGroups>>(
        mut self,
        which: PlannedOptimizer,
        optimizer: impl Fn(&T::Model) -> O + 'static,
    ) -> Self {
        let make: MakeOptimizer<T::Model> = Box::new(move |model| optimizer(model).into());
        self.other_optimizers.push(AllowedOptimizer { which, make });
        self
    }

    /// Also records the step in `precision`, so that [`Trainer::remedies`](crate::Trainer::remedies) can say what it would take. It is never
    /// chosen for the run.
    #[must_use]
    pub fn compare_precision(mut self, precision: Precision) -> Self {
        self.compared_precisions.push(precision);
        self
    }

    /// The same for another optimizer. `name` is how plans call it.
    #[must_use]
    pub fn compare_optimizer<O: Into<OptimizerGroups>>(
        mut self,
        name: impl Into<String>,
        optimizer: impl Fn(&T::Model) -> O + 'static,
    ) -> Self {
        let make: MakeOptimizer<T::Model> = Box::new(move |model| optimizer(model).into());
        let which = PlannedOptimizer::Other { name: name.into(), on_host: false };
        self.compared_optimizers.push(AllowedOptimizer { which, make });
        self
    }

    /// Takes steps exactly as micro-batch, checkpointing and precision say, even if they are predicted to exceed the budget: for a
    /// run that is resumed as it was planned before.
    #[must_use]
    pub fn keeping_plan(self) -> Self {
        Self { keeps_plan: true, ..self }
    }

    /// Has at most `samples` samples on the device at once.
    #[must_use]
    pub fn with_micro_batch(self, samples: impl Into<Option<usize>>) -> Self {
        Self { micro_batch: samples.into(), ..self }
    }

    /// Recomputes blocks of the model's chains. With a memory budget, [`Checkpointing::None`] leaves the choice to the planner.
    #[must_use]
    pub fn with_checkpointing(self, checkpointing: Checkpointing) -> Self {
        Self { checkpointing, ..self }
    }

    /// Waits so long for memory that another program holds before a batch is given up; by default five minutes.
    #[must_use]
    pub fn with_patience(self, patience: Patience) -> Self {
        Self { patience, ..self }
    }

    /// Calls `pause` for each pause of a batch that waits for memory, instead of sleeping; `Break` gives the batch up.
    #[must_use]
    pub fn with_pause(self, pause: impl FnMut(Duration) -> ControlFlow<()> + Send + 'static) -> Self {
        Self { pause: Some(Box::new(pause)), ..self }
    }

    /// Ends a step with [`Error::Memory`](crate::Error::Memory) when memory runs out, and does not try it again.
    #[must_use]
    pub fn without_recovery(self) -> Self {
        Self { recovers: false, ..self }
    }

    /// Does not record the step: for a model that reads tensors back in its forward pass. Such a run has no memory budget and no
    /// checkpointing.
    #[must_use]
    pub fn without_prediction(self) -> Self {
        Self { predicts: false, ..self }
    }

    /// Predicts with `profile`; by default with the typical figures of the device's kind.
    #[must_use]
    pub fn with_profile(self, profile: BackendProfile) -> Self {
        Self { profile: Some(profile), ..self }
    }

    /// Counts `bytes` of the data loader into the budget of the CPU device, whose memory is the host's.
    #[must_use]
    pub fn with_loader_bytes(self, bytes: u64) -> Self {
        Self { loader_bytes: bytes, ..self }
    }

    /// Counts the heap of the CPU device by the program's global allocator: peaks are measured, and a memory budget is enforced.
    /// A card counts its memory itself.
    #[must_use]
    pub fn with_allocator(self, allocator: &'static CountingAllocator) -> Self {
        Self { allocator: Some(allocator), ..self }
    }
}
