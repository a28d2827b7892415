//! Other libraries of the same process that use the same cards: PyTorch, CuPy, JAX.
//!
//! They share the card's primary context, so a pointer or a stream of one is valid in all. Two settings of a thread are
//! shared as well, and a call of ours must not change them for the caller: the current context, by which CUDA's run-time
//! library knows the current device, and the capture mode. While a thread of another library captures a graph in the global
//! mode, potentially unsafe calls of every other thread fail and invalidate that capture, unless the thread asked to be
//! restricted by its own captures only.

use crate::driver::ThreadState;
use crate::machine::Machine;
use crate::stream::Stream;
use crate::{Device, DeviceError, View};

/// Holding one means that this thread belongs to another library. Dropping it restores what the thread had set.
pub struct ForeignThread<'a> {
    machine: &'a Machine,
    before: ThreadState,
}

impl Machine {
    /// Before calls on a thread that belongs to another library. Hold the result until the calls are done.
    pub fn enter_foreign_thread(&self) -> ForeignThread<'_> {
        ForeignThread { machine: self, before: self.inner.driver.enter_thread(true) }
    }

    /// At the start of a thread of our own: captures of other libraries neither restrict its calls nor are invalidated by
    /// them.
    pub fn ignore_foreign_captures(&self) {
        let _ = self.inner.driver.enter_thread(false);
    }

    /// The card that CUDA, and so every library but `nvidia-smi`, knows by this number; `None` if there is none.
    pub fn card_of_ordinal(&self, ordinal: i32) -> Option<usize> {
        (0..self.cards().len()).find(|card| self.inner.driver.ordinal(*card) == Some(ordinal))
    }
}

impl Drop for ForeignThread<'_> {
    fn drop(&mut self) {
        self.machine.inner.driver.restore_thread(self.before);
    }
}

impl Device {
    /// CUDA's number of the card; `None` for the CPU and for simulated cards.
    pub fn ordinal(&self) -> Option<i32> {
        self.open.driver().ordinal(self.open.card)
    }

    /// A stream of another library, by its handle: for events only. It must exist as long as the result is used, and is never
    /// destroyed by it. On CUDA, 1 is the legacy default stream and 2 that of the calling thread.
    pub fn foreign_stream(&self, handle: u64) -> Stream {
        self.stream_of(handle, true)
    }
}

impl Stream {
    /// Whether another library is capturing a graph on it. An event that is recorded there would become a part of that graph,
    /// and so would every stream that waits for the event.
    pub fn is_captured(&self) -> Result<bool, DeviceError> {
        Ok(self.open.machine.faults().is_captured(self.id)
            || self.open.driver().is_capturing(self.open.card, self.id)?)
    }

    /// Its handle, by which other libraries know it.
    pub fn handle(&self) -> u64 {
        self.id
    }
}

impl View<'_> {
    /// The device pointer: on the CPU an address of this process. Who reads there keeps the block, and waits for the events
    /// of its writers, by other means than the borrow checker.
    pub fn pointer(&self) -> u64 {
        self.address().raw
    }
}

#[cfg(test)]
mod tests {
    use crate::machine::Machine;
    use crate::sim::SimSpec;

    #[test]
    fn a_foreign_stream_is_the_same_queue_and_is_not_destroyed() {
        let machine = Machine::simulated(SimSpec::new(1, 1 << 30));
        let device = machine.open(0).unwrap();
        let own = device.stream(false).unwrap();
        let event = device.event().unwrap();
        drop(device.foreign_stream(own.handle()));
        device.foreign_stream(own.handle()).record(&event).unwrap();
        own.drain().unwrap();
        assert!(event.reached().unwrap(), "it was recorded on the stream of that handle, which still exists");
    }

    #[test]
    fn only_cuda_cards_have_ordinals() {
        let machine = Machine::cpu();
        assert_eq!((machine.open(0).unwrap().ordinal(), machine.card_of_ordinal(0)), (None, None));
    }
}
