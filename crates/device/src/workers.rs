//! The worker pool: threads that share the chunks of a task on the host.
//!
//! The caller splits the task by its shape, never by the number of threads, so that every chunk computes the same bits on
//! any thread. Threads claim chunks one by one from a counter. The calling thread works too; threads of the pool help
//! when they are free. It waits only for helpers that are inside a chunk, never for one that has not started: a training
//! step does not wait for features that keep all helpers busy, and calls from a pool thread or from inside a chunk cannot
//! deadlock.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::machine::lock;

/// The worker pool of a machine. Its threads (`tandem-compute-1`, …) start with the first task of more than one chunk,
/// and end after it was dropped.
#[derive(Default)]
pub struct Workers {
    threads: OnceLock<usize>,
    /// `None` if one thread is enough, or if the system cannot start more.
    helpers: OnceLock<Option<ThreadPool>>,
}

impl Workers {
    /// As many threads as the machine has cores, the calling thread included. Starts none.
    pub fn new() -> Workers {
        Workers::default()
    }

    /// `threads` threads, the calling thread included. Starts none. For tests and benchmarks; a machine has its own pool,
    /// see [`Machine::workers`](crate::Machine::workers).
    pub fn with_threads(threads: usize) -> Workers {
        let workers = Workers::new();
        workers.set_threads(threads);
        workers
    }

    /// The number of threads. No result may depend on it.
    pub fn threads(&self) -> usize {
        *self.threads.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
    }

    pub(crate) fn set_threads(&self, threads: usize) {
        assert!(threads > 0, "a worker pool needs a thread");
        assert!(self.threads.set(threads).is_ok(), "the number of compute threads is fixed before the first task");
    }

    /// Runs `work` for every chunk of `chunk` elements of `out` with the chunk's index; the last may be shorter.
    ///
    /// A single chunk runs on the calling thread. Otherwise waking helpers costs some microseconds: chunks of less than
    /// about 10 µs are not worth it. A panic in a chunk reaches the caller after all chunks have stopped.
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

    /// Runs `work` for every one of `parts` with its index: for chunks of different sizes.
    pub fn each_part<P: Send>(&self, parts: Vec<P>, work: impl Fn(usize, P) + Sync) {
        let mut parts: Vec<Option<P>> = parts.into_iter().map(Some).collect();
        self.each_chunk(&mut parts, 1, |i, part| {
            if let Some(part) = part[0].take() {
                work(i, part);
            }
        });
    }

    /// Runs `work` once for every index under `count`, concurrently and in any order.
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
            // Without helpers the caller does all the work, slower. That is no error.
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

/// Shares `count` chunks with the pool and works on them too until all are done.
fn share(pool: &ThreadPool, count: usize, work: &(dyn Fn(usize) + Sync)) {
    // SAFETY: only the lifetime changes. `Task` calls `work` between `enter` and `leave` only; `enter` refuses once
    // `close` was called, and `close`, which runs before this function returns or unwinds, waits for every `leave`.
    let work = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(work) };
    let task = Arc::new(Task { next: AtomicUsize::new(0), count, work, state: Mutex::default(), left: Condvar::new() });
    for _ in 1..count.min(pool.current_num_threads() + 1) {
        let task = task.clone();
        pool.spawn(move || task.help());
    }
    task.run_chunks();
    if let Some(panic) = task.close() {
        resume_unwind(panic);
    }
}

/// A task whose chunks are being shared.
struct Task {
    next: AtomicUsize,
    count: usize,
    work: &'static (dyn Fn(usize) + Sync),
    state: Mutex<TaskState>,
    left: Condvar,
}

#[derive(Default)]
struct TaskState {
    closed: bool,
    /// Pool threads that are inside the task.
    helpers: usize,
    panic: Option<Box<dyn Any + Send>>,
}

impl Task {
    fn help(&self) {
        if self.enter() {
            self.run_chunks();
            self.leave();
        }
    }

    fn enter(&self) -> bool {
        let mut state = lock(&self.state);
        state.helpers += usize::from(!state.closed);
        !state.closed
    }

    fn leave(&self) {
        lock(&self.state).helpers -= 1;
        self.left.notify_one();
    }

    /// Runs chunks until none is left. The first panic is stored, and all threads stop.
    fn run_chunks(&self) {
        let take = || Some(self.next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < self.count);
        let chunks = || std::iter::from_fn(take).for_each(self.work);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(chunks)) {
            self.next.store(self.count, Ordering::Relaxed);
            lock(&self.state).panic.get_or_insert(panic);
        }
    }

    /// Keeps further helpers out and waits for those inside.
    fn close(&self) -> Option<Box<dyn Any + Send>> {
        let mut state = lock(&self.state);
        state.closed = true;
        while state.helpers > 0 {
            state = self.left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.panic.take()
    }
}

/// A slice split into chunks that different threads may use at once.
struct Chunks<'a, T> {
    from: *mut T,
    len: usize,
    chunk: usize,
    _out: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: it represents the `&mut [T]` it was made of; `get` gives every chunk to one thread at most.
unsafe impl<T: Send> Sync for Chunks<'_, T> {}

impl<'a, T> Chunks<'a, T> {
    fn new(out: &'a mut [T], chunk: usize) -> Chunks<'a, T> {
        assert!(chunk > 0, "chunks of no elements");
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
