//! Cases in which every operation succeeds.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, Reparameterization, Reparameterizer};
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use kiln_parallel::{Error, Number, Ownership, Status, Verdict, Vote, agree, hand_out, sum_gradients};

use super::Replica;
use super::values::{bits, bits_of, serial_sum, tensor, value, values};

const LENGTHS: [usize; 9] = [0, 1, 2, 3, 5, 7, 64, 1000, 70_003];

pub(crate) fn sums_are_serial_sums(replica: Replica) {
    let (rank, replicas) = (replica.communicator.rank(), replica.communicator.replicas());
    for (seed, length) in LENGTHS.into_iter().enumerate() {
        let seed = seed as u64;
        let sum = replica.communicator.all_reduce(tensor(&values(seed, rank, length))).unwrap();
        assert_eq!(sum.dims(), [length]);
        assert_eq!(bits(&sum), bits_of(&serial_sum(seed, replicas, replica.inner, length)), "{length} elements");
    }
}

pub(crate) fn parts_are_sums_of_parts(replica: Replica) {
    let (rank, replicas) = (replica.communicator.rank(), replica.communicator.replicas());
    for round in 0..6 {
        let length = |part: usize| (part * 7 + round * 3) % 11 * (1 + 500 * (round % 2));
        let parts = (0..replicas).map(|part| tensor(&values(part as u64, rank, length(part)))).collect();
        let own = replica.communicator.reduce_scatter(parts).unwrap();
        let expected = serial_sum(rank as u64, replicas, replica.inner, length(rank));
        assert_eq!(bits(&own), bits_of(&expected), "round {round}");
    }
}

pub(crate) fn gathered_values_are_those_of_all(replica: Replica) {
    let (rank, replicas) = (replica.communicator.rank(), replica.communicator.replicas());
    for round in 0..6 {
        let lengths: Vec<usize> =
            (0..replicas).map(|rank| (rank * 5 + round * 2) % 9 * (1 + 900 * (round % 2))).collect();
        let all = replica.communicator.all_gather(tensor(&values(9, rank, lengths[rank])), &lengths).unwrap();
        assert_eq!(all.len(), replicas);
        for (other, gathered) in all.iter().enumerate() {
            assert_eq!(bits(gathered), bits_of(&values(9, other, lengths[other])), "round {round}, rank {other}");
        }
    }
}

pub(crate) fn messages_come_in_the_order_of_the_ranks(replica: Replica) {
    let (rank, replicas) = (replica.communicator.rank(), replica.communicator.replicas());
    for length in [0, 1, 3, 1000, 300_000] {
        let message = |rank: usize| vec![rank as u8 + 1; length * (rank + 1) / 2];
        let all = replica.communicator.exchange(&message(rank)).unwrap();
        assert!(all.iter().eq((0..replicas).map(message).collect::<Vec<_>>().iter()), "{length} bytes");
    }
}

pub(crate) fn many_operations_follow_each_other(replica: Replica) {
    let (rank, replicas) = (replica.communicator.rank(), replica.communicator.replicas());
    for seed in 0..200_u64 {
        let sum = replica.communicator.all_reduce(tensor(&values(seed, rank, 5))).unwrap();
        assert_eq!(bits(&sum), bits_of(&serial_sum(seed, replicas, replica.inner, 5)));
        let messages = replica.communicator.exchange(&[seed as u8, rank as u8]).unwrap();
        assert_eq!(messages[replicas - 1], [seed as u8, replicas as u8 - 1]);
    }
}

/// Neither the caller's tensors nor those of other replicas change with what a replica does to its result.
pub(crate) fn results_are_the_callers_own(replica: Replica) {
    let (rank, replicas) = (replica.communicator.rank(), replica.communicator.replicas());
    let own = tensor(&values(1, rank, 100));
    let sum = replica.communicator.all_reduce(own.clone()).unwrap();
    let lengths = vec![100; replicas];
    let all = replica.communicator.all_gather(own.clone(), &lengths).unwrap();
    let changed: Vec<Tensor<1>> =
        all.iter().chain([&sum]).map(|values| values.clone().mul_scalar(rank as f32)).collect();
    replica.communicator.exchange(&[]).unwrap();
    assert_eq!(bits(&own), bits_of(&values(1, rank, 100)));
    assert_eq!(bits(&sum), bits_of(&serial_sum(1, replicas, replica.inner, 100)));
    for (other, gathered) in all.iter().enumerate() {
        assert_eq!(bits(gathered), bits_of(&values(1, other, 100)));
    }
    drop(changed);
}

pub(crate) fn votes_become_verdicts(replica: Replica) {
    let communicator = replica.communicator.as_ref();
    let (rank, replicas) = (communicator.rank() as u64, communicator.replicas() as u64);
    let numbers = [Number::Sum(rank), Number::Least(100 - rank), Number::equal("step", 7)];
    let verdict = agree(communicator, Vote { status: Status::Done, numbers: numbers.clone() }).unwrap();
    let together = [replicas * (replicas - 1) / 2, 101 - replicas, 7];
    assert_eq!(verdict, Verdict::Done(together));
    let last = rank == replicas - 1;
    let status = if last { Status::OutOfMemory("no 3 MiB".into()) } else { Status::Done };
    let verdict = agree(communicator, Vote { status, numbers }).unwrap();
    let reason = "no 3 MiB".to_owned();
    assert_eq!(verdict, Verdict::OutOfMemory { rank: replicas as usize - 1, reason, numbers: together });
    let step = Number::equal("step", if last { 8 } else { 7 });
    let outcome = agree(communicator, Vote { status: Status::Done, numbers: [step] });
    if replicas > 1 {
        let mut values = vec![7; replicas as usize];
        values[replicas as usize - 1] = 8;
        assert_eq!(outcome, Err(Error::Differs { what: "step".into(), values }));
    }
    // Replicas that differ can still talk.
    communicator.exchange(&[]).unwrap();
}

/// Doubles what a layer reads; the stored value stays.
#[derive(Module, Debug)]
struct Twice {
    #[module(skip)]
    factor: f32,
}

impl Reparameterization for Twice {
    const NAME: &'static str = "twice";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        base.mul_scalar(self.factor)
    }
}

struct TwiceMatrices;

impl Reparameterizer for TwiceMatrices {
    type Reparam = Twice;

    fn reparameterize<const D: usize>(
        &mut self,
        _: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Twice>) {
        (param, (D == 2).then_some(Twice { factor: 2.0 }))
    }
}

#[derive(Module, Debug)]
pub(super) struct Net {
    first: Linear,
    scale: Param<Tensor<3>>,
    frozen: Param<Tensor<1>>,
    second: Linear,
    /// Shares its weight with `second`.
    tied: Linear,
}

impl Net {
    pub(super) fn new() -> Self {
        let device = Device::flex().autodiff();
        let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(&device);
        let second: Linear = linear(4, 6);
        let tied = Linear { weight: second.weight.clone(), bias: None };
        let frozen = Param::from_tensor(Tensor::ones([3], &device)).set_require_grad(false);
        let scale = Param::from_tensor(Tensor::ones([2, 1, 3], &device));
        Self { first: linear(5, 4), scale, frozen, second, tied }
    }
}

/// Calls a function for each parameter, with its position.
struct Each<F>(usize, F);

impl<F: FnMut(usize, &[usize], bool, Vec<u32>)> ModuleVisitor for Each<F> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        (self.1)(self.0, &param.base().dims(), param.is_require_grad(), bits(&param.base()));
        self.0 += 1;
    }
}

/// Whether the replica gives the parameter at `position` a gradient. No replica gives one to the frozen parameter, or a second one to the
/// shared parameter.
fn has_gradient(rank: usize, position: usize) -> bool {
    position != 3 && position != 6 && (position != 1 || rank == 1) && !(position + rank).is_multiple_of(3)
}

pub(super) fn gradients_of(net: &Net, rank: usize) -> GradientsParams {
    struct Fill(usize, usize, GradientsParams);
    impl ModuleVisitor for Fill {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if has_gradient(self.1, self.0) {
                let shape = param.base().shape();
                let flat = tensor(&values(self.0 as u64, self.1, shape.num_elements()));
                self.2.register::<D>(param.id, flat.reshape(shape));
            }
            self.0 += 1;
        }
    }
    let mut fill = Fill(0, rank, GradientsParams::new());
    net.visit(&mut fill);
    fill.2
}

pub(crate) fn gradients_are_summed(replica: Replica) {
    struct Check<'a>(usize, &'a GradientsParams, usize, usize, usize);
    impl ModuleVisitor for Check<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let Self(position, gradients, replicas, inner, _) = *self;
            self.0 += 1;
            // The second meeting of a shared parameter: its gradient was checked.
            if position == 6 {
                return;
            }
            let any = (0..replicas).any(|rank| has_gradient(rank, position));
            let Some(gradient) = gradients.get::<D>(param.id) else {
                assert!(!any, "parameter {position} has no gradient");
                return;
            };
            assert!(any, "parameter {position} has a gradient");
            assert_eq!(gradient.dims(), param.base().dims());
            let own = |rank: usize, index| {
                if has_gradient(rank, position) { value(position as u64, rank, index) } else { 0.0 }
            };
            let block =
                |outer: usize, index| (0..inner).map(|i| own(outer * inner + i, index)).reduce(|a, b| a + b).unwrap();
            let sum = |index| (0..replicas / inner).map(|outer| block(outer, index)).reduce(|a, b| a + b).unwrap();
            let elements = gradient.shape().num_elements();
            // Adding zeros makes 0.0 of -0.0.
            let expected: Vec<f32> = (0..elements).map(|index| sum(index) + 0.0).collect();
            let found: Vec<u32> = gradient.to_data().iter::<f32>().map(|value| (value + 0.0).to_bits()).collect();
            assert_eq!(found, bits_of(&expected), "parameter {position}");
            self.4 += 1;
        }
    }
    let communicator = replica.communicator.as_ref();
    let (rank, replicas) = (communicator.rank(), communicator.replicas());
    let net = Net::new();
    for bucket_bytes in [0, 40, 100, 1 << 20] {
        let mut buckets = 0;
        let gradients = gradients_of(&net, rank);
        let summed = sum_gradients::<Error>(communicator, &net, gradients, bucket_bytes, |make| {
            buckets += 1;
            communicator.exchange(&[])?;
            Ok(make())
        });
        let summed = summed.unwrap();
        let mut check = Check(0, &summed, replicas, replica.inner, 0);
        net.visit(&mut check);
        assert!(check.4 > 0 && summed.len() == check.4);
        match (replicas, bucket_bytes) {
            (1, _) => assert_eq!(buckets, 0),
            (_, 0) => assert_eq!(buckets, check.4),
            (_, 40 | 100) => assert!(buckets > 1 && buckets <= check.4),
            _ => assert_eq!(buckets, 1),
        }
    }
}

pub(crate) fn owners_hand_out_parameters(replica: Replica) {
    /// Adds what depends on the rank to each parameter that requires gradients, and to none with an even position if it is `frozen`.
    struct Update(usize, usize);
    impl ModuleMapper for Update {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let (position, rank) = (self.0, self.1);
            self.0 += 1;
            param.map(|old| {
                let learned = old.is_require_grad();
                // The last parameter is the fifth again.
                let position = if position == 6 { 4 } else { position };
                let flat = tensor(&values(position as u64, rank, old.shape().num_elements()));
                flat.reshape(old.shape()).autodiff().set_require_grad(learned)
            })
        }
    }
    let communicator = replica.communicator.as_ref();
    let (rank, replicas) = (communicator.rank(), communicator.replicas());
    let plain = Net::new();
    let reparameterized = Net::new().apply_reparameterization(TwiceMatrices);
    for (net, factor) in [(plain, 1.0), (reparameterized, 2.0)] {
        let ownership = Ownership::of(&net, replicas);
        assert_eq!(ownership.parameters(), 5);
        let owned: usize = (0..replicas).map(|rank| ownership.ids(&net, rank).len()).sum();
        assert_eq!(owned, 5);
        for bucket_bytes in [0, 60, 1 << 20] {
            let updated = net.clone().map(&mut Update(0, rank));
            let ids = burn::module::list_param_ids(&updated);
            let outcome = hand_out::<_, Error>(communicator, updated, &ownership, bucket_bytes, |make| Ok(make()));
            let net = outcome.unwrap();
            assert_eq!(burn::module::list_param_ids(&net), ids);
            let mut learned = 0;
            net.visit(&mut Each(0, |position, dims: &[usize], require_grad, found: Vec<u32>| {
                assert_eq!(require_grad, position != 3, "parameter {position}");
                let position = if position == 6 { 4 } else { position };
                let owner = match position {
                    // No replica owns a frozen parameter.
                    3 => rank,
                    position => ownership.owner(position - usize::from(position > 3)).unwrap(),
                };
                learned += usize::from(require_grad);
                let expected = values(position as u64, owner, dims.iter().product());
                assert_eq!(found, bits_of(&expected), "parameter {position}");
            }));
            assert_eq!(learned, 6);
            // A layer still reads through the reparameterization.
            let (base, read) = (net.first.weight.base(), net.first.weight.val());
            assert_eq!(bits(&base.mul_scalar(factor)), bits(&read));
            // The parameters are leaves that learn.
            let gradients = net.first.weight.val().sum().backward();
            assert!(net.first.weight.base().grad(&gradients).is_some());
        }
    }
    let foreign = Ownership::balance(&[1, 2, 3], replicas);
    let refused = hand_out::<_, Error>(communicator, Net::new(), &foreign, 100, |make| Ok(make()));
    assert!(matches!(refused, Err(Error::InvalidSetting { name: "ownership", .. })));
}
