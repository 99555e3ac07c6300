//! Axes of tensors that must have the same channels: sets that are joined.

use std::collections::HashMap;
use std::hash::Hash;

/// Union-find over the axes of tensors.
#[derive(Debug)]
pub(super) struct Axes<T> {
    numbers: HashMap<(T, usize), usize>,
    parent: Vec<usize>,
    sizes: Vec<usize>,
    /// Of the root of a set: whether its channels cannot be chosen.
    frozen: Vec<bool>,
}

impl<T> Default for Axes<T> {
    fn default() -> Self {
        Self { numbers: HashMap::new(), parent: vec![], sizes: vec![], frozen: vec![] }
    }
}

impl<T: Copy + Eq + Hash> Axes<T> {
    /// Two axes have the same channels. Axes of different sizes cannot, and are frozen.
    pub(super) fn tie(&mut self, a: (T, usize, usize), b: (T, usize, usize)) {
        let (a, b) = (self.root(a), self.root(b));
        let frozen = self.frozen[a] || self.frozen[b] || self.sizes[a] != self.sizes[b];
        if self.sizes[a] == self.sizes[b] {
            self.parent[b] = a;
        }
        (self.frozen[a], self.frozen[b]) = (frozen, frozen);
    }

    /// The channels of this axis are all kept.
    pub(super) fn freeze(&mut self, axis: (T, usize, usize)) {
        let root = self.root(axis);
        self.frozen[root] = true;
    }

    /// The set that an axis belongs to, none if its channels cannot be chosen. The axis is a tensor, the number of the axis, and its size.
    pub(super) fn set(&mut self, axis: (T, usize, usize)) -> Option<usize> {
        let root = self.root(axis);
        (!self.frozen[root]).then_some(root)
    }

    fn root(&mut self, (tensor, axis, size): (T, usize, usize)) -> usize {
        let next = self.parent.len();
        let mut at = *self.numbers.entry((tensor, axis)).or_insert(next);
        if at == next {
            self.parent.push(next);
            self.sizes.push(size);
            self.frozen.push(false);
        }
        while self.parent[at] != at {
            self.parent[at] = self.parent[self.parent[at]];
            at = self.parent[at];
        }
        at
    }
}

/// The axes that survive a reshape: pairs of an axis before and an axis after that number the same channels. Axes of size 1 are left out.
pub(super) fn surviving(before: &[usize], after: &[usize]) -> Vec<[usize; 2]> {
    let axes = |shape: &[usize]| shape.iter().copied().enumerate().filter(|(_, size)| *size != 1).collect::<Vec<_>>();
    let (before, after) = (axes(before), axes(after));
    let (mut i, mut j) = (0, 0);
    let mut pairs = vec![];
    while i < before.len() && j < after.len() {
        // The shortest run of axes on both sides with as many elements.
        let (start, mut left, mut right) = ([i, j], before[i].1, after[j].1);
        while left != right {
            let next = if left < right { before.get(i + 1) } else { after.get(j + 1) };
            let Some((_, size)) = next else { return pairs };
            if left < right {
                (left, i) = (left * size, i + 1);
            } else {
                (right, j) = (right * size, j + 1);
            }
        }
        if [i, j] == start {
            pairs.push([before[i].0, after[j].0]);
        }
        (i, j) = (i + 1, j + 1);
    }
    pairs
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
    fn axes_survive_a_reshape_if_they_stay_whole() {
        assert_eq!(surviving(&[2, 512, 1, 1], &[2, 512]), [[0, 0], [1, 1]]);
        assert_eq!(surviving(&[64], &[1, 64, 1, 1]), [[0, 1]]);
        assert_eq!(surviving(&[2, 8, 3, 3], &[2, 72]), [[0, 0]]);
        assert_eq!(surviving(&[2, 8, 3, 3], &[2, 8, 9]), [[0, 0], [1, 1]]);
        assert_eq!(surviving(&[2, 6], &[6, 2]), [[0; 2]; 0]);
        assert_eq!(surviving(&[2, 4, 6], &[8, 6]), [[2, 1]]);
        assert_eq!(surviving(&[1], &[1, 1]), [[0; 2]; 0]);
    }
}
