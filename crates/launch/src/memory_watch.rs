//! What both roles and the process hold, told to the log every ten steps: often enough that a leak of 1 MiB in 100 steps has
//! forty readings before 500 steps are done.
//!
//! It is read on the thread that steps, right behind the step it belongs to. Nothing waits: two locks that are held for
//! moments, some counters, and one line of `/proc`. Some 45 µs a reading, and 100 µs more in every tenth, where two cores
//! were shared with compilers: 0.3 % of a step of 2 ms.

use tandem_device::{DeviceError, HostUse, InjectedLeak, Isolation, host_memory, resident_bytes};
use tandem_events::{Emitter, RunEvent};
use tandem_feed::Feed;

/// Steps from one reading to the next.
const EVERY_STEPS: u64 = 10;
/// Steps from one look at the memory of the whole machine to the next: that page of `/proc` is a long one.
const MACHINE_STEPS: u64 = 100;

/// Reads, and tells.
pub struct MemoryWatch {
    /// What the process could have held when that was last looked at; nothing before.
    limit_bytes: Option<u64>,
    /// Grows behind the steps, where a real leak would, if one is planted.
    leak: Option<InjectedLeak>,
}

impl MemoryWatch {
    /// Nothing is read yet. Fails where the environment asks for a leak that there is not.
    pub fn new() -> Result<MemoryWatch, DeviceError> {
        Ok(MemoryWatch { limit_bytes: None, leak: InjectedLeak::from_env()? })
    }

    /// `step` has ended: tells what is held now, where that is due.
    pub fn step(&mut self, step: u64, roles: &Isolation, feed: &Feed, to: &Emitter) {
        if let Some(Err(full)) = self.leak.as_mut().map(|leak| leak.grow(step, roles)) {
            to.emit(RunEvent::Note { text: format!("the planted leak grows no more: {full}") });
        }
        if !step.is_multiple_of(EVERY_STEPS) {
            return;
        }
        roles.emit(to);
        // Where the kernel does not say there is nothing to tell.
        if let Some(bytes) = resident_bytes() {
            to.emit(self.host(step, bytes, roles.host_use(), feed.cached_bytes()));
        }
    }

    fn host(&mut self, step: u64, bytes: u64, roles: HostUse, cached_bytes: u64) -> RunEvent {
        if step.is_multiple_of(MACHINE_STEPS) || self.limit_bytes.is_none() {
            let (_, available_bytes) = host_memory();
            self.limit_bytes = Some(bytes + available_bytes);
        }
        let HostUse { arena_bytes, pinned_bytes } = roles;
        let accounted_bytes = arena_bytes + pinned_bytes + cached_bytes;
        let limit_bytes = self.limit_bytes.unwrap_or(u64::MAX);
        RunEvent::HostMemory { bytes, accounted_bytes, pinned_bytes, limit_bytes }
    }
}
