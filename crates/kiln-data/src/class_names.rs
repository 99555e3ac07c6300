//! Which names a class may have.

use std::path::Path;

use crate::error::Error;
use crate::printable::is_hidden;

/// Refuses names of classes that are not one line of text each, read from `path`: lists of classes have a name on each line.
///
/// # Errors
/// [`Error::ClassName`].
pub(crate) fn check_names<'a>(names: impl IntoIterator<Item = &'a String>, path: &Path) -> Result<(), Error> {
    match names.into_iter().find(|name| name.chars().any(is_hidden)) {
        Some(class) => Err(Error::ClassName { class: class.clone(), path: path.to_owned() }),
        None => Ok(()),
    }
}
