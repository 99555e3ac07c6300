//! Axes of tensors that must have the same channels: sets that are joined.

use std::collections::HashMap;
use std::hash::Hash;

/// Union-find over the axes of tensors. An axis that was flattened together with those after it has a block of entries for each channel of
/// its set.
#[derive(Debug)]
pub(super) struct Axes<T> {
    numbers: HashMap<(T, usize), usize>,
    /// The axis that each belongs to, and how many entries it has for each of that axis.
    parent: Vec<(usize, usize)>,
    sizes: Vec<usize>,
    /// Of the root of a set: whether its channels cannot be chosen.
    frozen: Vec<bool>,
}

/// The set that an axis belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Set {
    pub(super) number: usize,
    /// Number of channels.
    pub(super) size: usize,
    /// Entries of the axis for each channel.
    pub(super) block: usize,
}

impl<T> Default for Axes<T> {
    fn default() -> Self {
        Self { numbers: HashMap::new(), parent: vec![], sizes: vec![], frozen: vec![] }
    }
}

impl<T: Copy + Eq + Hash> Axes<T> {
    /// Two axes have the same channels. Axes of different sizes cannot, and are frozen. An axis is a tensor, its number, and its size.
    pub(super) fn tie(&mut self, a: (T, usize, usize), b: (T, usize, usize)) {
        self.tie_blocks(a, b, 1);
    }

    /// Axis `b` has `block` entries in a row for each entry of `a`.
    pub(super) fn tie_blocks(&mut self, a: (T, usize, usize), b: (T, usize, usize), block: usize) {
        let fits = a.2 * block == b.2;
        let ((mut a, mut of_a), (mut b, mut of_b)) = (self.root(a), self.root(b));
        of_a *= block;
        if of_a < of_b {
            ((a, of_a), (b, of_b)) = ((b, of_b), (a, of_a));
        }
        let whole = fits && of_a.is_multiple_of(of_b) && (a != b || of_a == of_b);
        let frozen = self.frozen[a] || self.frozen[b] || !whole;
        (self.frozen[a], self.frozen[b]) = (frozen, frozen);
        if whole && a != b {
            self.parent[b] = (a, of_a / of_b);
        }
    }

    /// The channels of this axis are all kept.
    pub(super) fn freeze(&mut self, axis: (T, usize, usize)) {
        let (root, _) = self.root(axis);
        self.frozen[root] = true;
    }

    /// The set that an axis belongs to, none if its channels cannot be chosen.
    pub(super) fn set(&mut self, axis: (T, usize, usize)) -> Option<Set> {
        let (number, block) = self.root(axis);
        (!self.frozen[number]).then(|| Set { number, size: self.sizes[number], block })
    }

    fn root(&mut self, (tensor, axis, size): (T, usize, usize)) -> (usize, usize) {
        let next = self.parent.len();
        let own = *self.numbers.entry((tensor, axis)).or_insert(next);
        if own == next {
            self.parent.push((next, 1));
            self.sizes.push(size);
            self.frozen.push(false);
        }
        let (mut root, mut block) = (own, 1);
        while self.parent[root].0 != root {
            block *= self.parent[root].1;
            root = self.parent[root].0;
        }
        self.parent[own] = (root, block);
        (root, block)
    }
}

/// An axis before a reshape, the axis after it that has the same channels, and how many entries that one has for each of them.
pub(super) type Survivor = (usize, usize, usize);

/// The axes that survive a reshape: those that stay whole, and the first of several that are flattened to one. Axes of size 1 are left out.
pub(super) fn surviving(before: &[usize], after: &[usize]) -> Vec<Survivor> {
    let axes = |shape: &[usize]| shape.iter().copied().enumerate().filter(|(_, size)| *size != 1).collect::<Vec<_>>();
    let (before, after) = (axes(before), axes(after));
    let (mut i, mut j) = (0, 0);
    let mut survivors = vec![];
    while i < before.len() && j < after.len() {
        // The shortest run of axes on both sides with as many elements.
        let (start, mut left, mut right) = ([i, j], before[i].1, after[j].1);
        while left != right {
            let next = if left < right { before.get(i + 1) } else { after.get(j + 1) };
            let Some((_, size)) = next else { return survivors };
            if left < right {
                (left, i) = (left * size, i + 1);
            } else {
                (right, j) = (right * size, j + 1);
            }
        }
        if j == start[1] {
            let (axis, size) = before[start[0]];
            survivors.push((axis, after[j].0, after[j].1 / size.max(1)));
        }
        (i, j) = (i + 1, j + 1);
    }
    survivors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_joined_and_frozen_together() {
        let mut axes = Axes::default();
        axes.tie(("x", 1, 8), ("w", 1, 8));
        axes.tie(("w", 0, 4), ("y", 1, 4));
        axes.tie(("z", 1, 8), ("x", 1, 8));
        assert_eq!(axes.set(("w", 1, 8)), axes.set(("z", 1, 8)));
        assert_ne!(axes.set(("w", 0, 4)), axes.set(("w", 1, 8)));
        axes.freeze(("z", 1, 8));
        assert_eq!(axes.set(("w", 1, 8)), None);
        assert!(axes.set(("y", 1, 4)).is_some());
        axes.tie(("y", 1, 4), ("other", 1, 5));
        assert_eq!(axes.set(("w", 0, 4)), None);
    }

    #[test]
    fn a_flattened_axis_has_blocks() {
        let mut axes = Axes::default();
        axes.tie_blocks(("x", 1, 8), ("flat", 1, 72), 9);
        axes.tie(("flat", 1, 72), ("w", 0, 72));
        axes.tie(("conv", 0, 8), ("x", 1, 8));
        let [flat, x] = [axes.set(("w", 0, 72)), axes.set(("conv", 0, 8))];
        assert_eq!(flat.map(|set| (set.size, set.block)), Some((8, 9)));
        assert_eq!(x.map(|set| (set.size, set.block)), Some((8, 1)));
        assert_eq!(flat.map(|set| set.number), x.map(|set| set.number));
        // Other blocks of the same axis do not fit, whole blocks of them do.
        axes.tie_blocks(("y", 1, 4), ("w", 0, 72), 18);
        assert_eq!(axes.set(("conv", 0, 8)).map(|set| (set.size, set.block)), Some((4, 2)));
        axes.tie_blocks(("z", 1, 3), ("w", 0, 72), 24);
        assert_eq!(axes.set(("conv", 0, 8)), None);
    }

    #[test]
    fn axes_survive_a_reshape_whole_or_as_blocks() {
        assert_eq!(surviving(&[2, 512, 1, 1], &[2, 512]), [(0, 0, 1), (1, 1, 1)]);
        assert_eq!(surviving(&[64], &[1, 64, 1, 1]), [(0, 1, 1)]);
        assert_eq!(surviving(&[2, 8, 3, 3], &[2, 72]), [(0, 0, 1), (1, 1, 9)]);
        assert_eq!(surviving(&[2, 8, 3, 3], &[2, 8, 9]), [(0, 0, 1), (1, 1, 1), (2, 2, 3)]);
        assert_eq!(surviving(&[2, 6], &[6, 2]), []);
        assert_eq!(surviving(&[2, 12], &[2, 3, 4]), [(0, 0, 1)]);
        assert_eq!(surviving(&[2, 4, 6], &[8, 6]), [(0, 0, 4), (2, 1, 1)]);
        assert_eq!(surviving(&[1], &[1, 1]), []);
    }
}
