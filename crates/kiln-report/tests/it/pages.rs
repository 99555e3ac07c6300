//! The pages of a run, of several runs, and of a smaller model.

use kiln_report::{
    ComparedRun, ComparisonPage, CompressionPage, Prediction, RunPage, Samples, Schedule, Stage, StagePass, State, Text,
};
use serde_json::{Value, json};

fn metrics(steps: u64) -> Vec<Value> {
    let step = |step: u64| {
        let loss = 2.3 / (step as f64).sqrt();
        json!({"kind": "step", "step": step, "loss": loss, "gradient_norm": 1.0, "learning_rate": 1e-4, "loss_scale": 1.0,
            "micro_batches": 1, "skipped": false})
    };
    let evaluation = |at: u64| {
        json!({"kind": "evaluation", "step": at, "epochs": at / 10, "val_accuracy": if at == 20 { 0.9 } else { 0.8 },
            "val_top5": 0.99, "val_loss": 0.5})
    };
    (1..=steps).flat_map(|at| [Some(step(at)), (at % 10 == 0).then(|| evaluation(at))]).flatten().collect()
}

fn page(steps: u64, results: Value) -> RunPage {
    RunPage {
        name: "resnet-001".into(),
        state: State::Stopped,
        detail: "To go on: kiln train resnet --resume <run>".into(),
        recipe: "resnet18".into(),
        metrics: metrics(steps),
        total_steps: Some(744),
        seconds: Some(149.3),
        results,
        budget_bytes: Some(300 << 20),
        changed: vec![["run.seed".into(), "2".into(), "1".into()]],
        settings: "[images]\nlabel_smoothing = 0.1\n".into(),
        facts: vec![("kiln".into(), "0.1.0".into())],
        ..RunPage::default()
    }
}

fn holds(html: &str, parts: &[&str]) {
    for part in parts {
        assert!(html.contains(part), "{part} is missing");
    }
    for part in ["http://", "https://", "NaN", "inf%"] {
        assert!(!html.contains(part), "{part} is in the page");
    }
}

#[test]
fn the_page_says_first_what_a_reader_looks_for() {
    let results = json!({"peak_bytes": 12 << 20, "predicted_peak_bytes": 11 << 20, "samples_per_second": 319.4,
        "waiting_for_data": 0.004, "loader_read_seconds": 1.0, "loader_decode_seconds": 3.0, "left_out": ["<bad> file"],
        "bad_samples": 1, "iou_water": 0.93});
    let page = page(40, results);
    let html = page.html();
    let parts = [
        "<b id=\"metric\">0.9000</b><small>at step 20; last 0.8000",
        "2 min 29 s",
        "step 40 of 744; 319 samples/s",
        "12.0 MiB",
        "4.0 % of the 300.0 MiB allowed; predicted 11.0 MiB",
        "0.4 %",
        "chart-loss",
        "chart-metric",
        "chart-rate",
        "chart-norm",
        "chart-val_top5",
        "includes smoothed",
        "Samples that could not be read (1)",
        "&lt;bad&gt; file",
        "<th scope=\"row\">run.seed</th><td>2</td><td>1</td>",
        "<td>3.00 s</td><td>75.0 %</td>",
        "--resume &lt;run&gt;",
        "<th scope=\"row\">water</th><td>0.9300</td>",
    ];
    holds(&html, &parts);
    let at = |id: &str| html.find(id).unwrap();
    assert!(at("id=\"metric\"") < at("chart-loss") && at("chart-loss") < at("id=\"loader\""));
    assert!(!html.contains("chart-micro_batches"));
    let read: RunPage = serde_json::from_value(serde_json::to_value(&page).unwrap()).unwrap();
    assert_eq!(read.html(), html, "the JSON holds all of it");
}

#[test]
fn a_run_without_steps_has_a_page() {
    holds(&page(0, json!({})).html(), &["No step was taken yet"]);
    holds(&serde_json::from_str::<RunPage>("{}").unwrap().html(), &["No step was taken yet", "unknown"]);
}

#[test]
fn samples_show_wrong_predictions_and_text_behind_its_prompt() {
    let prediction = |predicted: &str| Prediction {
        png: "AAAA".into(),
        truth: "cat & dog".into(),
        predicted: predicted.into(),
        probability: 0.876,
    };
    let text = Text { prompt: "Call me".into(), written: " <Ishmael>".into(), note: "greedy".into() };
    let predictions = vec![prediction("cat & dog"), prediction("<fox>")];
    let samples = Samples { predictions, text: Some(text), ..Samples::default() };
    let html = RunPage { samples, ..page(0, Value::Null) }.html();
    holds(&html, &["1 of 2 are right", "&lt;fox&gt;", "is cat &amp; dog", "87.6 %", "Call me</span> &lt;Ishmael&gt;"]);
    assert_eq!(html.matches("class=\"wrong\"").count(), 1);
}

#[test]
fn the_schedule_shows_every_pass_and_how_much_is_idle() {
    let pass = |stage, micro_batch, is_backward, begin, end| StagePass { stage, micro_batch, is_backward, begin, end };
    let passes = vec![
        pass(0, 0, false, 1.0, 2.0),
        pass(1, 0, false, 2.0, 3.0),
        pass(1, 0, true, 3.0, 5.0),
        pass(0, 0, true, 5.0, 7.0),
    ];
    let stage = Stage { blocks: Some([0, 3]), predicted_busy: Some(0.25), held: 1 };
    let schedule = Schedule { stages: vec![stage, Stage::default()], passes, predicted_bubble: Some(0.4) };
    let html = RunPage { schedule: Some(schedule), ..page(0, Value::Null) }.html();
    let row = "<td>0 to 3</td><td>1.000 s</td><td>2.000 s</td><td>50.0 %</td><td>25.0 %</td><td>1</td>";
    holds(
        &html,
        &["50.0 % of the time", "predicted 40.0 %", "stage 1, backward pass of micro-batch 0: 2000.00 ms", row],
    );
    assert_eq!(["forward", "backward"].map(|name| html.matches(&format!("<rect class=\"f-{name}\"")).count()), [2, 2]);
    let idle = Schedule { stages: vec![Stage::default(); 2], ..Schedule::default() };
    holds(&RunPage { schedule: Some(idle), ..page(0, Value::Null) }.html(), &["stage 1", "2 stages, 0.000 s"]);
}

#[test]
fn runs_are_drawn_over_each_other() {
    let run = |name: &str, accuracy: f64| ComparedRun {
        name: name.into(),
        state: State::Finished,
        metrics: vec![
            json!({"kind": "step", "step": 1, "loss": 2.0, "learning_rate": 0.1, "gradient_norm": 1.0}),
            json!({"kind": "step", "step": 2, "loss": 1.0, "learning_rate": 0.1, "gradient_norm": 1.0}),
            json!({"kind": "evaluation", "step": 2, "val_accuracy": accuracy, "val_loss": 1.0}),
        ],
        peak_bytes: Some(12 << 20),
        seconds: Some(61.0),
        samples_per_second: None,
    };
    let settings = vec![("run.seed".to_owned(), vec!["1".to_owned(), "2".to_owned()])];
    let mut page = ComparisonPage { runs: vec![run("a", 0.5), run("<b>", 0.6)], settings };
    let html = page.html();
    let parts = [
        "&lt;b&gt;",
        "chart-val_accuracy",
        "s-c1",
        "<td>1</td><td>2</td>",
        "0.6000",
        "12.0 MiB",
        "1 min 1 s",
        "2 runs",
    ];
    holds(&html, &parts);
    assert!(!html.contains("<b><"), "names are escaped");
    page.settings.clear();
    holds(&page.html(), &["the same settings"]);
}

#[test]
fn names_of_layers_are_escaped() {
    let page = CompressionPage {
        title: "a & b".into(),
        figures: vec![["accuracy".into(), "0.9".into(), "0.8".into()]],
        facts: vec![("bits".into(), "<8>".into())],
        columns: vec!["layer".into(), "bits".into()],
        rows: vec![vec!["fc.weight".into(), "4".into()]],
    };
    holds(&page.html(), &["<h1>a &amp; b</h1>", "&lt;8&gt;", ">fc.weight</th><td>4</td>", "before: 0.9"]);
}
