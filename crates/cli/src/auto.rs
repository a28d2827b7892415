//! `--mode auto`: times the modes that this machine can run, prints the table, and continues with the fastest.

use std::cell::{Cell, RefCell};

use anyhow::{Context as _, anyhow};
use tandem_bench::auto_mode::{
    Candidate, CandidateOutcome, CandidateResult, CandidateSet, Choice, Contest, TimedRunError, TimedRuns, candidates,
};
use tandem_events::Emitter;
use tandem_launch::inventory::Inventory;
use tandem_plan::setting::Id;
use tandem_plan::{Refusal, Settings};

use crate::args::PlanArgs;
use crate::bench::table::TextTable;
use crate::data;
use crate::exit::Exit;
use crate::pair_checks;
use crate::scratch::Scratch;
use crate::screen::Screen;

/// What a figure of several ranks is made of.
pub(crate) const RANKS_NOTE: &str = "data parallel: the share of one rank is timed; the time to sum gradients is predicted \
     from the measured bandwidth between two GPUs";

/// Whether the settings say `--mode auto`.
pub(crate) fn is_requested(settings: &Settings) -> bool {
    settings.given_choice(Id::Mode) == Some("auto")
}

/// What a command can run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AutoScope {
    /// One process.
    OneProcess,
    /// Also several ranks.
    Ranks,
}

/// The same arguments with the fastest mode in place of `--mode auto`. None without `--mode auto`.
pub(crate) fn choose_mode(args: &PlanArgs, scope: AutoScope, screen: &Screen) -> Result<Option<PlanArgs>, Exit> {
    if let (AutoScope::OneProcess, Some(gpus)) = (scope, args.settings.given_gpus(Id::Gpus)) {
        let one = "this command runs one process: use --share-gpu with --gpu, which is what each rank does";
        return Err(Exit::Usage(format!("❌ --gpus {gpus} is for `train` and `plan`; {one}")));
    }
    if !is_requested(&args.settings) {
        return Ok(None);
    }
    // The run in the folder says how many micro-batches ranks would share.
    let survey = || Ok(pair_checks::survey(args)?.with_run_folder(&args.settings, false));
    let mut candidates = candidates_of(args, &survey().context("cannot read the GPUs")?)?;
    candidates.others.retain(|candidate| scope == AutoScope::Ranks || candidate.ranks.is_empty());
    // Holds the generated corpus until this returns.
    let folder = Scratch::new()?;
    let corpus = data::open_or_generate(args, &folder, screen)?;
    let mut timed_runs = TimedRuns::new(&survey, &corpus.facts, &corpus.corpora, folder.path(), Emitter::none());
    screen.progress(&heading(&candidates))?;
    let choice = decide(candidates, &mut timed_runs, rounds(args), screen)?;
    show(&choice, screen)?;
    Ok(Some(PlanArgs { settings: choice.taken().candidate.settings.clone(), ..args.clone() }))
}

/// The modes to choose from. Refuses contradicting flags.
pub(crate) fn candidates_of(args: &PlanArgs, inventory: &Inventory) -> Result<CandidateSet, Exit> {
    candidates(&args.settings, &inventory.hardware).map_err(|refusal| Exit::Refused(Box::new(refusal)))
}

/// How often each mode is timed. Once on simulated cards: their clock is deterministic.
pub(crate) fn rounds(args: &PlanArgs) -> usize {
    if args.sim.is_some() { 1 } else { Contest::ROUNDS }
}

fn heading(candidates: &CandidateSet) -> String {
    match (&candidates.asked, candidates.others.len()) {
        (Some(Ok(candidate)), _) => format!("--mode auto: trying {}, as requested", candidate.name()),
        (_, 0) => "--mode auto: no GPU found".to_owned(),
        (_, count) => format!("--mode auto: timing {count} modes, a few batches each..."),
    }
}

/// Times the candidates, with a progress line for each.
fn decide(
    candidates: CandidateSet,
    timed_runs: &mut TimedRuns<'_>,
    rounds: usize,
    screen: &Screen,
) -> Result<Choice, Exit> {
    let (timed_runs, refused, failed) = (RefCell::new(timed_runs), RefCell::new(None), Cell::new(false));
    let reason = |error: TimedRunError| {
        let text = error.to_string();
        match error {
            TimedRunError::Refused(refusal) => drop(refused.borrow_mut().get_or_insert(refusal)),
            TimedRunError::Device(_) | TimedRunError::Run(_) | TimedRunError::Nccl(_) => failed.set(true),
        }
        text
    };
    let mut time = |candidate: &Candidate| {
        let timed = timed_runs.borrow_mut().run(candidate).map_err(reason);
        let line = match &timed {
            Ok(timed) => format!("   {}: {:.2} steps/s", candidate.name(), timed.rate.steps_per_s),
            Err(reason) => format!("   {}: {reason}", candidate.name()),
        };
        // A closed output does not stop the timing.
        let _ = screen.progress(&line);
        timed.map(|timed| timed.rate)
    };
    let mut check = |candidate: &Candidate| timed_runs.borrow_mut().check(candidate).map_err(reason);
    let decided = Contest { time: &mut time, check: &mut check, rounds }.decide(candidates);
    decided.map_err(|lines| {
        let message = format!("--mode auto: no mode works on this machine\n   {}", lines.join("\n   "));
        match refused.take().filter(|_| !failed.get()) {
            // The suggestions of the first refusal apply to all.
            Some(refusal) => Exit::Refused(Box::new(Refusal { message: format!("❌ {message}"), ..*refusal })),
            None => Exit::Failed(anyhow!("{message}")),
        }
    })
}

fn show(choice: &Choice, screen: &Screen) -> Result<(), Exit> {
    if let Some(reason) = &choice.not_as_asked {
        screen.warn(&format!("--mode auto: the request cannot be met: {reason}"));
    }
    screen.progress(&table(choice))?;
    if let Some(sentence) = choice.one_or_two() {
        screen.progress(&format!("   {sentence}"))?;
    }
    let chosen = &choice.taken().candidate;
    let line = format!("Using {}. To skip the timing: {}", chosen.name(), chosen.flags());
    match fallback_reason(choice) {
        Some(reason) => screen.warn(&format!("--mode auto: {line} ({reason})")),
        None => screen.progress(&format!("   {line}"))?,
    }
    Ok(())
}

/// Why the choice is a fallback, which is printed as a warning. None where it is not.
fn fallback_reason(choice: &Choice) -> Option<String> {
    let failed = choice.entries.iter().find_map(|entry| match &entry.outcome {
        CandidateOutcome::Impossible(reason) => Some(format!("{}: {reason}", entry.candidate.name())),
        _ => None,
    });
    match (&choice.not_as_asked, choice.taken().candidate.cards, failed) {
        (Some(_), ..) => Some("instead of what the GPU flags request".to_owned()),
        (None, None, Some(failed)) => Some(failed),
        _ => None,
    }
}

/// The measurements behind the choice.
fn table(choice: &Choice) -> String {
    let mut table = TextTable::new("--mode auto", &["mode", "steps/s", "p25 to p75", "÷ best", ""]);
    let best = choice.entries.iter().filter_map(CandidateResult::steps_per_s).fold(0.0, f64::max);
    for (index, entry) in choice.entries.iter().enumerate() {
        let [rate, spread, of_best] = match &entry.outcome {
            CandidateOutcome::StepRate(pace) => [
                format!("{:.2}", pace.steps_per_s),
                format!("{:.2} to {:.2}", pace.low, pace.high),
                format!("{:.3}", pace.steps_per_s / best),
            ],
            CandidateOutcome::Untimed | CandidateOutcome::Impossible(_) => Default::default(),
        };
        let remark = match &entry.outcome {
            _ if index == choice.taken => "chosen".to_owned(),
            CandidateOutcome::Impossible(reason) => reason.clone(),
            _ => String::new(),
        };
        table.row(vec![entry.candidate.name(), rate, spread, of_best, remark]);
    }
    choice.left_out.iter().for_each(|line| table.note(line.clone()));
    if choice.entries.iter().any(|entry| !entry.candidate.ranks.is_empty()) {
        table.note(RANKS_NOTE);
    }
    table.show().trim_end().to_owned()
}
