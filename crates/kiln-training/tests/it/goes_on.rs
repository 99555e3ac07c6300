//! Runs that continue with another length or other sizes, and runs that start from another run's state.

use kiln_data::TrainTest;
use kiln_training::{Checkpoints, Error, Event, Finish, OptimizerConfig, Schedule, ScheduleConfig, Trainer, Warmup};

use crate::support::{Ids, Net, Settings, Snapshot, batch, beside, builder, device, noted, settings, temporary, turn};

fn data() -> TrainTest<Vec<Vec<usize>>> {
    TrainTest { train: (0..8).map(|step| batch(step, 8)).collect(), test: vec![batch(0, 8)] }
}

struct Given {
    optimizer: OptimizerConfig,
    schedule: Schedule,
    steps: u64,
    micro_batch: Option<usize>,
}

fn given(schedule: impl Into<Schedule>, steps: u64) -> Given {
    Given { optimizer: OptimizerConfig::adamw(), schedule: schedule.into(), steps, micro_batch: None }
}

/// A trainer that takes over a run of another length where `other` is set.
fn trainer(net: &Net, Given { optimizer, schedule, steps, micro_batch }: Given, other: bool) -> Trainer<Ids<Net>> {
    use burn::module::Module;
    let settings = Settings { schedule, steps, micro_batch, ..settings(optimizer) };
    let builder = builder(Ids::net(), |_| net.valid().train(), &settings);
    let builder = if other {
        builder
            .with(|settings| settings.checkpoints.other_length = true)
            .with(|settings| settings.checkpoints.fresh_sizes = true)
    } else {
        builder
    };
    builder.build(&device(), &batch(0, 8)).unwrap()
}

/// Fits, and returns the rate of each step.
fn fit(trainer: &mut Trainer<Ids<Net>>, checkpoints: &Checkpoints) -> Vec<f64> {
    let rate = |event: &Event| if let Event::Step(report) = event { Some(report.learning_rate) } else { None };
    let rates = noted(trainer, rate, |_| false);
    trainer.set_checkpoints(checkpoints.clone());
    assert_eq!(trainer.fit(&data()).unwrap(), Finish::Complete);
    rates.take()
}

#[test]
fn a_finished_run_goes_on_at_the_rates_of_the_longer_run() {
    let _turn = turn();
    let net = Net::new(&[6, 12], true, 0.2);
    let folder = temporary();
    let checkpoints = |name: &str| Checkpoints::new(folder.path().join(name), 3).unwrap();

    // At a constant rate it is the longer run, bit for bit.
    let whole = checkpoints("whole");
    let mut expected = trainer(&net, given(0.01, 21), false);
    fit(&mut expected, &whole);
    let parts = checkpoints("parts");
    for (steps, other) in [(5, false), (13, true), (21, true)] {
        let mut part = trainer(&net, given(0.01, steps), other);
        part.set_checkpoints(parts.clone());
        part.resume().unwrap();
        fit(&mut part, &parts);
        assert_eq!(part.state().step, steps);
        if steps == 21 {
            Snapshot::of(&part).assert_same(&Snapshot::of(&expected), "in three parts");
        }
    }

    // Else the rates from then on are those that the longer run has at these steps, warm-up included.
    let cosine = |peak| ScheduleConfig::cosine(peak).with_warmup(Warmup::Fraction(0.25)).with_floor(0.1);
    let rates = checkpoints("rates");
    fit(&mut trainer(&net, given(cosine(0.02), 10), false), &rates);
    let mut longer = trainer(&net, given(cosine(0.004), 60), true);
    longer.set_checkpoints(rates.clone());
    longer.resume().unwrap();
    assert_eq!(longer.learning_rate().unwrap(), cosine(0.004).rate(10, 60));
    let seen = fit(&mut longer, &rates);
    assert_eq!(seen, (10..60).map(|step| cosine(0.004).rate(step, 60)).collect::<Vec<_>>());
    assert!(seen[0] < seen[4], "it warms up again: {seen:?}");

    // Without the setting, another length is refused, and other data is always refused.
    let mut refused = trainer(&net, given(0.01, 30), false);
    refused.set_checkpoints(parts.clone());
    let error = refused.resume().unwrap_err().to_string();
    assert!(error.contains("and this one has 30"), "{error}");
    let mut other = trainer(&net, given(0.01, 30), true);
    other.set_checkpoints(parts);
    other.resume().unwrap();
    let more: Vec<Vec<usize>> = (0..9).map(|step| batch(step, 8)).collect();
    assert!(matches!(other.fit(&more), Err(Error::OtherData { was: 64, now: 72 })));
}

#[test]
fn another_micro_batch_is_used_from_then_on() {
    let _turn = beside();
    let net = Net::new(&[6, 12], false, 0.0);
    let folder = temporary();
    let checkpoints = Checkpoints::new(folder.path(), 3).unwrap();
    fit(&mut trainer(&net, Given { micro_batch: Some(8), ..given(0.01, 4) }, false), &checkpoints);
    let mut resumed = trainer(&net, Given { micro_batch: Some(2), ..given(0.01, 8) }, true);
    resumed.set_checkpoints(checkpoints);
    resumed.resume().unwrap();
    assert_eq!(resumed.step(&batch(4, 8)).unwrap().micro_batches, 4);
}

#[test]
fn a_new_run_starts_from_the_state_of_another() {
    let _turn = beside();
    let net = Net::new(&[6, 12], true, 0.0);
    let folder = temporary();
    let checkpoints = Checkpoints::new(folder.path(), 1).unwrap();
    let mut first = trainer(&net, given(0.01, 8), false);
    fit(&mut first, &checkpoints);
    let newest = checkpoints.newest().unwrap().unwrap();

    let mut second = trainer(&net, given(0.01, 3), false);
    second.start_from(&newest).unwrap();
    assert_eq!((second.state().step, second.state().epoch, second.progress().best), (0, 0, None));
    // Its first step is the ninth one of the other run, which has the same batch.
    let both = [&mut first, &mut second].map(|trainer| trainer.step(&batch(0, 8)).unwrap());
    assert_eq!(both[0].loss.to_bits(), both[1].loss.to_bits());
    let weights = |trainer: &Trainer<Ids<Net>>| {
        let saved = trainer.save_to(&Checkpoints::new(folder.path().join("copy"), 1).unwrap()).unwrap();
        ["model.bpk", "optimizer.bpk"].map(|file| {
            let tensors = burn_pack::Reader::from_file(saved.join(file)).unwrap().into_tensors().unwrap();
            let bytes = tensors.into_iter().map(|tensor| tensor.into_parts().unwrap().4.to_vec());
            bytes.collect::<std::collections::BTreeSet<Vec<u8>>>()
        })
    };
    assert!(weights(&first) == weights(&second));

    let other = Given { optimizer: OptimizerConfig::sgd(), ..given(0.01, 3) };
    let error = trainer(&net, other, false).start_from(&newest).unwrap_err().to_string();
    assert!(error.contains("its optimizer is AdamW") && error.contains("Sgd"), "{error}");
    let wider = Net::new(&[6, 16], true, 0.0);
    let error = trainer(&wider, given(0.01, 3), false).start_from(&newest).unwrap_err().to_string();
    assert!(error.contains("not a checkpoint of this model"), "{error}");
}
