//! The message of a panic.

/// The text of a panic, on one line.
pub(crate) fn message(panic: Box<dyn std::any::Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    text.replace('\n', " ")
}
