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

/// Runs `locate` for bytes that all lanes access, whichever lane gives the address.
#[inline(always)]
pub(super) fn by_all<T>(block: &mut Block<'_>, locate: impl FnOnce(&mut Block<'_>) -> T) -> T {
    block.races.iter_mut().for_each(|races| races.together = true);
    let located = locate(block);
    block.races.iter_mut().for_each(|races| races.together = false);
    located
}
