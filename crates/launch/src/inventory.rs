//! From what the user wrote to a machine and a plan for it.

use std::num::NonZero;
use std::sync::Arc;

use tandem_device::bytes::{POOL_GRANULE, round_up};
use tandem_device::library::Search;
use tandem_device::transfer::Measured;
use tandem_device::{
    Arena, ArenaSpec, DeviceError, DeviceKind, Kernel, Machine, Route, SimSpec, host_memory, kernels, probe,
};
use tandem_engine::{EngineError, ProgramSet, Session};
use tandem_events::Role;
use tandem_plan::setting::Id;
use tandem_plan::speech::SpeechModels;
use tandem_plan::{
    CardFacts, CorpusFacts, Hardware, HostFacts, Models, Placement, Plan, Reason, Refusal, Settings, TransferPlan,
};

/// The machine a command runs on, and what was read off it.
pub struct Inventory {
    /// The cards; none when there are none, or none that can be used.
    cards: Option<Machine>,
    /// What was found.
    pub hardware: Hardware,
}

/// A plan, and the machine it is for.
pub struct Resolved {
    /// The devices the plan runs on.
    pub machine: Machine,
    /// What was found.
    pub hardware: Hardware,
    /// What was decided.
    pub plan: Plan,
}

impl Inventory {
    /// Looks at the machine: simulated cards when asked for, else the real ones. Opens nothing.
    pub fn survey(sim: Option<SimSpec>) -> Result<Inventory, DeviceError> {
        if let Some(spec) = sim {
            return Inventory::of(Machine::simulated(spec));
        }
        let trouble = match Machine::cuda() {
            Ok(Some(machine)) if machine.cards().is_empty() => {
                Some("the driver shows this process no GPU: CUDA_VISIBLE_DEVICES hides them all".to_owned())
            }
            Ok(Some(machine)) => return Inventory::of(machine),
            Ok(None) => None,
            // Not the end yet: the plan may be for the CPU.
            Err(unusable) => Some(unusable.to_string()),
        };
        let looked = Search::from_env().looks_in();
        Ok(Inventory { cards: None, hardware: Hardware { trouble, looked, ..Hardware::without_cards(host_facts()) } })
    }

    /// A site of these cards.
    pub fn of(machine: Machine) -> Result<Inventory, DeviceError> {
        let hardware = read(&machine, host_facts())?;
        Ok(Inventory { cards: Some(machine), hardware })
    }

    /// The site of a plan, to plan anew: what was read off the machine is kept.
    pub fn again(resolved: Resolved) -> Inventory {
        let Resolved { machine, hardware, .. } = resolved;
        Inventory { cards: (machine.kind() != DeviceKind::Cpu).then_some(machine), hardware }
    }

    /// Resolves a plan for this machine: chooses the cards, reads what the driver costs on those, and solves for the model
    /// that will run. `corpus` is what was found where `--train-data` points; none without it.
    pub fn resolve(self, settings: &Settings, corpus: Option<&CorpusFacts>) -> Result<Resolved, Refusal> {
        self.resolve_for(&SpeechModels::of(corpus), settings, corpus)
    }

    /// The same for other models than those of speech.
    pub fn resolve_for(
        mut self,
        models: &dyn Models,
        settings: &Settings,
        corpus: Option<&CorpusFacts>,
    ) -> Result<Resolved, Refusal> {
        // A placement that cannot be is refused by the solver too, which also tries out what it suggests.
        if let Ok(placement) = Placement::choose(settings, &self.hardware) {
            self.read_driver(&placement, settings, corpus, models)?;
        }
        let plan = Plan::solve(settings, &self.hardware, models, corpus)?;
        let machine = self.cards.filter(|_| plan.model.card.is_some()).unwrap_or_else(Machine::cpu);
        Ok(Resolved { machine, hardware: self.hardware, plan })
    }

    /// Reads what the driver costs on the cards of a placement, unless that is known.
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
        // Which kernels of the library the GEMMs need is known once the shapes are: those of a plan that no limit
        // makes smaller. Where not even that fits, the refusal needs no exact figure.
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

/// Sets the model's programs up on a card as a run does, kernels, libraries and recordings included, and says what the driver
/// took beside the arena. Everything is given back.
fn set_up_once(machine: &Machine, card: usize, programs: Arc<ProgramSet>) -> Result<u64, EngineError> {
    let before = machine.read(card)?.free_bytes;
    let device = machine.open(card)?;
    let arena_bytes = round_up(programs.bytes(machine.kind()), POOL_GRANULE);
    let spec = ArenaSpec { role: Role::Model, limit_bytes: arena_bytes, driver_bytes: 0, arena_bytes, capped: true };
    let arena = Arena::reserve(&device, spec)?;
    let session = Session::create(programs, &arena, Arc::new(device.stream(true)?), 1)?;
    let held = match device.process_bytes()? {
        Some(bytes) => bytes.saturating_sub(machine.counters(card).live_bytes),
        // Others may move it meanwhile.
        None => before.saturating_sub(machine.read(card)?.free_bytes).saturating_sub(arena_bytes),
    };
    drop(session);
    Ok(held)
}

impl Resolved {
    /// Tries the way across: every byte of a batch compared, and its speed put into the plan. A peer route that was
    /// chosen because the driver offers it, and does not deliver, is replaced; the plan's notes say so.
    pub fn try_transfer(&mut self) -> Result<(), DeviceError> {
        let (Some(data), Some(model)) = (self.plan.data.card, self.plan.model.card) else { return Ok(()) };
        if self.plan.transfer.route == Route::Handover {
            return Ok(());
        }
        let mut proof = self.prove(data, model);
        let other = proof.as_ref().err().and_then(|error| instead_of_peer(&self.plan.transfer, error));
        if let Some(other) = other {
            self.plan.notes.push(format!("⚠️ {}", other.describe()));
            self.plan.reroute(other);
            proof = self.prove(data, model);
        }
        self.plan.transfer.mb_per_s = Some((proof?.gb_per_s() * 1000.0) as u64);
        Ok(())
    }

    /// Two arenas of one batch each, for a moment.
    fn prove(&self, data: usize, model: usize) -> Result<Measured, DeviceError> {
        let batch_bytes = self.plan.feed.slot_bytes();
        let arena_bytes = round_up(batch_bytes, POOL_GRANULE);
        let arena = |role, card| {
            let spec = ArenaSpec { role, limit_bytes: arena_bytes, driver_bytes: 0, arena_bytes, capped: true };
            Arena::reserve(&self.machine.open(card)?, spec)
        };
        let (from, to) = (arena(Role::Data, data)?, arena(Role::Model, model)?);
        let TransferPlan { route, why, .. } = &self.plan.transfer;
        let mut transfer = tandem_device::Transfer::open(*route, why, &from, &to, batch_bytes)?;
        let (source, target) = (from.take("batch", batch_bytes)?, to.take("slot", batch_bytes)?);
        transfer.prove(source.view(), target.view())
    }
}

/// The way to take instead of peer copies that turned out not to work; `None` when nothing else will do, or when it is the
/// card that failed and not the road.
pub fn instead_of_peer(planned: &TransferPlan, error: &DeviceError) -> Option<TransferPlan> {
    is_route_error(error).then(|| planned.without_peer(error)).flatten()
}

/// Whether `error` speaks of the way between two devices, and not of one of them.
pub fn is_route_error(error: &DeviceError) -> bool {
    let road = ["peer copy", "copying", "allowing peer access"];
    match error {
        DeviceError::Corrupt { .. } | DeviceError::NoRoute { .. } => true,
        DeviceError::Failed { during, .. } => road.contains(during),
        _ => false,
    }
}

/// What was done on each card so far, for machines to read: contexts, streams and bytes, ever.
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

/// Kernels that are known before the shapes are: those of the features, and everybody's checks. Those of the model's
/// programs are found by [`set_up_once`].
fn role_kernels() -> (Vec<&'static Kernel>, Vec<&'static Kernel>) {
    let data = [tandem_audio::kernels::KERNELS, tandem_feed::kernels::KERNELS, kernels::KERNELS].concat();
    (data, kernels::KERNELS.to_vec())
}

fn read(machine: &Machine, host: HostFacts) -> Result<Hardware, DeviceError> {
    let hidden = |index: usize| machine.cards()[index].hidden_by.is_some();
    let facts = |index: usize| {
        let card = machine.cards()[index].clone();
        // A card we may not use need not answer: it is refused by name if it is asked for.
        let reading = if hidden(index) { machine.read(index).unwrap_or_default() } else { machine.read(index)? };
        Ok(CardFacts { card, reading, driver: machine.tabled_cost() })
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
        trouble: None,
        looked: Vec::new(),
        peer: (0..count).map(row).collect::<Result<_, _>>()?,
    })
}

/// The computer around the cards.
pub fn host_facts() -> HostFacts {
    let (_, available_bytes) = host_memory();
    HostFacts { available_bytes, cores: std::thread::available_parallelism().map_or(1, NonZero::get) }
}

fn unusable(error: &dyn std::fmt::Display) -> Refusal {
    let message = format!("❌ {error}\n   --mode cpu runs without a GPU");
    Refusal { kind: Reason::Device, message, demands: Vec::new(), suggestions: Vec::new() }
}
