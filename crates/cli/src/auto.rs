//! `--mode auto`: times the modes that are possible here, says what it found, and goes on with the fastest.

use std::cell::{Cell, RefCell};

use anyhow::{Context as _, anyhow};
use tandem_bench::auto_mode::{
    Candidate, CandidateOutcome, CandidateResult, CandidateSet, Choice, Contest, TimedRunError, TimedRuns, candidates,
};
use tandem_events::Emitter;
use tandem_launch::inventory::Inventory;
use tandem_plan::setting::Id;
use tandem_plan::{Refusal, Settings};

use crate::args::PlanCall;
use crate::bench::table::TextTable;
use crate::data;
use crate::exit::Exit;
use crate::scratch::Scratch;
use crate::screen::Screen;

/// Whether a mode is to be found by timing.
pub(crate) fn is_asked(settings: &Settings) -> bool {
    settings.given_choice(Id::Mode) == Some("auto")
}

/// The same call with the mode that was found in place of `--mode auto`; none where another mode was asked for, or none.
pub(crate) fn settle(call: &PlanCall, screen: &Screen) -> Result<Option<PlanCall>, Exit> {
    if !is_asked(&call.settings) {
        return Ok(None);
    }
    let survey = || Inventory::survey(call.sim.clone());
    let field = field(call, &survey().context("cannot read the GPUs")?)?;
    // Speech it makes for itself is gone when this is.
    let folder = Scratch::new()?;
    let corpus = data::open_or_make(call, &folder, screen)?;
    let mut trials = TimedRuns::new(&survey, (&corpus.facts, &corpus.corpora), Emitter::none());
    screen.progress(&heading(&field))?;
    let choice = decide(field, &mut trials, rounds(call), screen)?;
    show(&choice, screen)?;
    Ok(Some(PlanCall { settings: choice.taken().candidate.settings.clone(), ..call.clone() }))
}

/// What there is to choose from; a refusal where flags do not go together.
pub(crate) fn field(call: &PlanCall, site: &Inventory) -> Result<CandidateSet, Exit> {
    candidates(&call.settings, &site.hardware).map_err(|refusal| Exit::Refused(Box::new(refusal)))
}

/// How often each mode is timed: on simulated cards once, whose clock depends on nothing.
pub(crate) fn rounds(call: &PlanCall) -> usize {
    if call.sim.is_some() { 1 } else { Contest::ROUNDS }
}

fn heading(field: &CandidateSet) -> String {
    match (&field.asked, field.others.len()) {
        (Some(Ok(candidate)), _) => format!("--mode auto: trying {}, as asked for", candidate.name()),
        (_, 0) => "--mode auto: no GPU to try".to_owned(),
        (_, count) => format!("--mode auto: timing {count} modes, a few batches each..."),
    }
}

/// Times them; each is told as it comes, because it takes its time.
fn decide(field: CandidateSet, trials: &mut TimedRuns<'_>, rounds: usize, screen: &Screen) -> Result<Choice, Exit> {
    let (trials, refused, failed) = (RefCell::new(trials), RefCell::new(None), Cell::new(false));
    let why = |error: TimedRunError| {
        let text = error.to_string();
        match error {
            TimedRunError::Refused(refusal) => drop(refused.borrow_mut().get_or_insert(refusal)),
            TimedRunError::Device(_) | TimedRunError::Run(_) => failed.set(true),
        }
        text
    };
    let mut time = |candidate: &Candidate| {
        let seen = trials.borrow_mut().run(candidate).map_err(why);
        let line = match &seen {
            Ok(seen) => format!("   {}: {:.2} steps/s", candidate.name(), seen.pace.steps_per_s),
            Err(why) => format!("   {}: {why}", candidate.name()),
        };
        // A reader who went away does not stop it.
        let _ = screen.progress(&line);
        seen.map(|seen| seen.pace)
    };
    let mut check = |candidate: &Candidate| trials.borrow_mut().check(candidate).map_err(why);
    let decided = Contest { time: &mut time, check: &mut check, rounds }.decide(field);
    decided.map_err(|lines| {
        let message = format!("--mode auto: no mode is possible here\n   {}", lines.join("\n   "));
        match refused.take().filter(|_| !failed.get()) {
            // What would have to change for the first one is what would have to change.
            Some(refusal) => Exit::Refused(Box::new(Refusal { message: format!("❌ {message}"), ..*refusal })),
            None => Exit::Failed(anyhow!("{message}")),
        }
    })
}

fn show(choice: &Choice, screen: &Screen) -> Result<(), Exit> {
    if let Some(why) = &choice.not_as_asked {
        screen.warn(&format!("--mode auto: not as asked for: {why}"));
    }
    screen.say(&table(choice))?;
    if let Some(sentence) = choice.one_or_two() {
        screen.say(&format!("   {sentence}"))?;
    }
    let taken = &choice.taken().candidate;
    let instead = is_instead(choice);
    let line = format!("{} is taken; without timing: {}", taken.name(), taken.flags());
    match instead {
        Some(why) => screen.warn(&format!("--mode auto: {line} ({why})")),
        None => screen.say(&format!("   {line}"))?,
    }
    Ok(())
}

/// Why something is taken that nobody would have expected: loud, because it is a fallback.
fn is_instead(choice: &Choice) -> Option<String> {
    let failed = choice.entries.iter().find_map(|entry| match &entry.found {
        CandidateOutcome::Impossible(why) => Some(format!("{}: {why}", entry.candidate.name())),
        _ => None,
    });
    match (&choice.not_as_asked, choice.taken().candidate.cards, failed) {
        (Some(_), ..) => Some("in place of what the GPU flags ask for".to_owned()),
        (None, None, Some(failed)) => Some(failed),
        _ => None,
    }
}

/// What was decided from.
fn table(choice: &Choice) -> String {
    let mut table = TextTable::new("--mode auto", &["mode", "steps/s", "middle half", "÷ best", ""]);
    let best = choice.entries.iter().filter_map(CandidateResult::steps_per_s).fold(0.0, f64::max);
    for (at, entry) in choice.entries.iter().enumerate() {
        let [rate, spread, of_best] = match &entry.found {
            CandidateOutcome::StepRate(pace) => [
                format!("{:.2}", pace.steps_per_s),
                format!("{:.2} to {:.2}", pace.low, pace.high),
                format!("{:.3}", pace.steps_per_s / best),
            ],
            CandidateOutcome::Untimed | CandidateOutcome::Impossible(_) => Default::default(),
        };
        let remark = match &entry.found {
            _ if at == choice.taken => "taken".to_owned(),
            CandidateOutcome::Impossible(why) => why.clone(),
            _ => String::new(),
        };
        table.row(vec![entry.candidate.name(), rate, spread, of_best, remark]);
    }
    choice.left_out.iter().for_each(|line| table.note(line.clone()));
    table.show().trim_end().to_owned()
}
