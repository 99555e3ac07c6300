//! Turns a panic of another crate's decoder into a reason.

use crate::caught::caught;

use super::reason::Reason;

/// Runs `work`, which calls the decoders of other crates. These should return an error for every file, but have panicked
/// on damaged ones; a file must not end the program of a caller that has no loader around it.
///
/// The process's panic hook still prints the panic, unless the program asks
/// [`panics_are_errors`](crate::panics_are_errors). Files that are known to make a decoder panic are therefore read in
/// another way or refused before.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, Reason>) -> Result<T, Reason> {
    caught(work, |message| Reason::Damaged(format!("its decoder panicked: {message}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_reason() {
        let empty: &[u8] = &[];
        let index = std::hint::black_box(3);
        let reason = guarded(|| Ok(empty[index])).unwrap_err();
        assert!(matches!(&reason, Reason::Damaged(text) if text.contains("index out of bounds")), "{reason:?}");
        assert_eq!(guarded(|| Err::<(), _>("too short".into())), Err("too short".into()));
        assert_eq!(guarded(|| Ok(7)), Ok(7));
    }
}
