//! Every chunk runs once, on any thread; panics reach the caller; no thread waits for a helper that cannot come.

use std::sync::Barrier;
use std::sync::atomic::AtomicU64;

use super::*;

const THREADS: [usize; 4] = [1, 2, 3, 7];

#[test]
fn every_chunk_is_worked_on_once_and_knows_its_index() {
    let check = |len: usize, chunk: usize| {
        let expected: Vec<u64> = (0..len as u64).map(|i| 1 + i / chunk as u64).collect();
        for threads in THREADS {
            let mut out = vec![0; len];
            let add = |i: usize, chunk: &mut [u64]| chunk.iter_mut().for_each(|x| *x += 1 + i as u64);
            Workers::with_threads(threads).each_chunk(&mut out, chunk, add);
            assert_eq!(out, expected, "{len} in chunks of {chunk} on {threads} threads");
        }
    };
    for (len, chunk) in [(0, 3), (1, 3), (3, 3), (4, 3), (1000, 7), (1000, 1000), (1000, 5000)] {
        check(len, chunk);
    }
}

#[test]
fn outputs_of_one_chunk_come_together() {
    for threads in THREADS {
        let workers = Workers::with_threads(threads);
        let (mut a, mut b, mut c) = (vec![0u8; 95], vec![0u16; 190], vec![0u32; 10]);
        workers.each_pair((&mut a, 10), (&mut b, 20), |i, a, b| {
            a.fill(i as u8);
            b.fill(a.len() as u16);
        });
        workers.each_triple((&mut a, 10), (&mut b, 20), (&mut c, 1), |i, a, b, c| {
            c[0] = (a.iter().map(|x| usize::from(*x)).sum::<usize>() + b.len() + i) as u32;
        });
        let expected: Vec<u32> = (0..10).map(|i| if i < 9 { 10 * i + 20 + i } else { 5 * 9 + 10 + 9 }).collect();
        assert_eq!(c, expected);
    }
}

#[test]
#[should_panic(expected = "different numbers of chunks")]
fn outputs_with_different_numbers_of_chunks_are_refused() {
    Workers::with_threads(2).each_pair((&mut [0; 10], 5), (&mut [0; 10], 4), |_, _, _| {});
}

#[test]
fn parts_of_any_size_are_worked_on_once() {
    for threads in THREADS {
        let sum = AtomicU64::new(0);
        let parts: Vec<Vec<u64>> = (0..50).map(|i| vec![i; i as usize % 4]).collect();
        let expected: u64 = parts.iter().enumerate().map(|(i, part)| i as u64 + part.iter().sum::<u64>()).sum();
        Workers::with_threads(threads).each_part(parts, |i, part| {
            sum.fetch_add(i as u64 + part.into_iter().sum::<u64>(), Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), expected);
    }
}

#[test]
fn chunks_run_concurrently() {
    // Each of the three chunks waits for the other two: one thread alone would never end.
    let (workers, meeting) = (Workers::with_threads(3), Barrier::new(3));
    workers.each_chunk(&mut [(); 3], 1, |_, _| {
        meeting.wait();
    });
}

#[test]
fn a_panic_in_any_chunk_reaches_the_caller_and_the_pool_stays_usable() {
    for threads in THREADS {
        let workers = Workers::with_threads(threads);
        for at in [0, 1, 49] {
            let all = || workers.each_chunk(&mut [0; 50], 1, |i, _| assert!(i != at, "chunk {i}"));
            let panic = catch_unwind(AssertUnwindSafe(all)).expect_err("a chunk panicked");
            assert_eq!(panic.downcast_ref::<String>().map(String::as_str), Some(format!("chunk {at}").as_str()));
        }
        let mut out = [0; 50];
        workers.each_chunk(&mut out, 1, |_, x| x[0] = 1);
        assert_eq!(out, [1; 50]);
    }
}

#[test]
fn nested_tasks_do_not_deadlock() {
    for threads in THREADS {
        let workers = Workers::with_threads(threads);
        let mut out = vec![0u64; 8 * 8 * 8];
        workers.each_chunk(&mut out, 64, |_, out| {
            workers.each_chunk(out, 8, |_, out| workers.each_chunk(out, 1, |i, x| x[0] = i as u64));
        });
        assert_eq!(out.iter().sum::<u64>(), 64 * 28);
    }
}

#[test]
fn several_threads_may_call_at_once_and_none_waits_for_anothers_helpers() {
    let workers = Workers::with_threads(2);
    let (busy, done) = (Barrier::new(3), Barrier::new(3));
    std::thread::scope(|scope| {
        // Keeps the caller and the only helper inside their chunks until the task below is done.
        scope.spawn(|| {
            workers.each_chunk(&mut [(); 2], 1, |_, _| {
                busy.wait();
                done.wait();
            });
        });
        busy.wait();
        let mut out = vec![0; 100];
        workers.each_chunk(&mut out, 1, |i, x| x[0] = i);
        assert!(out.iter().enumerate().all(|(i, x)| i == *x));
        done.wait();
    });
}

#[test]
#[should_panic(expected = "before the first task")]
fn the_number_of_threads_cannot_change_after_the_first_task() {
    let workers = Workers::new();
    workers.each_chunk(&mut [0; 2], 1, |_, _| {});
    workers.set_threads(3);
}
