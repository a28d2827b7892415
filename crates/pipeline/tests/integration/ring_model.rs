//! A property test: a ring beside a simple model of it, through random sequences of operations.

use std::collections::VecDeque;
use std::convert::Infallible;

use proptest::collection::vec;
use proptest::prelude::*;
use tandem_pipeline::{Filler, FillingSlot, LeasedSlot, RingSlot, Taker, ring};

#[derive(Clone, Copy, Debug)]
enum RingStep {
    Fill,
    Publish {
        which: usize,
    },
    DropFilling {
        which: usize,
    },
    Lease,
    /// Takes a ready slot and drops it without a lease.
    DropReady,
    Release {
        which: usize,
    },
    DropLeased {
        which: usize,
    },
    Depth {
        slots: usize,
    },
    Close,
}

fn ring_step() -> impl Strategy<Value = RingStep> {
    let which = 0_usize..4;
    prop_oneof![
        8 => Just(RingStep::Fill),
        8 => which.clone().prop_map(|which| RingStep::Publish { which }),
        2 => which.clone().prop_map(|which| RingStep::DropFilling { which }),
        6 => Just(RingStep::Lease),
        2 => Just(RingStep::DropReady),
        6 => which.clone().prop_map(|which| RingStep::Release { which }),
        1 => which.prop_map(|which| RingStep::DropLeased { which }),
        2 => (0_usize..6).prop_map(|slots| RingStep::Depth { slots }),
        1 => Just(RingStep::Close),
    ]
}

const SLOTS: usize = 4;

/// A ring of numbered slots, the slots that are out, and the state the model expects.
struct RingAndModel {
    filler: Filler<usize, u64, ()>,
    taker: Taker<usize, u64, ()>,
    filling: Vec<FillingSlot<usize, u64, ()>>,
    leased: Vec<LeasedSlot<usize, u64, ()>>,
    free: VecDeque<usize>,
    ready: VecDeque<(usize, u64)>,
    retired: usize,
    depth: usize,
    published: u64,
    unread: u64,
    closed: bool,
}

fn ok((): &()) -> Result<(), Infallible> {
    Ok(())
}

impl RingAndModel {
    fn new() -> Self {
        let (filler, taker) = ring("model", (0..SLOTS).map(|memory| RingSlot { memory, written: (), freed: () }));
        Self {
            filler,
            taker,
            filling: Vec::new(),
            leased: Vec::new(),
            free: (0..SLOTS).collect(),
            ready: VecDeque::new(),
            retired: 0,
            depth: SLOTS,
            published: 0,
            unread: 0,
            closed: false,
        }
    }

    fn step(&mut self, step: RingStep) {
        match step {
            RingStep::Fill => self.fill(),
            RingStep::Publish { which } if which < self.filling.len() => self.publish(which),
            RingStep::DropFilling { which } if which < self.filling.len() => {
                self.free.push_back(*self.filling.remove(which).memory());
            }
            RingStep::Lease => self.take(true),
            RingStep::DropReady => self.take(false),
            RingStep::Release { which } if which < self.leased.len() => {
                let leased = self.leased.remove(which);
                self.free.push_back(*leased.memory());
                let Ok(()) = leased.release(ok);
            }
            RingStep::DropLeased { which } if which < self.leased.len() => {
                drop(self.leased.remove(which));
                self.retired += 1;
                self.closed |= self.retired == SLOTS;
            }
            RingStep::Depth { slots } => {
                self.filler.set_depth(slots);
                self.depth = slots.clamp(1, SLOTS);
            }
            RingStep::Close => {
                self.taker.close();
                self.closed = true;
            }
            _ => {}
        }
    }

    fn fill(&mut self) {
        let in_use = self.filling.len() + self.ready.len() + self.leased.len();
        match self.filler.try_take() {
            Ok(taken) => {
                assert_eq!((taken.is_some(), self.closed), (!self.free.is_empty() && in_use < self.depth, false));
                let Some(free) = taken else { return };
                let Ok(filling) = free.claim(ok);
                assert_eq!(Some(*filling.memory()), self.free.pop_front());
                self.filling.push(filling);
            }
            Err(_) => assert!(self.closed),
        }
    }

    fn publish(&mut self, which: usize) {
        let filling = self.filling.remove(which);
        let slot = *filling.memory();
        let Ok(()) = filling.publish(self.published, ok);
        if self.closed {
            self.free.push_back(slot);
        } else {
            self.ready.push_back((slot, self.published));
            self.published += 1;
        }
    }

    fn take(&mut self, lease: bool) {
        let expected = self.ready.pop_front();
        match self.taker.try_take() {
            Ok(taken) => {
                assert_eq!(taken.as_ref().map(|ready| *ready.payload()), expected.map(|(_, payload)| payload));
                let (Some(ready), Some((slot, _))) = (taken, expected) else { return };
                if lease {
                    let Ok(leased) = ready.lease(ok);
                    assert_eq!(*leased.memory(), slot);
                    self.leased.push(leased);
                } else {
                    drop(ready);
                    self.free.push_back(slot);
                    self.unread += 1;
                }
            }
            Err(_) => assert!(self.closed && expected.is_none()),
        }
    }

    fn compare(&self) {
        let stats = self.taker.stats();
        let places = [stats.free, stats.filling, stats.ready, stats.leased, stats.retired];
        let expected = [self.free.len(), self.filling.len(), self.ready.len(), self.leased.len(), self.retired];
        assert_eq!((places, places.iter().sum()), (expected, stats.slots));
        assert_eq!((stats.depth, stats.published, stats.unread), (self.depth, self.published, self.unread));
        assert_eq!((stats.filler_wait_ns, stats.taker_wait_ns), (0, 0), "no call waited");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(10_000) })]

    #[test]
    fn a_ring_behaves_like_its_model(steps in vec(ring_step(), 0..60)) {
        let mut both = RingAndModel::new();
        for step in steps {
            both.step(step);
            both.compare();
        }
    }
}
