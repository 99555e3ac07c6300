//! The builder's memory settings: budget, plan, allowed replacements, and the response to a lack of memory.

use std::ops::ControlFlow;
use std::time::Duration;

use kiln_memory::{BackendProfile, CountingAllocator};
use kiln_precision::Precision;
use kiln_recovery::Patience;

use super::builder::{AllowedOptimizer, TrainerBuilder};
use super::trainer::MakeOptimizer;
use crate::optimizer::OptimizerGroups;
use crate::planning::{Checkpointing, MemoryBudget, PlannedOptimizer};
use crate::task::Task;

impl<T: Task> TrainerBuilder<'_, T> {
    /// Keeps every step within `memory`: picks micro-batch and checkpoint plan before the first step, and on a GPU also offload. On the
    /// CPU device the replicas of a process share the budget. So do stages on the same device.
    #[must_use]
    pub fn with_memory(self, memory: MemoryBudget) -> Self {
        Self { memory: Some(memory), ..self }
    }

    /// Allows `precision` if a step does not fit into the memory in the policy's own precision.
    #[must_use]
    pub fn allow_precision(mut self, precision: Precision) -> Self {
        self.other_precisions.push(precision);
        self
    }

    /// Allows another optimizer if a step does not fit into the memory with the run's own. Plans name it as [`PlannedOptimizer::Other`]
    /// with that `name`. It applies to stages and replicas too, which must all choose the same optimizer.
    #[must_use]
    pub fn allow_optimizer<O: Into<OptimizerGroups>>(
        self,
        name: impl Into<String>,
        optimizer: impl Fn(&T::Model) -> O + 'static,
    ) -> Self {
        self.allow(PlannedOptimizer::Other { name: name.into(), on_host: false }, optimizer)
    }

    /// Allows another optimizer with its state in host memory, as [`allow_optimizer`](Self::allow_optimizer) allows one with its state on
    /// the device.
    #[must_use]
    pub fn allow_optimizer_on_host<O: Into<OptimizerGroups>>(
        self,
        name: impl Into<String>,
        optimizer: impl Fn(&T::Model) -> O + 'static,
    ) -> Self {
        self.allow(PlannedOptimizer::Other { name: name.into(), on_host: true }, optimizer)
    }

    /// Allows the run's own optimizer with its state in host memory. The numbers stay the same: on a GPU the faster of both that fits is
    /// taken. On the CPU device it changes nothing, because the device's memory is the host's. A run in stages or replicas keeps the
    /// state on its devices.
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

    /// Also records the step in `precision`, so that [`Trainer::remedies`](crate::Trainer::remedies) can predict its memory and time. The
    /// run never uses it.
    #[must_use]
    pub fn compare_precision(mut self, precision: Precision) -> Self {
        self.compared_precisions.push(precision);
        self
    }

    /// Also records the step with another optimizer, so that [`Trainer::remedies`](crate::Trainer::remedies) can predict its memory and
    /// time. Plans call it `name`. The run never uses it.
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

    /// Takes steps exactly as micro-batch, checkpointing and precision say, even if they are predicted to exceed the budget. Use it to
    /// resume a run with its earlier plan.
    #[must_use]
    pub fn keeping_plan(self) -> Self {
        Self { keeps_plan: true, ..self }
    }

    /// Limits the samples that are on the device at once to `samples`.
    #[must_use]
    pub fn with_micro_batch(self, samples: impl Into<Option<usize>>) -> Self {
        Self { micro_batch: samples.into(), ..self }
    }

    /// Recomputes blocks of the model's chains. With a memory budget, [`Checkpointing::None`] lets the planner choose.
    #[must_use]
    pub fn with_checkpointing(self, checkpointing: Checkpointing) -> Self {
        Self { checkpointing, ..self }
    }

    /// Sets how long a batch waits for memory that another program holds before it is given up. The default is five minutes.
    #[must_use]
    pub fn with_patience(self, patience: Patience) -> Self {
        Self { patience, ..self }
    }

    /// Calls `pause` instead of sleeping when a batch waits for memory. `Break` gives the batch up.
    #[must_use]
    pub fn with_pause(self, pause: impl FnMut(Duration) -> ControlFlow<()> + Send + 'static) -> Self {
        Self { pause: Some(Box::new(pause)), ..self }
    }

    /// Ends a step with [`Error::Memory`](crate::Error::Memory) if memory runs out, without another attempt.
    #[must_use]
    pub fn without_recovery(self) -> Self {
        Self { recovers: false, ..self }
    }

    /// Does not record the step. Use it for a model that reads tensors back in its forward pass. Such a run can have neither a memory
    /// budget nor checkpointing.
    #[must_use]
    pub fn without_prediction(self) -> Self {
        Self { predicts: false, ..self }
    }

    /// Predicts with `profile`. The default has typical figures for the device's kind.
    #[must_use]
    pub fn with_profile(self, profile: BackendProfile) -> Self {
        Self { profile: Some(profile), ..self }
    }

    /// Subtracts `bytes` for the data loader from the budget of the CPU device, whose memory is the host's.
    #[must_use]
    pub fn with_loader_bytes(self, bytes: u64) -> Self {
        Self { loader_bytes: bytes, ..self }
    }

    /// Counts the heap of the CPU device with the program's global allocator: peaks are measured, and a memory budget is enforced. A GPU
    /// needs none, because its memory is counted by the device.
    #[must_use]
    pub fn with_allocator(self, allocator: &'static CountingAllocator) -> Self {
        Self { allocator: Some(allocator), ..self }
    }
}
