//! Quantisation of weights and activations.

mod assign;
mod blocks;
mod codes;
mod error_report;
mod fake_quant;
mod file;
mod histogram;
mod input_range;
mod model;
mod packed;
mod range;
mod settings;
mod weights;

pub use assign::{Assignment, BitChoice, LayerChoices, assign_bits, bit_choices};
pub use blocks::{Blocks, Granularity};
pub use codes::WeightRange;
pub use error_report::{ErrorReport, WeightError};
pub use fake_quant::{FakeQuant, FakeQuantizer, unsimulated};
pub use input_range::{InputMap, calibrate, input_map, input_ranges, set_input_ranges, simulate_input};
pub use model::{ModelBytes, QuantizedModel, quantize};
pub use packed::{Dequantize, Packing, check_scheme};
pub use range::{Affine, Calibrator, Range, RangeMethod};
pub use settings::Quantization;
pub use weights::QuantizedWeight;
