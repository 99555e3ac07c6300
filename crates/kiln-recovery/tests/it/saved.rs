//! States of earlier versions still load.

use kiln_recovery::{MicroBatchSearch, MicroBatchSearchConfig, RecoveryState, Relaxation, SavingLevel, SizeSearch};

/// Written before fields were renamed and the state of shortages was added.
const OLD: &str = r#"{
    "sizes": {"buckets": {"0": {
        "size": 32, "fits": 32, "fails": 33, "streak": 5, "rested": 7, "backoff": 2, "spare": 1, "guessed": false,
        "samples": [[16, 1000], [32, 1900]]
    }}},
    "plan": 1, "offload": true,
    "ease": {"streak": 3, "failed": 1, "proven": {"plan": 2, "offload": true}}
}"#;

#[test]
fn a_state_with_the_old_field_names_loads() {
    let state: RecoveryState = serde_json::from_str(OLD).unwrap();
    let relaxation = Relaxation { streak: 3, failed: 1, proven: Some(SavingLevel { plan: 2, offload: true }) };
    assert_eq!((state.plan, state.offload, state.relaxation), (1, true, relaxation));
    assert!(state.shortages.is_empty());
    let expected = SizeSearch {
        size: 32,
        fits: Some(32),
        fails: Some(33),
        streak: 5,
        steps_since_failure: 7,
        backoff: 2,
        spare: 1,
        guessed: false,
        samples: vec![(16, 1000), (32, 1900)],
        ever_fitted: false,
    };
    assert_eq!(state.sizes.buckets[&0], expected);
    let search = MicroBatchSearch::resume(MicroBatchSearchConfig::new(64), state.sizes.clone()).unwrap();
    assert!(search.ever_fitted(0), "a size that fits is known");
    let text = serde_json::to_string(&state).unwrap();
    assert!(text.contains("steps_since_failure") && text.contains("relaxation"), "{text}");
    assert_eq!(serde_json::from_str::<RecoveryState>(&text).unwrap(), state);
}

#[test]
fn rules_with_the_old_field_names_load() {
    let old = r#"{"batch": 64, "start": null, "min": 2, "calm": 10, "max_backoff": 5, "limit": 1000}"#;
    let expected = MicroBatchSearchConfig::new(64).with_min(2).with_success_interval(10).with_limit(1000);
    assert_eq!(serde_json::from_str::<MicroBatchSearchConfig>(old).unwrap(), expected);
}

#[test]
fn an_unknown_field_is_refused() {
    let wrong = OLD.replace("\"ease\"", "\"easy\"");
    assert!(serde_json::from_str::<RecoveryState>(&wrong).unwrap_err().to_string().contains("easy"));
}
