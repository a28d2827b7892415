//! Logs the memory of both roles and of the process every ten steps: often enough that a leak of 1 MiB per 100 steps has
//! forty readings within 500 steps.
//!
//! The step loop's thread reads it right after the step. Nothing blocks: two short locks, some counters, and one line of
//! `/proc`. A reading takes about 45 µs, and every tenth 100 µs more (measured while compilers shared the two cores): 0.3 %
//! of a step of 2 ms.

use tandem_device::{DeviceError, HostReading, HostUse, InjectedLeak, Isolation, resident_bytes};
use tandem_events::{Emitter, RunEvent};
use tandem_feed::Feed;

/// Steps from one reading to the next.
const EVERY_STEPS: u64 = 10;
/// Steps between two readings of the whole machine's memory: that page of `/proc` is long.
const MACHINE_STEPS: u64 = 100;

/// Reads memory and emits events.
pub struct MemoryWatch {
    /// The limit of the process at the last reading of the machine; `None` before the first.
    limit_bytes: Option<u64>,
    /// The injected leak, if any. It grows after each step, as a real one would.
    leak: Option<InjectedLeak>,
}

impl MemoryWatch {
    /// Fails if `TANDEM_FAULT` names an unknown fault.
    pub fn new() -> Result<MemoryWatch, DeviceError> {
        Ok(MemoryWatch { limit_bytes: None, leak: InjectedLeak::from_env()? })
    }

    /// Called after `step`: emits a reading when one is due.
    pub fn step(&mut self, step: u64, roles: &Isolation, feed: &Feed, to: &Emitter) {
        if let Some(Err(full)) = self.leak.as_mut().map(|leak| leak.grow(step, roles)) {
            to.emit(RunEvent::Note { text: format!("the injected leak stopped growing: {full}") });
        }
        if !step.is_multiple_of(EVERY_STEPS) {
            return;
        }
        roles.emit(to);
        // Without `/proc` there is no figure to log.
        if let Some(bytes) = resident_bytes() {
            to.emit(self.host(step, bytes, roles.host_use(), feed.cached_bytes() + feed.read_ahead_bytes()));
        }
    }

    fn host(&mut self, step: u64, bytes: u64, roles: HostUse, feed_bytes: u64) -> RunEvent {
        if step.is_multiple_of(MACHINE_STEPS) || self.limit_bytes.is_none() {
            self.limit_bytes = Some(bytes + HostReading::now().available_bytes);
        }
        let HostUse { arena_bytes, pinned_bytes } = roles;
        let accounted_bytes = arena_bytes + pinned_bytes + feed_bytes;
        let limit_bytes = self.limit_bytes.unwrap_or(u64::MAX);
        RunEvent::HostMemory { bytes, accounted_bytes, pinned_bytes, limit_bytes }
    }
}
