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
    /// The part of `arena_bytes` that the other role's card may access, in whole granules; 0 if both roles are on one
    /// device. It is a memory pool of its own: no other byte of the arena can be accessed from there.
    pub peer_bytes: u64,
    /// Whether the reservation comes from a driver memory pool that is capped at its size.
    pub capped: bool,
}

impl ArenaSpec {
    /// An arena without a limit beyond its size, of which the driver's memory is not a part and which no other card accesses.
    pub fn new(role: Role, arena_bytes: u64) -> ArenaSpec {
        ArenaSpec { role, limit_bytes: arena_bytes, driver_bytes: 0, arena_bytes, peer_bytes: 0, capped: false }
    }

    fn check(&self) -> Result<(), ArenaError> {
        let ArenaSpec { role, limit_bytes: limit, driver_bytes: driver, arena_bytes, peer_bytes, capped } = *self;
        // What the other card may access is a part of the arena.
        let asked = arena_bytes.max(peer_bytes);
        if asked.checked_add(driver).is_none_or(|sum| sum > limit) || peer_bytes > arena_bytes {
            return Err(ArenaError::NeverFits { role, owner: "the arena", asked, limit, driver });
        }
        // The driver would round such a cap up, above the limit.
        let pools = [peer_bytes, if capped { arena_bytes } else { 0 }];
        match pools.into_iter().find(|bytes| !bytes.is_multiple_of(POOL_GRANULE)) {
            Some(asked) => Err(ArenaError::NotWholeGranules { role, asked }),
            None => Ok(()),
        }
    }

    fn part_bytes(&self, part: Part) -> u64 {
        match part {
            Part::Private => self.arena_bytes - self.peer_bytes,
            Part::Peer => self.peer_bytes,
        }
    }
}

/// A part of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Only the arena's own card accesses it.
    Private,
    /// The other role's card may access it too.
    Peer,
}

impl Part {
    const BOTH: [Part; 2] = [Part::Private, Part::Peer];
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

    /// The size of a capped memory pool must be a multiple of 32 MiB.
    #[error("{role}: a memory pool of {asked} bytes is not a multiple of {POOL_GRANULE}; round it down")]
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
    /// One for each [`Part`]. `None` in split mode, where each block is a separate driver allocation, and for an empty part.
    held: [Option<Reservation>; 2],
    split: bool,
    state: Mutex<ArenaState>,
}

#[derive(Debug)]
struct ArenaState {
    /// The free bytes of each [`Part`].
    free: [FreeList; 2],
    in_use: u64,
    peak: u64,
    owners: BTreeMap<&'static str, u64>,
    /// Cards with access to the part for peers.
    peers: Vec<usize>,
    /// The blocks for peers of a split arena, by address.
    split_peer_blocks: BTreeMap<u64, Reservation>,
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
        let state = ArenaState {
            free: Part::BOTH.map(|part| FreeList::new(spec.part_bytes(part))),
            in_use: 0,
            peak: 0,
            owners: BTreeMap::new(),
            peers: Vec::new(),
            split_peer_blocks: BTreeMap::new(),
        };
        let mut inner = Inner { device: device.clone(), spec, held: [None, None], split, state: Mutex::new(state) };
        for part in Part::BOTH.into_iter().filter(|part| !split && spec.part_bytes(*part) > 0) {
            // On an error, dropping `inner` releases the first part.
            inner.held[part as usize] = Some(inner.reserve_part(part, spec.part_bytes(part))?);
        }
        Ok(Arena { inner: Arc::new(inner) })
    }

    /// Allocates `bytes` for `owner`. The block is aligned to [`BLOCK_ALIGN`], and its size counts rounded up to it.
    pub fn take(&self, owner: &'static str, bytes: u64) -> Result<Block, DeviceError> {
        self.take_from(Part::Private, owner, bytes)
    }

    /// The same from the part that the other role's card may access; from all of the arena if it has no such part.
    pub fn take_for_peer(&self, owner: &'static str, bytes: u64) -> Result<Block, DeviceError> {
        let part = if self.inner.spec.peer_bytes > 0 { Part::Peer } else { Part::Private };
        self.take_from(part, owner, bytes)
    }

    /// Allocates what is left, to test the memory: the longest free range of each part, `most` bytes together at most.
    pub fn take_rest(&self, owner: &'static str, most: u64) -> Result<Vec<Block>, DeviceError> {
        let mut left = most;
        let mut blocks = Vec::new();
        for part in Part::BOTH {
            let bytes = lock(&self.inner.state).free[part as usize].longest().min(left);
            if bytes > 0 {
                blocks.push(self.take_from(part, owner, bytes)?);
                left -= bytes;
            }
        }
        Ok(blocks)
    }

    fn take_from(&self, part: Part, owner: &'static str, bytes: u64) -> Result<Block, DeviceError> {
        let mut state = lock(&self.inner.state);
        if bytes > self.inner.spec.part_bytes(part) {
            return Err(self.refusal(&state, part, owner, bytes).into());
        }
        let span = round_up(bytes.max(1), BLOCK_ALIGN);
        let offset = state.free[part as usize].take(span).ok_or_else(|| self.refusal(&state, part, owner, span))?;
        let (address, own) = match self.inner.held[part as usize] {
            Some(reservation) => (reservation.base.plus(offset), None),
            None => match self.reserve_block(part, bytes.max(1), &state.peers) {
                Ok(own) => {
                    if part == Part::Peer {
                        state.split_peer_blocks.insert(own.base.raw, own);
                    }
                    (own.base, Some(own))
                }
                Err(error) => {
                    state.free[part as usize].give(offset, span);
                    return Err(error);
                }
            },
        };
        state.in_use += span;
        state.peak = state.peak.max(state.in_use);
        *state.owners.entry(owner).or_default() += span;
        Ok(Block { arena: self.inner.clone(), part, address, bytes, offset, span, owner, own })
    }

    /// One block of a split arena.
    fn reserve_block(&self, part: Part, bytes: u64, peers: &[usize]) -> Result<Reservation, DeviceError> {
        // Only a memory pool can be opened to another card, and its size is in granules.
        let own = match part {
            Part::Private => take_from_driver(&self.inner.device, bytes, false)?,
            Part::Peer => self.inner.reserve_part(part, round_up(bytes, POOL_GRANULE))?,
        };
        for &reader in peers.iter().filter(|_| part == Part::Peer) {
            if let Err(error) = self.inner.device.open.driver().allow_peer(&own, reader) {
                give_to_driver(&self.inner.device, own);
                return Err(error);
            }
        }
        Ok(own)
    }

    fn refusal(&self, state: &ArenaState, part: Part, owner: &'static str, asked: u64) -> ArenaError {
        let spec = &self.inner.spec;
        let (role, limit) = (spec.role, spec.limit_bytes);
        if asked > spec.part_bytes(part) {
            return ArenaError::NeverFits { role, owner, asked, limit, driver: spec.driver_bytes };
        }
        let (free, longest) = (state.free[part as usize].bytes(), state.free[part as usize].longest());
        if asked > free {
            let in_use = state.in_use + spec.driver_bytes;
            let mut largest = state.by_owner(spec.driver_bytes);
            largest.truncate(3);
            return ArenaError::Full { role, owner, asked, limit, in_use, largest };
        }
        ArenaError::Fragmented { role, owner, asked, free, longest }
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
        // With a cap, both parts are pools.
        match self.inner.held[0].or(self.inner.held[1]) {
            Some(held) if held.pool != 0 && self.inner.spec.capped => Strength::DriverPoolCap,
            Some(_) if self.inner.device.machine().kind() != DeviceKind::Cpu => Strength::PlannedReserved,
            // On the CPU, pages are committed when first touched; split arenas allocate blocks one by one.
            _ => Strength::Planned,
        }
    }

    /// Asks the driver's pools for one byte more than the reservation: `Some(true)` if all refuse, `None` without a capped
    /// pool.
    pub fn driver_refuses_more(&self) -> Result<Option<bool>, DeviceError> {
        let mut refuses = None;
        for held in self.inner.held.iter().flatten().filter(|held| held.pool != 0) {
            let this = self.inner.device.open.driver().pool_refuses_more(held)?;
            refuses = Some(refuses.unwrap_or(true) && this);
        }
        Ok(refuses)
    }

    /// Enables access of another card to the part of the arena that is meant for it.
    pub fn allow_peer(&self, reader: &Device) -> Result<(), DeviceError> {
        let mut state = lock(&self.inner.state);
        for held in self.inner.held[Part::Peer as usize].iter().chain(state.split_peer_blocks.values()) {
            self.inner.device.open.driver().allow_peer(held, reader.index())?;
        }
        state.peers.push(reader.index());
        Ok(())
    }

    /// Takes back every access that [`allow_peer`](Arena::allow_peer) enabled.
    pub fn deny_peers(&self) -> Result<(), DeviceError> {
        let mut state = lock(&self.inner.state);
        for reader in std::mem::take(&mut state.peers) {
            for held in self.inner.held[Part::Peer as usize].iter().chain(state.split_peer_blocks.values()) {
                self.inner.device.open.driver().deny_peer(held, reader)?;
            }
        }
        Ok(())
    }
}

impl Inner {
    /// Reserves `bytes` for a part. What another card may access is a memory pool, with or without a limit: access can be
    /// granted to a pool, or else to all memory of a context. A driver without pools has no peer access, and needs none if
    /// nothing is capped.
    fn reserve_part(&self, part: Part, bytes: u64) -> Result<Reservation, DeviceError> {
        let capped = self.spec.capped || part == Part::Peer;
        match take_from_driver(&self.device, bytes, capped) {
            Err(DeviceError::NoPools { .. }) if !self.spec.capped => take_from_driver(&self.device, bytes, false),
            reserved => reserved,
        }
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
        for held in self.held.iter_mut().filter_map(Option::take) {
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
    part: Part,
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

    /// Where it begins in its arena.
    pub fn offset(&self) -> u64 {
        self.offset
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
                state.split_peer_blocks.remove(&own.base.raw);
                give_to_driver(&self.arena.device, own);
            }
            None => self.arena.device.open.driver().block_freed(self.address, self.span),
        }
        state.free[self.part as usize].give(self.offset, self.span);
        state.in_use -= self.span;
        if let Some(bytes) = state.owners.get_mut(self.owner) {
            *bytes -= self.span;
        }
    }
}

#[cfg(test)]
mod tests;
