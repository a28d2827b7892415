//! What can happen in a run. In the log each is a JSON object whose `event` field names its kind.

use serde::{Deserialize, Serialize};

use crate::{Role, TimeSpan};

/// Something that happened. Numbers carry their unit in the name; a `card` is an index in the order `nvidia-smi` shows.
///
/// A new kind, or a new field that has a default, may be added freely: readers step over kinds they do not know and
/// ignore fields they do not know. Anything else raises [`VERSION`](crate::VERSION).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum RunEvent {
    /// A run began. The first event of every log.
    RunStarted {
        /// The command, without its flags: `validate`.
        command: String,
        /// The version of the program.
        version: String,
        /// The resolved plan as the JSON document that `plan --json` prints. Text, because the plan has a schema and
        /// a version of its own that this crate need not know; absent where the command has no plan.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        plan_json: Option<String>,
    },
    /// Utterances a run is trained on; a corpus of many comes in several of these.
    TrainingSet {
        /// Utterances there are in all.
        of: u64,
        /// Some of their ids, each in one such event only.
        ids: Vec<String>,
    },
    /// What the devices' clock shows at the moment of this record: the host's own, or one that simulated cards keep. With
    /// it their times are put beside those of the host.
    DeviceClock {
        /// Since that clock began.
        now_ns: u64,
        /// Of which devices: `cpu`, `cuda` or `simulated`.
        devices: String,
    },
    /// A role's memory was reserved. From here on the role lives inside it.
    ArenaReserved {
        /// Whose it is.
        role: Role,
        /// Where it is.
        card: usize,
        /// What the arena holds.
        bytes: u64,
        /// What the role may hold in all.
        limit_bytes: u64,
        /// The part of the limit that context, modules and libraries take.
        driver_bytes: u64,
    },
    /// A role's live bytes against its limit.
    Memory {
        /// Whose they are.
        role: Role,
        /// Where they are.
        card: usize,
        /// Live now.
        used_bytes: u64,
        /// What the role may hold.
        limit_bytes: u64,
        /// The most that was ever live.
        peak_bytes: u64,
    },
    /// A role's live bytes by what they are for: the owners of its memory event, at the same moment.
    MemoryOwners {
        /// Whose they are.
        role: Role,
        /// Live now, by owner.
        owners: std::collections::BTreeMap<String, u64>,
    },
    /// What the process holds in the machine's own memory.
    HostMemory {
        /// Resident.
        bytes: u64,
        /// The part of it that has an owner with a bound: caches, pools, arenas that lie in host memory.
        accounted_bytes: u64,
        /// Of what is accounted for, the page-locked pools: all of it is taken before the first step.
        #[serde(default)]
        pinned_bytes: u64,
        /// What the process could hold before the machine has none left.
        limit_bytes: u64,
    },
    /// What the process holds on a card as the driver counts it.
    Process {
        /// The card.
        card: usize,
        /// Held, by the driver's count.
        bytes: u64,
        /// What it is held against: the role's limit, or the sum of both on a shared card.
        limit_bytes: u64,
    },
    /// An arena refused memory.
    Refused {
        /// Whose arena.
        role: Role,
        /// What was asked for.
        asked_bytes: u64,
        /// What the role may hold.
        limit_bytes: u64,
        /// What it held at that moment.
        in_use_bytes: u64,
        /// What the memory was wanted for.
        owner: String,
    },
    /// Bytes crossed from one card to another.
    Transfer {
        /// How: `peer`, `bounce` or `handover`.
        route: String,
        /// The sending card.
        from: usize,
        /// The receiving card; the same one on a shared card.
        to: usize,
        /// How many.
        bytes: u64,
        /// How long it took.
        ns: u64,
    },
    /// A training step ended.
    Step {
        /// Its number, from 1.
        step: u64,
        /// From the end of the step before to the end of this one.
        wall_ns: u64,
        /// The part of it in which the model had no batch to work on.
        wait_ns: u64,
    },
    /// A training step as the model device's own clock saw it.
    StepWork {
        /// Its number, from 1.
        step: u64,
        /// Its first batch, since the run began, from 0.
        batch: u64,
        /// How many batches it took: more than one where gradients are accumulated.
        batches: u32,
        /// The bucket of its first batch, from 0.
        bucket: u32,
        /// The model stream worked.
        busy_ns: u64,
        /// The model stream had nothing to do because the next batch was not there.
        wait_ns: u64,
        /// When it began to work, on the devices' clock.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        began_ns: Option<u64>,
    },
    /// What the computer worked for this process so far, beside its devices. Told every ten steps of real devices: simulated
    /// ones keep another time.
    HostWork {
        /// Over all cores.
        cpu_ns: u64,
    },
    /// What a step of a bucket takes when its batch is on the model device already.
    ModelOnly {
        /// The bucket, from 0.
        bucket: u32,
        /// The time of a step.
        ns: u64,
    },
    /// How the feed is set from here on. Told when a run starts, and whenever self-tuning changes it.
    FeedSetting {
        /// Decode threads at work.
        threads: u32,
        /// Cores there are for them.
        cores: u32,
        /// Batches made ahead on the data device.
        ahead: u32,
        /// Batch slots towards the model device; those of `ahead` where batches are handed over.
        slots: u32,
        /// How batches cross: `peer`, `bounce` or `handover`.
        route: String,
    },
    /// What a training step learnt. Numbers that are none, which JSON cannot say, are null.
    Learned {
        /// Its number, from 1.
        step: u64,
        /// The epoch its last batch belongs to, from 0.
        epoch: u64,
        /// What was minimised, and its parts by name.
        losses: std::collections::BTreeMap<String, Option<f64>>,
        /// Norm of the gradients before clipping.
        gradient_norm: Option<f64>,
        /// The learning rate.
        lr: f64,
        /// Whether the step changed nothing because a gradient was no number.
        skipped: bool,
    },
    /// The held-out data was looked at.
    Validated {
        /// After which step.
        step: u64,
        /// Utterances that were looked at.
        utterances: u64,
        /// Figures by name.
        figures: std::collections::BTreeMap<String, Option<f64>>,
    },
    /// A checkpoint was written.
    Checkpoint {
        /// Of which step.
        step: u64,
        /// Its bytes.
        bytes: u64,
        /// How long it took.
        ns: u64,
    },
    /// A held-out sentence was spoken with a checkpoint.
    SampleWritten {
        /// Of which step the checkpoint is.
        step: u64,
        /// The wav file, in the folder of the run. The picture lies beside it.
        path: String,
        /// Seconds of speech.
        seconds: f64,
        /// How long speaking and drawing took.
        ns: u64,
    },
    /// A stage of the feed finished its part of a batch.
    Stage {
        /// Which: `load`, `upload`, `features`, `transfer`.
        stage: String,
        /// The batch's number since the run began, from 0.
        batch: u64,
        /// From the beginning of its part to its end.
        ns: u64,
        /// Work done in that time, summed over threads.
        busy_ns: u64,
        /// How long the next stage had nothing to do before it.
        wait_ns: u64,
        /// When devices were at it: for a copy over the host, its two legs. Nothing of work on the host.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        spans: Vec<TimeSpan>,
    },
    /// A check of `validate` has its answer.
    Check {
        /// The heading it stands under, from 1.
        number: u32,
        /// What was checked.
        name: String,
        /// The answer.
        passed: bool,
        /// What was found.
        detail: String,
    },
    /// The process holds more on a card than it may. The run stops.
    Breach {
        /// The card.
        card: usize,
        /// Held, by the driver's count.
        bytes: u64,
        /// What it may hold.
        limit_bytes: u64,
    },
    /// A remark for whoever reads the log.
    Note {
        /// The remark.
        text: String,
    },
    /// The run ended by itself. A log without it ended by force.
    RunEnded {
        /// The exit code of the process.
        exit_code: u8,
        /// Why, in a sentence.
        reason: String,
    },
}

impl RunEvent {
    /// Every kind this version writes, as the log spells it: what a reader needs to tell a record that is *newer*
    /// than itself from one that is broken.
    pub const KINDS: [&str; 24] = [
        "run_started",
        "training_set",
        "device_clock",
        "arena_reserved",
        "memory",
        "memory_owners",
        "host_memory",
        "process",
        "refused",
        "transfer",
        "step",
        "step_work",
        "host_work",
        "model_only",
        "feed_setting",
        "learned",
        "validated",
        "checkpoint",
        "sample_written",
        "stage",
        "check",
        "breach",
        "note",
        "run_ended",
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_what_serde_knows() {
        // Serde's own list of variants is in its complaint about a kind it has never heard of.
        let complaint = serde_json::from_str::<RunEvent>(r#"{"event":"?"}"#).unwrap_err().to_string();
        let known: Vec<&str> = complaint.split('`').skip(1).step_by(2).skip(1).collect();
        assert_eq!(known, RunEvent::KINDS, "from: {complaint}");
    }

    #[test]
    fn an_event_is_a_flat_object_that_names_its_kind() {
        let event = RunEvent::Memory { role: Role::Data, card: 1, used_bytes: 5, limit_bytes: u64::MAX, peak_bytes: 6 };
        let json = r#"{"event":"memory","role":"data","card":1,"used_bytes":5,"limit_bytes":18446744073709551615,"peak_bytes":6}"#;
        assert_eq!(serde_json::to_string(&event).unwrap(), json);
        assert_eq!(serde_json::from_str::<RunEvent>(json).unwrap(), event);
    }

    #[test]
    fn a_run_without_a_plan_says_nothing_of_one() {
        let event = RunEvent::RunStarted { command: "doctor".into(), version: "0.1.0".into(), plan_json: None };
        let json = r#"{"event":"run_started","command":"doctor","version":"0.1.0"}"#;
        assert_eq!(serde_json::to_string(&event).unwrap(), json);
        assert_eq!(serde_json::from_str::<RunEvent>(json).unwrap(), event);
    }

    #[test]
    fn a_field_of_a_later_writer_is_ignored() {
        let read: RunEvent = serde_json::from_str(r#"{"event":"note","text":"hi","mood":"calm"}"#).unwrap();
        assert_eq!(read, RunEvent::Note { text: "hi".into() });
    }
}
