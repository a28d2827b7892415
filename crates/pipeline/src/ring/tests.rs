//! What a ring promises, on one thread or with the other end waiting.

use std::cell::RefCell;
use std::convert::Infallible;

use super::*;
use crate::Worker;

/// A ring whose memory is a number and whose fences are names.
type Fill = Filler<usize, &'static str, &'static str>;
type Take = Taker<usize, &'static str, &'static str>;

fn numbered(slots: usize) -> (Fill, Take) {
    ring("data", (0..slots).map(|memory| RingSlot { memory, written: "written", freed: "freed" }))
}

fn ok(_: &&'static str) -> Result<(), Infallible> {
    Ok(())
}

fn fail(_: &&'static str) -> Result<(), String> {
    Err("lost".to_owned())
}

/// Fills the next slot; returns its number.
fn fill(filler: &Fill, payload: &'static str) -> usize {
    let Ok(filling) = filler.take().unwrap().claim(ok);
    let slot = *filling.memory();
    let Ok(()) = filling.publish(payload, ok);
    slot
}

/// Free, filling, ready, leased, retired.
fn places(stats: RingStats) -> [usize; 5] {
    assert_eq!(stats.free + stats.filling + stats.ready + stats.leased + stats.retired, stats.slots);
    [stats.free, stats.filling, stats.ready, stats.leased, stats.retired]
}

#[test]
fn a_slot_goes_round_and_every_fence_is_waited_for_and_recorded_once() {
    let (filler, taker) = numbered(1);
    let calls = RefCell::new(Vec::new());
    let call = |what: &'static str| {
        let calls = &calls;
        move |fence: &&'static str| {
            calls.borrow_mut().push((what, *fence));
            Ok::<(), Infallible>(())
        }
    };
    let free = filler.take().unwrap();
    assert_eq!(places(filler.stats()), [0, 1, 0, 0, 0]);
    let Ok(mut filling) = free.claim(call("wait"));
    *filling.memory_mut() = 7;
    let Ok(()) = filling.publish("seven", call("record"));
    assert_eq!(places(filler.stats()), [0, 0, 1, 0, 0]);
    let ready = taker.take().unwrap();
    assert_eq!((*ready.payload(), places(filler.stats())), ("seven", [0, 0, 0, 1, 0]));
    let Ok(leased) = ready.lease(call("wait"));
    assert_eq!((*leased.payload(), *leased.memory()), ("seven", 7));
    let Ok(()) = leased.release(call("record"));
    assert_eq!(places(filler.stats()), [1, 0, 0, 0, 0]);
    let expected = [("wait", "freed"), ("record", "written"), ("wait", "written"), ("record", "freed")];
    assert_eq!(*calls.borrow(), expected);
}

#[test]
fn slots_are_taken_in_the_order_of_publishing() {
    let (filler, taker) = numbered(3);
    let mut held: Vec<_> = (0..3).map(|_| filler.take().unwrap().claim(ok).unwrap()).collect();
    assert!(filler.try_take().unwrap().is_none());
    for (index, payload) in [(1, "first"), (1, "second"), (0, "third")] {
        let Ok(()) = held.remove(index).publish(payload, ok);
    }
    let taken: Vec<_> = (0..3).map(|_| taker.take().unwrap().lease(ok).unwrap()).collect();
    let seen: Vec<_> = taken.iter().map(|leased| (*leased.payload(), *leased.memory())).collect();
    assert_eq!(seen, [("first", 1), ("second", 2), ("third", 0)]);
}

#[test]
fn the_slot_that_has_been_free_longest_is_next() {
    let (filler, taker) = numbered(3);
    assert_eq!(fill(&filler, "a"), 0);
    let Ok(()) = taker.take().unwrap().lease(ok).unwrap().release(ok);
    assert_eq!([fill(&filler, "b"), fill(&filler, "c"), fill(&filler, "d")], [1, 2, 0]);
}

#[test]
fn a_slot_dropped_in_any_state_becomes_free_or_is_retired() {
    let check = |places_after: [usize; 5], unread: u64, drop_it: fn(&Fill, &Take)| {
        let (filler, taker) = numbered(2);
        drop_it(&filler, &taker);
        assert_eq!((places(taker.stats()), taker.stats().unread), (places_after, unread));
    };
    let free = [2, 0, 0, 0, 0];
    check(free, 0, |filler, _| drop(filler.take().unwrap()));
    check(free, 0, |filler, _| assert!(filler.take().unwrap().claim(fail).is_err()));
    check(free, 0, |filler, _| drop(filler.take().unwrap().claim(ok)));
    check(free, 0, |filler, _| assert!(filler.take().unwrap().claim(ok).unwrap().publish("", fail).is_err()));
    check(free, 1, |filler, taker| {
        fill(filler, "");
        drop(taker.take().unwrap());
    });
    check(free, 1, |filler, taker| {
        fill(filler, "");
        assert!(taker.take().unwrap().lease(fail).is_err());
    });
    let retired = [1, 0, 0, 0, 1];
    check(retired, 0, |filler, taker| {
        fill(filler, "");
        drop(taker.take().unwrap().lease(ok));
    });
    check(retired, 0, |filler, taker| {
        fill(filler, "");
        assert!(taker.take().unwrap().lease(ok).unwrap().release(fail).is_err());
    });
}

#[test]
fn a_ring_without_slots_left_is_closed() {
    let (filler, taker) = numbered(2);
    for _ in 0..2 {
        fill(&filler, "");
        drop(taker.take().unwrap().lease(ok));
    }
    assert_eq!(filler.take().err(), Some(Closed { name: "data" }));
    assert!(taker.take().is_none());
    let (filler, taker) = numbered(0);
    assert!(filler.take().is_err() && taker.take().is_none());
}

#[test]
fn depth_is_how_many_are_in_use_at_once() {
    let (filler, taker) = numbered(3);
    let check = |depth, expected_depth, expected_more: bool| {
        filler.set_depth(depth);
        assert_eq!(filler.stats().depth, expected_depth);
        assert_eq!(filler.try_take().unwrap().is_some(), expected_more, "depth {depth}");
    };
    check(0, 1, true);
    fill(&filler, "one");
    check(1, 1, false);
    check(2, 2, true);
    fill(&filler, "two");
    check(1, 1, false);
    let leased = taker.take().unwrap().lease(ok).unwrap();
    check(2, 2, false);
    let Ok(()) = leased.release(ok);
    check(2, 2, true);
    check(9, 3, true);
}

#[test]
fn wait_ready_waits_for_as_many_as_can_be_ready() {
    let check = |slots, depth, filled, asked, expected| {
        let (filler, taker) = numbered(slots);
        filler.set_depth(depth);
        for _ in 0..filled {
            fill(&filler, "");
        }
        assert_eq!(taker.wait_ready(asked, Duration::MAX), expected);
        assert_eq!(taker.stats().taker_wait_ns, 0);
    };
    check(3, 3, 2, 2, 2);
    check(3, 3, 2, 0, 2);
    // More than can be ready at once.
    check(3, 3, 3, 9, 3);
    check(3, 2, 2, 3, 2);
    let (filler, taker) = numbered(2);
    assert_eq!(taker.wait_ready(1, Duration::from_millis(1)), 0);
    fill(&filler, "");
    drop(filler);
    assert_eq!(taker.wait_ready(2, Duration::MAX), 1);
}

#[test]
fn a_filler_that_panics_ends_the_stream_after_what_was_ready() {
    let (filler, taker) = numbered(3);
    let worker: Worker = Worker::spawn("filler", move |_| {
        fill(&filler, "whole");
        let _half = filler.take().unwrap().claim(ok);
        panic!("in the middle of a filling");
    })
    .unwrap();
    assert_eq!(taker.take().map(|ready| *ready.payload()), Some("whole"));
    assert!(taker.take().is_none());
    assert_eq!(taker.try_take().err(), Some(Closed { name: "data" }));
    assert!(worker.join().is_err());
    assert_eq!(places(taker.stats()), [3, 0, 0, 0, 0]);
}

#[test]
fn without_a_taker_the_filler_gets_closed_and_no_slot_stays_ready() {
    let (filler, taker) = numbered(3);
    fill(&filler, "unread");
    let late = filler.take().unwrap().claim(ok).unwrap();
    let waiting = taker.handle();
    drop(taker);
    assert_eq!(filler.take().err().map(|closed| closed.to_string()).as_deref(), Some("data is closed"));
    let Ok(()) = late.publish("late", ok);
    let stats = waiting.stats();
    assert_eq!((places(stats), stats.published, stats.unread), ([3, 0, 0, 0, 0], 1, 1));
}

#[test]
fn memory_is_dropped_with_the_ends_and_the_slots_in_use() {
    let memory = std::sync::Arc::new(());
    let slots = (0..3).map(|_| RingSlot { memory: memory.clone(), written: "", freed: "" });
    let (filler, taker) = ring("data", slots);
    for payload in 0..2 {
        let Ok(()) = filler.take().unwrap().claim(ok).unwrap().publish(payload, ok);
    }
    let leased = taker.take().unwrap().lease(ok).unwrap();
    let handle = taker.handle();
    drop((filler, taker));
    assert_eq!(std::sync::Arc::strong_count(&memory), 2);
    let Ok(()) = leased.release(ok);
    assert_eq!(std::sync::Arc::strong_count(&memory), 1);
    assert_eq!(handle.stats().free, 0);
}

#[test]
fn a_slot_in_any_state_can_be_sent_to_another_thread() {
    fn check<T: Send>() {}
    check::<FreeSlot<RefCell<u8>, RefCell<u8>, RefCell<u8>>>();
    check::<FillingSlot<RefCell<u8>, RefCell<u8>, RefCell<u8>>>();
    check::<ReadySlot<RefCell<u8>, RefCell<u8>, RefCell<u8>>>();
    check::<LeasedSlot<RefCell<u8>, RefCell<u8>, RefCell<u8>>>();
}
