//! The arena: all device memory of one role, reserved once and allocated in blocks that carry their owner's name.
//!
//! Memory is freed in one way only: a [`Block`] is dropped. Roles do not borrow from each other, an arena does not grow,
//! and it never exceeds its limit. The driver's own memory counts as the owner `driver`, so that the sum of an arena's
//! owners is the role's memory on the card.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use tandem_events::Role;

use crate::bytes::{BLOCK_ALIGN, POOL_GRANULE, round_up, show};
use crate::device::Device;
use crate::driver::{Address, Reservation};
use crate::error::DeviceError;
use crate::free_list::FreeList;
use crate::machine::{DeviceKind, lock};

/// The owner that driver memory is shown under.
pub const DRIVER: &str = "driver";

/// The size and limits of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaSpec {
    /// The role that owns it.
    pub role: Role,
    /// The role's limit, driver memory included.
    pub limit_bytes: u64,
    /// The driver's memory for the role, outside the arena.
    pub driver_bytes: u64,
    /// Memory reserved for blocks. With `driver_bytes` at most `limit_bytes`.
    pub arena_bytes: u64,
    /// Whether the reservation comes from a driver memory pool that is capped at its size.
    pub capped: bool,
}

impl ArenaSpec {
    fn check(&self) -> Result<(), ArenaError> {
        let ArenaSpec { role, limit_bytes: limit, driver_bytes: driver, arena_bytes: asked, capped } = *self;
        if asked.checked_add(driver).is_none_or(|sum| sum > limit) {
            return Err(ArenaError::NeverFits { role, owner: "the arena", asked, limit, driver });
        }
        // The driver would round such a cap up, above the limit.
        match capped && !asked.is_multiple_of(POOL_GRANULE) {
            true => Err(ArenaError::NotWholeGranules { role, asked }),
            false => Ok(()),
        }
    }
}

/// How a limit is enforced. The plan prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strength {
    /// Planned to the byte and enforced by the arena. The memory is host memory, committed when it is first touched.
    Planned,
    /// Planned to the byte, reserved at start, and enforced by the arena.
    PlannedReserved,
    /// The same, and the driver's memory pool enforces it too.
    DriverPoolCap,
}

impl std::fmt::Display for Strength {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Strength::Planned => "planned",
            Strength::PlannedReserved => "planned+reserved",
            Strength::DriverPoolCap => "planned+reserved, driver pool cap",
        })
    }
}

/// An arena refused an allocation. The card itself was not asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArenaError {
    /// More than the role's limit: plan for less, or raise the limit.
    #[error(
        "{role}: {owner} asked for {asked} bytes, more than the limit of {limit} allows ({driver} of it are the driver's)"
    )]
    NeverFits {
        /// The arena's role.
        role: Role,
        /// The owner that asked.
        owner: &'static str,
        /// Bytes asked for.
        asked: u64,
        /// The role's limit.
        limit: u64,
        /// The driver's part of it.
        driver: u64,
    },

    /// The size of a capped arena must be a multiple of 32 MiB.
    #[error("{role}: a capped arena of {asked} bytes is not a multiple of {POOL_GRANULE}; round it down")]
    NotWholeGranules {
        /// The arena's role.
        role: Role,
        /// Bytes asked for.
        asked: u64,
    },

    /// The arena is too full: other blocks must be freed first.
    #[error("{role}: {owner} asked for {asked} bytes with {in_use} of the limit of {limit} in use ({})", owners(.largest))]
    Full {
        /// The arena's role.
        role: Role,
        /// The owner that asked.
        owner: &'static str,
        /// Bytes asked for.
        asked: u64,
        /// The role's limit.
        limit: u64,
        /// Bytes in use, driver included.
        in_use: u64,
        /// The largest owners, largest first.
        largest: Vec<(&'static str, u64)>,
    },

    /// Enough bytes are free, but not contiguous.
    #[error("{role}: {owner} asked for {asked} bytes; {free} are free, but the largest contiguous range has {longest}")]
    Fragmented {
        /// The arena's role.
        role: Role,
        /// The owner that asked.
        owner: &'static str,
        /// Bytes asked for.
        asked: u64,
        /// Free bytes in total.
        free: u64,
        /// The largest free range.
        longest: u64,
    },
}

fn owners(largest: &[(&'static str, u64)]) -> String {
    let parts: Vec<String> = largest.iter().map(|(owner, bytes)| format!("{owner} {}", show(*bytes))).collect();
    parts.join(", ")
}

/// All device memory of one role. Cheap to clone. The reservation is released when the last handle and the last block
/// are dropped.
#[derive(Clone)]
pub struct Arena {
    inner: Arc<Inner>,
}

struct Inner {
    device: Device,
    spec: ArenaSpec,
    /// `None` in split mode, where each block is a separate driver allocation, and for an empty arena.
    reservation: Option<Reservation>,
    split: bool,
    state: Mutex<ArenaState>,
}

#[derive(Debug)]
struct ArenaState {
    free: FreeList,
    in_use: u64,
    peak: u64,
    owners: BTreeMap<&'static str, u64>,
    /// Cards with peer access to this memory.
    peers: Vec<usize>,
    /// The blocks of a split arena, by address.
    split_blocks: BTreeMap<u64, Reservation>,
}

/// A reading of one role's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleMemory {
    /// The role.
    pub role: Role,
    /// Its card.
    pub card: usize,
    /// The kind of device.
    pub kind: DeviceKind,
    /// The card's name.
    pub name: String,
    /// The card's UUID.
    pub uuid: String,
    /// The role's limit.
    pub limit_bytes: u64,
    /// Bytes in use, driver memory included.
    pub used_bytes: u64,
    /// The most that was in use at once.
    pub peak_bytes: u64,
    /// Bytes in use by owner, largest first.
    pub owners: Vec<(&'static str, u64)>,
}

impl Arena {
    /// Reserves a role's memory on a device: all of it, or nothing.
    ///
    /// With `TANDEM_ARENA=split` in the environment every block becomes a separate driver allocation inside the same
    /// limit, so that compute-sanitizer sees the end of each.
    pub fn reserve(device: &Device, spec: ArenaSpec) -> Result<Arena, DeviceError> {
        let split = std::env::var_os("TANDEM_ARENA").is_some_and(|mode| mode == "split");
        Arena::reserve_as(device, spec, split)
    }

    /// [`Arena::reserve`]; the caller chooses split mode instead of the environment.
    pub fn reserve_as(device: &Device, spec: ArenaSpec, split: bool) -> Result<Arena, DeviceError> {
        spec.check()?;
        let reservation = match split || spec.arena_bytes == 0 {
            true => None,
            false => Some(take_from_driver(device, spec.arena_bytes, spec.capped)?),
        };
        let state = ArenaState {
            free: FreeList::new(spec.arena_bytes),
            in_use: 0,
            peak: 0,
            owners: BTreeMap::new(),
            peers: Vec::new(),
            split_blocks: BTreeMap::new(),
        };
        Ok(Arena {
            inner: Arc::new(Inner { device: device.clone(), spec, reservation, split, state: Mutex::new(state) }),
        })
    }

    /// Allocates `bytes` for `owner`. The block is aligned to [`BLOCK_ALIGN`], and its size counts rounded up to it.
    pub fn take(&self, owner: &'static str, bytes: u64) -> Result<Block, DeviceError> {
        let mut state = lock(&self.inner.state);
        if bytes > self.inner.spec.arena_bytes {
            return Err(self.refusal(&state, owner, bytes).into());
        }
        let span = round_up(bytes.max(1), BLOCK_ALIGN);
        let offset = state.free.take(span).ok_or_else(|| self.refusal(&state, owner, span))?;
        let (address, own) = match self.inner.reservation {
            Some(reservation) => (reservation.base.plus(offset), None),
            None => match self.reserve_block(bytes.max(1), &state.peers) {
                Ok(own) => {
                    state.split_blocks.insert(own.base.raw, own);
                    (own.base, Some(own))
                }
                Err(error) => {
                    state.free.give(offset, span);
                    return Err(error);
                }
            },
        };
        state.in_use += span;
        state.peak = state.peak.max(state.in_use);
        *state.owners.entry(owner).or_default() += span;
        Ok(Block { arena: self.inner.clone(), address, bytes, offset, span, owner, own })
    }

    fn reserve_block(&self, bytes: u64, peers: &[usize]) -> Result<Reservation, DeviceError> {
        let own = take_from_driver(&self.inner.device, bytes, false)?;
        for &reader in peers {
            if let Err(error) = self.inner.device.open.driver().allow_peer(&own, reader) {
                give_to_driver(&self.inner.device, own);
                return Err(error);
            }
        }
        Ok(own)
    }

    fn refusal(&self, state: &ArenaState, owner: &'static str, asked: u64) -> ArenaError {
        let spec = &self.inner.spec;
        let (role, limit) = (spec.role, spec.limit_bytes);
        if asked > spec.arena_bytes {
            return ArenaError::NeverFits { role, owner, asked, limit, driver: spec.driver_bytes };
        }
        if state.in_use + asked > spec.arena_bytes {
            let in_use = state.in_use + spec.driver_bytes;
            let mut largest = state.by_owner(spec.driver_bytes);
            largest.truncate(3);
            return ArenaError::Full { role, owner, asked, limit, in_use, largest };
        }
        let longest = state.free.longest();
        ArenaError::Fragmented { role, owner, asked, free: spec.arena_bytes - state.in_use, longest }
    }

    /// The role's memory now.
    pub fn memory(&self) -> RoleMemory {
        let state = lock(&self.inner.state);
        let spec = &self.inner.spec;
        RoleMemory {
            role: spec.role,
            card: self.inner.device.index(),
            kind: self.inner.device.machine().kind(),
            name: self.inner.device.card().name.clone(),
            uuid: self.inner.device.card().uuid.clone(),
            limit_bytes: spec.limit_bytes,
            used_bytes: state.in_use + spec.driver_bytes,
            peak_bytes: state.peak + spec.driver_bytes,
            owners: state.by_owner(spec.driver_bytes),
        }
    }

    /// Sets the peak to the bytes in use now.
    pub fn reset_peak(&self) {
        let mut state = lock(&self.inner.state);
        state.peak = state.in_use;
    }

    /// The spec it was made from.
    pub fn spec(&self) -> ArenaSpec {
        self.inner.spec
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Whether every block is a separate driver allocation.
    pub fn is_split(&self) -> bool {
        self.inner.split
    }

    /// How its limit is enforced.
    pub fn strength(&self) -> Strength {
        match self.inner.reservation {
            Some(held) if held.pool != 0 => Strength::DriverPoolCap,
            Some(_) if self.inner.device.machine().kind() != DeviceKind::Cpu => Strength::PlannedReserved,
            // On the CPU, pages are committed when first touched; split arenas allocate blocks one by one.
            _ => Strength::Planned,
        }
    }

    /// Asks the driver's pool for one byte more than the reservation: `Some(true)` if it refuses, `None` without a capped
    /// pool.
    pub fn driver_refuses_more(&self) -> Result<Option<bool>, DeviceError> {
        match &self.inner.reservation {
            Some(held) if held.pool != 0 => self.inner.device.open.driver().pool_refuses_more(held).map(Some),
            _ => Ok(None),
        }
    }

    /// Enables peer access of another card to this memory.
    pub fn allow_peer(&self, reader: &Device) -> Result<(), DeviceError> {
        let mut state = lock(&self.inner.state);
        for held in self.inner.reservation.iter().chain(state.split_blocks.values()) {
            self.inner.device.open.driver().allow_peer(held, reader.index())?;
        }
        state.peers.push(reader.index());
        Ok(())
    }
}

impl ArenaState {
    fn by_owner(&self, driver_bytes: u64) -> Vec<(&'static str, u64)> {
        let mut owners: Vec<_> = self.owners.iter().map(|(owner, bytes)| (*owner, *bytes)).collect();
        owners.push((DRIVER, driver_bytes));
        owners.retain(|(_, bytes)| *bytes > 0);
        owners.sort_by_key(|(owner, bytes)| (std::cmp::Reverse(*bytes), *owner));
        owners
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(held) = self.reservation.take() {
            give_to_driver(&self.device, held);
        }
    }
}

/// The only caller of the driver's allocator: every call is counted.
fn take_from_driver(device: &Device, bytes: u64, capped: bool) -> Result<Reservation, DeviceError> {
    let held = device.open.driver().reserve(device.index(), bytes, capped)?;
    let counts = device.machine().counts(device.index());
    counts.allocations.fetch_add(1, Ordering::Relaxed);
    let live = counts.live_bytes.fetch_add(held.bytes, Ordering::Relaxed) + held.bytes;
    counts.peak_bytes.fetch_max(live, Ordering::Relaxed);
    Ok(held)
}

fn give_to_driver(device: &Device, held: Reservation) {
    device.machine().counts(device.index()).live_bytes.fetch_sub(held.bytes, Ordering::Relaxed);
    device.open.driver().release(held);
}

/// Device memory of one owner. Dropping it returns it to its arena.
///
/// The card may still be using it then: an event must order the work of the next block in the same bytes after that.
pub struct Block {
    arena: Arc<Inner>,
    address: Address,
    bytes: u64,
    offset: u64,
    span: u64,
    owner: &'static str,
    /// In a split arena, the block's own driver allocation.
    own: Option<Reservation>,
}

/// A part of a block.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    block: &'a Block,
    offset: u64,
    bytes: u64,
}

impl Block {
    /// The number of bytes that were asked for.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Its owner's name.
    pub fn owner(&self) -> &'static str {
        self.owner
    }

    /// All of it.
    pub fn view(&self) -> View<'_> {
        View { block: self, offset: 0, bytes: self.bytes }
    }

    /// `bytes` bytes at `offset`. Panics if they are not inside the block, which is a bug in a layout.
    pub fn part(&self, offset: u64, bytes: u64) -> View<'_> {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(inside, "part {offset}+{bytes} of {} ({} bytes)", self.owner, self.bytes);
        View { block: self, offset, bytes }
    }

    /// The card that holds it, according to the driver.
    pub fn resident_card(&self) -> Result<usize, DeviceError> {
        self.arena.device.open.driver().card_of(self.address)
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Block({}, {} bytes on GPU {})", self.owner, self.bytes, self.address.card)
    }
}

impl View<'_> {
    pub(crate) fn address(&self) -> Address {
        self.block.address.plus(self.offset)
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut state = lock(&self.arena.state);
        match self.own.take() {
            Some(own) => {
                state.split_blocks.remove(&own.base.raw);
                give_to_driver(&self.arena.device, own);
            }
            None => self.arena.device.open.driver().block_freed(self.address, self.span),
        }
        state.free.give(self.offset, self.span);
        state.in_use -= self.span;
        if let Some(bytes) = state.owners.get_mut(self.owner) {
            *bytes -= self.span;
        }
    }
}

#[cfg(test)]
mod tests;
