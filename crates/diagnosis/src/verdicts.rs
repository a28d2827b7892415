//! What is wrong with a pipeline, if anything, by fixed thresholds.

use std::fmt;

use crate::advice::{Advice, Adviser};
use crate::jitter::{JitterWindow, MAX_VARIATION};
use crate::stage::{Stage, StepPart};
use crate::stalls::Stalls;

/// What can be wrong. `Display` is the name people look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VerdictKind {
    /// Over 20 % of the step waits for read and decode.
    DataLoading,
    /// Over 15 % of the step waits for features.
    GpuPreprocess,
    /// Over 15 % of the step waits for copies: upload or transfer.
    GpuTransfer,
    /// The step itself is under half of the step's time.
    UnderutilizedGpu,
    /// Step times vary by over 30 %.
    Oscillation,
    /// The model device is busy under 70 % of the time.
    LowModelGpuUtil,
    /// The data device is busy over 80 % of the time.
    DataGpuOverloaded,
}

/// One thing that is wrong, and what to do about it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// What.
    pub kind: VerdictKind,
    /// The share it was judged by.
    pub share: f64,
    /// The stage it is about; none where no stage is late.
    pub stage: Option<Stage>,
    /// What to change; none where no setting would help.
    pub advice: Option<Advice>,
}

/// Shares of the time of all steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Busy {
    /// The data device worked: the busier of its two streams.
    pub data: f64,
    /// The model device worked.
    pub model: f64,
    /// The step without its wait.
    pub train: f64,
}

/// Everything that is wrong, worst stage first; empty when nothing is.
pub(crate) fn verdicts(stalls: &Stalls, busy: Busy, jitter: &JitterWindow, adviser: &Adviser<'_>) -> Vec<Verdict> {
    let late = |stage: Stage| stalls.stages[stage as usize].alone_share;
    let worst = Stage::ALL.into_iter().max_by(|a, b| late(*a).total_cmp(&late(*b))).filter(|stage| late(*stage) > 0.0);
    let copy = if late(Stage::Upload) > late(Stage::Transfer) { Stage::Upload } else { Stage::Transfer };
    let varies = match jitter.varies {
        StepPart::Waiting(stage) => Some(stage),
        StepPart::Train => None,
    };
    use VerdictKind::*;
    let mut found: Vec<Verdict> = [
        (DataLoading, late(Stage::Load), late(Stage::Load) > 0.20, Some(Stage::Load)),
        (GpuPreprocess, late(Stage::Features), late(Stage::Features) > 0.15, Some(Stage::Features)),
        (GpuTransfer, late(copy), late(copy) > 0.15, Some(copy)),
        (UnderutilizedGpu, busy.train, busy.train < 0.50, worst),
        (Oscillation, jitter.variation, jitter.variation > MAX_VARIATION, varies),
        (LowModelGpuUtil, busy.model, busy.model < 0.70, worst),
        (DataGpuOverloaded, busy.data, busy.data > 0.80, Some(Stage::Features)),
    ]
    .into_iter()
    .filter(|(_, _, is_wrong, _)| *is_wrong)
    .map(|(kind, share, _, stage)| Verdict { kind, share, stage, advice: None })
    .collect();
    found.iter_mut().for_each(|verdict| verdict.advice = advice(verdict, adviser));
    // Stages by what they cost, then what follows from them, in the order above.
    let stages = found.iter().filter(|verdict| verdict.kind <= GpuTransfer).count();
    found[..stages].sort_by(|a, b| b.share.total_cmp(&a.share));
    found
}

fn advice(verdict: &Verdict, adviser: &Adviser<'_>) -> Option<Advice> {
    let for_stage = || verdict.stage.and_then(|stage| adviser.for_stage(stage));
    match verdict.kind {
        // Longer buffers help what keeps up in the mean; what does not is helped as a stage.
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
