//! The diagnosis as a document, for programs.

use serde_json::{Value, json};

use crate::diagnosis::Diagnosis;
use crate::ranks::RankWait;
use crate::stalls::Stall;
use crate::statistics::Summary;
use crate::verdicts::Verdict;

impl Diagnosis {
    /// All of it. Times are in milliseconds, shares from 0 to 1.
    pub fn json(&self) -> Value {
        let stage = |stall: &Stall| {
            let mut row = stall.time_ns.json(stall.stage.name());
            row["share"] = stall.share.into();
            row
        };
        let mut train = self.train_ns.json("train");
        train["share"] = self.busy.train.into();
        let known = self.stalls.stages.iter().filter(|stall| stall.time_ns.count > 0).map(stage);
        let tier = &self.tier;
        json!({
            "steps": self.jitter.step_ns.count,
            "steps_per_s": self.steps_per_s,
            "model_only_steps_per_s": self.model_only_steps_per_s,
            "stall_share": self.stalls.share,
            "variation": self.jitter.variation,
            "copy_overlap": self.copy_overlap,
            "stages": known.chain([train]).collect::<Vec<_>>(),
            "busy": { "data": self.busy.data, "model": self.busy.model },
            "verdicts": self.verdicts.iter().map(verdict_json).collect::<Vec<_>>(),
            "ranks": self.rank_waits.iter().map(rank_json).collect::<Vec<_>>(),
            "straggler": self.straggler.map(|straggler| straggler.rank),
            "leaks": self.leaks.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "tier": {
                "tier": tier.tier.to_string(),
                "never_waited_for": tier.is_never_waited_for,
                "text": tier.to_string(),
            },
            "dropped": self.dropped,
        })
    }
}

impl Summary {
    /// Mean, standard deviation, minimum, maximum and 95th percentile, in milliseconds.
    pub fn in_ms(&self) -> [f64; 5] {
        [self.mean, self.std, self.min, self.max, self.p95].map(|ns| ns / 1e6)
    }

    /// The same as a row of a document.
    pub fn json(&self, name: &str) -> Value {
        let [mean, std, min, max, p95] = self.in_ms();
        json!({ "name": name, "mean_ms": mean, "std_ms": std, "min_ms": min, "max_ms": max, "p95_ms": p95 })
    }
}

fn rank_json(wait: &RankWait) -> Value {
    json!({ "rank": wait.rank, "wait_ms": wait.wait_ns / 1e6, "wait_share": wait.share })
}

fn verdict_json(verdict: &Verdict) -> Value {
    let advice = verdict.advice;
    json!({
        "kind": verdict.kind.to_string(),
        "share": verdict.share,
        "stage": verdict.stage.map(|stage| stage.name()),
        "text": verdict.to_string(),
        "change": advice.map(|advice| advice.change.to_string()),
        "predicted_steps_per_s": advice.map(|advice| advice.steps_per_s),
        "at_most": advice.map(|advice| advice.is_upper_bound),
    })
}
