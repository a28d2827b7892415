//! A device for models: queues that run at any time, memory that detects unordered accesses, fences that fire late.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicUsize as ModelAtomicUsize;
use loom::sync::mpsc;
use loom::thread;
use tandem_pipeline::RingSlot;

/// State that loom must not see uses std's `Arc`, so that sharing it orders nothing.
type Shared<T> = std::sync::Arc<T>;

/// Memory of one slot. loom reports an access that is not ordered after the others, in any interleaving. Such an access
/// counts as torn, and so does an unexpected value.
#[derive(Clone)]
pub(crate) struct Memory {
    cell: Shared<Mutex<(UnsafeCell<()>, usize)>>,
    torn: Shared<AtomicBool>,
}

impl Memory {
    pub(crate) fn write(&self, value: usize) {
        let mut cell = self.cell.lock().unwrap();
        let touch = catch_unwind(AssertUnwindSafe(|| cell.0.with_mut(|_| ())));
        cell.1 = value;
        self.torn.fetch_or(touch.is_err(), Ordering::Relaxed);
    }

    pub(crate) fn read(&self, expected: usize) {
        let cell = self.cell.lock().unwrap();
        let touch = catch_unwind(AssertUnwindSafe(|| cell.0.with(|_| ())));
        self.torn.fetch_or(touch.is_err() || cell.1 != expected, Ordering::Relaxed);
    }
}

/// A fence: recorded on one side, waited for on the other. A wait is for the records made before it.
#[derive(Clone)]
pub(crate) struct Fence {
    recorded: Shared<AtomicUsize>,
    fired: Shared<ModelAtomicUsize>,
}

/// Which record of a fence.
#[derive(Clone)]
pub(crate) struct LoomRecord(Fence, usize);

impl Fence {
    fn new() -> Self {
        Self { recorded: Shared::new(AtomicUsize::new(0)), fired: Shared::new(ModelAtomicUsize::new(0)) }
    }

    pub(crate) fn record(&self) -> LoomRecord {
        LoomRecord(self.clone(), self.recorded.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub(crate) fn last(&self) -> LoomRecord {
        LoomRecord(self.clone(), self.recorded.load(Ordering::Relaxed))
    }
}

impl LoomRecord {
    pub(crate) fn fire(&self) {
        self.0.fired.store(self.1, Ordering::Release);
    }

    pub(crate) fn wait(&self) {
        while self.0.fired.load(Ordering::Acquire) < self.1 {
            thread::yield_now();
        }
    }
}

/// Work that can be queued on a stream.
pub(crate) enum Work {
    Write(Memory, usize),
    Read(Memory, usize),
    Wait(LoomRecord),
    Fire(LoomRecord),
    End,
}

/// A queue of work that a separate thread does in order, at any time.
#[derive(Clone)]
pub(crate) struct LoomStream(mpsc::Sender<Work>);

impl LoomStream {
    pub(crate) fn new() -> (Self, thread::JoinHandle<()>) {
        let (sender, queue) = mpsc::channel();
        let device = thread::spawn(move || {
            loop {
                match queue.recv().unwrap() {
                    Work::Write(memory, value) => memory.write(value),
                    Work::Read(memory, expected) => memory.read(expected),
                    Work::Wait(record) => record.wait(),
                    Work::Fire(record) => record.fire(),
                    Work::End => return,
                }
            }
        });
        (Self(sender), device)
    }

    pub(crate) fn queue(&self, work: Work) {
        self.0.send(work).unwrap();
    }

    pub(crate) fn record(&self, fence: &Fence) -> Result<(), Infallible> {
        self.queue(Work::Fire(fence.record()));
        Ok(())
    }

    pub(crate) fn wait(&self, fence: &Fence) -> Result<(), Infallible> {
        self.queue(Work::Wait(fence.last()));
        Ok(())
    }
}

/// `count` slots that set `torn` when their memory is accessed out of order.
pub(crate) fn slots(count: usize, torn: &Shared<AtomicBool>) -> Vec<RingSlot<Memory, Fence>> {
    (0..count)
        .map(|_| RingSlot {
            memory: Memory { cell: Shared::new(Mutex::new((UnsafeCell::new(()), 0))), torn: Shared::clone(torn) },
            written: Fence::new(),
            freed: Fence::new(),
        })
        .collect()
}
