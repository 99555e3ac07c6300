#![no_main]

use kiln_data::{BadSamples, LoaderState, Order, Remainder, Replica, Sampler};

// Lines that a run was saved as: what is read is written again as it was, and a sampler takes it or refuses it.
libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(rule) = text.parse::<BadSamples>() {
        assert_eq!(rule.to_string().parse::<BadSamples>().ok(), Some(rule));
    }
    let Ok(state) = text.parse::<LoaderState>() else { return };
    assert_eq!(state.to_string(), text);
    let order = Order::Shuffled { seed: state.order };
    let made = Sampler::new(state.samples, state.batch_size, order, Remainder::Keep, Replica::ALONE);
    if let Ok(sampler) = made {
        // Another order's fingerprint: refused, whatever the numbers say.
        let _ = sampler.resume(&state);
        let ids = if state.batch_size < 1000 { sampler.ids(state.epoch, state.batch) } else { vec![] };
        assert!(ids.iter().all(|id| *id < state.samples));
        let own = sampler.state(state.epoch, state.batch.min(sampler.batches()));
        assert!(sampler.resume(&own).is_ok());
    }
});
