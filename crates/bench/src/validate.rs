//! Five checks on the real devices: can this plan run here, inside its limits? The run is the one that `train` sets up,
//! with something to look at between its pieces.

use tandem_device::bytes::{MIB, show};
use tandem_device::kernels::Checks;
use tandem_device::{ArenaError, Block, DeviceError, DeviceKind, Isolation, IsolationError, Partition};
use tandem_events::{Emitter, Role, RunEvent};
use tandem_feed::Feed;
use tandem_plan::{Mode, Plan, StartupPhase, TransferPlan, buffer_line, startup_lines};
use tandem_train::{StepLoop, StepReport, TrainError};

use crate::held_memory::{HeldMemory, counted, held};
use tandem_launch::inventory::Resolved;
use tandem_launch::launch::{Corpora, CreatedModel, LaunchError, Launched, RunPrograms, Setup, card_of, device_error};
use tandem_launch::{Peak, Sampler, SamplerError};

/// The results of the five checks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// The checks that were made, in order.
    pub checks: Vec<Check>,
    /// What to do about the first failure.
    pub advice: Option<&'static str>,
    /// The transfer in use, once it was proven: the plan's, or its replacement.
    pub transfer: Option<TransferPlan>,
}

/// One line under a heading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The heading's number.
    pub number: u32,
    /// Whether it passed.
    pub passed: bool,
    /// What was checked, and the result.
    pub text: String,
}

impl CheckReport {
    /// Whether every check passed.
    pub fn passed(&self) -> bool {
        self.checks.iter().all(|check| check.passed)
    }
}

/// Steps on real cards: enough to see memory grow. Elsewhere the maths runs on the CPU, and a step of a large model takes
/// seconds.
const STEPS_ON_CARDS: u64 = 1000;
const STEPS_ELSEWHERE: u64 = 4;
/// Weights that some steps must change. Only rows of embeddings that no batch has used may stay.
const MIN_CHANGED_PERCENT: f64 = 10.0;
/// Steps before the counters are read: lazy initialisation is over by then.
const WARM_UP_ON_CARDS: u64 = 5;
const WARM_UP_ELSEWHERE: u64 = 1;

/// How much of an arena is written and read back where memory is only simulated, or is the host's own.
const TOUCH_ELSEWHERE: u64 = 32 * MIB;

/// Why a check could not be completed.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error(transparent)]
    Sampler(#[from] SamplerError),
}

impl Trouble {
    /// What to do next.
    fn advice(&self) -> Option<&'static str> {
        let error = match self {
            Trouble::Device(error) => Some(error),
            Trouble::Launch(error) => error.device(),
            Trouble::Train(error) => device_error(error),
            Trouble::Sampler(_) => None,
        };
        error.and_then(device_advice)
    }
}

fn device_advice(error: &DeviceError) -> Option<&'static str> {
    match error {
        DeviceError::OutOfMemory { .. } => Some(
            "Another process took memory after the plan was made: see nvidia-smi, then plan again or lower the limits",
        ),
        DeviceError::OutOfPinned { .. } => Some("The host is short of memory: lower --buffer-size or --batch-size"),
        DeviceError::Isolation(IsolationError::DriverGrew { .. } | IsolationError::LimitExceeded { .. }) => {
            Some("The driver needs more than it did when it was probed: raise the limits by 64 MB and plan again")
        }
        DeviceError::Lost { .. } | DeviceError::Failed { .. } => {
            Some("The card or its driver failed: see nvidia-smi and the kernel's log; --mode cpu works meanwhile")
        }
        DeviceError::Corrupt { .. } | DeviceError::NoRoute { .. } | DeviceError::TimedOut { .. } => {
            Some("Try --transfer bounce: it needs no peer access")
        }
        _ => None,
    }
}

/// Runs the five checks of a plan, with steps on `corpora`. Each line is printed once it is true.
pub fn validate(resolved: &Resolved, corpora: &Corpora, emitter: &Emitter, say: &mut dyn FnMut(&str)) -> CheckReport {
    let report = CheckReport::default();
    let mut run = Run { resolved, plan: &resolved.plan, corpora, emitter, say, report, number: 0, sampler: None };
    if let Err(error) = run.all() {
        run.fail(&error.to_string(), error.advice());
        if run.number == 1 {
            run.say_line("   Skipped checks 2 to 5: they need what check 1 looks for");
        }
    }
    run.report
}

struct Run<'a> {
    resolved: &'a Resolved,
    plan: &'a Plan,
    corpora: &'a Corpora,
    emitter: &'a Emitter,
    say: &'a mut dyn FnMut(&str),
    report: CheckReport,
    number: u32,
    /// Runs once memory is reserved.
    sampler: Option<Sampler>,
}

impl Run<'_> {
    fn all(&mut self) -> Result<(), Trouble> {
        self.prerequisites()?;
        let mut setup = Setup::new(self.resolved, self.corpora, None, None, self.emitter)?;
        let roles = self.placement(&setup)?;
        // The data role starts first, as in every run. A transfer that failed is reported under its own heading.
        let started = self.start_feed(&mut setup, &roles)?;
        let model = self.model_creation(&setup, &roles)?;
        let feed = self.transfer(started)?;
        self.pipeline(setup, roles, feed, model)
    }

    fn prerequisites(&mut self) -> Result<(), Trouble> {
        self.heading("Checking prerequisites...");
        let machine = &self.resolved.machine;
        match machine.kind() {
            DeviceKind::Cpu => self.pass(&format!("CPU mode: {} decode threads, no GPU needed", self.plan.threads)),
            DeviceKind::Simulated => self.pass(&format!("Simulated driver ({})", gpus(machine.cards().len()))),
            DeviceKind::Cuda => {
                let found = format!("NVIDIA driver installed ({} detected)", gpus(machine.cards().len()));
                self.pass(&format!("{found}, version {}", machine.driver_version()));
            }
        }
        for library in machine.libraries() {
            let version = library.version.map(|version| format!(" {version}")).unwrap_or_default();
            self.pass(&format!("{}{version} found: {}", library.name, library.path.display()));
        }
        // Kernels are compiled for the card at hand: that they can be is a prerequisite like any library.
        let card = self.plan.model.card.unwrap_or(0);
        Checks::load(&machine.open(card)?)?;
        self.pass(&format!("Kernels ready for {}", self.plan.model.name));
        Ok(())
    }

    fn placement(&mut self, setup: &Setup<'_>) -> Result<Isolation, Trouble> {
        self.heading("Validating device placement configuration...");
        let (plan, machine) = (self.plan, &self.resolved.machine);
        self.phase(StartupPhase::Configuring);
        if let (Some(data), Some(model)) = (plan.data.card, plan.model.card) {
            self.pass(&format!("GPU indices valid: data_gpu={data}, model_gpu={model}"));
            for role in [&plan.data, &plan.model] {
                let uuid = role.uuid.as_deref().unwrap_or("no UUID");
                self.pass(&format!("{} role: {} ({uuid})", role.role, role.name));
            }
        }
        let roles = setup.reserve(&mut |phase| self.phase(phase))?;
        self.sampler = Some(Sampler::start(machine, &roles, self.emitter)?);
        for role in Role::BOTH.into_iter().filter(|_| roles.model.arena.is_split()) {
            let limit = roles.partition(role).arena.spec().limit_bytes / MIB;
            self.say_line(&format!("   Split arena for the {role} role: blocks taken one by one, within {limit} MB"));
        }
        for role in Role::BOTH {
            self.touch(roles.partition(role))?;
            self.byte_too_many(roles.partition(role), roles.partition(other(role)))?;
        }
        // Filling the arenas was a test; the peaks of the run count from here.
        Role::BOTH.iter().for_each(|role| roles.partition(*role).arena.reset_peak());
        self.others_untouched(&[card_of(&plan.data), card_of(&plan.model)]);
        Ok(roles)
    }

    /// Writes a role's whole arena and reads it back.
    fn touch(&mut self, place: &Partition) -> Result<(), DeviceError> {
        let count = place.arena.take("count", 8)?;
        let most = if self.resolved.machine.kind() == DeviceKind::Cuda { u64::MAX } else { TOUCH_ELSEWHERE };
        let blocks = place.arena.take_rest("everything", most)?;
        let (checks, stream) = (Checks::load(&place.device)?, place.device.stream(false)?);
        let mut wrong = place.device.pinned(8)?;
        stream.fill(count.view(), 0)?;
        for block in &blocks {
            checks.fill_pattern(&stream, block.view(), self.plan.seed)?;
        }
        for block in &blocks {
            checks.count_wrong(&stream, block.view(), count.view(), self.plan.seed)?;
        }
        stream.download(count.view(), &mut wrong, 0..8)?;
        stream.drain()?;
        let good = wrong.bytes()?.iter().all(|byte| *byte == 0);
        let bytes: u64 = blocks.iter().map(Block::len).sum();
        let share = 100.0 * (bytes + 256) as f64 / place.arena.spec().arena_bytes as f64;
        let what = format!("{} ({share:.1} %)", show(bytes));
        self.line(
            good,
            &format!("{} arena written and read back: {what}", place.role),
            &format!("{} arena does not hold what was written to it: {what}", place.role),
            "The card's memory is faulty, or something else writes to it: run a memory test, try another card",
        );
        Ok(())
    }

    /// Fills a role to its limit and requests one more byte, while the other role keeps working.
    fn byte_too_many(&mut self, place: &Partition, neighbour: &Partition) -> Result<(), DeviceError> {
        let full = place.arena.take_rest("everything", u64::MAX)?;
        let refused = place.arena.take("one byte more", 1);
        if let Err(DeviceError::Arena(ArenaError::Full { asked, limit, in_use, owner, role, .. })) = &refused {
            let owner = (*owner).to_owned();
            let (asked_bytes, limit_bytes, in_use_bytes) = (*asked, *limit, *in_use);
            self.emitter.emit(RunEvent::Refused { role: *role, asked_bytes, limit_bytes, in_use_bytes, owner });
        }
        let by_driver = place.arena.driver_refuses_more()?;
        let works = self.works(neighbour)?;
        drop(full);
        let by_arena = matches!(refused, Err(DeviceError::Arena(_)));
        let passed = by_arena && works && by_driver != Some(false);
        let spec = place.arena.spec();
        let edge = match self.plan.isolated {
            true => format!("limit of {} MB", spec.limit_bytes / MIB),
            false => format!("reservation of {} MB", spec.arena_bytes / MIB),
        };
        let pool = if by_driver == Some(true) { ", by the driver's pool too" } else { "" };
        let (role, other) = (place.role, neighbour.role);
        self.line(
            passed,
            &format!("A byte past the {role} {edge} refused{pool}; {other} role keeps working"),
            &format!(
                "A byte past the {role} {edge}: refused by the arena: {by_arena}, by the driver's pool: {by_driver:?}, \
                 {other} role keeps working: {works}"
            ),
            "A limit does not hold here: please report this with --run-log",
        );
        Ok(())
    }

    fn works(&self, place: &Partition) -> Result<bool, DeviceError> {
        let block = place.arena.take("liveness check", 4096)?;
        let stream = place.device.stream(false)?;
        let mut seen = place.device.pinned(4096)?;
        stream.fill(block.view(), 0x5A)?;
        stream.download(block.view(), &mut seen, 0..4096)?;
        stream.drain()?;
        Ok(seen.bytes()?.iter().all(|byte| *byte == 0x5A))
    }

    fn others_untouched(&mut self, ours: &[usize]) {
        let machine = &self.resolved.machine;
        let others: Vec<usize> = (0..machine.cards().len()).filter(|card| !ours.contains(card)).collect();
        if others.is_empty() {
            return;
        }
        let counts = others.iter().map(|card| machine.counters(*card));
        let touched = counts.map(|c| c.contexts + c.streams + c.peak_bytes).sum::<u64>();
        let list: Vec<String> = others.iter().map(ToString::to_string).collect();
        let list = list.join(", ");
        self.line(
            touched == 0,
            &format!("No context, stream or byte on GPU {list}"),
            &format!("Something was opened on GPU {list}, which has no role in this run"),
            "Please report this with --run-log",
        );
    }

    /// Starts the feed, which proves the transfer and replaces one that does not work. A transfer error that is left is
    /// reported under its own heading.
    fn start_feed(&mut self, setup: &mut Setup<'_>, roles: &Isolation) -> Result<StartedFeed, Trouble> {
        let started = setup.start_feed(roles);
        match started {
            Err(error) if !error.device().is_some_and(DeviceError::is_about_route) => return Err(error.into()),
            Err(_) => {}
            Ok(_) => self.phase(StartupPhase::PipelineReady),
        }
        let transfer = setup.transfer().clone();
        let replaced = transfer.route != self.plan.transfer.route;
        Ok(StartedFeed { feed: started, transfer, replaced })
    }

    fn model_creation(&mut self, setup: &Setup<'_>, roles: &Isolation) -> Result<CreatedModel, Trouble> {
        let device = device_name(self.plan, Role::Model);
        self.heading(&format!("Testing model creation on {device}..."));
        self.phase(StartupPhase::ModelPlaced);
        self.phase(StartupPhase::CreatingModel);
        let programs = setup.programs()?;
        let homes = homes(&programs, roles)?;
        let model = setup.create_model(roles, programs, &mut |_, _| {})?;
        let card = roles.model.device.index();
        let astray = homes.iter().filter(|home| **home != card).count();
        let (size, name, count) = (self.plan.model_title(), &self.plan.model_name, homes.len());
        let has_driver = self.resolved.machine.kind() != DeviceKind::Cpu;
        let confirmed = if has_driver { ", confirmed by the driver" } else { "" };
        self.line(
            astray == 0,
            &format!("Model created successfully on {device}: {size}, {name}; {count} buffers{confirmed}"),
            &format!("{astray} of {count} buffers of the model are not on {device}, says the driver"),
            "Please report this with --run-log",
        );
        roles.check_driver_memory()?;
        for now in roles.memory_stats() {
            self.pass(&now.to_string());
        }
        roles.emit(self.emitter);
        Ok(model)
    }

    fn transfer(&mut self, started: StartedFeed) -> Result<Feed, Trouble> {
        self.heading(match self.plan.mode {
            Mode::Multi => "Testing data transfer between GPUs...",
            Mode::SharedGpu => "Testing data transfer between the partitions...",
            Mode::Single => "Testing data transfer on the GPU...",
            Mode::Cpu => "Testing data transfer on the CPU...",
        });
        let StartedFeed { feed, mut transfer, replaced } = started;
        if replaced {
            self.say_line(&format!("   ⚠️ {}", transfer.describe()));
        }
        let feed = feed?;
        let Some(measured) = feed.transfer() else {
            let what = "nothing is copied, the step reads each batch where it was made";
            self.pass(&format!("handover: {}; {what}", transfer.why));
            return Ok(feed);
        };
        let (from, to) = (card_of(&self.plan.data), card_of(&self.plan.model));
        let route = transfer.route.name().to_owned();
        self.emitter.emit(RunEvent::Transfer { route, from, to, bytes: measured.bytes, ns: measured.ns });
        let what = format!("Data transfer successful: {} compared byte for byte", show(measured.bytes));
        self.pass(&format!("{what}, {:.1} GB/s ({transfer}: {})", measured.gb_per_s(), transfer.why));
        transfer.mb_per_s = Some((measured.gb_per_s() * 1000.0) as u64);
        self.report.transfer = Some(transfer);
        Ok(feed)
    }

    fn pipeline(&mut self, setup: Setup<'_>, roles: Isolation, feed: Feed, model: CreatedModel) -> Result<(), Trouble> {
        self.heading("Simulating training pipeline...");
        let machine = &self.resolved.machine;
        let mut launched = setup.join(roles, feed, model)?;
        self.phase(StartupPhase::Waiting);
        let warm = launched.wait_warm(self.plan, self.emitter)?;
        self.say_line(&buffer_line(warm.ready, warm.of, warm.waited));
        self.phase(StartupPhase::Starting);
        // The step loop is bound last, so that it drops before the arenas that own its memory.
        let Launched { roles, mut trainer, .. } = launched;
        let (warm_up, steps) = match machine.kind() {
            DeviceKind::Cuda => (WARM_UP_ON_CARDS, STEPS_ON_CARDS),
            _ => (WARM_UP_ELSEWHERE, STEPS_ELSEWHERE),
        };
        let initial = trainer.weights()?;
        // The first steps trigger the driver's lazy initialisation; the promises hold from here on.
        let mut reports = self.steps(&mut trainer, warm_up)?;
        roles.check_driver_memory()?;
        let cards = [roles.data.device.index(), roles.model.device.index()];
        let before = (counted(machine, &cards), held(machine, &cards)?);
        let start = machine.now_ns();
        reports.extend(self.steps(&mut trainer, steps)?);
        let ns = machine.now_ns() - start;
        let peaks = self.sampler.take().map_or(Ok(Vec::new()), Sampler::finish)?;
        let after = (counted(machine, &cards), held(machine, &cards)?);
        let trained = trainer.weights()?;
        let verified = trainer.feed().verified();
        trainer.stop()?;
        self.trained(&reports, steps, ns);
        if let Some(verified) = verified {
            // A batch that changed would have ended the simulation.
            self.pass(&format!("{verified} verified batches arrived unchanged"));
        }
        self.updated(&initial, &trained);
        self.line(
            before.0 == after.0,
            "0 device and 0 pinned allocations after warm-up",
            &format!("Memory was allocated after warm-up: (device, pinned) went from {:?} to {:?}", before.0, after.0),
            "Please report this with --run-log",
        );
        self.driver_memory(&roles, &before.1, &after.1);
        self.peaks(&roles, &peaks)
    }

    /// Trains for `steps` steps and waits for them.
    fn steps(&self, trainer: &mut StepLoop, steps: u64) -> Result<Vec<StepReport>, Trouble> {
        let mut reports = Vec::new();
        for _ in 0..steps {
            reports.extend(trainer.advance()?);
            if let Some(sampler) = &self.sampler {
                sampler.check().map_err(DeviceError::from)?;
            }
        }
        reports.extend(trainer.drain()?);
        Ok(reports)
    }

    fn trained(&mut self, reports: &[StepReport], steps: u64, ns: u64) {
        let losses: Vec<f64> = reports.iter().map(StepReport::loss).collect();
        let finite = losses.iter().all(|loss| loss.is_finite()) && !losses.is_empty();
        let [first, last] = [losses.first(), losses.last()].map(|loss| loss.copied().unwrap_or(f64::NAN));
        let (what, size) = (format!("loss {first:.3} to {last:.3}"), self.plan.model_title());
        let ms = ns as f64 / steps as f64 / 1e6;
        self.line(
            finite,
            &format!("Pipeline simulation successful: {steps} steps of the {size} model, {what} ({ms:.2} ms per step)"),
            &format!("Pipeline simulation failed: a loss of {steps} steps is not finite, {what}"),
            "Look for broken recordings with `tandem corpus check`; if there are none, please report this with --run-log",
        );
    }

    fn updated(&mut self, before: &[f32], after: &[f32]) {
        let changed = before.iter().zip(after).filter(|(before, after)| before.to_bits() != after.to_bits()).count();
        let percent = 100.0 * changed as f64 / before.len().max(1) as f64;
        self.line(
            percent >= MIN_CHANGED_PERCENT,
            &format!("The optimizer changed {percent:.0} % of {:.1} million weights", before.len() as f64 / 1e6),
            &format!("The optimizer has too little effect: {percent:.0} % of the weights changed"),
            "Raise --lr; if that does not help, please report this with --run-log",
        );
    }

    fn peaks(&mut self, roles: &Isolation, peaks: &[Peak]) -> Result<(), Trouble> {
        let in_use = roles.card_use()?;
        for peak in peaks {
            let (place, limit) = (format!("on GPU {}", peak.card), peak.limit_bytes / MIB);
            match peak.bytes {
                Some(bytes) => {
                    let (used, samples) = (bytes.div_ceil(MIB), peak.samples);
                    self.line(
                        peak.kept(),
                        &format!("Process use {place} never above {used} MB of {limit} MB in {samples} samples"),
                        &format!("Process use {place} reached {used} MB, over the limit of {limit} MB"),
                        "The driver needs more than was planned: raise the limits by 64 MB and plan again",
                    );
                }
                None if self.resolved.machine.kind() == DeviceKind::Cpu => {}
                None => {
                    // Other processes change this figure too: an excess is only a warning, and says what it is based on.
                    let fallen =
                        in_use.iter().find(|now| now.card == peak.card).map_or(0, |now| now.fallen_bytes / MIB);
                    let sign = if fallen > limit { "⚠️ " } else { "" };
                    let what = "The driver gives no figure for this process";
                    self.say_line(&format!(
                        "   {sign}{what} {place}: free memory fell by {fallen} MB, limit {limit} MB"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Compares the memory of this process before and after the steps, as the driver counts it. A desktop or another process
    /// on the card does not change it.
    fn driver_memory(&mut self, roles: &Isolation, before: &[HeldMemory], after: &[HeldMemory]) {
        if self.resolved.machine.kind() == DeviceKind::Cpu {
            // Every process of the machine changes the free memory of the host: it proves nothing.
            return;
        }
        if roles.model.arena.is_split() {
            return self.say_line(
                "   Split arenas: the process's memory is not compared, because the memory checker allocates too",
            );
        }
        if !self.plan.static_shapes && before != after {
            return self.say_line(
                "   Exact shapes: the driver may allocate for new shapes, so the process's memory is not compared",
            );
        }
        for (before, after) in before.iter().zip(after) {
            let place = format!("on GPU {}", before.card);
            match (before.process_bytes, after.process_bytes) {
                (Some(old), Some(new)) => self.line(
                    new <= old,
                    &format!("Process memory {place} did not grow during the steps: {}", show(new)),
                    &format!("Process memory {place} grew during the steps: from {} to {}", show(old), show(new)),
                    "Memory leaks outside the arenas: please report this with --run-log",
                ),
                _ => self.free_memory(&place, before.free_bytes, after.free_bytes),
            }
        }
    }

    /// Compares the free memory of a card whose driver does not report memory per process. Other processes change it too, so a
    /// difference is only a warning.
    fn free_memory(&mut self, place: &str, before: u64, after: u64) {
        let what = "The driver gives no figure for this process";
        match before == after {
            true => self.pass(&format!("{what} {place}; free memory the same before and after: {}", show(after))),
            false => self.say_line(&format!(
                "   ⚠️ {what} {place}: free memory went from {} to {} during the steps, other processes included",
                show(before),
                show(after)
            )),
        }
    }

    fn heading(&mut self, text: &str) {
        self.number += 1;
        let line = format!("{}. {text}", self.number);
        self.say_line(&line);
    }

    fn phase(&mut self, phase: StartupPhase) {
        for line in startup_lines(self.plan, phase) {
            self.say_line(&format!("   {line}"));
        }
    }

    fn pass(&mut self, text: &str) {
        self.record(true, text);
    }

    fn fail(&mut self, text: &str, advice: Option<&'static str>) {
        self.record(false, text);
        self.report.advice = self.report.advice.or(advice);
    }

    /// Prints `good`, or `bad` and at the end what to do about it.
    fn line(&mut self, passed: bool, good: &str, bad: &str, advice: &'static str) {
        match passed {
            true => self.pass(good),
            false => self.fail(bad, Some(advice)),
        }
    }

    fn record(&mut self, passed: bool, text: &str) {
        self.say_line(&format!("   {} {text}", if passed { "✅" } else { "❌" }));
        let (name, detail) = text.split_once(": ").unwrap_or((text, ""));
        let (name, detail) = (name.to_owned(), detail.to_owned());
        self.emitter.emit(RunEvent::Check { number: self.number, name, passed, detail });
        self.report.checks.push(Check { number: self.number, passed, text: text.to_owned() });
    }

    fn say_line(&mut self, line: &str) {
        (self.say)(line);
    }
}

/// The feed as it was started, and its transfer.
struct StartedFeed {
    feed: Result<Feed, LaunchError>,
    transfer: TransferPlan,
    /// Whether the transfer is not the planned one.
    replaced: bool,
}

/// The device of each of the model's blocks, as the driver reports it. Asked of blocks of the same sizes, allocated in the
/// same order and freed again: the model's own blocks then get the same addresses.
fn homes(programs: &RunPrograms, roles: &Isolation) -> Result<Vec<usize>, DeviceError> {
    let lines = programs.set().lines(roles.model.device.machine().kind());
    let taken = lines.iter().filter(|line| line.bytes > 0).map(|line| roles.model.arena.take(line.name, line.bytes));
    let blocks = taken.collect::<Result<Vec<_>, _>>()?;
    blocks.iter().map(|block| block.resident_card()).collect()
}

fn gpus(count: usize) -> String {
    if count == 1 { "1 GPU".to_owned() } else { format!("{count} GPUs") }
}

fn other(role: Role) -> Role {
    match role {
        Role::Data => Role::Model,
        Role::Model => Role::Data,
    }
}

fn device_name(plan: &Plan, role: Role) -> &'static str {
    match (plan.mode, role) {
        (Mode::Cpu, _) => "the CPU",
        (Mode::Single, _) | (_, Role::Data) => "GPU:0",
        (_, Role::Model) => "GPU:1",
    }
}
