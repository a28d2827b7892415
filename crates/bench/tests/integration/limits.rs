//! A limit that is not kept is seen: by the check after warm-up, and by the sampler while something runs.

use std::sync::{Arc, Mutex};

use crate::support::Speeches;
use tandem_bench::validate::validate;
use tandem_device::sim::{Link, SimFault};
use tandem_device::{ArenaSpec, DeviceError, Isolation, IsolationError, Machine, RoleSetup, Route, SimSpec};
use tandem_events::{Emitter, Role, RunEvent, Sink};
use tandem_launch::Sampler;
use tandem_launch::inventory::Resolved;

const MIB: u64 = 1 << 20;

#[derive(Default)]
struct Collected(Mutex<Vec<RunEvent>>);

impl Sink for Collected {
    fn emit(&self, event: RunEvent) {
        self.0.lock().unwrap().push(event);
    }
}

fn on(card: usize, arena: ArenaSpec) -> RoleSetup {
    RoleSetup { card, arena }
}

/// Both roles on one card, with no room in their limits for the driver.
fn careless(machine: &Machine) -> Isolation {
    let spec = |role| {
        let arena_bytes = 64 * MIB;
        ArenaSpec { capped: true, ..ArenaSpec::new(role, arena_bytes) }
    };
    Isolation::set_up(machine, on(0, spec(Role::Data)), on(0, spec(Role::Model))).unwrap()
}

#[test]
fn a_process_over_its_limits_is_a_breach() {
    let machine = Machine::simulated(SimSpec::new(1, 4 << 30));
    let roles = careless(&machine);
    let error = roles.check().unwrap_err();
    let DeviceError::Isolation(IsolationError::LimitExceeded { card: 0, used, limit }) = error else {
        panic!("{error}")
    };
    assert_eq!((used, limit), ((522 + 128) * MIB, 128 * MIB));
}

#[test]
fn the_sampler_remembers_the_worst_and_logs_the_breach() {
    let machine = Machine::simulated(SimSpec::new(1, 4 << 30));
    let roles = careless(&machine);
    let log = Arc::new(Collected::default());
    let sampler = Sampler::start(&machine, &roles, &Emitter::to(log.clone())).unwrap();
    while sampler.check().is_ok() {
        std::thread::yield_now();
    }
    let peaks = sampler.finish().unwrap();
    assert_eq!(peaks.len(), 1);
    assert!(!peaks[0].kept() && peaks[0].samples > 0, "{peaks:?}");
    let breach = RunEvent::LimitExceeded { card: 0, bytes: (522 + 128) * MIB, limit_bytes: 128 * MIB };
    assert_eq!(*log.0.lock().unwrap(), [breach]);
}

/// Each card answers for the roles on it alone.
#[test]
fn two_cards_are_held_to_their_own_limits() {
    let machine = Machine::simulated(SimSpec::new(2, 4 << 30));
    let spec = |role, driver_mb: u64| ArenaSpec {
        role,
        limit_bytes: (driver_mb + 64) * MIB,
        driver_bytes: driver_mb * MIB,
        arena_bytes: 64 * MIB,
        peer_bytes: 0,
        capped: true,
    };
    let tight = Isolation::set_up(&machine, on(0, spec(Role::Data, 100)), on(1, spec(Role::Model, 2000))).unwrap();
    let error = tight.check_driver_memory().unwrap_err();
    assert!(matches!(error, DeviceError::Isolation(IsolationError::LimitExceeded { card: 0, .. })), "{error}");
    drop(tight);
    let roomy = Isolation::set_up(&machine, on(0, spec(Role::Data, 600)), on(1, spec(Role::Model, 600))).unwrap();
    roomy.check_driver_memory().expect("522 MB of driver in 600 on each card");
}

const SHARED: [(&str, &str); 3] = [("share-gpu", "true"), ("enable-memory-isolation", "true"), ("batch-size", "2")];

/// What the plan charges is what `validate` sees taken.
#[test]
fn a_plan_that_is_validated_is_taken_to_the_byte() {
    let speeches = Speeches::new(0.7);
    for flags in [&[][..], &[("transfer", "bounce")], &[("no-mixed-precision", "true"), ("grad-accum", "2")]] {
        let spec = SimSpec::new(1, 24 << 30);
        let (resolved, corpora) = speeches.resolve(Some(&spec), &[&SHARED, flags].concat());
        let mut said = Vec::new();
        let report = validate(&resolved, &corpora, &Emitter::none(), &mut |line| said.push(line.to_owned()));
        assert!(report.passed(), "{said:#?}");
        for role in [&resolved.plan.data, &resolved.plan.model] {
            let (mb, limit) = (role.planned_bytes.div_ceil(MIB), role.limit_bytes / MIB);
            let held = format!("GPU 0: {mb}/{limit}MB");
            assert!(said.iter().any(|line| line.contains(&held)), "{held}: {said:#?}");
        }
    }
}

#[test]
fn a_driver_that_takes_more_than_its_table_stops_the_start() {
    let speeches = Speeches::new(0.7);
    let started = |grown: u64| {
        let spec = SimSpec::new(1, 24 << 30).with_fault(SimFault::DriverGrows(grown * MIB));
        let (resolved, corpora) = speeches.resolve(Some(&spec), &SHARED);
        speeches.launch(&resolved, &corpora).map(drop)
    };
    started(1).expect("inside what was planned");
    let error = started(200).unwrap_err();
    let breach = matches!(error.device(), Some(DeviceError::Isolation(IsolationError::LimitExceeded { .. })));
    assert!(breach, "{error}");
}

/// Peer access between two cards takes memory that no card has alone.
#[test]
fn a_pair_is_planned_with_what_both_contexts_and_peer_access_take() {
    let speeches = Speeches::new(0.7);
    let spec = SimSpec::new(2, 24 << 30).with_link(Link::Nvlink);
    let pair = [("data-gpu", "0"), ("model-gpu", "1"), ("enable-memory-isolation", "true"), ("batch-size", "2")];
    let (resolved, corpora) = speeches.resolve(Some(&spec), &pair);
    assert_eq!(resolved.plan.transfer.route, Route::Peer);
    speeches.launch(&resolved, &corpora).map(drop).expect("the plan of the pair fits");
    // The same plan from what each card takes alone.
    let mut alone = Resolved { machine: Machine::simulated(spec.clone()), ..resolved };
    for role in [&mut alone.plan.data, &mut alone.plan.model] {
        let lone_bytes = role.driver_bytes - 64 * MIB;
        (role.driver_bytes, role.planned_bytes) = (lone_bytes, role.planned_bytes - 64 * MIB);
    }
    let error = speeches.launch(&alone, &corpora).map(drop).unwrap_err();
    let grew = matches!(error.device(), Some(DeviceError::Isolation(IsolationError::DriverGrew { .. })));
    assert!(grew, "{error}");
    // Through the host no peer access is enabled, and none is planned.
    let (bounce, corpora) = speeches.resolve(Some(&spec), &[&pair[..], &[("transfer", "bounce")]].concat());
    assert_eq!(bounce.plan.model.driver_bytes, alone.plan.model.driver_bytes);
    speeches.launch(&bounce, &corpora).map(drop).expect("the plan without peer access fits");
}

#[test]
fn a_driver_that_takes_more_than_was_planned_is_seen_inside_a_wide_limit_too() {
    let machine = Machine::simulated(SimSpec::new(1, 4 << 30));
    let spec = |role| ArenaSpec {
        role,
        limit_bytes: 1024 * MIB,
        driver_bytes: 64 * MIB,
        arena_bytes: 64 * MIB,
        peer_bytes: 0,
        capped: false,
    };
    let roles = Isolation::set_up(&machine, on(0, spec(Role::Data)), on(0, spec(Role::Model))).unwrap();
    roles.check().expect("the limits themselves are kept");
    let error = roles.check_driver_memory().unwrap_err();
    let DeviceError::Isolation(IsolationError::DriverGrew { card: 0, found, planned }) = error else {
        panic!("{error}")
    };
    assert_eq!((found, planned), (522 * MIB, 128 * MIB));
}
