//! The parts of a weight that layers read without its value: codes of four bits, and a low-rank change.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Int, Tensor};

use crate::four_bits::{FOUR_BITS, FourBitWeight};

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
pub struct WeightParts {
    /// W, `[I, O]`, in the dtype in which it is stored. It is not trained. With codes it has the shape of W alone.
    pub weight: Tensor<2>,
    /// The values of W, if they are in codes.
    pub codes: Option<FourBitWeight>,
    /// A change of W.
    pub change: Option<LowRankChange>,
}

/// A low-rank change of a weight.
#[derive(Clone, Debug)]
pub struct LowRankChange {
    /// A, `[I, R]`.
    pub a: Tensor<2>,
    /// B, `[R, O]`.
    pub b: Tensor<2>,
    /// s, `[1]`, which is not trained.
    pub scale: Tensor<1>,
    /// m, `[O]`, if there are magnitudes.
    pub magnitude: Option<Tensor<1>>,
}

/// The parts of a weight that has [codes](FOUR_BITS) or a [low-rank change](LOW_RANK) attached, or both in this order, alone or below a
/// [cast](CAST). `None` if the weight has neither, is trained itself or is quantised by burn, and if something else is attached, such as a
/// mask or a second change: a layer then reads the value of the parameter.
pub fn weight_parts(weight: &Param<Tensor<2>>) -> Option<WeightParts> {
    let mut parts = Parts::default();
    weight.visit(&mut parts);
    let Parts { weight, levels, codes, scales, a, b, scale, magnitude, other, .. } = parts;
    if other {
        return None;
    }
    let codes = match (levels, codes, scales) {
        (Some(levels), Some(codes), Some(scales)) => Some(FourBitWeight { levels, codes, scales }),
        _ => None,
    };
    let change = match (a, b, scale) {
        (Some(a), Some(b), Some(scale)) => Some(LowRankChange { a, b, scale, magnitude }),
        _ => None,
    };
    if codes.is_none() && change.is_none() { None } else { Some(WeightParts { weight: weight?, codes, change }) }
}

/// A walk over a parameter and its attachments.
#[derive(Default)]
struct Parts {
    /// The names of modules and fields around what is visited.
    path: Vec<String>,
    weight: Option<Tensor<2>>,
    levels: Option<Tensor<1>>,
    codes: Option<Tensor<1, Int>>,
    scales: Option<Tensor<1, Int>>,
    a: Option<Tensor<2>>,
    b: Option<Tensor<2>>,
    scale: Option<Tensor<1>>,
    magnitude: Option<Tensor<1>>,
    /// The attachments that were seen, in their order.
    attached: Vec<&'static str>,
    /// Whether there is anything else.
    other: bool,
}

impl ModuleVisitor for Parts {
    fn enter_module(&mut self, name: &str, container: &str) {
        // Attachments without parameters are seen here alone.
        if container == ATTACHED && name != NESTED {
            match [FOUR_BITS, LOW_RANK, CAST].into_iter().find(|known| *known == name) {
                // Each comes once, in this order.
                Some(known) if self.attached.iter().all(|before| order(before) < order(known)) => {
                    self.attached.push(known);
                }
                _ => self.other = true,
            }
        }
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
            (Some("levels"), 1) if !is_trained => self.levels = Some(Tensor::from_dispatch(dispatch)),
            (Some("a"), 2) => self.a = Some(Tensor::from_dispatch(dispatch)),
            (Some("b"), 2) => self.b = Some(Tensor::from_dispatch(dispatch)),
            (Some("magnitude"), 1) => self.magnitude = Some(Tensor::from_dispatch(dispatch)),
            (Some("scale"), 1) if !is_trained => self.scale = Some(Tensor::from_dispatch(dispatch)),
            _ => self.other = true,
        }
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let dispatch = param.base().into_dispatch();
        match (self.path.last().map(String::as_str), D) {
            (Some("codes"), 1) => self.codes = Some(Tensor::from_dispatch(dispatch)),
            (Some("scales"), 1) => self.scales = Some(Tensor::from_dispatch(dispatch)),
            _ => self.other = true,
        }
    }
}

/// The place of an attachment among those of a weight.
fn order(name: &str) -> usize {
    [FOUR_BITS, LOW_RANK, CAST].iter().position(|known| *known == name).unwrap_or_default()
}
