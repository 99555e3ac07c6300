//! Loads saved state into the optimizers of a model, and makes sure that all of it has arrived.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::tensor::{Device, Tensor};

use super::groups::{OptimizerGroups, Unread};

impl OptimizerGroups {
    /// Loads the state of `record` into the optimizer of `model`, on `device` or in host memory. On a device with memory of its own, it
    /// checks that all of the state was written.
    ///
    /// # Errors
    /// A message with the parameters whose state cannot be read, and what to do.
    ///
    /// # Panics
    /// If the device has no room for the state: burn then panics.
    pub(crate) fn load(
        &self,
        record: OptimizerRecord,
        model: &impl Module,
        device: &Device,
        on_host: bool,
    ) -> Result<ModuleOptimizer, String> {
        let unread = Unread::default();
        let optimizer = if on_host { self.empty_on_host(device, &unread) } else { self.empty_on(device, &unread) };
        let optimizer = optimizer.load_record(record);
        let unread = unread.take();
        if let Some(first) = unread.first() {
            let first = path_of(first, model).unwrap_or_else(|| first.clone());
            let count = match unread.len() {
                1 => first,
                count => format!("{count} parameters ({first} is the first)"),
            };
            return Err(format!(
                "the optimizer cannot read the state of {count}: resume with the settings of the optimizer and the version of Kiln that \
                 wrote it, or begin a new run from its model"
            ));
        }
        // A device without room for the state reports it only when its tensors are read, and burn gives access to them only through a
        // record. The CPU device needs no check, nor does state in host memory: it was read when it was loaded.
        if !on_host && *device != Device::flex() {
            let _ = optimizer.to_record();
        }
        Ok(optimizer)
    }
}

/// The path in `model` of the parameter with this id.
fn path_of(id: &str, model: &impl Module) -> Option<String> {
    struct Find<'a> {
        id: &'a str,
        place: Vec<String>,
        found: Option<String>,
    }
    impl ModuleVisitor for Find<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.place.push(name.to_owned());
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.place.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.found.is_none() && param.id.val().to_string() == self.id {
                self.found = Some(self.place.join("."));
            }
        }
    }
    let mut find = Find { id, place: vec![], found: None };
    model.visit(&mut find);
    find.found
}
