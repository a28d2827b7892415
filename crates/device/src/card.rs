//! A card: what it is, and what it says of itself at one moment.

use std::fmt;

/// A GPU (or the CPU standing in for one) that was found. Indices follow `nvidia-smi`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Position in the order `nvidia-smi` shows (PCI bus order).
    pub index: usize,
    /// The maker's name for it.
    pub name: String,
    /// Its identity: the same in every process and after every reboot.
    pub uuid: String,
    /// Where it sits, e.g. `00000000:17:00.0`.
    pub bus_id: String,
    /// All of its memory.
    pub total_bytes: u64,
    /// Compute capability, e.g. `(9, 0)`.
    pub capability: (u32, u32),
    /// Set when the process may not use it: says what hides it.
    pub hidden_by: Option<String>,
}

impl Card {
    /// Whether GEMMs in bf16 run here.
    pub fn has_bf16(&self) -> bool {
        self.capability >= (8, 0)
    }
}

impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {}: {} ({})", self.index, self.name, self.uuid)
    }
}

/// One look at a card, with nothing opened on it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CardReading {
    /// Memory nobody holds.
    pub free_bytes: u64,
    /// All memory, as the driver counts it.
    pub total_bytes: u64,
    /// Processes that hold memory on the card, as far as the driver tells.
    pub holders: Vec<CardProcess>,
    /// Share of the last sampling period in which any kernel ran, in per cent. Of the whole card, not of us.
    pub busy_percent: Option<u32>,
    /// Present draw in watts.
    pub power_watts: Option<f32>,
}

/// A process that holds memory on a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardProcess {
    /// Its process number.
    pub pid: u32,
    /// Its name, where it can be read.
    pub name: Option<String>,
    /// What it holds.
    pub bytes: u64,
}
