//! Verdicts about bottlenecks, by fixed thresholds.

use std::fmt;

use crate::advice::{Advice, Adviser};
use crate::jitter::{JitterWindow, MAX_VARIATION};
use crate::stage::{Stage, StepPart};
use crate::stalls::Stalls;

/// Kind of bottleneck. `Display` is its name in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VerdictKind {
    /// The step waits for read and decode over 20 % of its time.
    DataLoading,
    /// The step waits for features over 15 % of its time.
    GpuPreprocess,
    /// The step waits for copies (upload or transfer) over 15 % of its time.
    GpuTransfer,
    /// Training is under half of the step time.
    UnderutilizedGpu,
    /// Step times vary by over 30 %.
    Oscillation,
    /// The model device is busy under 70 % of the time.
    LowModelGpuUtil,
    /// The data device is busy over 80 % of the time.
    DataGpuOverloaded,
}

/// One bottleneck, and what to do about it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// The kind.
    pub kind: VerdictKind,
    /// The share compared with the threshold.
    pub share: f64,
    /// The stage that causes it; `None` if no stage is late.
    pub stage: Option<Stage>,
    /// What to change; `None` if no setting would help.
    pub advice: Option<Advice>,
}

/// Busy time as shares of the time of all steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Busy {
    /// The data device: the busier of its two streams.
    pub data: f64,
    /// The model device.
    pub model: f64,
    /// The step without its wait.
    pub train: f64,
}

/// All bottlenecks, worst stage first.
pub(crate) fn verdicts(stalls: &Stalls, busy: Busy, jitter: &JitterWindow, adviser: &Adviser<'_>) -> Vec<Verdict> {
    let late = |stage: Stage| stalls.stages[stage as usize].alone_share;
    let worst = Stage::ALL.into_iter().max_by(|a, b| late(*a).total_cmp(&late(*b))).filter(|stage| late(*stage) > 0.0);
    let copy = if late(Stage::Upload) > late(Stage::Transfer) { Stage::Upload } else { Stage::Transfer };
    let varies = match jitter.varies {
        StepPart::Waiting(stage) => Some(stage),
        StepPart::Train => None,
    };
    use VerdictKind::*;
    let over = |kind, share: f64, max: f64, stage| Check { kind, share, is_hit: share > max, stage };
    let under = |kind, share: f64, min: f64, stage| Check { kind, share, is_hit: share < min, stage };
    let checks = [
        over(DataLoading, late(Stage::Load), 0.20, Some(Stage::Load)),
        over(GpuPreprocess, late(Stage::Features), 0.15, Some(Stage::Features)),
        over(GpuTransfer, late(copy), 0.15, Some(copy)),
        under(UnderutilizedGpu, busy.train, 0.50, worst),
        over(Oscillation, jitter.variation, MAX_VARIATION, varies),
        under(LowModelGpuUtil, busy.model, 0.70, worst),
        over(DataGpuOverloaded, busy.data, 0.80, Some(Stage::Features)),
    ];
    let hits = checks.into_iter().filter(|check| check.is_hit);
    let mut found: Vec<Verdict> =
        hits.map(|Check { kind, share, stage, .. }| Verdict { kind, share, stage, advice: None }).collect();
    found.iter_mut().for_each(|verdict| verdict.advice = advice(verdict, adviser));
    // Stages by their cost, then the consequences in the order above.
    let stages = found.iter().filter(|verdict| verdict.kind <= GpuTransfer).count();
    found[..stages].sort_by(|a, b| b.share.total_cmp(&a.share));
    found
}

/// A share compared with its threshold.
struct Check {
    kind: VerdictKind,
    share: f64,
    is_hit: bool,
    stage: Option<Stage>,
}

fn advice(verdict: &Verdict, adviser: &Adviser<'_>) -> Option<Advice> {
    let for_stage = || verdict.stage.and_then(|stage| adviser.for_stage(stage));
    match verdict.kind {
        // Larger buffers help a stage that is fast enough on average; otherwise the stage itself needs help.
        VerdictKind::Oscillation => verdict.stage.and_then(|_| adviser.for_variation().or_else(for_stage)),
        _ => for_stage(),
    }
}

impl fmt::Display for VerdictKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VerdictKind::DataLoading => "DATA_LOADING",
            VerdictKind::GpuPreprocess => "GPU_PREPROCESS",
            VerdictKind::GpuTransfer => "GPU_TRANSFER",
            VerdictKind::UnderutilizedGpu => "UNDERUTILIZED_GPU",
            VerdictKind::Oscillation => "OSCILLATION",
            VerdictKind::LowModelGpuUtil => "LOW_MODEL_GPU_UTIL",
            VerdictKind::DataGpuOverloaded => "DATA_GPU_OVERLOADED",
        })
    }
}

impl fmt::Display for Verdict {
    /// `DATA_LOADING: 43 % of the step waits for read and decode. Try --num-workers 6: 61.2 steps/s predicted`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, percent) = (self.kind, 100.0 * self.share);
        match kind {
            VerdictKind::DataLoading => write!(f, "{kind}: {percent:.0} % of the step waits for read and decode")?,
            VerdictKind::GpuPreprocess => write!(f, "{kind}: {percent:.0} % of the step waits for features")?,
            VerdictKind::GpuTransfer => {
                let copy = self.stage.map_or("copies", Stage::name);
                write!(f, "{kind}: {percent:.0} % of the step waits for {copy}")?;
            }
            VerdictKind::UnderutilizedGpu => write!(f, "{kind}: training is {percent:.0} % of the step")?,
            VerdictKind::Oscillation => write!(f, "{kind}: step times vary by {percent:.0} %")?,
            VerdictKind::LowModelGpuUtil => write!(f, "{kind}: the model device is busy {percent:.0} % of the time")?,
            VerdictKind::DataGpuOverloaded => write!(f, "{kind}: the data device is busy {percent:.0} % of the time")?,
        }
        match &self.advice {
            Some(advice) => write!(f, ". Try {advice}"),
            None => f.write_str(". No setting would make it faster here"),
        }
    }
}
