//! How many operations of a micro-batch use a parameter by rows, and how many have added their gradients.

/// The operations of a micro-batch that use a parameter by rows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Uses {
    begun: usize,
    ended: usize,
}

impl Uses {
    pub(super) fn begin(&mut self) {
        self.begun += 1;
    }

    pub(super) fn count(self) -> usize {
        self.begun
    }

    /// One more operation has added its gradient. Returns whether others will.
    pub(super) fn end(&mut self) -> bool {
        self.ended += 1;
        self.ended < self.begun
    }

    /// Whether no operation has added its gradient, and whether only one is left that will.
    pub(super) fn first_and_last(self) -> (bool, bool) {
        (self.ended == 0, self.ended + 1 >= self.begun)
    }
}
