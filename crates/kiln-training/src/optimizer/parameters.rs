//! Finds the parameters of a model that an optimizer treats differently.

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

/// The parameters of a model that are not weights of hidden layers.
pub(crate) struct Kinds {
    /// With at most one dimension: biases and norms.
    pub(super) one_dimensional: Vec<ParamId>,
    /// Parameters that are not matrices, and embedding tables, whose rows are not mixed.
    pub(crate) no_matrices: Vec<ParamId>,
}

impl Kinds {
    pub(crate) fn of(model: &impl Module) -> Self {
        let mut collect = Collect { containers: vec![], kinds: Self { one_dimensional: vec![], no_matrices: vec![] } };
        model.visit(&mut collect);
        collect.kinds
    }
}

struct Collect {
    /// The types of the modules that are being visited.
    containers: Vec<String>,
    kinds: Kinds,
}

impl ModuleVisitor for Collect {
    fn enter_module(&mut self, _: &str, container: &str) {
        self.containers.push(container.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.containers.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if D <= 1 {
            self.kinds.one_dimensional.push(param.id);
        }
        if D != 2 || self.containers.last().is_some_and(|container| container == "Struct:Embedding") {
            self.kinds.no_matrices.push(param.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::conv::{Conv2d, Conv2dConfig};
    use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
    use burn::tensor::Device;

    use super::*;

    #[derive(Module, Debug)]
    struct Net {
        table: Embedding,
        conv: Conv2d,
        norm: Option<LayerNorm>,
        hidden: Vec<Linear>,
    }

    #[test]
    fn hidden_layers_are_told_from_the_rest() {
        let device = Device::flex();
        let net = Net {
            table: EmbeddingConfig::new(4, 3).init(&device),
            conv: Conv2dConfig::new([1, 1], [2, 2]).init(&device),
            norm: Some(LayerNormConfig::new(3).init(&device)),
            hidden: vec![LinearConfig::new(3, 3).init(&device)],
        };
        let norm = net.norm.as_ref().unwrap();
        let one = [
            net.conv.bias.as_ref().unwrap().id,
            norm.gamma.id,
            norm.beta.as_ref().unwrap().id,
            net.hidden[0].bias.as_ref().unwrap().id,
        ];
        let kinds = Kinds::of(&net);
        assert_eq!(kinds.one_dimensional, one);
        let matrices = |id: &ParamId| !kinds.no_matrices.contains(id);
        assert!(matrices(&net.hidden[0].weight.id));
        for other in one.iter().chain([&net.table.weight.id, &net.conv.weight.id]) {
            assert!(!matrices(other), "{other}");
        }
    }
}
