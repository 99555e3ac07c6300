//! The memory report on a desk and on a phone, in light and in dark, without scripts, and what a reader does with it.

use fantoccini::actions::{InputSource, MouseActions, PointerAction};
use fantoccini::{Client, Locator};
use kiln_report::{Change, MemoryPage};
use serde_json::{Value, json};

use super::common::prediction;
use super::support::{SCREENS, on_screen, shown};
use super::{check, in_browser, moment, page, point, press, pretend, run};

/// A report with all that it may hold.
fn full(operations: usize) -> MemoryPage {
    let step = page("ResNet-50", prediction(operations), true);
    let peak = step.prediction.as_ref().map_or(0, |prediction| prediction.peak_bytes);
    let change = |name: &str, part: u64, time, option: &str| Change {
        name: name.into(),
        peak_bytes: peak / 100 * part,
        saved_bytes: peak - peak / 100 * part,
        fits: part <= 90,
        exact: true,
        relative_time: time,
        option: Some(option.into()),
        note: None,
    };
    let both =
        change("recompute every block, micro-batches of 16", 40, Some(1.3), "--checkpointing every:1 --micro-batch 16");
    let note = "numbers differ by rounding, and more with batch-norm or dropout";
    let changes = vec![
        change("micro-batches of 16", 55, Some(1.04), "--micro-batch 16"),
        Change { note: Some(note.into()), ..both },
        Change { exact: false, ..change("compute in bf16", 95, None, "--precision bf16") },
    ];
    let facts = [("batch", "32"), ("device", "flex")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    MemoryPage {
        facts: facts.into(),
        run_peak_bytes: Some(peak + peak / 50),
        limit_bytes: Some(peak / 100 * 110),
        available_bytes: Some(64 << 30),
        suggestions: changes,
        ..step
    }
}

#[tokio::test]
async fn all_of_the_page_is_on_a_desk_and_on_a_phone_in_light_and_in_dark() {
    in_browser(&full(1200), async |client, report| {
        for (screen, dark) in SCREENS {
            on_screen(&client, screen, dark).await;
            check(&moment(&client).await, &report);
            let seen = run(
                &client,
                "const box = (element) => element.getBoundingClientRect();
                const all = (query) => [...document.querySelectorAll(query)];
                const ticks = (className) => all(`#grid text.${className}`).map((text) => [text.textContent, box(text)]);
                const apart = (list, low, high) => list.every((tick, i) => !i || list[i - 1][1][high] <= tick[1][low]
                    || tick[1][high] <= list[i - 1][1][low]);
                const across = ticks('middle').slice(0, -1), up = ticks('end').slice(0, -1);
                const beyond = all('main *').filter((e) => box(e).right > innerWidth + 1 && !e.closest('.wide, .unseen, thead, svg'));
                return {
                    width: innerWidth, needed: document.documentElement.scrollWidth,
                    beyond: beyond.map((element) => element.outerHTML.slice(0, 80)),
                    paper: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.body).color,
                    text: Math.min(...all('#timeline text').map((text) => parseFloat(getComputedStyle(text).fontSize)
                        * box(document.getElementById('timeline')).width / document.getElementById('timeline').viewBox.baseVal.width)),
                    across: across.map((tick) => tick[0]), up: up.map((tick) => tick[0]),
                    apart: apart(across, 'left', 'right') && apart(up, 'top', 'bottom'),
                    drawn: all('.drawn').length, options: all('#help .copy').filter((button) => !button.hidden).length,
                    buttons: Math.min(...all('button').filter((b) => b.offsetParent).map((button) => box(button).height)),
                }",
            )
            .await;
            assert_eq!(seen["width"], json!(screen[0]), "{seen}");
            assert!(seen["needed"].as_u64().unwrap() <= u64::from(screen[0]), "the page is wider than the screen: {seen}");
            assert_eq!(seen["beyond"], json!([]), "beyond the screen");
            let colors = if dark { ["rgb(26, 24, 23)", "rgb(235, 230, 225)"] } else { ["rgb(255, 255, 255)", "rgb(31, 29, 27)"] };
            assert_eq!([&seen["paper"], &seen["ink"]], [&json!(colors[0]), &json!(colors[1])]);
            assert!(seen["text"].as_f64().unwrap() >= 11.0, "text of the drawing is too small: {seen}");
            for axis in ["across", "up"] {
                let labels: Vec<String> = super::common::read(seen[axis].clone());
                let mut distinct = labels.clone();
                distinct.dedup();
                assert!(labels.len() >= 3 && distinct == labels, "{axis}: {seen}");
            }
            assert_eq!(seen["apart"], json!(true), "numbers of an axis overlap: {seen}");
            assert_eq!((&seen["drawn"], &seen["options"]), (&json!(0), &json!(3)), "{seen}");
            assert!(seen["buttons"].as_f64().unwrap() >= 20.0, "{seen}");
        }
    })
    .await;
}

#[tokio::test]
async fn without_scripts_the_main_figures_are_there() {
    in_browser(&full(400), async |client, _| {
        pretend(&client, "Emulation.setScriptExecutionDisabled", json!({"value": true})).await;
        for screen in [[1400, 900], [390, 844]] {
            on_screen(&client, screen, false).await;
            assert!(shown(&client, ".drawn .area").await > 0, "the drawing at {screen:?}");
            assert_eq!(shown(&client, "#help tbody tr").await, 3);
            assert!(shown(&client, "#largest .module").await > 0);
            for query in ["#moment", "#toolbar", "#timeline", "button"] {
                assert_eq!(shown(&client, query).await, 0, "{query} does nothing without scripts");
            }
        }
        pretend(&client, "Emulation.setScriptExecutionDisabled", json!({"value": false})).await;
    })
    .await;
}

/// What the drawing shows: its range, and whether the whole step is in it.
async fn range(client: &Client) -> (f64, f64) {
    let script = "const texts = [...document.querySelectorAll('#grid text.middle')].slice(0, -1).map((t) => Number(t.textContent));
        return [texts[0], texts[texts.length - 1]]";
    let range = run(client, script).await;
    (range[0].as_f64().unwrap(), range[1].as_f64().unwrap())
}

#[tokio::test]
async fn a_reader_zooms_and_sees_the_whole_step_again() {
    in_browser(&full(1200), async |client, report| {
        let whole = range(&client).await;
        let plot = client.find(Locator::Id("plot")).await.unwrap();
        let to = |x: i64| PointerAction::MoveToElement { element: plot.clone(), duration: None, x: x as f64, y: 20.0 };
        let drag = MouseActions::new("mouse".to_owned())
            .then(to(-200))
            .then(PointerAction::Down { button: 0 })
            .then(to(-100))
            .then(to(0))
            .then(PointerAction::Up { button: 0 });
        client.perform_actions(drag).await.unwrap();
        let part = range(&client).await;
        assert!(part.0 >= whole.0 && part.1 < whole.1 && part.0 < part.1, "{part:?} of {whole:?}");
        // What is under the pointer is what the drawing shows there.
        point(&client, 0.5).await;
        check(&moment(&client).await, &report);
        client.find(Locator::Id("zoom-all")).await.unwrap().click().await.unwrap();
        assert_eq!(range(&client).await, whole);
        run(&client, "document.getElementById('plot').focus()").await;
        press(&client, &['+', '+']).await;
        let closer = range(&client).await;
        assert!(closer.1 - closer.0 < whole.1 - whole.0);
        press(&client, &['0']).await;
        assert_eq!(range(&client).await, whole);
        // By operation, each has the same width.
        client.find(Locator::Css("#axis option[value=operation]")).await.unwrap().click().await.unwrap();
        assert_eq!(range(&client).await, (0.0, 1200.0));
    })
    .await;
}

#[tokio::test]
async fn a_reader_pins_a_tensor_and_filters_by_module() {
    in_browser(&full(1200), async |client, report| {
        let step = report.prediction.as_ref().unwrap();
        // A group opens; its tensors are those that are alive, largest first, and one of them is pinned.
        client.find(Locator::Css("#alive .group button")).await.unwrap().click().await.unwrap();
        let rows = "return [...document.querySelectorAll('#alive tr.buffer')].map((row) => Number(row.dataset.buffer))";
        let members: Vec<usize> = super::common::read(run(&client, rows).await);
        let buffers: Vec<_> = members.iter().map(|index| &step.buffers[*index]).collect();
        assert!(!buffers.is_empty() && buffers.is_sorted_by(|a, b| a.bytes >= b.bytes));
        assert!(buffers.iter().all(|buffer| (buffer.born..=buffer.dies).contains(&step.peak_at)));
        client.find(Locator::Css("#alive tr.buffer button")).await.unwrap().click().await.unwrap();
        let pins = "return [...document.querySelectorAll('#pins li')].map((item) => [Number(item.dataset.buffer), item.textContent])";
        let pinned = run(&client, pins).await;
        assert_eq!((pinned.as_array().unwrap().len(), &pinned[0][0]), (1, &json!(members[0])));
        let text = pinned[0][1].as_str().unwrap().to_owned();
        assert!(text.contains(buffers[0].path.as_deref().unwrap()) && text.contains("alive from "), "{text}");
        let outlines = "return document.querySelectorAll('#outlines path.outline').length";
        assert_eq!(run(&client, outlines).await, json!(1));
        // A click on the drawing pins the tensor that is drawn there, and the moment stays.
        point(&client, 0.5).await;
        let click = MouseActions::new("mouse".to_owned())
            .then(PointerAction::Down { button: 0 })
            .then(PointerAction::Up { button: 0 });
        run(&client, "document.getElementById('plot').scrollIntoView({ block: 'center' })").await;
        let plot = client.find(Locator::Id("plot")).await.unwrap();
        let to = PointerAction::MoveToElement { element: plot, duration: None, x: 0.0, y: 150.0 };
        client.perform_actions(MouseActions::new("mouse".to_owned()).then(to)).await.unwrap();
        client.perform_actions(click).await.unwrap();
        let two = run(&client, pins).await;
        assert_eq!(two.as_array().unwrap().len(), 2, "{two}");
        let buffer = &step.buffers[two[1][0].as_u64().unwrap() as usize];
        let held = moment(&client).await;
        let at = held["index"].as_u64().unwrap() as usize;
        assert!((buffer.born..=buffer.dies).contains(&at), "the tensor is alive then");
        point(&client, 0.1).await;
        assert_eq!(moment(&client).await["index"], held["index"]);
        run(&client, "document.getElementById('plot').focus()").await;
        press(&client, &[char::from(fantoccini::key::Key::Escape)]).await;
        assert_eq!(run(&client, pins).await, json!([]));

        // With a filter, the panel counts what matches alone.
        let filter = client.find(Locator::Id("filter")).await.unwrap();
        filter.send_keys("layer2.*").await.unwrap();
        let seen = moment(&client).await;
        let at = seen["index"].as_u64().unwrap() as usize;
        let of_layer = |path: &Option<String>| path.as_deref().is_some_and(|path| path.starts_with("layer2."));
        let expected: u64 = step.alive_at(at).iter().filter(|buffer| of_layer(&buffer.path)).map(|buffer| buffer.bytes).sum();
        let bytes = |value: &Value| value.as_u64().unwrap();
        assert!(expected > 0);
        assert_eq!(seen["categories"].as_array().unwrap().iter().map(|row| bytes(&row[1])).sum::<u64>(), expected);
        let groups = seen["groups"].as_array().unwrap();
        assert!(groups.iter().all(|group| group[0].as_str().unwrap().starts_with("layer2.")), "{groups:?}");
        assert_eq!(groups.iter().map(|group| bytes(&group[2])).sum::<u64>() + bytes(&seen["rest"]), expected);
        let modules = "return [...document.querySelectorAll('#largest .module:not([hidden]) > summary .name')].map((e) => e.textContent)";
        assert_eq!(run(&client, modules).await, json!(["layer2.*"]));
        filter.clear().await.unwrap();
        run(&client, "const filter = document.getElementById('filter'); filter.value = ''; filter.dispatchEvent(new Event('input'))").await;
        check(&moment(&client).await, &report);
    })
    .await;
}
