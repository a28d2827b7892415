//! The events of a run. In the log each is a JSON object whose `event` field names its kind.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Role, TimeSpan};

/// An event of a run. Numbers carry their unit in the name; a `card` is an index in the order of `nvidia-smi`.
///
/// New kinds, and new fields with a default, may be added freely: readers skip kinds they do not know and ignore fields
/// they do not know. Any other change raises [`VERSION`](crate::VERSION). A renamed kind or field keeps its old name as a
/// serde alias, so that logs of earlier versions still read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum RunEvent {
    /// A run started. The first event of every log.
    RunStarted {
        /// The command, without its flags: `validate`.
        command: String,
        /// The version of the program.
        version: String,
        /// The resolved plan, as the JSON document that `plan --json` prints. It is text, because the plan has its own
        /// schema and version, which this crate does not know. Absent for commands without a plan.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        plan_json: Option<String>,
    },
    /// Utterances a run trains on. A large corpus is split over several of these events.
    TrainingSet {
        /// Utterances in total.
        #[serde(alias = "of")]
        utterances: u64,
        /// Some of their ids. Each id is in one event only.
        ids: Vec<String>,
    },
    /// The devices' clock at the time of this record: the host's clock, or the simulated one. It relates device times to
    /// host times.
    DeviceClock {
        /// Nanoseconds since that clock started.
        now_ns: u64,
        /// The kind of devices: `cpu`, `cuda` or `simulated`.
        devices: String,
    },
    /// A role's memory was reserved. All its device memory comes from this arena.
    ArenaReserved {
        /// The role.
        role: Role,
        /// The card.
        card: usize,
        /// Size of the arena.
        bytes: u64,
        /// The role's limit.
        limit_bytes: u64,
        /// The part of the limit that context, modules and libraries take.
        driver_bytes: u64,
    },
    /// A role's live bytes against its limit.
    Memory {
        /// The role.
        role: Role,
        /// The card.
        card: usize,
        /// Live now.
        used_bytes: u64,
        /// The role's limit.
        limit_bytes: u64,
        /// The most that was live at once.
        peak_bytes: u64,
    },
    /// A role's live bytes by owner, at the same time as the `memory` event before it.
    MemoryOwners {
        /// The role.
        role: Role,
        /// Live bytes by owner.
        owners: BTreeMap<String, u64>,
    },
    /// Host memory of the process.
    HostMemory {
        /// Resident set size.
        bytes: u64,
        /// The part of it whose owner has a bound: caches, pools, arenas in host memory.
        accounted_bytes: u64,
        /// The pinned (page-locked) pools, a part of `accounted_bytes`. All of them are allocated before the first step.
        #[serde(default)]
        pinned_bytes: u64,
        /// What the process could hold before the machine runs out of memory.
        limit_bytes: u64,
    },
    /// Memory of the process on a card, as the driver counts it.
    #[serde(rename = "process_memory", alias = "process")]
    ProcessMemory {
        /// The card.
        card: usize,
        /// Bytes in use.
        bytes: u64,
        /// The role's limit, or the sum of both limits on a shared card.
        limit_bytes: u64,
    },
    /// An arena refused an allocation.
    Refused {
        /// The arena's role.
        role: Role,
        /// Bytes asked for.
        asked_bytes: u64,
        /// The role's limit.
        limit_bytes: u64,
        /// Bytes in use at that time.
        in_use_bytes: u64,
        /// The owner that asked.
        owner: String,
    },
    /// Bytes were transferred from one role to the other.
    Transfer {
        /// The route: `peer`, `bounce` or `handover`.
        route: String,
        /// The sending card.
        from: usize,
        /// The receiving card; equal to `from` on a shared card.
        to: usize,
        /// How many.
        bytes: u64,
        /// Duration.
        ns: u64,
    },
    /// The wait before the first step ended: the data buffer was full, or `--model-start-delay` had passed.
    BufferWait {
        /// Batches that were ready.
        ready: u64,
        /// Batches that the buffer holds. With as many ready, it was full.
        of: u64,
        /// Duration of the wait.
        ns: u64,
        /// The first epoch in which every recording is already in the cache; none without a cache.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cached_from_epoch: Option<u64>,
    },
    /// A training step ended.
    Step {
        /// Its number, from 1.
        step: u64,
        /// Time from the end of the previous step to the end of this one.
        wall_ns: u64,
        /// The part of it in which the model had no batch.
        wait_ns: u64,
    },
    /// How long each rank waited for the others in a training step, by the host's clock. Ranks exchange their waits at the
    /// start of the next step, so this event precedes the `step` event of that one. A run with one rank has none.
    RankWaits {
        /// The step they waited in, from 1. Directly after a resume it is the last step of the previous log.
        step: u64,
        /// Waits by rank. The rank that waits least is the slowest: the others wait for it.
        waited_ns: Vec<u64>,
    },
    /// Device time of a training step, by the model device's clock.
    StepWork {
        /// Its number, from 1.
        step: u64,
        /// Its first batch, counted from 0 since the run started.
        batch: u64,
        /// Its number of batches: more than one with gradient accumulation.
        batches: u32,
        /// The bucket of its first batch, from 0.
        bucket: u32,
        /// Time in which the model stream worked.
        busy_ns: u64,
        /// Time in which the model stream was idle because the next batch was not ready.
        wait_ns: u64,
        /// When its work started, on the devices' clock.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        began_ns: Option<u64>,
    },
    /// CPU time of the process so far. Emitted every ten steps, on real devices only: simulated ones have another clock.
    #[serde(rename = "cpu_time", alias = "host_work")]
    CpuTime {
        /// Over all cores.
        cpu_ns: u64,
    },
    /// The time of a step in a bucket when its batch is already on the model device.
    #[serde(alias = "headspace")]
    ModelOnly {
        /// The bucket, from 0.
        bucket: u32,
        /// Time of a step.
        ns: u64,
    },
    /// The feed's settings from here on. Emitted when a run starts, and when self-tuning changes them.
    FeedSetting {
        /// Decode threads.
        threads: u32,
        /// Cores available to them.
        cores: u32,
        /// Batches buffered on the data device.
        #[serde(alias = "ahead")]
        buffer_size: u32,
        /// Batch slots on the model device. With a hand-over they are part of the buffered batches.
        #[serde(alias = "slots")]
        prefetch: u32,
        /// The transfer route: `peer`, `bounce` or `handover`.
        route: String,
    },
    /// Losses and gradient norm of a training step. Non-finite numbers, which JSON cannot express, are null.
    #[serde(rename = "step_metrics", alias = "learned")]
    StepMetrics {
        /// Its number, from 1.
        step: u64,
        /// The epoch of its last batch, from 0.
        epoch: u64,
        /// The total loss, and its terms by name.
        losses: BTreeMap<String, Option<f64>>,
        /// Gradient norm before clipping.
        gradient_norm: Option<f64>,
        /// The learning rate.
        lr: f64,
        /// Whether the update was skipped because a gradient was not finite.
        skipped: bool,
    },
    /// The validation set was evaluated.
    #[serde(rename = "validation", alias = "validated")]
    Validation {
        /// After which step.
        step: u64,
        /// Utterances that were evaluated.
        utterances: u64,
        /// Metrics by name.
        #[serde(alias = "figures")]
        metrics: BTreeMap<String, Option<f64>>,
    },
    /// A checkpoint was written.
    Checkpoint {
        /// Of which step.
        step: u64,
        /// Size of all its files.
        bytes: u64,
        /// Duration of writing.
        ns: u64,
    },
    /// A validation sentence was synthesised with a checkpoint.
    SampleWritten {
        /// The checkpoint's step.
        step: u64,
        /// The wav file, in the run's folder. The pictures are next to it.
        path: String,
        /// Length of the speech.
        seconds: f64,
        /// Duration of synthesising and drawing.
        ns: u64,
    },
    /// A stage of the feed finished its part of a batch.
    Stage {
        /// The stage: `load`, `upload`, `features` or `transfer`.
        stage: String,
        /// The batch, counted from 0 since the run started.
        batch: u64,
        /// Time from the start of its part to the end.
        ns: u64,
        /// Work done in that time, summed over threads.
        busy_ns: u64,
        /// How long the next stage was idle before it.
        wait_ns: u64,
        /// When devices worked on it; two spans for a copy through the host. Empty for work on the host.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        spans: Vec<TimeSpan>,
    },
    /// A check of `validate` has a result.
    Check {
        /// The heading it belongs to, from 1.
        number: u32,
        /// What was checked.
        name: String,
        /// The result.
        passed: bool,
        /// Details.
        detail: String,
    },
    /// The process uses more memory on a card than its limit. The run stops.
    #[serde(rename = "limit_exceeded", alias = "breach")]
    LimitExceeded {
        /// The card.
        card: usize,
        /// Bytes in use, as the driver counts them.
        bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// A remark for people who read the log.
    Note {
        /// The remark.
        text: String,
    },
    /// The run ended. A log without this event belongs to a run that was killed.
    RunEnded {
        /// The exit code of the process.
        exit_code: u8,
        /// Why, in a sentence.
        reason: String,
    },
}

impl RunEvent {
    /// Every kind this version reads, as the log spells it, old names included. With it a reader tells a record that is
    /// *newer* than itself from a broken one.
    pub const KINDS: [&str; 32] = [
        "run_started",
        "training_set",
        "device_clock",
        "arena_reserved",
        "memory",
        "memory_owners",
        "host_memory",
        "process_memory",
        "process",
        "refused",
        "transfer",
        "buffer_wait",
        "step",
        "rank_waits",
        "step_work",
        "cpu_time",
        "host_work",
        "model_only",
        "headspace",
        "feed_setting",
        "step_metrics",
        "learned",
        "validation",
        "validated",
        "checkpoint",
        "sample_written",
        "stage",
        "check",
        "limit_exceeded",
        "breach",
        "note",
        "run_ended",
    ];
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn kinds_are_what_serde_knows() {
        // Serde lists the variants, with their aliases, in its error about an unknown one.
        let error = serde_json::from_str::<RunEvent>(r#"{"event":"?"}"#).unwrap_err().to_string();
        let known: BTreeSet<&str> = error.split('`').skip(1).step_by(2).skip(1).collect();
        assert_eq!(known, BTreeSet::from(RunEvent::KINDS), "from: {error}");
    }

    #[test]
    fn an_event_is_a_flat_object_that_names_its_kind() {
        let event = RunEvent::Memory { role: Role::Data, card: 1, used_bytes: 5, limit_bytes: u64::MAX, peak_bytes: 6 };
        let json = r#"{"event":"memory","role":"data","card":1,"used_bytes":5,"limit_bytes":18446744073709551615,"peak_bytes":6}"#;
        assert_eq!(serde_json::to_string(&event).unwrap(), json);
        assert_eq!(serde_json::from_str::<RunEvent>(json).unwrap(), event);
    }

    #[test]
    fn a_run_without_a_plan_has_no_plan_field() {
        let event = RunEvent::RunStarted { command: "doctor".into(), version: "0.1.0".into(), plan_json: None };
        let json = r#"{"event":"run_started","command":"doctor","version":"0.1.0"}"#;
        assert_eq!(serde_json::to_string(&event).unwrap(), json);
        assert_eq!(serde_json::from_str::<RunEvent>(json).unwrap(), event);
    }

    #[test]
    fn the_waits_of_ranks_are_a_list_by_rank() {
        let event = RunEvent::RankWaits { step: 7, waited_ns: vec![2_100_000, 0] };
        let json = r#"{"event":"rank_waits","step":7,"waited_ns":[2100000,0]}"#;
        assert_eq!(serde_json::to_string(&event).unwrap(), json);
        assert_eq!(serde_json::from_str::<RunEvent>(json).unwrap(), event);
    }

    #[test]
    fn a_field_of_a_later_writer_is_ignored() {
        let read: RunEvent = serde_json::from_str(r#"{"event":"note","text":"hi","mood":"calm"}"#).unwrap();
        assert_eq!(read, RunEvent::Note { text: "hi".into() });
    }

    #[test]
    fn events_of_version_1_are_read_under_their_old_names() {
        let check = |old: &str, new: &str| {
            let event: RunEvent = serde_json::from_str(old).unwrap();
            assert_eq!(serde_json::to_string(&event).unwrap(), new);
        };
        check(
            r#"{"event":"training_set","of":2,"ids":["a"]}"#,
            r#"{"event":"training_set","utterances":2,"ids":["a"]}"#,
        );
        check(
            r#"{"event":"process","card":0,"bytes":5,"limit_bytes":6}"#,
            r#"{"event":"process_memory","card":0,"bytes":5,"limit_bytes":6}"#,
        );
        check(r#"{"event":"host_work","cpu_ns":5}"#, r#"{"event":"cpu_time","cpu_ns":5}"#);
        check(r#"{"event":"headspace","bucket":1,"ns":5}"#, r#"{"event":"model_only","bucket":1,"ns":5}"#);
        check(
            r#"{"event":"feed_setting","threads":1,"cores":2,"ahead":3,"slots":4,"route":"peer"}"#,
            r#"{"event":"feed_setting","threads":1,"cores":2,"buffer_size":3,"prefetch":4,"route":"peer"}"#,
        );
        check(
            r#"{"event":"learned","step":1,"epoch":0,"losses":{"loss":null},"gradient_norm":0.5,"lr":0.25,"skipped":true}"#,
            r#"{"event":"step_metrics","step":1,"epoch":0,"losses":{"loss":null},"gradient_norm":0.5,"lr":0.25,"skipped":true}"#,
        );
        check(
            r#"{"event":"validated","step":1,"utterances":2,"figures":{"mel":0.5}}"#,
            r#"{"event":"validation","step":1,"utterances":2,"metrics":{"mel":0.5}}"#,
        );
        check(
            r#"{"event":"breach","card":0,"bytes":7,"limit_bytes":6}"#,
            r#"{"event":"limit_exceeded","card":0,"bytes":7,"limit_bytes":6}"#,
        );
    }
}
