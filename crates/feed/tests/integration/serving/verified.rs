//! Transfers that are verified while they run, and the pinned memory of every route.

use tandem_device::sim::SimFault;
use tandem_device::{Machine, Route, SimSpec};
use tandem_feed::FeedError;

use super::support::{Corpus, Serving, two_cards};

/// Copies between the cards before the first batch: one for each of three slots, and five that are timed.
const PROOF_COPIES: u64 = 3 + 5;

/// Two cards whose link flips bits from batch `first` on, over a route that the driver copies.
fn failing_link(first: u64, route: Route, verify_every: Option<u64>) -> Serving {
    let spec = two_cards(first).with_fault(SimFault::CorruptCopies(PROOF_COPIES + first));
    Serving { verify_every, ..Serving::on(Machine::simulated(spec), [0, 1], route) }
}

#[test]
fn verified_batches_have_the_same_bytes_and_are_counted() {
    let corpus = Corpus::new(31, 30);
    let expected = Serving::cpu().batches(&corpus.training_set, 20).unwrap();
    for route in Route::LADDER {
        for (every, verified) in [(1, 20), (3, 7), (7, 3), (100, 1)] {
            let serving = Serving { verify_every: Some(every), ..Serving::pair(every, route) };
            assert_eq!(serving.batches(&corpus.training_set, 20).unwrap(), expected, "{} {every}", route.name());
            let counted = serving.serve(&corpus.training_set, |feed, roles| {
                let stream = roles.model.device.stream(true)?;
                (0..20).try_for_each(|_| feed.lease(&stream).map(drop))?;
                Ok(feed.verified())
            });
            assert_eq!(counted.unwrap(), Some(verified), "{} {every}", route.name());
        }
    }
    // Copies within one card, in any order of work.
    for seed in 0..6 {
        let machine = Machine::simulated(SimSpec::new(1, 4 << 30).with_seed(seed));
        let serving = Serving { verify_every: Some(1), ..Serving::on(machine, [0, 0], Route::Bounce) };
        assert_eq!(serving.batches(&corpus.training_set, 20).unwrap(), expected, "{seed}");
    }
}

#[test]
fn nothing_is_verified_where_nothing_is_copied() {
    let corpus = Corpus::new(32, 20);
    for serving in [Serving::cpu(), Serving::single(1)] {
        let serving = Serving { verify_every: Some(1), ..serving };
        assert_eq!(serving.serve(&corpus.training_set, |feed, _| Ok(feed.verified())).unwrap(), None);
    }
}

#[test]
fn a_verified_batch_that_changed_on_its_way_is_never_leased() {
    let corpus = Corpus::new(33, 30);
    let check = |route: Route, every: u64, first_corrupt: u64, noticed: u64| {
        let mut leased = 0;
        let ended = failing_link(first_corrupt, route, Some(every)).serve(&corpus.training_set, |feed, roles| {
            let stream = roles.model.device.stream(true)?;
            loop {
                feed.lease(&stream)?;
                leased += 1;
            }
            #[expect(unreachable_code, reason = "the type of the result")]
            Ok(())
        });
        let error = ended.unwrap_err();
        let FeedError::CorruptBatch { route: found, from: 0, to: 1, batch, slot, .. } = error else {
            panic!("{error}");
        };
        assert_eq!((found, batch, leased, slot), (route, noticed, noticed, (noticed % 3) as usize), "{every}");
        let text = error.to_string();
        let named = format!("batch {batch} changed on its way from GPU 0 to GPU 1 ({}, slot {slot})", route.name());
        assert!(
            text.contains(&named)
                && text.ends_with("To resume over another route, type the same command with --transfer bounce")
        );
    };
    for route in [Route::Peer, Route::PeerCopy, Route::Staged] {
        check(route, 1, 0, 0);
        check(route, 1, 5, 5);
        // The first verified batch after the link has failed.
        check(route, 4, 5, 8);
        check(route, 4, 8, 8);
    }
}

#[test]
fn without_verification_changed_batches_are_not_noticed() {
    let corpus = Corpus::new(33, 30);
    let intact = Serving::cpu().batches(&corpus.training_set, 12).unwrap();
    let served = failing_link(5, Route::Peer, None).batches(&corpus.training_set, 12).unwrap();
    assert_eq!(served[..5], intact[..5]);
    assert!(served[5..].iter().zip(&intact[5..]).any(|(served, intact)| served.fields != intact.fields));
    // Through the host the failing link is not used.
    let bounced = failing_link(5, Route::Bounce, Some(1)).batches(&corpus.training_set, 12).unwrap();
    assert_eq!(bounced, intact);
}

#[test]
fn pinned_memory_is_planned_to_the_byte_over_every_route() {
    let corpus = Corpus::new(34, 20);
    let routes = Route::LADDER.map(|route| Serving::pair(2, route)).into_iter().chain([Serving::single(2)]);
    for serving in routes {
        for verify_every in [None, Some(1), Some(2)] {
            let serving = Serving { verify_every, ..serving.clone() };
            let pinned = || serving.machine.cards().iter().map(|card| serving.machine.counters(card.index));
            let live = || pinned().map(|counters| counters.live_pinned_bytes).sum::<u64>();
            let (planned, taken) =
                serving.serve(&corpus.training_set, |feed, _| Ok((feed.plan().pinned_bytes(), live()))).unwrap();
            assert_eq!(planned, taken, "{} {verify_every:?}", serving.route.name());
            assert_eq!(live(), 0);
        }
    }
}
