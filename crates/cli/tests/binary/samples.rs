//! Samples: the validation sentences that `tandem train` synthesises, and the last line it prints.

use std::fs;
use std::io::{BufRead, BufReader, Cursor};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tandem_audio::{Clip, decode};

use crate::command::{Ran, TandemCommand, contains, in_order};
use crate::machine::TempFolder;
use crate::speech::demo;

const SHORT: &str = "--model-size nano --batch-size 4 --mode cpu --buffer-size 6 --num-workers 2";

fn command(line: &str, folder: &Path) -> TandemCommand {
    TandemCommand::new(&format!("train {SHORT} {line}"))
        .arg("--train-data")
        .arg(demo())
        .arg("--checkpoint-dir")
        .arg(folder)
}

#[track_caller]
fn trained(line: &str, folder: &Path) -> Ran {
    let ran = command(line, folder).run();
    assert_eq!(ran.code, 0, "{line}: {ran:?}");
    ran
}

/// The events of one kind in the last log of a run.
fn events(folder: &Path, kind: &str) -> Vec<Value> {
    let log = fs::read_to_string(folder.join("run.jsonl")).unwrap();
    log.lines().map(|line| serde_json::from_str(line).unwrap()).filter(|event: &Value| event["event"] == kind).collect()
}

/// The sample files of a checkpoint.
fn samples(folder: &Path, step: u64) -> Vec<PathBuf> {
    let prefix = format!("step-{step:08}-");
    let entries = fs::read_dir(folder.join("samples")).unwrap().map(|entry| entry.unwrap());
    let of_step = entries.filter(|entry| entry.file_name().to_str().unwrap().starts_with(&prefix));
    let mut paths: Vec<PathBuf> = of_step.map(|entry| entry.path()).collect();
    paths.sort_unstable();
    paths
}

fn clip(path: &Path) -> Clip {
    let mut clip = Clip::default();
    decode(Cursor::new(fs::read(path).unwrap()), &mut clip).unwrap();
    clip
}

/// Size and pixels of an image.
fn image(path: &Path) -> ((u32, u32), Vec<u8>) {
    let mut reader = png::Decoder::new(BufReader::new(fs::File::open(path).unwrap())).read_info().unwrap();
    let mut levels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut levels).unwrap();
    ((info.width, info.height), levels)
}

#[test]
fn samples_of_the_last_checkpoint_are_the_same_bytes_in_two_runs() {
    let folder = TempFolder::new();
    let runs = ["one", "two"].map(|name| folder.path(name));
    for run in &runs {
        let ran = trained("--max-steps 4 --checkpoint-every 2", run);
        let lines = [
            "Wrote checkpoint-00000004",
            "Synthesising validation sentences",
            "Training finished: 4 steps",
            "synthesize",
        ];
        in_order(&ran.out, &lines);
        assert_eq!(ran.err, "");
    }
    let files = samples(&runs[0], 4);
    let endings: Vec<_> = files.iter().map(|path| path.extension().unwrap().to_str().unwrap()).collect();
    assert_eq!(endings, ["png", "png", "wav", "png", "png", "wav"], "two images and a wav for each sentence");
    let aligned = files.iter().filter(|path| path.to_str().unwrap().ends_with("-alignment.png"));
    for path in aligned {
        let id =
            path.file_stem().unwrap().to_str().unwrap().trim_end_matches("-alignment").replace("step-00000004-", "");
        let recorded = clip(&demo().join(format!("wavs/{id}.wav"))).samples.len() as u64;
        let ((width, _), levels) = image(path);
        assert!((u64::from(width / 2) * 256).abs_diff(recorded) <= 1024, "{width} for {recorded}");
        // Every frame has a symbol, and the alignment is monotonic.
        let column = |x: usize| {
            let lower = levels.iter().skip(x).step_by(width as usize).skip(3 * 80 + 9);
            lower.enumerate().filter(|(_, level)| **level > 0).map(|(row, _)| row).next()
        };
        let tops: Vec<usize> = (0..width as usize).map(|x| column(x).unwrap()).collect();
        assert!(tops.windows(2).all(|pair| pair[1] <= pair[0]), "{tops:?}");
    }
    for path in files.iter().filter(|path| path.extension().unwrap() == "wav") {
        let clip = clip(path);
        assert!(clip.rate_hz == 22_050 && clip.seconds() > 0.1 && clip.samples.iter().any(|x| *x != 0));
        let ((width, height), levels) = image(&path.with_extension("png"));
        // Two pixels per frame of 256 samples, three per band of 80, and the symbols below.
        let frames = u64::from(width / 2);
        let num_samples = clip.samples.len() as u64;
        assert!(
            (frames * 256).abs_diff(num_samples) <= 1024 && height >= 3 * 80 + 96,
            "{width}x{height} for {num_samples}"
        );
        let spectrogram = &levels[..(3 * 80 * width) as usize];
        let symbols = &levels[levels.len() - (96 * width) as usize..];
        assert!(
            spectrogram.iter().min() != spectrogram.iter().max() && symbols.iter().any(|level| *level > 0),
            "not blank"
        );
    }
    for path in files {
        let other = runs[1].join("samples").join(path.file_name().unwrap());
        assert!(fs::read(&path).unwrap() == fs::read(&other).unwrap(), "{}", path.display());
    }
    let written = events(&runs[0], "sample_written");
    let of_last: Vec<_> = written.iter().filter(|event| event["step"] == 4).collect();
    assert_eq!(of_last.len(), 2);
    for event in of_last {
        let spoken = clip(&runs[0].join(event["path"].as_str().unwrap()));
        assert!((event["seconds"].as_f64().unwrap() - spoken.seconds()).abs() < 1e-9, "{event}");
    }
}

#[test]
fn the_last_line_is_a_command_that_works() {
    let folder = TempFolder::new();
    let ran = trained("--max-steps 2", &folder.path("a run"));
    let line = ran.out.lines().last().unwrap().trim();
    let typed = line.strip_prefix("tandem synthesize --checkpoint ").unwrap_or_else(|| panic!("{line}"));
    contains(typed, &["a run' --text '", " -o out.wav"]);
    let program = env!("CARGO_BIN_EXE_tandem");
    let script = format!("{program} synthesize --checkpoint {typed}");
    let spoken = Command::new("bash").args(["-c", &script]).current_dir(folder.path("")).output().unwrap();
    assert!(spoken.status.success(), "{script}: {spoken:?}");
    assert!(clip(&folder.path("out.wav")).seconds() > 0.1);
}

#[test]
fn samples_that_cannot_be_written_are_a_warning() {
    let folder = TempFolder::new();
    let dir = folder.path("run");
    trained("--max-steps 2", &dir);
    let first = samples(&dir, 2);

    // A file where the folder should be.
    let moved = dir.join("elsewhere");
    fs::rename(dir.join("samples"), &moved).unwrap();
    fs::write(dir.join("samples"), "in the way").unwrap();
    let ran = trained("--max-steps 3", &dir);
    contains(&ran.err, &["⚠️ cannot synthesise a sample: could not write", "run/samples"]);
    contains(&ran.out, &["Training finished: 3 steps"]);
    assert_eq!(fs::read(dir.join("samples")).unwrap(), b"in the way");
    assert!(events(&dir, "sample_written").is_empty());

    // A folder where a file should be: the other sentence is still synthesised.
    fs::remove_file(dir.join("samples")).unwrap();
    fs::rename(moved, dir.join("samples")).unwrap();
    let sound = first.iter().find(|path| path.extension().unwrap() == "wav").unwrap();
    let name = sound.file_name().unwrap().to_str().unwrap().replace("step-00000002", "step-00000004");
    fs::create_dir_all(dir.join("samples").join(&name).join("in the way")).unwrap();
    let ran = trained("--max-steps 4", &dir);
    contains(&ran.err, &["⚠️ cannot synthesise a sample: could not write", &name]);
    assert_eq!(events(&dir, "sample_written").len(), 1);
    let hidden = fs::read_dir(dir.join("samples")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!hidden.into_iter().any(|name| name.to_str().unwrap().starts_with('.')), "no partial file is left");
}

#[test]
fn a_stopped_run_does_not_wait_for_samples() {
    let folder = TempFolder::new();
    let dir = folder.path("run");
    let mut child =
        command("--max-steps 2000 --checkpoint-every 1000", &dir).into_std().stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("Model training starting now")));
    let asked = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(asked.success());
    let rest: Vec<String> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
    let rest = rest.join("\n");
    in_order(&rest, &["Stopped after step ", "tandem synthesize --checkpoint "]);
    assert!(!rest.contains("Synthesising") && !dir.join("samples").exists(), "{rest}");
}

#[test]
fn a_corpus_without_validation_sentences_trains_without_samples() {
    let folder = TempFolder::new();
    let line = fs::read_to_string(demo().join("metadata.csv")).unwrap().lines().next().unwrap().to_owned();
    let id = line.split('|').next().unwrap();
    folder.file(&format!("corpus/wavs/{id}.wav"), fs::read(demo().join(format!("wavs/{id}.wav"))).unwrap());
    folder.file("corpus/metadata.csv", &line);
    let ran = TandemCommand::new("train --model-size nano --mode cpu --buffer-size 2 --max-steps 1 --train-data")
        .arg(folder.path("corpus"))
        .arg("--checkpoint-dir")
        .arg(folder.path("run"))
        .run();
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &["validating on 0", "tandem synthesize --checkpoint "]);
    assert!(!ran.out.contains("Synthesising") && !folder.path("run/samples").exists() && ran.err.is_empty(), "{ran:?}");
}
