//! Length of a run, learning-rate schedule, and where its files go.

use tandem_model::Preset;

use crate::plan::Level;
use crate::setting::Id;
use crate::settings::Settings;

/// Warm-up steps of the learning rate. Runs of under 3000 steps warm up for a tenth of their steps.
const WARM_UP_STEPS: u64 = 300;

/// The settings of a run besides devices and data.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingSettings {
    /// Folder for checkpoints, run log and samples.
    pub checkpoint_dir: String,
    /// Maximum number of epochs.
    pub epochs: u64,
    /// Maximum number of steps; `None` for no limit.
    pub max_steps: Option<u64>,
    /// Steps between checkpoints; `None` for every 1000 steps or 10 minutes.
    pub checkpoint_every: Option<u64>,
    /// The checkpoint to resume from; `None` for the newest.
    pub resume: Option<String>,
    /// The checkpoint or run whose weights the run starts from; `None` for random weights.
    pub init_from: Option<String>,
    /// Whether such a run normalises spectrograms as that model does; otherwise by the statistics of its own data.
    pub keeps_mel_statistics: bool,
    /// Folder for TensorBoard event files; `None` for the default inside the run folder.
    pub tensorboard_dir: Option<String>,
    /// Address of the Prometheus endpoint; `None` for no endpoint.
    pub prometheus: Option<String>,
    /// Trace file; `None` for no trace.
    pub trace: Option<String>,
    /// Whether to move an earlier run aside and start from step 0.
    pub reset: bool,
    /// Peak learning rate.
    pub peak_lr: f64,
    /// Whether the rate follows a cosine decay after the warm-up; otherwise it is constant.
    pub cosine: bool,
    /// Maximum global gradient norm; `None` for no clipping.
    pub clip: Option<f64>,
    /// Decay of the EMA of the weights; `None` for no EMA.
    pub ema_decay: Option<f64>,
}

impl TrainingSettings {
    /// The given settings, and the defaults of the level and the preset.
    pub(crate) fn choose(settings: &Settings, level: Level, preset: Preset) -> TrainingSettings {
        let enhanced = level == Level::Enhanced;
        TrainingSettings {
            checkpoint_dir: settings.text(Id::CheckpointDir).unwrap_or_default(),
            epochs: settings.count(Id::Epochs),
            max_steps: settings.given_count(Id::MaxSteps),
            checkpoint_every: settings.given_count(Id::CheckpointEvery),
            resume: settings.text(Id::Resume),
            init_from: settings.text(Id::InitFrom),
            keeps_mel_statistics: settings.choice(Id::InitMelStatistics) == "keep",
            tensorboard_dir: settings.text(Id::TensorboardDir),
            prometheus: settings.text(Id::Prometheus),
            trace: settings.text(Id::Trace),
            reset: settings.switch(Id::ResetTraining),
            peak_lr: settings.given(Id::Lr).map_or_else(|| default_lr(preset), |_| settings.share(Id::Lr)),
            cosine: enhanced,
            clip: enhanced.then_some(1.0),
            ema_decay: enhanced.then_some(0.999),
        }
    }

    /// Number of steps of the run, with `steps_per_epoch` optimizer steps per epoch.
    pub fn total_steps(&self, steps_per_epoch: u64) -> u64 {
        let all_epochs = self.epochs.saturating_mul(steps_per_epoch.max(1));
        self.max_steps.map_or(all_epochs, |steps| steps.min(all_epochs))
    }

    /// Length of the run and the flag that ends it, in words. If `--epochs` ends it before `--max-steps`, also the
    /// `--epochs` that would reach `--max-steps`.
    pub fn describe_length(&self, steps_per_epoch: u64) -> String {
        let per_epoch = steps_per_epoch.max(1);
        let total = self.total_steps(per_epoch);
        let length = |epochs: String| format!("{} steps: {epochs} of {} steps", grouped(total), grouped(per_epoch));
        let whole = |epochs: u64| format!("{} epoch{}", grouped(epochs), if epochs == 1 { "" } else { "s" });
        match self.max_steps {
            Some(steps) if steps > total => {
                let enough = steps.div_ceil(per_epoch);
                format!("{} (--epochs; --epochs {enough} reaches --max-steps {steps})", length(whole(self.epochs)))
            }
            Some(_) if total.is_multiple_of(per_epoch) => {
                format!("{} (--max-steps)", length(whole(total / per_epoch)))
            }
            Some(_) => format!("{} (--max-steps)", length(format!("{:.1} epochs", total as f64 / per_epoch as f64))),
            None => format!("{} (--epochs)", length(whole(self.epochs))),
        }
    }

    /// Warm-up steps of the learning rate in a run of `total_steps`.
    pub fn warm_up_steps(&self, total_steps: u64) -> u64 {
        WARM_UP_STEPS.min(total_steps.div_ceil(10)).max(1)
    }

    /// Learning-rate schedule, clipping and EMA in words.
    pub fn describe(&self) -> String {
        let shape = if self.cosine { "warm-up, then cosine decay" } else { "warm-up, then constant" };
        let clip =
            self.clip.map_or_else(|| "no clipping".to_owned(), |norm| format!("gradient norm clipped to {norm:.1}"));
        let average = self.ema_decay.map_or_else(String::new, |decay| format!(", EMA decay {decay}"));
        format!("peak learning rate {} ({shape}), {clip}{average}", self.peak_lr)
    }
}

/// A number with a space between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let is_gap = |at: usize| at > 0 && (digits.len() - at).is_multiple_of(3);
    digits.chars().enumerate().flat_map(|(at, c)| is_gap(at).then_some(' ').into_iter().chain([c])).collect()
}

/// Larger presets need a lower learning rate.
fn default_lr(preset: Preset) -> f64 {
    match preset {
        Preset::Nano => 2e-3,
        Preset::Tiny => 1e-3,
        Preset::Small => 5e-4,
        Preset::Normal => 2e-4,
        Preset::Big => 1e-4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::settings;

    fn training(line: &str) -> TrainingSettings {
        TrainingSettings::choose(&settings(line), Level::Enhanced, Preset::Tiny)
    }

    #[test]
    fn the_run_ends_at_max_steps_or_epochs_whichever_is_first() {
        let check = |line: &str, steps_per_epoch, expected| {
            assert_eq!(training(line).total_steps(steps_per_epoch), expected, "{line}");
        };
        check("", 10, 5000);
        check("--max-steps 300", 10, 300);
        check("--max-steps 300 --epochs 2", 10, 20);
        check("--epochs 3", 0, 3);
    }

    #[test]
    fn the_length_names_the_flag_that_ends_the_run() {
        let check = |line: &str, steps_per_epoch, expected: &str| {
            assert_eq!(training(line).describe_length(steps_per_epoch), expected, "{line}");
        };
        check("", 36, "18 000 steps: 500 epochs of 36 steps (--epochs)");
        check("--epochs 1", 1_234_567, "1 234 567 steps: 1 epoch of 1 234 567 steps (--epochs)");
        check("--max-steps 300", 36, "300 steps: 8.3 epochs of 36 steps (--max-steps)");
        check("--max-steps 72", 36, "72 steps: 2 epochs of 36 steps (--max-steps)");
        check("--max-steps 18000", 36, "18 000 steps: 500 epochs of 36 steps (--max-steps)");
        let earlier = "18 000 steps: 500 epochs of 36 steps (--epochs; --epochs 778 reaches --max-steps 28000)";
        check("--max-steps 28000", 36, earlier);
        // The suggested --epochs reaches --max-steps.
        assert_eq!(training("--max-steps 28000 --epochs 778").total_steps(36), 28_000);
        assert!(training("--max-steps 28000 --epochs 777").total_steps(36) < 28_000);
    }

    #[test]
    fn a_given_learning_rate_replaces_the_default() {
        assert_eq!(training("").peak_lr, 1e-3);
        assert_eq!(training("--lr 0.00025").peak_lr, 2.5e-4);
        let basic = TrainingSettings::choose(&settings("--optimization-level basic"), Level::Basic, Preset::Big);
        assert_eq!((basic.clip, basic.ema_decay, basic.cosine, basic.peak_lr), (None, None, false, 1e-4));
        assert_eq!((training("").warm_up_steps(300), training("").warm_up_steps(50_000)), (30, 300));
    }
}
