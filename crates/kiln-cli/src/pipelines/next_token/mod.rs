//! Language modelling with a GPT-2-style decoder.

mod continuation;
mod run;
mod settings;
mod task;

pub use run::{open, run, test_loader};
pub use settings::{GptSettings, Text, TextSettings, fixture_recipe, recipe};
pub use task::{NextToken, next_token};
