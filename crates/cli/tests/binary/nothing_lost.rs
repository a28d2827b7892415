//! No row, no step and no file is lost without a word.

use std::fs;
use std::io::{BufRead, BufReader, Read as _};
use std::path::Path;
use std::process::Stdio;

use crate::command::{Ran, SMALL, TandemCommand, contains};
use crate::machine::TempFolder;
use crate::speech::{copy_of_demo, demo, tone, wav_of};

/// `train` for a few steps on `corpus`, into `run`.
fn train(corpus: &Path, run: &Path, more: &str) -> Ran {
    let command = TandemCommand::new(&format!("train --mode cpu {SMALL} {more}")).without_gpu();
    command.arg("--train-data").arg(corpus).arg("--checkpoint-dir").arg(run).run()
}

#[test]
fn a_disk_cache_serves_the_same_batches_in_every_command_and_stays_for_the_next_start() {
    let folder = TempFolder::new();
    let [cached, decoded] = ["cached", "decoded"].map(|name| folder.path(name));
    // 20 steps of 2: more than an epoch, so that the cache is read.
    let [with, without] = [("disk", &cached), ("none", &decoded)].map(|(cache, run)| {
        let ran = train(demo(), run, &format!("--cache {cache} --max-steps 20"));
        assert_eq!(ran.code, 0, "{ran:?}");
        fs::read(run.join("checkpoint-00000020/weights.safetensors")).unwrap()
    });
    assert!(with == without, "the cache changed what was trained");
    let entries = fs::read_dir(cached.join("audio-cache")).unwrap().count();
    assert!(entries > 5, "{entries} files in the cache");
    let again = train(demo(), &cached, "--cache disk --max-steps 22");
    assert_eq!(again.code, 0, "{again:?}");
    for command in ["validate", "profile --num-steps 4"] {
        let run = folder.path("untouched");
        let ran = TandemCommand::new(&format!("{command} --mode cpu {SMALL} --cache disk")).without_gpu();
        let ran = ran.arg("--train-data").arg(demo()).arg("--checkpoint-dir").arg(&run).run();
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(!run.exists(), "{command} leaves no files");
    }
}

#[test]
fn recordings_beyond_every_limit_are_skipped_by_every_command() {
    let (corpus, mut lines) = copy_of_demo();
    let list = corpus.path("list.jsonl");
    let rows = lines.iter().map(|line| {
        let mut fields = line.split('|');
        let (id, text) = (fields.next().unwrap(), fields.next().unwrap());
        format!("{{\"audio_filepath\":\"wavs/{id}.wav\",\"text\":{text:?}}}")
    });
    let mut rows: Vec<String> = rows.collect();
    // Said to last 20 minutes; a frame limit derived from it would be above the largest that a plan allows.
    rows[3] = rows[3].replace("}", ",\"duration\":1200.0}");
    corpus.file("list.jsonl", rows.join("\n"));
    // A header that claims 2^36 - 1 samples in front of silence.
    corpus.file("wavs/endless.flac", flac_that_claims((1 << 36) - 1));
    lines.push("endless|A recording without an end.".to_owned());
    corpus.file("metadata.csv", lines.join("\n"));
    for (number, data) in [corpus.path(""), list].iter().enumerate() {
        let run = corpus.path(&format!("run-{number}"));
        // Without SMALL's limit on frames: the limit comes from the corpus.
        let line = "--mode cpu --model-size nano --batch-size 2 --buffer-size 4";
        for command in ["train --max-steps 1", "validate", "profile --num-steps 2", "plan"] {
            let command = TandemCommand::new(&format!("{command} {line}")).without_gpu();
            let ran = command.arg("--train-data").arg(data).arg("--checkpoint-dir").arg(&run).run();
            assert_eq!(ran.code, 0, "{}: {ran:?}", data.display());
            assert!(!ran.err.contains("panicked"), "{ran:?}");
        }
    }
}

/// A flac file whose header claims `samples` samples at 22 050 Hz, without any audio behind it.
fn flac_that_claims(samples: u64) -> Vec<u8> {
    let mut file = b"fLaC\x80\0\0\x22".to_vec();
    // Block sizes, frame sizes, then 20 bits of rate, 3 of channels - 1, 5 of bits - 1, 36 of samples.
    file.extend([0x10, 0, 0x10, 0, 0, 0, 0, 0, 0, 0]);
    let packed = 22_050_u64 << 44 | 15 << 36 | samples;
    file.extend(packed.to_be_bytes());
    file.extend([0; 16]);
    file.extend([0; 64]);
    file
}

#[test]
fn skipped_rows_replaced_recordings_and_overlaps_are_reported() {
    let (corpus, mut lines) = copy_of_demo();
    let id = lines[2].split('|').next().unwrap().to_owned();
    // An utterance without a text, and a recording that only decoding shows to be damaged.
    lines[4] = format!("{}||", lines[4].split('|').next().unwrap());
    // Three that are too long: one in ten rows is for validation.
    for line in &lines[5..8] {
        corpus.file(&format!("wavs/{}.wav", line.split('|').next().unwrap()), wav_of(&tone(22_050, 31.0)));
    }
    let intact = fs::read(corpus.path(&format!("wavs/{id}.wav"))).unwrap();
    corpus.file(&format!("wavs/{id}.wav"), &intact[..intact.len() / 2]);
    corpus.file("metadata.csv", lines.join("\n"));
    // Limits from the corpus: all but the longest.
    let line = "train --mode cpu --model-size nano --batch-size 2 --buffer-size 4 --max-steps 20 --max-bad-fraction 0.5 \
                --max-mel-frames 1500";
    let command = TandemCommand::new(line).without_gpu().arg("--train-data").arg(corpus.path(""));
    let ran = command.arg("--checkpoint-dir").arg(corpus.path("run")).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &[" over 1500 frames", "; 1 rejected (empty text)", "  replaced 1"]);
    contains(&ran.err, &["1 recording was unusable and replaced", &id, "Listed in ", "bad_samples.jsonl"]);

    let ran = train(demo(), &corpus.path("both"), &format!("--max-steps 1 --val-data {}", demo().display()));
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.err, &["--val-data: ", "are also in --train-data"]);
    let ran = train(demo(), &corpus.path("split"), "--max-steps 1");
    assert!(ran.code == 0 && !ran.both().contains("also in"), "{ran:?}");
}

#[test]
fn a_data_failure_saves_the_last_step_and_the_run_resumes_to_the_same_bits() {
    let (corpus, lines) = copy_of_demo();
    let [clean, failed] = ["clean", "failed"].map(|name| corpus.path(name));
    let line = "--max-steps 24 --checkpoint-every 1000 --num-workers 1 --cache none --grad-accum 2";
    assert_eq!(train(&corpus.path(""), &clean, line).code, 0);
    // After some steps the recordings are gone: more than may be bad.
    let wavs = corpus.path("wavs");
    let mut child = {
        let command = TandemCommand::new(&format!("train --mode cpu {SMALL} {line}")).without_gpu();
        // Slow enough that the recordings disappear long before the run has decoded them all.
        let command = command.env("TANDEM_FAULT", "slow:decode:400").arg("--train-data").arg(corpus.path(""));
        command
            .arg("--checkpoint-dir")
            .arg(&failed)
            .into_std()
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let started = out.by_ref().lines().map_while(Result::ok).any(|line| line.contains("Estimated time"));
    assert!(started, "printed after some steps");
    fs::rename(&wavs, corpus.path("gone")).unwrap();
    let rest = std::io::read_to_string(out).unwrap();
    let error = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    let code = child.wait().unwrap().code();
    fs::rename(corpus.path("gone"), &wavs).unwrap();
    assert_eq!(code, Some(1), "{rest}{error}");
    contains(&error, &["may be bad", "is saved: ", "type the same command again"]);
    let resumed = train(&corpus.path(""), &failed, line);
    assert_eq!(resumed.code, 0, "{resumed:?}");
    contains(&resumed.out, &["Resuming from step "]);
    let weights = |run: &Path| fs::read(run.join("checkpoint-00000024/weights.safetensors")).unwrap();
    assert!(weights(&clean) == weights(&failed), "{} rows", lines.len());
}

#[test]
fn a_run_folder_that_disappears_is_noticed_and_the_last_step_is_saved_elsewhere() {
    let folder = TempFolder::new();
    let run = folder.path("run");
    let line = format!("train --mode cpu {SMALL} --max-steps 400 --checkpoint-every 200");
    let command = TandemCommand::new(&line).without_gpu().arg("--train-data").arg(demo());
    let mut command = command.arg("--checkpoint-dir").arg(&run).into_std();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    // Printed after some steps.
    assert!(lines.any(|line| line.contains("Estimated time")));
    fs::rename(&run, folder.path("elsewhere")).unwrap();
    let rest: Vec<String> = lines.collect();
    let error = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{rest:?} {error}");
    contains(&error, &["the run folder was removed or renamed", "--resume "]);
    let rescued = error.split("--resume ").nth(1).unwrap().trim().to_owned();
    let resumed = TandemCommand::new(&line.replace("--checkpoint-every 200", "--resume")).without_gpu().arg(&rescued);
    let resumed = resumed.arg("--train-data").arg(demo()).arg("--checkpoint-dir").arg(folder.path("next")).run();
    assert_eq!(resumed.code, 0, "{resumed:?}");
    contains(&resumed.out, &["Resuming from step ", "✅ Training finished: 400 steps"]);
}

#[test]
fn an_output_that_closes_before_training_is_a_failure_and_a_finished_run_says_so() {
    let folder = TempFolder::new();
    let line = format!("train --mode cpu {SMALL} --max-steps 2");
    let command = |run: &str| {
        let command = TandemCommand::new(&line).without_gpu().arg("--train-data").arg(demo());
        command.arg("--checkpoint-dir").arg(folder.path(run))
    };
    let mut closed = command("closed").into_std();
    let mut child = closed.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let error = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{error}");
    contains(&error, &["standard output was closed before training started"]);
    assert_eq!(command("run").run().code, 0);
    let again = command("run").run();
    assert_eq!(again.code, 0, "{again:?}");
    contains(&again.out, &["Nothing to train: the run ends at step 2"]);
}

#[test]
fn a_recording_replaced_before_a_resume_is_named() {
    let (corpus, lines) = copy_of_demo();
    let run = corpus.path("run");
    // An epoch and more, so that every recording has been read.
    let first = train(&corpus.path(""), &run, "--max-steps 14 --cache none");
    assert_eq!(first.code, 0, "{first:?}");
    assert!(!first.err.contains("has changed"), "{first:?}");
    // The same length, so that neither the lengths nor the plan change; the old date.
    let ids = lines.iter().map(|line| line.split('|').next().unwrap());
    let wav = |id: &str| corpus.path(&format!("wavs/{id}.wav"));
    // The shortest is within every limit.
    let id = ids.min_by_key(|id| fs::metadata(wav(id)).unwrap().len()).unwrap();
    let path = wav(id);
    let (modified, mut bytes) = (fs::metadata(&path).unwrap().modified().unwrap(), fs::read(&path).unwrap());
    let middle = bytes.len() / 2;
    bytes[middle..].reverse();
    fs::write(&path, &bytes).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
    let resumed = train(&corpus.path(""), &run, "--max-steps 28 --cache none");
    assert_eq!(resumed.code, 0, "{resumed:?}");
    let warning = format!("the recording has changed since the run read it last: {id}: ");
    contains(&resumed.err, &[&warning, path.to_str().unwrap()]);
    assert_eq!(resumed.err.matches("has changed since").count(), 1, "{resumed:?}");
    // From now on, that is the recording.
    let again = train(&corpus.path(""), &run, "--max-steps 42 --cache none");
    assert!(again.code == 0 && !again.err.contains("has changed"), "{again:?}");
}

#[test]
fn an_array_that_does_not_fit_on_the_disk_leaves_no_file() {
    let folder = TempFolder::new();
    let [recording, array] = [folder.file("a.wav", wav_of(&tone(22_050, 2.0))), folder.path("mel.npy")];
    let features = || TandemCommand::new("corpus features").arg(&recording).arg("-o").arg(&array);
    // Files of at most 4 KiB; the signal for a larger one is ignored, so that it is an error.
    let ran = features().run_behind("trap '' XFSZ; ulimit -f 8; exec");
    assert_eq!(ran.code, 1, "{ran:?}");
    contains(&ran.err, &["cannot write", array.to_str().unwrap()]);
    let left: Vec<_> = fs::read_dir(folder.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["a.wav"]);
    assert_eq!(features().run().code, 0);
    assert!(array.is_file());
}

#[test]
fn a_recording_that_claims_an_absurd_rate_is_replaced_and_not_stretched() {
    let (corpus, lines) = copy_of_demo();
    // Every tenth says 1 Hz: a second of sound would become hours. Some of them are validation utterances.
    for id in lines.iter().step_by(10).map(|line| line.split('|').next().unwrap()) {
        let path = corpus.path(&format!("wavs/{id}.wav"));
        let mut bytes = fs::read(&path).unwrap();
        bytes[24..28].copy_from_slice(&1_u32.to_le_bytes());
        fs::write(&path, bytes).unwrap();
    }
    let command = TandemCommand::new(&format!("train --mode cpu {SMALL} --max-steps 2 --max-bad-fraction 1"));
    let command = command.without_gpu().arg("--train-data").arg(corpus.path(""));
    let ran = command.arg("--checkpoint-dir").arg(corpus.path("run")).run_behind("ulimit -v 4000000; exec");
    assert_eq!(ran.code, 0, "{ran:?}");
}
