//! Checks and translates whole records.

use burn::optim::OptimizerRecord;

use super::format::StateFormat;
use super::leaves::Leaves;
use super::state::{Kept, State};
use crate::error::Error;

/// Returns the record if its state has the format: large parameters must have the format's code books.
///
/// If burn cannot read the state of a parameter from a record, it leaves the parameter without state and reports nothing. A program that
/// resumes checks the record first:
///
/// ```
/// use burn::optim::{AdamWConfig, ModuleOptimizer};
/// use kiln_optimizers::{AdamW8bit, check_record};
///
/// let adamw = AdamW8bit::new(&AdamWConfig::new())?;
/// let format = adamw.format();
/// let optimizer = ModuleOptimizer::from(adamw);
/// let record = check_record(optimizer.to_record(), &format)?;
/// let optimizer = optimizer.load_record(record);
/// # Ok::<(), kiln_optimizers::Error>(())
/// ```
///
/// # Errors
/// [`Error::StateFormat`] names the first parameter with other code books, with moments of f32, f16 or bf16 although it is large, or with
/// the state of another optimizer. It also says how to proceed. [`Error::Record`] if the record cannot be read.
pub fn check_record(record: OptimizerRecord, format: &StateFormat) -> Result<OptimizerRecord, Error> {
    changed(record, format, |state, name| {
        let found = |found: String, advice| {
            let (parameter, expected) = (name.to_owned(), format.to_string());
            Err(Error::StateFormat { parameter, found, expected, advice })
        };
        for (kept, moment) in state.moments.iter().zip(&format.moments) {
            match kept {
                Kept::F32(_) if state.is_large(format) => {
                    return found(format!("{} in f32", moment.name), "`to_quantized` translates the record");
                }
                Kept::Other(values) if state.is_large(format) => {
                    let found_ = format!("{} in {:?}", moment.name, values.dtype).to_lowercase();
                    return found(found_, "`to_quantized` translates the record");
                }
                Kept::Codes(book, _) if *book != moment.book => {
                    let found_ =
                        format!("{} as {} bits in blocks of {} ({book:?})", moment.name, book.bits(), book.block());
                    return found(found_, "`to_quantized` translates the record");
                }
                _ => {}
            }
        }
        Ok(state)
    })
}

/// Converts the moments of large parameters in a record to codes of `format`. The record is of burn's `AdamW` or `Sgd` with momentum, or
/// of this crate with other code books.
///
/// The error of a moment is at most half of the distance between the two entries of the code book around it, times the largest absolute
/// value of its block: with 8 bits 0.011 of that value or less for the first moment, 0.002 for the root of the second (0.004 for
/// the smallest); with 4 bits 0.12 for the first and 0.07 for the second.
///
/// # Errors
/// [`Error::StateFormat`] for the state of another optimizer, [`Error::NotFinite`] and [`Error::Negative`] for moments that cannot be
/// quantised, and [`Error::Record`] if the record cannot be read.
pub fn to_quantized(record: OptimizerRecord, format: &StateFormat) -> Result<OptimizerRecord, Error> {
    changed(record, format, |state, _| match state.is_large(format) {
        true => state.quantized(format),
        false => Ok(state),
    })
}

/// Converts all moments in a record to f32, which burn's `AdamW` or `Sgd` with momentum can read. Moments of 64 bits stay as they are.
/// The values are exactly those that the codes stand for: nothing is lost. `format` is the format of the optimizer that wrote the record;
/// its code books do not matter.
///
/// # Errors
/// [`Error::StateFormat`] for the state of another optimizer, and [`Error::Record`] if the record cannot be read.
pub fn to_f32(record: OptimizerRecord, format: &StateFormat) -> Result<OptimizerRecord, Error> {
    changed(record, format, |state, _| state.in_f32())
}

/// Applies `change` to the state of each parameter in a record. `change` also gets the parameter's name.
fn changed(
    record: OptimizerRecord,
    format: &StateFormat,
    mut change: impl FnMut(State, &str) -> Result<State, Error>,
) -> Result<OptimizerRecord, Error> {
    let mut leaves = Leaves::of(record)?;
    let ids: Vec<u64> = leaves.parameters.keys().copied().collect();
    for id in ids {
        let name = leaves.name(id);
        let Some(parameter) = leaves.parameters.get_mut(&id) else { continue };
        if format.moments.is_empty() && parameter.tensors.is_empty() {
            continue;
        }
        let Some(state) = State::read(parameter, format) else {
            return Err(Error::StateFormat {
                parameter: name,
                found: "other or incomplete state".into(),
                expected: format.to_string(),
                advice: "resume with the optimizer that wrote the record, or without a record",
            });
        };
        *parameter = change(state, &name)?.write(format);
    }
    leaves.into_record()
}
