//! Changes to a model between steps.

use std::time::Duration;

use kiln_recovery::{AttemptOutcome, attempt};

use super::run::{Trainer, pauses};
use crate::error::Error;
use crate::task::Task;

impl<T: Task> Trainer<T> {
    /// Edits the model before its next step, unless that is done already. It waits for memory as long as a step does.
    pub(super) fn edit(&mut self) -> Result<(), Error> {
        let step = self.run.state.step;
        let Some(edit) = self.edit.as_mut().filter(|_| self.edited != Some(step)) else { return Ok(()) };
        let (model, optimizer) = (&self.run.model, &self.run.optimizer);
        let device = self.run.settings.device.clone();
        let mut pause = pauses(&mut self.recovery, Duration::ZERO);
        let edited = loop {
            let edited = attempt(
                &device,
                || edit(step, model, optimizer),
                |edited, probe| {
                    if let Some((model, _)) = edited {
                        probe.module(model);
                    }
                },
            );
            match edited {
                AttemptOutcome::Done(edited) => break edited,
                AttemptOutcome::Failed(failure) if pause(&failure) => {}
                AttemptOutcome::Failed(failure) => return Err(Error::Memory(failure)),
                AttemptOutcome::Other(error) => return Err(error),
            }
        };
        if let Some((model, optimizer)) = edited {
            let model = match &self.staged {
                Some(staged) => staged.place(model),
                None => model,
            };
            let owned = |model| self.run.replicas.as_ref().and_then(|replicas| replicas.owned(model));
            if owned(&model) != owned(&self.run.model) {
                // State that the new owners lack would begin again at zero.
                let (value, expected) =
                    ("other parameters that require gradients", "the same, where replicas divide the state");
                return Err(Error::InvalidSetting { field: "edit of the model", value: value.into(), expected });
            }
            (self.run.model, self.run.optimizer) = (model, optimizer);
        }
        self.edited = Some(step);
        Ok(())
    }
}
