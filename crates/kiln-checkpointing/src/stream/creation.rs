//! How parameters get into a store, also those that are never in memory as a whole.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

use burn::tensor::{Device, Tensor};

/// How parameters get into a store.
#[derive(Clone, Debug, Default)]
pub struct Creation {
    /// [Updates](crate::Streamed::update) change parameters of more bytes in parts of several rows, one after the other, and take the memory of a
    /// part. For an optimizer that updates each element by itself, as Adam and SGD do, and not for one with state in blocks of few bits, or
    /// with norms of rows or of whole parameters. `None`: parameters are not divided.
    pub part_bytes: Option<usize>,
    /// Whether the store may have parameters, which are replaced, with the optimizer's state for them. An interruption leaves those that it
    /// has.
    pub replaces: bool,
    /// Initial values of matrices that are too large to be in memory.
    pub rows: InitialRows,
}

type Rows = dyn Fn(Range<usize>, &Device) -> Tensor<2>;

/// Initial values of matrices, by rows: how [`Streamed::create_with`](crate::Streamed::create_with) moves a matrix into a store without having it
/// in memory as a whole.
#[derive(Clone, Default)]
pub struct InitialRows(BTreeMap<String, Rc<Rows>>);

impl InitialRows {
    /// Adds the matrix at `path`, whose rows `rows` makes in f32 on a device. It is called for all rows, some at a time from the first to the
    /// last, when the turn of the parameter comes, so that random numbers have the order of a model in memory. Rows are used only for a
    /// parameter that burn has not initialised yet, on a device with autodiff. It must be one that is trained.
    #[must_use]
    pub fn with(
        mut self,
        path: impl Into<String>,
        rows: impl Fn(Range<usize>, &Device) -> Tensor<2> + 'static,
    ) -> Self {
        self.0.insert(path.into(), Rc::new(rows));
        self
    }

    /// Without the matrices whose paths `which` refuses.
    #[must_use]
    pub fn only(mut self, which: impl Fn(&str) -> bool) -> Self {
        self.0.retain(|path, _| which(path));
        self
    }

    pub(super) fn get(&self, path: &str) -> Option<&Rows> {
        self.0.get(path).map(|rows| &**rows)
    }
}

impl fmt::Debug for InitialRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
