//! The compute pool: threads that share the pieces of one piece of work on the host.
//!
//! The caller cuts the work, by its shape and never by the number of threads, so that every piece computes the same
//! bits whoever runs it. Pieces are taken one by one from a counter. The thread that asks works along; threads of the
//! pool help when they are free. It waits for helpers that are inside a piece, never for one that has not come yet:
//! the step is not held up by a feature of the feed that has all helpers, and asking from a thread of the pool, or
//! from inside a piece, cannot lock up.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::machine::lock;

/// The compute pool of a machine. Its threads (`tandem-compute-1` and on) start with the first work that has more than
/// one piece, and end after it was dropped.
#[derive(Default)]
pub struct Workers {
    threads: OnceLock<usize>,
    /// Nothing where one thread is enough, or where the system gives no more.
    helpers: OnceLock<Option<ThreadPool>>,
}

impl Workers {
    /// As many threads as the machine has cores, the caller of the moment included. Starts none.
    pub fn new() -> Workers {
        Workers::default()
    }

    /// `threads` threads, the caller of the moment included. Starts none. For tests and measurements; a machine brings
    /// its own, see [`Machine::workers`](crate::Machine::workers).
    pub fn with_threads(threads: usize) -> Workers {
        let workers = Workers::new();
        workers.set_threads(threads);
        workers
    }

    /// How many threads share the work. No result may depend on it.
    pub fn threads(&self) -> usize {
        *self.threads.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
    }

    pub(crate) fn set_threads(&self, threads: usize) {
        assert!(threads > 0, "work needs a thread");
        assert!(self.threads.set(threads).is_ok(), "the number of compute threads is fixed before the first work");
    }

    /// Runs `work` for every chunk of `chunk` elements of `out` with the chunk's index; the last may be shorter.
    ///
    /// One chunk alone runs on the caller's thread. Otherwise waking helpers costs some microseconds: chunks under
    /// about 10 µs of work are not worth it. A panic in a piece reaches the caller after all pieces have stopped.
    pub fn each_chunk<T: Send>(&self, out: &mut [T], chunk: usize, work: impl Fn(usize, &mut [T]) + Sync) {
        let chunks = Chunks::new(out, chunk);
        // SAFETY: `each` calls this once per index.
        self.each(chunks.count(), &|i| work(i, unsafe { chunks.get(i) }));
    }

    /// Like [`Workers::each_chunk`] over two outputs that have the same number of chunks.
    pub fn each_pair<T: Send, U: Send>(
        &self,
        (a, chunk_a): (&mut [T], usize),
        (b, chunk_b): (&mut [U], usize),
        work: impl Fn(usize, &mut [T], &mut [U]) + Sync,
    ) {
        let (a, b) = (Chunks::new(a, chunk_a), Chunks::new(b, chunk_b));
        assert_eq!(a.count(), b.count(), "outputs with different numbers of chunks");
        // SAFETY: `each` calls this once per index.
        self.each(a.count(), &|i| unsafe { work(i, a.get(i), b.get(i)) });
    }

    /// Like [`Workers::each_chunk`] over three outputs that have the same number of chunks.
    pub fn each_triple<T: Send, U: Send, V: Send>(
        &self,
        (a, chunk_a): (&mut [T], usize),
        (b, chunk_b): (&mut [U], usize),
        (c, chunk_c): (&mut [V], usize),
        work: impl Fn(usize, &mut [T], &mut [U], &mut [V]) + Sync,
    ) {
        let (a, b, c) = (Chunks::new(a, chunk_a), Chunks::new(b, chunk_b), Chunks::new(c, chunk_c));
        assert!(a.count() == b.count() && b.count() == c.count(), "outputs with different numbers of chunks");
        // SAFETY: `each` calls this once per index.
        self.each(a.count(), &|i| unsafe { work(i, a.get(i), b.get(i), c.get(i)) });
    }

    /// Runs `work` for every one of `parts` with its index: for pieces of different sizes.
    pub fn each_part<P: Send>(&self, parts: Vec<P>, work: impl Fn(usize, P) + Sync) {
        let mut parts: Vec<Option<P>> = parts.into_iter().map(Some).collect();
        self.each_chunk(&mut parts, 1, |i, part| {
            if let Some(part) = part[0].take() {
                work(i, part);
            }
        });
    }

    /// Runs `work` once for every index under `count`. The pieces may run at the same time and in any order.
    pub(crate) fn each(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        let helpers = if count > 1 { self.helpers() } else { None };
        match helpers {
            None => (0..count).for_each(work),
            Some(pool) => share(pool, count, work),
        }
    }

    fn helpers(&self) -> Option<&ThreadPool> {
        let start = || {
            let threads = self.threads() - 1;
            let name = |i| format!("tandem-compute-{}", i + 1);
            // Without helpers the caller does all of it, slower: nothing to fail for.
            (threads > 0).then(|| ThreadPoolBuilder::new().num_threads(threads).thread_name(name).build().ok())?
        };
        self.helpers.get_or_init(start).as_ref()
    }
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Workers({})", self.threads())
    }
}

/// How many pieces of at least `at_least` items `len` items make: at least one, and the same on every machine.
pub fn pieces(len: usize, at_least: usize) -> usize {
    (len / at_least.max(1)).max(1)
}

/// Asks the pool to help with `count` pieces and works along until all are done.
fn share(pool: &ThreadPool, count: usize, work: &(dyn Fn(usize) + Sync)) {
    // SAFETY: only the lifetime changes. `Task` calls `work` between `enter` and `leave` only; `enter` refuses once
    // `close` was called, and `close`, which runs before this function returns or unwinds, waits for every `leave`.
    let work = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(work) };
    let task =
        Arc::new(Task { next: AtomicUsize::new(0), count, work, inside: Mutex::default(), left: Condvar::new() });
    for _ in 1..count.min(pool.current_num_threads() + 1) {
        let task = task.clone();
        pool.spawn(move || task.help());
    }
    task.work_along();
    if let Some(panic) = task.close() {
        resume_unwind(panic);
    }
}

/// One piece of work that is being shared.
struct Task {
    next: AtomicUsize,
    count: usize,
    work: &'static (dyn Fn(usize) + Sync),
    inside: Mutex<Inside>,
    left: Condvar,
}

/// Who is at it.
#[derive(Default)]
struct Inside {
    closed: bool,
    helpers: usize,
    panic: Option<Box<dyn Any + Send>>,
}

impl Task {
    fn help(&self) {
        if self.enter() {
            self.work_along();
            self.leave();
        }
    }

    fn enter(&self) -> bool {
        let mut inside = lock(&self.inside);
        inside.helpers += usize::from(!inside.closed);
        !inside.closed
    }

    fn leave(&self) {
        lock(&self.inside).helpers -= 1;
        self.left.notify_one();
    }

    /// Takes pieces until none is left. The first panic is kept, and ends it for everybody.
    fn work_along(&self) {
        let take = || Some(self.next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < self.count);
        let pieces = || std::iter::from_fn(take).for_each(self.work);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(pieces)) {
            self.next.store(self.count, Ordering::Relaxed);
            lock(&self.inside).panic.get_or_insert(panic);
        }
    }

    /// Lets nobody in any more and waits for those inside.
    fn close(&self) -> Option<Box<dyn Any + Send>> {
        let mut inside = lock(&self.inside);
        inside.closed = true;
        while inside.helpers > 0 {
            inside = self.left.wait(inside).unwrap_or_else(PoisonError::into_inner);
        }
        inside.panic.take()
    }
}

/// A slice cut into chunks that different threads may hold at once.
struct Chunks<'a, T> {
    from: *mut T,
    len: usize,
    chunk: usize,
    _out: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: it stands for the `&mut [T]` it was made of; `get` hands every chunk to one thread at most.
unsafe impl<T: Send> Sync for Chunks<'_, T> {}

impl<'a, T> Chunks<'a, T> {
    fn new(out: &'a mut [T], chunk: usize) -> Chunks<'a, T> {
        assert!(chunk > 0, "chunks of nothing");
        Chunks { from: out.as_mut_ptr(), len: out.len(), chunk, _out: std::marker::PhantomData }
    }

    fn count(&self) -> usize {
        self.len.div_ceil(self.chunk)
    }

    /// # Safety
    /// At most once for every index under `count`.
    unsafe fn get(&self, i: usize) -> &'a mut [T] {
        let start = i * self.chunk;
        assert!(start < self.len, "chunk {i} of {}", self.count());
        // SAFETY: inside the slice, and no other chunk has these elements.
        unsafe { std::slice::from_raw_parts_mut(self.from.add(start), self.chunk.min(self.len - start)) }
    }
}

#[cfg(test)]
mod tests;
