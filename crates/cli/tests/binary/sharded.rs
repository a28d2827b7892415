//! Corpora in shards and object stores, as the original tools write them: every one trains to the bits of the folder that it was
//! made from.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tandem_test_support::corpora::{S3Server, corpora, lhotse_fixtures};
use tandem_test_support::object_server::{ObjectServer, ServerFaults};

use crate::command::{Ran, TandemCommand, contains};
use crate::machine::TempFolder;
use crate::speech::demo;

/// Twelve utterances of one voice: no format loses anything of them.
fn source() -> TempFolder {
    let folder = TempFolder::new();
    let metadata = fs::read_to_string(demo().join("metadata.csv")).unwrap();
    let mut rows = String::new();
    for line in metadata.lines().take(12) {
        let mut columns = line.split('|');
        let (id, text) = (columns.next().unwrap(), columns.next().unwrap());
        rows += &format!("{id}|{text}\n");
        folder.file(&format!("wavs/{id}.wav"), fs::read(demo().join(format!("wavs/{id}.wav"))).unwrap());
    }
    folder.file("metadata.csv", rows);
    folder
}

/// The first two utterances of an LJSpeech folder: enough to validate on, and quick.
fn two_of(folder: &Path) -> TempFolder {
    let two = TempFolder::new();
    let metadata = fs::read_to_string(folder.join("metadata.csv")).unwrap();
    let rows: Vec<&str> = metadata.lines().take(2).collect();
    for row in &rows {
        let id = row.split('|').next().unwrap();
        two.file(&format!("wavs/{id}.wav"), fs::read(folder.join(format!("wavs/{id}.wav"))).unwrap());
    }
    two.file("metadata.csv", rows.join("\n"));
    two
}

const STEPS: usize = 7;

fn train(names: &[String], validation: &Path, run: &Path, variables: &[(String, String)]) -> Ran {
    let line = "train --mode cpu --model-size nano --batch-size 2 --buffer-size 3 --num-workers 2";
    let command = TandemCommand::new(line).arg("--max-steps").arg(STEPS.to_string()).arg("--val-data").arg(validation);
    let command = command.arg("--checkpoint-dir").arg(run).arg("--train-data").args(names);
    variables.iter().fold(command, |command, (name, value)| command.env(name, value)).run()
}

/// The weights after a few steps: two epochs and a half, validation left out of them.
#[track_caller]
fn weights(names: &[String], validation: &Path, variables: &[(String, String)]) -> Vec<(String, Vec<u8>)> {
    let (folder, two) = (TempFolder::new(), two_of(validation));
    let ran = train(names, &two.path(""), &folder.path("run"), variables);
    assert_eq!(ran.code, 0, "{names:?}: {ran:?}");
    contains(&ran.out, &[&format!("Training finished: {STEPS} steps")]);
    tensors(&folder.path("run"), STEPS)
}

/// The names of the tensors of a checkpoint.
fn names_of_tensors(run: &Path, step: usize) -> Vec<String> {
    header_and_data(run, step).0.as_object().unwrap().keys().cloned().collect()
}

fn header_and_data(run: &Path, step: usize) -> (Value, Vec<u8>) {
    let file = fs::read(run.join(format!("checkpoint-{step:08}/weights.safetensors"))).unwrap();
    let (length, rest) = file.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    (serde_json::from_slice(header).unwrap(), data.to_vec())
}

/// The tensors of a checkpoint by name. The voice is called `reference` whatever its name: not every format has one.
fn tensors(run: &Path, step: usize) -> Vec<(String, Vec<u8>)> {
    let (header, data) = header_and_data(run, step);
    let mut found = Vec::new();
    for (name, tensor) in header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__") {
        let at = |end: usize| tensor["data_offsets"][end].as_u64().unwrap() as usize;
        let name = if name.starts_with("reference.") { "reference" } else { name };
        found.push((name.to_owned(), data[at(0)..at(1)].to_vec()));
    }
    found.sort();
    assert!(found.len() > 10);
    found
}

fn name(path: PathBuf) -> Vec<String> {
    vec![path.to_str().unwrap().to_owned()]
}

#[test]
fn every_format_trains_to_the_bits_of_the_folder() {
    let source = source();
    let Some(made) = corpora(&source.path(""), "formats of the original tools") else { return };
    let folder = made.join("ljspeech");
    let expected = weights(&name(folder.clone()), &folder, &[]);
    let formats = [
        ("webdataset_json", "webdataset"),
        ("webdataset_txt/shard-{000000..000003}.tar", "webdataset"),
        ("hugging_face", "parquet"),
        ("hugging_face/data/*.parquet", "parquet"),
        ("cosyvoice/data.list", "parquet"),
        ("arrow", "arrow"),
        ("f5tts/raw.arrow", "arrow"),
        ("f5tts_characters/raw.arrow", "arrow"),
        ("nemo_tarred", "nemo-tarred"),
        ("nemo_sharded", "nemo-tarred"),
    ];
    for (corpus, format) in formats {
        let names = name(made.join(corpus));
        let checked = TandemCommand::new("corpus check --json").args(&names).run();
        let report = checked.json();
        assert_eq!((checked.code, &report["problems"]), (0, &json!([])), "{corpus}: {checked:?}");
        assert_eq!((&report["format"], &report["utterances"]), (&json!(format), &json!(12)), "{corpus}");
        assert!(weights(&names, &folder, &[]) == expected, "{corpus} trains to other weights");
    }
}

#[test]
fn lhotse_cuts_and_shar_train_to_the_bits_of_the_folder() {
    let fixtures = lhotse_fixtures();
    let line = |name: &str| vec![fixtures.join(name).to_str().unwrap().to_owned()];
    let flags = "corpus check --json --columns text=text";
    for (corpus, format) in [("cuts.jsonl.gz", "lhotse-cuts"), ("shar", "lhotse-shar")] {
        let ran = TandemCommand::new(flags).args(line(corpus)).run();
        assert_eq!((&ran.json()["format"], &ran.json()["utterances"]), (&json!(format), &json!(8)), "{ran:?}");
        assert!(
            weights(&line(corpus), &fixtures, &[]) == weights(&line("metadata.csv"), &fixtures, &[]),
            "{corpus} trains to other weights"
        );
    }
}

#[test]
fn packed_shards_train_to_the_bits_of_the_folder() {
    let source = source();
    let expected = weights(&name(source.path("")), &source.path(""), &[]);
    for format in ["tar", "parquet"] {
        let out = TempFolder::new();
        let pack = || TandemCommand::new("corpus pack --shard-mb 1 --format").arg(format).arg(source.path(""));
        let ran = pack().arg("-o").arg(out.path("shards")).run();
        assert_eq!(ran.code, 0, "{ran:?}");
        contains(&ran.out, &["✅ 12 utterances in ", "To train on them: tandem train --train-data "]);
        let shards = fs::read_dir(out.path("shards")).unwrap().count();
        assert!(shards > 1, "{shards}");
        assert!(weights(&name(out.path("shards")), &source.path(""), &[]) == expected, "{format}");
        // Nothing is overwritten, and packing is reproducible.
        let again = pack().arg("-o").arg(out.path("shards")).run();
        assert_eq!(again.code, 2, "{again:?}");
        contains(&again.err, &["not empty", "tandem corpus pack SOURCE -o "]);
        pack().arg("-o").arg(out.path("second")).run();
        for entry in fs::read_dir(out.path("shards")).unwrap() {
            let path = entry.unwrap().path();
            assert!(fs::read(&path).unwrap() == fs::read(out.path("second").join(path.file_name().unwrap())).unwrap());
        }
    }
}

#[test]
fn a_bucket_trains_to_the_bits_of_the_folder() {
    let source = source();
    let Some(made) = corpora(&source.path(""), "corpora in a bucket") else { return };
    let Some(server) = S3Server::start(&made, Duration::from_millis(5), "corpora in a bucket") else { return };
    let folder = made.join("ljspeech");
    let expected = weights(&name(folder.clone()), &folder, &[]);
    for corpus in
        ["ljspeech/", "webdataset_json/shard-{000000..000003}.tar", "hugging_face/", "nemo_sharded/", "arrow/*.arrow"]
    {
        let found = weights(&[server.url(corpus)], &folder, &server.variables());
        assert!(found == expected, "{corpus} trains to other weights");
    }
    // Without credentials the service refuses: a failure of the world, not of the command.
    let run = TempFolder::new();
    let ran = train(&[server.url("arrow/*.arrow")], &folder, &run.path("run"), &server.variables_without_credentials());
    assert_eq!(ran.code, 1, "{ran:?}");
    contains(&ran.err, &["access denied", "s3://voices/arrow/"]);
    let Some(public) = S3Server::start_public(&made, Duration::ZERO, "a public bucket") else { return };
    let names = [public.url("webdataset_json/shard-{000000..000003}.tar")];
    assert!(weights(&names, &folder, &public.variables_without_credentials()) == expected);
}

#[test]
fn a_server_with_faults_gives_the_same_bits() {
    let source = source();
    let shards = TempFolder::new();
    let ran = TandemCommand::new("corpus pack --shard-mb 1").arg(source.path("")).arg("-o").arg(shards.path("s")).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    let expected = weights(&name(shards.path("s")), &source.path(""), &[]);
    let server = ObjectServer::start(
        &shards.path(""),
        ServerFaults { unavailable_every: Some(20), cut_every: Some(33), ..ServerFaults::default() },
    );
    let found = weights(&["s3://s/*.tar".to_owned()], &source.path(""), &server.variables());
    assert!(found == expected);
    assert!(server.requests() > 20);
}

/// Shards of the source in a folder `bucket`, and the source.
fn packed() -> (TempFolder, TempFolder) {
    let (source, shards) = (source(), TempFolder::new());
    let pack = TandemCommand::new("corpus pack --shard-mb 1").arg(source.path(""));
    let ran = pack.arg("-o").arg(shards.path("bucket")).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    (shards, source)
}

#[test]
fn a_store_that_stops_answering_ends_the_run_with_a_checkpoint_that_resumes_to_the_same_bits() {
    let (shards, source) = packed();
    let home = TempFolder::new();
    let steps = 30;
    let train = |server: &ObjectServer, run: &Path| {
        let line = "train --mode cpu --model-size nano --batch-size 2 --buffer-size 3 --num-workers 2 --cache none";
        let command =
            TandemCommand::new(line).arg("--max-steps").arg(steps.to_string()).arg("--val-data").arg(source.path(""));
        let command = command.arg("--checkpoint-dir").arg(run).args(["--train-data", "s3://bucket/*.tar"]);
        let variables = server.variables();
        let command = variables.iter().fold(command, |command, (name, value)| command.env(name, value));
        command.env("XDG_CACHE_HOME", home.path("")).run()
    };
    let whole = ObjectServer::start(&shards.path(""), ServerFaults::default());
    let clean = train(&whole, &home.path("clean"));
    assert_eq!(clean.code, 0, "{clean:?}");
    let requests = whole.requests();

    // With the index, most requests are for recordings: the store goes down in the middle of the run.
    let down = ServerFaults { down_from: Some(requests / 2), ..ServerFaults::default() };
    let down = ObjectServer::start(&shards.path(""), down);
    let stopped = train(&down, &home.path("stopped"));
    assert_eq!(stopped.code, 1, "{stopped:?}");
    contains(&stopped.err, &["storage is unreachable", "8 attempts", "is saved", "type the same command again"]);
    assert!(!home.path("stopped/bad_samples.jsonl").exists(), "no sample is replaced");
    let resumed = train(&whole, &home.path("stopped"));
    assert_eq!(resumed.code, 0, "{resumed:?}");
    contains(&resumed.out, &["Resuming from step "]);
    assert!(tensors(&home.path("stopped"), steps) == tensors(&home.path("clean"), steps));
}

#[test]
fn a_missing_object_is_a_bad_sample() {
    let source = source();
    let bucket = TempFolder::new();
    let mut rows = String::new();
    for line in fs::read_to_string(source.path("metadata.csv")).unwrap().lines() {
        let (id, text) = line.split_once('|').unwrap();
        let recording = fs::read(source.path(&format!("wavs/{id}.wav"))).unwrap();
        let seconds = (recording.len() - 44) as f64 / 2.0 / 22_050.0;
        rows += &json!({"audio_filepath": format!("wavs/{id}.wav"), "text": text, "duration": seconds}).to_string();
        rows += "\n";
        bucket.file(&format!("voices/wavs/{id}.wav"), recording);
    }
    bucket.file("voices/train.jsonl", rows);
    let first = fs::read_dir(bucket.path("voices/wavs")).unwrap().next().unwrap().unwrap().path();
    fs::remove_file(&first).unwrap();
    let server = ObjectServer::start(&bucket.path(""), ServerFaults::default());
    let run = TempFolder::new();
    let line =
        "train --mode cpu --model-size nano --batch-size 2 --num-workers 1 --max-steps 12 --max-bad-fraction 0.2";
    let command =
        TandemCommand::new(line).arg("--val-data").arg(source.path("")).arg("--checkpoint-dir").arg(run.path("run"));
    let command = command.args(["--train-data", "s3://voices/train.jsonl"]);
    let command = server.variables().iter().fold(command, |command, (name, value)| command.env(name, value));
    let ran = command.run();
    assert_eq!(ran.code, 0, "{ran:?}");
    let bad = fs::read_to_string(run.path("run/bad_samples.jsonl")).unwrap();
    let name = first.file_name().unwrap().to_str().unwrap();
    contains(&bad, &[&format!("s3://voices/wavs/{name}")]);
}

#[test]
fn an_index_is_built_once_and_problems_name_shard_and_member() {
    let (shards, _source) = packed();
    let home = TempFolder::new();
    let index = || {
        let ran = TandemCommand::new("corpus index --json")
            .arg(shards.path("bucket"))
            .env("XDG_CACHE_HOME", home.path(""))
            .run();
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.json()
    };
    let (first, second) = (index(), index());
    let number = |document: &Value, key: &str| document[key].as_u64().unwrap();
    assert!(number(&first, "shards_scanned") > 1 && number(&first, "shards_indexed") == 0, "{first}");
    assert_eq!(number(&second, "shards_indexed"), number(&first, "shards_scanned"), "{second}");
    assert_eq!(number(&second, "shards_scanned"), 0, "{second}");

    let path = shards.path("bucket/shard-000000.tar");
    let mut bytes = fs::read(&path).unwrap();
    // The recording of the first member: a wav that is none.
    bytes[512..516].copy_from_slice(b"none");
    fs::write(&path, bytes).unwrap();
    let ran =
        TandemCommand::new("corpus check --json").arg(shards.path("bucket")).env("XDG_CACHE_HOME", home.path("")).run();
    assert_eq!(ran.code, 1, "{ran:?}");
    let problems = ran.json()["problems"].to_string();
    contains(&problems, &["shard-000000.tar", "undecodable", ".wav (byte 512)"]);
}

/// A run of three epochs that is killed after `last_lines`, one after the other, and then resumed.
#[track_caller]
fn killed_and_resumed(names: &[String], validation: &Path, variables: &[(String, String)], last_lines: &[&str]) {
    const STEPS: usize = 17;
    let two = two_of(validation);
    let line = "train --mode cpu --model-size nano --batch-size 2 --buffer-size 3 --num-workers 2 --cache none --checkpoint-every 3";
    let command = |run: &Path| {
        let command =
            TandemCommand::new(line).arg("--max-steps").arg(STEPS.to_string()).arg("--val-data").arg(two.path(""));
        let command = command.arg("--checkpoint-dir").arg(run).arg("--train-data").args(names);
        variables.iter().fold(command, |command, (name, value)| command.env(name, value))
    };
    let folder = TempFolder::new();
    let clean = command(&folder.path("clean")).run();
    assert_eq!(clean.code, 0, "{names:?}: {clean:?}");
    for last_line in last_lines {
        let mut child = command(&folder.path("killed")).into_std().stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let seen = lines.map_while(Result::ok).any(|line| line.contains(last_line));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(seen, "{names:?}: {last_line}");
    }
    let resumed = command(&folder.path("killed")).run();
    assert_eq!(resumed.code, 0, "{names:?}: {resumed:?}");
    contains(&resumed.out, &["Resuming from step "]);
    let (killed, clean) = (tensors(&folder.path("killed"), STEPS), tensors(&folder.path("clean"), STEPS));
    assert!(killed == clean, "{names:?}: a killed run has other weights");
}

#[test]
fn a_killed_run_resumes_to_the_same_bits_from_every_format() {
    let source = source();
    let Some(made) = corpora(&source.path(""), "kills with formats of the original tools") else { return };
    let (first_epoch, last_epoch) = ("Wrote checkpoint-00000003", "Wrote checkpoint-00000015");
    let formats = [
        ("webdataset_json", last_epoch),
        ("hugging_face", last_epoch),
        ("arrow", first_epoch),
        ("nemo_sharded", last_epoch),
    ];
    for (corpus, last_line) in formats {
        killed_and_resumed(&name(made.join(corpus)), &made.join("ljspeech"), &[], &[last_line]);
    }
    for (corpus, last_line) in [("cuts.jsonl.gz", first_epoch), ("shar", last_epoch)] {
        killed_and_resumed(&name(lhotse_fixtures().join(corpus)), &lhotse_fixtures(), &[], &[last_line]);
    }
    let server = ObjectServer::start(&made, ServerFaults::default());
    let names = ["s3://webdataset_json/shard-{000000..000003}.tar".to_owned()];
    let last_lines = ["Creating model", first_epoch, last_epoch];
    killed_and_resumed(&names, &made.join("ljspeech"), &server.variables(), &last_lines);
}

/// `--columns`: another column is the speaker, so that every utterance is a voice of its own.
#[test]
pub(crate) fn columns() {
    let source = source();
    let out = TempFolder::new();
    let pack = TandemCommand::new("corpus pack --format parquet").arg(source.path(""));
    assert_eq!(pack.arg("-o").arg(out.path("shards")).run().code, 0);
    let voices = |columns: &[&str]| {
        let line = "train --mode cpu --model-size nano --batch-size 2 --num-workers 1 --max-steps 1";
        let run = TempFolder::new();
        let command = TandemCommand::new(line).arg("--checkpoint-dir").arg(run.path("run")).args(columns);
        let ran = command.arg("--train-data").arg(out.path("shards")).run();
        assert_eq!(ran.code, 0, "{ran:?}");
        let names = names_of_tensors(&run.path("run"), 1);
        names.iter().filter(|name| name.starts_with("reference.")).count()
    };
    assert_eq!(voices(&[]), 1);
    assert!(voices(&["--columns", "speaker=id"]) > 5);
    let ran =
        TandemCommand::new("plan --sim 1x24GiB --columns text=nothing --train-data").arg(out.path("shards")).run();
    assert_eq!(ran.code, 2, "{ran:?}");
    contains(&ran.err, &["`nothing`", "`text`", "--columns text=NAME"]);
    let ran = TandemCommand::new("plan --sim 1x24GiB --columns text=x --train-data").arg(source.path("")).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.err, &["--columns has no effect: LJSpeech has no columns"]);
}

/// `--read-ahead-mb`: with 0, one decode thread has one request in flight; with the default, several.
#[test]
pub(crate) fn read_ahead_mb() {
    let (shards, source) = packed();
    let (home, two) = (TempFolder::new(), two_of(&source.path("")));
    let in_flight = |faults: ServerFaults, more: &[&str]| {
        let server = ObjectServer::start(&shards.path(""), faults);
        let line = "train --mode cpu --model-size nano --batch-size 2 --num-workers 1 --max-steps 4 --cache none";
        let run = TempFolder::new();
        let command = TandemCommand::new(line).arg("--checkpoint-dir").arg(run.path("run")).args(more);
        let command = command.arg("--val-data").arg(two.path("")).args(["--train-data", "s3://bucket/*.tar"]);
        let command = server.variables().iter().fold(command, |command, (name, value)| command.env(name, value));
        let ran = command.env("XDG_CACHE_HOME", home.path("")).run();
        assert_eq!(ran.code, 0, "{ran:?}");
        (server.max_in_flight(), server.requests())
    };
    // The first run also builds the index.
    in_flight(ServerFaults::default(), &[]);
    let (most, requests) = in_flight(ServerFaults::default(), &["--read-ahead-mb", "0"]);
    assert_eq!(most, 1);
    // Once batches are loaded, the server answers when four requests wait for it: one thread alone never has as many.
    let gather = ServerFaults { gather: 4, gather_from: requests - 7, ..ServerFaults::default() };
    assert!(in_flight(gather, &["--read-ahead-mb", "16"]).0 >= 4);
}

/// Two sources of six utterances each, one of short recordings and one of long ones, and a mixture of them.
fn mixture(weight: u32) -> TempFolder {
    let source = source();
    let metadata = fs::read_to_string(source.path("metadata.csv")).unwrap();
    let recording = |row: &str| fs::read(source.path(&format!("wavs/{}.wav", row.split('|').next().unwrap()))).unwrap();
    let mut rows: Vec<(&str, Vec<u8>)> = metadata.lines().map(|row| (row, recording(row))).collect();
    rows.sort_by_key(|(_, recording)| recording.len());
    let folder = TempFolder::new();
    for (name, rows) in [("short", &rows[..6]), ("long", &rows[6..])] {
        let list: String = rows.iter().map(|(row, _)| format!("{row}\n")).collect();
        folder.file(&format!("{name}/metadata.csv"), list);
        for (row, recording) in rows {
            folder.file(&format!("{name}/wavs/{}.wav", row.split('|').next().unwrap()), recording);
        }
    }
    weigh(&folder, weight);
    folder
}

/// Gives the long source of a mixture this weight.
fn weigh(folder: &TempFolder, weight: u32) {
    folder.file("corpus.yaml", format!("sources:\n  - path: short\n  - path: long\n    weight: {weight}\n"));
}

const SMALL_RUN: &str = "--mode cpu --model-size nano --batch-size 2 --num-workers 2";

#[test]
fn a_mixture_with_weights_trains_on_repeated_rows_and_resumes_only_with_the_same_weights() {
    let folder = mixture(5);
    let two = two_of(&folder.path("short"));
    let command = |what: &str| {
        let command = TandemCommand::new(&format!("{what} {SMALL_RUN}")).arg("--val-data").arg(two.path(""));
        command.arg("--train-data").arg(folder.path("corpus.yaml"))
    };
    // Six once and six five times.
    let plan = command("plan --json").run().json();
    let count = |key: &str| plan["corpus"][key].as_u64().unwrap();
    assert_eq!((count("utterances"), count("epoch_utterances"), count("batches")), (12, 36, 18), "{plan}");
    let hours = |key: &str| plan["corpus"][key].as_f64().unwrap();
    assert!(hours("epoch_hours") > 3.0 * hours("hours"), "{plan}");

    let run = TempFolder::new();
    let train =
        |name: &str, more: &[&str]| command("train").args(more).arg("--checkpoint-dir").arg(run.path(name)).run();
    for name in ["first", "second"] {
        let ran = train(name, &["--epochs", "1"]);
        assert_eq!(ran.code, 0, "{ran:?}");
        contains(&ran.out, &["Training finished: 18 steps"]);
    }
    assert!(tensors(&run.path("first"), 18) == tensors(&run.path("second"), 18));

    for weight in [4, 1] {
        weigh(&folder, weight);
        let refused = train("first", &["--epochs", "2"]);
        assert_eq!(refused.code, 2, "{refused:?}");
        contains(
            &refused.err,
            &["another run: mixture_weights: expected ", "--checkpoint-dir OTHER", "--reset-training"],
        );
    }
    // Weights count compared with each other.
    folder.file("corpus.yaml", "sources: [{path: short, weight: 0.2}, {path: long}]");
    let ran = train("first", &["--epochs", "1"]);
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[test]
fn a_list_with_other_durations_is_another_run_and_a_folder_without_lengths_resumes() {
    let source = source();
    let list = |digits: f64| {
        let mut rows = String::new();
        for line in fs::read_to_string(source.path("metadata.csv")).unwrap().lines() {
            let (id, text) = line.split_once('|').unwrap();
            let path = source.path(&format!("wavs/{id}.wav"));
            let seconds = (fs::metadata(&path).unwrap().len() - 44) as f64 / 2.0 / 22_050.0;
            let seconds = (seconds * digits).floor() / digits;
            rows += &json!({"audio_filepath": path, "text": text, "duration": seconds}).to_string();
            rows += "\n";
        }
        rows
    };
    let run = TempFolder::new();
    let train = |steps: &str| {
        let command = TandemCommand::new(&format!("train {SMALL_RUN} --max-steps")).arg(steps).arg("--val-data");
        let command = command.arg(source.path("")).arg("--checkpoint-dir").arg(run.path("run"));
        command.arg("--train-data").arg(run.path("list.jsonl")).run()
    };
    run.file("list.jsonl", list(1e6));
    let ran = train("1");
    assert_eq!(ran.code, 0, "{ran:?}");
    run.file("list.jsonl", list(10.0));
    let refused = train("2");
    assert_eq!(refused.code, 2, "{refused:?}");
    contains(
        &refused.err,
        &["another run: recording_lengths: expected ", "--checkpoint-dir OTHER", "--reset-training"],
    );

    // As an older version wrote it.
    let path = run.path("run/run.json");
    let mut stored: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    stored["facts"].as_object_mut().unwrap().remove("recording_lengths").unwrap();
    fs::write(&path, stored.to_string()).unwrap();
    run.file("list.jsonl", list(1e6));
    let resumed = train("2");
    assert_eq!(resumed.code, 0, "{resumed:?}");
    contains(&resumed.out, &["Resuming from step 1"]);
}
