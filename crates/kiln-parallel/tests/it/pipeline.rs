//! Losses and gradients of stages are those of a plain loop, bit for bit.

use kiln_parallel::{Pipeline, Schedule, Way};
use proptest::prelude::*;

use crate::model::{Chain, in_stages, inputs, plainly};

const SCHEDULES: [Schedule; 3] = [Schedule::Sequential, Schedule::GPipe, Schedule::OneForwardOneBackward];

#[test]
fn every_schedule_and_way_has_the_bits_of_a_plain_loop() {
    for stages in 1..=4 {
        let model = Chain::new(5, false);
        let cuts: Vec<usize> = (1..stages).collect();
        for micro_batches in 1..=6 {
            let models = vec![model.clone(); micro_batches];
            let inputs = inputs(micro_batches);
            let expected = plainly(&models, &inputs);
            for schedule in SCHEDULES {
                for way in [Way::Threads, Way::InTurns] {
                    let pipeline = Pipeline::new(schedule, stages, micro_batches).unwrap().way(way);
                    let (found, ran) = in_stages(&pipeline, &models, &inputs, &cuts).unwrap();
                    assert_eq!(found, expected, "{schedule}, {stages} stages, {micro_batches} micro-batches, {way:?}");
                    assert_eq!(ran.timeline.work.len(), 2 * stages * micro_batches);
                }
            }
        }
    }
}
