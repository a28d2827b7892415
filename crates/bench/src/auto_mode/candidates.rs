//! The modes that `--mode auto` can try on a machine.

use tandem_device::Card;
use tandem_plan::setting::Id;
use tandem_plan::{CardFacts, Hardware, Mode, Placement, Reason, Refusal, SettingError, Settings};

/// A mode on certain cards.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// How the roles share the machine.
    pub mode: Mode,
    /// The cards of the data and the model role; none on the CPU.
    pub cards: Option<[usize; 2]>,
    /// The cards of all ranks, if several train together; empty otherwise.
    pub ranks: Vec<usize>,
    /// What to plan with: the user's settings, with this mode in place of `--mode auto`.
    pub settings: Settings,
}

/// The candidates of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct CandidateSet {
    /// The mode that the GPU flags request: taken if it runs. An error says why it is impossible; `None` without GPU flags.
    pub asked: Option<Result<Candidate, String>>,
    /// Timed otherwise, fewest cards first.
    pub others: Vec<Candidate>,
    /// Taken if none of those is possible.
    pub last: Option<Candidate>,
    /// Cards that are not tried, and why.
    pub left_out: Vec<String>,
}

/// The flags that say where roles run.
const PLACES: [Id; 5] = [Id::DataGpu, Id::ModelGpu, Id::Gpu, Id::ShareGpu, Id::Gpus];

impl Candidate {
    /// Its name in tables: `single, GPU 0`, `dual, GPU 1 to GPU 0, isolated`.
    pub fn name(&self) -> String {
        let isolated = if is_isolated(&self.settings) { ", isolated" } else { "" };
        if !self.ranks.is_empty() {
            return format!("data parallel, GPU {}{isolated}", listed(&self.ranks));
        }
        match (self.mode, self.cards) {
            (Mode::Multi, Some([data, model])) => format!("dual, GPU {data} to GPU {model}{isolated}"),
            (mode, Some([card, _])) => format!("{}, GPU {card}{isolated}", mode.slug()),
            (mode, None) => mode.slug().to_owned(),
        }
    }

    /// The flags that request it without measuring: `--mode single --gpu 0`.
    pub fn flags(&self) -> String {
        if !self.ranks.is_empty() {
            return format!("--gpus {}", listed(&self.ranks));
        }
        flags_of(self.mode, self.cards).iter().fold(String::new(), |line, (name, value)| {
            let space = if line.is_empty() { "" } else { " " };
            format!("{line}{space}--{name} {value}").trim_end().to_owned()
        })
    }

    /// Whether both run in the same mode on the same cards.
    pub fn is_same_place(&self, other: &Candidate) -> bool {
        (self.mode, self.cards, &self.ranks) == (other.mode, other.cards, &other.ranks)
    }

    /// How many cards it uses.
    pub fn num_cards(&self) -> usize {
        match self.cards {
            None => 0,
            Some(_) if !self.ranks.is_empty() => self.ranks.len(),
            Some([data, model]) => 1 + usize::from(data != model),
        }
    }
}

/// The candidates of `--mode auto`. Fails if the flags contradict each other, if a device is present but unusable, or if
/// nothing is left to try.
pub fn candidates(settings: &Settings, hardware: &Hardware) -> Result<CandidateSet, Refusal> {
    let given = settings.without(&[Id::Mode]);
    if let Some(gpus) = given.given_gpus(Id::Gpus) {
        return Err(of_usage(format!("--gpus {gpus} says where to train: remove --mode auto, or remove --gpus")));
    }
    let is_asked = PLACES.iter().any(|id| given.given(*id).is_some());
    let placed = Placement::choose(&given, hardware);
    if let Err(refusal) = &placed {
        // Contradicting flags are no request, and a device that is present but unusable is an error. Isolation without GPU
        // flags does not say how to separate the roles: finding that out is the job of this function.
        let can_continue = if is_asked { refusal.kind != Reason::Usage } else { is_isolated(&given) };
        if !can_continue || hardware.driver_error.is_some() {
            return Err(refusal.clone());
        }
    }
    let asked = is_asked.then(|| match &placed {
        Ok(placement) => Ok(of_placement(&given, placement)),
        Err(refusal) => Err(first_line(refusal)),
    });
    let free = given.without(&PLACES);
    let (others, left_out) = on_cards(&free, hardware)?;
    let last = (!is_isolated(&free)).then(|| candidate(&free, Mode::Cpu, None)).transpose().map_err(of_setting)?;
    match placed {
        Err(refusal) if others.is_empty() && last.is_none() => Err(refusal),
        _ => Ok(CandidateSet { asked, others, last, left_out }),
    }
}

fn is_isolated(settings: &Settings) -> bool {
    settings.switch(Id::EnableMemoryIsolation)
}

/// The first line of a refusal, without its sign.
pub(crate) fn first_line(refusal: &Refusal) -> String {
    refusal.message.lines().next().unwrap_or_default().trim_start_matches("❌ ").to_owned()
}

pub(crate) fn of_setting(error: SettingError) -> Refusal {
    of_usage(error.to_string())
}

fn of_usage(problem: String) -> Refusal {
    let message = format!("❌ {problem}");
    Refusal { kind: Reason::Usage, message, demands: Vec::new(), suggestions: Vec::new() }
}

/// The GPU modes, and the cards that none of them uses.
fn on_cards(free: &Settings, hardware: &Hardware) -> Result<(Vec<Candidate>, Vec<String>), Refusal> {
    let mut kinds: Vec<Vec<usize>> = Vec::new();
    for card in usable(free, hardware) {
        match kinds.iter_mut().find(|kind| alike(&hardware.cards[kind[0]].card, &hardware.cards[card].card)) {
            Some(kind) => kind.push(card),
            None => kinds.push(vec![card]),
        }
    }
    let mut found = Vec::new();
    let mut add = |mode, cards| candidate(free, mode, Some(cards)).map(|one| found.push(one)).map_err(of_setting);
    let firsts: Vec<usize> = kinds.iter().map(|kind| kind[0]).collect();
    if !is_isolated(free) {
        firsts.iter().try_for_each(|card| add(Mode::Single, [*card; 2]))?;
    }
    if let Some(card) = firsts.first() {
        add(Mode::SharedGpu, [*card; 2])?;
    }
    for model in &firsts {
        for kind in &kinds {
            if let Some(data) = best_beside(*model, kind, hardware) {
                add(Mode::Multi, [data, *model])?;
            }
        }
    }
    // Ranks of different cards would wait for the slowest.
    if let Some(kind) = kinds.first().filter(|kind| kind.len() > 1 && has_static_shapes(free)) {
        let mut ranks = kind.clone();
        ranks.sort_unstable();
        let settings = free.with_measured(&[("gpus", listed(&ranks))]).map_err(of_setting)?;
        found.push(Candidate { mode: Mode::SharedGpu, cards: Some([ranks[0]; 2]), ranks, settings });
    }
    let tried: Vec<usize> =
        found.iter().flat_map(|one| one.cards.into_iter().flatten().chain(one.ranks.iter().copied())).collect();
    let like = |kind: &Vec<usize>| {
        let spare: Vec<String> = kind.iter().filter(|card| !tried.contains(card)).map(usize::to_string).collect();
        (!spare.is_empty()).then(|| format!("not timed: GPU {} (same as GPU {})", spare.join(", "), kind[0]))
    };
    Ok((found, kinds.iter().filter_map(like).collect()))
}

/// Several ranks train on batches of static shapes only.
fn has_static_shapes(settings: &Settings) -> bool {
    settings.switch(Id::EnableStaticShapes)
}

/// `0,1,3`
fn listed(cards: &[usize]) -> String {
    cards.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// Cards that a run may use, the ones with the most memory free first.
fn usable(free: &Settings, hardware: &Hardware) -> Vec<usize> {
    let can_be_used = |facts: &&CardFacts| {
        let alone = free.without(&[Id::EnableMemoryIsolation, Id::DataGpuMemory, Id::ModelGpuMemory]);
        let alone = alone.with(&[("gpu", facts.card.index.to_string())]);
        alone.is_ok_and(|settings| Placement::choose(&settings, hardware).is_ok())
    };
    let mut cards: Vec<&CardFacts> = hardware.cards.iter().filter(can_be_used).collect();
    cards.sort_by_key(|facts| std::cmp::Reverse(facts.reading.free_bytes));
    cards.iter().map(|facts| facts.card.index).collect()
}

/// Whether two cards take the same time for a step.
fn alike(one: &Card, other: &Card) -> bool {
    (&one.name, one.total_bytes, one.capability) == (&other.name, other.total_bytes, other.capability)
}

/// The card of `kind` for the data role beside `model`: one with peer access to it, else the one with the most free memory.
fn best_beside(model: usize, kind: &[usize], hardware: &Hardware) -> Option<usize> {
    let reaches = |from: usize, to: usize| hardware.peer.get(from).and_then(|row| row.get(to)).copied() == Some(true);
    let others = || kind.iter().copied().filter(|card| *card != model);
    others().find(|card| reaches(*card, model) && reaches(model, *card)).or_else(|| others().next())
}

fn of_placement(given: &Settings, placement: &Placement) -> Candidate {
    let cards = placement.data.zip(placement.model).map(|(data, model)| [data, model]);
    Candidate { mode: placement.mode, cards, ranks: Vec::new(), settings: given.clone() }
}

fn candidate(free: &Settings, mode: Mode, cards: Option<[usize; 2]>) -> Result<Candidate, SettingError> {
    Ok(Candidate { mode, cards, ranks: Vec::new(), settings: free.with_measured(&flags_of(mode, cards))? })
}

fn flags_of(mode: Mode, cards: Option<[usize; 2]>) -> Vec<(&'static str, String)> {
    let [data, model] = cards.unwrap_or_default().map(|card| card.to_string());
    match mode {
        Mode::Cpu => vec![("mode", "cpu".to_owned())],
        Mode::Single => vec![("mode", "single".to_owned()), ("gpu", model)],
        Mode::SharedGpu => vec![("share-gpu", String::new()), ("gpu", model)],
        Mode::Multi => vec![("data-gpu", data), ("model-gpu", model)],
    }
}

#[cfg(test)]
mod tests {
    use tandem_device::{Machine, SimSpec};

    use super::*;
    use tandem_launch::inventory::Inventory;

    fn hardware(spec: &str) -> Hardware {
        Inventory::of(Machine::simulated(spec.parse::<SimSpec>().unwrap())).unwrap().hardware
    }

    fn settings(line: &str) -> Settings {
        let words: Vec<&str> = line.split_whitespace().collect();
        let pairs: Vec<(&str, &str)> = words
            .iter()
            .enumerate()
            .filter(|(_, word)| word.starts_with("--"))
            .map(|(at, word)| {
                (&word[2..], words.get(at + 1).copied().filter(|next| !next.starts_with("--")).unwrap_or(""))
            })
            .collect();
        Settings::new().with(&pairs).unwrap()
    }

    fn names(field: &CandidateSet) -> Vec<String> {
        field.others.iter().map(Candidate::name).collect()
    }

    #[test]
    fn every_kind_of_card_is_tried_and_those_that_are_like_it_are_not() {
        let check = |spec: &str, line: &str, expected: &[&str], left_out: &[&str]| {
            let field = candidates(&settings(line), &hardware(spec)).unwrap();
            assert_eq!(
                (names(&field), field.left_out.as_slice()),
                (expected.iter().map(|s| (*s).to_owned()).collect(), left_out.map_owned().as_slice()),
                "{spec} {line}"
            );
        };
        check("1x24GiB", "--mode auto", &["single, GPU 0", "shared, GPU 0"], &[]);
        let pair = ["single, GPU 0", "shared, GPU 0", "dual, GPU 1 to GPU 0"];
        let with = |more: &'static str| [pair[0], pair[1], pair[2], more];
        check("2x24GiB", "--mode auto", &with("data parallel, GPU 0,1"), &[]);
        check("4x24GiB", "--mode auto", &with("data parallel, GPU 0,1,2,3"), &[]);
        let exact = "--mode auto --disable-static-shapes";
        check("4x24GiB", exact, &pair, &["not timed: GPU 2, 3 (same as GPU 0)"]);
        check("2x24GiB,hidden=1", "--mode auto", &["single, GPU 0", "shared, GPU 0"], &[]);
        let isolated = "--mode auto --enable-memory-isolation";
        let all = ["shared, GPU 0, isolated", "dual, GPU 1 to GPU 0, isolated", "data parallel, GPU 0,1, isolated"];
        check("2x24GiB", isolated, &all, &[]);
    }

    /// So that lists of texts can be compared.
    trait MapOwned {
        fn map_owned(&self) -> Vec<String>;
    }

    impl MapOwned for &[&str] {
        fn map_owned(&self) -> Vec<String> {
            self.iter().map(|text| (*text).to_owned()).collect()
        }
    }

    #[test]
    fn cards_that_differ_are_tried_both_ways() {
        let mut hardware = hardware("2x24GiB");
        hardware.cards[1].card.name = "another".to_owned();
        let field = candidates(&settings("--mode auto"), &hardware).unwrap();
        let expected =
            ["single, GPU 0", "single, GPU 1", "shared, GPU 0", "dual, GPU 1 to GPU 0", "dual, GPU 0 to GPU 1"];
        assert_eq!(names(&field), expected);
    }

    #[test]
    fn a_card_that_reaches_the_model_makes_its_data() {
        let mut hardware = hardware("3x24GiB");
        (hardware.peer[0][2], hardware.peer[2][0]) = (true, true);
        let field = candidates(&settings("--mode auto"), &hardware).unwrap();
        assert!(names(&field).contains(&"dual, GPU 2 to GPU 0".to_owned()), "{field:?}");
    }

    #[test]
    fn what_the_flags_ask_for_comes_first() {
        let asked = |spec: &str, line: &str| candidates(&settings(line), &hardware(spec)).unwrap().asked;
        assert_eq!(asked("2x24GiB", "--mode auto"), None);
        let pair = "--mode auto --data-gpu 1 --model-gpu 0";
        assert_eq!(asked("2x24GiB", pair).unwrap().unwrap().cards, Some([1, 0]));
        assert!(asked("1x24GiB", pair).unwrap().unwrap_err().contains("requires at least 2 GPUs, found 1"));
        assert!(
            asked("2x24GiB", "--mode auto --data-gpu 7 --model-gpu 0").unwrap().unwrap_err().contains("data_gpu=7")
        );
        assert_eq!(asked("2x24GiB", "--mode auto --gpu 1").unwrap().unwrap().flags(), "--mode single --gpu 1");
    }

    #[test]
    fn flags_that_do_not_go_together_are_refused_as_ever() {
        for line in
            ["--mode auto --data-gpu 0", "--mode auto --data-gpu 1 --model-gpu 1", "--mode auto --data-gpu-memory 64"]
        {
            assert_eq!(candidates(&settings(line), &hardware("2x24GiB")).unwrap_err().kind, Reason::Usage, "{line}");
        }
        let mut broken = Hardware::without_cards(tandem_launch::inventory::host_facts());
        broken.driver_error = Some("libcuda.so.1 was not found".to_owned());
        assert_eq!(candidates(&settings("--mode auto"), &broken).unwrap_err().kind, Reason::Device);
    }

    #[test]
    fn the_cpu_is_what_is_left_and_has_no_hard_limits() {
        let bare = Hardware::without_cards(tandem_launch::inventory::host_facts());
        let field = candidates(&settings("--mode auto"), &bare).unwrap();
        assert!(field.others.is_empty());
        assert_eq!(field.last.unwrap().flags(), "--mode cpu");
        assert!(candidates(&settings("--mode auto --enable-memory-isolation"), &bare).is_err());
    }
}
