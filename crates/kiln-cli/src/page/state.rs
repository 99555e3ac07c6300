//! The state of a run: working, finished, or ended in another way.

/// The state of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// A process is working on it.
    Running,
    /// All steps were taken.
    Finished,
    /// The user stopped it.
    Stopped,
    /// It ended with an error.
    Failed,
    /// Its process ended without noting a result.
    Killed,
    /// The program that wrote it did not note its state.
    Unknown,
}

impl State {
    /// The state in one word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Killed => "killed",
            Self::Unknown => "unknown",
        }
    }
}
