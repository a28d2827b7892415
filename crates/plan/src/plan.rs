//! The plan: flags, config and hardware resolved into numbers.

use tandem_checkpoint::CheckpointRoom;
use tandem_device::bytes::{MIB, mib_ceil};
use tandem_device::{NumaNode, Strength};
use tandem_events::Role;
use tandem_feed::{Bucket, FeedPlan};
use tandem_model::Preset;
use tandem_ranks::World;

use crate::advice;
use crate::arithmetic::ArithmeticPlan;
use crate::cache::CachePlan;
use crate::corpus::{BucketShapes, CorpusFacts, CorpusPlan};
use crate::gpu_list::GpuList;
use crate::hardware::Hardware;
use crate::memory::by_role;
use crate::model_memory::{ModelCatalog, PlanLine};
use crate::numa;
use crate::placement::{Mode, Precision};
use crate::refusal::Refusal;
use crate::settings::Settings;
use crate::solve::{Detail, draft};
use crate::suggest;
use crate::training::TrainingSettings;
use crate::transfer::TransferPlan;

/// The resolved numbers of a run. A `Plan` exists only if it fits.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// How the roles share the machine.
    pub mode: Mode,
    /// Whether the memory limits are enforced.
    pub isolated: bool,
    /// Whether the cards are simulated.
    pub simulated: bool,
    /// Why this mode and these cards.
    pub why: String,
    /// Other modes this machine could run.
    pub hints: Vec<String>,
    /// The data role.
    pub data: RolePlan,
    /// The model role.
    pub model: RolePlan,
    /// Shapes, slots and upload buffers of the feed.
    pub feed: FeedPlan,
    /// The value of `--buffer-size`.
    pub buffer_size_asked: u64,
    /// Whether the user gave `--buffer-size`: then it is not tuned.
    pub buffer_size_given: bool,
    /// Paths of the data.
    pub sources: Sources,
    /// The corpus; `None` without data.
    pub corpus: Option<CorpusPlan>,
    /// The cache for decoded audio.
    pub cache: CachePlan,
    /// The most bytes of recordings that are fetched ahead from an object store, in host memory; 0 without one.
    pub read_ahead_bytes: u64,
    /// The value of `--read-ahead-mb`, if it was given.
    pub read_ahead_asked_mb: Option<u64>,
    /// The disk space of its checkpoints.
    pub checkpoints: CheckpointRoom,
    /// The fraction of an epoch's recordings that may fail to decode.
    pub max_bad_fraction: f64,
    /// Source of the driver lines: `probed: …`, `table: …`; `None` on the CPU.
    pub driver_source: Option<String>,
    /// Arithmetic of the features.
    pub arithmetic: ArithmeticPlan,
    /// Route of batches to the model device.
    pub transfer: TransferPlan,
    /// Decode threads at startup.
    pub threads: u64,
    /// Maximum number of decode threads that self-tuning may use. Equals `threads` if the user gave `--num-workers`.
    pub max_threads: u64,
    /// Utterances per optimizer step.
    pub batch_size: u64,
    /// Micro-batches per optimizer step.
    pub grad_accum: u64,
    /// This process among those of the run, which share the micro-batches.
    pub world: World,
    /// The value of `--gpus`, if it was given.
    pub gpus: Option<GpuList>,
    /// How long ranks wait for one that does not answer, in seconds.
    pub rank_timeout_s: u64,
    /// Precision of the training step.
    pub precision: Precision,
    /// The preset.
    pub model_size: Preset,
    /// The name of a custom model, for which the preset does not apply; `None` for a preset.
    pub custom_model: Option<String>,
    /// Short description of the model.
    pub model_name: String,
    /// Optimization level.
    pub level: Level,
    /// Length of the run, learning-rate schedule, and where its files go.
    pub training: TrainingSettings,
    /// Longest text, in tokens.
    pub max_text_length: u64,
    /// Longest recording, in frames.
    pub max_mel_frames: u64,
    /// Random seed.
    pub seed: u64,
    /// Longest wait for the data buffer to fill, in seconds.
    pub start_delay_seconds: f64,
    /// Whether batches are padded to a few shapes, all compiled before the first step.
    pub static_shapes: bool,
    /// Values that were changed, and why; printed for the user.
    pub notes: Vec<String>,
    /// Possible improvements, each with the flag to type; at most three.
    pub advice: Vec<String>,
}

/// One role of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolePlan {
    /// The role.
    pub role: Role,
    /// Its card; `None` on the CPU.
    pub card: Option<usize>,
    /// The card's UUID.
    pub uuid: Option<String>,
    /// The card's name, or `CPU`.
    pub name: String,
    /// The card's NUMA node, on a machine with more than one. The feed's threads and its pinned memory are on that of the data
    /// role.
    pub numa: Option<NumaNode>,
    /// Memory limit, everything included.
    pub limit_bytes: u64,
    /// Planned memory: the sum of `lines`.
    pub planned_bytes: u64,
    /// The lines of the memory table, the driver's first.
    pub lines: Vec<PlanLine>,
    /// Size of its arena. It holds every line but the driver's; together with the driver it stays within the limit.
    pub arena_bytes: u64,
    /// The part of the arena that the other role's card may access; 0 unless batches may go from card to card.
    pub peer_bytes: u64,
    /// Memory reserved for the driver.
    pub driver_bytes: u64,
    /// The smallest limit that fits.
    pub smallest_limit_bytes: u64,
    /// How the limit is enforced.
    pub strength: Strength,
}

/// Names of the data, as the user wrote them. URLs are without their secrets: a plan is printed and stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// Training data; empty without it.
    pub train_data: Vec<String>,
    /// Validation data; empty if it is not separate.
    pub val_data: Vec<String>,
    /// The list of excluded utterances.
    pub exclude_ids: Option<String>,
    /// Where to find the speaker of rows that name none in their id.
    pub speaker_id_pattern: Option<String>,
    /// Columns of tables, as `--columns` says them.
    pub columns: Option<String>,
    /// The language of rows that do not name one, if it was given.
    pub lang: Option<String>,
    /// What turns words into symbols, as `--phonemizer` says it.
    pub phonemizer: &'static str,
    /// The lexicon.
    pub lexicon: Option<String>,
    /// What becomes of Persian vowel marks, as `--harakat` says it.
    pub harakat: &'static str,
}

/// Optimization level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// AdamW, constant rate after the warm-up, no clipping, no EMA.
    Basic,
    /// AdamW, cosine decay, gradient clipping, EMA of the weights.
    Enhanced,
}

impl Plan {
    /// Resolves everything, or refuses with suggestions that have all been solved. `corpus` has the lengths of
    /// `--train-data`; `None` without it.
    ///
    /// Cost: a quarter of a second for a million recordings, most of it to count padding.
    pub fn solve(
        settings: &Settings,
        hardware: &Hardware,
        models: &dyn ModelCatalog,
        corpus: Option<&CorpusFacts>,
    ) -> Result<Plan, Refusal> {
        let shapes = BucketShapes::new(corpus);
        let settings = &shapes.with_corpus_lengths(settings);
        let attempt = |settings: &Settings| draft(settings, hardware, models, &shapes, Detail::FitOnly);
        match draft(settings, hardware, models, &shapes, Detail::Full) {
            Ok(mut plan) => {
                plan.advice = advice::for_plan(&plan, settings, hardware, &attempt);
                plan.corpus = shapes.plan(settings, plan.batch_size / plan.grad_accum, true);
                Ok(plan)
            }
            Err(refusal) => Err(suggest::complete(refusal, settings, &attempt, shapes.min_lengths())),
        }
    }

    /// Utterances per micro-batch.
    pub fn micro_batch(&self) -> u32 {
        u32::try_from(self.batch_size / self.grad_accum).unwrap_or(u32::MAX)
    }

    /// Micro-batches of a step on this rank.
    pub fn local_micro_batches(&self) -> usize {
        (self.grad_accum / u64::from(self.world.size)) as usize
    }

    /// The name of the custom model, or of the preset.
    pub fn model_title(&self) -> &str {
        self.custom_model.as_deref().unwrap_or(self.model_size.name())
    }

    /// The utterances of the corpus that cannot train: one entry per reason, with their number.
    pub fn skipped_utterances(&self) -> Vec<String> {
        let Some(corpus) = &self.corpus else { return Vec::new() };
        corpus.left_out.reasons(&corpus.rejected, self.max_mel_frames, self.max_text_length)
    }

    /// Replaces the route of batches, after the planned one failed its test.
    pub fn reroute(&mut self, other: TransferPlan) {
        self.feed.route = other.route;
        self.transfer = other;
        let note = numa::between_nodes_note(self.transfer.route, &self.data, &self.model);
        self.notes.extend(note.filter(|note| !self.notes.contains(note)));
    }

    /// The plan of one role.
    pub fn role(&self, role: Role) -> &RolePlan {
        by_role(role, &self.data, &self.model)
    }

    /// The bucket with the largest batch. A slot for it holds a batch of any bucket.
    pub fn largest_bucket(&self) -> Option<&Bucket> {
        self.feed.buckets.iter().max_by_key(|bucket| self.feed.schema.layout(bucket).bytes)
    }
}

impl RolePlan {
    /// Memory that the role reserves at startup: the driver's part and the arena.
    pub fn reserved_bytes(&self) -> u64 {
        self.driver_bytes + self.arena_bytes
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
    /// Name in flags.
    pub fn slug(self) -> &'static str {
        match self {
            Level::Basic => "basic",
            Level::Enhanced => "enhanced",
        }
    }
}
