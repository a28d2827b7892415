//! Planned, reserved and used memory are equal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tandem_device::{ArenaError, DType, DeviceError, DeviceKind, Machine, SimSpec};
use tandem_engine::{EngineError, HostValue, ProgramSet, Session, UpdateSpec};

use super::support::{TinyModel, arena, programs};

fn machines() -> [Machine; 2] {
    [Machine::cpu(), Machine::simulated("1x1GiB".parse::<SimSpec>().unwrap())]
}

#[test]
fn a_session_allocates_what_its_set_plans_and_nothing_later() {
    for machine in machines() {
        let (set, [accumulate, update]) = programs(DType::F32, 4, &UpdateSpec::default());
        let planned = set.bytes(machine.kind());
        let mut lines: Vec<_> =
            set.lines(machine.kind()).iter().map(|line| (line.name, line.bytes)).filter(|(_, b)| *b > 0).collect();
        let arena = arena(&machine, planned);
        let stream = Arc::new(arena.device().stream(true).unwrap());
        let mut session = Session::create(Arc::new(set), &arena, stream, 3).unwrap();
        let before = (arena.memory(), machine.counters(0));
        assert_eq!(before.0.used_bytes, planned);
        let mut owners = before.0.owners.clone();
        lines.sort_unstable();
        owners.sort_unstable();
        assert_eq!(owners, lines);
        for step in 0..5 {
            session.run(accumulate, None, &[("weight", HostValue::F32(&[0.1]))]).unwrap();
            let host = [("lr", HostValue::F32(&[1e-3])), ("ema_decay", HostValue::F32(&[0.9]))];
            session.run(update, None, &host).unwrap();
            let fetch = session.fetch(update).unwrap();
            assert_eq!(session.finish(fetch).unwrap().get::<u32>("updates").unwrap(), [step + 1]);
        }
        assert_eq!((arena.memory(), machine.counters(0)), before, "a run allocates nothing");
        drop(session);
        assert_eq!(arena.memory().used_bytes, 0);
        drop(arena);
        let after = machine.counters(0);
        assert_eq!((after.live_bytes, after.live_pinned_bytes), (0, 0), "everything is freed");
    }
}

#[test]
fn an_arena_one_byte_too_small_is_refused_and_everything_is_freed() {
    for machine in machines() {
        let (set, _) = programs(DType::F32, 4, &UpdateSpec::default());
        let planned = set.bytes(machine.kind());
        let arena = arena(&machine, planned - 1);
        let stream = Arc::new(arena.device().stream(true).unwrap());
        let pinned = machine.counters(0).live_pinned_bytes;
        match Session::create(Arc::new(set), &arena, stream, 3) {
            Err(EngineError::Device(DeviceError::Arena(ArenaError::Full { asked, limit, in_use, .. }))) => {
                assert_eq!((in_use + asked, limit), (planned, planned - 1));
            }
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("a session of {planned} bytes in {}", planned - 1),
        }
        assert_eq!(arena.memory().used_bytes, 0);
        assert_eq!(machine.counters(0).live_pinned_bytes, pinned);
    }
}

#[test]
fn programs_share_one_working_memory() {
    let spec = UpdateSpec::default();
    let bytes = |rows| programs(DType::F32, rows, &spec).0.bytes(DeviceKind::Cpu);
    let (small, large) = (programs(DType::F32, 2, &spec).0, programs(DType::F32, 6, &spec).0);
    let activations = |set: &ProgramSet| set.lines(DeviceKind::Cpu).last().unwrap().bytes;
    assert!(bytes(6) > bytes(2));
    assert!(activations(&large) > activations(&small));
    let (mut both, _) = programs(DType::F32, 6, &spec);
    let graph = TinyModel::new().accumulate(DType::F32, 2).unwrap();
    both.add("a shorter bucket", &graph, &TinyModel::layout(DType::F32, 2)).unwrap();
    assert_eq!(activations(&both), activations(&large), "the largest counts");
}

#[test]
fn creation_reports_progress_and_a_run_can_be_cancelled() {
    for machine in machines() {
        let (set, [accumulate, _]) = programs(DType::F32, 4, &UpdateSpec::default());
        let arena = arena(&machine, set.bytes(machine.kind()));
        let stream = Arc::new(arena.device().stream(true).unwrap());
        let mut progress = Vec::new();
        let created = Session::create_with_progress(Arc::new(set), &arena, stream, 3, &mut |ready, of| {
            progress.push((ready, of))
        });
        let mut session = created.unwrap();
        assert_eq!(progress, [(0, 2), (2, 2)]);
        let stop = Arc::new(AtomicBool::new(true));
        session.stop_when(stop.clone());
        let host = [("weight", HostValue::F32(&[0.1]))];
        assert!(matches!(session.run(accumulate, None, &host), Err(EngineError::Stopped)));
        stop.store(false, Ordering::Relaxed);
        session.run(accumulate, None, &host).unwrap();
    }
}
