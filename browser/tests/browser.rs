//! The page in a real browser: Chromium without a window, driven through WebDriver.
//!
//! Without Chromium the tests say so and pass; with `KILN_BROWSER=required` they fail.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test ends at what goes wrong, and says what it measures"
)]

#[path = "../../crates/kiln-report/tests/it/large_step.rs"]
mod common;
mod run_pages;
mod screens;
mod support;

use std::env;
use std::io::{BufRead, BufReader, ErrorKind, Write, stderr};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use common::{breakdown_at, measured, prediction};
use fantoccini::actions::{InputSource, KeyAction, KeyActions, MouseActions, PointerAction};
use fantoccini::key::Key;
use fantoccini::wd::{Capabilities, WebDriverCompatibleCommand};
use fantoccini::{Client, ClientBuilder, Locator};
use http::Method;
use hyper_util::client::legacy::connect::HttpConnector;
use kiln_report::{Category, CompressionPage, MemoryPage, PredictedStep};
use serde_json::{Value, json};
use url::{ParseError, Url};

const HOW: &str = "apt-get install chromium chromium-driver";

/// A running chromedriver; it ends with this value.
struct Driver {
    child: Child,
    port: u16,
    /// Open as long as chromedriver runs, which writes to it.
    log: BufReader<ChildStdout>,
}

impl Driver {
    /// Starts chromedriver on a port that it finds itself; `None` where it is not installed.
    fn start() -> Option<Self> {
        // Two that look for a port at the same time may find the same one; the second then ends.
        for _ in 0..10 {
            let mut command = Command::new("chromedriver");
            command.arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut child = match command.spawn() {
                Err(error) if error.kind() == ErrorKind::NotFound => return None,
                child => child.unwrap(),
            };
            let log = BufReader::new(child.stdout.take().unwrap());
            let mut driver = Self { child, port: 0, log };
            if driver.listens() {
                return Some(driver);
            }
        }
        panic!("chromedriver ended before it listened, ten times");
    }

    /// Waits for the line of the log that names the port.
    fn listens(&mut self) -> bool {
        let mut line = String::new();
        while self.log.read_line(&mut line).unwrap() > 0 {
            if let Some((_, port)) = line.split_once("successfully on port ") {
                self.port = port.trim().trim_end_matches('.').parse().unwrap();
                return true;
            }
            line.clear();
        }
        false
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn chromium() -> Option<PathBuf> {
    let folders: Vec<_> = env::split_paths(&env::var_os("PATH")?).collect();
    let names = ["chromium", "chromium-browser", "google-chrome", "chrome"];
    names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name))).find(|path| path.is_file())
}

/// Opens a report's page and looks at it; whatever is found, the browser is closed.
async fn in_browser<F: Future<Output = ()> + Send + 'static>(
    report: &MemoryPage,
    look: impl FnOnce(Client, MemoryPage) -> F,
) {
    in_browser_with(&[], |page| std::fs::write(page, report.html()).unwrap(), |client| look(client, report.clone()))
        .await;
}

/// The same for any page, in a browser with more switches.
async fn in_browser_with<F: Future<Output = ()> + Send + 'static>(
    more: &[&str],
    write: impl FnOnce(&Path),
    look: impl FnOnce(Client) -> F,
) {
    let (Some(driver), Some(chromium)) = (Driver::start(), chromium()) else {
        assert!(env::var("KILN_BROWSER").as_deref() != Ok("required"), "chromium or chromedriver is missing: {HOW}");
        // Past the test harness, which shows nothing of a test that passes.
        let _ = writeln!(stderr(), "skipped: this test needs chromium and chromedriver ({HOW})");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    write(&page);
    keep(&page);
    let profile = format!("--user-data-dir={}", folder.path().join("profile").display());
    let switches = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--window-size=1200,1400",
        &profile,
    ];
    let switches = [&switches, more].concat();
    let mut capabilities = Capabilities::new();
    capabilities.insert("goog:chromeOptions".to_owned(), json!({"binary": chromium, "args": switches}));
    capabilities.insert("goog:loggingPrefs".to_owned(), json!({"browser": "ALL"}));
    let mut builder = ClientBuilder::new(HttpConnector::new());
    let client =
        builder.capabilities(capabilities).connect(&format!("http://127.0.0.1:{}", driver.port)).await.unwrap();
    let url = Url::from_file_path(&page).unwrap();
    let looks = look(client.clone());
    let opened = client.clone();
    let outcome = tokio::spawn(async move {
        opened.goto(url.as_str()).await.unwrap();
        looks.await;
        let log = console(&opened).await;
        assert!(log.is_empty(), "{log:?}");
        let requests = run(&opened, "return performance.getEntriesByType('resource').map(entry => entry.name)").await;
        assert_eq!(requests, json!([]), "the page asks for nothing");
    });
    let outcome = outcome.await;
    client.close().await.unwrap();
    if let Err(error) = outcome {
        std::panic::resume_unwind(error.into_panic());
    }
}

/// Copies a page to the folder `KILN_PAGES`, if it is given, where somebody can look at it.
fn keep(page: &Path) {
    let Some(folder) = env::var_os("KILN_PAGES") else { return };
    let html = std::fs::read_to_string(page).unwrap();
    let (_, title) = html.split_once("<title>").unwrap();
    let name: String = title.chars().take(20).map(|c| if c.is_alphanumeric() { c } else { '_' }).collect();
    std::fs::write(Path::new(&folder).join(format!("{name}-{}.html", html.len())), html).unwrap();
}

/// What the browser has logged since the last call: errors of scripts, of the content policy and of requests.
async fn console(client: &Client) -> Vec<Value> {
    #[derive(Debug)]
    struct Log;
    impl WebDriverCompatibleCommand for Log {
        fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, ParseError> {
            base.join(&format!("session/{}/se/log", session.unwrap_or_default()))
        }
        fn method_and_body(&self, _: &Url) -> (Method, Option<String>) {
            (Method::POST, Some(json!({"type": "browser"}).to_string()))
        }
    }
    let log = client.issue_cmd(Log).await.unwrap();
    log.as_array().unwrap().clone()
}

/// Sets what the browser pretends to be: a command of Chromium's own protocol.
async fn pretend(client: &Client, command: &'static str, parameters: Value) {
    #[derive(Debug)]
    struct Pretend(&'static str, Value);
    impl WebDriverCompatibleCommand for Pretend {
        fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, ParseError> {
            base.join(&format!("session/{}/goog/cdp/execute", session.unwrap_or_default()))
        }
        fn method_and_body(&self, _: &Url) -> (Method, Option<String>) {
            (Method::POST, Some(json!({"cmd": self.0, "params": self.1}).to_string()))
        }
    }
    client.issue_cmd(Pretend(command, parameters)).await.unwrap();
}

async fn run(client: &Client, script: &str) -> Value {
    client.execute(script, vec![]).await.unwrap()
}

/// Points at a place of the timeline, from 0 to 1 on its width.
async fn point(client: &Client, at: f64) {
    let plot = client.find(Locator::Id("plot")).await.unwrap();
    let (_, _, width, _) = plot.rectangle().await.unwrap();
    let to = PointerAction::MoveToElement {
        element: plot,
        duration: Some(Duration::from_millis(20)),
        x: ((at - 0.5) * width).round(),
        y: 0.0,
    };
    client.perform_actions(MouseActions::new("mouse".to_owned()).then(to)).await.unwrap();
    // The page follows at the next frame.
    let frames = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))";
    client.execute_async(frames, vec![]).await.unwrap();
}

async fn press(client: &Client, keys: &[char]) {
    let mut actions = KeyActions::new("keyboard".to_owned());
    for key in keys {
        actions = actions.then(KeyAction::Down { value: *key }).then(KeyAction::Up { value: *key });
    }
    client.perform_actions(actions).await.unwrap();
}

/// What the page says of the moment under the cursor.
async fn moment(client: &Client) -> Value {
    let script = "
        const bytes = (element) => element === null ? null : Number(element.dataset.bytes); // some are not on each page
        const rows = (query, of) => [...document.querySelectorAll(query)].map(of);
        const text = (id) => document.getElementById(id).textContent;
        return {
            index: Number(document.getElementById('moment').dataset.index),
            operation: text('operation'), where: text('where'),
            live: bytes(document.getElementById('live')), shown: text('live'),
            now: document.getElementById('plot').getAttribute('aria-valuenow'),
            cursor: document.querySelector('#cursor path').getAttribute('d'),
            categories: rows('#categories tr', (row) => [row.dataset.category, bytes(row.querySelector('td'))]),
            groups: rows('#alive tr.group', (row) => [
                row.querySelector('.name').textContent, row.cells[2].textContent, bytes(row.lastChild),
            ]),
            rest: bytes(document.getElementById('rest')),
        }";
    run(client, script).await
}

/// Bytes as the page shows them: those of these steps are of some MiB or GiB.
fn size(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 1024.0 { format!("{mib:.1} MiB") } else { format!("{:.1} GiB", mib / 1024.0) }
}

/// Everything in the panel, compared with the report.
fn check(moment: &Value, report: &MemoryPage) {
    let prediction = report.prediction.as_ref().unwrap();
    let at = moment["index"].as_u64().unwrap() as usize;
    let operation = &prediction.operations[at];
    assert_eq!(moment["operation"], json!(operation.name));
    assert_eq!(moment["live"], json!(operation.live_bytes));
    assert_eq!(moment["shown"], json!(size(operation.live_bytes)));
    let expected = breakdown_at(prediction, at);
    for row in moment["categories"].as_array().unwrap() {
        let category: Category = serde_json::from_value(row[0].clone()).unwrap();
        assert_eq!(row[1], json!(expected.get(&category).copied().unwrap_or(0)), "{category} at {at}");
    }
    let groups = groups(prediction, at);
    let shown = groups.iter().take(12).map(|group| json!([group.name, group.category.to_string(), group.bytes]));
    assert_eq!(moment["groups"], json!(shown.collect::<Vec<_>>()), "at {at}");
    assert!(!groups.is_empty());
    assert_eq!(moment["rest"], json!(groups.iter().skip(12).map(|group| group.bytes).sum::<u64>()));
}

/// Buffers of one module and category, as the page lists them.
struct Group {
    pattern: String,
    name: String,
    category: Category,
    bytes: u64,
}

/// A report of a step, with what was measured or without.
fn page(title: &str, prediction: PredictedStep, is_measured: bool) -> MemoryPage {
    let measured = is_measured.then(|| measured(&prediction));
    MemoryPage { title: title.into(), prediction: Some(prediction), measured, ..MemoryPage::default() }
}

/// The groups that are alive at an operation, largest first; those of the same size in the order of their buffers.
fn groups(prediction: &PredictedStep, at: usize) -> Vec<Group> {
    let mut groups: Vec<Group> = vec![];
    for buffer in prediction.buffers.iter().filter(|buffer| (buffer.born..=buffer.dies).contains(&at)) {
        let path = buffer.path.clone().filter(|path| !path.is_empty()).unwrap_or(format!("({})", buffer.operation));
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let pattern =
            path.split('.').map(|part| if is_number(part) { "*" } else { part }).collect::<Vec<_>>().join(".");
        match groups.iter_mut().find(|group| group.pattern == pattern && group.category == buffer.category) {
            Some(group) => {
                group.bytes += buffer.bytes;
                if group.name != path {
                    group.name = group.pattern.clone();
                }
            }
            None => groups.push(Group { pattern, name: path, category: buffer.category, bytes: buffer.bytes }),
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.bytes));
    groups
}

#[tokio::test]
async fn pointing_at_a_large_step_shows_what_is_alive() {
    let report = page("ResNet-50", prediction(4400), true);
    in_browser(&report, async |client, report| {
        let prediction = report.prediction.as_ref().unwrap();
        let at_first = moment(&client).await;
        assert_eq!(at_first["index"], json!(prediction.peak_at), "the page begins at the peak");
        check(&at_first, &report);
        let mut seen = vec![];
        for place in [0.02, 0.3, 0.5, 0.8, 0.99] {
            point(&client, place).await;
            let moment = moment(&client).await;
            check(&moment, &report);
            seen.push(moment["index"].as_u64());
        }
        assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
        // Following the pointer is no work that one would notice, even while the machine compiles something.
        let script = "
            const begin = performance.now();
            for (let i = 0; i < 200; i++) {
                const key = i % 2 ? 'PageDown' : 'ArrowRight';
                document.getElementById('plot').dispatchEvent(new KeyboardEvent('keydown', { key }));
            }
            return (performance.now() - begin) / 200";
        let each = run(&client, script).await.as_f64().unwrap();
        println!("{each:.2} ms for each move");
        assert!(each < 50.0, "{each} ms for each move");
        // Held, the cursor stays.
        client.find(Locator::Id("hold")).await.unwrap().click().await.unwrap();
        let held = moment(&client).await;
        point(&client, 0.1).await;
        assert_eq!(moment(&client).await, held);
    })
    .await;
}

#[tokio::test]
async fn arrow_keys_move_the_cursor() {
    let report = page("Small", prediction(400), false);
    in_browser(&report, async |client, report| {
        let mut stops = vec![];
        while stops.last() != Some(&json!("plot")) {
            press(&client, &[char::from(Key::Tab)]).await;
            stops.push(run(&client, "return document.activeElement.id").await);
            assert!(stops.len() < 20, "the tab key does not reach the timeline: {stops:?}");
        }
        let keys = [Key::Home, Key::Right, Key::Right, Key::Right, Key::Left].map(char::from);
        for (index, key) in [0, 1, 2, 3, 2].into_iter().zip(keys) {
            press(&client, &[key]).await;
            let moment = moment(&client).await;
            assert_eq!(moment["index"], json!(index));
            assert_eq!(moment["now"], json!((index + 1).to_string()), "readers of the screen count from 1");
            check(&moment, &report);
        }
        press(&client, &[char::from(Key::End), char::from(Key::Right)]).await;
        assert_eq!(moment(&client).await["index"], json!(399));
    })
    .await;
}

#[tokio::test]
async fn numbers_in_the_tables_are_those_of_the_json() {
    let report = page("Tables", prediction(1200), true);
    in_browser(&report, async |client, report| {
        let data: Value = run(&client, "return JSON.parse(document.getElementById('data').textContent)").await;
        assert!(common::read::<MemoryPage>(data) == report);
        let (prediction, measured) = (report.prediction.as_ref().unwrap(), report.measured.as_ref().unwrap());
        let column = |query: &str| {
            format!("return [...document.querySelectorAll('{query}')].map((cell) => Number(cell.dataset.bytes ?? cell.dataset.value))")
        };
        let phases = prediction.phases.iter().map(|phase| phase.peak_bytes).collect::<Vec<_>>();
        let ran = measured.phases.iter().map(|phase| phase.peak_bytes).collect::<Vec<_>>();
        let alive: u64 = prediction.alive_at(prediction.peak_at).iter().map(|buffer| buffer.bytes).sum();
        let mut shares: Vec<_> = prediction.breakdown.values().copied().filter(|bytes| *bytes > 0).collect();
        shares.sort_by(|a, b| b.cmp(a));
        for (query, expected) in [
            ("#predicted-peak", vec![prediction.peak_bytes]),
            ("#measured-peak", vec![measured.peak_bytes]),
            ("#phases .predicted", phases),
            ("#phases .measured", ran),
            ("#breakdown [data-bytes]", shares),
        ] {
            assert_eq!(run(&client, &column(query)).await, json!(expected), "{query}");
        }
        for level in ["module", "layer"] {
            let bytes: Vec<u64> =
                common::read(run(&client, &column(&format!("#largest .{level} > summary [data-bytes]"))).await);
            assert!(bytes.len() > 2, "{level}: {bytes:?}");
            assert_eq!(bytes.iter().sum::<u64>(), alive, "each {level} counts its buffers once");
        }
        let error = run(&client, "return Number(document.getElementById('error').dataset.value)").await;
        assert!((error.as_f64().unwrap() - report.error().unwrap()).abs() < 1e-12);
    })
    .await;
}

#[tokio::test]
async fn a_measurement_alone_can_be_read() {
    let report = MemoryPage { prediction: None, ..page("Measured", prediction(100), true) };
    in_browser(&report, async |client, report| {
        point(&client, 0.5).await;
        let moment = moment(&client).await;
        let sample = &report.measured.as_ref().unwrap().samples[moment["index"].as_u64().unwrap() as usize];
        assert_eq!(moment["live"], json!(sample.bytes));
    })
    .await;
}

#[tokio::test]
async fn names_are_text_and_an_empty_report_is_a_page() {
    let attack = "</script><img src=x onerror=\"console.error(1)\">";
    let mut value = serde_json::to_value(prediction(60)).unwrap();
    for buffer in value["buffers"].as_array_mut().unwrap() {
        buffer["path"] = json!(attack);
    }
    let report = page(attack, common::read(value), false);
    in_browser(&report, async |client, report| {
        point(&client, 0.4).await;
        check(&moment(&client).await, &report);
        assert_eq!(run(&client, "return document.querySelectorAll('img').length").await, json!(0));
        assert_eq!(run(&client, "return document.title").await, json!(report.title));
    })
    .await;
    in_browser(&MemoryPage { title: "Empty".into(), ..MemoryPage::default() }, async |client, _| {
        let words = client.find(Locator::Id("nothing")).await.unwrap().text().await.unwrap();
        assert_eq!(words, "Nothing was predicted and nothing was measured.");
        // The log is one that would show an error.
        run(&client, "console.error('seen')").await;
        assert_eq!(console(&client).await.len(), 1);
    })
    .await;
}

/// The page of a smaller model: all of it is on the screen of a desk and of a phone, in light and in dark.
#[tokio::test]
async fn the_page_of_a_smaller_model_fits_wide_and_narrow_screens() {
    let text = str::to_owned;
    let row =
        |layer: usize| vec![format!("layer{layer}.0.downsample.conv.weight"), text("4"), text("19.3"), text("8192")];
    let page = CompressionPage {
        title: text("Quantised model <4 bits>"),
        figures: vec![
            [text("val_accuracy"), text("0.8460"), text("0.8550")],
            [text("bytes"), text("2.7 MiB"), text("398.1 KiB")],
        ],
        facts: vec![(text("weights that share a scale"), text("at most 64 values"))],
        columns: ["weight", "bits", "signal to error, dB", "bytes"].map(text).into(),
        rows: (0..20).map(row).collect(),
    };
    for (size, dark) in [((1400, 900), false), ((1400, 900), true), ((390, 800), false), ((390, 800), true)] {
        let html = page.html();
        let more: &[&str] = if dark { &["--force-dark-mode", "--enable-features=WebContentsForceDark"] } else { &[] };
        let look = async move |client: Client| {
            client.set_window_size(size.0, size.1).await.unwrap();
            let seen = run(
                &client,
                "const box = (element) => element.getBoundingClientRect();
                return {
                    title: document.title,
                    width: innerWidth, needed: document.documentElement.scrollWidth,
                    tiles: [...document.querySelectorAll('.tile')].map((tile) => [tile.querySelector('b').textContent, box(tile).right]),
                    rows: document.querySelectorAll('#layers tbody tr').length,
                    cells: document.querySelectorAll('#layers tbody :is(th, td)').length,
                }",
            )
            .await;
            assert_eq!(seen["title"], json!("Quantised model <4 bits>"));
            let width = seen["width"].as_f64().unwrap();
            assert!(seen["needed"].as_f64().unwrap() <= width, "the page is wider than the screen: {seen}");
            let tiles = seen["tiles"].as_array().unwrap();
            assert_eq!(tiles.iter().map(|tile| tile[0].as_str().unwrap()).collect::<Vec<_>>(), ["0.8550", "398.1 KiB"]);
            assert!(tiles.iter().all(|tile| tile[1].as_f64().unwrap() <= width), "{seen}");
            assert_eq!((&seen["rows"], &seen["cells"]), (&json!(20), &json!(80)));
        };
        in_browser_with(more, |path| std::fs::write(path, &html).unwrap(), look).await;
    }
}
