//! An open card.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::card::Card;
use crate::driver::{Driver, KernelId, StreamId};
use crate::error::DeviceError;
use crate::kernel::{Kernel, Source};
use crate::machine::Machine;
use crate::pinned::Pinned;
use crate::stream::{Event, Stream};

/// A card with an open context. Holding one of these means that work can be queued there. The card is closed when the
/// last handle, and everything created from it, is dropped.
#[derive(Clone)]
pub struct Device {
    pub(crate) open: Arc<OpenDevice>,
}

pub(crate) struct OpenDevice {
    pub(crate) machine: Machine,
    pub(crate) card: usize,
}

impl OpenDevice {
    pub(crate) fn driver(&self) -> &dyn Driver {
        self.machine.inner.driver.as_ref()
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        self.driver().close(self.card);
    }
}

/// A kernel ready to run on one card.
#[derive(Clone)]
pub struct LoadedKernel {
    pub(crate) kernel: &'static Kernel,
    pub(crate) id: KernelId,
    pub(crate) open: Arc<OpenDevice>,
}

impl Device {
    /// The card's properties.
    pub fn card(&self) -> &Card {
        &self.open.machine.cards()[self.open.card]
    }

    /// Its index, in the order of `nvidia-smi`.
    pub fn index(&self) -> usize {
        self.open.card
    }

    /// The machine it belongs to.
    pub fn machine(&self) -> &Machine {
        &self.open.machine
    }

    /// Creates a stream, with the highest priority or the lowest. The model's stream has the highest.
    pub fn stream(&self, high_priority: bool) -> Result<Stream, DeviceError> {
        let id = self.open.driver().create_stream(self.open.card, high_priority)?;
        self.open.machine.counts(self.open.card).streams.fetch_add(1, Ordering::Relaxed);
        Ok(self.stream_of(id, false))
    }

    pub(crate) fn stream_of(&self, id: StreamId, is_foreign: bool) -> Stream {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let (serial, capturing) = (SERIAL.fetch_add(1, Ordering::Relaxed), AtomicBool::new(false));
        Stream { open: self.open.clone(), id, serial, capturing, is_foreign }
    }

    /// Creates an event without timing.
    pub fn event(&self) -> Result<Event, DeviceError> {
        self.make_event(false)
    }

    /// Creates an event that also records the time at which it was reached.
    pub fn timer(&self) -> Result<Event, DeviceError> {
        self.make_event(true)
    }

    fn make_event(&self, timed: bool) -> Result<Event, DeviceError> {
        let id = self.open.driver().create_event(self.open.card, timed)?;
        Ok(Event { open: self.open.clone(), id })
    }

    /// Allocates pinned (page-locked) host memory that this card can copy to and from.
    pub fn pinned(&self, bytes: u64) -> Result<Pinned, DeviceError> {
        Pinned::new(self, bytes)
    }

    /// Loads a kernel; compiles it if it is not in the cubin cache.
    pub fn load(&self, kernel: &'static Kernel) -> Result<LoadedKernel, DeviceError> {
        let id = self.open.driver().load(self.open.card, kernel)?;
        Ok(LoadedKernel { kernel, id, open: self.open.clone() })
    }

    /// Loads several kernels, in their order. The machine's worker pool compiles the missing ones in parallel, and the
    /// cubin cache stores them: a small source takes about 70 ms of one core the first time, and almost nothing in later
    /// runs.
    pub fn load_all(&self, kernels: &[&'static Kernel]) -> Result<Vec<LoadedKernel>, DeviceError> {
        let sources: Vec<&'static Source> = kernels.iter().map(|kernel| kernel.source).collect();
        self.open.driver().compile(self.open.card, &sources, self.machine().workers())?;
        kernels.iter().map(|kernel| self.load(kernel)).collect()
    }

    /// Prepares GEMMs on this card: on NVIDIA cards opens cuBLASLt and creates its handle, which takes device memory. The
    /// first GEMM would do it too. Done here, a missing library is reported at once, and the memory counts as set-up.
    pub fn prepare_gemms(&self) -> Result<(), DeviceError> {
        self.open.driver().prepare_gemms(self.open.card)
    }

    /// Treats the card as lost, because its work does not end: from now on nothing waits for it, and nothing that it may
    /// still use is freed.
    pub(crate) fn abandon(&self) {
        self.open.driver().abandon(self.open.card);
    }

    /// Memory of this process on the card as the driver counts it; `None` if the driver does not report it.
    pub fn process_bytes(&self) -> Result<Option<u64>, DeviceError> {
        self.open.driver().process_bytes(self.open.card)
    }

    /// Free memory of the card as the driver counts it.
    pub fn free_bytes(&self) -> Result<u64, DeviceError> {
        Ok(self.open.driver().read(self.open.card)?.free_bytes)
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({})", self.card())
    }
}
