//! The memory report as text, page and picture.

use crate::large_step::{measured, prediction, read};
use kiln_report::{Change, MemoryPage, PredictedStep};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

/// A prediction of three operations with the peak in the second.
fn small() -> Value {
    let buffer = |bytes: u64, category: &str, path: Value, born: usize, dies: usize| {
        json!({"bytes": bytes, "shape": [8, 4], "dtype": "F32", "category": category, "path": path,
               "operation": "Matmul", "born": born, "dies": dies})
    };
    json!({
        "peak_bytes": 100 * MIB, "peak_at": 1,
        "breakdown": {"parameter": 60 * MIB, "activation": 30 * MIB, "workspace": 10 * MIB},
        "phases": [{"phase": "forward", "first": 0, "end": 2, "peak_bytes": 100 * MIB},
                   {"phase": "backward", "first": 2, "end": 3, "peak_bytes": 70 * MIB}],
        "operations": [{"name": "Matmul", "live_bytes": 60 * MIB, "seconds": 0.001},
                       {"name": "Conv2d", "live_bytes": 100 * MIB, "seconds": 0.002},
                       {"name": "Relu", "live_bytes": 70 * MIB, "seconds": 0.001}],
        "buffers": [buffer(60 * MIB, "parameter", json!("block.linear.weight"), 0, 2),
                    buffer(30 * MIB, "activation", Value::Null, 1, 1)],
    })
}

fn both() -> MemoryPage {
    let measured = json!({
        "peak_bytes": 125 * MIB,
        "phases": [{"phase": "forward", "start": 0.5, "end": 1.5, "peak_bytes": 125 * MIB},
                   {"phase": "backward", "start": 1.5, "end": 2.0, "peak_bytes": 80 * MIB}],
        "samples": [{"seconds": 0.5, "bytes": 60 * MIB}, {"seconds": 1.0, "bytes": 125 * MIB}, {"seconds": 2.0, "bytes": 0}],
    });
    let facts = [("model", "two layers"), ("batch", "8")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    MemoryPage {
        title: "A small step".into(),
        facts: facts.into(),
        prediction: Some(read(small())),
        measured: Some(read(measured)),
        ..MemoryPage::default()
    }
}

/// The text between the tags of a script element.
fn embedded(page: &str, id: &str) -> Value {
    let begins = format!("<script type=\"application/json\" id=\"{id}\">");
    let (_, rest) = page.split_once(&begins).unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn text_says_the_peaks_the_phases_and_the_largest_buffers() {
    let text = both().text(10);
    let expected = "\
A small step

  model  two layers
  batch  8

  predicted peak  100.0 MiB  in Conv2d, operation 2 of 3, forward
  measured peak   125.0 MiB
  error             -20.0 %

Peak of each phase
  phase     predicted   measured    error
  forward   100.0 MiB  125.0 MiB  -20.0 %
  backward   70.0 MiB   80.0 MiB  -12.5 %

At the predicted peak
  parameters         60.0 MiB  60.0 %
  saved activations  30.0 MiB  30.0 %
  workspace          10.0 MiB  10.0 %

Largest of the 2 buffers alive then, by module
  module                   size          category           most of them
  block.linear.weight  60.0 MiB  60.0 %  parameters         1 x 8x4
  (Matmul)             30.0 MiB  30.0 %  saved activations  1 x 8x4
";
    assert_eq!(text, expected);
    assert!(!both().text(1).contains("(Matmul)"), "one group is one row");
}

/// A step as large as a real one.
fn large(operations: usize) -> MemoryPage {
    let prediction = prediction(operations);
    let measured = Some(measured(&prediction));
    MemoryPage { title: "Large".into(), prediction: Some(prediction), measured, ..MemoryPage::default() }
}

fn json_of(page: &MemoryPage) -> Value {
    serde_json::to_value(page).unwrap()
}

#[test]
fn json_comes_back_as_the_same_report() {
    let report = large(300);
    let text = serde_json::to_string(&report).unwrap();
    assert!(serde_json::from_str::<MemoryPage>(&text).unwrap() == report);
}

#[test]
fn the_page_holds_the_report_and_its_numbers() {
    let page = both().html();
    assert_eq!(embedded(&page, "data"), json_of(&both()));
    for (id, bytes) in [("predicted-peak", 100 * MIB), ("measured-peak", 125 * MIB)] {
        assert!(page.contains(&format!("id=\"{id}\" data-value=\"{bytes}\">")), "{id}");
    }
    assert!(page.contains("-20.0 %"));
    assert!(page.contains("<dt>batch</dt><dd>8</dd>"));
    assert!(!page.contains("http://") && !page.contains("https://"), "the page names no server");
}

#[test]
fn predicted_phases_are_as_wide_as_the_measured_ones() {
    let chart = embedded(&both().html(), "chart");
    let starts: Vec<f64> = read(chart["starts"].clone());
    // The first operation of the forward phase takes a third of it.
    let expected = [0.5, 0.5 + 1.0 / 3.0, 1.5, 2.0];
    for (start, expected) in starts.iter().zip(expected) {
        assert!((start - expected).abs() < 1e-5, "{starts:?}");
    }
    assert_eq!(starts.len(), 4);
}

/// A report with every part that it can have.
fn full() -> MemoryPage {
    let half = json!({
        "name": "micro-batches of 4, and every block recomputed", "peak_bytes": 60 * MIB, "saved_bytes": 40 * MIB, "fits": true,
        "exact": true, "relative_time": 1.25, "option": "--checkpointing every:1 --micro-batch 4",
    });
    let bits = json!({
        "name": "compute in bf16", "peak_bytes": 95 * MIB, "saved_bytes": 5 * MIB, "note": "compare the loss",
        "option": "--precision bf16",
    });
    MemoryPage {
        run_peak_bytes: Some(130 * MIB),
        limit_bytes: Some(90 * MIB),
        available_bytes: Some(64 << 30),
        suggestions: vec![read(half), read(bits)],
        ..both()
    }
}

#[test]
fn the_text_stays_within_a_terminal_and_says_what_helps() {
    let text = full().text(10);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let (_, helps) = text.split_once("\nWhat makes it smaller (each change alone)\n").unwrap();
    let lines: Vec<_> = helps.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let expected = [
        "change new peak saved time fits",
        "micro-batches of 4, and every block",
        "recomputed 60.0 MiB 40.0 MiB +25 % yes",
        "--checkpointing every:1 --micro-batch 4",
        "compute in bf16 ~95.0 MiB 5.0 MiB - no",
        "--precision bf16",
    ];
    assert_eq!(lines, expected);
    for words in ["highest peak      130.0 MiB  whole run", "40.0 MiB too little"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    // A step with long names too.
    let mut value = small();
    value["operations"][1]["name"] = json!("kiln::a_layer_with_a_rather_long_name_backward");
    value["buffers"][0]["path"] = json!("encoder.layers.0.attention.self_attention.projection.weight");
    let text = MemoryPage { prediction: Some(read(value)), ..full() }.text(10);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.contains("….") || text.contains("…"), "{text}");
}

#[test]
fn the_page_holds_limits_changes_and_the_drawing_without_scripts() {
    let page = full().html();
    let (shown, _) = page.split_once("<script").unwrap();
    assert!(shown.contains("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"));
    assert_eq!(shown.matches("class=\"drawn").count(), 1);
    let sized =
        [("id=\"run-peak\"", 130 * MIB), ("id=\"budget\" class=\"over\"", 90 * MIB), ("id=\"available\"", 64 << 30)];
    for (tile, bytes) in sized {
        assert!(shown.contains(&format!("<b {tile} data-value=\"{bytes}\">")), "{tile}");
    }
    assert!(shown.contains("The step is over its budget."));
    assert_eq!(shown.matches("class=\"copy\"").count(), 2);
    // The budget is a line of the drawing. The available memory is a note.
    assert_eq!(shown.matches(">budget 90.0 MiB</span>").count(), 2, "in the legend, and at the line");
    assert!(shown.contains("available memory 64.0 GiB, above the chart"));
    assert_eq!(read::<MemoryPage>(embedded(&page, "data")), full());
}

#[test]
fn a_report_of_an_earlier_version_can_be_read() {
    let mut value = json_of(&both());
    let fields = value.as_object_mut().unwrap();
    for new in ["run_peak_bytes", "limit_bytes", "available_bytes", "suggestions"] {
        assert!(fields.remove(new).is_some(), "{new}");
    }
    assert_eq!(read::<MemoryPage>(value), both());
}

#[test]
fn operations_are_where_the_measured_bytes_match_theirs() {
    let report = large(400);
    // Each operation has a sample at its beginning. The report itself knows only the estimated times.
    let samples = &report.measured.as_ref().unwrap().samples;
    let began: Vec<f64> = samples.iter().map(|sample| sample.seconds).collect();
    let page = report.html();
    assert!(page.contains("Operations are where the measured bytes match theirs."));
    let starts: Vec<f64> = read(embedded(&page, "chart")["starts"].clone());
    let span = starts[400] - starts[0];
    let off = starts.iter().zip(&began).map(|(start, began)| (start - began).abs()).fold(0.0, f64::max);
    assert!(off < 0.02 * span, "{off} of {span}");
}

#[test]
fn names_do_not_break_out_of_the_page() {
    let attack = "</script><img src=x onerror=alert(1)><!--<script>\u{2028}\"'&{{data}}\u{1b}[2J";
    let mut value = small();
    value["buffers"][0]["path"] = json!(attack);
    value["operations"][1]["name"] = json!(attack);
    value["buffers"][1]["dtype"] = json!(attack);
    let words = || Some(attack.to_owned());
    let change = Change { name: attack.into(), option: words(), note: words(), ..Change::default() };
    let report = MemoryPage {
        title: attack.into(),
        facts: vec![(attack.into(), attack.into())],
        prediction: Some(read(value)),
        suggestions: vec![change],
        ..MemoryPage::default()
    };
    let (page, svg) = (report.html(), report.svg());
    assert!(!page.contains("<img") && !svg.contains("<img") && !page.contains("<!--"));
    assert_eq!(page.matches("</script>").count(), 3, "the page's own three");
    assert!(!page.contains('\u{2028}') || !embedded(&page, "data").is_null());
    assert_eq!(read::<MemoryPage>(embedded(&page, "data")), report, "the data is untouched");
    for shown in [page, svg, report.text(10)] {
        assert!(!shown.contains('\u{1b}'), "no control characters");
    }
}

#[test]
fn what_is_missing_is_said() {
    let predicted = |title: &str, value| MemoryPage { title: title.into(), prediction: value, ..MemoryPage::default() };
    let nothing = predicted("Nothing", None);
    let empty: PredictedStep = read(json!({
        "peak_bytes": 0, "peak_at": 0, "breakdown": {}, "phases": [], "operations": [], "buffers": []
    }));
    let unmeasured = predicted("Unmeasured", Some(read(small())));
    let mut unpredicted = both();
    unpredicted.prediction = None;
    let mut peak_only = unpredicted.clone();
    peak_only.measured.as_mut().unwrap().samples.clear();
    let mut no_moments = peak_only.clone();
    no_moments.measured.as_mut().unwrap().phases.clear();
    for (report, words) in [
        (nothing, "Nothing was predicted and nothing was measured."),
        (predicted("Empty", Some(empty)), "The prediction holds no operations"),
        (unmeasured, "not measured"),
        (unpredicted, "not predicted"),
        (peak_only, "measured peak of each phase"),
        (no_moments, "no moments of the step were measured"),
    ] {
        let (page, svg, text) = (report.html(), report.svg(), report.text(5));
        assert!(page.contains(words), "{}: {words}", report.title);
        for shown in [page, svg, text] {
            assert!(!shown.contains("NaN") && !shown.contains("inf "), "{}", report.title);
        }
    }
}

#[test]
fn odd_numbers_do_not_stop_a_report() {
    let report = |change: &dyn Fn(&mut Value)| {
        let mut value = small();
        change(&mut value);
        MemoryPage { prediction: Some(read(value)), ..both() }
    };
    let mut reports = vec![
        report(&|v| v["operations"][1]["seconds"] = json!(0.0)),
        report(&|v| v["operations"][1]["seconds"] = json!(-1e300)),
        report(&|v| v["operations"].as_array_mut().unwrap().iter_mut().for_each(|o| o["seconds"] = json!(0.0))),
        report(&|v| v["buffers"] = json!([])),
        report(&|v| v["phases"] = json!([])),
        report(&|v| v["phases"][1]["end"] = json!(1_000_000)),
        report(&|v| v["phases"][0]["first"] = json!(2)),
        report(&|v| v["peak_at"] = json!(u64::MAX)),
        report(&|v| v["buffers"][0]["dies"] = json!(u64::MAX)),
        report(&|v| v["buffers"][0]["born"] = json!(7)),
        report(&|v| v["operations"][0]["live_bytes"] = json!(u64::MAX)),
    ];
    let mut infinite = both();
    infinite.measured.as_mut().unwrap().samples[0].seconds = f64::NAN;
    infinite.measured.as_mut().unwrap().phases[0].end = f64::INFINITY;
    infinite.prediction.as_mut().unwrap().operations[0].seconds = f64::INFINITY;
    // JSON has `null` for a number that is not finite.
    reports.push(read(json_of(&infinite)));
    reports.push(infinite);
    let mut unmeasured = reports.clone();
    unmeasured.iter_mut().for_each(|report| report.measured = None);
    for report in reports.into_iter().chain(unmeasured) {
        let (page, svg) = (report.html(), report.svg());
        assert!(!report.text(5).is_empty());
        for shown in [svg, page.split_once("<script").unwrap().0.to_owned()] {
            assert!(!shown.contains("NaN") && !shown.contains("\"inf") && !shown.contains(" inf"), "{shown}");
        }
    }
}

#[test]
fn a_large_step_is_a_small_page() {
    let report = large(4400);
    assert!(report.prediction.as_ref().unwrap().buffers.len() > 5000);
    let (page, svg) = (report.html().len(), report.svg().len());
    assert!(page < json_of(&report).to_string().len() + 300_000 && page < 2_000_000, "{page} bytes");
    assert!(svg < 200_000, "{svg} bytes");
}

#[test]
fn sizes_are_in_the_unit_that_fits() {
    let sized = |bytes: u64| {
        let mut value = small();
        value["buffers"][0]["bytes"] = json!(bytes);
        value["breakdown"]["parameter"] = json!(bytes);
        MemoryPage { title: "Sizes".into(), prediction: Some(read(value)), ..MemoryPage::default() }
    };
    for (bytes, shown) in [
        (1, "1 B"),
        (1023, "1023 B"),
        (1 << 10, "1.0 KiB"),
        (1 << 20, "1.0 MiB"),
        (3 << 29, "1.5 GiB"),
        (1 << 40, "1.0 TiB"),
    ] {
        let report = sized(bytes);
        assert!(report.text(5).contains(&format!("parameters         {shown:>8}")), "{}", report.text(5));
        assert!(report.html().contains(&format!("data-bytes=\"{bytes}\">{shown}<")), "{shown}");
    }
}
