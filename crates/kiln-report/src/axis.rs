//! Axes of plots: their ranges, the positions of their numbers, and the text of these.

/// A number at an axis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tick {
    pub(crate) at: f64,
    pub(crate) label: String,
}

/// A range of values that an axis shows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// Whether it is divided by powers of ten. Its values are then positive.
    pub(crate) is_log: bool,
    /// The unit that its numbers count.
    pub(crate) unit: f64,
}

impl Scale {
    /// A range that is divided evenly. One without values between its ends is widened.
    pub(crate) fn linear(low: f64, high: f64) -> Self {
        Self { low, high: if high > low { high } else { low + 1.0 }, is_log: false, unit: 1.0 }
    }

    /// A range around `values` with a margin. `None` without values.
    pub(crate) fn around(values: impl Iterator<Item = f64>) -> Option<Self> {
        let [low, high] = ends(values)?;
        // All values are equal: they are in the middle.
        let room = if high > low { 0.05 * (high - low) } else { 0.1 * high.abs().max(1e-6) };
        let low_with_room = if low >= 0.0 && low - room < 0.0 { 0.0 } else { low - room };
        Some(Self::linear(low_with_room, high + room))
    }

    /// A logarithmic range around the positive ones of `values`. `None` when there are none.
    pub(crate) fn logarithmic(values: impl Iterator<Item = f64>) -> Option<Self> {
        let [low, high] = ends(values.filter(|value| *value > 0.0))?;
        let room = (high / low).powf(0.05).max(1.05);
        Some(Self { is_log: true, ..Self::linear(low / room, high * room) })
    }

    /// The position of a value, from 0 to 1. Values outside of the range are at its ends.
    pub(crate) fn place(self, value: f64) -> f64 {
        let part = match self.is_log {
            true => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        part.clamp(0.0, 1.0)
    }

    /// Round numbers in the range, about `count` of them on an even axis. No two labels are equal.
    pub(crate) fn ticks(self, count: f64) -> Vec<Tick> {
        let (low, high) = (self.low / self.unit, self.high / self.unit);
        let mut ticks = if self.is_log { logarithmic_ticks(low, high) } else { linear_ticks(low, high, count) };
        // If a range is tiny compared with its position, the digits of a double do not distinguish its numbers.
        ticks.dedup_by(|a, b| a.label == b.label);
        ticks.into_iter().map(|tick| Tick { at: tick.at * self.unit, ..tick }).collect()
    }
}

/// The unit of an axis up to `most` bytes, and its bytes.
pub(crate) fn byte_unit(most: f64) -> (&'static str, f64) {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)].map(|(name, power)| (name, 2f64.powi(power)));
    units.into_iter().find(|(_, unit)| most >= 2.0 * unit).unwrap_or(("B", 1.0))
}

/// The unit of an axis over a span of seconds, and its seconds.
pub(crate) fn time_unit(seconds: f64) -> (&'static str, f64) {
    match seconds {
        s if s >= 2.0 => ("s", 1.0),
        s if s >= 2e-3 => ("ms", 1e-3),
        _ => ("µs", 1e-6),
    }
}

fn ends(values: impl Iterator<Item = f64>) -> Option<[f64; 2]> {
    let finite = values.filter(|value| value.is_finite());
    finite.fold(None, |ends, value| match ends {
        None => Some([value; 2]),
        Some([low, high]) => Some([low.min(value), high.max(value)]),
    })
}

fn linear_ticks(low: f64, high: f64, count: f64) -> Vec<Tick> {
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
        let label = if (1e-3..1e4).contains(&at) { format!("{at:.*}", digits(power)) } else { label(at, power, at) };
        Tick { at, label }
    });
    let ticks: Vec<Tick> = ticks.collect();
    if ticks.len() < 3 { linear_ticks(low, high, 5.0) } else { ticks }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(scale: Scale, count: f64) -> Vec<String> {
        scale.ticks(count).into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn ticks_are_round_and_differ() {
        for (low, high, unit, expected) in [
            (0.0, 744.0, 1.0, vec!["0", "200", "400", "600"]),
            (0.0, 48_000.0, 1.0, vec!["0", "10k", "20k", "30k", "40k"]),
            (0.0, 1.1e-4, 1.0, vec!["0", "0.2e-4", "0.4e-4", "0.6e-4", "0.8e-4", "1.0e-4"]),
            (0.499, 0.861, 1.0, vec!["0.5", "0.6", "0.7", "0.8"]),
            (-1.0, 1.0, 1.0, vec!["-1.0", "-0.5", "0", "0.5", "1.0"]),
            (0.0, 21.0 * 1024.0, 1024.0, vec!["0", "5", "10", "15", "20"]),
            (1.2345, 1.234_58, 1e-3, vec!["1234.50", "1234.52", "1234.54", "1234.56", "1234.58"]),
        ] {
            assert_eq!(labels(Scale { unit, ..Scale::linear(low, high) }, 5.0), expected);
        }
        for (low, high) in [(2.800_01, 2.800_02), (1e6, 1e6 + 1.0), (3e-9, 4e-9), (0.0, 9e12), (1.0, 1.0)] {
            assert!(labels(Scale::linear(low, high), 5.0).len() >= 2, "{low} to {high}");
        }
        assert_eq!(
            [100.0, 3000.0, 1.5 * 1048576.0, 9e8, 8e10].map(|most| byte_unit(most).0),
            ["B", "KiB", "KiB", "MiB", "GiB"]
        );
    }

    #[test]
    fn equal_values_stand_in_the_middle_of_an_axis_with_different_numbers() {
        for value in [0.0, 5.0, -3.0, 1e-4, 1e9] {
            let scale = Scale::around([value; 3].into_iter()).unwrap();
            assert!(labels(scale, 5.0).len() > 1, "{value}: {scale:?}");
            assert!(value == 0.0 || (0.3..0.7).contains(&scale.place(value)), "{value}: {scale:?}");
        }
    }

    #[test]
    fn values_that_are_no_numbers_do_not_count() {
        assert_eq!(Scale::around([f64::NAN, f64::INFINITY].into_iter()), None);
        assert_eq!(Scale::logarithmic([0.0, -1.0].into_iter()), None);
        let scale = Scale::around([f64::NAN, 1.0, 3.0].into_iter()).unwrap();
        assert_eq!((scale.low, scale.high), (0.9, 3.1));
    }

    #[test]
    fn a_logarithmic_axis_has_powers_of_ten() {
        let scale = Scale::logarithmic([0.001, 1000.0, 0.0].into_iter()).unwrap();
        assert_eq!(labels(scale, 5.0), ["0.001", "0.01", "0.1", "1", "10", "100", "1000"]);
        assert!((scale.place(1.0) - 0.5).abs() < 1e-9);
        assert_eq!(scale.place(0.0), 0.0);
        assert!(labels(Scale::logarithmic([0.5, 2.3].into_iter()).unwrap(), 5.0).len() >= 3);
    }

    proptest! {
        #[test]
        fn no_two_ticks_are_written_alike(from in -1e6..1e6f64, log in -9.0..9.0f64, count in 2.0..12.0f64) {
            let labels = labels(Scale::linear(from, from + 10f64.powf(log)), count);
            let mut distinct = labels.clone();
            distinct.dedup();
            prop_assert_eq!(&distinct, &labels);
            prop_assert!(labels.len() <= 17);
        }
    }
}
