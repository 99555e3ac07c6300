//! What quantisation does to each weight.

use super::model::QuantizedModel;
use crate::Error;
use crate::parameters;
use burn::module::Module;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The error of one weight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WeightError {
    /// The path of the weight.
    pub path: String,
    /// Bits of a code.
    pub bits: u8,
    /// The signal to quantisation noise ratio in dB: ten times the decimal logarithm of the sum of squared values over the sum of squared
    /// errors. None if there is no error. 6 dB are one bit.
    pub sqnr_db: Option<f64>,
    /// The largest error of a value.
    pub largest: f32,
    /// Bytes before.
    pub before: u64,
    /// Bytes of packed codes and scales.
    pub after: u64,
}

/// The errors of all weights, the worst ratio first. Its display is a table of at most 80 columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ErrorReport {
    /// One entry for each quantised weight.
    pub weights: Vec<WeightError>,
}

impl QuantizedModel {
    /// Compares the quantised weights with those of `model`, which is the model that was quantised.
    ///
    /// ```
    /// use burn::nn::LinearConfig;
    /// use burn::tensor::Device;
    /// use kiln_compression::{Quantization, quantize};
    ///
    /// let model = LinearConfig::new(64, 64).init(&Device::flex());
    /// let report = quantize(&model, &Quantization::bits(4))?.report(&model)?;
    /// assert!(report.weights[0].sqnr_db.is_some_and(|ratio| ratio > 15.0));
    /// println!("{report}");
    /// # Ok::<(), kiln_compression::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`apply`](Self::apply), and [`Error::Read`] if a device cannot give the values.
    pub fn report<M: Module>(&self, model: &M) -> Result<ErrorReport, Error> {
        self.check(model)?;
        let mut weights = Vec::new();
        parameters::for_each(model, |parameter| {
            let Some(weight) = self.weights().get(&parameter.path) else { return Ok(()) };
            let (values, quantized) = (parameter.values()?, weight.dequantize());
            let signal: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
            let noise = squared_error(&values, &quantized);
            let errors = values.iter().zip(&quantized).map(|(value, quantized)| (value - quantized).abs());
            weights.push(WeightError {
                path: parameter.path.clone(),
                bits: weight.bits(),
                sqnr_db: (noise > 0.0).then(|| 10.0 * (signal / noise).log10()),
                largest: errors.fold(0.0, f32::max),
                before: parameter.bytes(),
                after: weight.bytes(),
            });
            Ok(())
        })?;
        let ratio = |weight: &WeightError| weight.sqnr_db.unwrap_or(f64::INFINITY);
        weights.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)).then_with(|| a.path.cmp(&b.path)));
        Ok(ErrorReport { weights })
    }
}

/// The sum of squared differences.
pub(crate) fn squared_error(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum()
}

/// The widest path of the table; longer ones lose their beginning.
const PATH: usize = 34;

impl fmt::Display for ErrorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |[path, bits, ratio, largest, before, after]: [&str; 6], end: &str| {
            write!(f, "{path:<PATH$} {bits:>4} {ratio:>8} {largest:>10} {before:>9} {after:>9}{end}")
        };
        row(["weight", "bits", "SQNR dB", "max error", "before", "after"], "\n")?;
        for WeightError { path, bits, sqnr_db, largest, before, after } in &self.weights {
            let ratio = sqnr_db.map_or_else(|| "exact".to_owned(), |ratio| format!("{ratio:.1}"));
            let (path, bits, largest) = (shortened(path), bits.to_string(), format!("{largest:.3e}"));
            row([&path, &bits, &ratio, &largest, &size(*before), &size(*after)], "\n")?;
        }
        let sum = |bytes: fn(&WeightError) -> u64| size(self.weights.iter().map(bytes).sum());
        row(["all", "", "", "", &sum(|weight| weight.before), &sum(|weight| weight.after)], "")
    }
}

fn shortened(path: &str) -> String {
    let excess = path.chars().count().saturating_sub(PATH);
    if excess == 0 { path.to_owned() } else { format!("~{}", path.chars().skip(excess + 1).collect::<String>()) }
}

/// Bytes in at most 9 columns.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 10_000 {
        return format!("{bytes} B");
    }
    let mut number = bytes as f64 / 1024.0;
    let mut unit = 0;
    while number >= 999.95 && unit + 1 < UNITS.len() {
        number /= 1024.0;
        unit += 1;
    }
    format!("{number:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_at_most_80_columns() {
        let weight = |path: &str, sqnr_db, bytes| WeightError {
            path: path.into(),
            bits: 8,
            sqnr_db,
            largest: 1.234e-30,
            before: bytes,
            after: bytes,
        };
        let long = "encoder.layers.11.attention.self.query.weight.ä";
        let report = ErrorReport {
            weights: vec![
                weight(long, Some(-123.4), u64::MAX / 4),
                weight("a", None, 9_999),
                weight("b", Some(40.0), 1_048_570),
            ],
        };
        let table = report.to_string();
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
        assert!(
            table.contains("~11.attention.self.query.weight.ä") || table.contains("self.query.weight.ä"),
            "{table}"
        );
        assert!(table.contains("exact") && table.contains("9999 B") && table.contains("1.0 MiB"), "{table}");
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<ErrorReport>(&text).unwrap(), report);
    }
}
