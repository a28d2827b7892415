//! What is queued on simulated streams, and which of it runs next.
//!
//! Queued work runs in a seeded arbitrary order that respects only stream order and event waits: everything a real
//! card could do, and more often than a real card would. One stream may run far ahead while another stands still,
//! so a missing wait shows within a few seeds.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::driver::{EventId, StreamId};
use crate::host_graph::CapturedWork;
use crate::sim::rng::SplitMix;

/// One entry of a stream. A trap breaks the card.
pub(crate) enum QueuedOp {
    CapturedWork(CapturedWork),
    Record { event: EventId, mark: u64 },
    Wait { event: EventId, mark: u64 },
    Trap,
}

/// A stream: its entries, and how far its clock has come.
pub(crate) struct SimStream {
    pub(crate) card: usize,
    pub(crate) ops: VecDeque<(u64, QueuedOp)>,
    pub(crate) now_ns: u64,
    weight: u64,
}

/// An event: how often it was recorded, and how many of those records have been reached.
#[derive(Default)]
pub(crate) struct Mark {
    /// The card it belongs to, and whose streams alone may record it.
    pub(crate) card: usize,
    pub(crate) recorded: u64,
    pub(crate) reached: u64,
    pub(crate) reached_ns: u64,
    /// Destroyed by its owner; queued entries may still name it.
    pub(crate) dead: bool,
}

/// All streams and events of the machine.
pub(crate) struct Queues {
    pub(crate) streams: BTreeMap<StreamId, SimStream>,
    pub(crate) events: HashMap<EventId, Mark>,
    next_id: u64,
    ran: u64,
    pub(crate) rng: SplitMix,
    /// How readily work runs before anyone waits for it: in sixteenths.
    pub(crate) eagerness: u64,
}

/// How many entries run before the streams' chances are drawn anew.
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
        self.events.insert(self.next_id, Mark { card, ..Mark::default() });
        self.next_id
    }

    /// Takes the next entry to run off its stream, if any can run.
    pub(crate) fn next(&mut self) -> Option<(StreamId, u64, QueuedOp)> {
        if self.ran.is_multiple_of(REDRAW_EVERY) {
            for queue in self.streams.values_mut() {
                queue.weight = draw_weight(&mut self.rng);
            }
        }
        let ready: Vec<(StreamId, u64)> = self
            .streams
            .iter()
            .filter(|(_, queue)| self.can_run(queue))
            .map(|(id, queue)| (*id, queue.weight))
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

    fn can_run(&self, queue: &SimStream) -> bool {
        match queue.ops.front() {
            None => false,
            Some((_, QueuedOp::Wait { event, mark })) => {
                self.events.get(event).is_none_or(|state| state.reached >= *mark)
            }
            Some(_) => true,
        }
    }

    pub(crate) fn is_reached(&self, event: EventId) -> bool {
        self.events.get(&event).is_none_or(|state| state.reached >= state.recorded)
    }

    pub(crate) fn all_idle(&self) -> bool {
        self.streams.values().all(|queue| queue.ops.is_empty())
    }

    /// Forgets destroyed events that nothing queued can name any more.
    pub(crate) fn sweep(&mut self) {
        if self.all_idle() {
            self.events.retain(|_, mark| !mark.dead);
        }
    }

    /// Throws away everything: what is still queued waits for a card that is gone.
    pub(crate) fn abandon_all(&mut self) {
        self.streams.values_mut().for_each(|queue| queue.ops.clear());
    }

    /// Throws away what is queued on a card that is gone.
    pub(crate) fn abandon(&mut self, card: usize) {
        for queue in self.streams.values_mut().filter(|queue| queue.card == card) {
            queue.ops.clear();
        }
    }
}

/// Mostly even, at times so uneven that one stream all but stands still.
fn draw_weight(rng: &mut SplitMix) -> u64 {
    [1, 16, 16, 4096][rng.below(4) as usize]
}
