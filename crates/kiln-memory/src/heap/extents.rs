//! Which pages of a range are free, and which of them the process holds. Decisions alone: no page is touched here.

/// Free pages of a range of addresses.
#[derive(Debug)]
pub(super) struct Extents<'a> {
    /// Extents in the order of their addresses, of which the first `len` count. Neighbours of the same kind are one extent.
    free: &'a mut [Free],
    len: usize,
    /// Free pages that the process holds.
    held: usize,
    /// How often pages were given back.
    clock: u64,
}

/// Free pages that lie together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Free {
    pub(super) start: usize,
    pub(super) pages: usize,
    /// When the last of them was freed, if the process holds them; 0 for pages that read as zeros and take no memory.
    freed: u64,
}

/// Pages that were taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) start: usize,
    /// How many of them the process held already.
    pub(super) held: usize,
}

impl<'a> Extents<'a> {
    /// A range of `pages`, none of which the process holds. `table` bounds the number of extents.
    pub(super) fn new(table: &'a mut [Free], pages: usize) -> Self {
        table[0] = Free { start: 0, pages, freed: 0 };
        Self { free: table, len: 1, held: 0, clock: 0 }
    }

    /// Free pages that the process holds.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Takes `pages` that lie together: where the fewest of them must be added to those that the process holds, then where the least is left
    /// beside them.
    pub(super) fn take(&mut self, pages: usize) -> Option<Taken> {
        let mut best = None;
        for first in 0..self.len {
            let Some((held, all)) = self.run(first, pages) else { continue };
            let rank = (pages - held, all - pages);
            if best.is_none_or(|(least, _)| rank < least) {
                best = Some((rank, first));
            }
            if rank == (0, 0) {
                break;
            }
        }
        let ((added, _), first) = best?;
        let start = self.free[first].start;
        self.cut(first, pages, pages - added);
        Some(Taken { start, held: pages - added })
    }

    /// Takes the pages that begin with `start`, if they are free.
    pub(super) fn take_at(&mut self, start: usize, pages: usize) -> bool {
        let first = self.free[..self.len].partition_point(|extent| extent.start < start);
        let run = if self.free[..self.len].get(first).is_some_and(|extent| extent.start == start) {
            self.run(first, pages)
        } else {
            None
        };
        if let Some((held, _)) = run {
            self.cut(first, pages, held);
        }
        run.is_some()
    }

    /// Of `pages` that begin with extent number `first`, those that the process holds; and the pages of the extents that they lie in. `None` if
    /// fewer lie together.
    fn run(&self, first: usize, pages: usize) -> Option<(usize, usize)> {
        let (mut all, mut held, start) = (0, 0, self.free[first].start);
        for extent in &self.free[first..self.len] {
            if extent.start != start + all {
                return None;
            }
            held += if extent.freed > 0 { extent.pages.min(pages - all) } else { 0 };
            all += extent.pages;
            if all >= pages {
                return Some((held, all));
            }
        }
        None
    }

    /// Removes `pages`, of which the process holds `held`, from the extents that begin with number `first`.
    fn cut(&mut self, first: usize, mut pages: usize, held: usize) {
        self.held -= held;
        let mut last = first;
        while pages > 0 && self.free[last].pages <= pages {
            pages -= self.free[last].pages;
            last += 1;
        }
        if pages > 0 {
            self.free[last].start += pages;
            self.free[last].pages -= pages;
        }
        self.free.copy_within(last..self.len, first);
        self.len -= last - first;
    }

    /// Gives pages back, which the process holds. Returns whether the table had room to note them.
    pub(super) fn give(&mut self, start: usize, pages: usize) -> bool {
        if self.len == self.free.len() {
            return false;
        }
        self.clock += 1;
        self.held += pages;
        let at = self.free[..self.len].partition_point(|extent| extent.start < start);
        self.free.copy_within(at..self.len, at + 1);
        self.len += 1;
        self.free[at] = Free { start, pages, freed: self.clock };
        self.join(at);
        true
    }

    /// Joins extent number `at` with neighbours of the same kind.
    fn join(&mut self, at: usize) {
        for first in [Some(at), at.checked_sub(1)].into_iter().flatten() {
            if first + 1 >= self.len {
                continue;
            }
            let (left, right) = (self.free[first], self.free[first + 1]);
            if left.start + left.pages == right.start && (left.freed > 0) == (right.freed > 0) {
                let freed = left.freed.max(right.freed);
                self.free[first] = Free { pages: left.pages + right.pages, freed, ..left };
                self.free.copy_within(first + 2..self.len, first + 1);
                self.len -= 1;
            }
        }
    }

    /// Chooses `pages` free pages that the process holds, of the extent that was freed first; fewer if it has fewer, and all of it if the table
    /// has no room to divide it. They count as pages that take no memory: the caller drops their contents. Returns their start and number.
    pub(super) fn drop_oldest(&mut self, pages: usize) -> Option<(usize, usize)> {
        let held = self.free[..self.len].iter().enumerate().filter(|(_, extent)| extent.freed > 0);
        let (at, extent) = held.min_by_key(|(_, extent)| extent.freed).map(|(at, extent)| (at, *extent))?;
        let dropped = if self.len == self.free.len() { extent.pages } else { extent.pages.min(pages) };
        let start = extent.start + extent.pages - dropped;
        if dropped < extent.pages {
            self.free[at].pages -= dropped;
            self.free.copy_within(at + 1..self.len, at + 2);
            self.len += 1;
            self.free[at + 1] = Free { start, pages: dropped, freed: 0 };
            self.join(at + 1);
        } else {
            self.free[at].freed = 0;
            self.join(at);
        }
        self.held -= dropped;
        Some((start, dropped))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGES: usize = 64;

    /// What is done to a range of pages.
    #[derive(Clone, Copy, Debug)]
    enum Action {
        Take(usize),
        /// Gives the block of this number back, counted around.
        Give(usize),
        Grow(usize, usize),
        Drop(usize),
    }

    fn action() -> impl Strategy<Value = Action> {
        prop_oneof![
            (1..20_usize).prop_map(Action::Take),
            (0..100_usize).prop_map(Action::Give),
            (0..100_usize, 1..8_usize).prop_map(|(block, pages)| Action::Grow(block, pages)),
            (1..30_usize).prop_map(Action::Drop),
        ]
    }

    /// A page by page account of the same range.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Page {
        Used,
        Held,
        Empty,
    }

    proptest! {
        #[test]
        fn a_page_is_handed_out_once_and_held_pages_are_counted(actions in prop::collection::vec(action(), 1..200)) {
            let mut table = [Free::default(); 2 * PAGES];
            let mut extents = Extents::new(&mut table, PAGES);
            let (mut pages, mut blocks): (Vec<Page>, Vec<(usize, usize)>) = (vec![Page::Empty; PAGES], vec![]);
            let take = |pages: &mut [Page], start: usize, count: usize| {
                let held = pages[start..start + count].iter().filter(|page| **page == Page::Held).count();
                assert!(pages[start..start + count].iter().all(|page| *page != Page::Used), "{start} {count}");
                pages[start..start + count].fill(Page::Used);
                held
            };
            for action in actions {
                match action {
                    Action::Take(count) => match extents.take(count) {
                        Some(taken) => {
                            prop_assert_eq!(take(&mut pages, taken.start, count), taken.held);
                            blocks.push((taken.start, count));
                        }
                        None => prop_assert!(!pages.windows(count).any(|run| !run.contains(&Page::Used))),
                    },
                    Action::Give(block) if !blocks.is_empty() => {
                        let (start, count) = blocks.swap_remove(block % blocks.len());
                        prop_assert!(extents.give(start, count));
                        pages[start..start + count].fill(Page::Held);
                    }
                    Action::Grow(block, more) if !blocks.is_empty() => {
                        let at = block % blocks.len();
                        let (start, count) = blocks[at];
                        let end = start + count;
                        let free = end + more <= PAGES && !pages[end..end + more].contains(&Page::Used);
                        prop_assert_eq!(extents.take_at(end, more), free);
                        if free {
                            take(&mut pages, end, more);
                            blocks[at].1 += more;
                        }
                    }
                    Action::Drop(count) => match extents.drop_oldest(count) {
                        Some((start, dropped)) => {
                            prop_assert!(dropped <= count && pages[start..start + dropped].iter().all(|page| *page == Page::Held));
                            pages[start..start + dropped].fill(Page::Empty);
                        }
                        None => prop_assert!(!pages.contains(&Page::Held)),
                    },
                    Action::Give(_) | Action::Grow(..) => {}
                }
                prop_assert_eq!(extents.held(), pages.iter().filter(|page| **page == Page::Held).count());
            }
        }
    }

    #[test]
    fn pages_that_are_held_come_first_and_the_closest_fit_among_them() {
        let mut table = [Free::default(); 16];
        let mut extents = Extents::new(&mut table, 100);
        let starts: Vec<usize> = [8, 1, 3, 1, 4, 1].map(|pages| extents.take(pages).unwrap().start).to_vec();
        assert_eq!(starts, [0, 8, 9, 12, 13, 17]);
        for (start, pages) in [(0, 8), (9, 3), (13, 4)] {
            assert!(extents.give(start, pages));
        }
        assert_eq!(extents.take(3), Some(Taken { start: 9, held: 3 }));
        assert_eq!(extents.take(3), Some(Taken { start: 13, held: 3 }));
        assert_eq!(extents.take(9), Some(Taken { start: 18, held: 0 }));
        // The rest of the block that was freed last is dropped after the one that was freed first.
        assert_eq!(extents.drop_oldest(5), Some((3, 5)));
        assert_eq!(extents.take(4), Some(Taken { start: 0, held: 3 }));
    }

    #[test]
    fn a_full_table_refuses_and_stays_as_it_was() {
        let mut table = [Free::default(); 2];
        let mut extents = Extents::new(&mut table, 10);
        for _ in 0..4 {
            extents.take(1).unwrap();
        }
        assert!(extents.give(0, 1) && !extents.give(2, 1));
        assert_eq!((extents.held(), extents.take(1)), (1, Some(Taken { start: 0, held: 1 })));
    }
}
