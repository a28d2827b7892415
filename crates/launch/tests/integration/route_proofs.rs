//! Routes between two cards are tried before a run: those with peer access by the prover, the others in this process.

use std::sync::{Arc, Mutex};

use tandem_device::sim::{Link, SimFault};
use tandem_device::transfer::Measured;
use tandem_device::{DeviceError, Machine, Route, SimSpec};
use tandem_launch::inventory::{Inventory, Resolved};
use tandem_launch::route_proof::{RouteProof, RouteProver};
use tandem_plan::Settings;

const PAIR: [(&str, &str); 2] = [("data-gpu", "0"), ("model-gpu", "1")];

/// Answers for every route, and stores what it was asked.
struct Answers {
    answer: Result<Measured, String>,
    asked: Mutex<Vec<(RouteProof, Vec<Route>)>>,
}

impl RouteProver for Answers {
    fn prove(&self, _machine: &Machine, proof: &RouteProof, routes: &[Route]) -> Vec<Result<Measured, String>> {
        self.asked.lock().unwrap().push((*proof, routes.to_vec()));
        vec![self.answer.clone(); routes.len()]
    }
}

fn resolve(spec: SimSpec, flags: &[(&str, &str)], answer: Result<Measured, String>) -> (Resolved, Arc<Answers>) {
    let prover = Arc::new(Answers { answer, asked: Mutex::default() });
    let small = [("model-size", "nano"), ("batch-size", "2"), ("buffer-size", "4"), ("max-mel-frames", "200")];
    let settings = Settings::new().with(&small).unwrap().with(flags).unwrap();
    let inventory = Inventory::of(Machine::simulated(spec)).unwrap().with_prover(prover.clone());
    (inventory.resolve(&settings, None).unwrap(), prover)
}

fn linked() -> SimSpec {
    SimSpec::new(2, 24 << 30).with_link(Link::Nvlink)
}

#[test]
fn routes_with_peer_access_are_tried_by_the_prover_only() {
    // In this process they would abort it.
    for fault in [Route::Peer, Route::PeerCopy].map(SimFault::AbortOnRoute) {
        let fast = Measured { bytes: 1 << 30, ns: 1 << 20 };
        let (mut resolved, prover) = resolve(linked().with_fault(fault), &PAIR, Ok(fast));
        resolved.try_transfer().unwrap();
        let asked = prover.asked.lock().unwrap().clone();
        let batch_bytes = resolved.plan.feed.slot_bytes();
        assert_eq!(asked, [(RouteProof { from: 0, to: 1, batch_bytes, slots: 1 }, vec![Route::Peer, Route::PeerCopy])]);
        let transfer = &resolved.plan.transfer;
        assert_eq!((transfer.route, transfer.mb_per_s), (Route::Peer, Some(1_024_000)));
        assert_eq!(transfer.tried.len(), 4);
    }
}

#[test]
fn a_refusal_of_the_prover_leaves_the_routes_through_the_host() {
    let (mut resolved, _) = resolve(linked(), &PAIR, Err("it crashed".to_owned()));
    resolved.try_transfer().unwrap();
    let transfer = &resolved.plan.transfer;
    assert!([Route::Staged, Route::Bounce].contains(&transfer.route), "{transfer:?}");
    let refused: Vec<_> = transfer.refused().collect();
    assert_eq!(refused, [(Route::Peer, "it crashed"), (Route::PeerCopy, "it crashed")]);
    assert!(
        resolved.plan.notes.iter().any(|note| note.contains("peer refused: it crashed")),
        "{:?}",
        resolved.plan.notes
    );

    let forced = [&PAIR[..], &[("transfer", "peer")]].concat();
    let (mut resolved, _) = resolve(linked(), &forced, Err("it crashed".to_owned()));
    let error = resolved.try_transfer().unwrap_err();
    assert!(matches!(&error, DeviceError::NoRoute { route: "peer", from: 0, to: 1, .. }), "{error}");
    assert!(error.to_string().ends_with(": it crashed"), "{error}");
}

#[test]
fn the_prover_is_not_asked_about_routes_that_cannot_take_the_cards_down() {
    let unlinked = SimSpec::new(2, 24 << 30);
    let bounce = [&PAIR[..], &[("transfer", "bounce")]].concat();
    let one_card = [("gpu", "0"), ("transfer", "peer")];
    for (spec, flags) in [(unlinked.clone(), &PAIR[..]), (linked(), &bounce), (unlinked, &one_card)] {
        let (mut resolved, prover) = resolve(spec, flags, Err("it crashed".to_owned()));
        resolved.try_transfer().unwrap();
        assert!(prover.asked.lock().unwrap().is_empty(), "{flags:?}");
        assert_eq!(resolved.plan.transfer.refused().count(), 0, "{flags:?}");
    }
}
