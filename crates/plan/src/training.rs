//! How long a run goes on, how fast it learns, and where it is kept.

use crate::plan::Level;
use crate::setting::Id;
use crate::settings::Settings;
use crate::workload::ModelSize;

/// Steps in which the learning rate rises, unless the run is so short that a tenth of it is less.
const WARM_UP_STEPS: u64 = 300;

/// What a run does beside its devices and its data.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingSettings {
    /// Checkpoints, run log, samples.
    pub checkpoint_dir: String,
    /// Epochs at most.
    pub epochs: u64,
    /// Steps at most; none when only epochs count.
    pub max_steps: Option<u64>,
    /// Steps from one checkpoint to the next; none for every 1000 steps or 10 minutes.
    pub checkpoint_every: Option<u64>,
    /// The checkpoint to go on from; none for the newest there is.
    pub resume: Option<String>,
    /// Where event files for TensorBoard go; none for their place in the folder of the run.
    pub tensorboard_dir: Option<String>,
    /// Where figures are served to Prometheus, if anywhere.
    pub prometheus: Option<String>,
    /// The file a trace is written to, if any.
    pub trace: Option<String>,
    /// Whether an earlier run is moved aside.
    pub reset: bool,
    /// The highest learning rate.
    pub peak_lr: f64,
    /// Whether the rate falls along a cosine after the warm-up.
    pub cosine: bool,
    /// The norm gradients are clipped to; none when they are not.
    pub clip: Option<f64>,
    /// How much of the averaged weights is kept at each step; none without an average.
    pub average_decay: Option<f64>,
}

impl TrainingSettings {
    /// What the settings say, and what the level and the model's size imply.
    pub(crate) fn choose(settings: &Settings, level: Level, size: ModelSize) -> TrainingSettings {
        let enhanced = level == Level::Enhanced;
        TrainingSettings {
            checkpoint_dir: settings.text(Id::CheckpointDir).unwrap_or_default(),
            epochs: settings.count(Id::Epochs),
            max_steps: settings.given_count(Id::MaxSteps),
            checkpoint_every: settings.given_count(Id::CheckpointEvery),
            resume: settings.text(Id::Resume),
            tensorboard_dir: settings.text(Id::TensorboardDir),
            prometheus: settings.text(Id::Prometheus),
            trace: settings.text(Id::Trace),
            reset: settings.switch(Id::ResetTraining),
            peak_lr: settings.given(Id::Lr).map_or_else(|| own_lr(size), |_| settings.share(Id::Lr)),
            cosine: enhanced,
            clip: enhanced.then_some(1.0),
            average_decay: enhanced.then_some(0.999),
        }
    }

    /// Steps of the whole run, when an epoch has `steps_of_epoch` optimizer steps.
    pub fn total_steps(&self, steps_of_epoch: u64) -> u64 {
        let of_epochs = self.epochs.saturating_mul(steps_of_epoch.max(1));
        self.max_steps.map_or(of_epochs, |steps| steps.min(of_epochs))
    }

    /// How long the run is and what ends it, in words; where it ends before `--max-steps`, also what to type to get there.
    pub fn describe_length(&self, steps_of_epoch: u64) -> String {
        let of_epoch = steps_of_epoch.max(1);
        let total = self.total_steps(of_epoch);
        let length = |epochs: String| format!("{} steps: {epochs} of {}", grouped(total), grouped(of_epoch));
        let whole = |epochs: u64| format!("{} epoch{}", grouped(epochs), if epochs == 1 { "" } else { "s" });
        match self.max_steps {
            Some(steps) if steps > total => {
                let enough = steps.div_ceil(of_epoch);
                format!("{} (--epochs; --epochs {enough} to reach --max-steps {steps})", length(whole(self.epochs)))
            }
            Some(_) if total.is_multiple_of(of_epoch) => {
                format!("{} (--max-steps)", length(whole(total / of_epoch)))
            }
            Some(_) => format!("{} (--max-steps)", length(format!("{:.1} epochs", total as f64 / of_epoch as f64))),
            None => format!("{} (--epochs)", length(whole(self.epochs))),
        }
    }

    /// Steps in which the rate rises.
    pub fn warm_up_steps(&self, total_steps: u64) -> u64 {
        WARM_UP_STEPS.min(total_steps.div_ceil(10)).max(1)
    }

    /// The learning rate in words.
    pub fn describe(&self) -> String {
        let shape = if self.cosine { "warm-up, then a cosine" } else { "warm-up, then constant" };
        let clip = self.clip.map_or_else(|| "no clipping".to_owned(), |norm| format!("gradients clipped to {norm:.1}"));
        let average = self.average_decay.map_or_else(String::new, |decay| format!(", EMA {decay}"));
        format!("{} at most ({shape}), {clip}{average}", self.peak_lr)
    }
}

/// A number with its thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let is_gap = |at: usize| at > 0 && (digits.len() - at).is_multiple_of(3);
    digits.chars().enumerate().flat_map(|(at, c)| is_gap(at).then_some(' ').into_iter().chain([c])).collect()
}

/// Larger models learn more slowly.
fn own_lr(size: ModelSize) -> f64 {
    match size {
        ModelSize::Nano => 2e-3,
        ModelSize::Tiny => 1e-3,
        ModelSize::Small => 5e-4,
        ModelSize::Normal => 2e-4,
        ModelSize::Big => 1e-4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::settings;

    fn training(line: &str) -> TrainingSettings {
        TrainingSettings::choose(&settings(line), Level::Enhanced, ModelSize::Tiny)
    }

    #[test]
    fn whichever_ends_first() {
        let check = |line: &str, steps_of_epoch, expected| {
            assert_eq!(training(line).total_steps(steps_of_epoch), expected, "{line}");
        };
        check("", 10, 5000);
        check("--max-steps 300", 10, 300);
        check("--max-steps 300 --epochs 2", 10, 20);
        check("--epochs 3", 0, 3);
    }

    #[test]
    fn what_ends_a_run_is_said() {
        let check = |line: &str, steps_of_epoch, expected: &str| {
            assert_eq!(training(line).describe_length(steps_of_epoch), expected, "{line}");
        };
        check("", 36, "18 000 steps: 500 epochs of 36 (--epochs)");
        check("--epochs 1", 1_234_567, "1 234 567 steps: 1 epoch of 1 234 567 (--epochs)");
        check("--max-steps 300", 36, "300 steps: 8.3 epochs of 36 (--max-steps)");
        check("--max-steps 72", 36, "72 steps: 2 epochs of 36 (--max-steps)");
        check("--max-steps 18000", 36, "18 000 steps: 500 epochs of 36 (--max-steps)");
        let sooner = "18 000 steps: 500 epochs of 36 (--epochs; --epochs 778 to reach --max-steps 28000)";
        check("--max-steps 28000", 36, sooner);
        // What it says to type gets there.
        assert_eq!(training("--max-steps 28000 --epochs 778").total_steps(36), 28_000);
        assert!(training("--max-steps 28000 --epochs 777").total_steps(36) < 28_000);
    }

    #[test]
    fn a_rate_given_by_hand_is_taken() {
        assert_eq!(training("").peak_lr, 1e-3);
        assert_eq!(training("--lr 0.00025").peak_lr, 2.5e-4);
        let basic = TrainingSettings::choose(&settings("--optimization-level basic"), Level::Basic, ModelSize::Big);
        assert_eq!((basic.clip, basic.average_decay, basic.cosine, basic.peak_lr), (None, None, false, 1e-4));
        assert_eq!((training("").warm_up_steps(300), training("").warm_up_steps(50_000)), (30, 300));
    }
}
