//! Which replica owns the optimizer state of which parameter: ZeRO, stage 1 (Rajbhandari et al. 2020).

use burn::module::{Module, ParamId};

use super::parameters::for_each;

/// The owner of each parameter. Only the owner keeps optimizer state for it and updates it, and hands the new value to the others
/// ([`hand_out`](super::hand_out::hand_out)).
///
/// Parameters are owned whole, so that every optimizer works, also those that look at a parameter as a matrix. The price: a parameter that
/// is larger than the mean share makes the share of its owner as large as itself. A GPT with 256 tokens and 4 layers of width 128 is still
/// shared evenly: the largest of 4 shares is 25.5 %, the largest of 8 is 13.7 %.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    owners: Vec<usize>,
    sizes: Vec<u64>,
    replicas: usize,
}

impl Ownership {
    /// Shares parameters of these sizes among `replicas`, at least one. The largest parameter that is left goes to the replica with the
    /// smallest share (LPT, Graham 1969); where sizes or shares are equal, the first. No share is larger than the mean share plus the
    /// largest parameter.
    pub fn balance(sizes: &[u64], replicas: usize) -> Self {
        let mut shares = vec![0_u64; replicas.max(1)];
        let mut owners = vec![0; sizes.len()];
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        order.sort_by_key(|parameter| std::cmp::Reverse(sizes[*parameter]));
        for parameter in order {
            let smallest = shares.iter().enumerate().min_by_key(|(_, share)| **share).map_or(0, |(rank, _)| rank);
            owners[parameter] = smallest;
            shares[smallest] += sizes[parameter];
        }
        Self { owners, sizes: sizes.to_vec(), replicas: shares.len() }
    }

    /// Shares the float parameters of `model` that require gradients, by their numbers of elements. Parameters count in the order of the
    /// model's fields, those that two fields share once. The model must be in training: [`valid`](Module::valid) suspends gradients.
    pub fn of(model: &impl Module, replicas: usize) -> Self {
        let sizes: Vec<u64> = learned(model).iter().map(|(_, elements)| *elements as u64).collect();
        Self::balance(&sizes, replicas)
    }

    /// The number of parameters.
    pub fn parameters(&self) -> usize {
        self.owners.len()
    }

    /// The number of replicas.
    pub fn replicas(&self) -> usize {
        self.replicas
    }

    /// The replica that owns a parameter.
    pub fn owner(&self, parameter: usize) -> Option<usize> {
        self.owners.get(parameter).copied()
    }

    /// The parameters that a replica owns, in their order.
    pub fn share(&self, rank: usize) -> impl Iterator<Item = usize> {
        self.owners.iter().enumerate().filter(move |(_, owner)| **owner == rank).map(|(parameter, _)| parameter)
    }

    /// The sum of the sizes that a replica owns.
    pub fn size_of_share(&self, rank: usize) -> u64 {
        self.share(rank).map(|parameter| self.sizes[parameter]).sum()
    }

    /// The ids of `model`'s parameters that a replica owns. Ids may differ between replicas, positions do not.
    pub fn ids(&self, model: &impl Module, rank: usize) -> Vec<ParamId> {
        let learned = learned(model);
        self.share(rank).filter_map(|parameter| learned.get(parameter).map(|(id, _)| *id)).collect()
    }
}

/// The float parameters of a model that require gradients, and their numbers of elements.
pub(super) fn learned(model: &impl Module) -> Vec<(ParamId, usize)> {
    let mut learned = vec![];
    for_each(model, |_, param| {
        if param.requires_grad() {
            learned.push((param.id(), param.elements()));
        }
    });
    learned
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The parameters of a GPT with 256 tokens, a context of 64, width 128 and 4 layers.
    fn gpt() -> Vec<u64> {
        let layer = [128, 128, 128 * 384, 384, 128 * 128, 128, 128, 128, 128 * 512, 512, 512 * 128, 128];
        let mut sizes = vec![256 * 128, 64 * 128];
        sizes.extend(layer.repeat(4));
        sizes.extend([128, 128]);
        sizes
    }

    #[test]
    fn a_small_gpt_is_shared_evenly() {
        let sizes = gpt();
        let total: u64 = sizes.iter().sum();
        for (replicas, most) in [(1, 1.0), (2, 0.501), (3, 0.334), (4, 0.256), (8, 0.138)] {
            let ownership = Ownership::balance(&sizes, replicas);
            let largest = (0..replicas).map(|rank| ownership.size_of_share(rank)).max().unwrap();
            assert!(largest as f64 <= most * total as f64, "{replicas}: {largest} of {total}");
        }
    }

    #[test]
    fn the_order_of_equal_sizes_does_not_matter_to_chance() {
        let ownership = Ownership::balance(&[4, 4, 9, 4], 2);
        assert_eq!([0, 1, 2, 3].map(|parameter| ownership.owner(parameter)), [Some(1), Some(1), Some(0), Some(1)]);
        assert_eq!(ownership.owner(4), None);
        assert_eq!(Ownership::balance(&[1], 0), Ownership::balance(&[1], 1));
    }

    proptest! {
        #[test]
        fn every_parameter_has_one_owner_and_shares_are_bounded(
            sizes in prop::collection::vec(0_u64..1000, 0..60),
            replicas in 1_usize..9,
        ) {
            let ownership = Ownership::balance(&sizes, replicas);
            let mut owned: Vec<usize> = (0..replicas).flat_map(|rank| ownership.share(rank)).collect();
            owned.sort_unstable();
            prop_assert_eq!(owned, (0..sizes.len()).collect::<Vec<_>>());
            let (total, largest) = (sizes.iter().sum::<u64>(), sizes.iter().max().copied().unwrap_or(0));
            for rank in 0..replicas {
                prop_assert!(ownership.size_of_share(rank) * replicas as u64 <= total + largest * replicas as u64);
            }
        }
    }
}
