//! The one address space of host and GPUs: which allocation holds an address, and who may reach it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::mapping::Mapping;
use crate::ptx::{Memory, Region};

/// Whose memory an allocation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A GPU, by ordinal.
    Device(usize),
    /// The host; every GPU reaches it.
    Pinned,
    /// The host's own pages that were registered; every GPU reaches them.
    Registered,
    /// A variable of a module on a GPU, which no call frees.
    Variable(usize),
    /// Managed memory, charged to the GPU it was made on; every GPU reaches it.
    Managed(usize),
}

/// A live allocation.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// Bytes booked for it on its GPU.
    pub(crate) charge: u64,
    pub(crate) owner: Owner,
    /// Keeps the pages mapped; registered memory has none of its own.
    pub(crate) _pages: Option<Mapping>,
}

impl Allocation {
    pub(crate) fn contains(&self, address: u64, bytes: u64) -> bool {
        address >= self.start && address - self.start <= self.bytes && bytes <= self.bytes - (address - self.start)
    }
}

/// All live allocations of the process by address.
#[derive(Debug, Default)]
pub(crate) struct Space {
    allocations: BTreeMap<u64, Arc<Allocation>>,
    /// The allocations that kernels on a GPU reach, kept until an allocation comes or goes.
    views: Vec<(usize, Arc<View>)>,
}

impl Space {
    pub(crate) fn insert(&mut self, allocation: Allocation) {
        self.views.clear();
        self.allocations.insert(allocation.start, Arc::new(allocation));
    }

    /// Takes out the allocation that begins at `start`.
    pub(crate) fn remove(&mut self, start: u64) -> Option<Arc<Allocation>> {
        self.views.clear();
        self.allocations.remove(&start)
    }

    /// Takes out every allocation that `lost` names.
    pub(crate) fn remove_all(&mut self, lost: impl Fn(&Allocation) -> bool) -> Vec<Arc<Allocation>> {
        self.views.clear();
        let starts: Vec<u64> = self.allocations.values().filter(|a| lost(a)).map(|a| a.start).collect();
        starts.iter().filter_map(|start| self.allocations.remove(start)).collect()
    }

    /// The allocation that holds the byte at `address`.
    pub(crate) fn find(&self, address: u64) -> Option<&Arc<Allocation>> {
        let (_, allocation) = self.allocations.range(..=address).next_back()?;
        allocation.contains(address, 1).then_some(allocation)
    }

    /// The allocation that holds all of `bytes` bytes from `address`.
    pub(crate) fn find_range(&self, address: u64, bytes: u64) -> Option<&Arc<Allocation>> {
        self.find(address).filter(|allocation| allocation.contains(address, bytes))
    }

    /// The memory that a kernel on `device` reaches: its own, the host's, and that of `peers`.
    pub(crate) fn view(&mut self, device: usize, peers: &[usize]) -> Arc<View> {
        if let Some((_, view)) = self.views.iter().find(|(owner, _)| *owner == device) {
            return Arc::clone(view);
        }
        let reached = |allocation: &&Arc<Allocation>| match allocation.owner {
            Owner::Device(owner) | Owner::Variable(owner) => owner == device || peers.contains(&owner),
            Owner::Pinned | Owner::Registered | Owner::Managed(_) => true,
        };
        let view = Arc::new(View(self.allocations.values().filter(reached).cloned().collect()));
        self.views.push((device, Arc::clone(&view)));
        view
    }

    /// Forgets the views, because who reaches whom has changed.
    pub(crate) fn forget_views(&mut self) {
        self.views.clear();
    }
}

/// The allocations that one launch reaches. It keeps their pages alive, so memory freed during the launch stays mapped.
#[derive(Debug)]
pub(crate) struct View(Vec<Arc<Allocation>>);

impl Memory for View {
    fn region(&self, address: u64) -> Option<Region> {
        let after = self.0.partition_point(|allocation| allocation.start <= address);
        let allocation = self.0[..after].last().filter(|allocation| allocation.contains(address, 1))?;
        Some(Region { start: allocation.start, len: allocation.bytes, host: allocation.start as *mut u8 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> Space {
        let mut space = Space::default();
        for (start, bytes, owner) in [
            (1000, 100, Owner::Device(0)),
            (1100, 50, Owner::Device(1)),
            (2000, 10, Owner::Pinned),
            (3000, 1, Owner::Managed(1)),
        ] {
            space.insert(Allocation { start, bytes, charge: bytes, owner, _pages: None });
        }
        space
    }

    #[test]
    fn ranges_end_where_the_allocation_ends() {
        let space = space();
        assert!(space.find(999).is_none() && space.find(1150).is_none() && space.find(2010).is_none());
        assert_eq!(space.find(1099).map(|a| a.start), Some(1000));
        assert_eq!(space.find(1100).map(|a| a.start), Some(1100));
        assert!(space.find_range(1000, 100).is_some());
        assert!(space.find_range(1000, 101).is_none(), "the neighbour is another allocation");
        assert!(space.find_range(1001, u64::MAX).is_none());
    }

    #[test]
    fn a_view_holds_what_the_card_reaches() {
        let mut space = space();
        let starts = |view: &View| view.0.iter().map(|a| a.start).collect::<Vec<_>>();
        assert_eq!(starts(&space.view(0, &[])), [1000, 2000, 3000]);
        assert_eq!(starts(&space.view(1, &[])), [1100, 2000, 3000]);
        space.forget_views();
        assert_eq!(starts(&space.view(1, &[0])), [1000, 1100, 2000, 3000]);
    }

    #[test]
    fn a_view_outlives_what_is_freed_under_it() {
        let mut space = space();
        let view = space.view(0, &[]);
        space.remove(1000).expect("was there");
        assert!(view.region(1050).is_some());
        assert!(space.view(0, &[]).region(1050).is_none());
        assert_eq!(view.region(2009).map(|r| (r.start, r.len)), Some((2000, 10)));
        assert!(view.region(2010).is_none() && view.region(0).is_none());
    }
}
