//! How far a run has come.

/// How far a run has come.
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
    /// Its process ended without a word.
    Killed,
    /// It was written by a program that did not note this.
    Unknown,
}

impl State {
    /// In one word.
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
