//! Leak detection: whether a role's memory has grown since a baseline.

use tandem_events::Role;

use crate::arena::RoleMemory;
use crate::bytes::{MIB, show};

/// The default threshold: less growth is not reported as a leak.
pub const DEFAULT_THRESHOLD: u64 = 100 * MIB;

/// Growth of a role's memory since its baseline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryGrowth {
    /// The role.
    pub role: Role,
    /// How much it grew.
    pub grown_bytes: u64,
    /// The owners that grew and by how much, largest first.
    pub owners: Vec<(&'static str, u64)>,
}

impl std::fmt::Display for MemoryGrowth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} memory grew by {} since its baseline", self.role, show(self.grown_bytes))?;
        for (owner, bytes) in &self.owners {
            write!(f, ", {owner} by {}", show(*bytes))?;
        }
        Ok(())
    }
}

/// Compares a reading with its baseline: a leak if the role grew by more than `threshold_bytes` (usually
/// [`DEFAULT_THRESHOLD`]). [`Isolation::detect_leak`](crate::Isolation::detect_leak) reads and compares both roles.
///
/// ```
/// use tandem_device::leak::{DEFAULT_THRESHOLD, detect_leak};
/// use tandem_device::{Arena, ArenaSpec, Machine};
/// use tandem_events::Role;
///
/// let spec =
///     ArenaSpec::new(Role::Data, 1 << 30);
/// let arena = Arena::reserve(&Machine::cpu().open(0)?, spec)?;
/// let baseline = arena.memory();
/// let leaked = arena.take("slots", 101 << 20)?;
/// let leak = detect_leak(&baseline, &arena.memory(), DEFAULT_THRESHOLD).ok_or("101 MB of growth")?;
/// assert_eq!(leak.owners, [("slots", 101 << 20)]);
/// drop(leaked);
/// assert_eq!(detect_leak(&baseline, &arena.memory(), DEFAULT_THRESHOLD), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn detect_leak(baseline: &RoleMemory, now: &RoleMemory, threshold_bytes: u64) -> Option<MemoryGrowth> {
    let grown_bytes = now.used_bytes.saturating_sub(baseline.used_bytes);
    if grown_bytes <= threshold_bytes {
        return None;
    }
    let before = |owner: &str| baseline.owners.iter().find(|(name, _)| *name == owner).map_or(0, |(_, bytes)| *bytes);
    let grown = |(owner, bytes): &(&'static str, u64)| (*owner, bytes.saturating_sub(before(owner)));
    let mut owners: Vec<_> = now.owners.iter().map(grown).filter(|(_, bytes)| *bytes > 0).collect();
    owners.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    Some(MemoryGrowth { role: now.role, grown_bytes, owners })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(owners: &[(&'static str, u64)]) -> RoleMemory {
        let used_bytes = owners.iter().map(|(_, bytes)| bytes).sum();
        RoleMemory {
            role: Role::Data,
            card: 0,
            kind: crate::machine::DeviceKind::Cpu,
            name: String::new(),
            uuid: String::new(),
            limit_bytes: 1 << 40,
            used_bytes,
            peak_bytes: used_bytes,
            owners: owners.to_vec(),
        }
    }

    #[test]
    fn growth_past_the_threshold_names_the_owner_that_grew() {
        let baseline = memory(&[("slots", 300 * MIB), ("upload", 20 * MIB)]);
        let grown = memory(&[("slots", 300 * MIB), ("upload", 121 * MIB)]);
        let leak = detect_leak(&baseline, &grown, DEFAULT_THRESHOLD).expect("101 MB of growth");
        assert_eq!((leak.grown_bytes, leak.owners), (101 * MIB, vec![("upload", 101 * MIB)]));
        let at_threshold = memory(&[("slots", 300 * MIB), ("upload", 120 * MIB)]);
        assert_eq!(detect_leak(&baseline, &at_threshold, DEFAULT_THRESHOLD), None);
        assert_eq!(detect_leak(&grown, &baseline, DEFAULT_THRESHOLD), None);
    }
}
