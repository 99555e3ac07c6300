//! Text that a decoder writes after the begin of the held-out text, for the report of its run.
// B batch, T time, V vocabulary

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use burn::data::dataset::Dataset;
use burn::module::Module;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use kiln_data::{TextTokens, Tokenizer};
use kiln_models::Gpt;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::run::{Finder, Findings};
use crate::page::Text;

/// Tokens that are written at most, and the time that this may take: each token is a forward pass of the whole text before it.
const TOKENS: usize = 120;
const TIME: Duration = Duration::from_secs(10);
/// Tokens of the held-out text that the model goes on from.
const PROMPT: usize = 24;
/// What logits are divided by: below 1, likely tokens become likelier.
const TEMPERATURE: f64 = 0.8;
/// The tokens that may be drawn: so many of the likeliest.
const TOP: usize = 40;

/// Lets a model go on from the first window of `text`. The same `seed` draws the same tokens.
pub(super) fn finder(text: TextTokens, tokenizer: Tokenizer, seed: u64) -> Finder<Gpt> {
    Box::new(move |model, device, _| {
        let prompt: Vec<u32> = Dataset::get(&text, 0).context("cannot read the held-out text")?;
        let prompt = &prompt[..prompt.len().min(PROMPT)];
        let written = write(model, device, prompt, seed)?;
        let count = written.len();
        let text = Text {
            prompt: decoded(&tokenizer, prompt),
            written: decoded(&tokenizer, &written),
            note: format!(
                "Grey: {} tokens of the held-out text. Black: {count} tokens of the model, temperature {TEMPERATURE}, top {TOP}, \
                 seed {seed}.",
                prompt.len()
            ),
        };
        Ok(Findings { text: Some(text), ..Findings::default() })
    })
}

/// Tokens after `prompt`.
fn write(model: &Gpt, device: &Device, prompt: &[u32], seed: u64) -> Result<Vec<u32>> {
    let (model, device) = (model.valid(), device.clone().inner());
    let (mut random, begun) = (StdRng::seed_from_u64(seed), Instant::now());
    let mut ids = prompt.to_vec();
    while ids.len() < prompt.len() + TOKENS && begun.elapsed() < TIME {
        let window = &ids[ids.len().saturating_sub(model.context())..];
        let data: Vec<i64> = window.iter().map(|id| i64::from(*id)).collect();
        let ids_bt = Tensor::<2, Int>::from_data(TensorData::new(data, [1, window.len()]), &device);
        let logits_btv = model.forward(ids_bt).narrow(1, window.len() - 1, 1).cast(DType::F32);
        let logits: Vec<f32> = logits_btv.into_data().iter::<f32>().collect();
        ids.push(draw(&logits, random.random_range(0.0..1.0)));
    }
    Ok(ids.split_off(prompt.len()))
}

/// The token that `chance`, from 0 to 1, draws out of the likeliest ones.
fn draw(logits: &[f32], chance: f64) -> u32 {
    let mut order: Vec<usize> = (0..logits.len()).filter(|id| !logits[*id].is_nan()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    order.truncate(TOP);
    let Some(first) = order.first() else { return 0 };
    let most = f64::from(logits[*first]);
    let weights: Vec<f64> = order.iter().map(|id| ((f64::from(logits[*id]) - most) / TEMPERATURE).exp()).collect();
    let mut left = chance * weights.iter().sum::<f64>();
    for (id, weight) in order.iter().zip(&weights) {
        left -= weight;
        if left < 0.0 {
            return *id as u32;
        }
    }
    *first as u32
}

/// The text of tokens. Bytes that are no characters are shown as such.
fn decoded(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let tokens = tokenizer.token_bytes();
    let bytes: Vec<u8> = ids.iter().filter_map(|id| tokens.get(*id as usize)).flatten().copied().collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use kiln_models::GptConfig;

    use super::*;

    #[test]
    fn likelier_tokens_are_drawn_more_often() {
        let logits = [0.0, 2.0, f32::NAN, 1.0];
        let drawn: Vec<u32> = (0..100).map(|chance| draw(&logits, f64::from(chance) / 100.0)).collect();
        let count = |id: u32| drawn.iter().filter(|drawn| **drawn == id).count();
        assert!(count(1) > count(3) && count(3) > count(0) && count(0) > 0 && count(2) == 0, "{drawn:?}");
        assert_eq!(draw(&[], 0.5), 0);
        // Of a hundred equal ones, the first forty.
        assert!((0..100).all(|chance| draw(&[1.0; 100], f64::from(chance) / 100.0) < 40));
    }

    #[test]
    fn the_same_seed_writes_the_same_text_beyond_the_context() {
        let device = Device::flex().autodiff();
        let model = GptConfig::tiny(256, 16).with_layers(1).init(&device).unwrap();
        let text = write(&model, &device, b"Call me".map(u32::from).as_slice(), 3).unwrap();
        assert!(
            !text.is_empty() && text == write(&model, &device, b"Call me".map(u32::from).as_slice(), 3).unwrap()[..]
        );
        assert_eq!(decoded(&Tokenizer::Bytes, &[72, 105]), "Hi");
    }
}
