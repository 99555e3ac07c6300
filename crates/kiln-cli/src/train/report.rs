//! `report.html`: curves, results and settings of a run in one file that needs no network.

use std::fmt::Write;

use crate::atomic::replace;
use anyhow::{Result, anyhow};
use base64::Engine;
use bytesize::ByteSize;
use plotters::prelude::*;
use serde_json::Value;

use super::directory::{CONFIG, RunDirectory};
use super::schedule::STYLE;

const SIZE: (u32, u32) = (760, 320);
const COLOR: RGBColor = RGBColor(180, 75, 30);
const PALE: RGBColor = RGBColor(235, 205, 185);

/// Figures that have a curve of their own, with their titles.
const CURVES: [(&str, &str); 4] = [
    ("test_miou", "mean IoU"),
    ("test_accuracy", "test accuracy"),
    ("bits_per_byte", "bits per byte"),
    ("test_loss", "test loss"),
];

/// Results that the table of results leaves out.
const LISTS: [&str; 2] = ["devices", "stages_busy"];

/// Draws the run's metrics, lists its results and settings, and shows `pictures`, PNG files with their titles. `schedule` is a section about
/// its stages.
pub(crate) fn write_report(
    directory: &RunDirectory,
    name: &str,
    results: &Value,
    schedule: &str,
    pictures: &[(String, Vec<u8>)],
) -> Result<()> {
    let metrics = directory.metrics()?;
    let series = |kind: &str, figure: &str| -> Vec<(f64, f64)> {
        let of_kind = metrics.iter().filter(|line| line["kind"] == kind && line["skipped"] != true);
        of_kind.filter_map(|line| Some((line["step"].as_f64()?, line[figure].as_f64()?))).collect()
    };
    let loss = series("step", "loss");
    let mut charts = vec![chart("training loss", &[(&loss, PALE), (&smooth(&loss), COLOR)])?];
    for (figure, title) in CURVES {
        let points = series("evaluation", figure);
        if !points.is_empty() {
            charts.push(chart(title, &[(&points, COLOR)])?);
        }
    }
    charts.push(chart("learning rate", &[(&series("step", "learning_rate"), COLOR)])?);

    let mut rows = String::new();
    // Lists have tables of their own.
    for (key, value) in results.as_object().into_iter().flatten().filter(|(key, _)| !LISTS.contains(&key.as_str())) {
        write!(rows, "<tr><th>{}</th><td>{}</td></tr>", escape(key), escape(&text(key, value)))?;
    }
    let mut shown = String::new();
    for (title, png) in pictures {
        let (title, png) = (escape(title), base64::engine::general_purpose::STANDARD.encode(png));
        write!(shown, "<figure><img alt=\"{title}\" src=\"data:image/png;base64,{png}\"><figcaption>{title}: ")?;
        write!(shown, "image, truth, prediction</figcaption></figure>")?;
    }
    let settings = std::fs::read_to_string(directory.file(CONFIG)).unwrap_or_default();
    let html = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">\
         <title>{name}</title><style>\
         :root{{--ink:#222;--paper:#fff;--code:#f6f3f0;--idle:#ece7e2;--forward:#b44b1e;--backward:#7a3b8c}}\
         @media(prefers-color-scheme:dark){{:root{{--ink:#e6e3e0;--paper:#1b1a19;--code:#292725;--idle:#3a3633;--forward:#c25a2b;\
         --backward:#9a5bad}}}}\
         body{{font:16px/1.5 system-ui,sans-serif;max-width:780px;margin:2em auto;padding:0 1em;color:var(--ink);background:var(--paper)}}\
         svg,img{{width:100%;height:auto}}svg.chart{{background:#fff}}figure{{margin:1em 0}}\
         th{{text-align:left;padding-right:2em;font-weight:600}}td{{font-variant-numeric:tabular-nums;overflow-wrap:anywhere}}\
         .stages th,.stages td{{padding-right:1.2em;white-space:nowrap}}.key svg{{width:.8em}}\
         pre{{background:var(--code);padding:1em;overflow:auto}}{STYLE}</style>\
         <h1>{}</h1><table>{rows}</table>{schedule}{shown}{}<h2>Settings</h2><pre>{}</pre></html>\n",
        escape(name),
        charts.concat().replace("<svg ", "<svg class=\"chart\" "),
        escape(&settings)
    );
    replace(&directory.file("report.html"), html.as_bytes())
}

fn text(key: &str, value: &Value) -> String {
    if let (true, Some(bytes)) = (key.ends_with("bytes"), value.as_u64()) {
        return ByteSize(bytes).to_string();
    }
    match value.as_f64() {
        Some(seconds) if key == "seconds" => format!("{seconds:.1}"),
        Some(number) if value.is_f64() => format!("{number:.4}"),
        _ => value.as_str().map_or(value.to_string(), str::to_owned),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Exponential moving average over a fiftieth of the run.
fn smooth(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let keep = 1.0 - 1.0 / (points.len() as f64 / 50.0).max(1.0);
    let average = |mean: &mut Option<f64>, &(x, y): &(f64, f64)| {
        let next = mean.map_or(y, |mean| keep * mean + (1.0 - keep) * y);
        *mean = Some(next);
        Some((x, next))
    };
    points.iter().scan(None, average).collect()
}

fn chart(title: &str, lines: &[(&[(f64, f64)], RGBColor)]) -> Result<String> {
    let mut svg = String::new();
    let fail = |e: &dyn std::fmt::Display| anyhow!("cannot draw '{title}': {e}");
    {
        let all = || lines.iter().flat_map(|(points, _)| *points);
        let bound = |pick: fn(&(f64, f64)) -> f64, fold: fn(f64, f64) -> f64, start| all().map(pick).fold(start, fold);
        let last = bound(|p| p.0, f64::max, 0.0);
        let (y0, y1) = (bound(|p| p.1, f64::min, f64::MAX), bound(|p| p.1, f64::max, f64::MIN));
        let pad = ((y1 - y0) * 0.05).max(1e-6);
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let (x, y) = if last > 0.0 { (0.0..last, (y0 - pad)..(y1 + pad)) } else { (0.0..1.0, 0.0..1.0) };
        let mut plot = ChartBuilder::on(&root)
            .caption(title, ("sans-serif", 20))
            .margin(8)
            .x_label_area_size(36)
            .y_label_area_size(64)
            .build_cartesian_2d(x, y)
            .map_err(|e| fail(&e))?;
        plot.configure_mesh()
            .x_desc("step")
            .x_label_formatter(&|step| format!("{step:.0}"))
            .light_line_style(WHITE)
            .draw()
            .map_err(|e| fail(&e))?;
        for (points, color) in lines {
            plot.draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2))).map_err(|e| fail(&e))?;
            if points.len() <= 30 {
                let dots = points.iter().map(|point| Circle::new(*point, 3, color.filled()));
                plot.draw_series(dots).map_err(|e| fail(&e))?;
            }
        }
        root.present().map_err(|e| fail(&e))?;
    }
    Ok(svg)
}
