//! Parameters that a run does not train.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::Tensor;

use crate::error::Error;

/// Returns `model` with the parameters at or below `paths` frozen: they need no gradient.
///
/// # Errors
/// [`Error::UnknownPath`] for a path that no parameter has, [`Error::InvalidSetting`] if no parameter is left to train.
pub(super) fn frozen<M: Module>(model: M, paths: &[String]) -> Result<M, Error> {
    let mut known = Paths::default();
    model.visit(&mut known);
    if let Some(path) = paths.iter().find(|path| !known.all.iter().any(|known| is_below(known, path))) {
        return Err(Error::UnknownPath { path: path.clone(), known: known.first_names().join(", ") });
    }
    if known.all.iter().all(|known| paths.iter().any(|path| is_below(known, path))) {
        let expected = "at least one parameter that is trained";
        return Err(Error::InvalidSetting { name: "list of frozen parameters", value: paths.join(", "), expected });
    }
    Ok(model.map(&mut Freeze { paths, place: vec![] }))
}

/// Whether the parameter `name` is the module or parameter `path`, or in it.
fn is_below(name: &str, path: &str) -> bool {
    name.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The paths of all trainable parameters.
#[derive(Default)]
struct Paths {
    place: Vec<String>,
    all: Vec<String>,
}

impl Paths {
    /// The first names of the paths, each once.
    fn first_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.all.iter().filter_map(|path| path.split('.').next()).collect();
        names.dedup();
        names
    }
}

impl ModuleVisitor for Paths {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.place.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.place.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // Running statistics are tensors too, but are never trained.
        if param.is_require_grad() {
            self.all.push(self.place.join("."));
        }
    }
}

struct Freeze<'a> {
    paths: &'a [String],
    place: Vec<String>,
}

impl ModuleMapper for Freeze<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.place.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.place.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let name = self.place.join(".");
        match self.paths.iter().any(|path| is_below(&name, path)) {
            true => param.set_require_grad(false),
            false => param,
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
    use burn::tensor::Device;

    use super::*;

    #[derive(Module, Debug)]
    struct Net {
        body: Vec<Linear>,
        norm: BatchNorm,
        head: Linear,
    }

    fn net() -> Net {
        let device = Device::flex().autodiff();
        Net {
            body: (0..11).map(|_| LinearConfig::new(2, 2).init(&device)).collect(),
            norm: BatchNormConfig::new(2).init(&device),
            head: LinearConfig::new(2, 3).init(&device),
        }
    }

    fn learned(model: &Net) -> Vec<String> {
        let mut paths = Paths::default();
        model.visit(&mut paths);
        paths.all
    }

    #[test]
    fn a_path_names_whole_modules() {
        let all = learned(&net());
        let freeze = |paths: &[&str]| {
            let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
            frozen(net(), &paths).map(|model| learned(&model))
        };
        let left = freeze(&["body.1"]).unwrap();
        assert_eq!(left, all.iter().filter(|path| !path.starts_with("body.1.")).cloned().collect::<Vec<_>>());
        assert!(left.contains(&"body.10.weight".to_owned()));
        assert_eq!(freeze(&["body", "norm"]).unwrap(), ["head.weight", "head.bias"]);
        assert_eq!(freeze(&["head.bias"]).unwrap().len(), all.len() - 1);
        let unknown = freeze(&["bod"]).unwrap_err().to_string();
        assert!(unknown.contains("'bod'") && unknown.contains("body, norm, head"), "{unknown}");
        let nothing = freeze(&["body", "norm", "head"]).unwrap_err().to_string();
        assert!(nothing.contains("at least one parameter"), "{nothing}");
    }
}
