//! Many independent items on a few threads.
//!
//! Results arrive with their item numbers, in the order in which they finish. The channel holds two results per thread, so
//! memory is bounded. The consumer can stop early; all threads are joined before [`for_each`] returns.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

use tandem_pipeline::{Worker, WorkerError};

/// Prefix of the thread names.
const THREAD_NAME: &str = "decode-";

/// Runs `work` for every number below `num_items` on `num_workers` threads (at least one), each with its own `scratch`.
/// Calls `take` with every result, on the calling thread.
///
/// Fails if a thread cannot be started or `work` panics; earlier results have been taken by then.
pub(crate) fn for_each<S, R: Send + 'static>(
    num_workers: usize,
    num_items: usize,
    scratch: impl Fn() -> S + Send + Sync + 'static,
    work: impl Fn(&mut S, usize) -> R + Send + Sync + 'static,
    mut take: impl FnMut(usize, R) -> ControlFlow<()>,
) -> Result<(), WorkerError> {
    let num_workers = num_workers.clamp(1, num_items.max(1));
    let (sender, results) = sync_channel(2 * num_workers);
    let shared = Arc::new((AtomicUsize::new(0), scratch, work));
    let mut workers = Vec::with_capacity(num_workers);
    for number in 0..num_workers {
        let (shared, sender) = (Arc::clone(&shared), sender.clone());
        let worker = Worker::spawn(format!("{THREAD_NAME}{number}"), move |stop| {
            let (next, scratch, work) = &*shared;
            let mut scratch = scratch();
            while !stop.is_raised() {
                let item = next.fetch_add(1, Ordering::Relaxed);
                // Sending fails once the consumer has stopped.
                if item >= num_items || sender.send((item, work(&mut scratch, item))).is_err() {
                    return;
                }
            }
        });
        match worker {
            Ok(worker) => workers.push(worker),
            Err(error) => {
                // Before the workers are joined: one of them may be blocked on sending its result.
                drop(results);
                return Err(error);
            }
        }
    }
    // Only the workers hold senders now: the results end with the last worker.
    drop(sender);
    for (item, result) in &results {
        if take(item, result).is_break() {
            break;
        }
    }
    drop(results);
    workers.into_iter().try_for_each(Worker::join)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn squares(num_workers: usize, num_items: usize) -> Vec<usize> {
        let mut found = vec![0; num_items];
        for_each(
            num_workers,
            num_items,
            || (),
            |(), item| item * item,
            |item, square| {
                found[item] = square;
                ControlFlow::Continue(())
            },
        )
        .unwrap();
        found
    }

    #[test]
    fn every_item_is_done_once_with_any_number_of_workers() {
        for num_items in [0, 1, 100] {
            let expected: Vec<usize> = (0..num_items).map(|item| item * item).collect();
            for num_workers in [0, 1, 3, 200] {
                assert_eq!(squares(num_workers, num_items), expected);
            }
        }
    }

    #[test]
    fn stopping_early_leaves_no_thread_waiting() {
        let mut taken = 0;
        for_each(
            2,
            usize::MAX,
            || (),
            |(), item| item,
            |_, _| {
                taken += 1;
                if taken == 5 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            },
        )
        .unwrap();
        assert_eq!(taken, 5);
    }

    #[test]
    fn a_panic_is_an_error() {
        let error = for_each(2, 10, || (), |(), item| assert_ne!(item, 7, "item 7"), |_, ()| ControlFlow::Continue(()));
        assert!(error.unwrap_err().to_string().contains("item 7"));
    }
}
