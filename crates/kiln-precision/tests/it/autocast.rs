//! Autocast leaves a model's records, gradients and optimizer as they would be in f32.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{
    BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::module::attention;
use burn::tensor::{DType, Device, Distribution, Int, Tensor};
use kiln_precision::{Error, Policy, Precision, check_device, check_dtypes, in_f32};

use crate::support::alone;

#[derive(Module, Debug)]
struct Net {
    embed: Embedding,
    inner: Vec<Linear>,
    norm: LayerNorm,
    batch: BatchNorm,
    head: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            embed: EmbeddingConfig::new(20, 8).init(device),
            inner: vec![LinearConfig::new(8, 8).init(device), LinearConfig::new(8, 8).init(device)],
            norm: LayerNormConfig::new(8).init(device),
            batch: BatchNormConfig::new(6).init(device),
            head: LinearConfig::new(8, 3).init(device),
        }
    }

    fn forward(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        let x = self.embed.forward(ids).cast(self.head.weight.val().dtype());
        let x = self.inner.iter().fold(x, |x, layer| layer.forward(x));
        let x = in_f32(x, |x| self.norm.forward(x));
        let x = in_f32(x, |x| self.batch.forward(x));
        self.head.forward(x)
    }
}

fn ids(device: &Device) -> Tensor<2, Int> {
    Tensor::random([4, 6], Distribution::Uniform(0.0, 20.0), device)
}

/// Path and values of every float.
fn values(model: &impl Module) -> Vec<(String, DType, Vec<u8>)> {
    #[derive(Default)]
    struct Values(Vec<String>, Vec<(String, DType, Vec<u8>)>);
    impl ModuleVisitor for Values {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let data = param.base().into_data();
            self.1.push((self.0.join("."), param.base().dtype(), data.as_bytes().to_vec()));
        }
    }
    let _ = model.valid();
    let mut values = Values::default();
    model.visit(&mut values);
    values.1
}

#[test]
fn a_record_saved_under_autocast_loads_into_the_plain_model_bit_for_bit() {
    let _alone = alone();
    for precision in [Precision::F16, Precision::BF16] {
        let device = Device::flex().autodiff();
        let mut model = Policy::new(precision).autocast(Net::new(&device)).unwrap();
        let mut optimizer = AdamWConfig::new().init();
        for _ in 0..3 {
            let loss = model.forward(ids(&device)).cast(DType::F32).square().mean();
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(1e-2, model, gradients);
        }
        let trained = values(&model);
        assert!(trained.iter().all(|(_, dtype, _)| *dtype == DType::F32), "stored parameters stay f32");
        let plain = Net::new(&device).load_record(model.clone().into_record());
        assert_eq!(values(&plain), trained);
        assert_eq!(plain.num_params(), model.num_params());
        // The plain model computes in f32, the other one in 16 bits, also without autodiff.
        assert_eq!(plain.forward(ids(&device)).dtype(), DType::F32);
        assert_eq!(model.forward(ids(&device)).dtype(), precision.dtype());
        assert_eq!(model.valid().forward(ids(&device.clone().inner())).dtype(), precision.dtype());
        // And the other way round: a plain record goes on under autocast.
        let back = model.load_record(plain.into_record());
        assert_eq!(values(&back), trained);
        assert_eq!(back.head.weight.val().dtype(), precision.dtype());
    }
}

#[test]
fn batch_norm_keeps_f32_statistics_that_move_as_in_f32() {
    let _alone = alone();
    let device = Device::flex().autodiff();
    let statistics = |norm: &BatchNorm| {
        let _ = norm.valid();
        [norm.running_mean.value(), norm.running_var.value()]
    };
    let x = Tensor::<3>::random([4, 6, 8], Distribution::Normal(2.0, 3.0), &device).cast(DType::BF16);
    let plain = BatchNormConfig::new(6).init(&device);
    let _ = plain.forward(x.clone().cast(DType::F32));
    let cast = Policy::new(Precision::BF16).autocast(BatchNormConfig::new(6).init(&device)).unwrap();
    let _ = in_f32(x, |x| cast.forward(x));
    for (plain, cast) in statistics(&plain).into_iter().zip(statistics(&cast)) {
        assert_eq!((cast.dtype(), cast.into_data()), (DType::F32, plain.into_data()));
    }
}

#[test]
fn nested_islands_end_also_by_a_panic() {
    let _alone = alone();
    let device = Device::flex();
    let model = Policy::new(Precision::F16).autocast(LinearConfig::new(2, 2).init(&device)).unwrap();
    let x = Tensor::<2>::ones([1, 2], &device).cast(DType::F16);
    let dtype = || model.weight.val().dtype();
    let y = in_f32(x.clone(), |x| {
        let y = in_f32(x, |x| model.forward(x));
        assert_eq!(dtype(), DType::F32, "still in the outer island");
        y
    });
    assert_eq!((y.dtype(), dtype()), (DType::F16, DType::F16));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        in_f32(x, |_| -> Tensor<2> { panic!("on purpose") });
    }));
    assert!(panicked.is_err());
    assert_eq!(dtype(), DType::F16);
}

#[test]
fn paths_kinds_and_norms_are_kept_and_misspelt_ones_refused() {
    let _alone = alone();
    let device = Device::flex();
    let dtypes = |policy: Policy| {
        let model = policy.autocast(Net::new(&device)).unwrap();
        let linear = |layer: &Linear| layer.weight.val().dtype();
        let inner = [linear(&model.inner[0]), linear(&model.inner[1])];
        (inner, linear(&model.head), model.norm.gamma.val().dtype(), model.batch.gamma.val().dtype())
    };
    let (low, full) = (DType::BF16, DType::F32);
    let policy = || Policy::new(Precision::BF16);
    assert_eq!(dtypes(Policy::new(Precision::F32)), ([full, full], full, full, full));
    assert_eq!(dtypes(policy()), ([low, low], low, low, full));
    assert_eq!(dtypes(policy().keep_norms()), ([low, low], low, full, full));
    assert_eq!(dtypes(policy().keep_path("inner.1")), ([low, full], low, low, full));
    assert_eq!(dtypes(policy().keep_path("inner").keep_path("head.weight")), ([full, full], full, low, full));
    assert_eq!(dtypes(policy().keep_kind("Linear")), ([full, full], full, low, full));
    let refusal = |policy: Policy| policy.autocast(Net::new(&device)).map(|_| ()).unwrap_err();
    let wrong = refusal(policy().keep_path("inn")).to_string();
    assert!(wrong.contains("'inn'") && wrong.contains("inner.0.weight"), "{wrong}");
    let wrong = refusal(policy().keep_kind("Conv2d")).to_string();
    assert!(wrong.contains("'Conv2d'") && wrong.contains("Linear"), "{wrong}");
    assert!(matches!(refusal(Policy::new(Precision::F32).keep_path("inn")), Error::NotInModel { .. }));
    let twice = policy().autocast(policy().autocast(Net::new(&device)).unwrap()).map(|_| ()).unwrap_err();
    assert!(
        matches!(&twice, Error::Reparameterized { path, by } if path == "embed.weight" && by == "autocast"),
        "{twice}"
    );
}

#[test]
fn mixed_dtypes_are_found_without_running_and_name_their_layer() {
    let _alone = alone();
    let right = check_dtypes(&Policy::new(Precision::BF16), Net::new, |model, device| {
        model.forward(Tensor::zeros([2, 6], device))
    });
    assert_eq!(right, Ok(()));
    // Layers, whose operations burn's recorder refuses.
    let no_island = |model: &Net, device: &Device| {
        let x = model.embed.forward(Tensor::zeros([2, 6], device)).cast(DType::F16);
        model.batch.forward(model.inner[0].forward(x))
    };
    // The embedding's output is cast to the head's dtype, which is not that of the layers between.
    let kept_head = |model: &Net, device: &Device| model.forward(Tensor::zeros([2, 6], device));
    let cases = [
        ("batch", check_dtypes(&Policy::new(Precision::F16), Net::new, no_island)),
        ("inner.0", check_dtypes(&Policy::new(Precision::BF16).keep_path("head"), Net::new, kept_head)),
    ];
    for (expected, outcome) in cases {
        assert!(matches!(&outcome, Err(Error::MixedDtypes { layer, .. }) if layer == expected), "{outcome:?}");
    }
    // Matmul and attention, which it accepts, and CubeCL would compute wrong.
    let low = |device: &Device| Tensor::<3>::zeros([2, 6, 8], device).cast(DType::BF16);
    let outside = |model: &Net, device: &Device| {
        let weight = model.head.weight.val().transpose().unsqueeze();
        weight.matmul(low(device).cast(DType::F32).swap_dims(1, 2))
    };
    let found = check_dtypes(&Policy::new(Precision::BF16), Net::new, outside);
    assert!(
        matches!(&found, Err(Error::MixedDtypes { layer, message }) if layer == "head" && message == "Matmul of BF16 and F32"),
        "{found:?}"
    );
    let attends = |_: &Net, device: &Device| {
        let q = Tensor::<4>::zeros([1, 2, 4, 8], device);
        attention(q.clone(), q.clone().cast(DType::BF16), q, None, None, Default::default())
    };
    let found = check_dtypes(&Policy::new(Precision::BF16), Net::new, attends);
    assert!(matches!(&found, Err(Error::MixedDtypes { .. })), "{found:?}");
    let reads = check_dtypes(&Policy::default(), Net::new, |model, _| model.head.weight.val().into_data());
    assert!(matches!(reads, Err(Error::Record(_))), "{reads:?}");
}

#[test]
fn a_device_is_accepted_only_if_it_computes_right() {
    let _alone = alone();
    for precision in Precision::ALL {
        assert_eq!(check_device(&Device::flex(), precision), Ok(()));
        assert_eq!(check_device(&Device::flex().autodiff(), precision), Ok(()));
    }
    // A device that has the dtypes and computes nothing.
    let refused = check_device(&Device::capture(), Precision::BF16).unwrap_err().to_string();
    assert!(refused.contains("bf16") && refused.contains("use another device"), "{refused}");
}

#[test]
fn precisions_have_names() {
    let _alone = alone();
    for precision in Precision::ALL {
        assert_eq!(precision.to_string().parse(), Ok(precision));
        assert_eq!(serde_json::to_value(precision).unwrap(), precision.to_string());
    }
    let unknown = "fp16".parse::<Precision>().unwrap_err();
    assert_eq!(unknown.to_string(), "the precision is 'fp16', expected f32, f16 or bf16");
    assert_eq!(Precision::ALL.map(Precision::bytes), [4, 2, 2]);
}
