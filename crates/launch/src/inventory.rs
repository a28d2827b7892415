//! The inventory of cards, and the plan resolved for them.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tandem_audio::{Arithmetic, FeatureSettings};
use tandem_checkpoint::{FolderSpace, ModelContract, checkpoint_step, stored_features, stored_identity};
use tandem_device::bytes::{POOL_GRANULE, round_up};
use tandem_device::library::Search;
use tandem_device::transfer::Measured;
use tandem_device::{
    Arena, ArenaSpec, DeviceError, DeviceKind, HostReading, Kernel, Machine, Route, SimSpec, kernels, probe, probe_pair,
};
use tandem_engine::{EngineError, ProgramSet, Session};
use tandem_events::Role;
use tandem_feed::SPEECH;
use tandem_plan::setting::{Id, NEWEST};
use tandem_plan::speech::SpeechModels;
use tandem_plan::{
    ArithmeticPlan, CardFacts, CorpusFacts, Hardware, HostFacts, Models, PLACEMENT, Placement, Plan, Reason, Refusal,
    RunFolderFacts, Settings, TriedRoute,
};
use tandem_ranks::World;

use crate::route_proof::{RouteProof, RouteProver};

/// The cards of the machine, and the facts read from them.
pub struct Inventory {
    /// The cards; `None` if there are none, or none that can be used.
    cards: Option<Machine>,
    /// The facts.
    pub hardware: Hardware,
    prover: Option<Arc<dyn RouteProver>>,
}

/// A plan, and the machine it is for.
pub struct Resolved {
    /// The devices the plan runs on.
    pub machine: Machine,
    /// The facts it is based on.
    pub hardware: Hardware,
    /// The plan.
    pub plan: Plan,
    /// Proves routes that could take this process down; without one they are proven in this process.
    pub prover: Option<Arc<dyn RouteProver>>,
}

impl Inventory {
    /// Takes the inventory: simulated cards if given, else the real ones. Opens no card.
    pub fn survey(sim: Option<SimSpec>) -> Result<Inventory, DeviceError> {
        if let Some(spec) = sim {
            return Inventory::of(Machine::simulated(spec));
        }
        let driver_error = match Machine::cuda() {
            Ok(Some(machine)) if machine.cards().is_empty() => Some(
                "the driver shows this process no GPU: CUDA_VISIBLE_DEVICES hides them all (unset it to use them)"
                    .to_owned(),
            ),
            Ok(Some(machine)) => return Inventory::of(machine),
            Ok(None) => None,
            // Not an error yet: the plan may be for the CPU.
            Err(unusable) => Some(unusable.to_string()),
        };
        let searched_paths = Search::from_env().searched_paths();
        Ok(Inventory {
            cards: None,
            hardware: Hardware { driver_error, searched_paths, ..Hardware::without_cards(host_facts()) },
            prover: None,
        })
    }

    /// The inventory of these cards.
    pub fn of(machine: Machine) -> Result<Inventory, DeviceError> {
        let hardware = read(&machine, host_facts())?;
        Ok(Inventory { cards: Some(machine), hardware, prover: None })
    }

    /// The same with a prover of routes.
    pub fn with_prover(self, prover: Arc<dyn RouteProver>) -> Inventory {
        Inventory { prover: Some(prover), ..self }
    }

    /// The same for one process of a run.
    pub fn with_world(self, world: World) -> Inventory {
        let hardware = self.hardware.with_world(world);
        if let Some(cards) =
            self.cards.as_ref().filter(|cards| cards.kind() == DeviceKind::Simulated && world.local_size > 1)
        {
            cards.set_compute_threads(hardware.host.cores);
        }
        Inventory { hardware, ..self }
    }

    /// The same with the run folder of `settings`, for commands that train there. `must_fit`: checkpoints that do not fit on
    /// its disk are refused, not only shown.
    pub fn with_run_folder(mut self, settings: &Settings, must_fit: bool) -> Inventory {
        let folder = PathBuf::from(settings.text(Id::CheckpointDir).unwrap_or_default());
        let resumed = settings.text(Id::Resume).filter(|path| path != NEWEST);
        let last_step = resumed.as_ref().and_then(|path| checkpoint_step(Path::new(path))).unwrap_or(u64::MAX);
        // A run from step 0 moves all of them aside; one that resumes from an earlier step, the later ones.
        let resets = settings.switch(Id::ResetTraining);
        let space = FolderSpace::read(&folder, |step| !resets && step <= last_step);
        let features = match resumed {
            // Opened later, with the reason if that fails.
            Some(path) => ModelContract::read(Path::new(&path)).ok().map(|model| model.features),
            None => stored_features(&folder, last_step),
        };
        let arithmetic = features.map(|features| features.arithmetic);
        let identity = stored_identity(&folder).filter(|_| !resets);
        let grad_accum = identity.and_then(|identity| identity.fact("grad_accum")?.as_u64());
        self.hardware.run_folder = Some(RunFolderFacts { space, must_fit, arithmetic, grad_accum });
        self
    }

    /// The inventory of a plan, to plan again with the same facts.
    pub fn again(resolved: Resolved) -> Inventory {
        let Resolved { machine, hardware, prover, .. } = resolved;
        Inventory { cards: (machine.kind() != DeviceKind::Cpu).then_some(machine), hardware, prover }
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
        let machine = self.cards.filter(|_| plan.model.card.is_some()).unwrap_or_else(|| {
            let machine = Machine::cpu();
            // Ranks of one machine would wait for each other's cores.
            if self.hardware.world.local_size > 1 {
                machine.set_compute_threads(self.hardware.host.cores);
            }
            machine
        });
        Ok(Resolved { machine, hardware: self.hardware, plan, prover: self.prover })
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
        let (Some(data), Some(model)) = (placement.data, placement.model) else { return Ok(()) };
        // As above: the solver refuses it.
        let Ok(features) = ArithmeticPlan::choose(settings, placement, &self.hardware) else { return Ok(()) };
        let kernels = RoleKernels::of(features.arithmetic);
        let is_new = match data == model {
            true => read_alone(machine, &mut self.hardware, data, &kernels),
            false => read_pair(machine, &mut self.hardware, [data, model], settings, &kernels),
        };
        let is_new = is_new.map_err(|error| unusable(&error))?;
        // A table has the memory of the libraries too.
        let Some(card) = placement.model.filter(|_| is_new && machine.known_driver_cost().is_none()) else {
            return Ok(());
        };
        // The library kernels depend on the GEMM shapes: those of a plan without limits. If not even that fits, the refusal
        // needs no exact figure.
        let free_choice = settings.without(&[Id::EnableMemoryIsolation, Id::DataGpuMemory, Id::ModelGpuMemory]);
        let Ok(plan) = Plan::solve(&free_choice, &self.hardware, models, corpus) else { return Ok(()) };
        let programs = models.programs(&plan).map_err(|error| unusable(&error))?;
        let taken = set_up_once(machine, card, programs.set).map_err(|error| unusable(&error))?;
        if let Some(cost) =
            self.hardware.cards.iter_mut().find(|f| f.card.index == card).and_then(|f| f.driver.as_mut())
        {
            cost.model_modules_bytes = cost.model_modules_bytes.max(taken);
        }
        Ok(())
    }
}

/// Measures the driver's memory on one card for both roles; `false` if it is known.
fn read_alone(
    machine: &Machine,
    hardware: &mut Hardware,
    card: usize,
    kernels: &RoleKernels,
) -> Result<bool, DeviceError> {
    let Some(facts) = hardware.cards.iter_mut().find(|facts| facts.card.index == card && facts.driver.is_none()) else {
        return Ok(false);
    };
    facts.driver = Some(probe(machine, card, &kernels.data, &kernels.model)?);
    Ok(true)
}

/// Measures it on the cards of a pair, with both open and with peer access if a route may use it; `false` if it is known. What was
/// measured on a card alone is too little for a pair.
fn read_pair(
    machine: &Machine,
    hardware: &mut Hardware,
    cards: [usize; 2],
    settings: &Settings,
    kernels: &RoleKernels,
) -> Result<bool, DeviceError> {
    let [data, model] = cards;
    let may_use_peers = Route::named(settings.choice(Id::Transfer)).is_none_or(Route::needs_peer_access);
    let needs_peer_access = may_use_peers && hardware.are_peers(data, model);
    let counts = |card: usize, other: usize| {
        let cost = hardware.card(card).and_then(|facts| facts.driver.as_ref());
        cost.is_some_and(|cost| cost.counts_pair(other, needs_peer_access))
    };
    if counts(data, model) && counts(model, data) {
        return Ok(false);
    }
    let costs = probe_pair(machine, cards, needs_peer_access, &kernels.data, &kernels.model)?;
    for (card, cost) in cards.into_iter().zip(costs) {
        if let Some(facts) = hardware.cards.iter_mut().find(|facts| facts.card.index == card) {
            facts.driver = Some(cost);
        }
    }
    Ok(true)
}

/// Creates the model's programs on a card as a run does, including kernels, libraries and captured graphs, and returns the
/// memory that the driver took for them, beside its context and the arena. Frees everything.
fn set_up_once(machine: &Machine, card: usize, programs: Arc<ProgramSet>) -> Result<u64, EngineError> {
    let device = machine.open(card)?;
    let stream = Arc::new(device.stream(true)?);
    let used = || match device.process_bytes()? {
        Some(bytes) => Ok::<u64, DeviceError>(bytes),
        // Other processes may change it meanwhile.
        None => machine.read(card).map(|now| now.total_bytes.saturating_sub(now.free_bytes)),
    };
    let before = used()?;
    let arena_bytes = round_up(programs.bytes(machine.kind()), POOL_GRANULE);
    let spec = ArenaSpec { capped: true, ..ArenaSpec::new(Role::Model, arena_bytes) };
    let arena = Arena::reserve(&device, spec)?;
    let session = Session::create(programs, &arena, stream, 1)?;
    let taken = used()?.saturating_sub(before).saturating_sub(machine.counters(card).live_bytes);
    drop(session);
    Ok(taken)
}

impl Resolved {
    /// Tries every route between the cards of the plan, compares every byte of a batch, and takes the fastest that works. If
    /// the planned one does not, the plan has a note.
    ///
    /// Routes with peer access are tried by the prover, if there is one. The others are the driver's and our own copies
    /// through the host; they are tried here.
    pub fn try_transfer(&mut self) -> Result<(), DeviceError> {
        let (Some(from), Some(to)) = (self.plan.data.card, self.plan.model.card) else { return Ok(()) };
        if self.plan.transfer.route == Route::Handover {
            return Ok(());
        }
        let proof = RouteProof { from, to, batch_bytes: self.plan.feed.slot_bytes(), slots: 1 };
        let candidates = self.plan.transfer.candidates();
        let mut outside = self.proven_outside(&proof, &candidates);
        let (mut tried, mut last_error) = (Vec::new(), None);
        for route in candidates {
            let measured = match outside.remove(route.name()) {
                Some(Ok(measured)) => Ok(measured),
                Some(Err(why)) => {
                    last_error = Some(proof.refused(route, &why));
                    Err(why)
                }
                None => match proof.run(&self.machine, route) {
                    Ok(measured) => Ok(measured),
                    Err(error) if error.is_about_route() => {
                        let why = error.to_string();
                        last_error = Some(error);
                        Err(why)
                    }
                    Err(error) => return Err(error),
                },
            };
            let result = measured.map(|measured| (measured.gb_per_s() * 1000.0) as u64);
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

    /// The results of those candidates that the prover tries, by name.
    fn proven_outside(
        &self,
        proof: &RouteProof,
        candidates: &[Route],
    ) -> BTreeMap<&'static str, Result<Measured, String>> {
        // Within one card there is no link to fail.
        let Some(prover) = self.prover.as_ref().filter(|_| proof.from != proof.to) else { return BTreeMap::new() };
        let routes: Vec<Route> = candidates.iter().copied().filter(|route| route.needs_peer_access()).collect();
        if routes.is_empty() {
            return BTreeMap::new();
        }
        let results = prover.prove(&self.machine, proof, &routes);
        routes.iter().map(|route| route.name()).zip(results).collect()
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

/// Kernels of each role that are known before the shapes: those of the features, and the memory checks. [`set_up_once`] finds
/// those of the model's programs.
struct RoleKernels {
    data: Vec<&'static Kernel>,
    model: Vec<&'static Kernel>,
}

impl RoleKernels {
    fn of(arithmetic: Arithmetic) -> RoleKernels {
        let settings = FeatureSettings { arithmetic, ..FeatureSettings::default() };
        let features = tandem_audio::kernels::kernels_for(&settings);
        let data = [&features[..], &tandem_feed::kernels::kernels_for(&SPEECH)[..], kernels::KERNELS].concat();
        RoleKernels { data, model: kernels::KERNELS.to_vec() }
    }
}

fn read(machine: &Machine, host: HostFacts) -> Result<Hardware, DeviceError> {
    let hidden = |index: usize| machine.cards()[index].hidden_by.is_some();
    let facts = |index: usize| {
        let card = machine.cards()[index].clone();
        // A hidden card need not answer: it is refused by name if it is requested.
        let reading = if hidden(index) { machine.read(index).unwrap_or_default() } else { machine.read(index)? };
        Ok(CardFacts { card, reading, driver: machine.known_driver_cost(), numa: machine.numa_node(index) })
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
        visibility: machine.visibility(),
        host,
        driver_error: None,
        searched_paths: Vec::new(),
        peer: (0..count).map(row).collect::<Result<_, _>>()?,
        world: World::ALONE,
        ranks_share_cards: false,
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

#[cfg(test)]
mod tests {
    use tandem_device::bytes::MIB;
    use tandem_device::sim::SimFault;

    use super::*;

    #[test]
    fn the_memory_of_the_programs_does_not_depend_on_that_of_the_context() {
        let taken = |spec: SimSpec| {
            let settings = Settings::new().with(&[("model-size", "nano"), ("batch-size", "2")]).unwrap();
            let resolved = Inventory::survey(Some(spec)).unwrap().resolve(&settings, None).unwrap();
            let programs = SpeechModels::of(None).programs(&resolved.plan).unwrap();
            set_up_once(&resolved.machine, 0, programs.set).unwrap()
        };
        let spec = SimSpec::new(1, 24 << 30);
        let small = taken(spec.clone());
        assert!((1..100 * MIB).contains(&small), "{small}");
        assert_eq!(taken(SimSpec { hides_process_memory: true, ..spec.clone() }), small);
        assert_eq!(taken(spec.with_fault(SimFault::DriverGrows(64 * MIB))), small, "a pair has a larger context");
    }
}
