//! The report of a run and the comparison of runs, on a desk and on a phone, in light and in dark, with and without scripts.

use std::time::Duration;

use fantoccini::actions::{InputSource, MouseActions, PointerAction};
use fantoccini::key::Key;
use fantoccini::{Client, Locator};
use kiln_report::{ComparedRun, ComparisonPage, Mark, Prediction, RunPage, Samples, State, Text};
use serde_json::{Value, json};

use super::support::{SCREENS, on_screen, shown};
use super::{in_browser_with, press, pretend, run};

/// A picture of one pixel.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const STEPS: u64 = 20_000;

/// A run whose loss falls, with a spike of the gradient norm and an evaluation after every thousandth step.
fn metrics(loss: f64) -> Vec<Value> {
    let mut lines = vec![];
    for step in 1..=STEPS {
        let part = step as f64 / STEPS as f64;
        let noise = ((step * 7919) % 101) as f64 / 1000.0;
        lines.push(json!({
            "kind": "step", "step": step, "loss": loss + 2.0 * (-8.0 * part).exp() + noise, "learning_rate": 3e-4 * (1.0 - part),
            "gradient_norm": if step == 700 { 400.0 } else { 1.0 + noise }, "micro_batches": 1, "skipped": false,
        }));
        if step % 1000 == 0 {
            let accuracy = 0.9 - 0.3 * (-5.0 * part).exp() - if step == STEPS { 0.01 } else { 0.0 };
            lines.push(json!({
                "kind": "evaluation", "step": step, "val_accuracy": accuracy, "val_top5": 0.99, "val_loss": loss + 0.1,
            }));
        }
    }
    lines
}

fn report(state: State) -> String {
    let prediction = |index: usize| Prediction {
        png: PNG.into(),
        truth: "Ankle boot".into(),
        predicted: if index == 3 { "Sneaker <b>" } else { "Ankle boot" }.into(),
        probability: 0.87,
    };
    let text = Text { prompt: "Call me".into(), written: " Ishmael.\nSome years ago".repeat(9), note: "seed 1".into() };
    let samples = Samples { predictions: (0..12).map(prediction).collect(), text: Some(text), pictures: vec![] };
    let mark = Mark { step: 7_000, name: "resumed".into(), text: "Resumed after step 7,000.".into() };
    RunPage {
        name: "resnet-with-a-rather-long-name-that-somebody-chose-001".into(),
        state,
        detail: "To go on: kiln train resnet --resume runs/resnet-with-a-rather-long-name-that-somebody-chose-001".into(),
        recipe: "resnet18, 704,218 parameters; 4,000 samples of the data set of the project; 20,000 steps of 64".into(),
        metrics: metrics(1.0),
        total_steps: Some(STEPS),
        seconds: Some(4_000.0),
        results: json!({
            "peak_bytes": 280 << 20, "predicted_peak_bytes": 270 << 20, "samples_per_second": 1234.5, "waiting_for_data": 0.25,
            "loader_decode_seconds": 60.0, "loader_read_seconds": 3.0, "loader_peak_bytes": 5 << 20,
            "left_out": ["photos/a-file-with-a-very-long-name/that-cannot-be-read-at-all.jpg: not a JPEG"], "bad_samples": 1,
        }),
        budget_bytes: Some(300 << 20),
        marks: vec![mark],
        samples,
        changed: vec![["run.batch_size".into(), "64".into(), "32".into()]],
        settings: "[run]\nbatch_size = 64\n[images]\nlabel_smoothing = 0.1\n".into(),
        facts: vec![("processor".into(), "A processor with a name that is rather long, 64 threads".into())],
        ..RunPage::default()
    }
    .html()
}

fn comparison() -> String {
    let run = |index: usize| ComparedRun {
        name: format!("gpt-{index:03}"),
        state: State::Finished,
        metrics: metrics(1.0 + index as f64 / 4.0),
        peak_bytes: Some(300 << 20),
        seconds: Some(100.0),
        samples_per_second: Some(1e4),
    };
    let settings = vec![("schedule.peak".to_owned(), vec!["0.003".to_owned(); 5])];
    ComparisonPage { runs: (0..5).map(run).collect(), settings }.html()
}

/// What a page looks like.
async fn look(client: &Client) -> Value {
    run(
        client,
        "const box = (element) => element.getBoundingClientRect();
        const all = (query, of = document) => [...of.querySelectorAll(query)].filter((element) => element.checkVisibility());
        const apart = (list, low, high) => list.every((a, i) => list.slice(0, i).every((b) => a[high] <= b[low] || b[high] <= a[low]));
        const beyond = all('body *').filter((e) => box(e).right > innerWidth + 1 && !e.closest('.wide, pre, svg'));
        return {
            width: innerWidth, needed: document.documentElement.scrollWidth,
            beyond: beyond.map((element) => element.outerHTML.slice(0, 80)),
            paper: getComputedStyle(document.body).backgroundColor,
            tiles: all('.tile b').map((value) => value.textContent),
            charts: all('.chart').map((chart) => ({
                id: chart.id, width: box(chart.querySelector('.plot')).width, height: box(chart.querySelector('.plot')).height,
                values: all('.values:not(.log) span:not(.widest)', chart).map((span) => span.textContent),
                steps: all('.steps span', chart).map((span) => span.textContent),
                apart: apart(all('.values span:not(.widest)', chart).map(box), 'top', 'bottom')
                    && apart(all('.steps span', chart).map(box), 'left', 'right'),
                font: parseFloat(getComputedStyle(chart.querySelector('.steps')).fontSize),
                lines: all('.lin .line', chart).filter((line) => box(line).width > 0 && getComputedStyle(line).stroke !== 'none').length,
            })),
        }",
    )
    .await
}

#[tokio::test]
async fn charts_of_runs_are_readable_on_a_desk_and_on_a_phone_in_light_and_in_dark() {
    for (html, charts) in [(report(State::Stopped), 4), (comparison(), 5)] {
        let look = async move |client: Client| {
            for (screen, dark) in SCREENS {
                on_screen(&client, screen, dark).await;
                let seen = look(&client).await;
                assert_eq!(seen["width"], json!(screen[0]), "{seen}");
                assert!(
                    seen["needed"].as_u64().unwrap() <= u64::from(screen[0]),
                    "the page is wider than the screen: {seen}"
                );
                assert_eq!(seen["beyond"], json!([]), "beyond the screen {screen:?}");
                assert_eq!(seen["paper"], json!(if dark { "rgb(26, 24, 23)" } else { "rgb(255, 255, 255)" }));
                assert_eq!(seen["charts"].as_array().unwrap().len(), charts, "{seen}");
                for chart in seen["charts"].as_array().unwrap() {
                    assert!(
                        chart["width"].as_f64().unwrap() > 280.0 && chart["height"].as_f64().unwrap() > 150.0,
                        "{chart}"
                    );
                    assert!(chart["font"].as_f64().unwrap() >= 12.0, "{chart}");
                    assert_eq!(chart["apart"], json!(true), "numbers of an axis overlap at {screen:?}: {chart}");
                    assert!(chart["lines"].as_u64().unwrap() >= 1, "{chart}");
                    for axis in ["values", "steps"] {
                        let labels: Vec<&str> =
                            chart[axis].as_array().unwrap().iter().filter_map(Value::as_str).collect();
                        let mut distinct = labels.clone();
                        distinct.dedup();
                        assert!((2..=9).contains(&labels.len()) && distinct == labels, "{axis} of {chart}");
                    }
                }
            }
        };
        in_browser_with(&[], |path| std::fs::write(path, &html).unwrap(), look).await;
    }
}

#[tokio::test]
async fn the_tiles_say_the_best_the_time_the_memory_and_the_wait() {
    let html = report(State::Finished);
    let look = async |client: Client| {
        let seen = look(&client).await;
        assert_eq!(seen["tiles"], json!(["0.8974", "1 h 6 min", "280.0 MiB", "25.0 %"]), "{seen}");
    };
    in_browser_with(&[], |path| std::fs::write(path, &html).unwrap(), look).await;
}

/// The title and the legend's values of a chart, and how many dots are on its curves.
async fn read(client: &Client, chart: &str) -> Value {
    let script = format!(
        "const chart = document.getElementById('{chart}');
        return [chart.querySelector('h3').textContent, [...chart.querySelectorAll('.legend b')].map((b) => b.textContent),
            chart.querySelectorAll('.dot:not([hidden])').length]"
    );
    run(client, &script).await
}

#[tokio::test]
async fn pointing_at_a_chart_shows_the_values_of_all_charts_at_that_step() {
    let html = report(State::Finished);
    let look = async |client: Client| {
        on_screen(&client, [1400, 900], false).await;
        let before = read(&client, "chart-loss").await;
        assert_eq!((&before[0], &before[2]), (&json!("Loss"), &json!(0)));
        let plot = client.find(Locator::Css("#chart-metric .plot")).await.unwrap();
        // To its middle.
        let to =
            PointerAction::MoveToElement { element: plot, duration: Some(Duration::from_millis(20)), x: 0.0, y: 0.0 };
        client.perform_actions(MouseActions::new("mouse".to_owned()).then(to)).await.unwrap();
        assert_eq!(read(&client, "chart-metric").await, json!(["Validation accuracy at step 10,000", ["0.8754"], 1]));
        let loss = read(&client, "chart-loss").await;
        assert_eq!((&loss[0], &loss[1][1], &loss[2]), (&json!("Loss at step 10,000"), &json!("1.100"), &json!(2)));
        // The dot of the validation loss lies on its curve.
        let off = "const dots = document.querySelectorAll('#chart-loss .dot'), plot = document.querySelector('#chart-loss .plot');
            const data = JSON.parse(document.getElementById('charts').textContent)[0];
            const [low, high] = data.scales.lin, [box, dot] = [plot.getBoundingClientRect(), dots[1].getBoundingClientRect()];
            const y = box.bottom - box.height * (1.1 - low) / (high - low);
            return Math.abs((dot.top + dot.bottom) / 2 - y)";
        assert!(run(&client, off).await.as_f64().unwrap() < 2.0);
        // The keyboard goes from value to value.
        run(&client, "document.querySelector('#chart-metric .plot').focus()").await;
        press(&client, &[char::from(Key::Right)]).await;
        assert_eq!(read(&client, "chart-metric").await[0], json!("Validation accuracy at step 11,000"));
        press(&client, &[char::from(Key::Home)]).await;
        assert_eq!(read(&client, "chart-metric").await[0], json!("Validation accuracy at step 1,000"));
        press(&client, &[char::from(Key::Escape)]).await;
        assert_eq!(read(&client, "chart-loss").await, before);
    };
    in_browser_with(&[], |path| std::fs::write(path, &html).unwrap(), look).await;
}

#[tokio::test]
async fn without_scripts_the_curves_and_the_logarithmic_form_are_there() {
    let html = report(State::Failed);
    let look = async |client: Client| {
        pretend(&client, "Emulation.setScriptExecutionDisabled", json!({"value": true})).await;
        for screen in [[1400, 900], [390, 844]] {
            on_screen(&client, screen, false).await;
            assert_eq!(shown(&client, ".charts > .chart").await, 4);
            assert_eq!(shown(&client, ".tile b").await, 4);
            assert_eq!(shown(&client, ".images .wrong").await, 1);
            assert_eq!(shown(&client, "#chart-metric .best.lin").await, 1);
            let forms = async || {
                (shown(&client, "#chart-loss .values.lin").await, shown(&client, "#chart-loss .values.log").await)
            };
            assert_eq!(forms().await, (1, 0));
            client.find(Locator::Css("#chart-loss .switch input")).await.unwrap().click().await.unwrap();
            assert_eq!(forms().await, (0, 1));
        }
        pretend(&client, "Emulation.setScriptExecutionDisabled", json!({"value": false})).await;
    };
    in_browser_with(&[], |path| std::fs::write(path, &html).unwrap(), look).await;
}
