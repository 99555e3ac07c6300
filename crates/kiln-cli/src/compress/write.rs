//! The page of a smaller model as a file of its run.

use std::path::Path;

use crate::atomic::replace;
use crate::pipelines::WriteInto;

use super::page::Page;

/// Returns a function that writes a page into the directory of a run.
pub(super) fn written(page: Page) -> WriteInto {
    Box::new(move |directory: &Path| replace(&directory.join("compression.html"), page.html().as_bytes()))
}
