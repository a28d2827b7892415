//! The link: bytes never exceeded, items never lost, nobody asleep for ever.

use loom::thread;
use tandem_pipeline::{Closed, Receiver, Sender, link};

use crate::{ALL, explore};

const CLOSED: Closed = Closed { name: "model" };

fn send(sender: &Sender<u64>, bytes: u64) -> Result<(), Closed> {
    sender.reserve(bytes)?.send(bytes).map_err(|_| CLOSED)
}

/// Two threads send items of these bytes through a link of 4; the receiver must see each once, in its thread's order,
/// and never more in flight than `most`.
fn check_items_arrive(first: &'static [u64], second: &'static [u64], most: u64) {
    explore(3, move || {
        let (sender, mut receiver) = link("model", 4);
        let other = sender.clone();
        let others = [(sender, first), (other, second)].map(|(sender, sizes)| {
            thread::spawn(move || sizes.iter().for_each(|&bytes| send(&sender, bytes).unwrap()))
        });
        let mut seen = Vec::new();
        while let Some(parcel) = receiver.recv() {
            assert!(receiver.stats().bytes_in_flight <= most);
            seen.push(*parcel);
        }
        assert!([first, second].iter().all(|sizes| is_within(sizes, &seen)), "{seen:?}");
        assert_eq!(seen.len(), first.len() + second.len());
        let stats = receiver.stats();
        assert!(stats.peak_bytes <= most && stats.bytes_in_flight == 0, "{stats:?}");
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

/// Whether `part` is in `whole`, in this order, with others between.
fn is_within(part: &[u64], whole: &[u64]) -> bool {
    let mut rest = whole.iter();
    part.iter().all(|item| rest.any(|other| other == item))
}

#[test]
fn items_arrive_and_the_bytes_are_never_exceeded() {
    check_items_arrive(&[3, 2], &[4], 4);
}

#[test]
fn an_item_larger_than_the_link_goes_alone() {
    check_items_arrive(&[1], &[9], 9);
}

/// A sender waits for room that `end` makes, or keeps from coming. What `end` returns is kept until the sender knows.
fn check_sender_wakes<K>(expected: Result<(), Closed>, end: impl Fn(Receiver<u64>) -> K + Send + Sync + 'static) {
    explore(ALL, move || {
        let (sender, receiver) = link("model", 4);
        send(&sender, 3).unwrap();
        let waiting = thread::spawn(move || sender.reserve(2).map(drop));
        let kept = end(receiver);
        assert_eq!(waiting.join().unwrap(), expected);
        drop(kept);
    });
}

#[test]
fn a_sender_that_waits_is_woken() {
    check_sender_wakes(Ok(()), |mut receiver| {
        drop(receiver.recv().unwrap());
        receiver
    });
    check_sender_wakes(Err(CLOSED), |receiver| {
        receiver.close();
        receiver
    });
    check_sender_wakes(Err(CLOSED), drop);
}

#[test]
fn a_permit_that_is_dropped_lets_the_next_in() {
    explore(ALL, || {
        let (sender, receiver) = link::<u64>("model", 4);
        let permit = sender.reserve(4).unwrap();
        let dropping = thread::spawn(move || drop(permit));
        assert!(sender.reserve(4).is_ok());
        assert!(receiver.stats().peak_bytes == 4);
        dropping.join().unwrap();
    });
}

#[test]
fn two_that_wait_are_both_served() {
    explore(3, || {
        let (sender, receiver) = link::<u64>("model", 4);
        let permit = sender.reserve(4).unwrap();
        let others = [sender.clone(), sender].map(|sender| {
            // Both are kept: letting go of either would wake the other thread as well.
            thread::spawn(move || (sender.reserve(2), sender))
        });
        drop(permit);
        let held = others.map(|other| other.join().unwrap());
        assert!(held.iter().all(|(permit, _)| permit.is_ok()));
        assert_eq!(receiver.stats().bytes_in_flight, 4);
    });
}

/// The receiver waits for an item that `end` keeps from coming. What `end` returns is kept until the receiver knows.
fn check_receiver_wakes<K>(end: impl Fn(Sender<u64>) -> K + Send + Sync + 'static) {
    explore(ALL, move || {
        let (sender, mut receiver) = link("model", 4);
        let waiting = thread::spawn(move || receiver.recv().is_none());
        let kept = end(sender);
        assert!(waiting.join().unwrap());
        drop(kept);
    });
}

#[test]
fn a_receiver_that_waits_learns_of_the_end() {
    check_receiver_wakes(drop);
    check_receiver_wakes(|sender| {
        sender.close();
        sender
    });
    check_receiver_wakes(|sender| {
        let permit = sender.reserve(1).unwrap();
        drop(sender);
        drop(permit);
    });
    check_receiver_wakes(|sender| {
        let permit = sender.reserve(1).unwrap();
        sender.close();
        assert_eq!(permit.send(1), Err(1));
        sender
    });
}

#[test]
fn what_is_sent_before_the_close_is_received_and_nothing_after() {
    explore(3, || {
        let (sender, mut receiver) = link("model", 1);
        let handle = sender.handle();
        let closing = thread::spawn(move || handle.close());
        let sending = thread::spawn(move || (0..2).take_while(|_| send(&sender, 1).is_ok()).count());
        let received = std::iter::from_fn(|| receiver.recv()).count();
        assert_eq!(sending.join().unwrap(), received);
        closing.join().unwrap();
    });
}
