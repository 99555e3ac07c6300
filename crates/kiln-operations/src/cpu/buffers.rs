//! Buffers of tasks that run at the same time.

use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use super::stored::Stored;

/// Runs `count` tasks, each with buffers that no other task uses meanwhile. All buffers exist before the first task begins, so that the memory
/// does not depend on how tasks are spread over threads. Tasks must not wait for other tasks.
pub fn run_with_buffers<I: ParallelIterator, B: Send>(
    tasks: I,
    count: usize,
    make: impl Fn() -> B + Sync,
    run: impl Fn(&mut B, I::Item) + Sync + Send,
) {
    let free: Vec<B> = (0..count.min(rayon::current_num_threads())).map(|_| make()).collect();
    let free = Mutex::new(free);
    let lock = || free.lock().unwrap_or_else(PoisonError::into_inner);
    tasks.for_each(|task| {
        let taken = lock().pop();
        let mut buffers = taken.unwrap_or_else(&make);
        run(&mut buffers, task);
        lock().push(buffers);
    });
}

/// Buffers for values of type `E` as f32, of `values` each. Values that are f32 already need none.
pub fn widened_buffers<E: Stored, const N: usize>(values: usize) -> [Vec<f32>; N] {
    [(); N].map(|()| Vec::with_capacity(if E::dtype().size() < size_of::<f32>() { values } else { 0 }))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[test]
    fn tasks_share_as_many_buffers_as_run_at_once() {
        for count in [0, 1, 1000] {
            let (made, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let make = || made.fetch_add(1, Relaxed);
            run_with_buffers((0..count).into_par_iter(), count, make, |_, _| _ = done.fetch_add(1, Relaxed));
            assert_eq!(made.into_inner(), count.min(rayon::current_num_threads()));
            assert_eq!(done.into_inner(), count);
        }
    }
}
