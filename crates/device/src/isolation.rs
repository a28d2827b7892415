//! Two roles, two budgets: set up once, before anything else is on the cards.

use std::sync::atomic::Ordering;

use tandem_events::{Emitter, Role, RunEvent};

use crate::arena::{Arena, ArenaSpec, RoleMemory};
use crate::bytes::{MIB, mib_ceil, show};
use crate::device::Device;
use crate::error::DeviceError;
use crate::leak::{MemoryGrowth, detect_leak};
use crate::machine::{DeviceKind, Machine};

/// One role's place: its card and all the memory it will ever have there.
#[derive(Clone)]
pub struct Partition {
    /// Whose it is.
    pub role: Role,
    /// The card.
    pub device: Device,
    /// The memory.
    pub arena: Arena,
}

/// Both roles, set up. Dropping it gives everything back.
pub struct Isolation {
    machine: Machine,
    /// What each card had free before we came: the fall-back where the driver gives no figure per process.
    free_before: Vec<(usize, u64)>,
    /// The data role's place.
    pub data: Partition,
    /// The model role's place.
    pub model: Partition,
}

/// Isolation cannot be set up now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IsolationError {
    /// It has been already, and is still in force.
    #[error("memory isolation is set up already; drop the first before setting up another")]
    Twice,
    /// Something is open on the card whose memory would not be counted.
    #[error(
        "memory isolation comes too late: GPU {card} is open already; set it up before anything else uses the card"
    )]
    TooLate {
        /// The card.
        card: usize,
    },
    /// The driver took more than the plan charged for it.
    #[error("the driver holds {} on GPU {card}, the plan charged {}; plan again with more room", show(*found), show(*planned))]
    DriverGrew {
        /// The card.
        card: usize,
        /// What it holds.
        found: u64,
        /// What was planned.
        planned: u64,
    },
    /// The process holds more on a card than its limits allow.
    #[error("this process holds {} on GPU {card}, over its limit of {}", show(*used), show(*limit))]
    Breach {
        /// The card.
        card: usize,
        /// What the driver counts.
        used: u64,
        /// The sum of the limits there.
        limit: u64,
    },
}

/// The process's use of one card against what it may use there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardUse {
    /// The card.
    pub card: usize,
    /// What the driver counts for this process; `None` where it does not say.
    pub used_bytes: Option<u64>,
    /// By how much the card's free memory fell since before we came: ours, and whatever others took meanwhile.
    pub fallen_bytes: u64,
    /// The sum of the limits of the roles there.
    pub limit_bytes: u64,
}

/// What both roles hold of the host's own memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostUse {
    /// Blocks of arenas that lie there: on the CPU and on simulated cards.
    pub arena_bytes: u64,
    /// Page-locked memory of their cards.
    pub pinned_bytes: u64,
}

impl Isolation {
    /// Opens the cards and reserves both roles' memory: all of it, or none. Fails where it is set up already, and where
    /// something else is open on one of the cards: its memory would not be counted.
    ///
    /// ```
    /// use tandem_device::{ArenaSpec, DeviceError, Isolation, IsolationError, Machine, SimSpec};
    /// use tandem_events::Role;
    ///
    /// let machine = Machine::simulated(SimSpec::new(2, 24 << 30));
    /// let spec = |role| {
    ///     let (driver_bytes, arena_bytes) = (1 << 30, 4 << 30);
    ///     ArenaSpec { role, limit_bytes: driver_bytes + arena_bytes, driver_bytes, arena_bytes, capped: true }
    /// };
    /// let set_up = || Isolation::set_up(&machine, (0, spec(Role::Data)), (1, spec(Role::Model)));
    ///
    /// let open = machine.open(1)?;
    /// let late = set_up().err().ok_or("the card is open")?;
    /// assert!(matches!(late, DeviceError::Isolation(IsolationError::TooLate { card: 1 })));
    /// drop(open);
    ///
    /// let roles = set_up()?;
    /// let twice = set_up().err().ok_or("it is set up")?;
    /// assert!(matches!(twice, DeviceError::Isolation(IsolationError::Twice)));
    ///
    /// let _slots = roles.data.arena.take("slots", 3 << 30)?;
    /// for now in roles.memory_stats() {
    ///     assert_eq!(now.owners.iter().map(|(_, bytes)| bytes).sum::<u64>(), now.used_bytes);
    ///     assert!(now.used_bytes <= now.peak_bytes && now.peak_bytes <= now.limit_bytes, "{now}");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_up(
        machine: &Machine,
        data: (usize, ArenaSpec),
        model: (usize, ArenaSpec),
    ) -> Result<Isolation, DeviceError> {
        if machine.inner.isolated.swap(true, Ordering::SeqCst) {
            return Err(IsolationError::Twice.into());
        }
        let made = Isolation::reserve(machine, data, model);
        if made.is_err() {
            machine.inner.isolated.store(false, Ordering::SeqCst);
        }
        made
    }

    fn reserve(
        machine: &Machine,
        data: (usize, ArenaSpec),
        model: (usize, ArenaSpec),
    ) -> Result<Isolation, DeviceError> {
        if let Some(card) = [data.0, model.0].into_iter().find(|card| machine.is_open(*card)) {
            return Err(IsolationError::TooLate { card }.into());
        }
        let mut free_before = Vec::new();
        for card in [data.0, model.0] {
            free_before.push((card, machine.read(card)?.free_bytes));
        }
        let partition = |(card, spec): (usize, ArenaSpec)| -> Result<Partition, DeviceError> {
            let device = machine.open(card)?;
            let arena = Arena::reserve(&device, spec)?;
            Ok(Partition { role: spec.role, device, arena })
        };
        Ok(Isolation { machine: machine.clone(), free_before, data: partition(data)?, model: partition(model)? })
    }

    /// The place of `role`.
    pub fn partition(&self, role: Role) -> &Partition {
        match role {
            Role::Data => &self.data,
            Role::Model => &self.model,
        }
    }

    /// What each role holds now, data first: which device, the limit, used, the peak, and who holds how much of it.
    pub fn memory_stats(&self) -> [RoleMemory; 2] {
        Role::BOTH.map(|role| self.partition(role).arena.memory())
    }

    /// The roles that have grown by more than `threshold_bytes` since `baseline`, which
    /// [`memory_stats`](Isolation::memory_stats) gave; [`DEFAULT_THRESHOLD`](crate::leak::DEFAULT_THRESHOLD) unless there is
    /// a reason.
    pub fn detect_leak(&self, baseline: &[RoleMemory; 2], threshold_bytes: u64) -> Vec<MemoryGrowth> {
        let now = self.memory_stats();
        baseline.iter().zip(&now).filter_map(|(before, now)| detect_leak(before, now, threshold_bytes)).collect()
    }

    /// The process's use of each card, as the driver counts it, against the sum of the limits there.
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

    /// Refuses when the process holds more on a card than its limits allow. Says nothing where the driver does not.
    pub fn check(&self) -> Result<Vec<CardUse>, DeviceError> {
        let cards = self.card_use()?;
        for now in &cards {
            if let Some(used) = now.used_bytes.filter(|used| *used > now.limit_bytes) {
                return Err(IsolationError::Breach { card: now.card, used, limit: now.limit_bytes }.into());
            }
        }
        Ok(cards)
    }

    /// After warm-up: what the driver took outside the arenas must be within what the plan charged for it.
    ///
    /// Not asked of split arenas: they are for memory checkers, which take gigabytes of their own beside us.
    pub fn settle(&self) -> Result<(), DeviceError> {
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

    /// What both roles hold of the host's own memory now.
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

    /// Logs both roles: emits what they hold, and by whom.
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
