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
}

impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {}: {} ({})", self.index, self.name, self.uuid)
    }
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
