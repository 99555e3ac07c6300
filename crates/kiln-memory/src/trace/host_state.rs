//! The step of a run whose optimizer state is in host memory.

use super::kept::Kept;
use super::passes::NONE;
use super::step_trace::{StepTrace, TraceRole};

impl StepTrace {
    /// The same step with optimizer state in host memory, for a device with memory of its own: the state of a parameter arrives before its
    /// update, and its next state leaves after it.
    #[must_use]
    pub fn with_state_on_host(&self) -> Self {
        let [.., update, end] = self.phases;
        let states = self.read_before(update);
        let [mut first, mut last, mut made] = [NONE; 3].map(|none| vec![none; self.tensors.len()]);
        let mut consumed = vec![false; self.tensors.len()];
        for index in update..end {
            for input in self.graph.inputs_at(index) {
                let tensor = input.tensor as usize;
                first[tensor] = first[tensor].min(index);
                last[tensor] = index;
                consumed[tensor] |= input.last;
            }
            self.graph.outputs_at(index).iter().for_each(|output| made[*output as usize] = index);
        }
        let read: Vec<usize> = (0..self.tensors.len()).filter(|tensor| states[*tensor] && first[*tensor] != NONE).collect();
        // What the update made and holds besides the parameters.
        let next = (0..self.tensors.len()).filter(|tensor| {
            made[*tensor] != NONE && !consumed[*tensor] && self.tensors[*tensor].role == TraceRole::Other
        });
        let leaves_at = |tensor: &usize| if last[*tensor] == NONE { made[*tensor] } else { last[*tensor] };
        let (mut arriving, mut leaving) = (vec![vec![]; end - update], vec![vec![]; end - update]);
        read.iter().for_each(|tensor| arriving[first[*tensor] - update].push(*tensor));
        next.for_each(|tensor| leaving[leaves_at(&tensor) - update].push(tensor as u32));

        let mut kept = Kept::of(self);
        let mut copy_of = vec![u32::MAX; self.tensors.len()];
        for index in 0..self.graph.operations.len() {
            kept.next();
            let at = index.checked_sub(update).filter(|_| index < end);
            if let Some(at) = at {
                for tensor in &arriving[at] {
                    copy_of[*tensor] = kept.trace.tensors.len() as u32;
                    kept.trace.tensors.push(self.tensors[*tensor]);
                }
                let copies: Vec<u32> = arriving[at].iter().map(|tensor| copy_of[*tensor]).collect();
                kept.add("Upload", &[], &copies);
            }
            kept.push(index);
            let Some(at) = at else { continue };
            let operation = kept.trace.graph.operations[index];
            for input in kept.trace.graph.inputs_mut(operation) {
                let tensor = input.tensor as usize;
                if copy_of[tensor] != u32::MAX {
                    (input.tensor, input.last) = (copy_of[tensor], last[tensor] == index);
                }
            }
            kept.add("Download", &leaving[at], &[]);
        }
        kept.finish()
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::optim::{AdamWConfig, SgdConfig};
    use burn::tensor::{Device, Tensor};

    use super::*;
    use crate::{BackendProfile, Category, Recorder, StepOptions, UpdateChunks, record_step};

    const WIDTH: usize = 64;

    fn trace(optimizer: &impl burn::optim::Optimizer) -> StepTrace {
        let build = |device: &Device| (0..8).map(|_| LinearConfig::new(WIDTH, WIDTH).init(device)).collect::<Vec<Linear>>();
        let forward = |model: &Vec<Linear>, recorder: &Recorder| {
            let x = Tensor::<2>::zeros([recorder.batch(), WIDTH], recorder.device());
            model.iter().fold(x, |x, layer| layer.forward(x)).square().mean()
        };
        let chunks = UpdateChunks { parts: 8, least: 1 };
        let options = StepOptions { update_chunks: Some(chunks), ..StepOptions::default() };
        record_step(build, forward, optimizer, options).unwrap()
    }

    #[test]
    fn state_is_there_during_its_update_only() {
        let trace = trace(&AdamWConfig::new().build());
        let profile = BackendProfile::cuda();
        let bytes = |trace: &StepTrace| {
            let prediction = trace.predict(4, &profile).unwrap();
            let state = |index: usize| prediction.breakdown_at(index).of(Category::OptimizerState);
            let last = prediction.operations.len() - 1;
            (prediction.peak_bytes, state(0), state(last), prediction.operations.iter().map(|op| op.seconds).sum::<f64>())
        };
        let (whole, offloaded) = (bytes(&trace), bytes(&trace.with_state_on_host()));
        let parameters = 8 * (WIDTH * WIDTH + WIDTH) as u64 * 4;
        assert!(whole.1 >= 2 * parameters, "{whole:?}");
        assert_eq!((offloaded.1, offloaded.2), (0, 0), "between the updates");
        assert!(offloaded.0 + parameters < whole.0, "{offloaded:?} {whole:?}");
        assert!(offloaded.3 > whole.3, "transfers take time");
    }

    #[test]
    fn an_optimizer_without_state_has_none_to_move() {
        let trace = trace(&SgdConfig::new().build());
        assert_eq!(trace.with_state_on_host(), trace);
    }
}
