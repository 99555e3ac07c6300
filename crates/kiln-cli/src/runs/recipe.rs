//! A run of `kiln train` in one line, from its settings.

use kiln_report::{grouped, numbered};
use serde_json::Value;

/// Text for a setting that is not set.
const UNSET: &str = "-";

/// The model of a run in one or two words.
pub(crate) fn model(settings: &Value) -> String {
    let model = &settings["model"];
    match (model["name"].as_str(), model["encoder"].as_str(), model["layers"].as_u64(), model["width"].as_u64()) {
        (Some(name), ..) => name.to_owned(),
        (None, Some(encoder), ..) => format!("unet-{encoder}"),
        (None, None, Some(layers), Some(width)) => format!("gpt-{layers}x{width}"),
        _ => UNSET.to_owned(),
    }
}

/// Model, data and optimizer in one line.
pub(crate) fn recipe(settings: &Value, parameters: usize, samples: usize, steps: u64) -> String {
    let run = &settings["run"];
    let data = match run["data"].as_str() {
        Some(path) => path.rsplit(['/', '\\']).find(|part| !part.is_empty()).unwrap_or(path).to_owned(),
        None => "the data set of the project".to_owned(),
    };
    let optimizer = settings["optimizer"].as_object().and_then(|optimizer| optimizer.keys().next().cloned());
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let micro = run["micro_batch"].as_u64().filter(|micro| Some(*micro) != run["batch_size"].as_u64());
    let micro = micro.map_or(String::new(), |micro| format!(" ({micro} at once)"));
    let figure = |count: u64, noun: &str| format!("{} {}", grouped(count), numbered(count, noun));
    format!(
        "{}, {}; {} of {data}; {} of {}{micro}; {}, rate {}; {} on {}",
        model(settings),
        figure(parameters as u64, "parameter"),
        figure(samples as u64, "sample"),
        figure(steps, "step"),
        word(&run["batch_size"]),
        optimizer.unwrap_or_else(|| UNSET.to_owned()),
        word(&settings["schedule"]["peak"]),
        word(&run["precision"]),
        word(&run["device"]),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_run_is_told_in_one_line() {
        let gpt = json!({
            "run": {"device": "flex", "batch_size": 8, "precision": "f32", "memory": "314572800B", "data": "/home/a/book.txt"},
            "model": {"layers": 4, "width": 128}, "optimizer": {"adamw": {"beta1": 0.9}}, "schedule": {"peak": 0.003},
        });
        assert_eq!(
            recipe(&gpt, 834_304, 17_885, 1000),
            "gpt-4x128, 834,304 parameters; 17,885 samples of book.txt; 1,000 steps of 8; adamw, rate 0.003; f32 on flex"
        );
        assert_eq!(model(&json!({"model": {"name": "vit_tiny"}})), "vit_tiny");
        assert_eq!(model(&json!({"model": {"encoder": "resnet18", "width": 0.25}})), "unet-resnet18");
        assert_eq!(model(&json!({})), "-");
    }
}
