//! The share of a micro-batch in its batch.

use crate::error::Error;
use crate::weight::Weight;

/// The fraction of `total` that `fed` is, for a window that lacks `missing`.
pub(crate) fn share(fed: Weight, missing: Weight, total: Weight) -> Result<f64, Error> {
    if total.count() == 0 {
        return Err(Error::Zero { what: "weight" });
    }
    if fed != total.of(fed.count()) {
        return Err(Error::Unit { fed, total });
    }
    if fed.count() > missing.count() {
        return Err(Error::Overfull { fed, missing });
    }
    Ok(fed.count() as f64 / total.count() as f64)
}
