//! Operations that a whole warp does.

use super::super::state::{Block, Trouble, Warp};

/// Whether the whole warp is here; leaves the error where it is not.
#[inline(always)]
pub(super) fn together(warp: &Warp, block: &mut Block<'_>) -> bool {
    if !warp.whole {
        block.trouble = Some(Trouble::Diverged);
    }
    warp.whole
}
