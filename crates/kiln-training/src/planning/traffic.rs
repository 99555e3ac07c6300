//! What a step moves to a store and from it.

/// Bytes of what a step with a store has.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    pub(super) micro_batches: u64,
    /// The inputs of the streamed segments, for one micro-batch.
    pub(super) inputs: u64,
    /// The optimizer's state.
    pub(super) state: u64,
    /// The values and gradients of streamed parameters.
    pub(super) streamed: [u64; 2],
    /// The values and gradients of parameters that are in memory as well.
    pub(super) resident: [u64; 2],
}

impl Traffic {
    pub(super) fn add_parameter(&mut self, values: u64, gradient: u64, is_streamed: bool) {
        let of = if is_streamed { &mut self.streamed } else { &mut self.resident };
        of[0] += values;
        of[1] += gradient;
    }

    /// Bytes read and written. Of each micro-batch, a streamed value is read for both passes, its gradient is written, and read if there is a
    /// sum, and the input of a segment is written and read. The gradient of a parameter in memory goes to the store once, and its new value
    /// comes back. The norm reads all gradients. The update reads value, gradient and state, and writes value and state.
    pub(super) fn bytes(&self) -> u64 {
        let ([values, gradients], [own_values, own_gradients]) = (self.streamed, self.resident);
        let passes = self.micro_batches * (2 * values + 2 * gradients + 2 * self.inputs) - gradients;
        let update = 2 * (values + own_values) + 2 * (gradients + own_gradients) + 2 * self.state;
        passes + own_gradients + own_values + update
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_for_each_parameter_with_adamw() {
        let of = |values, state, micro_batches| {
            let mut traffic = Traffic { micro_batches, state, ..Traffic::default() };
            traffic.add_parameter(values, 4, true);
            traffic.bytes()
        };
        assert_eq!([of(4, 8, 1), of(4, 8, 2)], [44, 60]); // f32
        assert_eq!([of(4, 2, 1), of(2, 2, 1)], [32, 24]); // state in 8 bits, and values in bf16
    }
}
