//! Chooses the mode and the card of each role. There is no silent fallback: a request that cannot be met is refused.

use std::fmt;

use tandem_device::bytes::show;
use tandem_events::Role;
use tandem_ranks::World;

use crate::gpu_list::GpuList;
use crate::gpu_name::GpuName;
use crate::hardware::{CardFacts, Hardware};
use crate::refusal::{Reason, Refusal, Suggestion};
use crate::request::Request;
use crate::setting::Id;
use crate::settings::{Origin, Settings};
use crate::value::{Limit, SettingValue};
use crate::visible_cards::explain_visibility;

/// How the roles share the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Both roles on the CPU.
    Cpu,
    /// Both roles on one GPU, two streams and two arenas.
    Single,
    /// One GPU per role.
    Multi,
    /// Both roles on one GPU, as two partitions.
    SharedGpu,
}

impl Mode {
    /// Name in JSON: `cpu`, `single`, `multi`, `shared`.
    pub fn slug(self) -> &'static str {
        match self {
            Mode::Cpu => "cpu",
            Mode::Single => "single",
            Mode::Multi => "multi",
            Mode::SharedGpu => "shared",
        }
    }

    /// Whether both roles are on one device.
    pub fn is_one_device(self) -> bool {
        self != Mode::Multi
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Cpu => "CPU Mode",
            Mode::Single => "Single-GPU Buffered Mode",
            Mode::Multi => "Multi-GPU Mode",
            Mode::SharedGpu => "Shared-GPU Mode",
        })
    }
}

/// Precision of the training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// f32.
    Full,
    /// bf16 compute, f32 master weights.
    Mixed,
}

/// A mode and its cards, checked against the hardware.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// How the roles share the machine.
    pub mode: Mode,
    /// Whether the memory limits are enforced.
    pub isolated: bool,
    /// The card of the data role; `None` on the CPU.
    pub data: Option<usize>,
    /// The card of the model role; `None` on the CPU.
    pub model: Option<usize>,
    /// Precision of the training step.
    pub precision: Precision,
    /// Why this mode and these cards.
    pub why: String,
    /// Other modes this machine could run.
    pub hints: Vec<String>,
}

impl Placement {
    /// Decides where the roles run. Every suggestion of a refusal has been checked by placing it.
    pub fn choose(settings: &Settings, hardware: &Hardware) -> Result<Placement, Refusal> {
        place(settings, hardware)
            .map_err(|refusal| refusal.keep_working(settings, |s| place(&s.apply(settings), hardware).is_ok()))
    }

    /// The card of `role`; `None` on the CPU.
    pub fn card(&self, role: Role) -> Option<usize> {
        match role {
            Role::Data => self.data,
            Role::Model => self.model,
        }
    }
}

/// The lowest compute capability with the tensor cores and memory pools that the kernels need.
const MIN_CAPABILITY: (u32, u32) = (7, 5);

fn place(settings: &Settings, hardware: &Hardware) -> Result<Placement, Refusal> {
    let request = Request::read(settings)?;
    if let (true, Some(error)) = (request != Request::Cpu, &hardware.driver_error) {
        let message = format!("❌ {error}\n   --mode cpu works without it");
        return Err(Refusal::new(Reason::Device, message).suggest(on_the_cpu()));
    }
    let requested = |gpu: &'_ Option<GpuName>| gpu.clone().map(|name| RequestedCard { flag: "gpu", name });
    let world = hardware.world;
    let chosen = match &request {
        Request::Cpu if world.size > 1 => Choice::cpu(&format!("--mode cpu, {world}")),
        Request::Ranks { gpus } => card_of_rank(gpus, hardware)?,
        Request::Unspecified if world.size > 1 && !hardware.cards.is_empty() => card_of_rank(&GpuList::All, hardware)?,
        Request::Unspecified if world.size > 1 => Choice::cpu(&format!("no NVIDIA device found, {world}")),
        _ if world.size > 1 => return Err(not_for_ranks(world)),
        Request::Cpu => Choice::cpu("--mode cpu"),
        Request::Unspecified if hardware.cards.is_empty() => Choice::cpu("no NVIDIA device found"),
        Request::Unspecified => one_card(Mode::Single, None, "no GPU flags given", hardware)?,
        Request::Single { gpu } => one_card(Mode::Single, requested(gpu), "one GPU requested", hardware)?,
        Request::Shared { gpu } => one_card(Mode::SharedGpu, requested(gpu), "--share-gpu", hardware)?,
        Request::SharedPair { data, model } => shared_pair(data, model, hardware)?,
        Request::Pair { data, model } => pair(data, model, settings, hardware)?,
    };
    Ok(Placement {
        mode: chosen.mode,
        isolated: settings.switch(Id::EnableMemoryIsolation),
        data: chosen.data,
        model: chosen.model,
        precision: precision(settings, chosen.model.and_then(|index| hardware.card(index)))?,
        why: if is_measured(settings) { WHY_MEASURED.to_owned() } else { chosen.why },
        hints: hints(&request, hardware),
    })
}

/// The reason a plan gives for a mode that `--mode auto` chose.
const WHY_MEASURED: &str = "--mode auto";

/// Whether `--mode auto` chose the mode and its cards.
fn is_measured(settings: &Settings) -> bool {
    [Id::Mode, Id::ShareGpu, Id::ModelGpu, Id::Gpus]
        .into_iter()
        .any(|id| settings.given(id).is_some_and(|given| given.origin == Origin::Measured))
}

struct Choice {
    mode: Mode,
    data: Option<usize>,
    model: Option<usize>,
    why: String,
}

impl Choice {
    fn cpu(why: &str) -> Choice {
        Choice { mode: Mode::Cpu, data: None, model: None, why: why.to_owned() }
    }
}

/// A card the user asked for, and the flag that named it.
struct RequestedCard {
    flag: &'static str,
    name: GpuName,
}

/// Places both roles on the requested card, or on the one with the most free memory.
fn one_card(mode: Mode, card: Option<RequestedCard>, why: &str, hardware: &Hardware) -> Result<Choice, Refusal> {
    let (card, why) = match card {
        Some(card) => {
            let index = usable(&card, hardware).map_err(|refusal| suggest_cards(refusal, mode, hardware))?;
            (index, format!("{why}: GPU {index}"))
        }
        None => {
            let (index, reason) = most_free_card(hardware)?;
            (index, if hardware.cards.len() > 1 { format!("{why}; {reason}") } else { why.to_owned() })
        }
    };
    Ok(Choice { mode, data: Some(card), model: Some(card), why })
}

/// `--share-gpu` with both flags, which must name one card.
fn shared_pair(data: &GpuName, model: &GpuName, hardware: &Hardware) -> Result<Choice, Refusal> {
    let card = |flag, name: &GpuName| {
        let card = RequestedCard { flag, name: name.clone() };
        usable(&card, hardware).map_err(|refusal| suggest_cards(refusal, Mode::SharedGpu, hardware))
    };
    let (data_card, model_card) = (card("data_gpu", data)?, card("model_gpu", model)?);
    if data_card != model_card {
        return Err(Refusal::usage(format!(
            "❌ --share-gpu puts both roles on one card, but --data-gpu {data} and --model-gpu {model} differ: \
             give one card twice, or remove --share-gpu"
        ))
        .suggest(
            Suggestion::new("both roles on one card")
                .set(Id::ModelGpu, SettingValue::Gpu(data.clone()))
                .set(Id::ShareGpu, SettingValue::Switch(true)),
        ));
    }
    let why = format!("--share-gpu: GPU {data_card}");
    Ok(Choice { mode: Mode::SharedGpu, data: Some(data_card), model: Some(data_card), why })
}

/// How many processes `--gpus` asks for: one for each of its cards, and one without the flag.
pub fn num_ranks(settings: &Settings, hardware: &Hardware) -> Result<u32, Refusal> {
    match Request::read(settings) {
        Ok(Request::Ranks { gpus }) => match named_cards(&gpus, hardware)?.len() {
            0 => Err(too_few_for_ranks(0, hardware)),
            count => Ok(count as u32),
        },
        // What is wrong with other flags is refused with the rest of the plan.
        _ => Ok(1),
    }
}

/// The card of this rank: the one of `gpus` with the rank's number on this machine.
fn card_of_rank(gpus: &GpuList, hardware: &Hardware) -> Result<Choice, Refusal> {
    let (cards, world) = (named_cards(gpus, hardware)?, hardware.world);
    if matches!(gpus, GpuList::Named(_)) && world.size > 1 && cards.len() > world.local_size as usize {
        return Err(Refusal::usage(format!(
            "❌ --gpus {gpus} names {} GPUs, and this machine runs {} ranks: start as many ranks as GPUs",
            cards.len(),
            world.local_size
        ))
        .suggest(Suggestion::new("one GPU for each rank").set(Id::Gpus, SettingValue::Gpus(GpuList::All))));
    }
    // A launcher that shows each rank one GPU has chosen it.
    let is_chosen = cards.len() == 1 && *gpus == GpuList::All && hardware.visibility.is_some();
    match cards.get(if is_chosen { 0 } else { world.local_rank as usize }) {
        Some(card) => {
            let asked = if hardware.world.size > 1 { String::new() } else { format!("--gpus {gpus}: ") };
            let why = format!("{asked}GPU {card}, {world}");
            Ok(Choice { mode: Mode::SharedGpu, data: Some(*card), model: Some(*card), why })
        }
        None => Err(too_few_for_ranks(cards.len(), hardware)),
    }
}

/// The cards of a list, each once.
fn named_cards(gpus: &GpuList, hardware: &Hardware) -> Result<Vec<usize>, Refusal> {
    let GpuList::Named(names) = gpus else { return Ok(usable_cards(hardware).collect()) };
    let mut cards = Vec::with_capacity(names.len());
    for name in names {
        let card = RequestedCard { flag: "gpus", name: name.clone() };
        let card = usable(&card, hardware).map_err(|refusal| suggest_cards(refusal, Mode::Single, hardware))?;
        if cards.contains(&card) && !hardware.ranks_share_cards {
            return Err(Refusal::usage(format!(
                "❌ --gpus {gpus} names GPU {card} twice: each rank has a GPU of its own"
            ))
            .suggest(Suggestion::new("every GPU once").set(Id::Gpus, SettingValue::Gpus(GpuList::All))));
        }
        cards.push(card);
    }
    Ok(cards)
}

fn too_few_for_ranks(found: usize, hardware: &Hardware) -> Refusal {
    let ranks = hardware.world.local_size;
    let message = match found {
        0 => format!("❌ --gpus needs a GPU\n   {}", no_device(hardware)),
        _ => format!(
            "❌ This machine runs {ranks} ranks, usable GPUs: {found}. Start as many ranks as GPUs; a launcher that gives each rank one GPU of its own hides the others"
        ),
    };
    Refusal::new(Reason::TooFewGpus, message + &numbers_line(hardware)).suggest(on_the_cpu())
}

/// Flags for one process, given to several.
fn not_for_ranks(world: World) -> Refusal {
    Refusal::usage(format!(
        "❌ This is {world}: each rank has a GPU of its own, and --gpu, --share-gpu, --data-gpu and --model-gpu name GPUs \
         for one process. Remove them, or name one GPU for each rank of this machine with --gpus 0,1"
    ))
    .suggest(
        Suggestion::new("one rank on each GPU").set(Id::Gpus, SettingValue::Gpus(GpuList::All)).leave_out(&[
            Id::Gpu,
            Id::ShareGpu,
            Id::DataGpu,
            Id::ModelGpu,
            Id::Transfer,
            Id::Mode,
        ]),
    )
}

fn pair(data: &GpuName, model: &GpuName, settings: &Settings, hardware: &Hardware) -> Result<Choice, Refusal> {
    if hardware.cards.len() < 2 {
        return Err(too_few(settings, hardware));
    }
    let requested = |flag, name: &GpuName| RequestedCard { flag, name: name.clone() };
    let cards = [requested("data_gpu", data), requested("model_gpu", model)];
    let given = [data, model].map(|name| find(name, hardware));
    let with_pairs = |refusal: Refusal| suggest_pairs(refusal, given, hardware);
    let [data, model] = [in_range(&cards[0], hardware), in_range(&cards[1], hardware)];
    let (data, model) = (data.map_err(with_pairs)?, model.map_err(with_pairs)?);
    if data == model {
        return Err(Refusal::usage("❌ data_gpu and model_gpu must be different (or add --share-gpu)")
            .suggest(Suggestion::new("both roles on one card").set(Id::ShareGpu, SettingValue::Switch(true))));
    }
    for card in &cards {
        usable(card, hardware).map_err(with_pairs)?;
    }
    let why = format!("--data-gpu {data} --model-gpu {model}");
    Ok(Choice { mode: Mode::Multi, data: Some(data), model: Some(model), why })
}

/// The number of cards that a refusal suggests.
const MAX_SUGGESTED: usize = 2;

/// `refusal` with pairs of usable cards, those that keep most of the `given` ones first.
fn suggest_pairs(refusal: Refusal, given: [Option<usize>; 2], hardware: &Hardware) -> Refusal {
    let cards: Vec<usize> = usable_cards(hardware).collect();
    let with_data = |data: usize| cards.iter().filter(move |model| **model != data).map(move |model| [data, *model]);
    let mut pairs: Vec<[usize; 2]> = cards.iter().flat_map(|data| with_data(*data)).collect();
    pairs.sort_by_key(|pair| pair.iter().zip(given).filter(|(card, given)| Some(**card) != *given).count());
    let suggest = |refusal: Refusal, [data, model]: [usize; 2]| {
        let pair = Suggestion::new("GPUs that this process can use");
        refusal.suggest(pair.set(Id::DataGpu, SettingValue::gpu(data)).set(Id::ModelGpu, SettingValue::gpu(model)))
    };
    let has_pair = !pairs.is_empty();
    let refusal = pairs.into_iter().take(MAX_SUGGESTED).fold(refusal, suggest);
    if has_pair { refusal } else { suggest_cards(refusal, Mode::Single, hardware) }
}

/// `refusal` with usable cards for both roles.
fn suggest_cards(refusal: Refusal, mode: Mode, hardware: &Hardware) -> Refusal {
    let suggest = |refusal: Refusal, card: usize| {
        let suggestion = Suggestion::new("a GPU that this process can use").set(Id::Gpu, SettingValue::gpu(card));
        refusal.suggest(match mode {
            Mode::SharedGpu => suggestion.leave_out(&[Id::DataGpu, Id::ModelGpu]),
            _ => suggestion.leave_out(&SEPARATE_ROLES).leave_out(&[Id::Mode]),
        })
    };
    let refusal = usable_cards(hardware).take(MAX_SUGGESTED).fold(refusal, suggest);
    if usable_cards(hardware).next().is_some() { refusal } else { refusal.suggest(on_the_cpu()) }
}

/// The cards that this process and these kernels can use.
fn usable_cards(hardware: &Hardware) -> impl Iterator<Item = usize> {
    hardware.cards.iter().filter(|facts| unusable(facts).is_none()).map(|facts| facts.card.index)
}

fn too_few(settings: &Settings, hardware: &Hardware) -> Refusal {
    let found = hardware.cards.len();
    let mut message =
        format!("❌ Multi-GPU requires at least 2 GPUs, found {found} (Insufficient GPUs for Multi-GPU Mode)");
    message += &numbers_line(hardware);
    let Some(only) = hardware.cards.first() else {
        message.push_str(&format!("\n   {}", no_device(hardware)));
        return Refusal::new(Reason::TooFewGpus, message).suggest(on_the_cpu());
    };
    message.push_str("\n   One GPU can run both roles: in single mode, or as two partitions with --share-gpu");
    let index = || SettingValue::gpu(only.card.index);
    let alone = Suggestion::new("everything on this GPU")
        .set(Id::Gpu, index())
        .leave_out(&SEPARATE_ROLES)
        .leave_out(&[Id::Mode]);
    let mut partitions = Suggestion::new("both roles on this GPU, as two partitions")
        .set(Id::ShareGpu, SettingValue::Switch(true))
        .set(Id::DataGpu, index())
        .set(Id::ModelGpu, index())
        .leave_out(&[Id::Mode]);
    // Limits for two cards are too large for one.
    for id in [Id::DataGpuMemory, Id::ModelGpuMemory].into_iter().filter(|id| settings.given(*id).is_some()) {
        partitions = partitions.set(id, SettingValue::Limit(Limit::Auto(None)));
    }
    Refusal::new(Reason::TooFewGpus, message).suggest(alone).suggest(partitions)
}

/// The flags that apply only to separate roles.
const SEPARATE_ROLES: [Id; 6] =
    [Id::DataGpu, Id::ModelGpu, Id::ShareGpu, Id::EnableMemoryIsolation, Id::DataGpuMemory, Id::ModelGpuMemory];

fn no_device(hardware: &Hardware) -> String {
    let searched = match hardware.searched_paths.is_empty() {
        true => String::new(),
        false => format!("; searched for libcuda.so.1 in {}", hardware.searched_paths.join(", ")),
    };
    format!("No NVIDIA device found{searched}\n   --mode cpu works")
}

/// The settings that place the roles and limit their memory.
pub const PLACEMENT: [Id; 10] = [
    Id::Mode,
    Id::Gpus,
    Id::DataGpu,
    Id::ModelGpu,
    Id::Gpu,
    Id::ShareGpu,
    Id::EnableMemoryIsolation,
    Id::DataGpuMemory,
    Id::ModelGpuMemory,
    Id::Transfer,
];

/// The same run without any GPU.
pub(crate) fn on_the_cpu() -> Suggestion {
    Suggestion::new("run on the CPU")
        .set(Id::Mode, SettingValue::Choice("cpu"))
        .leave_out(&SEPARATE_ROLES)
        .leave_out(&[Id::Gpu, Id::Gpus, Id::Transfer, Id::MixedPrecision])
}

/// The one card with this name.
fn find(name: &GpuName, hardware: &Hardware) -> Option<usize> {
    let mut named = cards_named(name, hardware);
    named.next().filter(|_| named.next().is_none())
}

fn cards_named(name: &GpuName, hardware: &Hardware) -> impl Iterator<Item = usize> {
    let cards = hardware.cards.iter().map(|facts| &facts.card);
    cards.filter(|card| name.is_name_of(card.index, &card.uuid)).map(|card| card.index)
}

/// The index of the card with the name that was given.
fn in_range(card: &RequestedCard, hardware: &Hardware) -> Result<usize, Refusal> {
    let RequestedCard { flag, name } = card;
    if let Some(index) = find(name, hardware) {
        return Ok(index);
    }
    let last = hardware.cards.len().saturating_sub(1);
    let mut message = format!("❌ Invalid {flag}={name}, ");
    message += &match (name, cards_named(name, hardware).count()) {
        (GpuName::Index(_), _) => format!("must be 0-{last}"),
        (GpuName::Uuid(_), 0) => format!("no GPU has a UUID that begins like this{}", list(hardware)),
        (GpuName::Uuid(_), several) => {
            format!("{several} GPUs have a UUID that begins like this: type more of it{}", list(hardware))
        }
    };
    message += &numbers_line(hardware);
    Err(Refusal::new(Reason::GpuIndex, message))
}

/// How the cards are numbered, if that needs an explanation.
fn numbers_line(hardware: &Hardware) -> String {
    explain_visibility(hardware).map(|numbers| format!("\n   {numbers}")).unwrap_or_default()
}

/// All cards, a line each.
fn list(hardware: &Hardware) -> String {
    let hidden = |facts: &CardFacts| if facts.card.hidden_by.is_some() { ", hidden" } else { "" };
    hardware.cards.iter().map(|facts| format!("\n   {}{}", facts.card, hidden(facts))).collect()
}

/// The index of `card`, if this process and these kernels can use it.
fn usable(card: &RequestedCard, hardware: &Hardware) -> Result<usize, Refusal> {
    if hardware.cards.is_empty() {
        let (name, reason) = (card.name.in_words(), no_device(hardware));
        let message = format!("❌ {name} was requested, but there is no GPU\n   {reason}");
        return Err(Refusal::new(Reason::Device, message));
    }
    let index = in_range(card, hardware)?;
    let Some(facts) = hardware.card(index) else { return Ok(index) };
    let Some(problem) = unusable(facts) else { return Ok(index) };
    let numbers = if facts.card.hidden_by.is_some() { numbers_line(hardware) } else { String::new() };
    Err(Refusal::new(Reason::Device, format!("❌ {problem}{numbers}")))
}

/// Why a card cannot be used; `None` if it can.
fn unusable(facts: &CardFacts) -> Option<String> {
    let card = &facts.card;
    if let Some(by) = &card.hidden_by {
        return Some(format!("{card} is hidden by {by}"));
    }
    let (major, minor) = card.capability;
    let (min_major, min_minor) = MIN_CAPABILITY;
    (card.capability < MIN_CAPABILITY).then(|| {
        format!("{card} has compute capability {major}.{minor}; needed: {min_major}.{min_minor} (8.0 for bf16)")
    })
}

/// The usable card with the most free memory, and a phrase that explains the choice.
fn most_free_card(hardware: &Hardware) -> Result<(usize, String), Refusal> {
    // max_by_key returns the last of equal cards; users expect the first.
    let usable = hardware.cards.iter().rev().filter(|facts| unusable(facts).is_none());
    match usable.max_by_key(|facts| facts.reading.free_bytes) {
        Some(best) => {
            let free = show(best.reading.free_bytes);
            Ok((best.card.index, format!("GPU {} has the most free memory, {free}", best.card.index)))
        }
        None if hardware.cards.is_empty() => {
            let message = format!("❌ A GPU was requested, but there is no GPU\n   {}", no_device(hardware));
            Err(Refusal::new(Reason::Device, message).suggest(on_the_cpu()))
        }
        None => {
            let problems: Vec<String> = hardware.cards.iter().filter_map(unusable).collect();
            let numbers = numbers_line(hardware);
            let message = format!("❌ No usable GPU\n   {}{numbers}\n   --mode cpu works", problems.join("\n   "));
            Err(Refusal::new(Reason::Device, message).suggest(on_the_cpu()))
        }
    }
}

fn precision(settings: &Settings, model: Option<&CardFacts>) -> Result<Precision, Refusal> {
    let has_bf16 = model.is_some_and(|facts| facts.card.has_bf16());
    match (settings.given_switch(Id::MixedPrecision), has_bf16) {
        (Some(true), false) => {
            let found = model.map_or("the CPU kernels are f32 only".to_owned(), |facts| {
                let (major, minor) = facts.card.capability;
                format!("{} has compute capability {major}.{minor}, bf16 needs 8.0", facts.card)
            });
            Err(Refusal::new(Reason::Device, format!("❌ --mixed-precision needs bf16: {found}"))
                .suggest(Suggestion::new("train in f32").set(Id::MixedPrecision, SettingValue::Switch(false))))
        }
        (Some(false), _) | (None, false) => Ok(Precision::Full),
        (_, true) => Ok(Precision::Mixed),
    }
}

fn hints(request: &Request, hardware: &Hardware) -> Vec<String> {
    let mut usable = usable_cards(hardware);
    let (Request::Unspecified, Some(first), Some(second)) = (request, usable.next(), usable.next()) else {
        return Vec::new();
    };
    vec![format!(
        "{} GPUs found: --gpus all trains on all of them; --data-gpu {first} --model-gpu {second} lets one prepare data \
         and one train",
        hardware.cards.len()
    )]
}

#[cfg(test)]
mod tests;
