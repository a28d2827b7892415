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
    let shares = Shares {
        load: late(Stage::Load),
        features: late(Stage::Features),
        copy: late(copy),
        variation: jitter.variation,
        busy,
    };
    let stage_of = |kind| match kind {
        VerdictKind::DataLoading => Some(Stage::Load),
        VerdictKind::GpuPreprocess | VerdictKind::DataGpuOverloaded => Some(Stage::Features),
        VerdictKind::GpuTransfer => Some(copy),
        VerdictKind::Oscillation => varies,
        VerdictKind::UnderutilizedGpu | VerdictKind::LowModelGpuUtil => worst,
    };
    let hits = shares.over_their_thresholds().into_iter();
    let mut found: Vec<Verdict> =
        hits.map(|(kind, share)| Verdict { kind, share, stage: stage_of(kind), advice: None }).collect();
    found.iter_mut().for_each(|verdict| verdict.advice = advice(verdict, adviser));
    // Stages by their cost, then the consequences in the order above.
    let stages = found.iter().filter(|verdict| verdict.kind <= VerdictKind::GpuTransfer).count();
    found[..stages].sort_by(|a, b| b.share.total_cmp(&a.share));
    found
}

/// What is compared with the thresholds.
#[derive(Clone, Copy, Debug, Default)]
struct Shares {
    /// Of the step time, waited for read and decode.
    load: f64,
    /// The same for features.
    features: f64,
    /// The same for the slower of upload and transfer.
    copy: f64,
    /// Standard deviation of the step time ÷ its mean.
    variation: f64,
    busy: Busy,
}

impl Shares {
    /// The verdicts whose threshold is passed, with the share that passes it.
    fn over_their_thresholds(&self) -> Vec<(VerdictKind, f64)> {
        use VerdictKind::*;
        let over = |kind, share: f64, max: f64| (kind, share, share > max);
        let under = |kind, share: f64, min: f64| (kind, share, share < min);
        let checks = [
            over(DataLoading, self.load, 0.20),
            over(GpuPreprocess, self.features, 0.15),
            over(GpuTransfer, self.copy, 0.15),
            under(UnderutilizedGpu, self.busy.train, 0.50),
            over(Oscillation, self.variation, MAX_VARIATION),
            under(LowModelGpuUtil, self.busy.model, 0.70),
            over(DataGpuOverloaded, self.busy.data, 0.80),
        ];
        checks.into_iter().filter(|(.., is_hit)| *is_hit).map(|(kind, share, _)| (kind, share)).collect()
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A run without any bottleneck.
    fn healthy() -> Shares {
        Shares { busy: Busy { data: 0.1, model: 0.95, train: 0.95 }, ..Shares::default() }
    }

    #[test]
    fn every_threshold_is_exactly_where_it_is_documented() {
        assert_eq!(healthy().over_their_thresholds(), []);
        // The kind, the documented threshold, and how to set its share.
        type Set = fn(&mut Shares, f64);
        let over: [(VerdictKind, f64, Set); 5] = [
            (VerdictKind::DataLoading, 0.20, |shares, share| shares.load = share),
            (VerdictKind::GpuPreprocess, 0.15, |shares, share| shares.features = share),
            (VerdictKind::GpuTransfer, 0.15, |shares, share| shares.copy = share),
            (VerdictKind::Oscillation, 0.30, |shares, share| shares.variation = share),
            (VerdictKind::DataGpuOverloaded, 0.80, |shares, share| shares.busy.data = share),
        ];
        let under: [(VerdictKind, f64, Set); 2] = [
            (VerdictKind::UnderutilizedGpu, 0.50, |shares, share| shares.busy.train = share),
            (VerdictKind::LowModelGpuUtil, 0.70, |shares, share| shares.busy.model = share),
        ];
        let found = |set: Set, share: f64| {
            let mut shares = healthy();
            set(&mut shares, share);
            shares.over_their_thresholds()
        };
        for (kind, threshold, set) in over {
            assert_eq!(found(set, threshold), [], "{kind} at its threshold");
            assert_eq!(found(set, threshold + 0.001), [(kind, threshold + 0.001)], "{kind} just over it");
        }
        for (kind, threshold, set) in under {
            assert_eq!(found(set, threshold), [], "{kind} at its threshold");
            assert_eq!(found(set, threshold - 0.001), [(kind, threshold - 0.001)], "{kind} just under it");
        }
    }
}
