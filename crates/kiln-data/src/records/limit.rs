//! A bound of the bytes that a record may take, for readers that read a record as a whole.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

/// The longest record, in bytes.
pub(super) const LONGEST: usize = 1 << 26;
/// The message about one that is longer.
pub(super) const TOO_LONG: &str = "a record of more than 64 MiB, expected shorter ones";

/// A file whose reader reports each record that it has read, and that fails when a record is longer than [`LONGEST`].
pub(super) struct Limited<R> {
    inner: R,
    since: Rc<Cell<usize>>,
}

impl<R> Limited<R> {
    /// The file, and the bytes that were read since the last record, which the caller sets to 0.
    pub(super) fn new(inner: R) -> (Self, Rc<Cell<usize>>) {
        let since = Rc::new(Cell::new(0));
        (Self { inner, since: since.clone() }, since)
    }
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.since.get() > LONGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, TOO_LONG));
        }
        let read = self.inner.read(buffer)?;
        self.since.set(self.since.get() + read);
        Ok(read)
    }
}
