//! What a link promises, on one thread or with the other end plainly waiting.

use super::*;
use crate::Worker;

fn send(sender: &Sender<&'static str>, bytes: u64, item: &'static str) {
    sender.reserve(bytes).unwrap().send(item).unwrap();
}

#[test]
fn bytes_are_in_flight_from_the_reservation_until_the_parcel_is_dropped() {
    let (sender, mut receiver) = link("load-upload", 10);
    let in_flight = || sender.stats().bytes_in_flight;
    let permit = sender.reserve(4).unwrap();
    assert_eq!((permit.bytes(), in_flight()), (4, 4));
    permit.send("clip").unwrap();
    assert_eq!(in_flight(), 4);
    let parcel = receiver.recv().unwrap();
    assert_eq!((*parcel, parcel.bytes(), in_flight()), ("clip", 4, 4));
    drop(parcel);
    assert_eq!(in_flight(), 0);
}

#[test]
fn an_item_leaves_its_parcel_with_or_without_its_bytes() {
    let (sender, mut receiver) = link("load-upload", 10);
    send(&sender, 4, "at once");
    assert_eq!(receiver.recv().unwrap().into_inner(), "at once");
    assert_eq!(sender.stats().bytes_in_flight, 0);
    send(&sender, 4, "later");
    let (item, load) = receiver.recv().unwrap().split();
    assert_eq!((item, load.bytes(), sender.stats().bytes_in_flight), ("later", 4, 4));
    drop(load);
    assert_eq!(sender.stats().bytes_in_flight, 0);
}

#[test]
fn what_fits() {
    let check = |capacity, held: &[u64], asked, expected: bool| {
        let (sender, _receiver) = link::<()>("a-b", capacity);
        let held: Vec<_> = held.iter().map(|&bytes| sender.try_reserve(bytes).unwrap().unwrap()).collect();
        assert_eq!(sender.try_reserve(asked).unwrap().is_some(), expected, "{asked} of {capacity}");
        drop(held);
        // Given back unsent, so now everything fits that is alone.
        assert!(sender.try_reserve(asked).unwrap().is_some());
    };
    check(10, &[], 10, true);
    check(10, &[4, 3], 3, true);
    check(10, &[4, 3], 4, false);
    check(10, &[10], 0, true);
    // Larger than the link: alone or not at all, and nothing beside it.
    check(10, &[], 11, true);
    check(10, &[1], 11, false);
    check(10, &[11], 1, false);
    check(0, &[], 5, true);
    check(u64::MAX, &[u64::MAX], u64::MAX, false);
}

#[test]
fn who_waits_is_served_before_who_would_fit() {
    let (sender, receiver) = link::<()>("a-b", 10);
    let held = sender.reserve(8).unwrap();
    let large = sender.clone();
    let waiting = Worker::spawn("large", move |_| drop(large.reserve(5).unwrap())).unwrap();
    // Two would fit; they do not once the larger one stands in line.
    while sender.try_reserve(2).unwrap().is_some() {
        std::thread::yield_now();
    }
    drop(held);
    waiting.join().unwrap();
    assert!(sender.try_reserve(2).unwrap().is_some());
    assert!(receiver.stats().sender_wait_ns > 0);
}

#[test]
fn waiting_is_counted_only_when_somebody_waits() {
    let (sender, mut receiver) = link("a-b", 10);
    send(&sender, 4, "one");
    drop(receiver.recv().unwrap());
    let stats = receiver.stats();
    assert_eq!((stats.items, stats.peak_bytes, stats.sender_wait_ns, stats.receiver_wait_ns), (1, 4, 0, 0));
    let waiting = Worker::spawn("receiver", move |_| {
        drop(receiver.recv());
        receiver
    });
    send(&sender, 10, "two");
    let receiver = waiting.unwrap().join().unwrap();
    assert_eq!((receiver.stats().items, receiver.stats().peak_bytes), (2, 10));
}

#[test]
fn the_receiver_sees_the_end_after_every_sender_and_permit() {
    let (sender, mut receiver) = link("a-b", 10);
    let permit = sender.clone().reserve(1).unwrap();
    send(&sender, 1, "first");
    drop(sender);
    assert_eq!(*receiver.try_recv().unwrap().unwrap(), "first");
    assert!(receiver.try_recv().unwrap().is_none());
    permit.send("last").unwrap();
    assert_eq!(*receiver.recv().unwrap(), "last");
    assert!(receiver.recv().is_none());
    assert_eq!(receiver.try_recv().err(), Some(Closed { name: "a-b" }));
}

#[test]
fn closing_lets_nothing_in_and_everything_out() {
    let (sender, mut receiver) = link("a-b", 10);
    let permit = sender.reserve(1).unwrap();
    send(&sender, 1, "sent");
    receiver.handle().close();
    assert_eq!(permit.send("late"), Err("late"));
    assert_eq!(sender.reserve(1).err().map(|closed| closed.to_string()).as_deref(), Some("a-b is closed"));
    assert!(sender.try_reserve(1).is_err());
    assert_eq!(receiver.recv().unwrap().into_inner(), "sent");
    assert!(receiver.recv().is_none());
    assert_eq!(receiver.stats().bytes_in_flight, 0);
}

#[test]
fn what_nobody_received_is_dropped_with_the_receiver() {
    let (sender, receiver) = link("a-b", 10);
    let item = std::sync::Arc::new(());
    sender.reserve(4).unwrap().send(item.clone()).unwrap();
    drop(receiver);
    assert_eq!(std::sync::Arc::strong_count(&item), 1);
    assert_eq!(sender.handle().stats().bytes_in_flight, 0);
    assert!(sender.reserve(1).is_err());
}

#[test]
fn a_sender_that_panics_is_a_sender_that_is_gone() {
    let (sender, mut receiver) = link::<()>("a-b", 10);
    let worker: Worker = Worker::spawn("panics", move |_| {
        let _permit = sender.reserve(3).unwrap();
        panic!("in the middle of making an item");
    })
    .unwrap();
    assert!(receiver.recv().is_none());
    assert!(worker.join().is_err());
    assert_eq!(receiver.stats().bytes_in_flight, 0);
}
