//! The part of a parameter that an optimizer updates by itself.

use std::cell::RefCell;

/// Some rows of a parameter, which an optimizer updates as if they were all of it. One whose update of an element depends on more than this
/// element and its state, as noise that is drawn for each element, can ask for it and give a part the bits of an update of the whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdatedPart {
    /// The shape of the whole parameter.
    pub shape: Vec<usize>,
    /// The number of the part's first element in the parameter.
    pub first_element: usize,
    /// The bytes of the whole parameter's first values, at most 64, in its dtype, for a part in 16 bits that has no
    /// state yet.
    pub beginning: Option<Vec<u8>>,
}

thread_local! {
    static PART: RefCell<Option<UpdatedPart>> = const { RefCell::new(None) };
}

/// Runs an update of a part of a parameter on this thread.
///
/// ```
/// use kiln_operations::{UpdatedPart, update_part, updated_part};
///
/// let part = UpdatedPart { shape: vec![8, 4], first_element: 16, beginning: None };
/// assert_eq!(update_part(part, || updated_part().unwrap().first_element), 16);
/// assert_eq!(updated_part(), None); // a whole parameter
/// ```
pub fn update_part<R>(part: UpdatedPart, update: impl FnOnce() -> R) -> R {
    struct Restore(Option<UpdatedPart>);
    impl Drop for Restore {
        fn drop(&mut self) {
            PART.set(self.0.take());
        }
    }
    let _restore = Restore(PART.replace(Some(part)));
    update()
}

/// The part of a parameter that this thread updates. `None` for a whole parameter.
pub fn updated_part() -> Option<UpdatedPart> {
    PART.with_borrow(Clone::clone)
}
