//! What the machine has, as plain data: read once, then everything in this crate is a pure function of it.

use tandem_device::{Card, CardReading, DeviceKind, DriverCost};

/// One look at the machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Hardware {
    /// What the cards are.
    pub kind: DeviceKind,
    /// Every card, in the order `nvidia-smi` shows; hidden ones too.
    pub cards: Vec<CardFacts>,
    /// The computer around them.
    pub host: HostFacts,
    /// An NVIDIA device is there and cannot be used: a sentence with the library and where it was looked for.
    pub trouble: Option<String>,
    /// Where the driver library was looked for, in order.
    pub looked: Vec<String>,
    /// `peer[a][b]`: card `a` reaches the memory of card `b` without the host.
    pub peer: Vec<Vec<bool>>,
}

/// One card.
#[derive(Clone, Debug, PartialEq)]
pub struct CardFacts {
    /// What it is.
    pub card: Card,
    /// What it said of itself just now.
    pub reading: CardReading,
    /// What the driver itself costs there, once that has been read.
    pub driver: Option<DriverCost>,
}

/// The computer around the cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostFacts {
    /// Memory that could be taken without swapping.
    pub available_bytes: u64,
    /// Cores this process may use.
    pub cores: usize,
}

impl Hardware {
    /// A machine without any NVIDIA device.
    pub fn without_cards(host: HostFacts) -> Hardware {
        Hardware { kind: DeviceKind::Cpu, cards: Vec::new(), host, trouble: None, looked: Vec::new(), peer: Vec::new() }
    }

    /// A machine with `count` simulated cards of `total_bytes` each, all of it free, that reach each other
    /// through the host only.
    pub fn simulated(count: usize, total_bytes: u64, driver: &DriverCost, host: HostFacts) -> Hardware {
        let card = |index: usize| CardFacts {
            card: Card {
                index,
                name: "Simulated GPU".to_owned(),
                uuid: format!("GPU-simulated-{index}"),
                bus_id: format!("00000000:{index:02X}:00.0"),
                total_bytes,
                capability: (8, 0),
                hidden_by: None,
            },
            reading: CardReading { free_bytes: total_bytes, total_bytes, ..CardReading::default() },
            driver: Some(driver.clone()),
        };
        let cards = (0..count).map(card).collect();
        Hardware {
            kind: DeviceKind::Simulated,
            cards,
            host,
            trouble: None,
            looked: Vec::new(),
            peer: vec![vec![false; count]; count],
        }
    }

    /// The card `nvidia-smi` calls `index`.
    pub fn card(&self, index: usize) -> Option<&CardFacts> {
        self.cards.iter().find(|facts| facts.card.index == index)
    }

    /// Whether two cards reach each other's memory, both ways.
    pub fn are_peers(&self, a: usize, b: usize) -> bool {
        let reaches = |from: usize, to: usize| self.peer.get(from).and_then(|row| row.get(to)) == Some(&true);
        reaches(a, b) && reaches(b, a)
    }
}
