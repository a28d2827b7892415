//! What a benchmark runs with: the plan of its flags, the corpus if one was given, the folder for its files.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use tandem_bench::benchmarks::BenchContext;
use tandem_device::DeviceKind;
use tandem_events::Emitter;
use tandem_feed::{CacheSpec, TrainingSet};
use tandem_launch::inventory::{Inventory, Resolved, host_facts};
use tandem_launch::launch::feed_cores;
use tandem_plan::setting::Id;

use super::BenchArgs;
use crate::data::FoundCorpus;
use crate::exit::Exit;
use crate::pair_checks;
use crate::plan;
use crate::screen::Screen;

/// Everything that is resolved before measuring.
pub(super) struct BenchSetup {
    pub(super) resolved: Resolved,
    pub(super) corpus: Option<FoundCorpus>,
    /// `--bench-dir`, created.
    pub(super) folder: Option<PathBuf>,
    pub(super) context: BenchContext,
}

impl BenchSetup {
    /// Resolves the plan as `tandem plan` does.
    pub(super) fn resolve(args: &BenchArgs, screen: &Screen) -> Result<BenchSetup, Exit> {
        let (resolved, corpus) = plan::resolve(&args.plan, screen)?;
        BenchSetup::new(resolved, corpus, args)
    }

    /// Tests the transfer, and creates the folder.
    pub(super) fn new(
        mut resolved: Resolved,
        corpus: Option<FoundCorpus>,
        args: &BenchArgs,
    ) -> Result<BenchSetup, Exit> {
        resolved.try_transfer().context("the transfer test between the roles failed")?;
        if let Some(folder) = &args.folder {
            fs::create_dir_all(folder).map_err(|error| {
                Exit::Usage(format!("❌ --bench-dir: cannot create the folder ({error}): {}", folder.display()))
            })?;
        }
        let context = bench_context(&resolved, args);
        Ok(BenchSetup { resolved, corpus, folder: args.folder.clone(), context })
    }

    /// Prints the plan's notes as warnings.
    pub(super) fn print_notes(&self, screen: &Screen) {
        self.resolved.plan.notes.iter().for_each(|note| screen.warn(note.trim_start_matches("⚠️ ")));
    }

    /// Sends events to `emitter`.
    pub(super) fn with_emitter(mut self, emitter: Emitter) -> BenchSetup {
        self.context.emitter = emitter;
        self
    }

    /// Ends the setup, and with it its emitter.
    pub(super) fn into_resolved(self) -> Resolved {
        self.resolved
    }

    /// `Benchmark: pipeline on …`
    pub(super) fn heading(&self, name: &str) -> String {
        let plan = &self.resolved.plan;
        let driver = match self.kind() {
            DeviceKind::Cpu => String::new(),
            _ => format!(", driver {}", self.resolved.machine.driver_version()),
        };
        let (mode, cores) = (plan.mode, host_facts().cores);
        format!("Benchmark:   {name} on {}{driver}, {cores} cores; {mode}, {}", plan.model.name, plan.transfer)
    }

    pub(super) fn kind(&self) -> DeviceKind {
        self.resolved.machine.kind()
    }

    /// The corpus of `--train-data`.
    pub(super) fn training_set(&self) -> Option<&Arc<TrainingSet>> {
        self.corpus.as_ref().map(|corpus| &corpus.corpora.train)
    }

    /// The cache that `--cache` requests. None for `auto`.
    pub(super) fn requested_cache(&self, args: &BenchArgs) -> Result<Option<CacheSpec>, Exit> {
        if args.plan.settings.given_choice(Id::Cache).is_none_or(|word| word == "auto") {
            return Ok(None);
        }
        match (self.resolved.plan.cache.spec.clone(), &self.folder) {
            (CacheSpec::Disk { budget_bytes, .. }, Some(folder)) => {
                Ok(Some(CacheSpec::Disk { budget_bytes, folder: folder.join("cache") }))
            }
            (CacheSpec::Disk { .. }, None) => {
                Err(Exit::Usage("❌ --cache disk needs a folder: add --bench-dir DIR".to_owned()))
            }
            (other, _) => Ok(Some(other)),
        }
    }
}

/// Surveys the machine.
pub(super) fn survey(args: &BenchArgs) -> Result<Inventory, Exit> {
    Ok(pair_checks::survey(&args.plan).context("cannot read the GPUs")?)
}

fn bench_context(resolved: &Resolved, args: &BenchArgs) -> BenchContext {
    let plan = &resolved.plan;
    BenchContext {
        machine: resolved.machine.clone(),
        cards: [plan.data.card.unwrap_or(0), plan.model.card.unwrap_or(0)],
        arithmetic: plan.arithmetic.arithmetic,
        route: plan.transfer.route,
        route_why: plan.transfer.why.clone(),
        verify_every: plan.feed.verify_every,
        cores: feed_cores(plan),
        slots: [plan.feed.data_slots, plan.feed.model_slots],
        pinned_uploads: plan.feed.pinned_uploads,
        threads: [plan.threads as usize, plan.max_threads as usize],
        depth_fixed: args.plan.settings.given(Id::BufferSize).is_some(),
        max_bad_fraction: plan.max_bad_fraction,
        bad_samples: args.folder.as_ref().map(|folder| folder.join(tandem_checkpoint::BAD_SAMPLES)),
        emitter: Emitter::none(),
    }
}
