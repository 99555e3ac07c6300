//! The loop over epochs: steps, evaluation, checkpoints, events.

use std::path::PathBuf;

use super::events::{Evaluation, Event, Finish, RunLength};
use super::trainer::Trainer;
use crate::error::Error;
use crate::source::{BatchSource, TrainingData};
use crate::state::RunState;
use crate::task::Task;
use crate::transaction::StepReport;

impl<T: Task> Trainer<T> {
    /// Takes the remaining steps of the run. At the end of every epoch and of the run, and as [`Intervals`](crate::Intervals) say, it evaluates
    /// the model if `data` has a part for it, and saves a checkpoint if the run has checkpoints. It also saves a checkpoint when the
    /// observer breaks, when memory runs short on the machine (Linux, without replicas), and when the run ends with an error that leaves it
    /// whole.
    ///
    /// All replicas of a run must call it, with data of the same number of batches. Each evaluates the model itself, if its data has a
    /// part for it. If one ends with an error, the others end with [`Error::Replica`] or [`Error::Parallel`]. The first one then saves
    /// the run, unless the optimizer's state is divided among the replicas.
    ///
    /// A run that is [judged](crate::CheckpointConfig::best) also saves a checkpoint after each evaluation that is the best so far,
    /// and ends with [`Finish::EndedEarly`] when its patience is over. If such a run is resumed, it takes no further step, unless its
    /// patience is longer now.
    ///
    /// A run that was interrupted anywhere and continues from a checkpoint has the same events. After [`Error::Unfinished`], call this
    /// again: it completes the update and continues, and the other replicas wait for it. After an error of the evaluation or of a
    /// checkpoint, a second call begins with the evaluation and the checkpoint of the last step.
    ///
    /// # Errors
    /// Those of [`step`](Self::step), [`evaluate`](Self::evaluate), [`save`](Self::save) and the data; [`Error::OtherData`] when the run
    /// was resumed with another number of samples, [`Error::OtherLength`] with another number of batches, [`Error::ShortEpoch`] when
    /// the data gives fewer batches than it says, [`Error::NothingRead`] when no batch of an epoch could be read, and
    /// [`Error::InvalidSetting`] for a run of no steps.
    pub fn fit<D: TrainingData<Batch = T::Batch>>(&mut self, data: &D) -> Result<Finish, Error> {
        let group = self.run.group.clone();
        let total = group.tell_end(|| self.begin(data))?;
        let mut fit = Fit { trainer: self, data, total };
        // The group ends before the rescue, because a waiting replica would not learn the reason otherwise.
        group.tell_end(|| fit.steps()).inspect_err(|error| fit.rescue(error))
    }

    /// Notes the size of the data as [`set_data`](Self::set_data), on all replicas or on none, and returns the number of steps.
    fn begin<D: TrainingData<Batch = T::Batch>>(&mut self, data: &D) -> Result<u64, Error> {
        let total = self.set_data(data.train());
        // The other replicas have begun, and wait for this replica's update.
        let waiting = self.run.ready().is_err();
        if waiting {
            return total;
        }
        let total = self.run.group.all(total)?;
        let at = self.state();
        let every = self.checkpoints.intervals;
        // Facts that decide which operations the replicas call, and in which order.
        let facts = [
            ("number of steps", total.to_string()),
            ("number of batches an epoch", data.train().batches().to_string()),
            ("position", format!("step {}, epoch {}, batch {}, duties {}", at.step, at.epoch, at.batch, at.due)),
            ("loss scale", self.scaler().scale.to_string()),
            ("times of evaluations and checkpoints", format!("{every:?}")),
            ("order of sums of gradients", if self.in_order { "of the rows" } else { "any" }.into()),
            ("use of checkpoints", self.checkpoints.directory.is_some().to_string()),
            ("metric that the run is judged by", format!("{:?}", self.checkpoints.best)),
        ];
        self.run.group.check_equal(&facts)?;
        Ok(total)
    }

    /// Notes the size of the data, which must not change. Returns the number of steps.
    ///
    /// # Errors
    /// [`Error::OtherData`], [`Error::OtherLength`], [`Error::InvalidSetting`].
    pub fn set_data<S: BatchSource<Batch = T::Batch> + ?Sized>(&mut self, data: &S) -> Result<u64, Error> {
        let now = data.samples();
        if let Some(was) = self.samples.filter(|was| *was != now) {
            return Err(Error::OtherData { was, now });
        }
        let (batches, total) = (data.batches(), self.length.steps(data.batches()));
        if total == 0 || batches == 0 {
            let expected = "at least 1 step, and data with at least 1 batch";
            return Err(Error::InvalidSetting { name: "number of steps", value: "0".into(), expected });
        }
        let lengths = [
            ("batches an epoch", self.batches.map(|batches| batches as u64), batches as u64),
            ("steps", self.run.settings.total_steps, total),
        ];
        for (unit, was, now) in lengths {
            if let Some(was) = was.filter(|was| *was != now) {
                return Err(Error::OtherLength { unit, was, now });
            }
        }
        (self.samples, self.batches, self.run.settings.total_steps) = (Some(now), Some(batches), Some(total));
        Ok(total)
    }
}

/// A run that is under way.
struct Fit<'a, T: Task, D> {
    trainer: &'a mut Trainer<T>,
    data: &'a D,
    total: u64,
}

impl<T: Task, D: TrainingData<Batch = T::Batch>> Fit<'_, T, D> {
    fn steps(&mut self) -> Result<Finish, Error> {
        self.trainer.refresh()?;
        let waiting = self.trainer.run.ready().is_err();
        let at = self.trainer.state();
        if !waiting && at.position() < self.total && self.anywhere(self.trainer.is_over())? {
            return Ok(Finish::EndedEarly);
        }
        if waiting || at.due || at.batch >= self.data.train().batches() {
            let report = if waiting { Some(self.trainer.complete_update()?) } else { None };
            if let (Some(stopped), _) = self.finish_step(report)? {
                return Ok(stopped);
            }
        }
        let train = self.data.train();
        while self.trainer.state().position() < self.total {
            let began = self.trainer.state();
            let mut ended = false;
            for batch in train.epoch(began.epoch, began.batch) {
                let report = match batch {
                    // The loader skips bad samples as its settings say, and lists them. Other replicas may have read their parts.
                    Err(Error::Data(last @ kiln_data::Error::NothingLeft { .. })) => {
                        let report = self.trainer.step_on(None)?;
                        if report.is_none() {
                            let counts = matches!(self.trainer.length, RunLength::Epochs(_));
                            let state = &mut self.trainer.run.state;
                            *state = state.after_unread(counts);
                            let at = *state;
                            if at.batch < train.batches() {
                                continue;
                            }
                            if began.batch == 0 && at.step == began.step {
                                return Err(Error::NothingRead { epoch: at.epoch, last });
                            }
                        }
                        report
                    }
                    batch => Some(self.trainer.step(&batch?)?),
                };
                match self.finish_step(report)? {
                    (Some(stopped), _) => return Ok(stopped),
                    (None, true) => {
                        ended = true;
                        break;
                    }
                    (None, false) => {}
                }
            }
            if !ended {
                let (batches, expected) = (self.trainer.state().batch, train.batches());
                return Err(Error::ShortEpoch { epoch: began.epoch, batches, expected });
            }
        }
        Ok(Finish::Complete)
    }

    /// Finishes a step, whose report the caller may have: evaluates the model, ends the epoch, saves the run. Returns the reason if the
    /// run ends here before its last step, and whether the epoch or the run ended. If one of these actions fails, they are repeated
    /// later.
    fn finish_step(&mut self, report: Option<StepReport>) -> Result<(Option<Finish>, bool), Error> {
        let (state, progress) = (self.trainer.state(), self.trainer.progress);
        self.duties(report).inspect_err(|_| {
            // A checkpoint says that its step is finished, which is true only once the checkpoint is on disk.
            (self.trainer.run.state, self.trainer.progress) = (RunState { due: true, ..state }, progress);
        })
    }

    fn duties(&mut self, report: Option<StepReport>) -> Result<(Option<Finish>, bool), Error> {
        let mut stop = report.is_some_and(|report| self.tell(&Event::Step(report)));
        let (at, every) = (self.trainer.state(), self.trainer.checkpoints.intervals);
        let epoch_ends = at.batch >= self.data.train().batches();
        let ends = epoch_ends || at.position() >= self.total;
        let evaluates = ends || every.evaluates_at(at.step);
        let (mut improved, before) = (false, self.trainer.progress);
        if let (Some(test), true) = (self.data.test(), evaluates) {
            let evaluation = self.trainer.evaluate(test)?;
            improved = self.trainer.judge(&evaluation)?;
            let epochs = at.epoch + u64::from(epoch_ends);
            stop |= self.tell(&Event::Evaluated(Evaluation { epochs, ..evaluation }));
        }
        let mut stop = self.anywhere(stop)?;
        let judged = evaluates && self.trainer.checkpoints.best.is_some();
        let improved = judged && self.anywhere(improved)?;
        let over = judged && self.anywhere(self.trainer.is_over())?;
        // An evaluation that is repeated does not count twice.
        let counts = self.trainer.progress != before;
        if judged && self.anywhere(counts && self.trainer.reduces())? {
            let reductions = self.trainer.run.state.reductions.saturating_add(1);
            self.trainer.run.state.reductions = reductions;
            let without = self.trainer.progress.without_improvement;
            tracing::info!(
                "step {}: learning rate reduced, {reductions} times by now: {without} evaluations without a better one",
                at.step
            );
        }
        let state = &mut self.trainer.run.state;
        if epoch_ends {
            *state = state.next_epoch();
        }
        state.due = false;
        // Replicas would have to agree.
        let pressed = std::mem::take(&mut self.trainer.is_pressed) && !self.trainer.run.group.has_others();
        if ends || stop || improved || over || pressed || every.saves_at(at.step) {
            let asked = self.save(Trainer::save_on_all)?;
            stop |= self.anywhere(asked)?;
        }
        if improved {
            self.trainer.keep_best()?;
        }
        let ended = match at.position() < self.total {
            true if over => Some(Finish::EndedEarly),
            true if stop => Some(Finish::Stopped),
            _ => None,
        };
        Ok((ended, ends))
    }

    /// Whether `stop` is true on any replica.
    fn anywhere(&self, stop: bool) -> Result<bool, Error> {
        self.trainer.run.group.any(stop)
    }

    /// Calls the observers, and returns whether one of them asks to stop.
    fn tell(&mut self, event: &Event) -> bool {
        let (observers, model) = (&mut self.trainer.observers, &self.trainer.run.model);
        let mut stop = false;
        for observer in observers {
            stop |= observer(event, model).is_break(); // all of them see it
        }
        stop
    }

    /// Saves the run by `save` if it has checkpoints, and returns whether the observer asks to stop.
    fn save(&mut self, save: fn(&Trainer<T>) -> Result<PathBuf, Error>) -> Result<bool, Error> {
        if self.trainer.checkpoints.directory.is_none() {
            return Ok(false);
        }
        let stop = self.tell(&Event::Saving);
        let path = save(self.trainer)?;
        self.trainer.saved = self.trainer.state().step;
        Ok(self.tell(&Event::Saved(path)) || stop)
    }

    /// Saves the steps since the newest checkpoint if the run ends with an error that leaves the device usable.
    fn rescue(&mut self, error: &Error) {
        let lost = match error {
            Error::Memory(failure) => !failure.is_recoverable(),
            _ => matches!(error, Error::Lost(_) | Error::Device { .. } | Error::Save { .. }),
        };
        // The first replica saves for all. If the state is divided, saving needs all replicas.
        let group = &self.trainer.run.group;
        let saved_here = group.is_first() && !group.shards_optimizer;
        if !saved_here || lost || self.trainer.run.ready().is_err() || self.trainer.state().step == self.trainer.saved {
            return;
        }
        if let Err(error) = self.save(Trainer::save) {
            tracing::warn!("{error}");
        }
    }
}
