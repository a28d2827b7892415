//! The arena: all device memory of one role, reserved once, handed out in blocks that carry their owner's name.
//!
//! Memory goes home one way only: a [`Block`] is dropped. No borrowing between roles, no growth, no byte past the
//! limit. What the driver holds for itself is charged to the arena as the owner `driver`, so that the sum an
//! arena shows is the sum the card feels.

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

/// What an arena is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaSpec {
    /// Whose memory it is.
    pub role: Role,
    /// What the role may hold, driver memory included.
    pub limit_bytes: u64,
    /// What the driver holds for the role outside the arena.
    pub driver_bytes: u64,
    /// What is reserved for blocks. With `driver_bytes` at most `limit_bytes`.
    pub arena_bytes: u64,
    /// Whether the driver's own pool cap is put behind the limit.
    pub capped: bool,
}

impl ArenaSpec {
    fn check(&self) -> Result<(), ArenaError> {
        let ArenaSpec { role, limit_bytes: limit, driver_bytes: driver, arena_bytes: asked, capped } = *self;
        if asked.checked_add(driver).is_none_or(|sum| sum > limit) {
            return Err(ArenaError::NeverFits { role, owner: "the arena", asked, limit, driver });
        }
        // The driver would round such a cap up, past what was asked for.
        match capped && !asked.is_multiple_of(POOL_GRANULE) {
            true => Err(ArenaError::NotWholeGranules { role, asked }),
            false => Ok(()),
        }
    }
}

/// How firmly a limit holds. The plan names it and never claims more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strength {
    /// Planned to the byte, and the arena refuses more; the memory itself is the host's, taken as it is touched.
    Planned,
    /// Planned to the byte and reserved at start; the arena refuses more.
    PlannedReserved,
    /// The same, and the driver's pool refuses more by itself.
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

/// An arena said no. The card itself was not asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArenaError {
    /// More than the role may ever hold: plan for less, or raise the limit.
    #[error(
        "{role}: {owner} asked for {asked} bytes, more than the limit of {limit} ever leaves ({driver} go to the driver)"
    )]
    NeverFits {
        /// Whose arena.
        role: Role,
        /// Who asked.
        owner: &'static str,
        /// For how many bytes.
        asked: u64,
        /// The role's limit.
        limit: u64,
        /// What the driver holds of it.
        driver: u64,
    },

    /// A capped arena comes in steps of 32 MiB.
    #[error("{role}: a capped arena of {asked} bytes is not a multiple of {POOL_GRANULE}; round it down")]
    NotWholeGranules {
        /// Whose arena.
        role: Role,
        /// For how many bytes.
        asked: u64,
    },

    /// Past the limit as things stand: something else must be given back first.
    #[error("{role}: {owner} asked for {asked} bytes with {in_use} of the limit of {limit} in use ({})", owners(.largest))]
    Full {
        /// Whose arena.
        role: Role,
        /// Who asked.
        owner: &'static str,
        /// For how many bytes.
        asked: u64,
        /// The role's limit.
        limit: u64,
        /// Bytes in use, driver included.
        in_use: u64,
        /// Who holds most, largest first.
        largest: Vec<(&'static str, u64)>,
    },

    /// Enough bytes are free, but not side by side.
    #[error("{role}: {owner} asked for {asked} bytes; {free} are free, but the longest piece has {longest}")]
    Scattered {
        /// Whose arena.
        role: Role,
        /// Who asked.
        owner: &'static str,
        /// For how many bytes.
        asked: u64,
        /// Free bytes in all.
        free: u64,
        /// The longest free piece.
        longest: u64,
    },
}

fn owners(largest: &[(&'static str, u64)]) -> String {
    let parts: Vec<String> = largest.iter().map(|(owner, bytes)| format!("{owner} {}", show(*bytes))).collect();
    parts.join(", ")
}

/// All device memory of one role. Cheap to clone; the reservation goes back when the last handle and the last
/// block are gone.
#[derive(Clone)]
pub struct Arena {
    inner: Arc<Inner>,
}

struct Inner {
    device: Device,
    spec: ArenaSpec,
    /// `None` in split mode, where each block has a reservation of its own, and when there is nothing to reserve.
    whole: Option<Reservation>,
    split: bool,
    books: Mutex<Books>,
}

#[derive(Debug)]
struct Books {
    free: FreeList,
    in_use: u64,
    peak: u64,
    owners: BTreeMap<&'static str, u64>,
    readers: Vec<usize>,
    /// The blocks of a split arena, by address.
    alone: BTreeMap<u64, Reservation>,
}

/// A reading of one role's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleMemory {
    /// Whose.
    pub role: Role,
    /// On which card.
    pub card: usize,
    /// What kind of device that is.
    pub kind: DeviceKind,
    /// What it is called.
    pub name: String,
    /// Its identity.
    pub uuid: String,
    /// What the role may hold.
    pub limit_bytes: u64,
    /// What it holds, driver memory included.
    pub used_bytes: u64,
    /// The most it ever held.
    pub peak_bytes: u64,
    /// Who holds how much, largest first.
    pub owners: Vec<(&'static str, u64)>,
}

impl Arena {
    /// Reserves a role's memory on a device. All of it is there, or nothing is.
    ///
    /// With `TANDEM_ARENA=split` in the environment every block becomes a driver allocation of its own, inside the
    /// same limit, so that a memory checker sees where each ends.
    pub fn reserve(device: &Device, spec: ArenaSpec) -> Result<Arena, DeviceError> {
        let split = std::env::var_os("TANDEM_ARENA").is_some_and(|mode| mode == "split");
        Arena::reserve_as(device, spec, split)
    }

    /// [`Arena::reserve`], with the choice of split mode made by the caller.
    pub fn reserve_as(device: &Device, spec: ArenaSpec, split: bool) -> Result<Arena, DeviceError> {
        spec.check()?;
        let whole = match split || spec.arena_bytes == 0 {
            true => None,
            false => Some(take_from_driver(device, spec.arena_bytes, spec.capped)?),
        };
        let books = Books {
            free: FreeList::new(spec.arena_bytes),
            in_use: 0,
            peak: 0,
            owners: BTreeMap::new(),
            readers: Vec::new(),
            alone: BTreeMap::new(),
        };
        Ok(Arena { inner: Arc::new(Inner { device: device.clone(), spec, whole, split, books: Mutex::new(books) }) })
    }

    /// Takes `bytes` for `owner`. The block starts at a multiple of [`BLOCK_ALIGN`] and counts as whole multiples.
    pub fn take(&self, owner: &'static str, bytes: u64) -> Result<Block, DeviceError> {
        let mut books = lock(&self.inner.books);
        if bytes > self.inner.spec.arena_bytes {
            return Err(self.refusal(&books, owner, bytes).into());
        }
        let span = round_up(bytes.max(1), BLOCK_ALIGN);
        let offset = books.free.take(span).ok_or_else(|| self.refusal(&books, owner, span))?;
        let (address, own) = match self.inner.whole {
            Some(whole) => (whole.base.plus(offset), None),
            None => match self.take_alone(bytes.max(1), &books.readers) {
                Ok(own) => {
                    books.alone.insert(own.base.raw, own);
                    (own.base, Some(own))
                }
                Err(error) => {
                    books.free.give(offset, span);
                    return Err(error);
                }
            },
        };
        books.in_use += span;
        books.peak = books.peak.max(books.in_use);
        *books.owners.entry(owner).or_default() += span;
        Ok(Block { arena: self.inner.clone(), address, bytes, offset, span, owner, own })
    }

    fn take_alone(&self, bytes: u64, readers: &[usize]) -> Result<Reservation, DeviceError> {
        let own = take_from_driver(&self.inner.device, bytes, false)?;
        for &reader in readers {
            if let Err(error) = self.inner.device.open.driver().allow_peer(&own, reader) {
                give_to_driver(&self.inner.device, own);
                return Err(error);
            }
        }
        Ok(own)
    }

    fn refusal(&self, books: &Books, owner: &'static str, asked: u64) -> ArenaError {
        let spec = &self.inner.spec;
        let (role, limit) = (spec.role, spec.limit_bytes);
        if asked > spec.arena_bytes {
            return ArenaError::NeverFits { role, owner, asked, limit, driver: spec.driver_bytes };
        }
        if books.in_use + asked > spec.arena_bytes {
            let in_use = books.in_use + spec.driver_bytes;
            let mut largest = books.by_owner(spec.driver_bytes);
            largest.truncate(3);
            return ArenaError::Full { role, owner, asked, limit, in_use, largest };
        }
        let longest = books.free.longest();
        ArenaError::Scattered { role, owner, asked, free: spec.arena_bytes - books.in_use, longest }
    }

    /// What the role holds now.
    pub fn memory(&self) -> RoleMemory {
        let books = lock(&self.inner.books);
        let spec = &self.inner.spec;
        RoleMemory {
            role: spec.role,
            card: self.inner.device.index(),
            kind: self.inner.device.machine().kind(),
            name: self.inner.device.card().name.clone(),
            uuid: self.inner.device.card().uuid.clone(),
            limit_bytes: spec.limit_bytes,
            used_bytes: books.in_use + spec.driver_bytes,
            peak_bytes: books.peak + spec.driver_bytes,
            owners: books.by_owner(spec.driver_bytes),
        }
    }

    /// Starts counting the peak anew, from what is held now.
    pub fn reset_peak(&self) {
        let mut books = lock(&self.inner.books);
        books.peak = books.in_use;
    }

    /// What it was made from.
    pub fn spec(&self) -> ArenaSpec {
        self.inner.spec
    }

    /// The card it lies on.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Whether every block is a driver allocation of its own.
    pub fn is_split(&self) -> bool {
        self.inner.split
    }

    /// How firmly its limit holds.
    pub fn strength(&self) -> Strength {
        match self.inner.whole {
            Some(held) if held.pool != 0 => Strength::DriverPoolCap,
            Some(_) if self.inner.device.machine().kind() != DeviceKind::Cpu => Strength::PlannedReserved,
            // On the CPU pages come when they are touched; split arenas take blocks one by one.
            _ => Strength::Planned,
        }
    }

    /// Asks the driver itself for one byte past the reservation: `Some(true)` when it refuses, `None` when no
    /// driver cap is in force.
    pub fn driver_refuses_more(&self) -> Result<Option<bool>, DeviceError> {
        match &self.inner.whole {
            Some(held) if held.pool != 0 => self.inner.device.open.driver().pool_refuses_more(held).map(Some),
            _ => Ok(None),
        }
    }

    /// Lets another card reach this memory without the host.
    pub fn allow_peer(&self, reader: &Device) -> Result<(), DeviceError> {
        let mut books = lock(&self.inner.books);
        for held in self.inner.whole.iter().chain(books.alone.values()) {
            self.inner.device.open.driver().allow_peer(held, reader.index())?;
        }
        books.readers.push(reader.index());
        Ok(())
    }
}

impl Books {
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
        if let Some(held) = self.whole.take() {
            give_to_driver(&self.device, held);
        }
    }
}

/// The one door to the driver's allocator: every call is counted.
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

/// Device memory of one owner. Dropping it gives it back to its arena.
///
/// The card may still be working on it then: whoever takes the bytes next must be ordered after that by an event,
/// as everywhere.
pub struct Block {
    arena: Arc<Inner>,
    address: Address,
    bytes: u64,
    offset: u64,
    span: u64,
    owner: &'static str,
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
    /// How many bytes were asked for.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Whom it is shown under.
    pub fn owner(&self) -> &'static str {
        self.owner
    }

    /// All of it.
    pub fn view(&self) -> View<'_> {
        View { block: self, offset: 0, bytes: self.bytes }
    }

    /// `bytes` from `offset` on. Panics when that is not inside the block: a layout of ours is wrong.
    pub fn part(&self, offset: u64, bytes: u64) -> View<'_> {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(inside, "part {offset}+{bytes} of {} ({} bytes)", self.owner, self.bytes);
        View { block: self, offset, bytes }
    }

    /// The card that really holds it: asked of the driver, not of our books.
    pub fn home(&self) -> Result<usize, DeviceError> {
        self.arena.device.open.driver().home_of(self.address)
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

    /// How many bytes it spans.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut books = lock(&self.arena.books);
        match self.own.take() {
            Some(own) => {
                books.alone.remove(&own.base.raw);
                give_to_driver(&self.arena.device, own);
            }
            None => self.arena.device.open.driver().forget(self.address, self.span),
        }
        books.free.give(self.offset, self.span);
        books.in_use -= self.span;
        if let Some(held) = books.owners.get_mut(self.owner) {
            *held -= self.span;
        }
    }
}

#[cfg(test)]
mod tests;
