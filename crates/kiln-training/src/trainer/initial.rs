//! The model that a run starts with.

use burn::module::Module;
use burn::tensor::Device;
use kiln_checkpointing::InitialValues;

use super::freeze::frozen;
use crate::error::Error;

/// Makes the model on a device.
pub(super) type Init<'a, M> = Box<dyn Fn(&Device) -> Result<M, Error> + 'a>;

/// Finds the initial values of a model.
pub(super) type FindValues<'a, M> = Box<dyn Fn(&M) -> Result<InitialValues, Error> + 'a>;

/// How the model of a run is made.
pub(super) struct InitialModel<'a, M> {
    init: Init<'a, M>,
    pub(super) values: FindValues<'a, M>,
}

impl<'a, M: Module> InitialModel<'a, M> {
    /// The model that `init` makes.
    pub(super) fn new(init: Init<'a, M>) -> Self {
        Self { init, values: Box::new(|_| Ok(InitialValues::default())) }
    }

    /// The model on `device` as it is recorded, with the parameters at or below the paths `freeze` frozen.
    pub(super) fn recorded(&self, device: &Device, freeze: &[String]) -> Result<M, Error> {
        let model = (self.init)(device)?;
        if freeze.is_empty() { Ok(model) } else { frozen(model, freeze) }
    }

    /// The model of the run on `device`, and the values that it gets when it is moved to a store. Without a store it has them.
    pub(super) fn of_run(&self, device: &Device, freeze: &[String], stored: bool) -> Result<(M, InitialValues), Error> {
        let model = (self.init)(device)?;
        let values = (self.values)(&model)?;
        Ok(match freeze {
            [] if stored => (values.give_rest(model)?, values),
            [] => (values.give(model)?, values),
            // The search for frozen parameters initialises all.
            freeze => (frozen(values.give(model)?, freeze)?, values),
        })
    }
}
