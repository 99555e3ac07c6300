//! The data loader's bytes and the speeds of a profile.

use kiln_memory::{BackendProfile, Category, MemoryReport, PREDICTION_MARGIN, StepOptions, fits_within};
use kiln_precision::Precision::{BF16, F32};

use crate::steps::{adamw, flex, gpt, mlp, models, tiny};

#[test]
fn bytes_of_the_loader_are_named_apart_and_take_no_time() {
    let loader = 300 << 20;
    for (name, trace) in models(F32, &adamw(), StepOptions::default()) {
        let plain = trace.predict(8, &flex()).unwrap();
        let loaded = trace.predict(8, &flex().with_loader_bytes(loader)).unwrap();
        assert_eq!(loaded.peak_bytes, plain.peak_bytes + loader, "{name}");
        assert_eq!(loaded.peak_at, plain.peak_at, "{name}");
        assert_eq!(loaded.breakdown.of(Category::DataLoader), loader, "{name}");
        assert_eq!(plain.breakdown.of(Category::DataLoader), 0, "{name}");
        for category in Category::ALL.into_iter().filter(|category| *category != Category::DataLoader) {
            assert_eq!(loaded.breakdown.of(category), plain.breakdown.of(category), "{name} {category}");
        }
        let seconds = |prediction: &kiln_memory::Prediction| -> Vec<f64> {
            prediction.operations.iter().map(|operation| operation.seconds).collect()
        };
        assert_eq!(seconds(&plain), seconds(&loaded), "{name}");
    }
    let trace = mlp((64, 2), F32, &adamw(), StepOptions::default());
    let loaded = trace.predict(8, &flex().with_loader_bytes(loader)).unwrap();
    let report = MemoryReport::new("Loaded").with_prediction(loaded);
    let page: kiln_report::MemoryPage = serde_json::from_str(&report.json()).unwrap();
    assert!(page.text(5).contains("data loader"));
    assert!(page.svg().contains(">data loader<") && page.html().contains("data-category=\"data-loader\""));
}

#[test]
fn products_in_16_bits_are_faster_on_cuda_and_not_on_flex() {
    let [single, half] = [F32, BF16].map(|precision| gpt(tiny(), precision, &adamw(), StepOptions::default()));
    let products = |trace: &kiln_memory::StepTrace, profile: &BackendProfile| -> f64 {
        let prediction = trace.predict(64, profile).unwrap();
        let matmuls = prediction.operations.iter().filter(|operation| operation.name == "Matmul");
        matmuls.map(|operation| operation.seconds - profile.launch).sum()
    };
    for profile in [BackendProfile::cuda(), BackendProfile::cuda_h100()] {
        assert!(profile.half_flops > 1.5 * profile.flops, "{}", profile.name);
        let (single, half) = (products(&single, &profile), products(&half, &profile));
        assert!(half < 0.6 * single, "{}: {half} {single}", profile.name);
    }
    assert_eq!(flex().half_flops, flex().flops);
    let (a100, h100) = (BackendProfile::cuda(), BackendProfile::cuda_h100());
    assert!(h100.flops > a100.flops && h100.bandwidth > a100.bandwidth);
}

#[test]
fn a_profile_from_a_file_has_no_loader() {
    let mut value = serde_json::to_value(flex()).unwrap();
    assert_eq!(serde_json::from_value::<BackendProfile>(value.clone()).unwrap(), flex());
    value.as_object_mut().unwrap().remove("loader_bytes");
    assert_eq!(serde_json::from_value::<BackendProfile>(value.clone()).unwrap(), flex());
    value.as_object_mut().unwrap().remove("half_flops");
    assert!(serde_json::from_value::<BackendProfile>(value).is_err());
}

#[test]
fn a_peak_fits_with_the_margin_to_spare() {
    assert_eq!(PREDICTION_MARGIN, 0.02);
    for peak in [0, 1, 49, 50, 1000, 16 << 30] {
        assert!(fits_within(peak, peak + peak / 50), "{peak}");
        assert!(peak == 0 || !fits_within(peak, peak + peak / 50 - 1), "{peak}");
    }
    assert!(!fits_within(u64::MAX, u64::MAX - 1));
}
