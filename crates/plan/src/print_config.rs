//! `--print-config`: a plan as a config file. On the same machine, the file gives the same plan.

use tandem_device::bytes::MIB;
use tandem_events::Role;

use crate::placement::{Mode, Precision};
use crate::plan::Plan;
use crate::setting::{Id, SECTIONS, SETTINGS};
use crate::value::{Limit, SettingValue};

/// Every setting with its resolved value and its help. `null` keeps the default.
pub fn print_config(plan: &Plan) -> String {
    let mut text =
        String::from("# Every setting with its resolved value. Flags override this file; null keeps the default.\n");
    for section in SECTIONS {
        text.push_str(&format!("\n{section}:\n"));
        for setting in SETTINGS.iter().filter(|setting| setting.section == section) {
            let (value, items) = match resolved(plan, setting.id) {
                None => ("null".to_owned(), Vec::new()),
                Some(SettingValue::Texts(names)) if names.len() > 1 => (String::new(), names),
                Some(value) => (yaml(&value), Vec::new()),
            };
            let entry = format!("{}: {value}", setting.key);
            text.push_str(&format!("  {entry:<34}  # {}\n", setting.help_text()));
            items.iter().for_each(|name| text.push_str(&format!("    - {}\n", in_quotes(name))));
        }
    }
    text
}

fn resolved(plan: &Plan, id: Id) -> Option<SettingValue> {
    let count = |n: u64| Some(SettingValue::Count(n));
    let text = |text: &Option<String>| text.clone().map(SettingValue::Text);
    let names = |names: &[String]| (!names.is_empty()).then(|| SettingValue::Texts(names.to_vec()));
    let card = |role: Role| plan.role(role).card.map(SettingValue::gpu);
    let limit = |role: Role| plan.isolated.then(|| SettingValue::Limit(Limit::Mb(plan.role(role).limit_bytes / MIB)));
    // Several GPUs are a setting of their own, and each of them has both roles.
    let has_separate_roles = matches!(plan.mode, Mode::Multi | Mode::SharedGpu) && plan.gpus.is_none();
    match id {
        Id::TrainData => names(&plan.sources.train_data),
        Id::ValData => names(&plan.sources.val_data),
        Id::ExcludeIds => text(&plan.sources.exclude_ids),
        Id::SpeakerIdPattern => text(&plan.sources.speaker_id_pattern),
        Id::Columns => text(&plan.sources.columns),
        Id::Lang => text(&plan.sources.lang),
        Id::Phonemizer => Some(SettingValue::Choice(plan.sources.phonemizer)),
        Id::Lexicon => text(&plan.sources.lexicon),
        Id::Harakat => Some(SettingValue::Choice(plan.sources.harakat)),
        // The value of the flag: where `auto` caches depends on the free memory.
        Id::Cache => Some(SettingValue::Choice(plan.cache.asked)),
        // The value of the flag: without recordings in an object store, nothing is read ahead.
        Id::ReadAheadMb => plan.read_ahead_asked_mb.map(SettingValue::Count),
        Id::MaxBadFraction => Some(SettingValue::Share(plan.max_bad_fraction)),
        Id::CheckpointDir => Some(SettingValue::Text(plan.training.checkpoint_dir.clone())),
        Id::Epochs => count(plan.training.epochs),
        Id::MaxSteps => plan.training.max_steps.map(SettingValue::Count),
        Id::CheckpointEvery => plan.training.checkpoint_every.map(SettingValue::Count),
        Id::Resume => text(&plan.training.resume),
        Id::ResetTraining => Some(SettingValue::Switch(plan.training.reset)),
        Id::InitFrom => text(&plan.training.init_from),
        Id::InitMelStatistics => {
            Some(SettingValue::Choice(if plan.training.keeps_mel_statistics { "keep" } else { "measure" }))
        }
        Id::Lr => Some(SettingValue::Share(plan.training.peak_lr)),
        Id::BatchSize => count(plan.batch_size),
        Id::GradAccum => count(plan.grad_accum),
        Id::OptimizationLevel => Some(SettingValue::Choice(plan.level.slug())),
        Id::MixedPrecision => Some(SettingValue::Switch(plan.precision == Precision::Mixed)),
        Id::Seed => count(plan.seed),
        Id::ModelSize => Some(SettingValue::Choice(plan.model_size.name())),
        Id::MaxTextLength => count(plan.max_text_length),
        Id::MaxMelFrames => count(plan.max_mel_frames),
        // A given number is never tuned, so a default must not become a given number.
        Id::NumWorkers => (plan.threads == plan.max_threads).then(|| count(plan.threads))?,
        // The same. The value of the flag, because two GPUs would halve the resolved value again.
        Id::BufferSize => plan.buffer_size_given.then(|| count(plan.buffer_size_asked))?,
        Id::PrefetchBufferSize => count(plan.feed.model_slots),
        Id::Mode => mode_flag(plan.mode).map(SettingValue::Choice),
        Id::DataGpu => has_separate_roles.then(|| card(Role::Data))?,
        Id::ModelGpu => has_separate_roles.then(|| card(Role::Model))?,
        Id::Gpu => (plan.mode == Mode::Single).then(|| card(Role::Model))?,
        Id::Gpus => plan.gpus.clone().map(SettingValue::Gpus),
        Id::RankTimeout => count(plan.rank_timeout_s),
        Id::ShareGpu => Some(SettingValue::Switch(plan.mode == Mode::SharedGpu && plan.gpus.is_none())),
        Id::EnableMemoryIsolation => Some(SettingValue::Switch(plan.isolated)),
        Id::DataGpuMemory => limit(Role::Data),
        Id::ModelGpuMemory => limit(Role::Model),
        Id::ModelStartDelay => Some(SettingValue::Seconds(plan.start_delay_seconds)),
        Id::EnableStaticShapes => Some(SettingValue::Switch(plan.static_shapes)),
        Id::TensorboardDir => text(&plan.training.tensorboard_dir),
        Id::Prometheus => text(&plan.training.prometheus),
        Id::Trace => text(&plan.training.trace),
        // The value of the flag: what `auto` chooses depends on the card.
        Id::FeatureArithmetic => {
            let asked = if plan.arithmetic.is_forced() { plan.arithmetic.arithmetic.name() } else { "auto" };
            Some(SettingValue::Choice(asked))
        }
        Id::VerifyTransfers => plan.feed.verify_every.map(SettingValue::Count),
        Id::Transfer => {
            Some(SettingValue::Choice(if plan.transfer.forced { plan.transfer.route.name() } else { "auto" }))
        }
    }
}

/// Text is quoted, because a path can contain any character.
fn yaml(value: &SettingValue) -> String {
    match value {
        SettingValue::Text(_) | SettingValue::Texts(_) | SettingValue::Gpus(_) => in_quotes(&value.to_string()),
        other => other.to_string(),
    }
}

fn in_quotes(text: &str) -> String {
    serde_json::json!(text).to_string()
}

/// `--mode` of a mode; `None` for a shared GPU, which `--share-gpu` requests.
fn mode_flag(mode: Mode) -> Option<&'static str> {
    match mode {
        Mode::Cpu => Some("cpu"),
        Mode::Single => Some("single"),
        Mode::Multi => Some("dual"),
        Mode::SharedGpu => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::corpus::CorpusFacts;
    use crate::fixture::{Chains, corpus, cpu_only, gpus, remote_corpus, settings};
    use crate::hardware::Hardware;
    use crate::settings::{Origin, Settings};

    /// The plan without explanations, notes, hints and advice.
    fn bare(mut plan: Plan) -> Plan {
        plan.why.clear();
        plan.transfer.why.clear();
        plan.arithmetic.why.clear();
        (plan.hints, plan.notes, plan.advice) = Default::default();
        // A printed config gives every number, so each counts as given.
        plan.buffer_size_given = false;
        plan
    }

    fn check(line: &str, hardware: &Hardware) {
        check_settings(&settings(line), hardware, None);
        check_settings(&settings(line), hardware, Some(&corpus(500)));
    }

    fn check_settings(settings: &Settings, hardware: &Hardware, corpus: Option<&CorpusFacts>) {
        let plan = Plan::solve(settings, hardware, &Chains, corpus).unwrap();
        let mut read = Settings::new();
        let text = print_config(&plan);
        assert!(config::parse(&text, "printed", &mut read).unwrap().is_empty());
        let again = Plan::solve(&read, hardware, &Chains, corpus).unwrap_or_else(|refusal| panic!("{refusal}\n{text}"));
        assert_eq!(bare(again), bare(plan), "{settings}\n{text}");
        assert!(SETTINGS.iter().all(|setting| text.contains(&format!("  {}: ", setting.key))));
    }

    #[test]
    fn a_printed_config_gives_the_same_plan() {
        check("", &cpu_only());
        check("", &gpus(1, 24));
        check("", &gpus(1, 2));
        check("--gpu 1 --no-mixed-precision --seed 9223372036854775807", &gpus(2, 24));
        check("--data-gpu 1 --model-gpu 0 --buffer-size 9 --prefetch-buffer-size 2", &gpus(2, 24));
        check("--data-gpu 0 --model-gpu 1 --enable-memory-isolation --data-gpu-memory auto", &gpus(2, 24));
        check("--share-gpu --enable-memory-isolation --transfer peer --model-start-delay 0.25", &gpus(1, 24));
        check("--data-gpu 0 --model-gpu 1 --verify-transfers 5", &gpus(2, 24));
        check("--verify-transfers 5", &gpus(1, 24));
        check("--gpus 0 --enable-memory-isolation --rank-timeout 30", &gpus(2, 24));
        let world = tandem_ranks::World { rank: 1, size: 2, local_rank: 1, local_size: 2 };
        check("--gpus all", &gpus(2, 24).with_world(world));
        check("--gpus 1,GPU-simulated-0 --grad-accum 4", &gpus(2, 24).with_world(world));
        check("--share-gpu --optimization-level basic --grad-accum 3 --num-workers 2", &gpus(1, 24));
        check(
            "--cache disk --lang fa --speaker-id-pattern {speaker}_* --max-bad-fraction 0.25 --train-data a",
            &gpus(1, 24),
        );
        check("--train-data a --columns text=b,audio=c --read-ahead-mb 0", &gpus(1, 24));
        for line in ["--train-data s3://b/a.tar", "--train-data s3://b/a.tar --read-ahead-mb 7"] {
            check_settings(&settings(line), &gpus(1, 24), Some(&remote_corpus(500)));
        }
    }

    #[test]
    fn any_path_survives_the_round_trip() {
        for path in ["my voice", "a: b # c", "\"q\" 'r' \\", "null", "\n", "7", "- x", "ک/ی"] {
            check_settings(&Settings::new().with(&[("train-data", path)]).unwrap(), &gpus(1, 24), None);
        }
    }

    #[test]
    fn lists_of_data_survive_the_round_trip() {
        let mut settings = settings("--seed 3");
        let names = ["data/*.parquet", "s3://b/shard-{000..127}.tar", "- x", "# y", "null", "a: b", "\"q\" 'r'"];
        settings.set_all("train-data", &names, Origin::Flag).unwrap();
        settings.set_all("val-data", &["s3://b/v-?.tar", "my voice"], Origin::Flag).unwrap();
        check_settings(&settings, &gpus(1, 24), None);
        let text = print_config(&Plan::solve(&settings, &gpus(1, 24), &Chains, None).unwrap());
        assert!(text.contains("\n    - \"data/*.parquet\"\n    - \"s3://b/shard-{000..127}.tar\"\n"), "{text}");
    }

    #[test]
    fn a_printed_config_has_no_secrets_and_says_so_when_it_is_read() {
        let mut settings = Settings::new();
        let names = ["https://anna:SECRET@host/a.tar", "https://host/b.tar?X-Amz-Signature=SECRET"];
        settings.set_all("train-data", &names, Origin::Flag).unwrap();
        settings.set("val-data", names[0], Origin::Flag).unwrap();
        let plan = Plan::solve(&settings, &gpus(1, 24), &Chains, None).unwrap();
        let text = print_config(&plan);
        assert!(text.contains("https://…@host/a.tar") && !format!("{text}{plan:?}").contains("SECRET"), "{text}");
        let error = config::parse(&text, "printed", &mut Settings::new()).unwrap_err().to_string();
        assert!(error.contains("2 problems") && error.contains("https://USER:PASSWORD@host/a.tar"), "{error}");
    }
}
