//! Tests of the public interface.

mod quantize_file;
mod quantize_model;
mod quantize_net;
mod quantize_reference;
