//! Seconds and bytes as people read them.

/// Seconds, milliseconds or microseconds with three digits: "1.25 s", "36.0 ms".
pub(super) fn duration(seconds: f64) -> String {
    let (value, unit) = match seconds.abs() {
        below if below < 999.5e-6 => (seconds * 1e6, "us"),
        below if below < 999.5e-3 => (seconds * 1e3, "ms"),
        _ => (seconds, "s"),
    };
    format!("{} {unit}", three_digits(value))
}

/// Bytes in the largest binary unit that gives at least 1: "640 KiB", "11.5 GiB".
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut value, mut unit) = (bytes as f64 / 1024.0, 0);
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    format!("{} {}", three_digits(value), UNITS[unit])
}

/// Three digits where the value has fewer before its point.
fn three_digits(value: f64) -> String {
    let decimals = match value.abs() {
        below if below < 9.995 => 2,
        below if below < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_three_digits_and_the_unit_that_fits() {
        assert_eq!(
            [0.0, 2.5e-6, 0.0123, 0.99961, 48.04, 1200.0].map(duration),
            ["0.00 us", "2.50 us", "12.3 ms", "1.00 s", "48.0 s", "1200 s"]
        );
        assert_eq!(
            [0, 1023, 1024, 1 << 20, 80 << 30, u64::MAX].map(size),
            ["0 B", "1023 B", "1.00 KiB", "1.00 MiB", "80.0 GiB", "16.0 EiB"]
        );
    }
}
