//! The pointers that a program hands to the driver, as types: every read and write through them is here.

use std::ffi::{CStr, c_char};

use crate::driver::{Answer, Code};

/// Where a call writes one value.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the value.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a null pointer.
    pub(crate) fn put(&self, value: T) -> Answer {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: an `Out` comes only from a program that calls the driver, whose word is that it points to a `T`.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes the value, or nothing through a null pointer: for results that a program may leave out.
    pub(crate) fn put_if_wanted(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: as in `put`.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// Writes several values, one behind the other.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a null pointer.
    pub(crate) fn put_all(&self, values: &[T]) -> Answer
    where
        T: Copy,
    {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        for (at, value) in values.iter().enumerate() {
            // SAFETY: the program's word is that it points to as many as it asked for; callers pass no more.
            unsafe { self.0.add(at).write_unaligned(*value) };
        }
        Ok(())
    }

    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// A pointer that a program passed as an address.
    pub(crate) fn from_address(address: usize) -> Self {
        Self(address as *mut T)
    }

    /// The value that is there, for arguments that carry a value in and another out.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a null pointer.
    pub(crate) fn value(&self) -> Answer<T>
    where
        T: Copy,
    {
        In(self.0.cast_const()).value()
    }

    /// The address as a pointer to values of another type.
    pub(crate) fn cast<U>(&self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl Out<c_char> {
    /// Writes as much of `text` as `length` bytes hold, and the zero byte behind it.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a null pointer or no room at all.
    pub(crate) fn put_text(&self, text: &str, length: i32) -> Answer {
        let room = usize::try_from(length).ok().and_then(|length| length.checked_sub(1)).ok_or(Code::INVALID_VALUE)?;
        let mut bytes: Vec<c_char> = text.bytes().take(room).map(|byte| byte as c_char).collect();
        bytes.push(0);
        self.put_all(&bytes)
    }
}

/// Where a call reads values.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// The value.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a null pointer.
    pub(crate) fn value(&self) -> Answer<T> {
        self.at(0)
    }

    /// The value at an index.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a null pointer.
    pub(crate) fn at(&self, index: usize) -> Answer<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: an `In` comes only from a program that calls the driver, whose word is that it points to values of
        // `T` up to this index.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    /// The values from here on.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a null pointer.
    pub(crate) fn copy(&self, count: usize) -> Answer<Vec<T>> {
        (0..count).map(|index| self.at(index)).collect()
    }

    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// A pointer that a program passed as an address.
    pub(crate) fn from_address(address: usize) -> Self {
        Self(address as *const T)
    }
}

/// A text that ends with a zero byte.
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// The text's bytes.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a null pointer.
    pub(crate) fn bytes(&self) -> Answer<&[u8]> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: a `Text` comes only from a program that calls the driver, whose word is that it ends with a zero byte
        // and stays for the call.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_bytes())
    }

    /// The text.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a null pointer or bytes that are not UTF-8.
    pub(crate) fn text(&self) -> Answer<&str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Code::INVALID_VALUE)
    }
}
