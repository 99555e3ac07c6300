//! How much channels matter, and how many are kept.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::amount::{best, under_target, uniform};
use super::channels::Channels;
use super::kept::Kept;
use super::shapes::Shapes;
use super::shrink::check_parts;
use crate::Error;
use crate::place::Place;

/// How many channels are removed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ChannelPruning {
    /// The same part of each group.
    Uniform {
        /// The part that is removed, from 0 to below 1.
        ratio: f64,
        /// Each group keeps a multiple of it, rounded up; 1 or more. Hardware likes multiples of 8.
        #[serde(default = "one")]
        round_to: usize,
    },
    /// From the groups where they matter least, until a forward pass costs `left` of its multiply-adds. Groups are compared by the share of
    /// a channel in the mean importance of its group.
    MultiplyAdds {
        /// The part of the multiply-adds that is left, above 0 to 1.
        left: f64,
        /// How many channels are removed at a time, and each group keeps a multiple of it; 1 or more.
        #[serde(default = "one")]
        round_to: usize,
    },
}

fn one() -> usize {
    1
}

impl ChannelPruning {
    /// The same part of each group, to single channels.
    pub fn uniform(ratio: f64) -> Self {
        Self::Uniform { ratio, round_to: 1 }
    }

    /// A part of the multiply-adds is left.
    pub fn multiply_adds(left: f64) -> Self {
        Self::MultiplyAdds { left, round_to: 1 }
    }

    fn check(&self) -> Result<(), Error> {
        let wrong = |what, value: String, expected| Err(Error::InvalidSetting { what, value, expected });
        match *self {
            Self::Uniform { round_to: 0, .. } | Self::MultiplyAdds { round_to: 0, .. } => {
                wrong("round_to", "0".into(), "1 or more")
            }
            Self::Uniform { ratio, .. } if !(0.0..1.0).contains(&ratio) => {
                wrong("ratio", ratio.to_string(), "0 to below 1")
            }
            Self::MultiplyAdds { left, .. } if !(left > 0.0 && left <= 1.0) => {
                wrong("left", left.to_string(), "above 0 to 1")
            }
            _ => Ok(()),
        }
    }
}

impl Channels {
    /// How much each channel of each group matters: the L2 norm of all that belongs to it in weights of two or more dimensions and in gammas
    /// of norms, on the input side and on the output side (Torch-Pruning's group magnitude).
    ///
    /// # Errors
    /// Those of [`shrink`](crate::shrink).
    pub fn importance(&self, model: &impl Module) -> Result<Vec<Vec<f32>>, Error> {
        struct Squares<'a> {
            place: Place,
            channels: &'a Channels,
            sums: Vec<Vec<f32>>,
        }
        impl ModuleVisitor for Squares<'_> {
            fn enter_module(&mut self, name: &str, container: &str) {
                self.place.enter(name, container);
            }
            fn exit_module(&mut self, _: &str, _: &str) {
                self.place.leave();
            }
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if self.place.is_inner() || (D < 2 && self.place.field() != "gamma") {
                    return;
                }
                let path = self.place.parameter();
                for (group, sums) in self.channels.groups.iter().zip(&mut self.sums) {
                    for member in group.members.iter().filter(|member| member.path == path) {
                        let shape = param.lazy_shape();
                        let value = param.base().detach();
                        let outer: usize = shape[..member.axis].iter().product();
                        let inner: usize = shape[member.axis + 1..].iter().product();
                        let squares =
                            value.square().reshape([outer, group.size, member.block * inner]).sum_dim(2).sum_dim(0);
                        let squares = squares.into_data().iter::<f32>().collect::<Vec<_>>();
                        sums.iter_mut().zip(squares).for_each(|(sum, square)| *sum += square);
                    }
                }
            }
        }
        let all = self.all();
        all.check(&Shapes::of(model).0)?;
        check_parts(model, &all)?;
        let sums = self.groups.iter().map(|group| vec![0.0; group.size]).collect();
        let mut squares = Squares { place: Place::default(), channels: self, sums };
        model.visit(&mut squares);
        Ok(squares.sums.into_iter().map(|group| group.into_iter().map(f32::sqrt).collect()).collect())
    }

    /// Chooses the channels to keep by their [`importance`](Self::importance) in `model`.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for numbers out of range and for multiply-adds that cannot be reached, and those of
    /// [`importance`](Self::importance).
    pub fn choose(&self, model: &impl Module, how: &ChannelPruning) -> Result<Kept, Error> {
        how.check()?;
        self.choose_by(&self.importance(model)?, how)
    }

    /// The same with an importance of one's own: for each group a number for each channel.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for numbers out of range, other numbers of groups or channels, and multiply-adds that cannot be reached.
    pub fn choose_by(&self, importance: &[Vec<f32>], how: &ChannelPruning) -> Result<Kept, Error> {
        how.check()?;
        let sizes: Vec<usize> = self.groups.iter().map(|group| group.size).collect();
        if !importance.iter().map(Vec::len).eq(sizes.iter().copied()) {
            let value = format!("{:?}", importance.iter().map(Vec::len).collect::<Vec<_>>());
            let expected = "a number for each channel of each group";
            return Err(Error::InvalidSetting { what: "the importance", value, expected });
        }
        let counts = match *how {
            ChannelPruning::Uniform { ratio, round_to } => {
                sizes.iter().map(|size| uniform(*size, ratio, round_to)).collect()
            }
            ChannelPruning::MultiplyAdds { left, round_to } => {
                let first = |counts: &[usize]| {
                    let groups = self.groups.iter().cloned().zip(counts.iter().map(|count| (0..*count).collect()));
                    self.multiply_adds(&Kept::new(groups))
                };
                let target = (first(&sizes) as f64 * left) as u64;
                under_target(importance, round_to, target, first).ok_or(Error::InvalidSetting {
                    what: "left",
                    value: left.to_string(),
                    expected: "multiply-adds that the prunable channels can be reduced to",
                })?
            }
        };
        let kept = importance.iter().zip(counts).map(|(group, count)| best(group, count));
        Ok(Kept::new(self.groups.iter().cloned().zip(kept)))
    }
}
