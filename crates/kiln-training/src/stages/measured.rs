//! The memory of each stage, measured action by action on a heap that all stages share.

use std::sync::{Mutex, PoisonError};

use kiln_memory::{Meter, Span};
use kiln_parallel::Action;
use serde::Serialize;

/// The memory of one stage in a batch, as measured while the stages worked in turns.
///
/// The scratch memory of threads is not included: a forward pass on the CPU keeps as much as the second-level cache is large.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StageMemory {
    /// Bytes of its parameters and optimizer state, which exist before the batch. They are counted and not measured, because on one heap
    /// their stage cannot be seen.
    pub resident_bytes: u64,
    /// The most bytes at once during forward and backward passes, resident bytes included. In the first stage also samples, the data loader and
    /// what burn keeps for optimizers.
    pub peak_bytes: u64,
    /// The most bytes at once that micro-batches kept between their forward and their backward pass.
    pub activation_bytes: u64,
}

/// The known sizes of a stage before it is measured, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StageSizes {
    pub(crate) resident: u64,
    /// The input of a micro-batch, which the previous stage has made. Its gradient has the same size.
    pub(crate) input: u64,
    /// Gradients of parameters that this stage shares with the first stage, which takes them over.
    pub(crate) shared: u64,
    /// Scratch memory of the thread of a forward pass that begins in this stage. It is released where the last stage's part ends.
    pub(crate) scratch: u64,
}

/// Attributes the growth of a heap to the stage whose action runs.
pub(crate) struct StageMeter {
    meter: Meter,
    sizes: Vec<StageSizes>,
    ledger: Mutex<Ledger>,
}

/// The accounts of all stages.
#[derive(Default)]
struct Ledger {
    stages: Vec<Account>,
    /// The action that runs, the bytes that were live at its beginning, and the span of it.
    current: Option<(usize, Action, u64, Span)>,
    done: Option<Vec<StageMemory>>,
}

/// The bytes of a stage beyond its resident bytes. An account can be below zero for a moment.
#[derive(Clone, Debug, Default)]
struct Account {
    own: i64,
    peak: i64,
    /// The bytes that each micro-batch keeps while it waits for its backward pass.
    kept: Vec<(usize, i64)>,
    most_kept: i64,
}

impl StageMeter {
    pub(crate) fn new(meter: Meter, sizes: Vec<StageSizes>) -> Self {
        Self { meter, sizes, ledger: Mutex::default() }
    }

    /// Begins a batch. What is live beside the resident bytes of all stages counts in the first one: samples, those of the data loader, and what
    /// burn keeps for optimizers. A shared parameter is resident in two stages, and once on the heap.
    pub(crate) fn begin(&self) {
        let resident: u64 = self.sizes.iter().map(|sizes| sizes.resident.saturating_sub(sizes.shared)).sum();
        let beside = self.meter.live_bytes() as i64 - resident as i64;
        let mut stages = vec![Account::default(); self.sizes.len()];
        if let Some(first) = stages.first_mut() {
            (first.own, first.peak) = (beside, beside);
        }
        *self.ledger() = Ledger { stages, current: None, done: None };
    }

    /// Begins an action, and ends the one before.
    pub(crate) fn enter(&self, stage: usize, action: Action) {
        let mut ledger = self.ledger();
        self.close(&mut ledger);
        ledger.current = Some((stage, action, self.meter.live_bytes(), self.meter.span()));
    }

    /// Ends a batch.
    pub(crate) fn end(&self) {
        let mut ledger = self.ledger();
        self.close(&mut ledger);
        let memory = |(account, sizes): (&Account, &StageSizes)| StageMemory {
            resident_bytes: sizes.resident,
            peak_bytes: sizes.resident.saturating_add_signed(account.peak),
            activation_bytes: u64::try_from(account.most_kept).unwrap_or(0),
        };
        ledger.done = Some(ledger.stages.iter().zip(&self.sizes).map(memory).collect());
    }

    /// The measurement of the last complete batch.
    pub(crate) fn memory(&self) -> Option<Vec<StageMemory>> {
        self.ledger().done.clone()
    }

    fn close(&self, ledger: &mut Ledger) {
        let Some((stage, action, before, span)) = ledger.current.take() else { return };
        let (peak, after) = (span.peak_bytes(), self.meter.live_bytes());
        drop(span);
        record(&mut ledger.stages, &self.sizes, (stage, action), [before, peak, after]);
    }

    fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Records an action: the live bytes before it, at their peak, and after it.
///
/// One stage makes a tensor that is sent, and another drops it. The tensor counts in the stage that holds it. The input of a stage counts
/// there, from the end of the previous stage's forward pass. Its gradient counts in the previous stage, from the end of the backward
/// pass.
fn record(accounts: &mut [Account], sizes: &[StageSizes], (stage, action): (usize, Action), bytes: [u64; 3]) {
    let [before, mut peak, mut after] = bytes.map(|bytes| bytes as i64);
    if let Action::Forward(_) = action {
        let (begins, ends) = (sizes[stage].scratch as i64, stage + 1 == sizes.len());
        let released = if ends { sizes[0].scratch as i64 } else { 0 };
        (peak, after) = (peak - begins, after - begins + released);
    }
    let account = &mut accounts[stage];
    account.peak = account.peak.max(account.own + peak - before);
    account.own += after - before;
    let micro_batch = action.micro_batch();
    let mut send = |from: usize, to: usize, bytes: u64| {
        accounts[from].own -= bytes as i64;
        accounts[to].own += bytes as i64;
        accounts[to].peak = accounts[to].peak.max(accounts[to].own);
    };
    match action {
        Action::Forward(_) => {
            let sent = sizes.get(stage + 1).map_or(0, |next| next.input);
            if sent > 0 {
                send(stage, stage + 1, sent);
            }
            let kept = after - before - sent as i64 + sizes[stage].input as i64;
            let account = &mut accounts[stage];
            account.kept.push((micro_batch, kept));
            account.most_kept = account.most_kept.max(account.kept.iter().map(|(_, kept)| kept).sum());
        }
        Action::Backward(_) => {
            if stage > 0 {
                send(stage, stage - 1, sizes[stage].input);
            } else {
                // The gradients that later stages left to the first stage, which has added them.
                (1..sizes.len()).for_each(|from| send(from, 0, sizes[from].shared));
            }
            accounts[stage].kept.retain(|(waiting, _)| *waiting != micro_batch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two stages that keep 100 and 60 bytes of a micro-batch, of which the second one's input is 10, and need 7 more while they run.
    #[test]
    fn what_a_stage_sends_counts_where_it_is_held() {
        let sizes =
            [StageSizes { resident: 1000, ..StageSizes::default() }, StageSizes { input: 10, ..StageSizes::default() }];
        let mut accounts = vec![Account::default(); 2];
        let mut live = 0u64;
        let mut act = |stage: usize, action, more: i64, accounts: &mut Vec<Account>| {
            let after = live.saturating_add_signed(more);
            record(accounts, &sizes, (stage, action), [live, live.max(after) + 7, after]);
            live = after;
        };
        for micro_batch in 0..2 {
            act(0, Action::Forward(micro_batch), 110, &mut accounts); // what it keeps, and what it sends
        }
        assert_eq!((accounts[0].own, accounts[1].own), (200, 20));
        for micro_batch in 0..2 {
            act(1, Action::Forward(micro_batch), 50, &mut accounts);
            act(1, Action::Backward(micro_batch), -50, &mut accounts); // drops its input, and makes the gradient of it
            act(0, Action::Backward(micro_batch), -110, &mut accounts);
        }
        assert_eq!((accounts[0].own, accounts[1].own), (0, 0));
        assert_eq!((accounts[0].most_kept, accounts[1].most_kept), (200, 60));
        // The second forward pass: the bytes kept of the first one, those that it makes, and those that it needs while it runs.
        assert_eq!((accounts[0].peak, accounts[1].peak), (100 + 110 + 7, 20 + 50 + 7));
    }

    #[test]
    fn gradients_of_shared_parameters_move_to_the_first_stage() {
        let sizes = [StageSizes::default(), StageSizes { shared: 30, ..StageSizes::default() }];
        let mut accounts = vec![Account::default(); 2];
        for (stage, action, bytes) in [
            (0, Action::Forward(0), [0, 0, 0]),
            (1, Action::Forward(0), [0, 0, 0]),
            (1, Action::Backward(0), [0, 30, 30]),
            (0, Action::Backward(0), [30, 60, 30]), // the sum of both
        ] {
            record(&mut accounts, &sizes, (stage, action), bytes);
        }
        assert_eq!((accounts[0].own, accounts[1].own), (30, 0));
    }

    #[test]
    fn scratch_memory_of_forward_passes_belongs_to_no_stage() {
        let sizes = [StageSizes { scratch: 50, ..StageSizes::default() }, StageSizes::default()];
        let mut accounts = vec![Account::default(); 2];
        record(&mut accounts, &sizes, (0, Action::Forward(0)), [0, 60, 60]);
        record(&mut accounts, &sizes, (1, Action::Forward(0)), [60, 80, 30]);
        assert_eq!((accounts[0].own, accounts[0].peak, accounts[0].most_kept), (10, 10, 10));
        assert_eq!((accounts[1].own, accounts[1].peak, accounts[1].most_kept), (20, 20, 20));
    }
}
