//! Figures in readable form: bytes, times, percentages, and numbers with about four digits.

/// Bytes in the unit that fits, as in `11.5 MiB`.
pub fn bytes(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = (bytes.max(1).ilog2() / 10) as usize;
    match power {
        0 => format!("{bytes} B"),
        power => format!("{:.1} {}", bytes as f64 / 1024f64.powi(power as i32), units[power - 1]),
    }
}

/// A whole number with a comma between thousands.
pub fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Seconds in at most two units, as in `2 min 29 s`.
pub(crate) fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "-".into();
    }
    if seconds < 10.0 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as u64;
    match (whole / 86_400, whole / 3_600 % 24, whole / 60 % 60, whole % 60) {
        (0, 0, 0, s) => format!("{s} s"),
        (0, 0, m, s) => format!("{m} min {s} s"),
        (0, h, m, _) => format!("{h} h {m} min"),
        (d, h, ..) => format!("{d} d {h} h"),
    }
}

/// A number with four significant digits. Very small and very large numbers have no trailing zeros.
pub(crate) fn figure(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 {
        return "0".into();
    }
    if !value.is_finite() {
        return "-".into();
    }
    if !(1e-3..1e6).contains(&size) {
        let exponent = size.log10().floor() as i32;
        let mantissa = format!("{:.3}", value / 10f64.powi(exponent));
        return format!("{}e{exponent}", mantissa.trim_end_matches('0').trim_end_matches('.'));
    }
    let digits = (3 - size.log10().floor() as i32).clamp(0, 6) as usize;
    format!("{value:.digits$}")
}

/// A fraction as a percentage.
pub(crate) fn percent(fraction: f64) -> String {
    format!("{:.1} %", 100.0 * fraction)
}

/// `part` of `whole` as a percentage.
pub(crate) fn share(part: u64, whole: u64) -> String {
    percent(part as f64 / whole.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_have_the_unit_that_fits() {
        for (value, text) in [
            (0.0, "0"),
            (0.8520, "0.8520"),
            (2.800_12, "2.800"),
            (12.3456, "12.35"),
            (12345.6, "12346"),
            (3e-5, "3e-5"),
            (1.234_56e-4, "1.235e-4"),
            (2.5e7, "2.5e7"),
            (-0.5, "-0.5000"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(figure(value), text);
        }
        for (value, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (12_058_624, "11.5 MiB"),
            (1000 << 20, "1000.0 MiB"),
            (3 << 29, "1.5 GiB"),
            (1 << 40, "1.0 TiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(value), text);
        }
        for (value, text) in
            [(0.04, "0.0 s"), (59.6, "1 min 0 s"), (149.3, "2 min 29 s"), (7_260.0, "2 h 1 min"), (90_000.0, "1 d 1 h")]
        {
            assert_eq!(duration(value), text);
        }
        assert_eq!([704_218, 12, 1_000_000].map(grouped), ["704,218", "12", "1,000,000"]);
    }
}
