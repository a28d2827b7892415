//! The inventory of cards, and the plan resolved for them.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tandem_checkpoint::{FolderSpace, checkpoint_step};
use tandem_device::bytes::{POOL_GRANULE, round_up};
use tandem_device::library::Search;
use tandem_device::transfer::Measured;
use tandem_device::{
    Arena, ArenaSpec, DeviceError, DeviceKind, HostReading, Kernel, Machine, Route, SimSpec, kernels, probe,
};
use tandem_engine::{EngineError, ProgramSet, Session};
use tandem_events::Role;
use tandem_plan::setting::{Id, NEWEST};
use tandem_plan::speech::SpeechModels;
use tandem_plan::{
    CardFacts, CorpusFacts, Hardware, HostFacts, Models, PLACEMENT, Placement, Plan, Reason, Refusal, RunFolderFacts,
    Settings, TriedRoute,
};

/// The cards of the machine, and the facts read from them.
pub struct Inventory {
    /// The cards; `None` if there are none, or none that can be used.
    cards: Option<Machine>,
    /// The facts.
    pub hardware: Hardware,
}

/// A plan, and the machine it is for.
pub struct Resolved {
    /// The devices the plan runs on.
    pub machine: Machine,
    /// The facts it is based on.
    pub hardware: Hardware,
    /// The plan.
    pub plan: Plan,
}

impl Inventory {
    /// Takes the inventory: simulated cards if given, else the real ones. Opens no card.
    pub fn survey(sim: Option<SimSpec>) -> Result<Inventory, DeviceError> {
        if let Some(spec) = sim {
            return Inventory::of(Machine::simulated(spec));
        }
        let driver_error = match Machine::cuda() {
            Ok(Some(machine)) if machine.cards().is_empty() => {
                Some("the driver shows this process no GPU: CUDA_VISIBLE_DEVICES hides them all".to_owned())
            }
            Ok(Some(machine)) => return Inventory::of(machine),
            Ok(None) => None,
            // Not an error yet: the plan may be for the CPU.
            Err(unusable) => Some(unusable.to_string()),
        };
        let searched_paths = Search::from_env().searched_paths();
        Ok(Inventory {
            cards: None,
            hardware: Hardware { driver_error, searched_paths, ..Hardware::without_cards(host_facts()) },
        })
    }

    /// The inventory of these cards.
    pub fn of(machine: Machine) -> Result<Inventory, DeviceError> {
        let hardware = read(&machine, host_facts())?;
        Ok(Inventory { cards: Some(machine), hardware })
    }

    /// The same with the run folder of `settings`, for commands that train there. `must_fit`: checkpoints that do not fit on
    /// its disk are refused, not only shown.
    pub fn with_run_folder(mut self, settings: &Settings, must_fit: bool) -> Inventory {
        let folder = PathBuf::from(settings.text(Id::CheckpointDir).unwrap_or_default());
        let resumed = settings.text(Id::Resume).filter(|path| path != NEWEST);
        let last_step = resumed.and_then(|path| checkpoint_step(Path::new(&path))).unwrap_or(u64::MAX);
        // A run from step 0 moves all of them aside; one that resumes from an earlier step, the later ones.
        let resets = settings.switch(Id::ResetTraining);
        let space = FolderSpace::read(&folder, |step| !resets && step <= last_step);
        self.hardware.run_folder = Some(RunFolderFacts { space, must_fit });
        self
    }

    /// The inventory of a plan, to plan again with the same facts.
    pub fn again(resolved: Resolved) -> Inventory {
        let Resolved { machine, hardware, .. } = resolved;
        Inventory { cards: (machine.kind() != DeviceKind::Cpu).then_some(machine), hardware }
    }

    /// Resolves a plan for this machine: chooses the cards, measures the driver's memory on them, and solves for the model
    /// to run. `corpus` describes `--train-data`; `None` without it.
    pub fn resolve(self, settings: &Settings, corpus: Option<&CorpusFacts>) -> Result<Resolved, Refusal> {
        self.resolve_for(&SpeechModels::of(corpus), settings, corpus)
    }

    /// The same for custom models.
    pub fn resolve_for(
        mut self,
        models: &dyn Models,
        settings: &Settings,
        corpus: Option<&CorpusFacts>,
    ) -> Result<Resolved, Refusal> {
        // The solver refuses an impossible placement too, with tested suggestions.
        if let Ok(placement) = Placement::choose(settings, &self.hardware) {
            self.read_driver(&placement, settings, corpus, models)?;
        }
        let plan = Plan::solve(settings, &self.hardware, models, corpus)?;
        let machine = self.cards.filter(|_| plan.model.card.is_some()).unwrap_or_else(Machine::cpu);
        Ok(Resolved { machine, hardware: self.hardware, plan })
    }

    /// The hardware with the driver's memory measured on its two cards with the most free memory, for recommendations.
    /// `None` on a machine without a usable card.
    pub fn measured(mut self, settings: &Settings, corpus: Option<&CorpusFacts>) -> Result<Option<Hardware>, Refusal> {
        let mut cards: Vec<&CardFacts> =
            self.hardware.cards.iter().filter(|facts| facts.card.hidden_by.is_none()).collect();
        cards.sort_by_key(|facts| std::cmp::Reverse(facts.reading.free_bytes));
        let flags: Vec<(&str, String)> = match cards[..] {
            [] => return Ok(None),
            [only] => vec![("gpu", only.card.index.to_string())],
            [model, data, ..] => {
                vec![("data-gpu", data.card.index.to_string()), ("model-gpu", model.card.index.to_string())]
            }
        };
        let settings = settings.without(&PLACEMENT).with(&flags)?;
        let placement = Placement::choose(&settings, &self.hardware)?;
        self.read_driver(&placement, &settings, corpus, &SpeechModels::of(corpus))?;
        Ok(Some(self.hardware))
    }

    /// Measures the driver's memory on the cards of a placement, unless it is known.
    fn read_driver(
        &mut self,
        placement: &Placement,
        settings: &Settings,
        corpus: Option<&CorpusFacts>,
        models: &dyn Models,
    ) -> Result<(), Refusal> {
        let Some(machine) = &self.cards else { return Ok(()) };
        let chosen = [placement.data, placement.model];
        let unread = |facts: &&mut CardFacts| chosen.contains(&Some(facts.card.index)) && facts.driver.is_none();
        let (data, model) = role_kernels();
        let mut any = false;
        for facts in self.hardware.cards.iter_mut().filter(unread) {
            let cost = probe(machine, facts.card.index, &data, &model);
            facts.driver = Some(cost.map_err(|error| unusable(&error))?);
            any = true;
        }
        let Some(card) = placement.model.filter(|_| any) else { return Ok(()) };
        // The library kernels depend on the GEMM shapes: those of a plan without limits. If not even that fits, the refusal
        // needs no exact figure.
        let free_choice = settings.without(&[Id::EnableMemoryIsolation, Id::DataGpuMemory, Id::ModelGpuMemory]);
        let Ok(plan) = Plan::solve(&free_choice, &self.hardware, models, corpus) else { return Ok(()) };
        let programs = models.programs(&plan).map_err(|error| unusable(&error))?;
        let taken = set_up_once(machine, card, programs.set).map_err(|error| unusable(&error))?;
        if let Some(cost) =
            self.hardware.cards.iter_mut().find(|f| f.card.index == card).and_then(|f| f.driver.as_mut())
        {
            cost.model_modules_bytes = cost.model_modules_bytes.max(taken.saturating_sub(cost.context_bytes));
        }
        Ok(())
    }
}

/// Creates the model's programs on a card as a run does, including kernels, libraries and captured graphs, and returns the
/// memory that the driver took beside the arena. Frees everything.
fn set_up_once(machine: &Machine, card: usize, programs: Arc<ProgramSet>) -> Result<u64, EngineError> {
    let before = machine.read(card)?.free_bytes;
    let device = machine.open(card)?;
    let arena_bytes = round_up(programs.bytes(machine.kind()), POOL_GRANULE);
    let spec = ArenaSpec { role: Role::Model, limit_bytes: arena_bytes, driver_bytes: 0, arena_bytes, capped: true };
    let arena = Arena::reserve(&device, spec)?;
    let session = Session::create(programs, &arena, Arc::new(device.stream(true)?), 1)?;
    let held = match device.process_bytes()? {
        Some(bytes) => bytes.saturating_sub(machine.counters(card).live_bytes),
        // Other processes may change it meanwhile.
        None => before.saturating_sub(machine.read(card)?.free_bytes).saturating_sub(arena_bytes),
    };
    drop(session);
    Ok(held)
}

impl Resolved {
    /// Tries every route between the cards of the plan, compares every byte of a batch, and takes the fastest that works. If
    /// the planned one does not, the plan has a note.
    pub fn try_transfer(&mut self) -> Result<(), DeviceError> {
        let (Some(data), Some(model)) = (self.plan.data.card, self.plan.model.card) else { return Ok(()) };
        if self.plan.transfer.route == Route::Handover {
            return Ok(());
        }
        let (mut tried, mut last_error) = (Vec::new(), None);
        for route in self.plan.transfer.candidates() {
            let result = match self.prove(route, data, model) {
                Ok(measured) => Ok((measured.gb_per_s() * 1000.0) as u64),
                Err(error) if error.is_about_route() => {
                    let why = error.to_string();
                    last_error = Some(error);
                    Err(why)
                }
                Err(error) => return Err(error),
            };
            tried.push(TriedRoute { route, result });
        }
        match (self.plan.transfer.with_fastest(tried), last_error) {
            (Some(fastest), _) => {
                if fastest.refused().next().is_some() {
                    self.plan.notes.push(format!("⚠️ {}", fastest.describe()));
                }
                self.plan.reroute(fastest);
                Ok(())
            }
            (None, Some(error)) => Err(error),
            (None, None) => unreachable!("there is always a route to try"),
        }
    }

    /// Copies one batch between two temporary arenas.
    fn prove(&self, route: Route, data: usize, model: usize) -> Result<Measured, DeviceError> {
        let batch_bytes = self.plan.feed.slot_bytes();
        let arena_bytes = round_up(batch_bytes, POOL_GRANULE);
        let arena = |role, card| {
            let spec = ArenaSpec { role, limit_bytes: arena_bytes, driver_bytes: 0, arena_bytes, capped: true };
            Arena::reserve(&self.machine.open(card)?, spec)
        };
        let (from, to) = (arena(Role::Data, data)?, arena(Role::Model, model)?);
        let mut transfer = tandem_device::Transfer::open(route, "a proof", &from, &to, batch_bytes)?;
        let (source, target) = (from.take("batch", batch_bytes)?, to.take("slot", batch_bytes)?);
        transfer.prove(&[source.view()], &[target.view()])
    }
}

/// Contexts, streams and peak bytes of each card since the start, as JSON.
pub fn cards_json(machine: &Machine) -> serde_json::Value {
    let card = |index: usize| {
        let counts = machine.counters(index);
        serde_json::json!({
            "gpu": index,
            "uuid": machine.cards()[index].uuid,
            "contexts": counts.contexts,
            "streams": counts.streams,
            "peak_bytes": counts.peak_bytes,
        })
    };
    let cards = if machine.kind() == DeviceKind::Cpu { 0 } else { machine.cards().len() };
    (0..cards).map(card).collect()
}

/// Kernels known before the shapes: those of the features, and the memory checks. [`set_up_once`] finds those of the
/// model's programs.
fn role_kernels() -> (Vec<&'static Kernel>, Vec<&'static Kernel>) {
    let data = [tandem_audio::kernels::KERNELS, tandem_feed::kernels::KERNELS, kernels::KERNELS].concat();
    (data, kernels::KERNELS.to_vec())
}

fn read(machine: &Machine, host: HostFacts) -> Result<Hardware, DeviceError> {
    let hidden = |index: usize| machine.cards()[index].hidden_by.is_some();
    let facts = |index: usize| {
        let card = machine.cards()[index].clone();
        // A hidden card need not answer: it is refused by name if it is requested.
        let reading = if hidden(index) { machine.read(index).unwrap_or_default() } else { machine.read(index)? };
        Ok(CardFacts { card, reading, driver: machine.known_driver_cost() })
    };
    let count = machine.cards().len();
    let reaches = |reader: usize, owner: usize| match reader == owner || hidden(reader) || hidden(owner) {
        true => Ok(false),
        false => machine.can_access_peer(reader, owner),
    };
    let row = |reader: usize| (0..count).map(|owner| reaches(reader, owner)).collect::<Result<Vec<_>, DeviceError>>();
    Ok(Hardware {
        kind: machine.kind(),
        cards: (0..count).map(facts).collect::<Result<_, DeviceError>>()?,
        host,
        driver_error: None,
        searched_paths: Vec::new(),
        peer: (0..count).map(row).collect::<Result<_, _>>()?,
        run_folder: None,
    })
}

/// Memory and cores of the host.
pub fn host_facts() -> HostFacts {
    let HostReading { available_bytes, limited_by, .. } = HostReading::now();
    HostFacts { available_bytes, limited_by, cores: std::thread::available_parallelism().map_or(1, NonZero::get) }
}

fn unusable(error: &dyn std::fmt::Display) -> Refusal {
    let message = format!("❌ {error}\n   --mode cpu runs without a GPU");
    Refusal { kind: Reason::Device, message, demands: Vec::new(), suggestions: Vec::new() }
}
