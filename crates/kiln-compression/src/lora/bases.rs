//! The stored parameters of a model, as adapters see them.

use std::collections::{BTreeMap, BTreeSet};

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

use crate::Error;
use crate::place::Place;

/// The float parameters of a model by path. None of them is initialised by this.
#[derive(Default)]
pub(super) struct Bases {
    place: Place,
    pub(super) shapes: BTreeMap<String, Vec<usize>>,
    /// Parameters that have a reparameterization.
    changed: BTreeSet<String>,
    /// A parameter that has an adapter.
    pub(super) adapted: Option<String>,
}

impl Bases {
    pub(super) fn of(model: &impl Module) -> Self {
        let mut bases = Self::default();
        model.visit(&mut bases);
        bases
    }

    /// The paths of the weights that may have an adapter: those of rank 2.
    pub(super) fn matrices(&self) -> impl Iterator<Item = &str> {
        self.shapes.iter().filter(|(_, shape)| shape.len() == 2).map(|(path, _)| path.as_str())
    }

    /// Refuses a parameter with a reparameterization. burn puts it back on whatever is merged into the stored value or attached there.
    pub(super) fn expect_plain(&self, path: &str) -> Result<(), Error> {
        match self.changed.contains(path) {
            true => Err(Error::Reparameterized { path: path.to_owned() }),
            false => Ok(()),
        }
    }
}

impl ModuleVisitor for Bases {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.place.enter(name, container_type);
        if self.place.is_inner() {
            self.changed.insert(self.place.parameter());
        }
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.place.leave();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let path = self.place.parameter();
        if !self.place.is_inner() {
            self.shapes.insert(path, param.lazy_shape().to_vec());
        } else if self.place.kind() == "Adapter" {
            self.adapted = Some(path);
        }
    }
}
