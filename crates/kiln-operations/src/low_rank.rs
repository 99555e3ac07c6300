//! Low-rank changes of weights, read apart from the weights.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

/// The name under which a low-rank change `s A B` is attached to a weight. It is a module with the parameters `a`, `b` and
/// `scale`, and with `magnitude` if the magnitude of each output is trained.
pub const LOW_RANK: &str = "low_rank";

/// The name under which several attachments of a parameter are one, in their order.
pub const NESTED: &str = "nested";

/// The name under which a cast of a parameter's value is attached.
pub const CAST: &str = "autocast";

/// The container of what is attached to a parameter, as visitors see it.
const ATTACHED: &str = "Reparameterization";

/// A weight `W + s A B` in its parts, or with magnitudes `m (W + s A B) / ||W + s A B||`, where norms are those of columns. An operation on
/// the parts needs neither the sum nor a gradient of W.
#[derive(Clone, Debug)]
pub struct LowRankWeight {
    /// W, `[I, O]`, in the dtype in which it is stored. It is not trained.
    pub weight: Tensor<2>,
    /// A, `[I, R]`.
    pub a: Tensor<2>,
    /// B, `[R, O]`.
    pub b: Tensor<2>,
    /// s, `[1]`, which is not trained.
    pub scale: Tensor<1>,
    /// m, `[O]`, if there are magnitudes.
    pub magnitude: Option<Tensor<1>>,
}

/// The parts of a weight that has a [low-rank change](LOW_RANK) attached, alone or below a [cast](CAST). `None` if the weight has none, is
/// trained itself or is quantised, and if something else is attached, such as a mask or a second change: a layer then reads the value of the
/// parameter.
pub fn low_rank_parts(weight: &Param<Tensor<2>>) -> Option<LowRankWeight> {
    let mut parts = Parts::default();
    weight.visit(&mut parts);
    let Parts { weight, a, b, scale, magnitude, other, .. } = parts;
    if other { None } else { Some(LowRankWeight { weight: weight?, a: a?, b: b?, scale: scale?, magnitude }) }
}

/// A walk over a parameter and its attachments.
#[derive(Default)]
struct Parts {
    /// The names of modules and fields around what is visited.
    path: Vec<String>,
    weight: Option<Tensor<2>>,
    a: Option<Tensor<2>>,
    b: Option<Tensor<2>>,
    scale: Option<Tensor<1>>,
    magnitude: Option<Tensor<1>>,
    /// Whether a cast was seen.
    is_cast: bool,
    /// Whether there is anything else.
    other: bool,
}

impl ModuleVisitor for Parts {
    fn enter_module(&mut self, name: &str, container: &str) {
        // Attachments without parameters are seen here alone.
        let is_known = [LOW_RANK, NESTED, CAST].contains(&name) && !(name == LOW_RANK && self.is_cast);
        self.other |= container == ATTACHED && !is_known;
        self.is_cast |= container == ATTACHED && name == CAST;
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.base();
        let (is_trained, is_float) = (param.is_require_grad(), value.dtype().is_float());
        let dispatch = value.into_dispatch();
        match (self.path.last().map(String::as_str), D) {
            (None, 2) if !is_trained && is_float => self.weight = Some(Tensor::from_dispatch(dispatch)),
            (Some("a"), 2) if self.a.is_none() => self.a = Some(Tensor::from_dispatch(dispatch)),
            (Some("b"), 2) if self.b.is_none() => self.b = Some(Tensor::from_dispatch(dispatch)),
            (Some("magnitude"), 1) => self.magnitude = Some(Tensor::from_dispatch(dispatch)),
            (Some("scale"), 1) if !is_trained => self.scale = Some(Tensor::from_dispatch(dispatch)),
            _ => self.other = true,
        }
    }
}
