use burn::tensor::{Device, Tensor};
fn time(what: &str, work: impl Fn()) { work(); let t = std::time::Instant::now(); for _ in 0..3 { work(); } println!("{what}: {:?}", t.elapsed() / 3); }
#[test]
fn speed() {
    let d = Device::cpu();
    let ones = |a: usize, b: usize| Tensor::<2>::ones([a, b], &d);
    for (m, k, n) in [(8, 64, 5), (32, 16, 48), (32, 16, 16), (4, 4, 4), (2, 2, 2), (32, 64, 16), (16, 32, 48), (1, 16, 16), (16, 16, 1)] {
        time(&format!("matmul {m} {k} {n}"), || { let _ = ones(m, k).matmul(ones(k, n)).into_data(); });
    }
    let t = Tensor::<4>::ones([4, 2, 8, 8], &d);
    time("bmm", || { let _ = t.clone().matmul(t.clone()).into_data(); });
    time("sum", || { let _ = ones(32, 16).sum().into_data(); });
    time("sum_dim 1", || { let _ = ones(32, 16).sum_dim(1).into_data(); });
    time("sum_dim 0", || { let _ = ones(32, 16).sum_dim(0).into_data(); });
    time("add", || { let _ = (ones(32, 16) + 1.0).into_data(); });
    time("softmax", || { let _ = burn::tensor::activation::softmax(ones(32, 16), 1).into_data(); });
}
