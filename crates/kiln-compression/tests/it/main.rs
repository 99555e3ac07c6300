//! Tests of the public interface.

mod lora;
