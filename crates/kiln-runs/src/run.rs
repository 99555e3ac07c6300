//! A run in a directory, from its begin to its report.

use std::cell::RefCell;
use std::fs;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use burn::module::Module;
use bytesize::ByteSize;
use kiln_data::printable;
use kiln_report::{MemoryPage, Samples, counted};
use kiln_training::{Checkpoints, Finish, MemoryReport, StoreConfig, Task, Trainer, TrainingData};
use serde::Serialize;

use crate::error::Error;
use crate::files::{lock, replace};
use crate::observer::Observer;
use crate::progress::Progress;
use crate::record::{About, Outcome};
use crate::summary::CONFIG;
use crate::watched::WatchedData;

/// The directory of a run's checkpoints in its own.
pub const CHECKPOINTS: &str = "checkpoints";
/// How many of the newest stay.
const KEPT: usize = 3;
/// The page about the memory of a step, in the directory of a run.
pub const MEMORY: &str = "memory.html";

/// A run in a directory.
pub struct Run {
    path: PathBuf,
    settings: Option<String>,
    is_quiet: bool,
    is_interrupted: Rc<dyn Fn() -> bool>,
}

impl Run {
    /// The run in the directory `path`, which may not exist yet.
    pub fn at(path: impl AsRef<Path>) -> Self {
        Self { path: path.as_ref().to_owned(), settings: None, is_quiet: false, is_interrupted: Rc::new(|| false) }
    }

    /// Writes `settings`, a struct or a map, into the directory as `config.toml`. The report shows them, and `kiln compare` where those of
    /// several runs differ.
    ///
    /// # Errors
    /// [`Error::Settings`] for a value that TOML cannot hold.
    pub fn with_settings(mut self, settings: &impl Serialize) -> Result<Self, Error> {
        self.settings = Some(toml::to_string_pretty(settings).map_err(|error| Error::Settings(error.to_string()))?);
        Ok(self)
    }

    /// Stops the run when `is_interrupted` says so, which is asked after each step. The run is saved. For Ctrl-C, it reads a flag that a handler
    /// of the signal sets, as one of the crate ctrlc.
    #[must_use]
    pub fn with_interrupt(mut self, is_interrupted: impl Fn() -> bool + 'static) -> Self {
        self.is_interrupted = Rc::new(is_interrupted);
        self
    }

    /// Prints nothing.
    #[must_use]
    pub fn quiet(mut self) -> Self {
        self.is_quiet = true;
        self
    }

    /// Trains on `data` as [`Trainer::fit`] does, and writes the files of the directory. A run that has checkpoints there goes on from the
    /// newest. Checkpoints of a trainer that has a directory for them stay where they are.
    ///
    /// # Errors
    /// [`Error::Training`] with those of the trainer, which the report shows, too; [`Error::InUse`] while another process works on the run;
    /// [`Error::File`], after the step whose metrics could not be written; [`Error::Replicas`] for a trainer that has others beside it.
    pub fn fit<T, D>(&self, trainer: &mut Trainer<T>, data: &D) -> Result<Finish, Error>
    where
        T: Task,
        D: TrainingData<Batch = T::Batch> + ?Sized,
    {
        if trainer.replicas() > 1 {
            return Err(Error::Replicas(trainer.replicas()));
        }
        fs::create_dir_all(&self.path).map_err(Error::file("make", &self.path))?;
        let _lock = lock(&self.path)?;
        if trainer.checkpoints().is_none() {
            trainer.set_checkpoints(Checkpoints::new(self.path.join(CHECKPOINTS), KEPT)?);
        }
        let total_steps = trainer.set_data(data.train())?;
        // The run in a store on disk is after its last step already. Its checkpoints say what was due.
        let in_directory = matches!(trainer.store(), Some(StoreConfig::Directory(_)));
        if trainer.state().step == 0 || in_directory {
            let before = trainer.resume()?;
            if let (Some(checkpoint), 1..) = (before, trainer.state().step) {
                self.say(&[format!("going on from {}", printable(&checkpoint))]);
            }
        }
        // A run that is refused keeps the settings that it had.
        if let Some(settings) = &self.settings {
            replace(&self.path.join(CONFIG), settings.as_bytes())?;
        }
        let progress = Progress::new(!self.is_quiet);
        let data = WatchedData::new(data, &progress);
        let (quiet, interrupt) = (self.is_quiet, self.is_interrupted.clone());
        let say = Box::new(move |parts: Vec<String>| print(quiet, &parts));
        let at = trainer.state().step;
        let about = about(trainer, &data, total_steps);
        let observer = Observer::begin(&self.path, about, at, (&data, &progress), say, move || interrupt())?;
        let observer = Rc::new(RefCell::new(observer));
        let seen = Rc::downgrade(&observer);
        trainer.observe(move |event| match seen.upgrade() {
            Some(observer) => observer.borrow_mut().see(event),
            None => ControlFlow::Continue(()), // of a call of `fit` that has ended
        });
        trainer.measure_step(1); // the first step also allocates the optimizer's state
        let outcome = trainer.fit(&data);
        let mut observer = observer.borrow_mut();
        observer.finish();
        let failure = observer.take_failure();
        match outcome.map_err(Error::from).and_then(|finish| failure.map_or(Ok(finish), Err)) {
            Ok(finish) => {
                self.end(finish, trainer, &mut observer)?;
                Ok(finish)
            }
            Err(error) => {
                observer.fail(error.to_string());
                Err(error)
            }
        }
    }

    /// Writes the report, and the page about the memory of a step.
    fn end<T: Task>(&self, finish: Finish, trainer: &Trainer<T>, observer: &mut Observer) -> Result<(), Error> {
        let outcome = match finish {
            Finish::Stopped => Outcome::Stopped("start the program again".into()),
            Finish::Complete | Finish::EndedEarly => Outcome::Finished,
        };
        let mut results = observer.results();
        for (name, value) in observer.last().into_iter().flat_map(|last| &last.metrics) {
            results.insert((*name).into(), (*value).into());
        }
        results.insert("steps".into(), trainer.state().step.into());
        let report = observer.end(outcome, results, Samples::default(), None)?;
        self.say(&[format!("report: {}", printable(&report))]);
        // All steps are taken and saved: a page that cannot be made does not turn the run into a failed one.
        if let Err(error) = self.write_memory(trainer, observer.peak_bytes()) {
            tracing::warn!("{MEMORY} is not written: {error}");
        }
        Ok(())
    }

    /// Writes the page about the memory of the measured step, if there is one. `peak_bytes`: the most bytes of a step of this process.
    fn write_memory<T: Task>(&self, trainer: &Trainer<T>, peak_bytes: Option<u64>) -> Result<(), Error> {
        if trainer.measured().is_none() {
            return Ok(());
        }
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let report = trainer.memory_report(format!("{name}: memory of a training step"))?;
        let report = report.with_fact("device", format!("{:?}", trainer.device())).with_run_peak(peak_bytes);
        let file = self.path.join(MEMORY);
        replace(&file, memory_page(&report)?.html().as_bytes())?;
        let shown = |bytes: Option<u64>| bytes.map_or("-".into(), |bytes| ByteSize(bytes).to_string());
        let (predicted, peak) = (shown(trainer.predicted_peak()), shown(peak_bytes));
        self.say(&[format!("peak: predicted {predicted}, measured {peak}: {}", printable(&file))]);
        Ok(())
    }

    fn say(&self, parts: &[String]) {
        print(self.is_quiet, parts);
    }
}

/// The report about the memory of a step as a page.
///
/// # Errors
/// [`Error::Damaged`] for a report that is none, as of another version of kiln-memory.
pub fn memory_page(report: &MemoryReport) -> Result<MemoryPage, Error> {
    let damaged = |error: serde_json::Error| Error::Damaged { path: MEMORY.into(), reason: error.to_string() };
    serde_json::from_str(&report.json()).map_err(damaged)
}

fn print(quiet: bool, parts: &[String]) {
    if !quiet {
        let _ = writeln!(std::io::stderr(), "{}", parts.join("  ")); // a closed stderr must not end a run
    }
}

/// What the report says of a run of `total_steps` steps.
fn about<T: Task>(trainer: &Trainer<T>, data: &WatchedData<'_, T::Batch>, total_steps: u64) -> About {
    let sizes = [
        counted(trainer.model().num_params(), "parameter"),
        counted(data.train().samples(), "sample"),
        counted(total_steps, "step"),
    ];
    let facts = [
        ("device", format!("{:?}", trainer.device())),
        ("system", format!("{} ({})", std::env::consts::OS, std::env::consts::ARCH)),
    ];
    About {
        recipe: sizes.join("; "),
        facts: facts.map(|(name, fact)| (name.to_owned(), fact)).to_vec(),
        total_steps,
        predicted_peak_bytes: trainer.predicted_peak(),
        limit_bytes: trainer.limit_bytes(),
        ..About::default()
    }
}
