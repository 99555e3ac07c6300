//! A decoder computes the same with and without cached keys and values, and tokens are drawn from their probabilities.

use std::cell::Cell;
use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor, TensorData};
use kiln_layers::RowParts;
use kiln_models::{
    Decoder, DecoderCache, DecoderConfig, DecoderParts, DecoderReader, Error, GptConfig, LlamaConfig, Sampling, Scaling,
};
use proptest::prelude::*;

const CONTEXT: usize = 12;
const VOCAB: usize = 31;

/// A GPT, and models of the Llama family with all that these differ in.
fn models(lean: bool) -> [Decoder; 3] {
    let device = Device::flex();
    device.seed(3);
    let gpt = GptConfig::tiny(VOCAB, CONTEXT).with_layers(2).with_heads(4).with_width(32).with_lean(lean);
    let llama = LlamaConfig { kv_heads: 2, tied: true, ..LlamaConfig::new(VOCAB, CONTEXT, [2, 4, 32]).with_lean(lean) };
    let scaling = Scaling::Llama3 { factor: 4.0, low: 1.0, high: 4.0, context: 8 };
    let other = LlamaConfig {
        kv_heads: 1,
        depth: 10,
        scaling,
        qkv_bias: true,
        head_norms: true,
        window: Some(5),
        unlimited: 1,
        ..llama.clone()
    };
    let configs = [DecoderConfig::Gpt(gpt), DecoderConfig::Llama(llama), DecoderConfig::Llama(other)];
    configs.map(|config| config.init(&device).unwrap())
}

fn ids(ids: &[u32]) -> Tensor<2, Int> {
    let ids: Vec<i64> = ids.iter().map(|id| i64::from(*id)).collect();
    Tensor::from_data(TensorData::new(ids.clone(), [1, ids.len()]), &Device::flex())
}

fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

#[track_caller]
fn assert_close(got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len());
    let scale = expected.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    let off = got.iter().zip(expected).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(off <= 1e-5 * scale, "off by {off:e}, largest value {scale:e}");
}

/// The logits of the token after `text`, from one pass over all of it.
fn whole(model: &Decoder, text: &[u32]) -> Vec<f32> {
    let logits = host(model.forward(ids(text)));
    logits[logits.len() - VOCAB..].to_vec()
}

#[test]
fn a_cache_gives_the_logits_of_the_whole_text_at_each_position() {
    let text: Vec<u32> = (0..CONTEXT as u32).map(|i| i * 7 % VOCAB as u32).collect();
    for lean in [true, false] {
        for model in models(lean) {
            let expected = host(model.forward(ids(&text)));
            // In parts of every length: the first is the prompt, and tokens one by one are among them.
            for part in 1..=CONTEXT {
                let mut cache = DecoderCache::new();
                let mut logits = vec![];
                for tokens in text.chunks(part) {
                    logits.extend(host(model.head(model.extend(ids(tokens), &mut cache).unwrap())));
                }
                assert_eq!(cache.tokens(), CONTEXT);
                assert_close(&logits, &expected);
            }
        }
    }
}

#[test]
fn texts_side_by_side_and_clones_of_a_cache_do_not_mix() {
    for model in models(true) {
        let (first, second) = ([1, 2, 3, 4, 5], [9, 8, 7, 6, 5]);
        let mut cache = DecoderCache::new();
        let both = Tensor::cat(vec![ids(&first[..3]), ids(&second[..3])], 0);
        model.extend(both, &mut cache).unwrap();
        let rest = Tensor::cat(vec![ids(&first[3..]), ids(&second[3..])], 0);
        let logits = host(model.head(model.extend(rest, &mut cache.clone()).unwrap()));
        assert_close(&logits[VOCAB..2 * VOCAB], &whole(&model, &first));
        assert_close(&logits[3 * VOCAB..], &whole(&model, &second));
        // What the clone has read is not in the cache.
        let other = Tensor::cat(vec![ids(&[20]), ids(&[21])], 0);
        let logits = host(model.head(model.extend(other, &mut cache).unwrap()));
        assert_close(&logits[..VOCAB], &whole(&model, &[1, 2, 3, 20]));
        assert_close(&logits[VOCAB..], &whole(&model, &[9, 8, 7, 21]));
    }
}

#[test]
fn a_text_longer_than_the_context_is_read_through_its_newest_tokens() {
    for model in models(true) {
        let text: Vec<u32> = (0..40).map(|i| i * 11 % VOCAB as u32).collect();
        for first in [1, 5, CONTEXT, CONTEXT + 1, 30] {
            let (mut cached, mut uncached) = (DecoderReader::new(&model), DecoderReader::uncached(&model));
            for end in first..=text.len() {
                let new = if end == first { &text[..first] } else { &text[end - 1..end] };
                let logits = [host(cached.read(new).unwrap()), host(uncached.read(new).unwrap())];
                let seen = cached.window().len();
                assert!((end.min(CONTEXT / 2)..=CONTEXT).contains(&seen), "{seen} of {end}");
                assert_eq!(cached.window(), &text[end - seen..end]);
                assert_close(&logits[0], &whole(&model, cached.window()));
                assert_eq!(uncached.window(), &text[end.saturating_sub(CONTEXT)..end]);
                assert_close(&logits[1], &whole(&model, uncached.window()));
                if end <= CONTEXT {
                    assert_close(&logits[0], &logits[1]);
                }
            }
        }
    }
}

/// The words of a model, seven rows at a time.
#[derive(Debug)]
struct Words(TensorData);

impl RowParts for Words {
    fn shape(&self) -> [usize; 2] {
        self.0.shape().dims()
    }

    fn rows_of_part(&self) -> usize {
        7
    }

    fn read(&self, part: usize) -> TensorData {
        let (rows, [_, width]) = (self.rows(part), self.shape());
        let values = &self.0.as_slice::<f32>().unwrap()[rows.start * width..rows.end * width];
        TensorData::new(values.to_vec(), [rows.len(), width])
    }

    fn begin_use(&self) {}

    fn add_gradient(&self, _: usize, _: TensorData) {
        unreachable!("nothing is trained");
    }
}

#[test]
fn a_reader_with_less_context_reads_as_a_model_with_it() {
    for model in models(true) {
        let text: Vec<u32> = (0..9).map(|i| i * 11 % VOCAB as u32).collect();
        for cached in [true, false] {
            let readers = [DecoderReader::new(&model), DecoderReader::new(&model).with_context(5)];
            let [mut whole, mut less] = readers.map(|reader| if cached { reader } else { reader.without_cache() });
            for (read, id) in text.iter().enumerate() {
                let [expected, got] = [&mut whole, &mut less].map(|reader| host(reader.read(&[*id]).unwrap()));
                assert!(less.window().len() <= 5 && less.window() == &text[read + 1 - less.window().len()..=read]);
                match read {
                    0..5 => assert_close(&got, &expected),
                    _ => assert_close(&got, &self::whole(&model, less.window())),
                }
            }
        }
    }
}

#[test]
fn a_model_in_parts_has_the_logits_of_one_in_memory() {
    for model in models(true) {
        let words: Arc<dyn RowParts> = Arc::new(Words(model.words().unwrap().val().into_data()));
        let text: Vec<u32> = (0..20).map(|i| i * 11 % VOCAB as u32).collect();
        for words in [None, Some(words)] {
            let brought = Cell::new(0);
            let mut parts = DecoderParts::new(|block| {
                brought.set(brought.get() + 1);
                Ok(block)
            });
            if let Some(words) = words {
                parts = parts.with_words(words, || None);
            }
            for cached in [true, false] {
                let readers = [DecoderReader::new(&model), DecoderReader::in_parts(&model, parts.clone())];
                let mut readers = readers.map(|reader| if cached { reader } else { reader.without_cache() });
                for (read, id) in text.iter().enumerate() {
                    brought.set(0);
                    let [whole, parts] = readers.each_mut().map(|reader| host(reader.read(&[*id]).unwrap()));
                    assert!(whole == parts, "{read} with a cache: {cached}");
                    assert_eq!(brought.get(), 4, "the halves of two blocks");
                }
            }
        }
    }
}

#[test]
fn parameters_that_cannot_be_read_are_an_error_wherever_they_are_needed() {
    for model in models(true) {
        let words = || Arc::new(Words(model.words().unwrap().val().into_data()));
        let (halves, asked) = (2 * model.blocks().len(), Cell::new(0));
        // The words are needed before the first half of a block and after the last one.
        for fails_at in 0..=halves {
            let unread = || (asked.replace(asked.get() + 1) == fails_at).then(|| "the disk is gone".to_owned());
            asked.set(0);
            let result = DecoderReader::in_parts(&model, DecoderParts::new(Ok).with_words(words(), unread)).read(&[1]);
            assert!(matches!(result, Err(Error::Unread { reason }) if reason == "the disk is gone"), "{fails_at}");
        }
        let parts = DecoderParts::new(|_| Err("the disk is gone".into()));
        let result = DecoderReader::in_parts(&model, parts).read(&[1]);
        assert!(matches!(result, Err(Error::Unread { reason }) if reason == "the disk is gone"));
    }
}

#[test]
fn tokens_that_cannot_be_read_are_refused_and_change_nothing() {
    for model in models(true) {
        let mut cache = DecoderCache::new();
        let error = |result: Result<Tensor<3>, Error>| result.unwrap_err().to_string();
        model.extend(ids(&[1; 10]), &mut cache).unwrap();
        let text = error(model.extend(ids(&[1; 3]), &mut cache));
        assert!(text.contains("is 3, expected 1 to 2 after 10 of 12"), "{text}");
        let two = Tensor::cat(vec![ids(&[1]), ids(&[1])], 0);
        let text = error(model.extend(two, &mut cache));
        assert!(text.contains("number of texts") && text.contains("1 as in the cache"), "{text}");
        assert_eq!(cache.tokens(), 10);
        let mut reader = DecoderReader::new(&model);
        for (ids, expected) in [(&[][..], "at least 1"), (&[3, VOCAB as u32], "is 31, expected below 31")] {
            let text = reader.read(ids).unwrap_err().to_string();
            assert!(text.contains(expected), "{text}");
        }
        assert!(reader.window().is_empty());
    }
}

fn logits() -> impl Strategy<Value = Vec<f32>> {
    // Few values, so that many are equal; some have a probability of 0.
    let logit = prop_oneof![(-4i8..5).prop_map(f32::from), -9.0f32..9.0, Just(f32::NEG_INFINITY)];
    prop::collection::vec(logit, 1..40).prop_filter("one is a number", |all| all.iter().any(|one| one.is_finite()))
}

proptest! {
    #[test]
    fn candidates_are_the_likeliest_and_their_probabilities_add_up(
        logits in logits(), temperature in 0.05f64..3.0, k in 1usize..45, p in 0.01f64..=1.0, uniform in 0.0f64..1.0,
    ) {
        let plain = Sampling::new(temperature);
        let all = plain.candidates(&logits).unwrap();
        let probability = |token: usize| all.iter().find(|(own, _)| *own == token).map_or(0.0, |(_, own)| *own);
        for sampling in [plain, plain.with_top_k(k), plain.with_top_p(p), plain.with_top_k(k).with_top_p(p)] {
            let kept = sampling.candidates(&logits).unwrap();
            prop_assert!((kept.iter().map(|(_, own)| own).sum::<f64>() - 1.0).abs() < 1e-9);
            // No token that was left out is likelier than one that stays, nor as likely and before it.
            let is_kept = |token: usize| kept.iter().any(|(own, _)| *own == token);
            for (token, _) in &kept {
                for other in (0..logits.len()).filter(|other| !is_kept(*other)) {
                    prop_assert!((logits[other], token) < (logits[*token], &other), "{other} before {token}");
                }
            }
            let chosen = sampling.choose(&logits, uniform).unwrap();
            prop_assert!(is_kept(chosen) && probability(chosen) > 0.0);
        }
        prop_assert!(plain.with_top_k(k).candidates(&logits).unwrap().len() <= k);
        // The fewest that add up: without the last one they do not.
        let nucleus = plain.with_top_p(p).candidates(&logits).unwrap();
        let sum: f64 = nucleus.iter().map(|(token, _)| probability(*token)).sum();
        let (last, _) = nucleus[nucleus.len() - 1];
        prop_assert!(sum >= p - 1e-9 && sum - probability(last) < p + 1e-9);
    }

    #[test]
    fn nan_is_refused_wherever_it_stands(logits in logits(), at: prop::sample::Index, temperature in 0.0f64..2.0) {
        let mut logits = logits;
        let at = at.index(logits.len());
        logits[at] = f32::NAN;
        let error = Sampling::new(temperature).with_top_k(1).choose(&logits, 0.5).unwrap_err().to_string();
        let expected = format!("token {at} is NaN");
        prop_assert!(error.contains(&expected), "{}", error);
    }
}

#[test]
fn tokens_are_drawn_as_often_as_their_probabilities_say() {
    let logits = [0.5, -1.0, 2.0, 0.0];
    let sampling = Sampling::new(0.8).with_top_k(3);
    let draws = 3000;
    let mut counts = [0; 4];
    (0..draws).for_each(|i| counts[sampling.choose(&logits, f64::from(i) / f64::from(draws)).unwrap()] += 1);
    for (token, probability) in sampling.candidates(&logits).unwrap() {
        let share = f64::from(counts[token]) / f64::from(draws);
        assert!((share - probability).abs() < 2e-3, "token {token}: {share}, expected {probability}");
    }
    assert_eq!(counts[1], 0);
}
