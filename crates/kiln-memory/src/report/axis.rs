//! Axes of a drawing: round numbers, units of bytes and of time.

/// The unit for a span of seconds, and the seconds of that unit.
pub(super) fn clock(seconds: f64) -> (&'static str, f64) {
    match seconds {
        s if s >= 2.0 => ("s", 1.0),
        s if s >= 2e-3 => ("ms", 1e-3),
        _ => ("µs", 1e-6),
    }
}

/// The unit of an axis that ends at `most` bytes, and the bytes of that unit.
pub(super) fn unit(most: f64) -> (&'static str, f64) {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let fits = |power: i32| most >= 2.0 * 2f64.powi(power);
    units.into_iter().find(|(_, power)| fits(*power)).map_or(("B", 1.0), |(name, power)| (name, 2f64.powi(power)))
}

/// About `count` round numbers between two others, with their text. No two texts are equal.
pub(super) fn ticks(from: f64, to: f64, count: f64) -> Vec<(f64, String)> {
    let rough = (to - from) / count;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough);
    let Some(step) = step.filter(|step| step.is_normal()) else { return vec![] };
    let digits = (-(step * 1.000_001).log10().floor()).max(0.0) as usize;
    let first = (from / step - 1e-9).ceil();
    let ticks = (0..).map(|index| (first + f64::from(index)) * step).take_while(|at| *at <= to + step * 1e-9);
    let mut ticks: Vec<_> = ticks.take(100).map(|at| (at, format!("{:.digits$}", at + 0.0))).collect();
    // If a span is tiny compared with its position, the digits of a double do not distinguish its numbers.
    ticks.dedup_by(|a, b| a.1 == b.1);
    ticks
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ticks_are_round() {
        let written = |from, to, count| ticks(from, to, count).into_iter().map(|tick| tick.1).collect::<Vec<_>>();
        assert_eq!(written(0.0, 21.0, 5.0), ["0", "5", "10", "15", "20"]);
        assert_eq!(written(0.0, 0.3, 3.0), ["0.0", "0.1", "0.2", "0.3"]);
        assert_eq!(written(1234.5, 1234.58, 4.0), ["1234.50", "1234.52", "1234.54", "1234.56", "1234.58"]);
        assert!(written(1.0, 1.0, 4.0).is_empty());
    }

    #[test]
    fn units_leave_few_digits() {
        assert_eq!(unit(100.0), ("B", 1.0));
        assert_eq!(unit(3000.0).0, "KiB");
        assert_eq!(unit(1.5 * 1048576.0).0, "KiB");
        assert_eq!(unit(900.0 * 1048576.0).0, "MiB");
        assert_eq!(unit(80.0 * 1073741824.0).0, "GiB");
    }

    proptest! {
        #[test]
        fn no_two_ticks_are_written_alike(from in -1e6..1e6f64, log in -9.0..9.0f64, count in 2.0..12.0f64) {
            let ticks = ticks(from, from + 10f64.powf(log), count);
            let mut written: Vec<_> = ticks.iter().map(|tick| tick.1.clone()).collect();
            written.dedup();
            prop_assert_eq!(written.len(), ticks.len());
            prop_assert!(ticks.len() <= 14);
        }
    }
}
