//! One case while it runs: its folder, its choices, its commands, and what went wrong.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use serde_json::Value;

use crate::choices::Choices;
use crate::command::{CommandOutcome, CommandSpec, Deadline, RunningCommand};
use crate::fixtures::{Fixtures, ReferenceRun, TrainingVariant, final_digests};
use crate::kind::CaseId;
use crate::tree::{self, TreeDigest};
use crate::verdict::{Expectation, judge};

/// The most bytes of an output that a failure keeps.
const KEPT_BYTES: usize = 20_000;

/// What all cases share.
#[derive(Debug)]
pub(crate) struct CampaignContext<'a> {
    pub(crate) tandem: PathBuf,
    pub(crate) seed: u64,
    pub(crate) fixtures: Fixtures,
    pub(crate) deadline: Deadline<'a>,
    pub(crate) soak: Duration,
}

/// What a case counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct CaseCounts {
    pub(crate) inputs: u64,
    pub(crate) commands: u64,
    pub(crate) counters: BTreeMap<&'static str, u64>,
    /// What could not be done, and why.
    pub(crate) not_run: BTreeMap<String, u64>,
    pub(crate) peak_rss_bytes: u64,
    /// The command that had it.
    pub(crate) peak_command: String,
    pub(crate) longest_command: Duration,
}

/// A running case.
pub(crate) struct CaseContext<'a> {
    pub(crate) campaign: &'a CampaignContext<'a>,
    pub(crate) id: CaseId,
    pub(crate) choices: Choices,
    pub(crate) counts: CaseCounts,
    /// What went wrong.
    pub(crate) failures: Vec<String>,
    /// The commands so far, and the output of those that failed.
    pub(crate) transcript: String,
    /// The last command, until its output is in the transcript.
    last: Option<CommandOutcome>,
    folder: PathBuf,
}

impl<'a> CaseContext<'a> {
    pub(crate) fn new(campaign: &'a CampaignContext<'a>, id: CaseId, folder: PathBuf) -> anyhow::Result<Self> {
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(CaseContext {
            campaign,
            id,
            choices: Choices::of_case(campaign.seed, id.kind.index(), id.number),
            counts: CaseCounts::default(),
            failures: Vec::new(),
            transcript: String::new(),
            last: None,
            folder,
        })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Writes a file, and the folders above it.
    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> anyhow::Result<PathBuf> {
        let path = self.path(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    pub(crate) fn remove(&self, name: &str) {
        let path = self.path(name);
        let is_folder = fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir());
        let _ = if is_folder { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
    }

    /// Copies the demo corpus into `corpus`.
    pub(crate) fn copy_corpus(&self) -> anyhow::Result<()> {
        tree::copy(&self.campaign.fixtures.corpus(), &self.path("corpus"))
    }

    /// The undisturbed run of `variant`.
    pub(crate) fn reference(&self, variant: TrainingVariant) -> anyhow::Result<Arc<ReferenceRun>> {
        self.campaign.fixtures.reference(variant, self.campaign.deadline)
    }

    /// Notes a failure, after the output of the last command.
    pub(crate) fn fail(&mut self, what: impl Into<String>) {
        let mut what = what.into();
        if let Some(outcome) = self.last.take() {
            self.transcript += &shown(&outcome);
            what += &format!(" [{}]", outcome.words);
        }
        self.transcript += &format!("# FAILED: {what}\n");
        self.failures.push(what);
    }

    pub(crate) fn count(&mut self, name: &'static str) {
        *self.counts.counters.entry(name).or_default() += 1;
    }

    pub(crate) fn not_run(&mut self, what: impl Into<String>) {
        *self.counts.not_run.entry(what.into()).or_default() += 1;
    }

    /// Starts a command that the caller disturbs.
    pub(crate) fn spawn(&mut self, spec: &CommandSpec) -> anyhow::Result<RunningCommand<'a>> {
        self.counts.commands += 1;
        self.transcript += &format!("{}\n", spec.line(&self.campaign.tandem, &self.folder));
        spec.spawn(&self.campaign.tandem, &self.folder, self.campaign.deadline)
    }

    /// Judges a command that has ended.
    pub(crate) fn judge(&mut self, outcome: &CommandOutcome, expected: &Expectation) {
        if outcome.peak_rss_bytes > self.counts.peak_rss_bytes {
            (self.counts.peak_rss_bytes, self.counts.peak_command) = (outcome.peak_rss_bytes, outcome.words.clone());
        }
        self.counts.longest_command = self.counts.longest_command.max(outcome.wall);
        self.last = Some(outcome.clone());
        for what in judge(outcome, expected) {
            self.fail(what);
        }
    }

    /// Runs a command that may end with any documented exit code.
    pub(crate) fn run(&mut self, spec: &CommandSpec) -> anyhow::Result<CommandOutcome> {
        self.run_expecting(spec, &Expectation::default().with_stdout(spec.stdout))
    }

    /// Runs a command and judges its end.
    pub(crate) fn run_expecting(
        &mut self,
        spec: &CommandSpec,
        expected: &Expectation,
    ) -> anyhow::Result<CommandOutcome> {
        let outcome = self.spawn(spec)?.wait()?;
        self.judge(&outcome, expected);
        Ok(outcome)
    }

    /// The one JSON document on standard output. None, and a failure, if it is not that.
    pub(crate) fn document(&mut self, outcome: &CommandOutcome) -> Option<Value> {
        match serde_json::from_slice(&outcome.out) {
            Ok(document) => Some(document),
            Err(error) => {
                self.fail(format!("--json printed no JSON document ({error})"));
                None
            }
        }
    }

    /// Fails if `folder` is not what it was.
    pub(crate) fn unchanged(&mut self, folder: &str, before: &TreeDigest) -> anyhow::Result<()> {
        let after = tree::digest(&self.path(folder))?;
        let differences = tree::differences(before, &after);
        if !differences.is_empty() {
            self.fail(format!("inputs in {folder} were changed: {}", differences.join(", ")));
        }
        Ok(())
    }

    /// Fails unless the last checkpoint in `run` has the bytes of the undisturbed run.
    pub(crate) fn same_bytes(&mut self, run: &str, reference: &ReferenceRun) {
        match final_digests(&self.path(run)) {
            Err(error) => self.fail(format!("the last checkpoint cannot be read: {error:#}")),
            Ok(found) => {
                for (name, digest) in &reference.digests {
                    if found.get(name) != Some(digest) {
                        self.fail(format!("{name} of the last checkpoint differs from that of an undisturbed run"));
                    }
                }
            }
        }
    }
}

/// The end and the output of a command, as comments of a shell.
fn shown(outcome: &CommandOutcome) -> String {
    let tail = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(KEPT_BYTES)..]).into_owned();
        text.lines().map(|line| format!("#   {line}\n")).collect::<String>()
    };
    let (wall, out, err) = (outcome.wall.as_secs_f64(), tail(&outcome.out), tail(&outcome.err));
    format!("# {:?} after {wall:.1} s; standard output:\n{out}# standard error:\n{err}", outcome.ended)
}
