//! Both roles with their memory limits, set up once, before anything else is open on the cards.

use std::sync::atomic::Ordering;

use tandem_events::{Emitter, Role, RunEvent};

use crate::arena::{Arena, ArenaSpec, RoleMemory};
use crate::bytes::{MIB, mib_ceil, show};
use crate::device::Device;
use crate::error::DeviceError;
use crate::leak::{MemoryGrowth, detect_leak};
use crate::machine::{DeviceKind, Machine};

/// One role's card and all of its memory there.
#[derive(Clone)]
pub struct Partition {
    /// The role.
    pub role: Role,
    /// The card.
    pub device: Device,
    /// The memory.
    pub arena: Arena,
}

impl Partition {
    /// The event that says that its memory is reserved.
    pub fn reserved_event(&self) -> RunEvent {
        let ArenaSpec { arena_bytes: bytes, limit_bytes, driver_bytes, .. } = self.arena.spec();
        RunEvent::ArenaReserved { role: self.role, card: self.device.index(), bytes, limit_bytes, driver_bytes }
    }
}

/// Both roles, set up. Dropping it frees everything.
pub struct Isolation {
    machine: Machine,
    /// Free memory of each card before the set-up: the fallback if the driver does not report memory per process.
    free_before: Vec<(usize, u64)>,
    /// The data role.
    pub data: Partition,
    /// The model role.
    pub model: Partition,
}

/// A role's card and the size of its arena there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleSetup {
    /// The card's index.
    pub card: usize,
    /// Its arena.
    pub arena: ArenaSpec,
}

/// Isolation cannot be set up, or a limit does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IsolationError {
    /// Another one is in force.
    #[error("memory isolation is already set up; drop the first before setting up another")]
    AlreadySetUp,
    /// Something else is open on the card; its memory would not be counted.
    #[error(
        "memory isolation comes too late: GPU {card} is already open; set it up before anything else uses the card"
    )]
    TooLate {
        /// The card.
        card: usize,
    },
    /// The driver's memory is more than planned.
    #[error("the driver uses {} on GPU {card}, {} were planned; plan again with more room", show(*found), show(*planned))]
    DriverGrew {
        /// The card.
        card: usize,
        /// The driver's memory.
        found: u64,
        /// The planned memory.
        planned: u64,
    },
    /// The process uses more memory on a card than its limits allow.
    #[error("this process uses {} on GPU {card}, over its limit of {}", show(*used), show(*limit))]
    LimitExceeded {
        /// The card.
        card: usize,
        /// Memory of this process, as the driver counts it.
        used: u64,
        /// The sum of the limits there.
        limit: u64,
    },
}

/// Memory of this process on one card, against its limits there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardUse {
    /// The card.
    pub card: usize,
    /// Memory of this process, as the driver counts it; `None` if the driver does not report it.
    pub used_bytes: Option<u64>,
    /// How much the card's free memory fell since the set-up, other processes included.
    pub fallen_bytes: u64,
    /// The sum of the limits of the roles there.
    pub limit_bytes: u64,
}

/// Host memory of both roles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostUse {
    /// Arena blocks in host memory: on the CPU and on simulated cards.
    pub arena_bytes: u64,
    /// Pinned memory of their cards.
    pub pinned_bytes: u64,
}

impl Isolation {
    /// Opens the cards and reserves both roles' memory: all of it, or none. Fails if isolation is already set up, or if
    /// something else is open on one of the cards, because its memory would not be counted.
    ///
    /// ```
    /// use tandem_device::{ArenaSpec, DeviceError, Isolation, IsolationError, Machine, RoleSetup, SimSpec};
    /// use tandem_events::Role;
    ///
    /// let machine = Machine::simulated(SimSpec::new(2, 24 << 30));
    /// let role = |role, card| {
    ///     let (driver_bytes, arena_bytes) = (1 << 30, 4 << 30);
    ///     let limit_bytes = driver_bytes + arena_bytes;
    ///     RoleSetup { card, arena: ArenaSpec { role, limit_bytes, driver_bytes, arena_bytes, peer_bytes: 0, capped: true } }
    /// };
    /// let set_up = || Isolation::set_up(&machine, role(Role::Data, 0), role(Role::Model, 1));
    ///
    /// let open = machine.open(1)?;
    /// let late = set_up().err().ok_or("the card is open")?;
    /// assert!(matches!(late, DeviceError::Isolation(IsolationError::TooLate { card: 1 })));
    /// drop(open);
    ///
    /// let roles = set_up()?;
    /// let twice = set_up().err().ok_or("it is set up")?;
    /// assert!(matches!(twice, DeviceError::Isolation(IsolationError::AlreadySetUp)));
    ///
    /// let _slots = roles.data.arena.take("slots", 3 << 30)?;
    /// for now in roles.memory_stats() {
    ///     assert_eq!(now.owners.iter().map(|(_, bytes)| bytes).sum::<u64>(), now.used_bytes);
    ///     assert!(now.used_bytes <= now.peak_bytes && now.peak_bytes <= now.limit_bytes, "{now}");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_up(machine: &Machine, data: RoleSetup, model: RoleSetup) -> Result<Isolation, DeviceError> {
        if machine.inner.isolated.swap(true, Ordering::SeqCst) {
            return Err(IsolationError::AlreadySetUp.into());
        }
        let made = Isolation::reserve(machine, data, model);
        if made.is_err() {
            machine.inner.isolated.store(false, Ordering::SeqCst);
        }
        made
    }

    fn reserve(machine: &Machine, data: RoleSetup, model: RoleSetup) -> Result<Isolation, DeviceError> {
        let cards = [data.card, model.card];
        if let Some(card) = cards.into_iter().find(|card| machine.is_open(*card)) {
            return Err(IsolationError::TooLate { card }.into());
        }
        let mut free_before = Vec::new();
        for card in cards {
            free_before.push((card, machine.read(card)?.free_bytes));
        }
        let partition = |setup: RoleSetup| -> Result<Partition, DeviceError> {
            let device = machine.open(setup.card)?;
            let arena = Arena::reserve(&device, setup.arena)?;
            Ok(Partition { role: setup.arena.role, device, arena })
        };
        Ok(Isolation { machine: machine.clone(), free_before, data: partition(data)?, model: partition(model)? })
    }

    /// The partition of `role`.
    pub fn partition(&self, role: Role) -> &Partition {
        match role {
            Role::Data => &self.data,
            Role::Model => &self.model,
        }
    }

    /// Each role's memory now, data first: device, limit, bytes in use, peak, bytes by owner.
    pub fn memory_stats(&self) -> [RoleMemory; 2] {
        Role::BOTH.map(|role| self.partition(role).arena.memory())
    }

    /// The roles that have grown by more than `threshold_bytes` (usually
    /// [`DEFAULT_THRESHOLD`](crate::leak::DEFAULT_THRESHOLD)) since `baseline`, a result of
    /// [`memory_stats`](Isolation::memory_stats).
    pub fn detect_leak(&self, baseline: &[RoleMemory; 2], threshold_bytes: u64) -> Vec<MemoryGrowth> {
        let now = self.memory_stats();
        baseline.iter().zip(&now).filter_map(|(before, now)| detect_leak(before, now, threshold_bytes)).collect()
    }

    /// Memory of this process on each card, as the driver counts it, against the sum of the limits there.
    pub fn card_use(&self) -> Result<Vec<CardUse>, DeviceError> {
        let read = |card: usize| {
            let here = Role::BOTH.map(|role| self.partition(role)).into_iter().filter(|p| p.device.index() == card);
            let limit_bytes = here.map(|p| p.arena.spec().limit_bytes).sum();
            let before = self.free_before.iter().find(|(other, _)| *other == card).map_or(0, |(_, free)| *free);
            let fallen_bytes = before.saturating_sub(self.machine.read(card)?.free_bytes);
            Ok(CardUse { card, used_bytes: self.machine.process_bytes(card)?, fallen_bytes, limit_bytes })
        };
        self.cards().into_iter().map(read).collect()
    }

    /// Fails if the process uses more memory on a card than its limits allow. Cards whose driver does not report memory
    /// per process pass.
    pub fn check(&self) -> Result<Vec<CardUse>, DeviceError> {
        let cards = self.card_use()?;
        for now in &cards {
            if let Some(used) = now.used_bytes.filter(|used| *used > now.limit_bytes) {
                return Err(IsolationError::LimitExceeded { card: now.card, used, limit: now.limit_bytes }.into());
            }
        }
        Ok(cards)
    }

    /// After warm-up: checks that the driver's memory outside the arenas is not more than planned.
    ///
    /// Split arenas are not checked: they are for compute-sanitizer, which takes gigabytes itself.
    pub fn check_driver_memory(&self) -> Result<(), DeviceError> {
        if self.model.arena.is_split() {
            return Ok(());
        }
        for now in self.check()? {
            let here: Vec<_> = Role::BOTH
                .map(|role| self.partition(role))
                .into_iter()
                .filter(|p| p.device.index() == now.card)
                .collect();
            let live = self.machine.counters(now.card).live_bytes;
            let planned = here.iter().map(|p| p.arena.spec().driver_bytes).sum();
            if let Some(found) = now.used_bytes.map(|used| used.saturating_sub(live)).filter(|found| *found > planned) {
                return Err(IsolationError::DriverGrew { card: now.card, found, planned }.into());
            }
        }
        Ok(())
    }

    /// Host memory of both roles now.
    pub fn host_use(&self) -> HostUse {
        let arena_bytes = match self.machine.kind() {
            DeviceKind::Cuda => 0,
            DeviceKind::Cpu | DeviceKind::Simulated => {
                let blocks = |arena: &Arena| arena.memory().used_bytes - arena.spec().driver_bytes;
                Role::BOTH.map(|role| blocks(&self.partition(role).arena)).iter().sum()
            }
        };
        let pinned = |card: usize| self.machine.counters(card).live_pinned_bytes;
        HostUse { arena_bytes, pinned_bytes: self.cards().into_iter().map(pinned).sum() }
    }

    /// Reports both roles' memory, in total and by owner.
    pub fn emit(&self, to: &Emitter) {
        for now in self.memory_stats() {
            to.emit(RunEvent::Memory {
                role: now.role,
                card: now.card,
                used_bytes: now.used_bytes,
                limit_bytes: now.limit_bytes,
                peak_bytes: now.peak_bytes,
            });
            let owners = now.owners.into_iter().map(|(owner, bytes)| (owner.to_owned(), bytes)).collect();
            to.emit(RunEvent::MemoryOwners { role: now.role, owners });
        }
    }

    /// The cards of both roles, each once.
    fn cards(&self) -> Vec<usize> {
        let mut cards = vec![self.data.device.index(), self.model.device.index()];
        cards.dedup();
        cards
    }
}

impl Drop for Isolation {
    fn drop(&mut self) {
        self.machine.inner.isolated.store(false, Ordering::SeqCst);
    }
}

impl std::fmt::Debug for Isolation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.memory_stats()).finish()
    }
}

impl std::fmt::Display for RoleMemory {
    /// `Data GPU 0: 5248/8192MB (64.1%)`
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.role {
            Role::Data => "Data ",
            Role::Model => "Model ",
        })?;
        match self.kind {
            DeviceKind::Cpu => f.write_str("CPU")?,
            DeviceKind::Cuda | DeviceKind::Simulated => write!(f, "GPU {}", self.card)?,
        }
        let (used, limit) = (mib_ceil(self.used_bytes), self.limit_bytes / MIB);
        let percent = 100.0 * self.used_bytes as f64 / self.limit_bytes.max(1) as f64;
        write!(f, ": {used}/{limit}MB ({percent:.1}%)")
    }
}
