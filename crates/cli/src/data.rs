//! The corpus of a run: opened, measured, split and surveyed before the plan is made.
//!
//! A path that is no corpus, or a list that cannot be read, is a slip of the fingers: exit code 2. Rows that cannot be
//! measured are left out, and the plan counts them; `-v` names them.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use tandem_corpus::{CorpusError, Dataset, LengthIndex, OpenOptions, SampleIndex};
use tandem_feed::{TrainingSet, scan_lengths};
use tandem_launch::demo;
use tandem_launch::inventory::host_facts;
use tandem_launch::launch::Corpora;
use tandem_plan::setting::Id;
use tandem_plan::{CorpusFacts, Settings, quoted, training_set_options};

use crate::args::PlanCall;
use crate::corpus::check::lengths_folder;
use crate::corpus::hush_decoders;
use crate::exit::Exit;
use crate::scratch::Scratch;
use crate::screen::Screen;

/// More threads do not ask for lengths faster.
const MAX_SCANNERS: usize = 8;

/// A corpus that was found where `--train-data` points.
pub(crate) struct FoundCorpus {
    /// What the plan must know of it.
    pub(crate) facts: CorpusFacts,
    /// What is trained on, and what is held out.
    pub(crate) corpora: Corpora,
}

/// The corpus the settings name; when they name none, synthetic speech in `folder`.
pub(crate) fn open_or_make(call: &PlanCall, folder: &Scratch, screen: &Screen) -> Result<FoundCorpus, Exit> {
    open(call, screen)?.map_or_else(|| make(call, folder), Ok)
}

/// Synthetic speech in `folder`.
pub(crate) fn make(call: &PlanCall, folder: &Scratch) -> Result<FoundCorpus, Exit> {
    let (facts, corpora) = demo::corpora(&folder.path().join("speech"), &call.settings).map_err(anyhow::Error::new)?;
    Ok(FoundCorpus { facts, corpora })
}

/// The corpus the settings name; none when they name none.
pub(crate) fn open(call: &PlanCall, screen: &Screen) -> Result<Option<FoundCorpus>, Exit> {
    let settings = &call.settings;
    let Some(name) = settings.text(Id::TrainData) else { return Ok(None) };
    hush_decoders();
    let train = read(call, screen, Id::TrainData, &name)?;
    let mut elsewhere = None;
    let (rows, mut held_out) = match settings.text(Id::ValData) {
        Some(name) => {
            let validation = read(call, screen, Id::ValData, &name)?;
            let rows = validation.eval_rows();
            elsewhere = Some(Arc::new(validation));
            (train.train_rows(), rows)
        }
        None => {
            let split = train.split(settings.count(Id::Seed));
            (split.train, split.eval)
        }
    };
    held_out.sort_unstable();
    let num_excluded = train.num_excluded();
    let material = survey(train, &rows, settings)?;
    let mut facts = CorpusFacts::of(name, &material);
    (facts.num_validation, facts.num_excluded) = (held_out.len(), num_excluded);
    let dataset = elsewhere.unwrap_or_else(|| Arc::clone(material.dataset()));
    Ok(Some(FoundCorpus { facts, corpora: Corpora { train: Arc::new(material), held_out: (dataset, held_out) } }))
}

/// Reads the lists of a corpus and finds the lengths they do not give.
fn read(call: &PlanCall, screen: &Screen, id: Id, name: &str) -> Result<Dataset, Exit> {
    let exclude_ids = call.settings.text(Id::ExcludeIds).map(PathBuf::from);
    let options = OpenOptions { speaker_pattern: None, exclude_ids };
    let dataset = Dataset::open(name, &options).map_err(|error| not_opened(&error, id, &options))?;
    let found = dataset.problems().to_vec();
    let (folder, kept) = lengths_in(&call.settings);
    let (mut index, _) = LengthIndex::open(&folder, &dataset);
    let mut ticker = screen.ticker("Lengths");
    let scanned = scan_lengths(dataset, &mut index, host_facts().cores.min(MAX_SCANNERS), |progress| {
        ticker.show(progress.done, progress.total);
        ControlFlow::Continue(())
    });
    drop(ticker);
    let scanned = scanned.context("lengths could not be found")?;
    if kept && let Err(error) = index.save() {
        screen.warn(&format!("the lengths that were found are not kept: {error}"));
    }
    let num_problems = found.len() + scanned.problems.len();
    if num_problems > 0 {
        let typed = quoted(name);
        screen
            .warn(&format!("--{}: {num_problems} problems, named by `tandem corpus check {typed}`", id.setting().flag));
    }
    if call.verbose {
        let flag = id.setting().flag;
        let place = if kept { "kept in" } else { "not kept: there is no folder" };
        let run = run_folder(&call.settings);
        let folder = if kept { folder.as_path() } else { run.as_path() };
        let measured = scanned.measured;
        screen.progress(&format!("--{flag}: {measured} recordings measured, {place} {}", folder.display()))?;
        found.iter().chain(&scanned.problems).for_each(|problem| screen.warn(&problem.to_string()));
    }
    Ok(scanned.dataset)
}

/// Where known lengths are looked for, and whether new ones are kept there: with the run, once it has a folder. What
/// `corpus check` has found is used until then, and left alone.
fn lengths_in(settings: &Settings) -> (PathBuf, bool) {
    let run = run_folder(settings);
    if run.is_dir() { (run, true) } else { (lengths_folder().unwrap_or_default(), false) }
}

fn run_folder(settings: &Settings) -> PathBuf {
    settings.text(Id::CheckpointDir).unwrap_or_default().into()
}

fn survey(dataset: Dataset, rows: &[SampleIndex], settings: &Settings) -> Result<TrainingSet, Exit> {
    Ok(TrainingSet::survey(Arc::new(dataset), rows, &training_set_options(settings))
        .context("the corpus cannot be used")?)
}

fn not_opened(error: &CorpusError, id: Id, options: &OpenOptions) -> Exit {
    let id = match error {
        CorpusError::Read { path, .. } if Some(path) == options.exclude_ids.as_ref() => Id::ExcludeIds,
        _ => id,
    };
    let flag = id.setting().flag;
    let help = match id {
        Id::ExcludeIds => "a text file with an id per line",
        _ => "a corpus to try things on: tandem corpus demo -o DIR",
    };
    Exit::Usage(format!("❌ --{flag}: {error}\n   {help}"))
}
