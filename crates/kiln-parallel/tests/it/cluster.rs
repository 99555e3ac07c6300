//! The calculator of the example `cluster`, against published figures: those in `docs/clusters.md`.

use proptest::prelude::*;

use super::example::estimate::{best_layouts, estimate};
use super::example::layout::{Cluster, Group, Inside, Layout, Link, Model, Traffic};
use super::example::{PUBLISHED, calculated, teraflops};

const GIGA: f64 = 1e9;

fn close(found: f64, published: f64, within: f64) {
    assert!((found / published - 1.0).abs() <= within, "{found} instead of {published}");
}

/// GPT with the vocabulary and context of Narayanan et al. 2021.
fn gpt(layers: usize, width: u32, batch: usize) -> Model {
    Model { layers, width: width.into(), batch }
}

/// The parameters of a model, from the 2 bytes that each has on a GPU that holds all of them.
fn parameters(model: &Model) -> f64 {
    estimate(model, &hosts(1), &Layout::new(1, 1, 1)).unwrap().memory.parameters / 2.0
}

/// Hosts of 8 GPUs with 80 GB.
fn hosts(hosts: usize) -> Cluster {
    Cluster {
        hosts,
        gpus_per_host: 8,
        flops: 400e12,
        memory: 80.0 * GIGA,
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
        close(parameters(&gpt(layers, width, 1)), billions * GIGA, 0.051 / billions);
    }
}

/// Narayanan et al. 2021, 5.1: 300 billion tokens take 34 days on 1,024 GPUs at 140 teraFLOP/s.
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
    let scale = 7.5 * GIGA / parameters(&model);
    let plain = Layout { gradient_bytes: 2.0, ..Layout::new(1, 64, 1) };
    let states = |layout: &Layout| {
        let memory = estimate(&model, &hosts(8), layout).unwrap().memory;
        (memory.total() - memory.activations) * scale / GIGA
    };
    close(states(&plain), 120.0, 1e-9);
    close(states(&Layout { shard_optimizer: true, ..plain }), 31.4, 0.001);
}

/// Table 2 of Narayanan et al. 2021: the same batch on two and four times the GPUs. The speed of a GPU is taken from the first row, the
/// others are predicted.
#[test]
fn strong_scaling_is_that_of_the_published_runs() {
    for runs in PUBLISHED {
        let found = calculated(runs).unwrap();
        for ((row, (_, published)), found) in runs.3.into_iter().enumerate().zip(found) {
            assert!(found.fits, "the published run fitted: {found:?}");
            close(teraflops(&found), published, if row == 0 { 1e-3 } else { 0.0185 });
        }
    }
}

/// Patarasuk and Yuan 2009: each GPU sends `2 (n - 1) / n` of the bytes.
#[test]
fn sums_send_the_published_share_of_the_bytes() {
    let model = gpt(4, 1024, 64);
    let bytes = 4.0 * parameters(&model);
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
fn the_best_layouts_fit_use_all_gpus_and_are_sorted() {
    let (model, cluster) = (gpt(36, 4096, 512), hosts(1));
    let found = best_layouts(&model, &cluster, 4.0).unwrap();
    assert!(found.len() > 10);
    for best in &found {
        assert!(best.fits && best.layout.stages * best.layout.replicas == 8);
        assert_eq!(*best, estimate(&model, &cluster, &best.layout).unwrap());
    }
    assert!(found.windows(2).all(|pair| pair[0].seconds <= pair[1].seconds));
    // One GPU cannot hold 18 bytes for each of the parameters.
    assert!(found.iter().all(|best| best.layout.shard_optimizer || best.layout.stages > 1));
    let large = gpt(128, 25600, 512);
    assert_eq!(best_layouts(&large, &cluster, 4.0).unwrap(), []);
}

#[test]
fn a_thousand_gpus_train_a_model_that_none_of_them_holds() {
    let model = gpt(96, 12288, 2000);
    let found = best_layouts(&model, &hosts(125), 4.0).unwrap();
    let best = found.first().unwrap();
    assert!(best.layout.stages > 8 && best.layout.stages * best.layout.replicas == 1000, "{best:?}");
    // Not faster than all operations on all GPUs, and not twice as slow.
    let ideal = model.flops(best.layout.recompute) / (1000.0 * 400e12);
    assert!((ideal..2.0 * ideal).contains(&best.seconds), "{best:?}");
}

#[test]
fn layouts_that_cannot_be_are_errors() {
    let model = gpt(4, 64, 8);
    let message = |layout| estimate(&model, &hosts(1), &layout).unwrap_err().to_string();
    assert!(message(Layout::new(8, 1, 1)).starts_with("stages = 8 for 4 blocks"));
    assert_eq!(message(Layout::new(2, 8, 1)), "2 stages of 8 replicas on 8 GPUs");
    assert_eq!(message(Layout::new(1, 3, 1)), "3 replicas with 1 micro-batches do not divide 8 sequences");
    assert!(message(Layout::new(1, 0, 1)).starts_with("0 replicas"));
}

#[test]
fn a_ring_sends_its_share_in_its_steps() {
    let link = |bytes_per_second, latency| Link { bytes_per_second, latency };
    let cluster = Cluster { inside: link(100.0, 0.5), between: link(10.0, 1.0), ..hosts(4) };
    let sum = |local, hosts| Group { local, hosts, senders: 8 }.reduce_scatter(&cluster, 800.0);
    let sent = |inside, between| Traffic { inside, between };
    assert_eq!(sum(8, 1), (sent(700.0, 0.0), 7.0 + 7.0 * 0.5));
    assert_eq!(sum(1, 1), (Traffic::default(), 0.0));
    // The 8 GPUs of a host first sum among themselves. Together they send 3/4 of the bytes to other hosts, as one GPU alone would.
    assert_eq!(sum(8, 4), (sent(700.0, 75.0), 7.0 + 3.5 + 3.0 + 75.0 * 8.0 / 10.0));
    // 8 stages in a host, each with replicas in other hosts only: 8 times as many bytes leave the host.
    assert_eq!(sum(1, 4), (sent(0.0, 600.0), 3.0 + 600.0 * 8.0 / 10.0));
}

#[test]
fn gpus_of_a_host_sum_inside_first_or_all_send_to_other_hosts() {
    let of = |inside, stages, replicas, count| {
        let layout = Layout { inside, ..Layout::new(stages, replicas, 1) };
        (layout.groups(&hosts(count)), layout.boundaries(&hosts(count)))
    };
    let group = |local, hosts, senders| Group { local, hosts, senders };
    assert_eq!(of(Inside::Replicas, 2, 16, 4), (vec![group(8, 2, 8); 2], vec![8]));
    // Two stages of four replicas each in one host.
    assert_eq!(of(Inside::Replicas, 4, 4, 2), (vec![group(4, 1, 0); 4], vec![0, 4, 0]));
    assert_eq!(of(Inside::Stages, 8, 4, 4), (vec![group(1, 4, 8); 8], vec![0; 7]));
    // A replica over two hosts: one boundary is between them.
    assert_eq!(of(Inside::Stages, 16, 2, 4).1.iter().sum::<usize>(), 1);
    // Replicas that do not fill hosts evenly are one ring.
    assert_eq!(of(Inside::Replicas, 2, 12, 3).0, [group(1, 12, 2); 2]);
}

fn layouts() -> impl Strategy<Value = Layout> {
    let inside = prop_oneof![Just(Inside::Replicas), Just(Inside::Stages)];
    let counts = (1usize..6, 1usize..13, 1usize..5);
    (counts, inside, any::<bool>(), any::<bool>()).prop_map(|((p, d, m), inside, shard_optimizer, recompute)| Layout {
        inside,
        shard_optimizer,
        recompute,
        ..Layout::new(p, d, m)
    })
}

proptest! {
    #[test]
    fn a_better_cluster_is_never_slower_and_no_step_is_faster_than_its_operations(
        layout in layouts(), better in 1.0..4.0f64,
    ) {
        let model = gpt(12, 1024, 2 * layout.replicas * layout.micro_batches);
        let cluster = hosts(8);
        let found = estimate(&model, &cluster, &layout).unwrap();
        let gpus = (layout.stages * layout.replicas) as f64;
        prop_assert!(found.seconds * gpus * cluster.flops >= 0.999_999 * model.flops(layout.recompute));
        prop_assert!(found.reduction >= 0.0 && (0.0..1.0).contains(&found.bubble));
        let link =
            |link: Link| Link { bytes_per_second: link.bytes_per_second * better, latency: link.latency / better };
        let linked = Cluster { inside: link(cluster.inside), between: link(cluster.between), ..cluster };
        prop_assert!(estimate(&model, &linked, &layout).unwrap().seconds <= found.seconds);
        let fast = Cluster { flops: cluster.flops * better, ..cluster };
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
    }
}
