//! The four figures at the head of a run's page.

use std::fmt::Write;

use super::document::Tile;
use super::run_page::RunPage;
use super::series::{best, main_measure, series, smooth};
use super::units::{bytes, duration, figure, grouped, percent};

impl RunPage<'_> {
    pub(super) fn metric_tile(&self) -> Tile {
        let (id, part) = ("metric", None);
        let of_test = main_measure(self.metrics).and_then(|measure| {
            Some((measure, best(&series(self.metrics, "evaluation", measure.name), measure.goal)?))
        });
        let Some((measure, best)) = of_test else {
            let loss = smooth(&series(self.metrics, "step", "loss"));
            let value = loss.last().map_or("-".into(), |point| figure(point.1));
            return Tile { id, name: "training loss".into(), value, note: "not evaluated yet".into(), part };
        };
        let note = format!("at step {}; last {}", grouped(best.step as u64), figure(best.last));
        Tile { id, name: format!("best {}", measure.title), value: figure(best.value), note, part }
    }

    pub(super) fn time_tile(&self) -> Tile {
        let step = self.metrics.iter().filter_map(|line| line["step"].as_u64()).max().unwrap_or(0);
        let speed = self.number("samples_per_second").filter(|speed| *speed > 0.0);
        let mut note = match self.total_steps {
            Some(total) => format!("step {} of {}", grouped(step), grouped(total)),
            None => format!("step {}", grouped(step)),
        };
        if let Some(speed) = speed {
            let _ = write!(note, "; {} samples/s", grouped(speed.round() as u64));
        }
        let value = self.seconds.map_or("-".into(), duration);
        let part = self.total_steps.filter(|total| step < *total).map(|total| step as f64 / total.max(1) as f64);
        Tile { id: "time", name: "time".into(), value, note, part }
    }

    pub(super) fn memory_tile(&self) -> Tile {
        let peak = self.results["peak_bytes"].as_u64();
        let predicted = self.results["predicted_peak_bytes"].as_u64();
        let mut note = match (self.budget, peak) {
            (Some(budget), Some(peak)) => {
                format!("{} of the {} allowed", percent(peak as f64 / budget.max(1) as f64), bytes(budget))
            }
            (Some(budget), None) => format!("{} allowed", bytes(budget)),
            (None, _) => "no budget".to_owned(),
        };
        if let Some(predicted) = predicted {
            let _ = write!(note, "; predicted {}", bytes(predicted));
        }
        let part = self.budget.zip(peak).map(|(budget, peak)| peak as f64 / budget.max(1) as f64);
        let value = peak.map_or("not measured".into(), bytes);
        Tile { id: "memory", name: "peak memory of a step".into(), value, note, part }
    }

    pub(super) fn data_tile(&self) -> Tile {
        let waiting = self.number("waiting_for_data");
        let note = match (waiting, self.stages().into_iter().max_by(|a, b| a.1.total_cmp(&b.1))) {
            (Some(waiting), Some((stage, _))) if waiting > 0.1 => format!("the loader is the limit, mostly {stage}"),
            (Some(_), _) => "the loader keeps up".to_owned(),
            (None, _) => String::new(),
        };
        let value = waiting.map_or("-".into(), percent);
        Tile { id: "data", name: "wait for data".into(), value, note, part: None }
    }
}
