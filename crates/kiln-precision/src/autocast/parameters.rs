//! Paths and layer types of a module's parameters.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

/// The place of a float parameter or buffer in a module.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Place {
    /// Names of the fields that lead to it, joined by dots.
    pub(crate) path: String,
    /// Types of the modules around it, outermost first: `BatchNorm`, `Linear`.
    pub(crate) kinds: Vec<String>,
}

impl Place {
    /// Whether this is a running statistic: a buffer, not a learned parameter.
    pub(crate) fn is_statistic(&self) -> bool {
        let field = self.path.rsplit('.').next().unwrap_or_default();
        field.starts_with("running_") && self.kinds.last().is_some_and(|kind| kind == "BatchNorm")
    }

    /// Whether `path` names this parameter or a module around it.
    pub(crate) fn is_within(&self, path: &str) -> bool {
        self.path.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

/// The float parameters and buffers of a module, and the reparameterized ones with the name of their reparameterization.
#[derive(Default)]
pub(crate) struct Parameters {
    stack: Vec<(String, String)>,
    pub(crate) places: Vec<Place>,
    pub(crate) reparameterized: Vec<(String, String)>,
}

impl Parameters {
    pub(crate) fn of(module: &impl Module) -> Self {
        let mut parameters = Self::default();
        module.visit(&mut parameters);
        parameters
    }

    fn path(&self) -> String {
        self.stack.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(".")
    }
}

impl ModuleVisitor for Parameters {
    fn enter_module(&mut self, name: &str, container: &str) {
        if container == "Reparameterization" {
            self.reparameterized.push((self.path(), name.to_owned()));
        }
        self.stack.push((name.to_owned(), container.to_owned()));
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.stack.pop();
    }

    fn visit_float<const D: usize>(&mut self, _: &Param<Tensor<D>>) {
        let kinds = self.stack.iter().filter_map(|(_, kind)| kind.strip_prefix("Struct:")).map(str::to_owned).collect();
        self.places.push(Place { path: self.path(), kinds });
    }
}
