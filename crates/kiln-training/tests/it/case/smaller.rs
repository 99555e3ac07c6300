//! How a model of a case is made smaller while it trains: what is attached to its parameters, and edits between steps.

use burn::module::Module;
use burn::optim::ModuleOptimizer;
use kiln_compression::{
    Error, FakeQuantizer, FourBitWeights, FourBits, Gradual, LowRank, Masks, Nest, Pruning, Quantization, mask_moments,
    prune,
};
use kiln_training::{Task, TrainerBuilder};

type Attached = Nest<Nest<Masks, LowRank>, FakeQuantizer>;
type Coded = Nest<FourBitWeights, LowRank>;

#[derive(Clone, Debug, Default)]
pub(crate) struct Smaller {
    pub(crate) prune: Option<Gradual>,
    pub(crate) targets: Vec<&'static str>,
    pub(crate) dora: bool,
    /// Whether the weights beside adapters are codes of four bits.
    pub(crate) codes: bool,
    pub(crate) bits: Option<u8>,
    /// How far a batch moves the range of an input.
    pub(crate) momentum: Option<f64>,
}

/// Prunes before the steps 2, 3 and 5.
pub(crate) const GRADUAL: Gradual = Gradual { from_step: 1, to_step: 4, every: 1, initial: 0.2, final_sparsity: 0.6 };

pub(crate) fn qat() -> Smaller {
    Smaller { bits: Some(4), momentum: Some(0.1), ..Smaller::default() }
}

pub(crate) fn pruning() -> Smaller {
    Smaller { prune: Some(GRADUAL), ..Smaller::default() }
}

pub(crate) fn lora() -> Smaller {
    Smaller { targets: vec!["c_attn", "c_proj", "c_fc"], ..Smaller::default() }
}

/// Adapters beside weights of four bits.
pub(crate) fn four_bits() -> Smaller {
    Smaller { codes: true, ..lora() }
}

pub(crate) fn nested(targets: &[&'static str]) -> Smaller {
    Smaller { targets: targets.to_vec(), ..qat() }.pruned()
}

impl Smaller {
    pub(crate) fn pruned(self) -> Self {
        Self { prune: Some(GRADUAL), ..self }
    }

    pub(crate) fn quantization(&self) -> Quantization {
        Quantization::bits(self.bits.unwrap_or(8))
    }

    fn attached(&self, model: &impl Module) -> Result<Attached, Error> {
        let masks = self.prune.map(|_| Masks::of(model));
        let adapters = (!self.targets.is_empty()).then(|| -> Result<_, Error> {
            let adapters = LowRank::new(2, 4.0, self.targets.iter().copied())?.with_dora(self.dora);
            adapters.check(model)?;
            Ok(adapters)
        });
        let fake = self.bits.map(|_| {
            let fake = FakeQuantizer::of(model, &self.quantization())?;
            self.momentum.map_or(Ok(fake.clone()), |momentum| fake.with_inputs(momentum))
        });
        if self.momentum.is_some() {
            assert!(kiln_models::on_layer_input(kiln_compression::input_map));
        }
        Ok(Nest::optional(Some(Nest::optional(masks, adapters.transpose()?)), fake.transpose()?))
    }

    fn coded(&self, model: &impl Module) -> Result<Coded, Error> {
        let adapters = LowRank::new(2, 4.0, self.targets.iter().copied())?;
        let codes = FourBits::default().of(model, |_| Ok(None))?;
        let adapters = if self.dora { adapters.with_magnitudes(codes.norms()) } else { adapters };
        Ok(Nest::new(codes, adapters))
    }

    /// Adds the attachments and the edits to `builder`.
    pub(crate) fn on<'a, T: Task>(&self, builder: TrainerBuilder<'a, T>) -> TrainerBuilder<'a, T> {
        let (own, gradual) = (self.clone(), self.prune);
        if own.codes {
            return builder.with_early_reparameterization(move |model: &T::Model| own.coded(model));
        }
        let builder = builder.with_reparameterization(move |model: &T::Model| own.attached(model));
        match gradual {
            Some(gradual) => {
                builder.with_model_edit(move |step, model, optimizer| edited(&gradual, step, model, optimizer))
            }
            None => builder,
        }
    }
}

pub(crate) type Edited<M> = Result<Option<(M, ModuleOptimizer)>, Error>;

pub(crate) fn edited<M: Module>(gradual: &Gradual, step: u64, model: &M, optimizer: &ModuleOptimizer) -> Edited<M> {
    let step = step as usize;
    if !gradual.is_update(step) {
        return Ok(None);
    }
    let model = prune(model.clone(), &Pruning::magnitude(gradual.sparsity_at(step)))?;
    let optimizer = mask_moments(optimizer.clone(), &model)?;
    Ok(Some((model, optimizer)))
}
