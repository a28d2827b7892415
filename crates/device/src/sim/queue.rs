//! The queues of simulated streams, and the choice of the operation that runs next.
//!
//! Queued work runs in a seeded random order that respects only stream order and event waits. This covers everything a
//! real card could do, and unusual orders come up more often. One stream may run far ahead while another stalls, so a
//! missing wait shows within a few seeds.

use std::collections::{BTreeMap, HashMap, VecDeque};

use tandem_random::SplitMix;

use crate::driver::{EventId, StreamId};
use crate::host_graph::HostOp;

/// One entry of a stream. `number` counts the records of an event; after a trap the card is lost.
pub(crate) enum QueuedOp {
    Run(HostOp),
    Record {
        event: EventId,
        number: u64,
    },
    Wait {
        event: EventId,
        number: u64,
    },
    Trap,
    /// Work that never ends, and so nothing behind it begins.
    Stuck,
}

/// A stream: its entries and its clock.
pub(crate) struct SimStream {
    pub(crate) card: usize,
    pub(crate) ops: VecDeque<(u64, QueuedOp)>,
    pub(crate) now_ns: u64,
    weight: u64,
}

/// An event: how often it was recorded, and how many of those records have been reached.
#[derive(Default)]
pub(crate) struct SimEvent {
    /// Its card. Only streams of this card may record it.
    pub(crate) card: usize,
    pub(crate) recorded: u64,
    pub(crate) reached: u64,
    pub(crate) reached_ns: u64,
    /// Destroyed by its owner; queued entries may still refer to it.
    pub(crate) destroyed: bool,
}

/// All streams and events of the machine.
pub(crate) struct Queues {
    pub(crate) streams: BTreeMap<StreamId, SimStream>,
    pub(crate) events: HashMap<EventId, SimEvent>,
    next_id: u64,
    ran: u64,
    pub(crate) rng: SplitMix,
    /// The chance, in sixteenths, that work runs before it is waited for.
    pub(crate) eagerness: u64,
}

/// The number of entries that run before the weights of the streams are drawn again.
const REDRAW_EVERY: u64 = 24;

impl Queues {
    pub(crate) fn new(seed: u64) -> Queues {
        let mut rng = SplitMix::new(seed);
        let eagerness = [0, 4, 16][rng.below(3) as usize];
        Queues { streams: BTreeMap::new(), events: HashMap::new(), next_id: 1, ran: 0, rng, eagerness }
    }

    pub(crate) fn add_stream(&mut self, card: usize) -> StreamId {
        let weight = draw_weight(&mut self.rng);
        self.next_id += 1;
        self.streams.insert(self.next_id, SimStream { card, ops: VecDeque::new(), now_ns: 0, weight });
        self.next_id
    }

    pub(crate) fn add_event(&mut self, card: usize) -> EventId {
        self.next_id += 1;
        self.events.insert(self.next_id, SimEvent { card, ..SimEvent::default() });
        self.next_id
    }

    /// Takes the next entry to run, if any can run.
    pub(crate) fn next(&mut self) -> Option<(StreamId, u64, QueuedOp)> {
        if self.ran.is_multiple_of(REDRAW_EVERY) {
            for stream in self.streams.values_mut() {
                stream.weight = draw_weight(&mut self.rng);
            }
        }
        let ready: Vec<(StreamId, u64)> = self
            .streams
            .iter()
            .filter(|(_, stream)| self.can_run(stream))
            .map(|(id, stream)| (*id, stream.weight))
            .collect();
        let mut ticket = self.rng.below(ready.iter().map(|(_, weight)| weight).sum::<u64>().max(1));
        let chosen = ready.iter().find(|(_, weight)| match ticket < *weight {
            true => true,
            false => {
                ticket -= weight;
                false
            }
        })?;
        self.ran += 1;
        let (queued_ns, op) = self.streams.get_mut(&chosen.0)?.ops.pop_front()?;
        Some((chosen.0, queued_ns, op))
    }

    fn can_run(&self, stream: &SimStream) -> bool {
        match stream.ops.front() {
            None => false,
            Some((_, QueuedOp::Stuck)) => false,
            Some((_, QueuedOp::Wait { event, number })) => {
                self.events.get(event).is_none_or(|event| event.reached >= *number)
            }
            Some(_) => true,
        }
    }

    pub(crate) fn is_reached(&self, event: EventId) -> bool {
        self.events.get(&event).is_none_or(|event| event.reached >= event.recorded)
    }

    /// Whether there is a copy that never ends.
    pub(crate) fn has_stuck_copy(&self) -> bool {
        self.streams.values().flat_map(|stream| &stream.ops).any(|(_, op)| matches!(op, QueuedOp::Stuck))
    }

    /// From now on copies from and to the memory of a lost card never end.
    pub(crate) fn hang_copies_with(&mut self, card: usize) {
        for (_, op) in self.streams.values_mut().flat_map(|stream| &mut stream.ops) {
            if matches!(op, QueuedOp::Run(HostOp::Copy(path)) if path.touches(card)) {
                *op = QueuedOp::Stuck;
            }
        }
    }

    pub(crate) fn all_idle(&self) -> bool {
        self.streams.values().all(|stream| stream.ops.is_empty())
    }

    /// Removes destroyed events that no queued entry can refer to.
    pub(crate) fn sweep(&mut self) {
        if self.all_idle() {
            self.events.retain(|_, event| !event.destroyed);
        }
    }

    /// Discards the entries of a lost card.
    pub(crate) fn abandon(&mut self, card: usize) {
        for stream in self.streams.values_mut().filter(|stream| stream.card == card) {
            stream.ops.clear();
        }
    }
}

/// Mostly even weights, sometimes so uneven that one stream almost stalls.
fn draw_weight(rng: &mut SplitMix) -> u64 {
    [1, 16, 16, 4096][rng.below(4) as usize]
}
