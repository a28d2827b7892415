//! A model of one's own, through everything the speech model goes through: plan, limits, steps, checkpoints, resuming.

#[path = "../../examples/custom_model.rs"]
#[allow(dead_code, unreachable_pub, reason = "the example has a main of its own")]
mod example;

use std::path::Path;
use std::sync::{Arc, Mutex};

use example::{Narrow, Place, resolve};
use tandem_checkpoint::{Architecture, Checkpoint, CheckpointError, latest_intact};
use tandem_device::leak::DEFAULT_THRESHOLD;
use tandem_device::sim::Alive;
use tandem_events::{Emitter, Role, RunEvent, Sink};
use tandem_launch::inventory::Resolved;
use tandem_launch::launch::{Corpora, LaunchError};
use tandem_launch::{EachStep, Trainer};
use tandem_model::Model;
use tandem_pipeline::StopFlag;
use tandem_train::{RunOutcome, StepReport, TrainError};

fn narrow() -> Arc<dyn Model> {
    Arc::new(Narrow::new(32, 8).unwrap())
}

/// Speech and a plan for it, made once for each test.
struct Bench {
    folder: tempfile::TempDir,
    plan: Resolved,
    corpora: Corpora,
}

impl Bench {
    fn new(place: Place) -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let (plan, corpora) = resolve(&folder.path().join("speech"), &narrow(), place).unwrap();
        Bench { folder, plan, corpora }
    }

    /// Where the cards are simulated, all their memory is home.
    fn all_is_home(&self) {
        let alive = self.plan.machine.sim().map(|sim| sim.alive());
        assert!(alive.is_none_or(|alive| alive == Alive::default()), "{alive:?}");
    }

    fn run_folder(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn build(&self, folder: &Path) -> Result<Trainer, LaunchError> {
        Trainer::builder(&self.plan).model(narrow()).folder(folder).build(&self.corpora)
    }
}

/// Trains until the plan ends or step `last` was reported, and says what every step lost.
fn train(trainer: &mut Trainer, last: u64) -> (RunOutcome, Vec<(u64, f64)>) {
    let (stop, mut losses) = (StopFlag::new(), Vec::new());
    let mut listener = EachStep(|report: &StepReport| {
        losses.push((report.step, report.loss()));
        if report.step == last {
            stop.raise();
        }
    });
    let outcome = trainer.run(&stop, &mut listener).unwrap();
    (outcome, losses)
}

#[derive(Default)]
struct EventBuffer(Mutex<Vec<RunEvent>>);

impl Sink for EventBuffer {
    fn emit(&self, event: RunEvent) {
        self.0.lock().unwrap().push(event);
    }
}

#[test]
fn it_learns_inside_its_limits_and_every_byte_has_an_owner() {
    learns(Place::Pair);
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn cuda_it_learns_inside_its_limits_and_every_byte_has_an_owner() {
    learns(Place::Card);
}

fn learns(place: Place) {
    let bench = Bench::new(place);
    let mut said = Vec::new();
    let events = Arc::new(EventBuffer::default());
    let mut print = |line: &str| said.push(line.to_owned());
    let builder = Trainer::builder(&bench.plan).model(narrow()).folder(bench.run_folder("run"));
    let mut trainer =
        builder.monitor(&Emitter::to(events.clone())).on_message(&mut print).build(&bench.corpora).unwrap();
    let baseline = trainer.memory_stats();
    let (outcome, losses) = train(&mut trainer, u64::MAX);
    assert_eq!((outcome.step, outcome.stopped, losses.len()), (30, false, 30));
    // Spectra have deviation 1: an untrained model is about as far off as that.
    assert!((0.7..2.0).contains(&losses[0].1) && losses[29].1 < 0.5 * losses[0].1, "{losses:?}");

    // What only speech has is not there.
    let judged = outcome.validation.expect("a validation set");
    assert_eq!(judged.metrics.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["squares", "distance"]);
    assert_eq!((judged.alignment, judged.duration_scale, judged.ratio()), (None, None, None));

    // The books, the plan and the limits agree.
    for now in trainer.memory_stats() {
        let (planned, spec) = (bench.plan.plan.role(now.role), trainer.roles().partition(now.role).arena.spec());
        let owned: u64 = now.owners.iter().map(|(_, bytes)| bytes).sum();
        assert_eq!((owned, now.used_bytes), (now.used_bytes, planned.planned_bytes), "{now}: {:?}", now.owners);
        assert_eq!((now.limit_bytes, now.peak_bytes), (1024 << 20, now.used_bytes), "{now}");
        assert!(spec.driver_bytes + spec.arena_bytes <= now.limit_bytes && now.used_bytes <= now.limit_bytes);
        assert_eq!(Some(now.card), planned.card);
        assert!(place == Place::Card || now.card == usize::from(now.role == Role::Model), "{now}");
        assert!(!now.name.is_empty() && Some(&now.uuid) == planned.uuid.as_ref(), "{now:?}");
    }
    assert_eq!(trainer.roles().detect_leak(&baseline, DEFAULT_THRESHOLD), []);
    assert_eq!(trainer.memory_stats(), baseline, "nothing is taken after warm-up");

    // Its messages and its events. The feed still emits: whoever holds the events while it stops, waits for ever.
    assert!(said.iter().any(|line| line.contains("GPU Memory Isolation configured")), "{said:#?}");
    let events = std::mem::take(&mut *events.0.lock().unwrap());
    let learned = events.iter().filter_map(|event| match event {
        RunEvent::StepMetrics { losses, .. } => Some(losses["squares"].unwrap()),
        _ => None,
    });
    assert!(learned.eq(losses.iter().map(|(_, loss)| *loss)));
    let any = |wanted: fn(&RunEvent) -> bool| events.iter().any(wanted);
    assert!(any(|event| matches!(event, RunEvent::Validation { metrics, .. } if metrics.len() == 2)));
    assert!(any(|event| matches!(event, RunEvent::Checkpoint { step: 30, .. })));
    trainer.stop().unwrap();
    bench.all_is_home();
}

#[test]
fn a_run_that_stops_goes_on_as_if_it_had_not() {
    goes_on(Place::Pair);
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn cuda_a_run_that_stops_goes_on_as_if_it_had_not() {
    goes_on(Place::Card);
}

fn goes_on(place: Place) {
    let bench = Bench::new(place);
    let (_, whole) = train(&mut bench.build(&bench.run_folder("whole")).unwrap(), u64::MAX);
    let parts = bench.run_folder("parts");
    let mut first = bench.build(&parts).unwrap();
    let (outcome, begun) = train(&mut first, 9);
    assert!(outcome.stopped && (9..30).contains(&outcome.step), "{outcome:?}");
    first.stop().unwrap();

    let checkpoint = latest_intact(&parts).unwrap().checkpoint.unwrap();
    assert!(checkpoint.weights.names().all(|name| !name.starts_with("reference.")), "voices are speech's");
    assert_eq!(checkpoint.model.architecture, Architecture::Custom { name: "narrow".into() });
    assert_eq!(checkpoint.model.duration_scale, None);

    let mut second = bench.build(&parts).unwrap();
    assert_eq!(second.step(), outcome.step);
    let (_, rest) = train(&mut second, u64::MAX);
    second.stop().unwrap();
    assert_eq!([begun, rest.clone()].concat(), whole);

    // From a checkpoint by its path, in another folder: the same again.
    let path = checkpoint.path.clone();
    let builder = Trainer::builder(&bench.plan).model(narrow()).folder(bench.run_folder("other")).resume(path);
    let (_, again) = train(&mut builder.build(&bench.corpora).unwrap(), u64::MAX);
    assert_eq!(again, rest);
}

#[test]
fn steps_can_be_taken_one_by_one_without_a_folder() {
    let bench = Bench::new(Place::Pair);
    let mut trainer = Trainer::builder(&bench.plan).model(narrow()).build(&bench.corpora).unwrap();
    let mut reports: Vec<StepReport> = (0..4).filter_map(|_| trainer.advance().unwrap()).collect();
    reports.extend(trainer.drain().unwrap());
    assert_eq!(reports.iter().map(|report| report.step).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(trainer.validate().unwrap().is_some_and(|report| report.score().is_finite()));
    let error = trainer.run(&StopFlag::new(), &mut EachStep(|_: &StepReport| {})).unwrap_err();
    assert!(matches!(error, LaunchError::NoFolder), "{error}");
    trainer.stop().unwrap();
}

#[test]
fn another_model_than_the_planned_one_is_refused() {
    let bench = Bench::new(Place::Pair);
    let check = |model: Option<Arc<dyn Model>>, expected: &str| {
        let builder = Trainer::builder(&bench.plan);
        let builder = match model {
            Some(model) => builder.model(model),
            None => builder,
        };
        let error = builder.build(&bench.corpora).map(drop).unwrap_err();
        assert!(matches!(error, LaunchError::OtherModel { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
        bench.all_is_home();
    };
    check(None, "speech model");
    check(Some(Arc::new(Narrow::new(32, 80).unwrap())), "parameters");

    // Nor does its run go on as another: the folder knows what was learnt in it.
    let folder = bench.run_folder("run");
    let _ = train(&mut bench.build(&folder).unwrap(), 1);
    let wide: Arc<dyn Model> = Arc::new(Narrow::new(40, 8).unwrap());
    let (plan, corpora) = resolve(&bench.run_folder("speech again"), &wide, Place::Pair).unwrap();
    let newest = latest_intact(&folder).unwrap().checkpoint.unwrap().path;
    let error = Trainer::builder(&plan).model(wide.clone()).folder(&folder).build(&corpora).map(drop).unwrap_err();
    assert!(matches!(error, LaunchError::Train(TrainError::Checkpoint(CheckpointError::AnotherRun { .. }))), "{error}");
    assert!(Checkpoint::open(&newest).is_ok(), "and nothing in it has changed");
    let error = Trainer::builder(&plan).model(wide).resume(newest).build(&corpora).map(drop).unwrap_err();
    assert!(
        matches!(error, LaunchError::Train(TrainError::Checkpoint(CheckpointError::OfAnotherRun { .. }))),
        "{error}"
    );
}
