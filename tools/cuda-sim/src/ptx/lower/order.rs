//! The order of basic blocks that lets diverged lanes meet again.
//!
//! Lanes that stand at different blocks are run lowest block first. They meet as early as the graph allows when each
//! loop is contiguous in the order and each block comes after its predecessors, back edges apart: a weak topological
//! order. Sources: Bourdoncle, "Efficient chaotic iteration strategies with widenings", 1993, section 4 (the order);
//! Diamos et al., "SIMD re-convergence at thread frontiers", MICRO 2011 (why it suffices).

/// The blocks that can be reached from block 0, in a weak topological order.
pub(crate) fn weak_topological(successors: &[Vec<u32>]) -> Vec<u32> {
    let everything: Vec<u32> = (0..successors.len() as u32).collect();
    let mut out = Vec::new();
    if !everything.is_empty() {
        arrange(successors, &everything, 0, &mut out);
    }
    out
}

/// Appends the blocks of `inside` that can be reached from `entry`, which comes first.
fn arrange(successors: &[Vec<u32>], inside: &[u32], entry: u32, out: &mut Vec<u32>) {
    let mut member = vec![false; successors.len()];
    for &b in inside {
        member[b as usize] = true;
    }
    for mut component in components(successors, &member, entry) {
        if component.len() == 1 {
            out.push(component[0]);
            continue;
        }
        // the block through which the loop is entered: the one that a depth-first search reaches first
        let head = component[0];
        out.push(head);
        component.remove(0);
        // without the head, the rest of the loop is cut open; its parts hang on what the head leads to
        rest(successors, &component, head, out);
    }
}

/// Arranges a loop without its head: everything that the head leads to inside of `body`.
fn rest(successors: &[Vec<u32>], body: &[u32], head: u32, out: &mut Vec<u32>) {
    let mut member = vec![false; successors.len()];
    for &b in body {
        member[b as usize] = true;
    }
    // the head is the entry, and no edge leads back to it
    member[head as usize] = true;
    let cut: Vec<Vec<u32>> = successors
        .iter()
        .enumerate()
        .map(|(b, next)| {
            if member[b] {
                next.iter().copied().filter(|&n| n != head && member[n as usize]).collect()
            } else {
                Vec::new()
            }
        })
        .collect();
    let mut inside = body.to_vec();
    inside.push(head);
    let from = out.len();
    arrange(&cut, &inside, head, out);
    // the head stands before the call already
    if let Some(at) = out[from..].iter().position(|&b| b == head) {
        out.remove(from + at);
    }
}

/// Strongly connected components of the members reachable from `entry`, in topological order; in each, the block that
/// the search reached first stands first (Tarjan's algorithm, without recursion).
fn components(successors: &[Vec<u32>], member: &[bool], entry: u32) -> Vec<Vec<u32>> {
    const NEW: u32 = u32::MAX;
    let count = successors.len();
    let (mut index, mut low, mut on_stack) = (vec![NEW; count], vec![0; count], vec![false; count]);
    let (mut stack, mut found, mut next_index) = (Vec::new(), Vec::new(), 0);
    let mut calls = vec![(entry, 0)];
    while let Some(&mut (block, ref mut at)) = calls.last_mut() {
        let b = block as usize;
        if *at == 0 {
            index[b] = next_index;
            low[b] = next_index;
            next_index += 1;
            stack.push(block);
            on_stack[b] = true;
        }
        // the last successor first: what a branch falls through to then comes before where it jumps
        let following = successors[b].iter().rev().nth(*at).copied();
        *at += 1;
        match following {
            Some(n) if !member[n as usize] => {}
            Some(n) if index[n as usize] == NEW => calls.push((n, 0)),
            Some(n) => {
                if on_stack[n as usize] {
                    low[b] = low[b].min(index[n as usize]);
                }
            }
            None => {
                calls.pop();
                if let Some(&(caller, _)) = calls.last() {
                    low[caller as usize] = low[caller as usize].min(low[b]);
                }
                if low[b] == index[b] {
                    let from = stack.iter().rposition(|&s| s == block).unwrap_or(0);
                    let component: Vec<u32> = stack.drain(from..).collect();
                    for &c in &component {
                        on_stack[c as usize] = false;
                    }
                    found.push(component);
                }
            }
        }
    }
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn position(order: &[u32], block: u32) -> usize {
        order.iter().position(|&b| b == block).expect("reachable")
    }

    #[test]
    fn arms_come_before_their_join() {
        // 0 -> 1, 2; 1 -> 3; 2 -> 3, written with the join in between
        let order = weak_topological(&[vec![2, 3], vec![], vec![1], vec![1]]);
        assert_eq!(order[0], 0);
        assert_eq!(order[3], 1);
    }

    #[test]
    fn a_loop_comes_before_its_exit() {
        // 0 -> 1; 1 -> 2 (exit), 3; 3 -> 1, 4; 4 -> 3 : an inner loop 3-4 inside the loop of head 1
        let order = weak_topological(&[vec![1], vec![2, 3], vec![], vec![1, 4], vec![3]]);
        assert_eq!(order, [0, 1, 3, 4, 2]);
    }

    #[test]
    fn unreachable_blocks_are_left_out() {
        assert_eq!(weak_topological(&[vec![2], vec![2], vec![]]), [0, 2]);
    }

    proptest! {
        #[test]
        fn every_reachable_block_stands_once(edges in prop::collection::vec((0_u32..12, 0_u32..12), 0..30)) {
            let mut successors = vec![Vec::new(); 12];
            for (from, to) in edges { successors[from as usize].push(to); }
            let order = weak_topological(&successors);
            let (mut seen, mut todo) = (vec![false; 12], vec![0_u32]);
            while let Some(b) = todo.pop() {
                if !std::mem::replace(&mut seen[b as usize], true) { todo.extend(&successors[b as usize]); }
            }
            for b in 0..12 {
                prop_assert_eq!(order.iter().filter(|&&o| o == b).count(), usize::from(seen[b as usize]));
            }
            // an edge against the order closes a loop: its target reaches its source
            for &from in &order {
                for &to in &successors[from as usize] {
                    if position(&order, to) > position(&order, from) { continue; }
                    let (mut met, mut todo) = (vec![false; 12], vec![to]);
                    while let Some(b) = todo.pop() {
                        if !std::mem::replace(&mut met[b as usize], true) { todo.extend(&successors[b as usize]); }
                    }
                    prop_assert!(met[from as usize]);
                }
            }
        }
    }
}
