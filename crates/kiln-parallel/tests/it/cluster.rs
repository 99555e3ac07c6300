//! The calculator for clusters, against published figures: those in `docs/clusters.md`.

use kiln_parallel::Schedule;
use kiln_parallel::cluster::{Card, Cluster, Inside, Layout, Link, Model, best_layouts, estimate};
use proptest::prelude::*;

const GIGA: f64 = 1e9;

fn close(found: f64, published: f64, within: f64) {
    assert!((found / published - 1.0).abs() <= within, "{found} instead of {published}");
}

/// GPT with the vocabulary and context of Narayanan et al. 2021.
fn gpt(layers: usize, width: usize, batch: usize) -> Model {
    Model::mixed(layers, width, 2048, 51_200, batch)
}

/// Hosts of 8 cards with 80 GB.
fn hosts(hosts: usize) -> Cluster {
    Cluster {
        hosts,
        cards_per_host: 8,
        card: Card { flops: 400e12, memory: 80_000_000_000 },
        inside: Link { bytes_per_second: 300.0 * GIGA, latency: 1e-5 },
        between: Link { bytes_per_second: 200.0 * GIGA, latency: 2e-5 },
    }
}

/// Table 1 of Narayanan et al. 2021: parameters in billions, width, layers.
#[test]
fn parameters_are_those_of_the_published_models() {
    let table = [
        (1.7, 2304, 24),
        (3.6, 3072, 30),
        (7.5, 4096, 36),
        (18.4, 6144, 40),
        (39.1, 8192, 48),
        (76.1, 10240, 60),
        (145.6, 12288, 80),
        (310.1, 16384, 96),
        (529.6, 20480, 105),
        (1008.0, 25600, 128),
    ];
    for (billions, width, layers) in table {
        // The table has one digit after the point.
        close(gpt(layers, width, 1).parameters(), billions * GIGA, 0.051 / billions);
    }
}

/// Narayanan et al. 2021, 5.1: 300 billion tokens take 34 days on 1,024 cards at 140 teraFLOP/s.
#[test]
fn operations_give_the_published_days_of_gpt_3() {
    let model = gpt(96, 12288, 1536);
    let steps = 300.0 * GIGA / (1536.0 * 2048.0);
    let days = steps * model.flops(true) / (1024.0 * 140e12) / 86_400.0;
    // The paper leaves out the smaller terms of its equation 3 here.
    close(days, 34.0, 0.025);
}

/// Rajbhandari et al. 2020, figure 1: 7.5 billion parameters take 120 GB, and 31.4 GB with optimizer state sharded over 64 replicas.
#[test]
fn memory_is_that_of_zero() {
    let model = gpt(36, 4096, 64);
    let scale = 7.5 * GIGA / model.parameters();
    let plain = Layout { gradient_bytes: 2, ..Layout::new(1, 64, 1) };
    let states = |layout: &Layout| {
        let memory = estimate(&model, &hosts(8), layout).unwrap().memory;
        (memory.total() - memory.activations) * scale / GIGA
    };
    close(states(&plain), 120.0, 1e-9);
    close(states(&Layout { shard_optimizer: true, ..plain }), 31.4, 0.001);
}

/// Cards of a tensor-parallel group count as one: 8 of 80 GB, with 8 network cards of 25 GB/s.
fn tensor_parallel(hosts: usize, flops: f64) -> Cluster {
    Cluster {
        hosts,
        cards_per_host: 1,
        card: Card { flops: 8.0 * flops, memory: 8 * 80_000_000_000 },
        inside: Link { bytes_per_second: 300.0 * GIGA, latency: 1e-5 },
        between: Link { bytes_per_second: 200.0 * GIGA, latency: 2e-5 },
    }
}

/// TeraFLOP/s of one of the 8 cards with `replicas` replicas.
fn reached(model: &Model, stages: usize, replicas: usize, flops: f64) -> f64 {
    let layout = Layout { recompute: true, ..Layout::new(stages, replicas, model.batch / replicas) };
    let found = estimate(model, &tensor_parallel(stages * replicas, flops), &layout).expect("a published layout");
    assert!(found.fits, "the published run fitted: {found:?}");
    found.flops / 8.0 / 1e12
}

/// Table 2 of Narayanan et al. 2021: the same batch on two and four times the cards. The speed of a card is taken from the first row, the
/// others are predicted.
#[test]
fn strong_scaling_is_that_of_the_published_runs() {
    let table = [
        (gpt(96, 12288, 1536), 12, [(4, 153.0), (8, 149.0), (16, 141.0)]),
        (gpt(105, 20480, 2240), 35, [(2, 171.0), (4, 167.0), (8, 159.0)]),
    ];
    for (model, stages, rows) in table {
        let (replicas, published) = rows[0];
        // What remains of a card's speed changes little with the speed, so that few rounds suffice.
        let mut speed = published * 1e12;
        for _ in 0..4 {
            speed *= published / reached(&model, stages, replicas, speed);
        }
        close(reached(&model, stages, replicas, speed), published, 1e-3);
        for (replicas, published) in &rows[1..] {
            let found = reached(&model, stages, *replicas, speed);
            close(found, *published, 0.02);
        }
    }
}

/// Patarasuk and Yuan 2009: each card sends `2 (n - 1) / n` of the bytes.
#[test]
fn sums_send_the_published_share_of_the_bytes() {
    let model = gpt(4, 1024, 64);
    let bytes = 4.0 * model.parameters();
    let in_one_host = estimate(&model, &hosts(1), &Layout::new(1, 8, 1)).unwrap().traffic;
    assert_eq!((in_one_host.inside, in_one_host.between), (bytes * 7.0 / 8.0 * 2.0, 0.0));
    let in_four = estimate(&model, &hosts(4), &Layout::new(1, 32, 1)).unwrap().traffic;
    assert_eq!((in_four.inside, in_four.between), (bytes * 7.0 / 8.0 * 2.0, bytes / 8.0 * 3.0 / 4.0 * 2.0));
    // Weights of 2 bytes are gathered instead of sums of 4.
    let sharded = Layout { shard_optimizer: true, ..Layout::new(1, 8, 1) };
    let sharded = estimate(&model, &hosts(1), &sharded).unwrap().traffic;
    assert_eq!(sharded.inside, bytes * 7.0 / 8.0 * 1.5);
}

#[test]
fn the_best_layouts_fit_use_all_cards_and_are_sorted() {
    let (model, cluster) = (gpt(36, 4096, 512), hosts(1));
    let found = best_layouts(&model, &cluster, Schedule::OneForwardOneBackward, 4).unwrap();
    assert!(found.len() > 10);
    for best in &found {
        assert!(best.fits && best.layout.stages * best.layout.replicas == 8);
        assert_eq!(*best, estimate(&model, &cluster, &best.layout).unwrap());
    }
    assert!(found.windows(2).all(|pair| pair[0].seconds <= pair[1].seconds));
    // One card cannot hold 18 bytes for each of the parameters.
    assert!(found.iter().all(|best| best.layout.shard_optimizer || best.layout.stages > 1));
    let large = gpt(128, 25600, 512);
    assert_eq!(best_layouts(&large, &cluster, Schedule::GPipe, 4).unwrap(), []);
}

#[test]
fn a_thousand_cards_train_a_model_that_none_of_them_holds() {
    let model = gpt(96, 12288, 2000);
    let found = best_layouts(&model, &hosts(125), Schedule::OneForwardOneBackward, 4).unwrap();
    let best = found.first().unwrap();
    assert!(best.layout.stages > 8 && best.layout.stages * best.layout.replicas == 1000, "{best:?}");
    // Not faster than all operations on all cards, and not twice as slow.
    let ideal = model.flops(best.layout.recompute) / (1000.0 * 400e12);
    assert!((ideal..2.0 * ideal).contains(&best.seconds), "{best:?}");
}

#[test]
fn numbers_that_cannot_be_are_errors() {
    let (model, layout) = (gpt(4, 64, 8), Layout::new(2, 4, 2));
    let message =
        |model: &Model, cluster: &Cluster, layout: &Layout| estimate(model, cluster, layout).unwrap_err().to_string();
    let none = Model { vocabulary: 0, ..model };
    assert_eq!(message(&none, &hosts(1), &layout), "vocabulary = 0: expected at least 1");
    assert!(message(&model, &hosts(0), &layout).starts_with("cards = 0 x 8"));
    let slow = Cluster { card: Card { flops: 0.0, memory: 1 }, ..hosts(1) };
    assert_eq!(message(&model, &slow, &layout), "flops = 0: expected finite and above 0");
    let late = Cluster { between: Link { bytes_per_second: 1.0, latency: f64::NAN }, ..hosts(1) };
    assert!(message(&model, &late, &layout).starts_with("between.latency = NaN"));
    assert!(message(&model, &hosts(1), &Layout::new(8, 1, 1)).starts_with("stages = 8 for 4 blocks"));
    assert!(message(&model, &hosts(1), &Layout::new(2, 8, 1)).starts_with("stages * replicas = 2 * 8 on 8 cards"));
    assert!(message(&model, &hosts(1), &Layout::new(1, 3, 1)).contains("expected a divisor of the batch"));
    assert!(best_layouts(&none, &hosts(1), Schedule::GPipe, 4).is_err());
}

fn layouts() -> impl Strategy<Value = Layout> {
    let schedule = prop_oneof![Just(Schedule::GPipe), Just(Schedule::OneForwardOneBackward)];
    let inside = prop_oneof![Just(Inside::Replicas), Just(Inside::Stages)];
    let counts = (1usize..6, 1usize..13, 1usize..5);
    (counts, schedule, inside, any::<bool>(), any::<bool>()).prop_map(
        |((p, d, m), schedule, inside, shard, recompute)| Layout {
            schedule,
            inside,
            shard_optimizer: shard,
            recompute,
            ..Layout::new(p, d, m)
        },
    )
}

proptest! {
    #[test]
    fn a_better_cluster_is_never_slower_and_no_step_is_faster_than_its_operations(
        layout in layouts(), better in 1.0..4.0f64,
    ) {
        let model = gpt(12, 1024, 2 * layout.replicas * layout.micro_batches);
        let cluster = hosts(8);
        let found = estimate(&model, &cluster, &layout).unwrap();
        let cards = (layout.stages * layout.replicas) as f64;
        prop_assert!(found.seconds * cards * cluster.card.flops >= 0.999_999 * model.flops(layout.recompute));
        prop_assert!(found.reduction >= 0.0 && (0.0..1.0).contains(&found.bubble));
        let link =
            |link: Link| Link { bytes_per_second: link.bytes_per_second * better, latency: link.latency / better };
        let linked = Cluster { inside: link(cluster.inside), between: link(cluster.between), ..cluster };
        prop_assert!(estimate(&model, &linked, &layout).unwrap().seconds <= found.seconds);
        let fast = Cluster { card: Card { flops: cluster.card.flops * better, ..cluster.card }, ..cluster };
        prop_assert!(estimate(&model, &fast, &layout).unwrap().seconds <= found.seconds);
    }

    #[test]
    fn each_way_to_save_memory_saves_memory(layout in layouts()) {
        let model = gpt(12, 1024, 2 * layout.replicas * layout.micro_batches);
        let found = |layout: Layout| estimate(&model, &hosts(8), &layout).unwrap();
        let plain = found(Layout { shard_optimizer: false, recompute: false, ..layout });
        let sharded = found(Layout { shard_optimizer: true, recompute: false, ..layout });
        prop_assert!(sharded.memory.total() <= plain.memory.total());
        // Weights of 2 bytes are gathered instead of sums of 4.
        prop_assert!(sharded.seconds <= plain.seconds);
        let recomputed = found(Layout { shard_optimizer: false, recompute: true, ..layout });
        prop_assert!(recomputed.memory.total() <= plain.memory.total());
        prop_assert!(recomputed.seconds >= plain.seconds);
        let gpipe = found(Layout { schedule: Schedule::GPipe, ..layout });
        let eager = found(Layout { schedule: Schedule::OneForwardOneBackward, ..layout });
        prop_assert!(eager.memory.total() <= gpipe.memory.total());
    }
}
