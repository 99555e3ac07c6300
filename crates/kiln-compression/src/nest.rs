//! Two reparameterizations of one parameter, one inside of the other.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, Reparameterization, Reparameterizer};
use burn::tensor::{Device, Tensor};
use kiln_operations::NESTED;

/// Attaches two reparameterizations to each parameter: `first` changes the stored value, `then` changes the result.
///
/// A parameter of burn holds one reparameterization, and one that is attached cannot be taken off again without losing the stored
/// value. So everything that is to happen to a parameter is named at once, on the plain model. Nests may be nested. The order that makes
/// sense is that of the stored value's way to the layer: a mask, then an adapter, then fake quantisation, and the cast of a precision
/// policy last.
///
/// ```
/// use burn::module::{Module, Param, Reparameterization, Reparameterizer};
/// use burn::nn::LinearConfig;
/// use burn::tensor::{Device, Tensor};
/// use kiln_compression::Nest;
///
/// #[derive(Module, Debug)]
/// struct Plus {
///     number: f64,
/// }
///
/// impl Reparameterization for Plus {
///     const NAME: &'static str = "plus";
///     fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
///         base + self.number
///     }
/// }
///
/// struct Add(f64);
///
/// impl Reparameterizer for Add {
///     type Reparam = Plus;
///     fn reparameterize<const D: usize>(&mut self, _: &str, param: Param<Tensor<D>>) -> (Param<Tensor<D>>, Option<Plus>) {
///         (param, Some(Plus { number: self.0 }))
///     }
/// }
///
/// let plain = LinearConfig::new(2, 2).init(&Device::flex());
/// let nested = plain.clone().apply_reparameterization(Nest::new(Add(1.0), Add(2.0)));
/// assert_eq!(nested.weight.val().into_data(), ((plain.weight.val() + 1.0) + 2.0).into_data());
/// ```
#[derive(Clone, Debug)]
pub struct Nest<A, B> {
    first: Option<A>,
    then: Option<B>,
}

impl<A, B> Nest<A, B> {
    /// `first` on the stored value, `then` on its result.
    pub fn new(first: A, then: B) -> Self {
        Self { first: Some(first), then: Some(then) }
    }

    /// `first` on the stored value, `then` on its result; either may be none, for settings that leave something out.
    pub fn optional(first: Option<A>, then: Option<B>) -> Self {
        Self { first, then }
    }
}

impl<A: Reparameterizer, B: Reparameterizer> Reparameterizer for Nest<A, B> {
    type Reparam = Nested<A::Reparam, B::Reparam>;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Self::Reparam>) {
        let (param, first) = part(&mut self.first, path, param);
        let (param, then) = part(&mut self.then, path, param);
        let nested = (first.is_some() || then.is_some()).then_some(Nested { first, then });
        (param, nested)
    }
}

fn part<R: Reparameterizer, const D: usize>(
    part: &mut Option<R>,
    path: &str,
    param: Param<Tensor<D>>,
) -> (Param<Tensor<D>>, Option<R::Reparam>) {
    match part {
        Some(part) => part.reparameterize(path, param),
        None => (param, None),
    }
}

/// The reparameterization that [`Nest`] attaches.
#[derive(Clone, Debug)]
pub struct Nested<A, B> {
    /// Changes the stored value.
    pub first: Option<A>,
    /// Changes the result of `first`.
    pub then: Option<B>,
}

fn visit_part<R: Reparameterization, V: ModuleVisitor>(part: &Option<R>, visitor: &mut V) {
    if let Some(part) = part {
        visitor.enter_module(R::NAME, "Reparameterization");
        part.visit(visitor);
        visitor.exit_module(R::NAME, "Reparameterization");
    }
}

fn map_part<R: Reparameterization, M: ModuleMapper>(part: Option<R>, mapper: &mut M) -> Option<R> {
    part.map(|part| {
        mapper.enter_module(R::NAME, "Reparameterization");
        let part = part.map(mapper);
        mapper.exit_module(R::NAME, "Reparameterization");
        part
    })
}

// burn's derive asks for a display of the parts, which reparameterizations need not have.
impl<A: Reparameterization, B: Reparameterization> Module for Nested<A, B> {
    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        visit_part(&self.first, visitor);
        visit_part(&self.then, visitor);
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        Self { first: map_part(self.first, mapper), then: map_part(self.then, mapper) }
    }

    fn collect_devices(&self, devices: Vec<Device>) -> Vec<Device> {
        self.then.collect_devices(self.first.collect_devices(devices))
    }

    fn to_device(self, device: &Device) -> Self {
        Self { first: self.first.to_device(device), then: self.then.to_device(device) }
    }

    fn fork(self, device: &Device) -> Self {
        Self { first: self.first.fork(device), then: self.then.fork(device) }
    }

    fn valid(&self) -> Self {
        Self { first: self.first.valid(), then: self.then.valid() }
    }

    fn train(self) -> Self {
        Self { first: self.first.train(), then: self.then.train() }
    }

    fn materialize(self) -> Self {
        Self { first: self.first.materialize(), then: self.then.materialize() }
    }
}

impl<A: Reparameterization, B: Reparameterization> Reparameterization for Nested<A, B> {
    const NAME: &'static str = NESTED;

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let value = match &self.first {
            Some(first) => first.apply(base),
            None => base,
        };
        match &self.then {
            Some(then) => then.apply(value),
            None => value,
        }
    }
}
