//! Integration tests, one binary.
#![allow(unsafe_code, reason = "the tests call the C interface")]

mod driver_basic;
mod driver_errors;
mod driver_library;
mod driver_process;
mod driver_work;
mod ptx;
