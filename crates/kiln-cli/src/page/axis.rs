//! Axes of charts: their ranges, the positions of their numbers, and the text of these.

/// A number at an axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tick {
    pub(super) at: f64,
    pub(super) label: String,
}

/// A range of values that an axis shows, divided evenly or by powers of ten.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scale {
    Linear {
        low: f64,
        high: f64,
    },
    /// A range of positive values, divided by powers of ten.
    Logarithmic {
        low: f64,
        high: f64,
    },
}

impl Scale {
    /// The position of a value, from 0 to 1. Values outside of the range are at its ends.
    pub(super) fn place(self, value: f64) -> f64 {
        let (low, high, value) = match self {
            Self::Linear { low, high } => (low, high, value),
            Self::Logarithmic { low, high } => (low.ln(), high.ln(), value.max(low).ln()),
        };
        ((value - low) / (high - low)).clamp(0.0, 1.0)
    }

    /// The ends of the range.
    pub(super) fn ends(self) -> [f64; 2] {
        match self {
            Self::Linear { low, high } | Self::Logarithmic { low, high } => [low, high],
        }
    }

    /// Numbers for a vertical axis.
    pub(super) fn ticks(self) -> Vec<Tick> {
        match self {
            Self::Linear { low, high } => linear_ticks(low, high, 5.0),
            Self::Logarithmic { low, high } => logarithmic_ticks(low, high),
        }
    }
}

/// A range around `values` with a margin. `None` without values.
pub(super) fn linear(values: impl Iterator<Item = f64>) -> Option<Scale> {
    let [low, high] = ends(values)?;
    // All values are equal: they are in the middle.
    let room = if high > low { 0.05 * (high - low) } else { 0.1 * high.abs().max(1e-6) };
    let low_with_room = if low >= 0.0 && low - room < 0.0 { 0.0 } else { low - room };
    Some(Scale::Linear { low: low_with_room, high: high + room })
}

/// A range around the positive ones of `values`. `None` when there are none.
pub(super) fn logarithmic(values: impl Iterator<Item = f64>) -> Option<Scale> {
    let [low, high] = ends(values.filter(|value| *value > 0.0))?;
    let room = (high / low).powf(0.05).max(1.05);
    Some(Scale::Logarithmic { low: low / room, high: high * room })
}

fn ends(values: impl Iterator<Item = f64>) -> Option<[f64; 2]> {
    let finite = values.filter(|value| value.is_finite());
    finite.fold(None, |ends, value| match ends {
        None => Some([value; 2]),
        Some([low, high]) => Some([low.min(value), high.max(value)]),
    })
}

/// Round numbers in a range, about `count` of them.
pub(super) fn linear_ticks(low: f64, high: f64, count: f64) -> Vec<Tick> {
    let rough = (high - low) / count;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough * 0.75);
    let Some(step) = step.filter(|step| step.is_normal()) else { return vec![] };
    let first = (low / step - 1e-9).ceil();
    let places = (0..100).map(|index| (first + f64::from(index)) * step).take_while(|at| *at <= high + step * 1e-9);
    let places: Vec<f64> = places.map(|at| if at.abs() < step / 2.0 { 0.0 } else { at }).collect();
    let largest = places.iter().fold(0.0, |largest: f64, at| largest.max(at.abs()));
    places.into_iter().map(|at| Tick { at, label: label(at, step, largest) }).collect()
}

/// The label of a number on an axis with the distance `step` between numbers, all of which are at most `largest`. It has as many digits
/// as tell it from its neighbours.
fn label(at: f64, step: f64, largest: f64) -> String {
    if at == 0.0 {
        return "0".into();
    }
    if largest < 1e-3 {
        let exponent = largest.log10().floor() as i32;
        let (at, step) = (at / 10f64.powi(exponent), step / 10f64.powi(exponent));
        return format!("{at:.*}e{exponent}", digits(step));
    }
    let (unit, suffix) = match largest {
        largest if largest >= 1e7 => (1e6, "M"),
        largest if largest >= 1e4 => (1e3, "k"),
        _ => (1.0, ""),
    };
    format!("{:.*}{suffix}", digits(step / unit), at / unit)
}

/// The number of decimals that tell multiples of `step` apart.
fn digits(step: f64) -> usize {
    (-(step.log10() + 1e-9).floor()).max(0.0) as usize
}

/// Powers of ten, with 2 and 5 times these if there are few. Even divisions if the range is within one power.
fn logarithmic_ticks(low: f64, high: f64) -> Vec<Tick> {
    let [first, last] = [low.log10().floor() as i32, high.log10().ceil() as i32];
    let every = ((last - first) / 6).max(1) as usize;
    let factors: &[f64] = if high / low > 300.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let powers = (first..=last).step_by(every).map(|exponent| 10f64.powi(exponent));
    let places = powers.flat_map(|power| factors.iter().map(move |factor| (factor * power, power)));
    let ticks = places.filter(|(at, _)| (low..=high).contains(at)).map(|(at, power)| {
        let label = match at {
            at if at >= 1e4 => label(at, power, at),
            at if at >= 1e-3 => format!("{at:.*}", digits(power)),
            at => label(at, power, at),
        };
        Tick { at, label }
    });
    let ticks: Vec<Tick> = ticks.collect();
    if ticks.len() < 3 { linear_ticks(low, high, 5.0) } else { ticks }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(ticks: Vec<Tick>) -> Vec<String> {
        ticks.into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn ticks_are_round_and_differ() {
        assert_eq!(labels(linear_ticks(0.0, 744.0, 5.0)), ["0", "200", "400", "600"]);
        assert_eq!(labels(linear_ticks(0.0, 48_000.0, 5.0)), ["0", "10k", "20k", "30k", "40k"]);
        assert_eq!(labels(linear_ticks(0.0, 1.1e-4, 5.0)), ["0", "0.2e-4", "0.4e-4", "0.6e-4", "0.8e-4", "1.0e-4"]);
        assert_eq!(labels(linear_ticks(0.499, 0.861, 5.0)), ["0.5", "0.6", "0.7", "0.8"]);
        assert_eq!(labels(linear_ticks(-1.0, 1.0, 4.0)), ["-1.0", "-0.5", "0", "0.5", "1.0"]);
        for (low, high) in [(2.800_01, 2.800_02), (1e6, 1e6 + 1.0), (3e-9, 4e-9), (0.0, 9e12)] {
            let labels = labels(linear_ticks(low, high, 5.0));
            let mut distinct = labels.clone();
            distinct.dedup();
            assert!(labels.len() >= 2 && distinct == labels, "{labels:?}");
        }
    }

    #[test]
    fn equal_values_stand_in_the_middle_of_an_axis_with_different_numbers() {
        for value in [0.0, 5.0, -3.0, 1e-4, 1e9] {
            let scale = linear([value; 3].into_iter()).unwrap();
            let labels = labels(scale.ticks());
            assert!(labels.windows(2).all(|pair| pair[0] != pair[1]) && labels.len() > 1, "{value}: {labels:?}");
            let place = scale.place(value);
            assert!(value == 0.0 || (0.3..0.7).contains(&place), "{value}: {place}");
        }
    }

    #[test]
    fn values_that_are_no_numbers_do_not_count() {
        assert_eq!(linear([f64::NAN, f64::INFINITY].into_iter()), None);
        assert_eq!(logarithmic([0.0, -1.0].into_iter()), None);
        let scale = linear([f64::NAN, 1.0, 3.0].into_iter()).unwrap();
        assert_eq!(scale.ends(), [0.9, 3.1]);
    }

    #[test]
    fn a_logarithmic_axis_has_powers_of_ten() {
        let scale = logarithmic([0.001, 1000.0, 0.0].into_iter()).unwrap();
        assert_eq!(labels(scale.ticks()), ["0.001", "0.01", "0.1", "1", "10", "100", "1000"]);
        assert!((scale.place(1.0) - 0.5).abs() < 1e-9);
        assert_eq!(scale.place(0.0), 0.0);
        let narrow = logarithmic([0.5, 2.3].into_iter()).unwrap();
        assert!(labels(narrow.ticks()).len() >= 3, "{:?}", narrow.ticks());
    }
}
