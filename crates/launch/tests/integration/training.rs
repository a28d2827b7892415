//! Training as it is set up from a plan: its memory to the byte, steps of many batches, its rates, resuming from a state.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::Speeches;
use tandem_audio::{Arithmetic, Clip};
use tandem_checkpoint::latest_intact;
use tandem_corpus::Sample;
use tandem_device::SimSpec;
use tandem_events::{Emitter, Role};
use tandem_feed::{FeedError, FromFiles, Recordings};
use tandem_launch::inventory::Resolved;
use tandem_launch::launch::{Launched, Setup};
use tandem_launch::{EachStep, Trainer};
use tandem_pipeline::StopFlag;
use tandem_train::StepReport;

fn speech() -> Speeches {
    Speeches::new(2.0)
}

fn run(speeches: &Speeches, sim: Option<&str>, flags: &[(&str, &str)]) -> (Resolved, Launched) {
    let spec = sim.map(|spec| spec.parse::<SimSpec>().unwrap());
    let (resolved, corpora) = speeches.resolve(spec.as_ref(), flags);
    let launched = speeches.launch(&resolved, &corpora).unwrap();
    (resolved, launched)
}

fn steps(launched: &mut Launched, count: u64) -> Vec<StepReport> {
    let mut reports: Vec<StepReport> = (0..count).filter_map(|_| launched.trainer.advance().unwrap()).collect();
    reports.extend(launched.trainer.drain().unwrap());
    reports
}

const PAIR: [(&str, &str); 2] = [("data-gpu", "0"), ("model-gpu", "1")];

/// What is planned for each role is what it takes, to the byte, and nothing is taken later.
#[test]
fn a_plan_is_taken_to_the_byte_and_nothing_more() {
    let speeches = speech();
    let check = |sim: Option<&str>, flags: &[(&str, &str)], runs: bool| {
        let (resolved, mut launched) = run(&speeches, sim, &[&[("batch-size", "4")], flags].concat());
        let plan = &resolved.plan;
        for role in [&plan.data, &plan.model] {
            let arena = &launched.roles.partition(role.role).arena;
            let memory = arena.memory();
            let what = format!("{sim:?} {flags:?} {}", role.role);
            let planned: Vec<_> = role.lines.iter().map(|line| (line.name.as_str(), line.bytes)).collect();
            assert_eq!(memory.used_bytes, role.planned_bytes, "{what}: {:?}\n{planned:?}", memory.owners);
            assert_eq!(arena.spec().arena_bytes, role.arena_bytes, "{what}");
            for (owner, bytes) in &memory.owners {
                let of_owner: u64 = planned.iter().filter(|(name, _)| name.starts_with(owner)).map(|(_, b)| b).sum();
                assert!(role.role == Role::Data || of_owner == *bytes, "{what}: {owner}, {of_owner} for {bytes}");
            }
        }
        if runs {
            let counts = |launched: &Launched| {
                let cards = [plan.data.card, plan.model.card].map(|card| card.unwrap_or(0));
                let counted = cards.map(|card| resolved.machine.counters(card));
                (
                    counted.map(|c| (c.allocations, c.pinned_allocations)),
                    launched.roles.memory_stats().map(|m| m.peak_bytes),
                )
            };
            let whole = |launched: &mut Launched| {
                steps(launched, 4);
                let report = launched.trainer.validate().unwrap().expect("a validation set");
                // Spectra of mean 0 and deviation 1 are two thirds from their bands' means, more or less.
                let mean = report.metrics.get("mean").unwrap();
                assert!((0.4..1.0).contains(&mean) && report.alignment.unwrap().is_complete(), "{report:?}");
                launched.trainer.snapshot().unwrap();
                counts(launched)
            };
            let warm = whole(&mut launched);
            assert_eq!(whole(&mut launched), warm, "{sim:?} {flags:?}");
        }
        launched.trainer.stop().unwrap();
    };
    let f32 = ("no-mixed-precision", "true");
    check(None, &[("mode", "cpu")], true);
    check(None, &[("mode", "cpu"), ("optimization-level", "basic")], false);
    check(Some("1x24GiB"), &[("mode", "single")], true);
    // Features in two-float.
    check(Some("1x24GiB,cc=8.6"), &[("mode", "single")], false);
    check(Some("2x24GiB"), &[&PAIR[..], &[f32, ("enable-memory-isolation", "true")]].concat(), true);
    let tiny = ("model-size", "tiny");
    check(None, &[("mode", "cpu"), tiny], false);
    check(Some("2x24GiB"), &[&PAIR[..], &[tiny]].concat(), false);
}

/// A step holds all its batches at once: it must be able to have them, in every mode, and its losses are means over all.
#[test]
fn a_step_of_more_batches_than_the_usual_slots_does_not_wait_for_ever() {
    let speeches = speech();
    let whole = steps(&mut run(&speeches, None, &[("mode", "cpu"), ("batch-size", "16")]).1, 1);
    let check = |sim: Option<&str>, flags: &[(&str, &str)]| {
        let (resolved, mut launched) = run(&speeches, sim, flags);
        assert_eq!(resolved.plan.notes.iter().filter(|note| note.contains("raised to")).count(), 1);
        let reports = steps(&mut launched, 2);
        assert_eq!(reports.iter().map(|report| report.step).collect::<Vec<_>>(), [1, 2]);
        let loss = |report: &StepReport, name| report.losses.get(name).unwrap();
        let found = ["mel", "duration"].map(|name| loss(&reports[0], name) / loss(&whole[0], name));
        assert!(found.iter().all(|ratio| (0.7..1.4).contains(ratio)), "{found:?} {flags:?}");
        // Untrained it guesses no frames, and a token has some six: ln(7)² is 3.8.
        assert!((1.5..8.0).contains(&loss(&reports[0], "duration")), "{reports:?}");
        launched.trainer.stop().unwrap();
    };
    let parts = [("batch-size", "16"), ("grad-accum", "16"), ("buffer-size", "20")];
    check(None, &[&parts[..], &[("mode", "cpu")]].concat());
    check(Some("2x24GiB"), &[&parts[..], &PAIR].concat());
}

#[test]
fn rates_rise_from_the_first_step_and_fall_to_the_last() {
    let speeches = speech();
    let (resolved, mut launched) = run(&speeches, None, &[("mode", "cpu"), ("batch-size", "1"), ("max-steps", "20")]);
    let peak = resolved.plan.training.peak_lr;
    let lrs: Vec<f64> = steps(&mut launched, 20).iter().map(|report| report.lr / peak).collect();
    assert_eq!(lrs[..3], [0.5, 1.0, 1.0]);
    assert!(lrs[2..].is_sorted_by(|a, b| a >= b) && (0.05..0.06).contains(&lrs[19]), "{lrs:?}");
    launched.trainer.stop().unwrap();
}

#[test]
fn a_program_of_ones_own_sets_up_the_run_that_the_commands_do() {
    let speeches = speech();
    let flags = [("mode", "cpu"), ("batch-size", "2")];
    let (resolved, corpora) = speeches.resolve(None, &flags);
    let commands = steps(&mut speeches.launch(&resolved, &corpora).unwrap(), 2);
    let mut trainer = Trainer::builder(&resolved).build(&corpora).unwrap();
    let mut own: Vec<StepReport> = (0..2).filter_map(|_| trainer.advance().unwrap()).collect();
    own.extend(trainer.drain().unwrap());
    let losses = |reports: &[StepReport]| reports.iter().map(|report| report.losses.clone()).collect::<Vec<_>>();
    assert_eq!(losses(&own), losses(&commands));
    let names: Vec<&str> = own[0].losses.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["loss", "mel", "prior", "duration"]);
    trainer.stop().unwrap();
}

/// Its plan knows no run folder: the checkpoint says how the features were computed.
#[test]
fn a_program_of_ones_own_resumes_with_the_arithmetic_of_the_checkpoint() {
    let speeches = speech();
    let folder = tempfile::tempdir().unwrap();
    let train = |sim: &str, max_steps: &str, planned: Arithmetic| {
        let flags = [("mode", "single"), ("batch-size", "2"), ("max-steps", max_steps)];
        let (resolved, corpora) = speeches.resolve(Some(&sim.parse().unwrap()), &flags);
        assert_eq!(resolved.plan.arithmetic.arithmetic, planned);
        let mut trainer = Trainer::builder(&resolved).folder(folder.path()).build(&corpora).unwrap();
        trainer.run(&StopFlag::new(), &mut EachStep(|_: &StepReport| {})).unwrap();
        trainer.stop().unwrap();
        latest_intact(folder.path()).unwrap().checkpoint.unwrap()
    };
    let first = train("1x24GiB,cc=8.6", "2", Arithmetic::TwoFloat);
    let resumed = train("1x24GiB,cc=9.0", "3", Arithmetic::F64);
    assert_eq!((first.step, resumed.step), (2, 3));
    assert_eq!([first, resumed].map(|checkpoint| checkpoint.model.features.arithmetic), [Arithmetic::TwoFloat; 2]);
}

/// Recordings of which only so many more can be read.
struct RunningOut(AtomicUsize);

impl Recordings for RunningOut {
    fn load_into(&self, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        match self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => FromFiles.load_into(sample, clip),
            Err(_) => Err(FeedError::Ended),
        }
    }
}

#[test]
fn a_data_failure_between_the_batches_of_a_step_leaves_them_for_a_resume() {
    let speeches = Speeches::new(0.7);
    let flags = [
        ("mode", "cpu"),
        ("batch-size", "2"),
        ("grad-accum", "2"),
        ("buffer-size", "2"),
        ("num-workers", "1"),
        ("cache", "none"),
        ("max-bad-fraction", "0"),
        ("max-mel-frames", "200"),
    ];
    let (resolved, corpora) = speeches.resolve(None, &flags);
    // Trains while recordings can be read and at most `steps` steps. Returns the step and the next batch of a checkpoint.
    let checkpoint = |reads_after_start: usize, steps: usize| {
        let recordings = Arc::new(RunningOut(AtomicUsize::new(usize::MAX)));
        let emitter = Emitter::none();
        let setup = Setup::new(&resolved, &corpora, None, None, &emitter).unwrap();
        let launched = setup.with_recordings(Arc::clone(&recordings) as Arc<dyn Recordings>).launch(&mut |_| {});
        let Launched { mut trainer, roles: _roles, .. } = launched.unwrap().0;
        recordings.0.store(reads_after_start, Ordering::Relaxed);
        let trained = (0..steps).take_while(|_| trainer.advance().is_ok()).count();
        trainer.drain().unwrap();
        let (state, _) = trainer.snapshot().unwrap();
        assert_eq!(state.step, trained as u64);
        (trained, state.feed.next)
    };
    // A step takes two reads: one of two numbers in a row ends inside a step.
    for reads in 0..4 {
        let (trained, next) = checkpoint(reads, 100);
        assert!(trained < 100, "the recordings never ran out");
        assert_eq!(next, checkpoint(usize::MAX, trained).1, "{reads} reads, step {trained}");
    }
}
