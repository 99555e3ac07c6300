//! A run whose parameters, gradients and optimizer state are in a store: how they get there, and the norm of their gradients.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor};
use kiln_checkpointing::{Creation, FileStore, HostStore, InitialValues, Parts, RowParts, Store, Streamed};
use kiln_precision::{Policy, Probed, squares_of, squares_of_rows};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::optimizer::OptimizerGroups;

/// Where parameters, gradients and optimizer state are, if the blocks of a plan are [streamed](kiln_checkpointing::Mode::Stream).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum StoreConfig {
    /// In the files of a directory, which is made if it does not exist. A directory with the parameters of an earlier run is that run after
    /// its last step: the trainer goes on from there.
    Directory(PathBuf),
    /// In host memory, beside a GPU.
    Host,
}

impl StoreConfig {
    /// Whether there is a run in it.
    pub(crate) fn has_run(&self) -> bool {
        matches!(self, Self::Directory(directory) if directory.join("store.json").is_file())
    }

    /// Typical seconds to move a byte to the store or from it: files at 1 GB/s, host memory at half of the 32 GB/s of PCIe 4.0. They are not
    /// measured, so that equal settings have equal plans.
    pub(crate) fn seconds_per_byte(&self) -> f64 {
        match self {
            Self::Directory(_) => 1e-9,
            Self::Host => 1.0 / 16e9,
        }
    }
}

/// The most bytes of a parameter that an update has in memory at once, if the optimizer can update it in parts.
const PART: usize = 4 << 20;

/// How updates divide the parameters of a run.
pub(crate) fn parts_of(optimizer: &OptimizerGroups) -> Option<Parts> {
    optimizer.elements_of_parts.map(|multiple_of| Parts { bytes: PART, multiple_of })
}

/// When the parameters of a run's model are initialised, and where they then are.
pub(crate) enum Initialization {
    /// Before something is attached to them.
    BeforeAttaching,
    /// After that: what is attached may take the place of weights, which are then never initialised.
    AfterAttaching,
    /// Each goes to a store.
    InStore(StoredParameters),
}

/// A store, and the parameters whose values are there alone.
pub(crate) struct StoredParameters {
    config: StoreConfig,
    /// Paths of parameters that only streamed segments use.
    streamed: BTreeSet<String>,
}

impl StoredParameters {
    pub(crate) fn new(config: StoreConfig, streamed: BTreeSet<String>) -> Self {
        Self { config, streamed }
    }

    /// Moves the parameters of `model` into the store with their initial values, or takes those that it has. `parts`: how updates divide
    /// them. `policy` says in which dtypes they are.
    pub(super) fn take<M: Module>(
        self,
        model: M,
        values: InitialValues,
        parts: Option<Parts>,
        policy: &Policy,
    ) -> Result<(M, Option<Streamed>), Error> {
        let dtypes = if policy.stores() { policy.stored_dtypes(&model)? } else { BTreeMap::new() };
        let how = Creation { parts, dtypes, replaces: true, values };
        // A run that has taken no step begins anew: other settings may have made the model.
        let moved = |store: Box<dyn Store>, model: M| match Streamed::note_in(&*store)? {
            Some(note) if has_steps(&note) => Streamed::open_with(store, model, &how.values),
            _ => Streamed::create_with(store, model, &how),
        };
        let (streamed, model) = match &self.config {
            StoreConfig::Directory(directory) => moved(Box::new(FileStore::open(directory)?), model)?,
            StoreConfig::Host => moved(Box::new(HostStore::new()), model)?,
        };
        let model = streamed.with_resident(model, |path| !self.streamed.contains(path))?;
        Ok((model, Some(streamed)))
    }
}

/// Whether the run of a note has taken a step.
fn has_steps(note: &str) -> bool {
    let note: serde_json::Value = serde_json::from_str(note).unwrap_or_default();
    note["state"]["step"].as_u64().is_some_and(|step| step > 0)
}

/// Runs `work`, which uses a store. An error of the store in a backward pass is a panic, and in a chain it is hidden behind others: it
/// becomes the result.
pub(crate) fn with_store<T>(streamed: Option<&Streamed>, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let Some(streamed) = streamed else { return work() };
    let done = catch_unwind(AssertUnwindSafe(work));
    match (streamed.take_failure(), done) {
        (Some(error), _) => Err(error.into()),
        (None, Ok(done)) => done,
        (None, Err(panic)) => resume_unwind(panic),
    }
}

/// The sum of squares of a gradient that is read in the parts of its parameter. `None` without a gradient.
fn squares_of_parts(
    streamed: &Streamed,
    id: ParamId,
    parts: &dyn RowParts,
    device: &Device,
) -> Result<Option<Tensor<1>>, kiln_checkpointing::Error> {
    if !streamed.has_gradient(id) {
        return Ok(None);
    }
    let mut part: Option<(usize, Tensor<2>)> = None;
    let squares = squares_of_rows(parts.shape(), device, |rows| {
        let mut pieces = vec![];
        let mut row = rows.start;
        while row < rows.end {
            let number = row / parts.rows_of_part();
            let known = part.take().filter(|(known, _)| *known == number);
            let tensor = match known {
                Some((_, tensor)) => tensor,
                None => streamed.gradient_of_part(id, number, device)?,
            };
            let of_part = parts.rows(number);
            let end = rows.end.min(of_part.end);
            pieces.push(tensor.clone().narrow(0, row - of_part.start, end - row));
            part = Some((number, tensor));
            row = end;
        }
        Ok(if pieces.len() == 1 { pieces.remove(0) } else { Tensor::cat(pieces, 0) })
    });
    squares.map(Some)
}

/// Moves the gradients that are in memory to their sums in the store, and reads the norm of all gradients and the loss. The norm has the
/// bits of the norm in memory: the same sums in the same order.
pub(crate) fn probe_stored<M: Module>(
    streamed: &Streamed,
    model: &M,
    gradients: GradientsParams,
    loss_scale: f64,
    loss: Tensor<1>,
    step: u64,
) -> Result<(Probed, Vec<f64>), Error> {
    struct Squares<'a> {
        streamed: &'a Streamed,
        seen: HashSet<ParamId>,
        sum: Option<Tensor<1>>,
        failure: Option<kiln_checkpointing::Error>,
    }
    impl ModuleVisitor for Squares<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.failure.is_some() || !self.seen.insert(param.id) {
                return;
            }
            let device = param.device().inner();
            let squares = match self.streamed.rows(param.id) {
                Some(rows) => squares_of_parts(self.streamed, param.id, rows.as_ref(), &device),
                None => self.streamed.gradient::<D>(param.id, &device).map(|sum| sum.map(squares_of)),
            };
            match squares {
                Ok(Some(squares)) => {
                    self.sum = Some(match self.sum.take() {
                        Some(sum) => sum + squares,
                        None => squares,
                    });
                }
                Ok(None) => {}
                Err(error) => self.failure = Some(error),
            }
        }
    }
    streamed.add_gradients(model, gradients)?;
    let mut squares = Squares { streamed, seen: HashSet::new(), sum: None, failure: None };
    model.visit(&mut squares);
    if let Some(error) = squares.failure {
        return Err(error.into());
    }
    let sum = squares.sum.ok_or(Error::NoGradients { step })?;
    let read = |tensor: Tensor<1>| -> Result<f64, Error> {
        let fail = |reason: String| Error::Device { step, reason };
        let data = tensor.cast(DType::F32).try_into_data().map_err(|e| fail(e.to_string()))?;
        Ok(data.iter::<f32>().next().map_or(f64::NAN, f64::from))
    };
    Ok((Probed::elsewhere(read(sum)?, loss_scale), vec![read(loss)?]))
}
