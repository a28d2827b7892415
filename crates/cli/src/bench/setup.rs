//! The ground a benchmark stands on: the plan of the flags, the corpus if one was named, and what is left behind.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use tandem_bench::benchmarks::BenchContext;
use tandem_device::DeviceKind;
use tandem_events::Emitter;
use tandem_feed::{CacheKind, CacheSpec, TrainingSet};
use tandem_launch::inventory::{Inventory, Resolved, host_facts};
use tandem_plan::setting::Id;

use super::BenchArgs;
use crate::data::FoundCorpus;
use crate::exit::Exit;
use crate::plan::resolve;
use crate::screen::Screen;

/// Everything that is found before anything is measured.
pub(super) struct BenchSetup {
    pub(super) resolved: Resolved,
    pub(super) corpus: Option<FoundCorpus>,
    /// `--bench-dir`, made.
    pub(super) folder: Option<PathBuf>,
    pub(super) site: BenchContext,
}

impl BenchSetup {
    /// Resolves the plan as `plan` does.
    pub(super) fn find(call: &BenchArgs, screen: &Screen) -> Result<BenchSetup, Exit> {
        let (resolved, corpus) = resolve(&call.plan, screen)?;
        BenchSetup::of(resolved, corpus, call)
    }

    /// Tries the way across, and makes the folder.
    pub(super) fn of(
        mut resolved: Resolved,
        corpus: Option<FoundCorpus>,
        call: &BenchArgs,
    ) -> Result<BenchSetup, Exit> {
        resolved.try_transfer().context("cannot try the transfer between the roles")?;
        if let Some(folder) = &call.folder {
            fs::create_dir_all(folder).map_err(|error| {
                Exit::Usage(format!("❌ --bench-dir: the folder cannot be made ({error}): {}", folder.display()))
            })?;
        }
        let site = site_of(&resolved, call);
        Ok(BenchSetup { resolved, corpus, folder: call.folder.clone(), site })
    }

    /// What the plan decided differently from what one might expect.
    pub(super) fn say_notes(&self, screen: &Screen) {
        self.resolved.plan.notes.iter().for_each(|note| screen.warn(note.trim_start_matches("⚠️ ")));
    }

    /// The same, with somebody who is told.
    pub(super) fn telling(mut self, emitter: Emitter) -> BenchSetup {
        self.site.emitter = emitter;
        self
    }

    /// Nobody is told any more.
    pub(super) fn end(self) -> Resolved {
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
    pub(super) fn material(&self) -> Option<&Arc<TrainingSet>> {
        self.corpus.as_ref().map(|corpus| &corpus.corpora.train)
    }

    /// The cache that was asked for by hand; none was otherwise.
    pub(super) fn asked_cache(&self, call: &BenchArgs) -> Result<Option<CacheSpec>, Exit> {
        if call.plan.settings.given_choice(Id::CachePlan).is_none_or(|word| word == "auto") {
            return Ok(None);
        }
        let cache = &self.resolved.plan.cache;
        let folder = self.folder.as_ref().map(|folder| folder.join("cache"));
        if cache.kind == CacheKind::Disk && folder.is_none() {
            return Err(Exit::Usage("❌ --cache disk: say where, with --bench-dir DIR".to_owned()));
        }
        Ok(Some(CacheSpec { kind: cache.kind, budget_bytes: cache.budget_bytes, folder }))
    }
}

/// The machine, before anything is decided.
pub(super) fn survey(call: &BenchArgs) -> Result<Inventory, Exit> {
    Ok(Inventory::survey(call.plan.sim.clone()).context("cannot read the GPUs")?)
}

fn site_of(resolved: &Resolved, call: &BenchArgs) -> BenchContext {
    let plan = &resolved.plan;
    BenchContext {
        machine: resolved.machine.clone(),
        cards: [plan.data.card.unwrap_or(0), plan.model.card.unwrap_or(0)],
        route: plan.transfer.route,
        route_why: plan.transfer.why.clone(),
        slots: [plan.feed.data_slots, plan.feed.model_slots],
        pinned_uploads: plan.feed.pinned_uploads,
        threads: [plan.threads as usize, plan.max_threads as usize],
        depth_fixed: call.plan.settings.given(Id::BufferSize).is_some(),
        max_bad_fraction: plan.max_bad_fraction,
        bad_samples: call.folder.as_ref().map(|folder| folder.join("bad_samples.jsonl")),
        emitter: Emitter::none(),
    }
}
