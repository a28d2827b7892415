//! The machine: the cards that were found, their driver, and counters of what was opened and allocated on each.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::card::{Card, CardReading, PeerAttributes, Visibility};
use crate::cost::DriverCost;
use crate::cpu::CpuDriver;
use crate::cuda::CudaDriver;
use crate::device::{Device, OpenDevice};
use crate::driver::Driver;
use crate::error::DeviceError;
use crate::fault::Faults;
use crate::library::{FoundLibrary, LibraryError};
use crate::numa::NumaNode;
use crate::sim::{SimDriver, SimSpec};
use crate::workers::Workers;

/// The kind of devices of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The CPU and host memory.
    Cpu,
    /// NVIDIA cards.
    Cuda,
    /// Simulated cards: computed on the CPU, with simulated memory limits and links.
    Simulated,
}

impl DeviceKind {
    /// Its name in logs.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Cuda => "cuda",
            DeviceKind::Simulated => "simulated",
        }
    }
}

/// The cards of one machine. Cheap to clone; clones share their counters.
#[derive(Clone)]
pub struct Machine {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) driver: Arc<dyn Driver>,
    sim: Option<Arc<SimDriver>>,
    opened: Mutex<HashMap<usize, Weak<OpenDevice>>>,
    allowed: Mutex<Option<Vec<usize>>>,
    counts: Vec<Counts>,
    pub(crate) isolated: AtomicBool,
    pub(crate) faults: Faults,
    workers: Arc<Workers>,
}

/// Counters of one card, since the machine was created.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) contexts: AtomicU64,
    pub(crate) streams: AtomicU64,
    pub(crate) allocations: AtomicU64,
    pub(crate) pinned_allocations: AtomicU64,
    pub(crate) live_bytes: AtomicU64,
    pub(crate) peak_bytes: AtomicU64,
    pub(crate) live_pinned_bytes: AtomicU64,
}

/// A reading of [`Machine::counters`]: what this machine opened and allocated on one card, in total and now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CardCounters {
    /// Contexts opened in total.
    pub contexts: u64,
    /// Streams created in total.
    pub streams: u64,
    /// Driver allocations of device memory in total.
    pub allocations: u64,
    /// Driver allocations of pinned host memory in total.
    pub pinned_allocations: u64,
    /// Device memory allocated now.
    pub live_bytes: u64,
    /// The most device memory that was allocated at once.
    pub peak_bytes: u64,
    /// Pinned memory allocated now.
    pub live_pinned_bytes: u64,
}

impl Machine {
    /// The CPU and host memory, as one device.
    pub fn cpu() -> Machine {
        let workers = Arc::new(Workers::new());
        Machine::on(Arc::new(CpuDriver::new(workers.clone())), None, workers)
    }

    /// Simulated cards.
    pub fn simulated(spec: SimSpec) -> Machine {
        let workers = Arc::new(Workers::new());
        let sim = Arc::new(SimDriver::new(spec, workers.clone()));
        Machine::on(sim.clone(), Some(sim), workers)
    }

    /// The NVIDIA cards of this computer; `None` if it has none.
    ///
    /// If there is a card but no usable driver library, this is an error that says what was searched for and where. It
    /// never falls back to the CPU silently.
    pub fn cuda() -> Result<Option<Machine>, LibraryError> {
        Ok(CudaDriver::open()?.map(|driver| Machine::on(Arc::new(driver), None, Arc::default())))
    }

    /// The cards of a driver that a test made.
    #[cfg(test)]
    pub(crate) fn with_driver(driver: Arc<dyn Driver>) -> Machine {
        Machine::on(driver, None, Arc::default())
    }

    fn on(driver: Arc<dyn Driver>, sim: Option<Arc<SimDriver>>, workers: Arc<Workers>) -> Machine {
        let counts = driver.cards().iter().map(|_| Counts::default()).collect();
        Machine {
            inner: Arc::new(Inner {
                driver,
                sim,
                opened: Mutex::default(),
                allowed: Mutex::default(),
                counts,
                isolated: AtomicBool::new(false),
                faults: Faults::default(),
                workers,
            }),
        }
    }

    /// The kind of its devices.
    pub fn kind(&self) -> DeviceKind {
        self.inner.driver.kind()
    }

    /// Every card, in the order of `nvidia-smi`. The CPU counts as one.
    pub fn cards(&self) -> &[Card] {
        self.inner.driver.cards()
    }

    /// What decides which cards this process may use; `None` if it may use all of them.
    pub fn visibility(&self) -> Option<Visibility> {
        self.inner.driver.visibility()
    }

    /// Reads the state of card `index`. Opens no context on it.
    ///
    /// ```
    /// use tandem_device::{Machine, SimSpec};
    ///
    /// let machine = Machine::simulated(SimSpec::new(2, 24 << 30));
    /// let one = machine.read(1)?;
    /// assert_eq!((one.total_bytes, one.free_bytes), (24 << 30, 24 << 30));
    /// assert_eq!(machine.read_all()?[1], one);
    /// # Ok::<(), tandem_device::DeviceError>(())
    /// ```
    pub fn read(&self, index: usize) -> Result<CardReading, DeviceError> {
        self.card(index)?;
        self.inner.driver.read(index)
    }

    /// Reads the state of every card, in the order of [`Machine::cards`]. Opens no context.
    pub fn read_all(&self) -> Result<Vec<CardReading>, DeviceError> {
        (0..self.cards().len()).map(|index| self.read(index)).collect()
    }

    /// The NUMA node of the card; `None` on a machine with one node, if it is not known, and for the CPU.
    pub fn numa_node(&self, index: usize) -> Option<NumaNode> {
        let card = self.card(index).ok()?;
        let root = match (self.kind(), &self.inner.sim) {
            (DeviceKind::Cuda, _) => Path::new("/"),
            // A simulated card has a node only in a simulated machine.
            (_, Some(sim)) => sim.root()?,
            (_, None) => return None,
        };
        NumaNode::read(root, &card.bus_id)
    }

    /// Memory of this process on the card as the driver counts it, context and libraries included. `None` if the driver
    /// does not report it.
    pub fn process_bytes(&self, index: usize) -> Result<Option<u64>, DeviceError> {
        self.card(index)?;
        self.inner.driver.process_bytes(index)
    }

    /// Whether `reader` can access the memory of `owner` without the host.
    pub fn can_access_peer(&self, reader: usize, owner: usize) -> Result<bool, DeviceError> {
        self.card(reader)?;
        self.card(owner)?;
        self.inner.driver.can_access_peer(reader, owner)
    }

    /// What the driver says about the link over which `reader` would access the memory of `owner`, another card.
    pub fn peer_attributes(&self, reader: usize, owner: usize) -> Result<PeerAttributes, DeviceError> {
        self.card(reader)?;
        self.card(owner)?;
        self.inner.driver.peer_attributes(reader, owner)
    }

    /// From now on only `cards` may be opened. Later calls can only remove cards.
    pub fn restrict(&self, cards: &[usize]) {
        let mut allowed = lock(&self.inner.allowed);
        let now = cards.iter().copied().filter(|c| allowed.as_ref().is_none_or(|before| before.contains(c)));
        *allowed = Some(now.collect());
    }

    /// Opens a card: creates its context, or shares it if the card is already open. Dropping the last handle closes it.
    pub fn open(&self, index: usize) -> Result<Device, DeviceError> {
        let card = self.card(index)?;
        if let Some(by) = &card.hidden_by {
            return Err(DeviceError::Hidden { index, uuid: card.uuid.clone(), by: by.clone() });
        }
        if let Some(allowed) = lock(&self.inner.allowed).as_ref().filter(|allowed| !allowed.contains(&index)) {
            return Err(DeviceError::OutsideRun { index, allowed: allowed.clone() });
        }
        let mut opened = lock(&self.inner.opened);
        if let Some(open) = opened.get(&index).and_then(Weak::upgrade) {
            return Ok(Device { open });
        }
        self.inner.driver.open(index)?;
        self.counts(index).contexts.fetch_add(1, Ordering::Relaxed);
        let open = Arc::new(OpenDevice { machine: self.clone(), card: index });
        opened.insert(index, Arc::downgrade(&open));
        Ok(Device { open })
    }

    /// Whether the card is open now.
    pub fn is_open(&self, index: usize) -> bool {
        lock(&self.inner.opened).get(&index).is_some_and(|open| open.strong_count() > 0)
    }

    /// The counters of card `index`.
    pub fn counters(&self, index: usize) -> CardCounters {
        let counts = self.counts(index);
        CardCounters {
            contexts: counts.contexts.load(Ordering::Relaxed),
            streams: counts.streams.load(Ordering::Relaxed),
            allocations: counts.allocations.load(Ordering::Relaxed),
            pinned_allocations: counts.pinned_allocations.load(Ordering::Relaxed),
            live_bytes: counts.live_bytes.load(Ordering::Relaxed),
            peak_bytes: counts.peak_bytes.load(Ordering::Relaxed),
            live_pinned_bytes: counts.live_pinned_bytes.load(Ordering::Relaxed),
        }
    }

    /// The simulator, to read its counters; `None` for real devices.
    pub fn sim(&self) -> Option<&SimDriver> {
        self.inner.sim.as_deref()
    }

    /// The worker pool for work on the host: host kernels, and GEMMs on the CPU and on simulated cards. Its threads start
    /// with the first task of more than one chunk.
    pub fn workers(&self) -> &Workers {
        &self.inner.workers
    }

    /// Sets the number of threads for work on the host, the calling thread included. The default is the number of cores.
    /// Results do not depend on it.
    ///
    /// Panics with 0, and if it is called twice or after the first task.
    pub fn set_compute_threads(&self, threads: usize) {
        self.inner.workers.set_threads(threads);
    }

    /// Faults that tests inject.
    pub fn faults(&self) -> &Faults {
        &self.inner.faults
    }

    /// The libraries of the devices, and where each was found.
    pub fn libraries(&self) -> Vec<FoundLibrary> {
        self.inner.driver.libraries()
    }

    /// The driver's version.
    pub fn driver_version(&self) -> String {
        self.inner.driver.driver_version()
    }

    /// The clock of these devices. Simulated cards have a simulated one, which advances only as work is waited for.
    pub fn now_ns(&self) -> u64 {
        self.inner.driver.now_ns()
    }

    /// The driver's memory on a simulated card, from a table, and on the CPU; `None` for real cards, which are probed.
    pub fn known_driver_cost(&self) -> Option<DriverCost> {
        match self.kind() {
            DeviceKind::Cuda => None,
            DeviceKind::Cpu => Some(DriverCost::zero()),
            DeviceKind::Simulated => Some(DriverCost::table()),
        }
    }

    pub(crate) fn counts(&self, index: usize) -> &Counts {
        &self.inner.counts[index]
    }

    fn card(&self, index: usize) -> Result<&Card, DeviceError> {
        let found = self.cards().len();
        self.cards().get(index).ok_or(DeviceError::NoSuchCard { index, found })
    }
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine").field("kind", &self.kind()).field("cards", &self.cards()).finish()
    }
}

/// Locks, also after a panic in another thread: the data under these mutexes is consistent between any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
