//! How a ring waits and ends: no wake-up is lost, in whichever order things end.

use std::convert::Infallible;

use loom::thread;
use tandem_pipeline::{Closed, Filler, FillingSlot, LeasedSlot, RingSlot, Taker, ring};

use crate::{ALL, explore};

type Fill = Filler<(), usize, ()>;
type Take = Taker<(), usize, ()>;

const CLOSED: Closed = Closed { name: "model" };

fn model_ring(num_slots: usize) -> (Fill, Take) {
    ring("model", (0..num_slots).map(|_| RingSlot { memory: (), written: (), freed: () }))
}

fn ok(_: &()) -> Result<(), Infallible> {
    Ok(())
}

fn fill(filler: &Fill) -> Result<FillingSlot<(), usize, ()>, Closed> {
    filler.take().map(|free| {
        let Ok(filling) = free.claim(ok);
        filling
    })
}

fn publish(filling: FillingSlot<(), usize, ()>, value: usize) {
    let Ok(()) = filling.publish(value, ok);
}

fn lease(taker: &Take) -> Option<LeasedSlot<(), usize, ()>> {
    taker.take().map(|ready| {
        let Ok(leased) = ready.lease(ok);
        leased
    })
}

fn release(leased: LeasedSlot<(), usize, ()>) {
    let Ok(()) = leased.release(ok);
}

#[test]
fn one_slot_goes_round_and_no_wake_up_is_lost() {
    explore(4, || {
        let (filler, taker) = model_ring(1);
        let filling = thread::spawn(move || {
            for value in 0..3 {
                publish(fill(&filler).unwrap(), value);
            }
        });
        for value in 0..3 {
            let leased = lease(&taker).unwrap();
            assert_eq!(*leased.payload(), value);
            release(leased);
        }
        assert!(lease(&taker).is_none());
        filling.join().unwrap();
    });
}

#[test]
fn two_slots_published_by_other_threads_are_both_taken() {
    explore(3, || {
        let (filler, taker) = model_ring(2);
        let (first, second) = (fill(&filler).unwrap(), fill(&filler).unwrap());
        drop(filler);
        let others = [(first, 1), (second, 2)].map(|(filling, value)| thread::spawn(move || publish(filling, value)));
        let sum: usize = std::iter::from_fn(|| lease(&taker).map(|leased| *leased.payload())).sum();
        assert_eq!(sum, 3);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn a_filler_that_waits_is_woken_by_a_slot_that_was_not_published() {
    explore(ALL, || {
        let (filler, taker) = model_ring(1);
        let held = fill(&filler).unwrap();
        let other = thread::spawn(move || drop(held));
        publish(fill(&filler).unwrap(), 7);
        assert_eq!(lease(&taker).map(|leased| *leased.payload()), Some(7));
        other.join().unwrap();
    });
}

#[test]
fn more_depth_wakes_a_filler_that_waits() {
    explore(ALL, || {
        let (filler, _taker) = model_ring(2);
        filler.set_depth(1);
        let _held = fill(&filler).unwrap();
        let filler = loom::sync::Arc::new(filler);
        let tuner = filler.clone();
        let other = thread::spawn(move || tuner.set_depth(2));
        assert!(fill(&filler).is_ok());
        other.join().unwrap();
    });
}

/// The filler waits for a slot, and `end` makes sure that none comes. The result of `end` lives until the filler knows.
fn check_filler_wakes<K>(end: impl Fn(Take, LeasedSlot<(), usize, ()>) -> K + Send + Sync + 'static) {
    explore(ALL, move || {
        let (filler, taker) = model_ring(1);
        publish(fill(&filler).unwrap(), 0);
        let leased = lease(&taker).unwrap();
        let waiting = thread::spawn(move || fill(&filler).err());
        let alive = end(taker, leased);
        assert_eq!(waiting.join().unwrap(), Some(CLOSED));
        drop(alive);
    });
}

#[test]
fn a_filler_that_waits_learns_of_the_end() {
    // Closed, while the slot is leased.
    check_filler_wakes(|taker, leased| {
        taker.close();
        (taker, leased)
    });
    // The taker dropped, while the slot is leased.
    check_filler_wakes(|taker, leased| {
        drop(taker);
        leased
    });
    // The last slot is retired.
    check_filler_wakes(|taker, leased| {
        drop(leased);
        taker
    });
}

/// The taker waits for a slot, and `end` makes sure that none is published. The result of `end` lives until the taker
/// knows.
fn check_taker_wakes<K>(end: impl Fn(Fill, FillingSlot<(), usize, ()>) -> K + Send + Sync + 'static) {
    explore(ALL, move || {
        let (filler, taker) = model_ring(1);
        let filling = fill(&filler).unwrap();
        let waiting = thread::spawn(move || lease(&taker).is_none());
        let alive = end(filler, filling);
        assert!(waiting.join().unwrap());
        drop(alive);
    });
}

#[test]
fn a_taker_that_waits_learns_of_the_end() {
    // Closed, while a slot is filling: publishing it later makes it free.
    check_taker_wakes(|filler, filling| {
        filler.close();
        publish(filling, 0);
        filler
    });
    // The filler dropped first, then the slot it was filling; and the other way round.
    check_taker_wakes(|filler, filling| {
        drop(filler);
        drop(filling);
    });
    check_taker_wakes(|filler, filling| {
        drop(filling);
        drop(filler);
    });
}

#[test]
fn wait_ready_also_returns_at_the_end_of_the_stream() {
    explore(ALL, || {
        let (filler, taker) = model_ring(2);
        let filling = thread::spawn(move || publish(fill(&filler).unwrap(), 0));
        // loom's clock stands still: without the wake-up this would wait forever.
        assert_eq!(taker.wait_ready(2, std::time::Duration::MAX), 1);
        filling.join().unwrap();
    });
}

#[test]
fn whatever_is_published_before_the_close_is_taken_and_no_more() {
    explore(3, || {
        let (filler, taker) = model_ring(2);
        let handle = filler.handle();
        let closing = thread::spawn(move || handle.close());
        let filling = thread::spawn(move || {
            while let Ok(slot) = fill(&filler) {
                publish(slot, 0);
            }
            filler
        });
        // Not released: so the two slots are filled at most once each.
        let taken: Vec<_> = std::iter::from_fn(|| lease(&taker)).collect();
        let filler = filling.join().unwrap();
        assert_eq!(filler.stats().published, taken.len() as u64);
        closing.join().unwrap();
    });
}

#[test]
fn memory_is_dropped_with_the_last_end_or_slot_whichever_goes_last() {
    explore(3, || {
        let memory = std::sync::Arc::new(());
        let slots = (0..2).map(|_| RingSlot { memory: memory.clone(), written: (), freed: () });
        let (filler, taker) = ring::<_, usize, _>("model", slots);
        let Ok(filling) = filler.take().unwrap().claim(ok);
        let Ok(()) = filling.publish(0, ok);
        let Ok(leased) = taker.take().unwrap().lease(ok);
        let handle = filler.handle();
        let others = [thread::spawn(move || drop(filler)), thread::spawn(move || drop(taker))];
        let Ok(()) = leased.release(ok);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(std::sync::Arc::strong_count(&memory), 1);
        drop(handle);
    });
}
