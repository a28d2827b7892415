//! The plan: flags, config and hardware resolved into numbers, with no options left in it.

use tandem_device::Strength;
use tandem_device::bytes::{MIB, POOL_GRANULE, mib_ceil, round_up};
use tandem_events::Role;
use tandem_feed::{Bucket, FeedPlan};

use crate::advice;
use crate::cache::CachePlan;
use crate::corpus::{BucketShapes, CorpusFacts, CorpusPlan};
use crate::hardware::Hardware;
use crate::memory::by_role;
use crate::placement::{Mode, Precision};
use crate::refusal::Refusal;
use crate::settings::Settings;
use crate::solve::{Care, draft};
use crate::suggest;
use crate::training::TrainingSettings;
use crate::transfer::TransferPlan;
use crate::workload::{ModelSize, PlanLine, Workloads};

/// Everything a run is: where, how much, how many. Holding one means that it fits.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// How the roles share the machine.
    pub mode: Mode,
    /// Whether the limits are hard ones.
    pub isolated: bool,
    /// Whether the cards are simulated.
    pub simulated: bool,
    /// Why this mode and these cards.
    pub why: String,
    /// What else this machine could do.
    pub hints: Vec<String>,
    /// The data role.
    pub data: RolePlan,
    /// The model role.
    pub model: RolePlan,
    /// What the feed holds: shapes, slots, uploads.
    pub feed: FeedPlan,
    /// What `--buffer-size` says.
    pub buffer_size_asked: u64,
    /// Whether that was given by hand: then it is not tuned.
    pub buffer_size_given: bool,
    /// Where the data is.
    pub sources: Sources,
    /// What is trained on; none without data.
    pub corpus: Option<CorpusPlan>,
    /// Where decoded audio is kept.
    pub cache: CachePlan,
    /// The share of an epoch's recordings that may turn out bad.
    pub max_bad_fraction: f64,
    /// Where the driver lines come from: `probed: …`, `table: …`; none on the CPU.
    pub driver_source: Option<String>,
    /// How batches cross.
    pub transfer: TransferPlan,
    /// Decode threads at start.
    pub threads: u64,
    /// Decode threads at most, where waiting asks for more. Given by hand, it is the number at start.
    pub max_threads: u64,
    /// Utterances of an optimizer step.
    pub batch_size: u64,
    /// Micro-batches of an optimizer step.
    pub grad_accum: u64,
    /// How the step computes.
    pub precision: Precision,
    /// The preset.
    pub model_size: ModelSize,
    /// The name of the model, where it is none of the presets: then the preset means nothing.
    pub own_model: Option<String>,
    /// What the model calls itself.
    pub model_name: String,
    /// How it is optimized.
    pub level: Level,
    /// How long it goes on, how fast it learns, and where it is kept.
    pub training: TrainingSettings,
    /// Longest text, in tokens.
    pub max_text_length: u64,
    /// Longest recording, in frames.
    pub max_mel_frames: u64,
    /// Where all randomness starts.
    pub seed: u64,
    /// Longest wait for a warm buffer, in seconds.
    pub start_delay_seconds: f64,
    /// Whether batches are padded to few shapes that are all compiled before the first step.
    pub static_shapes: bool,
    /// What was decided differently from what one might expect; said aloud.
    pub notes: Vec<String>,
    /// What could be better, each with the flag to type; three at most.
    pub advice: Vec<String>,
}

/// One role of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolePlan {
    /// Which.
    pub role: Role,
    /// Its card; none on the CPU.
    pub card: Option<usize>,
    /// The card's identity.
    pub uuid: Option<String>,
    /// The card's name, or `CPU`.
    pub name: String,
    /// What it may hold, everything included.
    pub limit_bytes: u64,
    /// What it will hold: the sum of `lines`.
    pub planned_bytes: u64,
    /// What that is made of, the driver's part first.
    pub lines: Vec<PlanLine>,
    /// What its arena reserves: holds every line but the driver's, and with it stays inside the limit.
    pub arena_bytes: u64,
    /// The driver's part.
    pub driver_bytes: u64,
    /// What holds it to its limit.
    pub strength: Strength,
}

/// Where the data is, as it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// What is trained on.
    pub train_data: Option<String>,
    /// What is validated on, where that comes from elsewhere.
    pub val_data: Option<String>,
    /// The list of utterances that are neither.
    pub exclude_ids: Option<String>,
    /// The language of rows that name none.
    pub lang: Option<String>,
}

/// How the model is optimized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// AdamW alone.
    Basic,
    /// With an averaged copy of the weights.
    Enhanced,
}

impl Plan {
    /// Resolves everything, or refuses with what would work instead: every suggestion has been solved. `corpus` is
    /// what was found where `--train-data` points; none without it.
    ///
    /// Cost: a million recordings take a quarter of a second, most of it to count what is padded.
    pub fn solve(
        settings: &Settings,
        hardware: &Hardware,
        workloads: &dyn Workloads,
        corpus: Option<&CorpusFacts>,
    ) -> Result<Plan, Refusal> {
        let shapes = BucketShapes::new(corpus);
        let settings = &shapes.settle(settings);
        let attempt = |settings: &Settings| draft(settings, hardware, workloads, &shapes, Care::Fit);
        match draft(settings, hardware, workloads, &shapes, Care::Whole) {
            Ok(mut plan) => {
                plan.advice = advice::for_plan(&plan, settings, &attempt);
                plan.corpus = shapes.plan(settings, plan.batch_size / plan.grad_accum, true);
                Ok(plan)
            }
            Err(refusal) => Err(suggest::complete(refusal, settings, &attempt, shapes.least())),
        }
    }

    /// Utterances of one batch: a step reads as many batches as gradients are added up over.
    pub fn micro_batch(&self) -> u32 {
        u32::try_from(self.batch_size / self.grad_accum).unwrap_or(u32::MAX)
    }

    /// What the model is called: its own name, or the preset's.
    pub fn model_title(&self) -> &str {
        self.own_model.as_deref().unwrap_or(self.model_size.name())
    }

    /// Batches cross another way from here on: the planned one was tried, and does not deliver.
    pub fn reroute(&mut self, other: TransferPlan) {
        self.feed.route = other.route;
        self.transfer = other;
    }

    /// The plan of one role.
    pub fn role(&self, role: Role) -> &RolePlan {
        by_role(role, &self.data, &self.model)
    }

    /// The shape whose batches are the largest: a slot for one of those holds any other.
    pub fn largest_bucket(&self) -> Option<&Bucket> {
        self.feed.buckets.iter().max_by_key(|bucket| self.feed.schema.layout(bucket).bytes)
    }
}

impl RolePlan {
    /// The driver's part and the arena: what the role takes from the device at start.
    pub fn reserved_bytes(&self) -> u64 {
        self.driver_bytes + self.arena_bytes
    }

    /// The smallest limit that would do.
    pub fn smallest_limit_bytes(&self) -> u64 {
        self.driver_bytes + round_up(self.planned_bytes - self.driver_bytes, POOL_GRANULE)
    }

    /// The limit in MB.
    pub fn limit_mb(&self) -> u64 {
        self.limit_bytes / MIB
    }

    /// The planned sum in MB, rounded up.
    pub fn planned_mb(&self) -> u64 {
        mib_ceil(self.planned_bytes)
    }
}

impl Level {
    /// Its name in flags.
    pub fn slug(self) -> &'static str {
        match self {
            Level::Basic => "basic",
            Level::Enhanced => "enhanced",
        }
    }
}
