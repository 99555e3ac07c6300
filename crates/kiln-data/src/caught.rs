//! Panics that become errors.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::printable::printable;

thread_local! {
    /// How many calls of [`caught`] this thread is in.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Runs `work`. If it panics, returns the error that `error` makes of the panic's message. Nothing that `work` changes may be used after a
/// panic.
pub(crate) fn caught<T, E>(work: impl FnOnce() -> Result<T, E>, error: impl FnOnce(String) -> E) -> Result<T, E> {
    let depth = DEPTH.get();
    DEPTH.set(depth + 1);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    DEPTH.set(depth);
    outcome.unwrap_or_else(|panic| Err(error(message(panic))))
}

/// Whether a panic on this thread becomes an error of this crate at this moment, as panics of image decoders do.
///
/// A library must not replace the panic hook, which belongs to the program. A program can, so that such a panic is not
/// printed besides being an error:
///
/// ```
/// let print = std::panic::take_hook();
/// std::panic::set_hook(Box::new(move |panic| {
///     if !kiln_data::panics_are_errors() {
///         print(panic);
///     }
/// }));
/// ```
pub fn panics_are_errors() -> bool {
    // The hook may run while the thread ends and its values are gone.
    DEPTH.try_with(|depth| depth.get() > 0).unwrap_or(false)
}

/// The text of a panic, on one line.
fn message(panic: Box<dyn std::any::Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    printable(&text.replace('\n', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_and_known_to_become_one() {
        assert!(!panics_are_errors());
        let outcome: Result<(), _> = caught(
            || {
                assert!(panics_are_errors());
                let inner: Result<(), _> = caught(|| panic!("the inner\none"), |text| text);
                assert_eq!(inner.unwrap_err(), "the inner one");
                assert!(panics_are_errors()); // still within the outer call
                panic!("the outer one")
            },
            |text| text,
        );
        assert_eq!(outcome.unwrap_err(), "the outer one");
        assert!(!panics_are_errors());
        assert_eq!(caught(|| Ok::<_, String>(7), |text| text), Ok(7));
    }
}
