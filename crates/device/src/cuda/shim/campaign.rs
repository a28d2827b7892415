//! Every route with every fault: a proof ends with the next route or with a typed error, within its deadline, and leaves
//! nothing behind. On the emulated driver in every check, on two contexts of a real card where there is one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tandem_events::Role;

use super::super::{CudaDriver, OpenOptions, emulated};
use super::{DriverFault, install, with_state};
use crate::arena::{Arena, ArenaSpec};
use crate::bytes::MIB;
use crate::device::Device;
use crate::driver::{Driver, PeerCall};
use crate::error::DeviceError;
use crate::library::Search;
use crate::machine::Machine;
use crate::transfer::{Measured, Route, Transfer};

/// A process has one shim: its tests run one after the other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
/// How long work that never ends is waited for, in each place that waits.
const SHORT: Duration = Duration::from_millis(20);
/// Longer than all those places together, on a machine that is busy with something else.
const HANG: Duration = Duration::from_secs(20);

/// Where the campaign runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TestDriver {
    Emulated,
    Real,
}

impl TestDriver {
    /// A driver of two cards behind a new shim.
    fn driver(self) -> CudaDriver {
        with_state(|state| *state = super::State::default());
        match self {
            TestDriver::Emulated => {
                emulated::reset();
                let mut driver = emulated::driver(install(emulated::api()));
                driver.has_shim = true;
                driver
            }
            TestDriver::Real => {
                let options = OpenOptions { two_contexts: true, shim: true };
                CudaDriver::open_in(&Search::from_env(), options).unwrap().expect("this test needs an NVIDIA card")
            }
        }
    }
}

/// The cards of a fault are numbered: 0 is the data role's, 1 the model role's.
#[derive(Clone, Copy, Debug)]
enum Injection {
    None,
    AtOnce(DriverFault),
    Fails { card: usize, after_calls: u64, code: i32 },
    NeverReached { card: usize },
    Skewed { card: usize, ppm: f32 },
}

impl Injection {
    fn fault(self, contexts: [usize; 2]) -> Option<DriverFault> {
        Some(match self {
            Injection::None => return None,
            Injection::AtOnce(fault) => fault,
            Injection::Fails { card, after_calls, code } => {
                DriverFault::Fails { context: contexts[card], after_calls, code }
            }
            Injection::NeverReached { card } => DriverFault::NeverReached { context: contexts[card] },
            Injection::Skewed { card, ppm } => DriverFault::Skewed { context: contexts[card], ppm },
        })
    }
}

/// How one case ended.
struct Outcome {
    result: Result<Measured, DeviceError>,
    /// Calls of the card that the fault names.
    calls: u64,
    violations: Vec<String>,
    /// What was not given back; not known for a real card.
    left: Vec<&'static str>,
}

/// Opens two cards, proves the route with the fault, and gives everything back.
fn attempt(target: TestDriver, route: Route, injection: Injection) -> Outcome {
    let mut driver = target.driver();
    if matches!(injection, Injection::NeverReached { .. } | Injection::Fails { .. }) {
        (driver.grace, driver.teardown_deadline) = (SHORT, SHORT);
    }
    let (driver, began) = (Arc::new(driver), Instant::now());
    let machine = Machine::with_driver(driver.clone());
    let result = prove(&driver, &machine, route, injection);
    let calls = with_state(|state| {
        state.fault = None;
        state.calls
    });
    drop(machine);
    drop(driver);
    if target == TestDriver::Real {
        destroy_left_contexts();
    }
    assert!(began.elapsed() < HANG, "{route:?} with {injection:?} took {:?}", began.elapsed());
    let violations = with_state(|state| std::mem::take(&mut state.registry.violations)).unwrap_or_default();
    let left = if target == TestDriver::Emulated { emulated::alive() } else { Vec::new() };
    Outcome { result, calls: calls.unwrap_or(0), violations, left }
}

/// A lost card leaves its contexts to the end of the process. Only the shim failed them: the real ones work, and half a
/// gigabyte each would fill the card.
fn destroy_left_contexts() {
    let left = with_state(|state| state.registry.open_contexts()).unwrap_or_default();
    for context in left {
        // SAFETY: nothing of the case is left that could use it.
        unsafe { (super::inner().cuCtxDestroy_v2)(context) };
    }
}

fn prove(driver: &CudaDriver, machine: &Machine, route: Route, injection: Injection) -> Result<Measured, DeviceError> {
    let (from, to) = (machine.open(0)?, machine.open(1)?);
    let contexts = [driver.opened(0, "a test")?.context, driver.opened(1, "a test")?.context];
    let is_stuck = matches!(injection, Injection::NeverReached { .. });
    with_state(|state| state.fault = injection.fault(contexts).filter(|_| !is_stuck));
    let (data, model) = arenas(&from, &to)?;
    let sources = [data.take_for_peer("batch", 4096)?, data.take_for_peer("batch", 4096)?];
    let targets = [model.take_for_peer("slot", 4096)?];
    let mut transfer = Transfer::open(route, "a test", &data, &model, 4096)?;
    if is_stuck {
        // Not before: then the reservations would fail, and the proof would not be reached.
        transfer.proof_deadline = SHORT;
        with_state(|state| state.fault = injection.fault(contexts));
    }
    transfer.prove(&sources.each_ref().map(|block| block.view()), &targets.each_ref().map(|block| block.view()))
}

/// An arena on each card, all of which the other may access.
fn arenas(from: &Device, to: &Device) -> Result<(Arena, Arena), DeviceError> {
    let spec = |role| ArenaSpec { peer_bytes: 32 * MIB, capped: true, ..ArenaSpec::new(role, 32 * MIB) };
    Ok((Arena::reserve(from, spec(Role::Data))?, Arena::reserve(to, spec(Role::Model))?))
}

/// What the end of a case has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Works,
    /// Another route may work.
    NextRoute,
    /// The card is lost.
    Lost(usize),
    TimedOut,
    OutOfMemory,
}

fn ended(result: &Result<Measured, DeviceError>) -> Option<Expected> {
    Some(match result {
        Ok(_) => Expected::Works,
        Err(error) if error.is_about_route() => Expected::NextRoute,
        Err(DeviceError::Lost { card, .. }) => Expected::Lost(*card),
        Err(DeviceError::TimedOut { .. }) => Expected::TimedOut,
        Err(DeviceError::OutOfMemory { .. } | DeviceError::OutOfPinned { .. }) => Expected::OutOfMemory,
        Err(_) => return None,
    })
}

/// The cases that ended as they had to.
#[derive(Default)]
struct Tally {
    cases: usize,
}

impl Tally {
    fn check(&mut self, target: TestDriver, route: Route, injection: Injection, allowed: &[Expected]) -> Outcome {
        let outcome = attempt(target, route, injection);
        let ended = ended(&outcome.result);
        let case = format!("{route:?} with {injection:?}");
        assert!(ended.is_some_and(|ended| allowed.contains(&ended)), "{case}: {:?}", outcome.result);
        assert_eq!(outcome.violations, [""; 0], "{case}");
        // What a lost card may still use is left to the end of the process.
        if !matches!(ended, Some(Expected::Lost(_) | Expected::TimedOut))
            && !matches!(injection, Injection::Fails { .. })
        {
            assert_eq!(outcome.left, [""; 0], "{case}");
        }
        self.cases += 1;
        outcome
    }
}

/// `stride`: every Nth call of a card fails.
fn campaign(target: TestDriver, route: Route, stride: usize) {
    let _turn: MutexGuard<'_, ()> = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    use Expected::{Lost, NextRoute, OutOfMemory, TimedOut, Works};
    let mut tally = Tally::default();
    tally.check(target, route, Injection::None, &[Works]);

    for broken in [Route::Peer, Route::PeerCopy, Route::Staged] {
        let call = if broken == Route::Peer { PeerCall::Unified } else { PeerCall::BetweenContexts };
        let injection = Injection::AtOnce(DriverFault::CopiesNothing { call, with_access: broken != Route::Staged });
        tally.check(target, route, injection, if route == broken { &[NextRoute] } else { &[Works] });
    }
    for code in [205, 217] {
        let injection = Injection::AtOnce(DriverFault::RefusesAccess(code));
        tally.check(target, route, injection, if route.needs_peer_access() { &[NextRoute] } else { &[Works] });
    }
    for card in [0, 1] {
        tally.check(target, route, Injection::NeverReached { card }, &[TimedOut]);
        for ppm in [-100.0, 100.0] {
            tally.check(target, route, Injection::Skewed { card, ppm }, &[Works]);
        }
        // A card that fails from call N on, for every N of a proof: its last calls only give memory back.
        let all = Injection::Fails { card, after_calls: u64::MAX, code: 999 };
        let calls = tally.check(target, route, all, &[Works]).calls;
        assert!(calls > 20, "{calls} calls");
        for code in [999, 719, 219, 46] {
            for after_calls in (0..calls).step_by(stride) {
                tally.check(target, route, Injection::Fails { card, after_calls, code }, &[Lost(card), Works]);
            }
        }
    }
    for allocation in 0.. {
        let injection = Injection::AtOnce(DriverFault::OutOfMemory { allocation });
        let outcome = tally.check(target, route, injection, &[OutOfMemory, Works]);
        if outcome.result.is_ok() {
            assert!(allocation >= 4, "two pools and their memory");
            break;
        }
    }
    println!("{}: {1} of {1} cases", route.name(), tally.cases);
}

macro_rules! campaigns {
    ($($name:ident: $route:expr;)*) => {$(
        mod $name {
            use super::{Route, TestDriver, campaign};

            #[test]
            fn every_fault_ends_with_the_next_route_or_a_typed_error() {
                campaign(TestDriver::Emulated, $route, 1);
            }

            #[test]
            #[ignore = "needs an NVIDIA card"]
            fn cuda_every_fault_ends_with_the_next_route_or_a_typed_error() {
                // Two contexts are created for each case.
                campaign(TestDriver::Real, $route, 20);
            }
        }
    )*};
}

campaigns! {
    peer: Route::Peer;
    peer_copy: Route::PeerCopy;
    staged: Route::Staged;
    bounce: Route::Bounce;
}

/// Each breaks one rule of two cards: the code of the driver.
fn mix_ups(target: TestDriver) {
    let _turn: MutexGuard<'_, ()> = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let driver = target.driver();
    driver.open(0).unwrap();
    driver.open(1).unwrap();
    let (stream, event) = (driver.create_stream(0, false).unwrap(), driver.create_event(0, true).unwrap());
    let other_event = driver.create_event(1, true).unwrap();
    let refused = |result: Result<(), DeviceError>, code: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(code), "{error}");
    };
    refused(driver.record(0, stream, other_event), "(400");
    driver.record(0, stream, event).unwrap();
    let other_stream = driver.create_stream(1, false).unwrap();
    driver.record(1, other_stream, other_event).unwrap();
    driver.synchronize(0, event).unwrap();
    driver.synchronize(1, other_event).unwrap();
    refused(driver.elapsed_ns(0, event, other_event).map(drop), "(400");
    driver.wait(0, stream, other_event).expect("waits cross");
    let held = driver.reserve(1, 32 * MIB, true).unwrap();
    // Memory that was never opened to the card: one card forgives that, two do not.
    refused(driver.fill(0, stream, held.base, 64, 0), "(1");
    driver.allow_peer(&held, 0).unwrap();
    driver.fill(0, stream, held.base, 64, 0).expect("it is open now");
    driver.release(held);
    for (card, event) in [(0, event), (1, other_event)] {
        driver.destroy_event(card, event);
    }
    driver.destroy_stream(0, stream);
    driver.destroy_stream(1, other_stream);
    drop(driver);
    let violations = with_state(|state| std::mem::take(&mut state.registry.violations)).unwrap_or_default();
    assert_eq!(violations.len(), 3, "{violations:?}");
}

#[test]
fn a_mix_up_of_two_contexts_is_refused() {
    mix_ups(TestDriver::Emulated);
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn cuda_a_mix_up_of_two_contexts_is_refused() {
    mix_ups(TestDriver::Real);
}

/// Without the shim: what the driver itself enforces between two contexts.
#[test]
#[ignore = "needs an NVIDIA card"]
fn cuda_the_driver_refuses_events_of_the_other_context() {
    let _turn: MutexGuard<'_, ()> = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let options = OpenOptions { two_contexts: true, shim: false };
    let driver = CudaDriver::open_in(&Search::from_env(), options).unwrap().expect("this test needs an NVIDIA card");
    driver.open(0).unwrap();
    driver.open(1).unwrap();
    let (stream, other_event) = (driver.create_stream(0, false).unwrap(), driver.create_event(1, true).unwrap());
    let error = driver.record(0, stream, other_event).unwrap_err().to_string();
    assert!(error.contains("(400"), "{error}");
}

#[test]
fn a_route_through_the_host_runs_without_the_access_of_one_that_was_tried_before() {
    let _turn: MutexGuard<'_, ()> = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let driver = Arc::new(TestDriver::Emulated.driver());
    let machine = Machine::with_driver(driver.clone());
    let (from, to) = (machine.open(0).unwrap(), machine.open(1).unwrap());
    let (data, model) = arenas(&from, &to).unwrap();
    drop(Transfer::open(Route::Peer, "a test", &data, &model, 4096).unwrap());
    // The call with access writes nothing. Without access it works.
    let call = PeerCall::BetweenContexts;
    with_state(|state| state.fault = Some(DriverFault::CopiesNothing { call, with_access: true }));
    let mut transfer = Transfer::open(Route::Staged, "a test", &data, &model, 4096).unwrap();
    let (source, target) = (data.take_for_peer("batch", 4096).unwrap(), model.take_for_peer("slot", 4096).unwrap());
    transfer.prove(&[source.view()], &[target.view()]).unwrap();
}

#[test]
fn a_reservation_on_a_card_that_hangs_is_an_error_in_time() {
    let _turn: MutexGuard<'_, ()> = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut driver = TestDriver::Emulated.driver();
    driver.teardown_deadline = SHORT;
    driver.open(0).unwrap();
    let context = driver.opened(0, "a test").unwrap().context;
    with_state(|state| state.fault = Some(DriverFault::NeverReached { context }));
    let error = driver.reserve(0, 32 * MIB, true).unwrap_err();
    assert!(matches!(error, DeviceError::TimedOut { card: 0, .. }), "{error}");
}

#[test]
fn what_is_not_given_back_is_noticed() {
    let _turn: MutexGuard<'_, ()> = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let driver = TestDriver::Emulated.driver();
    driver.open(0).unwrap();
    driver.create_event(0, false).unwrap();
    drop(driver);
    let violations = with_state(|state| std::mem::take(&mut state.registry.violations)).unwrap_or_default();
    assert!(violations.len() == 1 && violations[0].contains("closed with (Event"), "{violations:?}");
    assert_eq!(emulated::alive(), ["event"]);
}
