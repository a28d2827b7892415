//! Every flag of `tandem train` has an effect: each is tested in a run where ignoring it would show. What the plan says about
//! a flag is no evidence; files, events and memory of the run are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tandem_plan::setting::{SETTINGS, SettingKind};

use crate::command::{Ran, TandemCommand, contains};
use crate::machine::TempFolder;
use crate::speech::{copy_of_demo, demo};
use crate::{init_from, languages, ranks, sharded, verified_transfers};

mod each_value;
mod file_opens;

use each_value::EachValue;

/// A run of two steps of the smallest model.
const BASE: &str = "--model-size nano --batch-size 4 --buffer-size 5 --num-workers 1 --max-steps 2";

/// A run and its files.
struct Run {
    ran: Ran,
    dir: PathBuf,
    _folder: TempFolder,
}

fn command(line: &str, data: &Path, dir: &Path) -> TandemCommand {
    TandemCommand::new(&format!("train {line}")).arg("--train-data").arg(data).arg("--checkpoint-dir").arg(dir)
}

/// Trains with [`BASE`] and `line`, whose flags override it.
#[track_caller]
fn run(line: &str) -> Run {
    run_on(demo(), line)
}

#[track_caller]
fn run_on(data: &Path, line: &str) -> Run {
    let folder = TempFolder::new();
    let dir = folder.path("run");
    let ran = command(&merged(line), data, &dir).run();
    assert_eq!(ran.code, 0, "{line}: {ran:?}");
    Run { ran, dir, _folder: folder }
}

/// [`BASE`] overridden by the flags of `line`; on the CPU if `line` names no device.
fn merged(line: &str) -> String {
    let base: Vec<&str> = BASE.split_whitespace().collect();
    let given: Vec<&str> = line.split_whitespace().filter(|word| word.starts_with("--")).collect();
    let unchanged = base.chunks(2).filter(|pair| !given.contains(&pair[0])).flatten().copied();
    let device = if line.contains("--sim") || line.contains("--mode") { "" } else { "--mode cpu" };
    unchanged.chain([device, line]).collect::<Vec<_>>().join(" ")
}

/// What a role has reserved.
struct Reserved {
    card: u64,
    bytes: u64,
    limit_mb: u64,
}

impl Run {
    fn events(&self, kind: &str) -> Vec<Value> {
        let log = fs::read_to_string(self.dir.join("run.jsonl")).unwrap();
        let all = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        all.filter(|event| event["event"] == kind).collect()
    }

    fn steps(&self) -> usize {
        self.events("step_metrics").len()
    }

    fn losses(&self) -> Vec<f64> {
        self.events("step_metrics").iter().map(|event| event["losses"]["loss"].as_f64().unwrap()).collect()
    }

    fn reserved(&self, role: &str) -> Reserved {
        let event = self.events("arena_reserved").into_iter().find(|event| event["role"] == role).unwrap();
        let number = |name: &str| event[name].as_u64().unwrap();
        Reserved { card: number("card"), bytes: number("bytes"), limit_mb: number("limit_bytes") >> 20 }
    }

    /// A file of the newest checkpoint.
    fn checkpoint_file(&self, name: &str) -> Vec<u8> {
        fs::read(self.dir.join(self.checkpoints().last().unwrap()).join(name)).unwrap()
    }

    fn model(&self) -> Value {
        serde_json::from_slice(&self.checkpoint_file("model.json")).unwrap()
    }

    /// The names of the tensors of the newest checkpoint.
    fn weights(&self) -> Vec<String> {
        let file = self.checkpoint_file("weights.safetensors");
        let (length, rest) = file.split_first_chunk::<8>().unwrap();
        let header: Value = serde_json::from_slice(&rest[..u64::from_le_bytes(*length) as usize]).unwrap();
        header.as_object().unwrap().keys().cloned().collect()
    }

    /// Batches that the data role had loaded before the first step ended.
    fn loaded_at_first_step(&self) -> usize {
        let log = fs::read_to_string(self.dir.join("run.jsonl")).unwrap();
        let events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let before = events.take_while(|event| event["event"] != "step_work");
        before.filter(|event| event["stage"] == "load").count()
    }

    fn ids(&self) -> Vec<String> {
        let events = self.events("training_set");
        let ids = events.iter().flat_map(|event| event["ids"].as_array().unwrap().clone());
        ids.map(|id| id.as_str().unwrap().to_owned()).collect()
    }

    fn checkpoints(&self) -> Vec<String> {
        let names = fs::read_dir(&self.dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.starts_with("checkpoint-")).collect();
        names.sort();
        names
    }
}

/// A test that fails if the flag is ignored.
#[expect(dead_code, reason = "the harness calls the tests; this only names them")]
enum Evidence {
    /// For settings with many values.
    Some(fn()),
    /// For choices and switches.
    Each(fn() -> EachValue),
}

/// Every setting, and the test of its effect.
fn evidence() -> BTreeMap<&'static str, Evidence> {
    use Evidence::{Each, Some};
    BTreeMap::from([
        ("train-data", Some(data)),
        ("val-data", Some(data)),
        ("exclude-ids", Some(data)),
        ("speaker-id-pattern", Some(speaker_id_pattern)),
        ("columns", Some(sharded::columns)),
        ("read-ahead-mb", Some(sharded::read_ahead_mb)),
        ("lang", Some(lang)),
        ("phonemizer", Each(each_value::phonemizer)),
        ("lexicon", Some(languages::a_lexicon_is_part_of_the_model)),
        ("harakat", Each(each_value::harakat)),
        ("cache", Each(each_value::cache)),
        ("feature-arithmetic", Each(each_value::feature_arithmetic)),
        ("max-bad-fraction", Some(max_bad_fraction)),
        ("checkpoint-dir", Some(ends)),
        ("epochs", Some(ends)),
        ("max-steps", Some(ends)),
        ("checkpoint-every", Some(ends)),
        ("resume", Some(resume)),
        ("reset-training", Each(each_value::reset_training)),
        ("init-from", Some(init_from::a_new_run_starts_from_the_weights_of_another)),
        ("init-mel-statistics", Each(each_value::init_mel_statistics)),
        ("lr", Some(learning)),
        ("batch-size", Some(batches)),
        ("grad-accum", Some(batches)),
        ("optimization-level", Each(each_value::optimization_level)),
        ("mixed-precision", Each(each_value::mixed_precision)),
        ("seed", Some(learning)),
        ("model-size", Each(each_value::model_size)),
        ("max-text-length", Some(lengths)),
        ("max-mel-frames", Some(lengths)),
        ("num-workers", Some(workers)),
        ("buffer-size", Some(slots)),
        ("prefetch-buffer-size", Some(slots)),
        ("mode", Each(each_value::mode)),
        ("data-gpu", Some(devices)),
        ("model-gpu", Some(devices)),
        ("gpu", Some(devices)),
        ("gpus", Some(ranks::simulated_gpus_train_together)),
        ("rank-timeout", Some(ranks::a_rank_that_hangs_is_named_after_the_timeout)),
        ("share-gpu", Each(each_value::share_gpu)),
        ("enable-memory-isolation", Each(each_value::enable_memory_isolation)),
        ("data-gpu-memory", Some(limits)),
        ("model-gpu-memory", Some(limits)),
        ("model-start-delay", Some(start)),
        ("transfer", Each(each_value::transfer)),
        ("verify-transfers", Some(verified_transfers::one_in_n_batches_is_verified)),
        ("enable-static-shapes", Each(each_value::enable_static_shapes)),
        ("tensorboard-dir", Some(exporters)),
        ("prometheus", Some(exporters)),
        ("trace", Some(exporters)),
    ])
}

#[test]
fn no_flag_is_without_evidence() {
    let known: Vec<&str> = SETTINGS.iter().map(|setting| setting.flag).collect();
    let mut missing = known.clone();
    missing.retain(|flag| !evidence().contains_key(flag));
    assert!(missing.is_empty(), "no test shows the effect of these: {missing:?}");
    assert!(evidence().keys().all(|flag| known.contains(flag)));
}

#[test]
fn the_evidence_of_a_choice_or_a_switch_runs_every_value() {
    for setting in SETTINGS {
        let has_few_values = matches!(setting.kind, SettingKind::Choice(_) | SettingKind::Switch { .. });
        let each = matches!(evidence()[setting.flag], Evidence::Each(_));
        assert_eq!(each, has_few_values, "--{}", setting.flag);
    }
}

#[test]
fn data() {
    let (corpus, lines) = copy_of_demo();
    let id = |line: &String| line.split('|').next().unwrap().to_owned();
    let all = run_on(&corpus.path(""), "");
    let (trained, num_validation) = (all.ids(), all.events("validation")[0]["utterances"].as_u64().unwrap());
    assert_eq!(trained.len() + num_validation as usize, lines.len());
    // Every other utterance is excluded, and none of those is trained on.
    let excluded: Vec<String> = lines.iter().step_by(2).map(id).collect();
    let list = corpus.file("excluded.txt", excluded.join("\n"));
    let fewer = run_on(&corpus.path(""), &format!("--exclude-ids {}", list.display()));
    assert!(!fewer.ids().is_empty() && fewer.ids().iter().all(|id| !excluded.contains(id)));
    // With separate validation data, all of the corpus is trained on.
    let val = corpus.file("val.csv", lines[..3].join("\n"));
    let validated = run_on(&corpus.path(""), &format!("--val-data {}", val.display()));
    assert_eq!(
        (validated.events("validation")[0]["utterances"].as_u64(), validated.ids().len()),
        (Some(3), lines.len())
    );
    // Another corpus is another set.
    let few = corpus.file("few.csv", lines[..9].join("\n"));
    assert!(run_on(&few, "").ids().len() < trained.len());
}

/// Rows that name no speaker: the pattern finds it in their ids, from a flag and from a config.
#[test]
fn speaker_id_pattern() {
    let (corpus, lines) = copy_of_demo();
    let two_columns = |line: &String| line.split('|').take(2).collect::<Vec<_>>().join("|");
    corpus.file("metadata.csv", lines.iter().map(two_columns).collect::<Vec<_>>().join("\n"));
    let config = corpus.file("c.yaml", "data:\n  speaker_id_pattern: '{speaker}_*'\n");
    // The voices of a checkpoint are those of the speakers it was trained on.
    let voices = |run: &Run| -> BTreeSet<String> {
        let weights = run.weights();
        weights.iter().filter_map(|name| name.strip_prefix("reference.")).map(str::to_owned).collect()
    };
    let named: BTreeSet<String> = lines.iter().map(|line| line.split('|').nth(3).unwrap().to_owned()).collect();
    for line in ["--speaker-id-pattern {speaker}_*".to_owned(), format!("--config {}", config.display())] {
        assert_eq!(voices(&run_on(&corpus.path(""), &line)), named, "{line}");
    }
    assert_eq!(voices(&run_on(&corpus.path(""), "")), BTreeSet::from([String::new()]), "one voice without a name");
    // The other commands read the corpus in the same way: rows that do not match are problems of both.
    for command in ["plan --sim 1x24GiB", "profile --mode cpu --num-steps 1"] {
        let line = format!("{command} {} --speaker-id-pattern {{speaker}}-* -v", BASE.replace("--max-steps 2", ""));
        let ran = TandemCommand::new(&line).arg("--train-data").arg(corpus.path("")).run();
        assert_eq!(ran.code, 0, "{ran:?}");
        contains(&ran.err, &[&format!("--train-data: {} problems", lines.len()), "the speaker pattern does not match"]);
    }
    let ran =
        TandemCommand::new("plan --sim 1x24GiB --speaker-id-pattern ^(.*)_ --train-data").arg(corpus.path("")).run();
    assert_eq!(ran.code, 2, "{ran:?}");
    contains(
        &ran.err,
        &["--speaker-id-pattern: expected a pattern with {speaker}", "for example --speaker-id-pattern {speaker}_*"],
    );
}

#[test]
fn lang() {
    // Rows that name no language.
    let (corpus, lines) = copy_of_demo();
    let three_columns = |line: &String| line.split('|').take(3).collect::<Vec<_>>().join("|");
    corpus.file("metadata.csv", lines.iter().map(three_columns).collect::<Vec<_>>().join("\n"));
    let [english, other] = ["--lang en", "--lang xx"].map(|line| run_on(&corpus.path(""), line).model());
    let languages = |model: &Value| model["text"]["languages"].clone();
    // English is trained as phonemes, an unknown language as characters.
    let rules = |tag: &str, phonemizer: &str| json!([{ "tag": tag, "phonemizer": phonemizer, "script": "Latn" }]);
    assert_eq!(languages(&english), rules("en", "dictionary"));
    assert_eq!(languages(&other), rules("xx", "characters"));
}

#[test]
fn max_bad_fraction() {
    // A manifest with durations: a broken recording is noticed only when it is loaded.
    let (corpus, lines) = copy_of_demo();
    let mut list = String::new();
    for (at, line) in lines.iter().enumerate() {
        let (id, text) = (line.split('|').next().unwrap(), line.split('|').nth(1).unwrap());
        let file = format!("wavs/{id}.wav");
        let seconds = (fs::metadata(corpus.path(&file)).unwrap().len() - 44) as f64 / 2.0 / 22_050.0;
        list += &format!("{}\n", serde_json::json!({ "audio_filepath": file, "text": text, "duration": seconds }));
        if at % 3 == 0 {
            corpus.file(&file, "no recording");
        }
    }
    let manifest = corpus.file("list.jsonl", list);
    let folder = TempFolder::new();
    let go = |share: &str| {
        let line = merged(&format!("--max-bad-fraction {share} --epochs 1 --max-steps 1000"));
        command(&line, &manifest, &folder.path(share)).run()
    };
    let (strict, patient) = (go("0.01"), go("1"));
    assert_eq!(strict.code, 1, "{strict:?}");
    contains(&strict.err, &["bad_samples.jsonl"]);
    assert_eq!(patient.code, 0, "{patient:?}");
}

#[test]
fn ends() {
    let two = run("--max-steps 2");
    assert_eq!((two.steps(), two.checkpoints()), (2, vec!["checkpoint-00000002".to_owned()]));
    let often = run("--max-steps 3 --checkpoint-every 2");
    assert_eq!((often.steps(), often.checkpoints().len()), (3, 2));
    // Two epochs have twice the steps of one.
    let [one, both] =
        ["--epochs 1 --max-steps 1000 --batch-size 9", "--epochs 2 --max-steps 1000 --batch-size 9"].map(run);
    assert_eq!(both.steps(), 2 * one.steps());
}

#[test]
fn resume() {
    let folder = TempFolder::new();
    let dir = folder.path("run");
    let go = |line: &str| command(&merged(line), demo(), &dir).run();
    // Without a path it means the newest checkpoint, which must exist.
    let nothing = go("--resume");
    assert_eq!(nothing.code, 2, "{nothing:?}");
    contains(&nothing.err, &["--resume", "no checkpoint to resume from"]);
    assert_eq!(go("--max-steps 2 --checkpoint-every 1").code, 0);
    contains(
        &go("--max-steps 3 --resume --checkpoint-every 1").out,
        &["Resuming from step 2", "Training finished: 3 steps"],
    );
    let first = dir.join("checkpoint-00000001");
    contains(&go(&format!("--max-steps 3 --resume {}", first.display())).out, &["Resuming from step 1"]);
    let again = go("--max-steps 2 --reset-training").out;
    contains(&again, &["Moved the earlier run to"]);
    assert!(!again.contains("Resuming from"), "{again}");
}

#[test]
fn learning() {
    let usual = run("");
    assert_ne!(run("--seed 7").losses(), usual.losses());
    assert_eq!(run("--seed 1234").losses(), usual.losses());
    let rate = |run: &Run| run.events("step_metrics").last().unwrap()["lr"].as_f64().unwrap();
    assert_eq!(rate(&run("--lr 0.0005 --max-steps 1")), 0.0005);
}

#[test]
fn batches() {
    let [four, eight] =
        ["--batch-size 4", "--batch-size 8"].map(|line| run(&format!("{line} --epochs 1 --max-steps 1000")));
    assert!(eight.steps() < four.steps());
    let [single, split] = ["--batch-size 8", "--batch-size 8 --grad-accum 4"].map(run);
    // A step of four micro-batches takes four batches.
    let batches = |run: &Run| run.events("step_work")[0]["batches"].as_u64();
    assert_eq!((batches(&single), batches(&split)), (Some(1), Some(4)));
}

#[test]
fn lengths() {
    let all = run("").ids().len();
    for line in ["--max-mel-frames 200", "--max-text-length 40"] {
        let fewer = run(&format!("{line} --batch-size 1"));
        assert!(fewer.ids().len() < all, "{line}: {} of {all}", fewer.ids().len());
    }
}

/// Counts the decode threads of a running process by their names.
#[test]
fn workers() {
    for count in [1, 3] {
        let folder = TempFolder::new();
        let line = merged(&format!("--num-workers {count} --max-steps 100000"));
        let mut child = command(&line, demo(), &folder.path("run")).into_std().stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("Model training starting now")));
        let tasks = fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
        let names = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default());
        let decoders = names.filter(|name| name.starts_with("feed-decode")).count();
        Command::new("kill").args(["-KILL", &child.id().to_string()]).status().unwrap();
        child.wait().unwrap();
        assert_eq!(decoders, count);
    }
}

/// A run that waits until its buffers are full has loaded a batch for each of their slots.
#[test]
fn slots() {
    const PAIR: &str = "--sim 2x24GiB --data-gpu 0 --model-gpu 1 --model-start-delay 3600 --max-steps 1";
    // With two GPUs, half of the buffer.
    for (line, slots) in [
        ("--buffer-size 12 --prefetch-buffer-size 3", 6 + 3),
        ("--buffer-size 24 --prefetch-buffer-size 3", 12 + 3),
        ("--buffer-size 12 --prefetch-buffer-size 8", 6 + 8),
    ] {
        let loaded = run(&format!("{PAIR} {line}")).loaded_at_first_step();
        // Besides: one for the slot that the step has freed, and those that are decoded and wait for a slot.
        assert!((slots..=slots + 4).contains(&loaded), "{line}: {loaded} batches for {slots} slots");
    }
}

#[test]
fn devices() {
    let on = |line: &str| {
        let run = run(&format!("--sim 4x24GiB {line}"));
        (run.reserved("data").card, run.reserved("model").card)
    };
    assert_eq!(on("--data-gpu 2 --model-gpu 3"), (2, 3));
    assert_eq!(on("--data-gpu 3 --model-gpu 2"), (3, 2));
    assert_eq!(on("--gpu 1"), (1, 1));
    assert_eq!(on("--share-gpu --gpu 2"), (2, 2));
}

#[test]
fn limits() {
    const PAIR: &str = "--sim 2x24GiB --data-gpu 0 --model-gpu 1";
    let isolated = |line: &str| run(&format!("{PAIR} --enable-memory-isolation {line}"));
    let limits = |run: &Run| (run.reserved("data").limit_mb, run.reserved("model").limit_mb);
    assert_eq!(limits(&isolated("--data-gpu-memory 2048 --model-gpu-memory 4096")), (2048, 4096));
    assert_eq!(limits(&isolated("--data-gpu-memory auto --model-gpu-memory auto:0.5")), (8110, 12288));
}

/// With decoding so slow that a step ends long before the next batch is loaded.
#[test]
fn start() {
    const SLOTS: usize = 5 + 2;
    let folder = TempFolder::new();
    let dir = folder.path("run");
    let command = command(&merged("--model-start-delay 0 --max-steps 1"), demo(), &dir);
    let ran = command.env("TANDEM_FAULT", "slow:decode:400").run();
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &["Data buffer: 0/7 batches ready after 0.0 s; --model-start-delay allows no more"]);
    let at_once = Run { ran, dir, _folder: folder }.loaded_at_first_step();
    assert!(at_once < SLOTS, "{at_once}");
    let warm = run("--model-start-delay 3600");
    assert!(warm.loaded_at_first_step() >= SLOTS, "{}", warm.loaded_at_first_step());
    contains(&warm.ran.out, &["Data buffer: 7/7 batches ready after "]);
    assert!(!warm.ran.out.contains("--model-start-delay allows"), "{}", warm.ran.out);
}

#[test]
fn exporters() {
    let folder = TempFolder::new();
    let line =
        format!("--tensorboard-dir {} --trace {}", folder.path("tb").display(), folder.path("trace.json").display());
    let elsewhere = run(&line);
    let event_files = |dir: &Path| {
        let names = fs::read_dir(dir).map(|dir| dir.map(|entry| entry.unwrap().path()).collect::<Vec<_>>());
        names.unwrap_or_default().iter().filter(|path| fs::metadata(path).unwrap().len() > 200).count()
    };
    assert_eq!((event_files(&folder.path("tb")), event_files(&elsewhere.dir.join("tensorboard"))), (1, 0));
    let trace: Value = serde_json::from_slice(&fs::read(folder.path("trace.json")).unwrap()).unwrap();
    let steps = trace
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| event["name"].as_str().is_some_and(|name| name.starts_with("step")));
    assert!(steps.count() >= 2, "{trace}");
    // By default the event files are in the run's folder, and there is no trace.
    assert_eq!(event_files(&run("").dir.join("tensorboard")), 1);

    // Queried during training, at the port the system chose.
    let served = command(&merged("--prometheus 127.0.0.1:0 --max-steps 100000"), demo(), &folder.path("served"));
    let mut child = served.into_std().stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let place = lines.find_map(|line| line.split_once("http://").map(|(_, rest)| rest.to_owned())).unwrap();
    let (address, _) = place.split_once('/').unwrap();
    assert!(lines.any(|line| line.starts_with("Step ")));
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    Command::new("kill").args(["-KILL", &child.id().to_string()]).status().unwrap();
    child.wait().unwrap();
    contains(&page, &["200 OK", "tandem_step "]);

    // Invalid values are refused before anything is created.
    let odd = command(&merged("--prometheus nowhere"), demo(), &folder.path("odd")).run();
    assert_eq!(odd.code, 2, "{odd:?}");
    contains(&odd.err, &["--prometheus", "9090"]);
    assert!(!folder.path("odd").exists());
    let no_place = command(&merged("--trace no/such/folder/t.json"), demo(), &folder.path("no-place")).run();
    assert_eq!(no_place.code, 2, "{no_place:?}");
}
