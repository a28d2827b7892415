//! A card: its properties, and a reading of its state.

use std::fmt;

/// A GPU that was found, or the CPU in its place. Indices follow `nvidia-smi`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Position in the order `nvidia-smi` shows (PCI bus order).
    pub index: usize,
    /// The model name, e.g. `NVIDIA H200`.
    pub name: String,
    /// Its UUID: the same in every process and after every reboot.
    pub uuid: String,
    /// Its PCI bus id, e.g. `00000000:17:00.0`.
    pub bus_id: String,
    /// Its total memory.
    pub total_bytes: u64,
    /// Compute capability, e.g. `(9, 0)`.
    pub capability: (u32, u32),
    /// Set if this process may not use it: what hides it.
    pub hidden_by: Option<String>,
}

impl Card {
    /// Whether it supports bf16 GEMMs.
    pub fn has_bf16(&self) -> bool {
        self.capability >= (8, 0)
    }

    /// Whether it computes f64 at half the rate of f32. Other cards have f64 units for completeness only: 1/32 of the rate,
    /// or 1/64.
    pub fn has_fast_f64(&self) -> bool {
        matches!(self.capability, (7, 0) | (8, 0) | (9, 0) | (10, 0))
    }
}

impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {}: {} ({})", self.index, self.name, self.uuid)
    }
}

/// What decides which cards a process may use. CUDA numbers only those, in an order of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visibility {
    /// What decides: `CUDA_VISIBLE_DEVICES=3,1`.
    pub by: String,
    /// What to do to use all cards; `None` if this process cannot do anything.
    pub undo: Option<String>,
    /// The cards by their number in CUDA: the index of CUDA's device 0 first.
    pub cuda_order: Vec<usize>,
    /// Whether hidden cards are listed too. Without NVML they are not.
    pub lists_hidden: bool,
}

/// The state of a card. Reading it opens no context.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CardReading {
    /// Free memory.
    pub free_bytes: u64,
    /// Total memory, as the driver counts it.
    pub total_bytes: u64,
    /// Processes with memory on the card, as far as the driver reports them.
    pub processes: Vec<CardProcess>,
    /// Percentage of the last sampling period in which any kernel ran, of any process.
    pub busy_percent: Option<u32>,
    /// Power draw now.
    pub power_watts: Option<f32>,
}

/// A process with memory on a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardProcess {
    /// Its process id.
    pub pid: u32,
    /// Its name, if it can be read.
    pub name: Option<String>,
    /// Its memory on the card.
    pub bytes: u64,
}

/// What the driver says about copies and accesses from one card to the memory of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAttributes {
    /// The rank of the link among those of the machine; 0 is the fastest.
    pub performance_rank: i32,
    /// Peer access can be enabled.
    pub access_supported: bool,
    /// All atomic operations work over the link.
    pub native_atomics: bool,
    /// CUDA arrays can be accessed over the link.
    pub array_access: bool,
}
