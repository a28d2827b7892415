//! A link and a ring beside a plain model of each, through any order of operations.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test, a failed unwrap is a failed test")]

use std::collections::VecDeque;
use std::convert::Infallible;

use proptest::collection::vec;
use proptest::prelude::*;
use tandem_pipeline::{Filler, FillingSlot, LeasedSlot, Parcel, Permit, Receiver, RingSlot, Sender, Taker, link, ring};

#[derive(Clone, Copy, Debug)]
enum LinkStep {
    Reserve { bytes: u64 },
    Send { which: usize },
    DropPermit { which: usize },
    Receive,
    DropParcel { which: usize },
    Close,
}

fn link_step() -> impl Strategy<Value = LinkStep> {
    let which = 0_usize..8;
    prop_oneof![
        8 => (0_u64..14).prop_map(|bytes| LinkStep::Reserve { bytes }),
        6 => which.clone().prop_map(|which| LinkStep::Send { which }),
        2 => which.clone().prop_map(|which| LinkStep::DropPermit { which }),
        6 => Just(LinkStep::Receive),
        5 => which.prop_map(|which| LinkStep::DropParcel { which }),
        1 => Just(LinkStep::Close),
    ]
}

const CAPACITY_BYTES: u64 = 10;

/// A link, what is held of it, and what it should be like.
struct LinkPair {
    sender: Sender<u64>,
    receiver: Receiver<u64>,
    permits: Vec<Permit<u64>>,
    parcels: Vec<Parcel<u64>>,
    queue: VecDeque<(u64, u64)>,
    items: u64,
    peak_bytes: u64,
    closed: bool,
}

impl LinkPair {
    fn new() -> Self {
        let (sender, receiver) = link("model", CAPACITY_BYTES);
        let (permits, parcels, queue) = (Vec::new(), Vec::new(), VecDeque::new());
        Self { sender, receiver, permits, parcels, queue, items: 0, peak_bytes: 0, closed: false }
    }

    fn bytes_in_flight(&self) -> u64 {
        let reserved: u64 = self.permits.iter().map(Permit::bytes).sum();
        let queued: u64 = self.queue.iter().map(|(_, bytes)| bytes).sum();
        reserved + queued + self.parcels.iter().map(Parcel::bytes).sum::<u64>()
    }

    fn step(&mut self, step: LinkStep) {
        match step {
            LinkStep::Reserve { bytes } => self.reserve(bytes),
            LinkStep::Send { which } if which < self.permits.len() => self.send(which),
            LinkStep::DropPermit { which } if which < self.permits.len() => drop(self.permits.remove(which)),
            LinkStep::Receive => self.receive(),
            LinkStep::DropParcel { which } if which < self.parcels.len() => drop(self.parcels.remove(which)),
            LinkStep::Close => {
                self.sender.close();
                self.closed = true;
            }
            _ => {}
        }
    }

    fn reserve(&mut self, bytes: u64) {
        let in_flight = self.bytes_in_flight();
        let fits = in_flight == 0 || in_flight + bytes <= CAPACITY_BYTES.max(in_flight);
        match self.sender.try_reserve(bytes) {
            Ok(permit) => {
                assert_eq!((permit.is_some(), self.closed), (fits, false));
                self.permits.extend(permit);
                self.peak_bytes = self.peak_bytes.max(self.bytes_in_flight());
            }
            Err(_) => assert!(self.closed),
        }
    }

    fn send(&mut self, which: usize) {
        let permit = self.permits.remove(which);
        let bytes = permit.bytes();
        let sent = permit.send(self.items);
        assert_eq!(sent.is_ok(), !self.closed);
        if sent.is_ok() {
            self.queue.push_back((self.items, bytes));
            self.items += 1;
        }
    }

    fn receive(&mut self) {
        match self.receiver.try_recv() {
            Ok(parcel) => {
                let got = parcel.as_ref().map(|parcel| (**parcel, parcel.bytes()));
                assert_eq!(got, self.queue.pop_front());
                self.parcels.extend(parcel);
            }
            Err(_) => assert!(self.closed && self.queue.is_empty()),
        }
    }

    fn compare(&self) {
        let stats = self.receiver.stats();
        let expected = (self.bytes_in_flight(), self.peak_bytes, self.items);
        assert_eq!((stats.bytes_in_flight, stats.peak_bytes, stats.items), expected);
        assert_eq!((stats.sender_wait_ns, stats.receiver_wait_ns), (0, 0), "nobody waited");
    }
}

#[derive(Clone, Copy, Debug)]
enum RingStep {
    Fill,
    Publish { which: usize },
    DropFilling { which: usize },
    Lease,
    Skip,
    Release { which: usize },
    DropLeased { which: usize },
    Depth { slots: usize },
    Close,
}

fn ring_step() -> impl Strategy<Value = RingStep> {
    let which = 0_usize..4;
    prop_oneof![
        8 => Just(RingStep::Fill),
        8 => which.clone().prop_map(|which| RingStep::Publish { which }),
        2 => which.clone().prop_map(|which| RingStep::DropFilling { which }),
        6 => Just(RingStep::Lease),
        2 => Just(RingStep::Skip),
        6 => which.clone().prop_map(|which| RingStep::Release { which }),
        1 => which.prop_map(|which| RingStep::DropLeased { which }),
        2 => (0_usize..6).prop_map(|slots| RingStep::Depth { slots }),
        1 => Just(RingStep::Close),
    ]
}

const SLOTS: usize = 4;

/// A ring of numbered slots, what is held of it, and what it should be like.
struct RingPair {
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

impl RingPair {
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
            RingStep::Lease => self.lease(true),
            RingStep::Skip => self.lease(false),
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

    fn lease(&mut self, keep: bool) {
        let expected = self.ready.pop_front();
        match self.taker.try_take() {
            Ok(taken) => {
                assert_eq!(taken.as_ref().map(|ready| *ready.payload()), expected.map(|(_, payload)| payload));
                let (Some(ready), Some((slot, _))) = (taken, expected) else { return };
                if keep {
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
        assert_eq!((stats.filler_wait_ns, stats.taker_wait_ns), (0, 0), "nobody waited");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn a_link_is_what_its_model_is(steps in vec(link_step(), 0..60)) {
        let mut pair = LinkPair::new();
        for step in steps {
            pair.step(step);
            pair.compare();
        }
    }

    #[test]
    fn a_ring_is_what_its_model_is(steps in vec(ring_step(), 0..60)) {
        let mut pair = RingPair::new();
        for step in steps {
            pair.step(step);
            pair.compare();
        }
    }
}
