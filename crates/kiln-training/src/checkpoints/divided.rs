//! The optimizer's state of a parameter that is divided into parts in a store, each of which has a state of its own. In a checkpoint it is that
//! of the whole parameter.
//!
//! A tensor of state has a row for each row of the parameter, or for each element, or for each block of equally many elements. Parts have
//! whole blocks.

use std::ops::Range;

use burn::module::ParamId;
use burn::tensor::Bytes;
use burn_pack::{Reader, Scalar, Tensor as Packed};
use kiln_checkpointing::Streamed;

use super::joined::Joined;
use crate::optimizer::StateRecord;

/// The state of a whole parameter: its tensors are those of the parts, one after the other, and are read when they are written.
pub(super) fn whole_state(streamed: &Streamed, id: ParamId, joined: &Joined) -> Result<StateRecord, String> {
    let parts = streamed.parts(id);
    // The numbers and texts of all parts are equal, but for the number of rows.
    let Some(bytes) = streamed.state(id, 0).map_err(|e| e.to_string())? else { return Ok(StateRecord::default()) };
    let mut whole = StateRecord::read(Bytes::from_bytes_vec(bytes))?;
    for tensor in std::mem::take(&mut whole.tensors) {
        let (name, dtype, mut shape, _, _) = tensor.into_parts().map_err(|e| e.to_string())?;
        if parts.len() > 1 {
            shape[0] = whole_rows(shape[0], &parts);
        }
        let length = shape.num_elements() * dtype.size();
        let (streamed, of, parts, joined) = (streamed.clone(), name.clone(), parts.len(), joined.clone());
        let read = move || {
            let part = |part| {
                let state = streamed.state(id, part).map_err(io)?.unwrap_or_default();
                Reader::from_bytes(Bytes::from_bytes_vec(state))?.tensor_data(&of)
            };
            joined.of((0..parts).map(part))
        };
        whole.tensors.push(Packed::deferred(name, dtype, shape, Some(id.val()), length, read));
    }
    if parts.len() > 1 {
        set_rows(&mut whole, parts.last().map_or(0, |last| last.end));
    }
    Ok(whole)
}

/// The state of one part of a parameter, from that of the whole.
pub(super) fn part_of(state: &StateRecord, parts: &[Range<usize>], part: usize) -> Result<StateRecord, String> {
    let (scalars, metadata) = (state.scalars.clone(), state.metadata.clone());
    let mut of_part = StateRecord { tensors: vec![], scalars, metadata };
    if parts.len() > 1 {
        set_rows(&mut of_part, parts[part].len());
    }
    for tensor in &state.tensors {
        let (name, dtype, mut shape, id, bytes) = tensor.clone().into_parts().map_err(|e| e.to_string())?;
        if parts.len() == 1 {
            of_part.tensors.push(Packed::new(name, dtype, shape, id, bytes));
            continue;
        }
        let rows = rows_of_part(shape[0], parts, part);
        let row = shape[1..].iter().product::<usize>() * dtype.size();
        let bytes = bytes.view(rows.start * row, rows.end * row).map_err(|_| format!("{name} is too short"))?;
        shape[0] = rows.len();
        of_part.tensors.push(Packed::new(name, dtype, shape, id, Bytes::from_bytes_vec(bytes.to_vec())));
    }
    Ok(of_part)
}

pub(super) fn io(error: kiln_checkpointing::Error) -> burn_pack::Error {
    burn_pack::Error::IoError(error.to_string())
}

/// Sets the number of rows in state that knows its parameter's shape.
fn set_rows(state: &mut StateRecord, rows: usize) {
    let of_rows = state.scalars.iter_mut().filter(|(name, _)| kiln_optimizers::is_number_of_rows(name));
    of_rows.for_each(|(_, number)| *number = Scalar::from(rows));
}

/// The rows of a tensor of a whole parameter's state, from those of the first of several parts.
fn whole_rows(of_first: usize, parts: &[Range<usize>]) -> usize {
    let (first, last) = (parts[0].len(), parts[parts.len() - 1].len());
    of_first * (parts.len() - 1) + (of_first * last).div_ceil(first)
}

/// The rows of one of several parts in a tensor of the whole parameter's state, which has `rows`.
fn rows_of_part(rows: usize, parts: &[Range<usize>], part: usize) -> Range<usize> {
    let each = rows * parts[0].len() / parts[parts.len() - 1].end;
    part * each..if part + 1 == parts.len() { rows } else { (part + 1) * each }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_of_state_follow_each_other(more in 1_usize..300, bits in 0_u32..6, width in 1_usize..9, block in 0_u32..6) {
            let (of_part, block) = (1 << bits, width << block.min(bits));
            let rows = of_part + more;
            let parts: Vec<_> = (0..rows).step_by(of_part).map(|row| row..(row + of_part).min(rows)).collect();
            // A row of state for each row, and for each block of elements.
            for of_row in [1, width] {
                let of = |rows: usize| if of_row == 1 { rows } else { (rows * of_row).div_ceil(block) };
                let whole = of(rows);
                prop_assert_eq!(whole_rows(of(of_part), &parts), whole);
                let mut end = 0;
                for (part, range) in parts.iter().enumerate() {
                    let found = rows_of_part(whole, &parts, part);
                    prop_assert_eq!((found.start, found.len()), (end, of(range.len())));
                    end = found.end;
                }
                prop_assert_eq!(end, whole);
            }
        }
    }
}
