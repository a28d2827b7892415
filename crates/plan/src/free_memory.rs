//! The free memory of each device. On the host, the process itself needs some of it next to the arenas.

use tandem_device::HostLimit;
use tandem_device::bytes::{MIB, show, show_free};

use crate::hardware::{CardFacts, Hardware, HostFacts};
use crate::model_memory::ModelMemory;

/// What can still be reserved on the cards and on the host.
#[derive(Clone, Copy)]
pub(crate) struct FreeMemory<'a> {
    hardware: &'a Hardware,
    /// Host memory that is not for arenas: the process itself, and recordings that it reads ahead.
    own_bytes: OwnBytes,
}

/// Host memory of a run besides arenas, pinned buffers and the cache.
#[derive(Clone, Copy, Default)]
pub(crate) struct OwnBytes {
    /// See [`process_bytes`].
    pub(crate) process: u64,
    /// Recordings fetched ahead from an object store.
    pub(crate) read_ahead: u64,
}

impl OwnBytes {
    pub(crate) fn total(self) -> u64 {
        self.process.saturating_add(self.read_ahead)
    }
}

impl<'a> FreeMemory<'a> {
    /// The free memory of `hardware` for a run that needs `own_bytes` of host memory for itself.
    pub(crate) fn new(hardware: &'a Hardware, own_bytes: OwnBytes) -> FreeMemory<'a> {
        FreeMemory { hardware, own_bytes }
    }

    /// Host memory that is not for arenas.
    pub(crate) fn own_bytes(&self) -> OwnBytes {
        self.own_bytes
    }

    /// The machine.
    pub(crate) fn hardware(&self) -> &'a Hardware {
        self.hardware
    }

    /// What arenas can take on a card, or on the host.
    pub(crate) fn of(&self, card: Option<usize>) -> u64 {
        match card {
            Some(index) => self.hardware.card(index).map_or(0, |facts| facts.reading.free_bytes),
            None => self.hardware.host.available_bytes.saturating_sub(self.own_bytes.total()),
        }
    }

    /// Total and free memory, and which processes use the rest.
    pub(crate) fn describe(&self, card: Option<usize>) -> String {
        let Some(CardFacts { reading, .. }) = card.and_then(|index| self.hardware.card(index)) else {
            let limit = self.hardware.host.limited_by.map_or_else(String::new, |limit| format!(" ({limit})"));
            let own = match self.own_bytes.process {
                0 => String::new(),
                bytes => format!("; the process itself needs {}", show(bytes)),
            };
            let ahead = match self.own_bytes.read_ahead {
                0 => String::new(),
                bytes => format!(", recordings read ahead {}", show(bytes)),
            };
            return format!("free: {}{limit}{own}{ahead}", show_free(self.hardware.host.available_bytes));
        };
        let mut text = format!("total {}, free {}", show(reading.total_bytes), show_free(reading.free_bytes));
        for process in &reading.processes {
            let name = process.name.as_deref().unwrap_or("a process without a readable name");
            text.push_str(&format!("\n   used: {} by {name} (pid {})", show(process.bytes), process.pid));
        }
        let known: u64 = reading.processes.iter().map(|process| process.bytes).fold(0, u64::saturating_add);
        let rest = reading.total_bytes.saturating_sub(reading.free_bytes).saturating_sub(known);
        if rest > 0 {
            text.push_str(&format!("\n   used: {} by the driver and unnamed processes", show(rest)));
        }
        text
    }
}

/// Program, stacks, dictionaries, and what decoding and logging hold.
const FIXED_BYTES: u64 = 48 * MIB;

/// The stack of a thread.
const STACK_BYTES: u64 = 2 * MIB;
/// Address space that the C library's allocator reserves for a thread, whether it is used or not.
const HEAP_BYTES: u64 = 64 * MIB;
/// Threads besides those that decode and compute: training, data, transfer, log, samples and the like.
const OTHER_THREADS: u64 = 8;

/// Host memory that a run needs besides arenas, pinned buffers and the cache. A checkpoint is copied before it is written
/// (weights, EMA and both moments), and audio samples load another one: together a little more than the training state.
/// Measured: 51 to 81 MB for nano (state 38 MB), 185 to 278 for tiny (207), 583 to 764 for small (607).
///
/// `ulimit -v` and `ulimit -d` count what is reserved, used or not. Measured for nano with 14 threads: 900 MB more.
pub(crate) fn process_bytes(model: &dyn ModelMemory, decode_threads: u64, host: &HostFacts) -> u64 {
    let state: u64 = model.persistent().iter().map(|line| line.bytes).sum();
    let per_thread = match host.limited_by {
        Some(HostLimit::AddressSpace { .. }) => STACK_BYTES + HEAP_BYTES,
        Some(HostLimit::Data { .. }) => STACK_BYTES,
        Some(HostLimit::Cgroup { .. }) | None => 0,
    };
    FIXED_BYTES + state + state / 4 + (decode_threads + host.cores as u64 + OTHER_THREADS) * per_thread
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Chains, gpus, host, settings};
    use crate::model_memory::{ModelCatalog as _, ModelChoice};
    use crate::placement::Precision;
    use crate::plan::Plan;
    use crate::refusal::{Reason, Refusal};

    /// Nano on a host with so much memory left of a limit of 150 MB more.
    fn solve(line: &str, available_mib: u64, limit: fn(u64) -> HostLimit) -> Result<Plan, Refusal> {
        let mut hardware = if line.contains("cpu") { Hardware::without_cards(host()) } else { gpus(1, 24) };
        let limited_by = Some(limit((available_mib + 150) * MIB));
        hardware.host = HostFacts { available_bytes: available_mib * MIB, limited_by, cores: 2 };
        Plan::solve(&settings(&format!("{line} --model-size nano --num-workers 2")), &hardware, &Chains, None)
    }

    fn limit_that_fits(refusal: &Refusal) -> u64 {
        let number = refusal.message.split("It fits from a limit of ").nth(1).unwrap();
        number.split(' ').next().unwrap().parse().unwrap()
    }

    #[test]
    fn a_refusal_names_the_smallest_limit_that_fits() {
        for limit in [|bytes| HostLimit::Cgroup { bytes }, |bytes| HostLimit::AddressSpace { bytes }] {
            let refusal = solve("--mode cpu --batch-size 2", 100, limit).unwrap_err();
            assert_eq!(refusal.kind, Reason::TooSmall);
            assert!(refusal.message.contains("the process itself needs"), "{refusal}");
            let fits = limit_that_fits(&refusal);
            let available = fits - 150;
            solve("--mode cpu --batch-size 2", available, limit).unwrap();
            solve("--mode cpu --batch-size 2", available * 9 / 10, limit).unwrap_err();
        }
    }

    #[test]
    fn a_run_on_a_card_needs_host_memory_too() {
        let cgroup = |bytes| HostLimit::Cgroup { bytes };
        let refusal = solve("--batch-size 2", 60, cgroup).unwrap_err();
        assert!(refusal.message.contains("The host has too little memory"), "{refusal}");
        solve("--batch-size 2", 1000, cgroup).unwrap();
    }

    #[test]
    fn reserved_address_space_counts_only_where_it_is_limited() {
        let model = Chains.memory_of(
            ModelChoice {
                preset: tandem_model::Preset::Nano,
                precision: Precision::Full,
                ema: true,
                accumulates: false,
                exact_shapes: false,
            },
            tandem_device::DeviceKind::Cpu,
        );
        let of = |limited_by| process_bytes(model.as_ref(), 2, &HostFacts { limited_by, cores: 2, ..host() });
        let plain = of(None);
        assert_eq!(of(Some(HostLimit::Cgroup { bytes: 1 })), plain);
        assert_eq!(of(Some(HostLimit::Data { bytes: 1 })) - plain, 12 * 2 * MIB);
        assert_eq!(of(Some(HostLimit::AddressSpace { bytes: 1 })) - plain, 12 * 66 * MIB);
    }
}
