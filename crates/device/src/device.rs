//! An opened card.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::card::Card;
use crate::driver::{Driver, KernelId};
use crate::error::DeviceError;
use crate::kernel::{Kernel, Source};
use crate::machine::Machine;
use crate::pinned::Pinned;
use crate::stream::{Event, Stream};

/// A card with its context open. Holding one of these means work can be queued there; dropping the last handle,
/// and everything made from it, closes the card.
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
    /// What it is.
    pub fn card(&self) -> &Card {
        &self.open.machine.cards()[self.open.card]
    }

    /// Its index, as `nvidia-smi` counts.
    pub fn index(&self) -> usize {
        self.open.card
    }

    /// The machine it belongs to.
    pub fn machine(&self) -> &Machine {
        &self.open.machine
    }

    /// A stream. An urgent one is served first when both have work: the model's.
    pub fn stream(&self, urgent: bool) -> Result<Stream, DeviceError> {
        let id = self.open.driver().create_stream(self.open.card, urgent)?;
        self.open.machine.counts(self.open.card).streams.fetch_add(1, Ordering::Relaxed);
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let (serial, capturing) = (SERIAL.fetch_add(1, Ordering::Relaxed), AtomicBool::new(false));
        Ok(Stream { open: self.open.clone(), id, serial, capturing })
    }

    /// An event that orders work.
    pub fn event(&self) -> Result<Event, DeviceError> {
        self.make_event(false)
    }

    /// An event that also remembers when it was reached.
    pub fn timer(&self) -> Result<Event, DeviceError> {
        self.make_event(true)
    }

    fn make_event(&self, timed: bool) -> Result<Event, DeviceError> {
        let id = self.open.driver().create_event(self.open.card, timed)?;
        Ok(Event { open: self.open.clone(), id })
    }

    /// Page-locked host memory that this card can copy to and from.
    pub fn pinned(&self, bytes: u64) -> Result<Pinned, DeviceError> {
        Pinned::new(self, bytes)
    }

    /// Makes a kernel ready, compiling it on first sight.
    pub fn load(&self, kernel: &'static Kernel) -> Result<LoadedKernel, DeviceError> {
        let id = self.open.driver().load(self.open.card, kernel)?;
        Ok(LoadedKernel { kernel, id, open: self.open.clone() })
    }

    /// The same for many, in their order. What has to be compiled is shared by the machine's workers, and kept on disk:
    /// a small source takes some 70 ms of one core the first time, and nothing to speak of in later runs.
    pub fn load_all(&self, kernels: &[&'static Kernel]) -> Result<Vec<LoadedKernel>, DeviceError> {
        let sources: Vec<&'static Source> = kernels.iter().map(|kernel| kernel.source).collect();
        self.open.driver().compile(self.open.card, &sources, self.machine().workers())?;
        kernels.iter().map(|kernel| self.load(kernel)).collect()
    }

    /// Opens what GEMMs need on this card: on NVIDIA cards cuBLASLt, found as the other libraries are, and a
    /// handle that takes device memory. The first GEMM would do it; done here, a missing library is known at once, and
    /// the memory is counted where it belongs.
    pub fn prepare_gemms(&self) -> Result<(), DeviceError> {
        self.open.driver().prepare_gemms(self.open.card)
    }

    /// Bytes this process holds on the card as the driver counts them; `None` where it does not say.
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
