//! The machine's hardware as plain data, read once. Everything in this crate is a pure function of it.

use tandem_checkpoint::FolderSpace;
use tandem_device::{Card, CardReading, DeviceKind, DriverCost, HostLimit, NumaNode, Visibility};
use tandem_feed::Arithmetic;
use tandem_ranks::World;

/// The hardware at one point in time.
#[derive(Clone, Debug, PartialEq)]
pub struct Hardware {
    /// Real cards, simulated ones, or the CPU.
    pub kind: DeviceKind,
    /// All cards, hidden ones included, in the order of `nvidia-smi`.
    pub cards: Vec<CardFacts>,
    /// What decides which cards this process may use; `None` if it may use all of them.
    pub visibility: Option<Visibility>,
    /// The host.
    pub host: HostFacts,
    /// Why a present NVIDIA device is unusable: a sentence with the library and the searched paths.
    pub driver_error: Option<String>,
    /// The paths searched for the driver library, in order.
    pub searched_paths: Vec<String>,
    /// `peer[a][b]`: card `a` has peer access to the memory of card `b`.
    pub peer: Vec<Vec<bool>>,
    /// This process among those of its run. The host's memory and cores are its share of them.
    pub world: World,
    /// For tests on a machine with one card: ranks may share it.
    pub ranks_share_cards: bool,
    /// The run folder; `None` if nobody looked, for commands that write no checkpoints.
    pub run_folder: Option<RunFolderFacts>,
}

/// The folder of `--checkpoint-dir`, and its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunFolderFacts {
    /// What it holds and what is free.
    pub space: FolderSpace,
    /// Whether checkpoints must fit there. A plan for simulated cards is for another machine, and only shows them.
    pub must_fit: bool,
    /// The arithmetic of the features of the checkpoint that a run without `--reset-training` resumes from; `None` without one.
    pub arithmetic: Option<Arithmetic>,
    /// Micro-batches of a step of the run in the folder, if such a run resumes it.
    pub grad_accum: Option<u64>,
}

/// One card.
#[derive(Clone, Debug, PartialEq)]
pub struct CardFacts {
    /// Name, index, capability.
    pub card: Card,
    /// Its memory and load when it was read.
    pub reading: CardReading,
    /// The driver's own memory use on it, once measured.
    pub driver: Option<DriverCost>,
    /// Its NUMA node, on a machine with more than one.
    pub numa: Option<NumaNode>,
}

/// The host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostFacts {
    /// Memory that this process can still take without swapping.
    pub available_bytes: u64,
    /// The limit of a container or a shell that decides about it, if one does.
    pub limited_by: Option<HostLimit>,
    /// Cores this process may use.
    pub cores: usize,
}

impl Hardware {
    /// A machine without any NVIDIA device.
    pub fn without_cards(host: HostFacts) -> Hardware {
        Hardware {
            kind: DeviceKind::Cpu,
            cards: Vec::new(),
            visibility: None,
            host,
            driver_error: None,
            searched_paths: Vec::new(),
            peer: Vec::new(),
            world: World::ALONE,
            ranks_share_cards: false,
            run_folder: None,
        }
    }

    /// A machine with `count` simulated cards of `total_bytes` each, all of it free, without peer access.
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
            numa: None,
        };
        let cards = (0..count).map(card).collect();
        Hardware {
            kind: DeviceKind::Simulated,
            cards,
            visibility: None,
            host,
            driver_error: None,
            searched_paths: Vec::new(),
            peer: vec![vec![false; count]; count],
            world: World::ALONE,
            ranks_share_cards: false,
            run_folder: None,
        }
    }

    /// The same for one process of a run: it gets an equal share of the memory and cores of its machine.
    pub fn with_world(mut self, world: World) -> Hardware {
        let share = world.local_size.max(1);
        self.host.available_bytes /= u64::from(share);
        self.host.cores = (self.host.cores / share as usize).max(1);
        self.world = world;
        self
    }

    /// The card with this index in `nvidia-smi`.
    pub fn card(&self, index: usize) -> Option<&CardFacts> {
        self.cards.iter().find(|facts| facts.card.index == index)
    }

    /// Whether two cards have peer access to each other.
    pub fn are_peers(&self, a: usize, b: usize) -> bool {
        let reaches = |from: usize, to: usize| self.peer.get(from).and_then(|row| row.get(to)) == Some(&true);
        reaches(a, b) && reaches(b, a)
    }
}
