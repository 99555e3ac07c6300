//! Actions, and the actions of all stages with their times.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::units::duration;

/// An action of a stage on one micro-batch. Micro-batches are counted from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Action {
    /// The forward pass of the stage's blocks.
    Forward(usize),
    /// Their backward pass.
    Backward(usize),
}

impl Action {
    /// The micro-batch.
    pub fn micro_batch(self) -> usize {
        match self {
            Self::Forward(micro_batch) | Self::Backward(micro_batch) => micro_batch,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forward(micro_batch) => write!(f, "forward {micro_batch}"),
            Self::Backward(micro_batch) => write!(f, "backward {micro_batch}"),
        }
    }
}

/// One action of one stage. Times are seconds from an origin that all stages share.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// The stage.
    pub stage: usize,
    /// The action.
    pub action: Action,
    /// The time at which it began.
    pub begin: f64,
    /// The time at which it ended.
    pub end: f64,
}

/// The actions of all stages in one batch, simulated or measured.
///
/// As text it is a chart with one row for each stage, at most 80 columns wide:
///
/// ```
/// use kiln_parallel::{Schedule, StageCost, simulate};
///
/// let cost = StageCost { forward: 1.0, backward: 2.0, transfer: 0.0 };
/// let timeline = simulate(Schedule::OneForwardOneBackward, 4, &[cost; 3])?;
/// assert_eq!(timeline.to_string(), "\
/// stage 0 |000111222............aaaaaa333bbbbbb...cccccc...dddddd|
/// stage 1 |...000111......aaaaaa222bbbbbb333cccccc...dddddd......|
/// stage 2 |......000aaaaaa111bbbbbb222cccccc333dddddd............|
/// digit: forward, letter: backward, dot: idle; 18.0 s, bubble 33.3 %
/// ");
/// # Ok::<(), kiln_parallel::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// The number of stages.
    pub stages: usize,
    /// The actions. Those of each stage are in the order in which it did them.
    pub work: Vec<Work>,
}

impl Timeline {
    /// Seconds from the begin of the first action to the end of the last. 0 without work.
    pub fn seconds(&self) -> f64 {
        self.work.iter().map(|work| work.end).reduce(f64::max).unwrap_or(0.0) - self.origin()
    }

    /// Seconds in which `stage` worked.
    pub fn busy(&self, stage: usize) -> f64 {
        self.of(stage).map(|work| work.end - work.begin).sum()
    }

    /// The share of time in which stages were idle: 1 minus the mean of `busy / seconds` over all stages. 0 without work.
    ///
    /// Narayanan et al. 2021 divide the idle time by the ideal time instead: a bubble of `b` here is `b / (1 - b)` there.
    pub fn bubble(&self) -> f64 {
        let whole = self.stages as f64 * self.seconds();
        let busy: f64 = self.work.iter().map(|work| work.end - work.begin).sum();
        if whole > 0.0 { (whole - busy) / whole } else { 0.0 }
    }

    /// The most micro-batches whose activations `stage` held at once: their forward pass had begun, and their backward pass had not ended.
    pub fn most_held(&self, stage: usize) -> usize {
        let (mut held, mut most) = (0usize, 0);
        for work in self.of(stage) {
            match work.action {
                Action::Forward(_) => held += 1,
                Action::Backward(_) => held = held.saturating_sub(1),
            }
            most = most.max(held);
        }
        most
    }

    fn of(&self, stage: usize) -> impl Iterator<Item = &Work> {
        self.work.iter().filter(move |work| work.stage == stage)
    }

    fn origin(&self) -> f64 {
        self.work.iter().map(|work| work.begin).reduce(f64::min).unwrap_or(0.0)
    }

    /// The number of columns of the chart: a multiple of the time in units of the shortest action if `widest` allows it, so that equal
    /// actions are equally wide.
    fn columns(&self, widest: usize) -> usize {
        let lengths = self.work.iter().map(|work| work.end - work.begin).filter(|length| *length > 0.0);
        let units = lengths.reduce(f64::min).map_or(0.0, |shortest| (self.seconds() / shortest).round());
        if units < 1.0 || units > widest as f64 { widest } else { widest / units as usize * units as usize }
    }

    /// One row of the chart. A column shows the action that runs at its middle.
    fn row(&self, stage: usize, columns: usize) -> String {
        let (origin, scale) = (self.origin(), columns as f64 / self.seconds().max(f64::MIN_POSITIVE));
        // The first column whose middle is not before `time`.
        let column = |time: f64| (((time - origin) * scale - 0.5).ceil().max(0.0) as usize).min(columns);
        let mut row = vec![b'.'; columns];
        for work in self.of(stage) {
            let first = if matches!(work.action, Action::Forward(_)) { b'0' } else { b'a' };
            let (begin, end) = (column(work.begin), column(work.end));
            row[begin..end.max(begin)].fill(first + (work.action.micro_batch() % 10) as u8);
        }
        row.into_iter().map(char::from).collect()
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.stages.saturating_sub(1).to_string().len();
        let columns = self.columns(80 - "stage  ||".len() - digits);
        for stage in 0..self.stages {
            writeln!(f, "stage {stage:<digits$} |{}|", self.row(stage, columns))?;
        }
        let (time, bubble) = (duration(self.seconds()), 100.0 * self.bubble());
        writeln!(f, "digit: forward, letter: backward, dot: idle; {time}, bubble {bubble:.1} %")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(stage: usize, action: Action, begin: f64, end: f64) -> Work {
        Work { stage, action, begin, end }
    }

    /// Two stages, two micro-batches, measured by a clock that does not start at zero.
    fn measured() -> Timeline {
        use Action::{Backward, Forward};
        let work = vec![
            work(0, Forward(0), 10.0, 11.0),
            work(0, Forward(1), 11.0, 12.0),
            work(1, Forward(0), 11.5, 12.0),
            work(1, Backward(0), 12.0, 13.0),
            work(1, Forward(1), 13.0, 13.5),
            work(0, Backward(0), 13.5, 15.5),
            work(1, Backward(1), 13.5, 14.5),
            work(0, Backward(1), 15.5, 17.5),
        ];
        Timeline { stages: 2, work }
    }

    #[test]
    fn sums_are_those_of_the_work() {
        let timeline = measured();
        assert_eq!(timeline.seconds(), 7.5);
        assert_eq!((timeline.busy(0), timeline.busy(1), timeline.busy(2)), (6.0, 3.0, 0.0));
        assert_eq!(timeline.bubble(), 1.0 - 9.0 / 15.0);
        assert_eq!((timeline.most_held(0), timeline.most_held(1)), (2, 1));
    }

    #[test]
    fn the_chart_shows_each_action_at_its_time() {
        let rows: Vec<String> = measured().to_string().lines().map(str::to_owned).collect();
        assert_eq!(rows[0], "stage 0 |0000000011111111............aaaaaaaaaaaaaaaabbbbbbbbbbbbbbbb|");
        assert_eq!(rows[1], "stage 1 |............0000aaaaaaaa1111bbbbbbbb........................|");
        assert_eq!(rows[2], "digit: forward, letter: backward, dot: idle; 7.50 s, bubble 40.0 %");
        assert_eq!(rows.len(), 3);
    }

    #[test]
    fn charts_fit_into_80_columns_whatever_they_show() {
        let mut many = Timeline { stages: 120, work: vec![] };
        for i in 0..500 {
            let begin = 0.013 * i as f64;
            many.work.push(work(i % 120, Action::Forward(i), begin, begin + 0.001 + 0.01 * (i % 7) as f64));
        }
        for timeline in [measured(), many, Timeline::default(), Timeline { stages: 2, work: vec![] }] {
            let text = timeline.to_string();
            assert_eq!(text.lines().count(), timeline.stages + 1);
            assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        }
    }

    #[test]
    fn nothing_takes_no_time() {
        let nothing = Timeline { stages: 3, work: vec![] };
        assert_eq!((nothing.seconds(), nothing.bubble(), nothing.most_held(1)), (0.0, 0.0, 0));
    }

    #[test]
    fn timelines_are_written_and_read() {
        let text = serde_json::to_string(&measured()).unwrap();
        assert_eq!(serde_json::from_str::<Timeline>(&text).unwrap(), measured());
    }
}
