//! Python's `tensorboard` reads what we write. A check of the format by the program it is written for.
//!
//! `TANDEM_PYTHON` names the interpreter, else `python3`. If it has no `tensorboard`, the tests are
//! skipped, unless `TANDEM_REQUIRE_TENSORBOARD=1`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tandem_events::{Role, RunEvent};
use tandem_runlog::{Exporters, RunLog, TensorBoard, export_log};
use tandem_test_support::skip;

/// Prints all that TensorBoard finds in a folder: values by tag, and the tags each of its tabs would show.
const SCRIPT: &str = "
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator as Tabs
all = EventAccumulator(sys.argv[1], size_guidance={'scalars': 0, 'images': 0, 'audio': 0})
all.Reload()
tabs = Tabs(sys.argv[1])
tabs.Reload()
tab_of = {tag: about.plugin_data.plugin_name for tag, about in tabs.AllSummaryMetadata().items()}
number = lambda value: None if value != value else value
print(json.dumps({
    'scalars': {tag: [[e.step, number(e.value), e.wall_time] for e in all.Scalars(tag)]
                for tag in all.Tags()['scalars']},
    'images': {tag: [[e.step, e.width, e.height, e.encoded_image_string.hex()] for e in all.Images(tag)]
               for tag in all.Tags()['images']},
    'audio': {tag: [[e.step, e.sample_rate, e.length_frames, e.content_type, e.encoded_audio_string.hex()]
                    for e in all.Audio(tag)] for tag in all.Tags()['audio']},
    'tabs': {tab: sorted(tag for tag in tab_of if tab_of[tag] == tab) for tab in ['scalars', 'images', 'audio']},
}))
";

/// An interpreter that has what the script needs.
fn python() -> Option<String> {
    let python = std::env::var("TANDEM_PYTHON").unwrap_or_else(|_| "python3".into());
    let asked = Command::new(&python).args(["-c", "import tensorboard"]).output();
    let why = match asked {
        Ok(output) if output.status.success() => return Some(python),
        Ok(output) => String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or("no reason given").to_owned(),
        Err(error) => error.to_string(),
    };
    skip("TANDEM_REQUIRE_TENSORBOARD", "reading event files with TensorBoard", &format!("{python}: {why}"));
    None
}

fn read_by_tensorboard(python: &str, folder: &Path) -> Value {
    let output = Command::new(python).args(["-c", SCRIPT]).arg(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn picture(width: u32, height: u32) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    let pixels: Vec<u8> = (0..width * height * 3).map(|i| i as u8).collect();
    encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
    file
}

/// A second of sound, at a rate that is nobody's default.
fn sound() -> Vec<u8> {
    let samples: Vec<u8> = (0..16_000_u32).flat_map(|i| ((i * 7) as i16).to_le_bytes()).collect();
    let format = [&[1, 0, 1, 0][..], &16_000_u32.to_le_bytes(), &32_000_u32.to_le_bytes(), &[2, 0, 16, 0]].concat();
    let length = |bytes: usize| (bytes as u32).to_le_bytes();
    let parts = [&b"RIFF"[..], &length(36 + samples.len()), b"WAVEfmt ", &length(16), &format, b"data"];
    [&parts.concat()[..], &length(samples.len()), &samples].concat()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn losses(step: u64) -> BTreeMap<String, Option<f64>> {
    let mel = (step != 2).then_some(0.1 * step as f64);
    [("loss".to_owned(), Some(1.0 / (step + 2) as f64)), ("mel".to_owned(), mel)].into()
}

/// A start that does `steps`, with everything TensorBoard is shown.
fn start(run: &Path, board: &Path, began: SystemTime, steps: impl IntoIterator<Item = u64>) {
    let exporter = TensorBoard::create(board, run, began).unwrap();
    let exporters = Exporters::start(vec![Box::new(exporter)], |problem| panic!("{problem}")).unwrap();
    let (log, emitter) = RunLog::create_with_listener(run.join("run.jsonl"), exporters.listener(), |_| ()).unwrap();
    let memory =
        |role, used_bytes| RunEvent::Memory { role, card: 0, used_bytes, limit_bytes: 8 << 30, peak_bytes: 1 << 30 };
    emitter.emit(memory(Role::Data, 3 << 19));
    for step in steps {
        emitter.emit(RunEvent::Step { step, wall_ns: 2_000_000_000, wait_ns: 500_000_000 });
        let (losses, gradient_norm, lr) = (losses(step), Some(step as f64), 1e-3 / step as f64);
        emitter.emit(RunEvent::StepMetrics { step, epoch: 0, losses, gradient_norm, lr, skipped: false });
    }
    emitter.emit(RunEvent::ProcessMemory { card: 1, bytes: 5 << 20, limit_bytes: 6 << 20 });
    emitter.emit(RunEvent::Validation { step: 4, utterances: 1, metrics: [("mel".to_owned(), Some(0.25))].into() });
    let path = "samples/step-00000004-a0001.wav".into();
    emitter.emit(RunEvent::SampleWritten { step: 4, path, seconds: 1.0, ns: 1 });
    log.finish_with(RunEvent::RunEnded { exit_code: 0, reason: "done".into() });
    let summary = exporters.finish();
    assert_eq!((summary.dropped, summary.problems), (0, vec![]));
}

/// Steps and values of a tag, without their dates.
fn scalars(read: &Value, tag: &str) -> Vec<(u64, Option<f32>)> {
    let points = read["scalars"][tag].as_array().unwrap_or_else(|| panic!("no {tag} in {}", read["scalars"]));
    points.iter().map(|point| (point[0].as_u64().unwrap(), point[1].as_f64().map(|value| value as f32))).collect()
}

#[test]
fn tensorboard_reads_scalars_pictures_and_sound_back() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (run, board) = (folder.path(), folder.path().join("tensorboard"));
    fs::create_dir(run.join("samples")).unwrap();
    let (spectrum, alignment, sound) = (picture(7, 5), picture(3, 11), sound());
    fs::write(run.join("samples/step-00000004-a0001.png"), &spectrum).unwrap();
    fs::write(run.join("samples/step-00000004-a0001-alignment.png"), &alignment).unwrap();
    fs::write(run.join("samples/step-00000004-a0001.wav"), &sound).unwrap();
    let began = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    start(run, &board, began, 1..=4);

    let read = read_by_tensorboard(&python, &board);
    let check = |tag: &str, value: &dyn Fn(u64) -> Option<f64>| {
        let expected: Vec<_> = (1..=4).map(|step| (step, value(step).map(|value| value as f32))).collect();
        assert_eq!(scalars(&read, tag), expected, "{tag}");
    };
    check("loss/loss", &|step| losses(step)["loss"]);
    check("loss/mel", &|step| losses(step)["mel"]);
    check("gradient_norm", &|step| Some(step as f64));
    check("lr", &|step| Some(1e-3 / step as f64));
    check("steps_per_s", &|_| Some(0.5));
    check("stall", &|_| Some(0.25));
    assert_eq!(scalars(&read, "validation/mel"), [(4, Some(0.25))]);
    assert_eq!(scalars(&read, "memory/data_mb"), [(1, Some(1.5))]);
    assert_eq!(scalars(&read, "memory/data_limit_mb"), [(1, Some(8192.0))]);
    assert_eq!(scalars(&read, "memory/process_card1_mb"), [(4, Some(5.0))]);
    let date = read["scalars"]["lr"][0][2].as_f64().unwrap();
    assert!((1_700_000_000.0..1_700_003_600.0).contains(&date), "{date}");

    assert_eq!(read["images"]["sample/a0001/spectrum"], json!([[4, 7, 5, hex(&spectrum)]]));
    assert_eq!(read["images"]["sample/a0001/alignment"], json!([[4, 3, 11, hex(&alignment)]]));
    assert_eq!(read["audio"]["sample/a0001/sound"], json!([[4, 16_000.0, 16_000, "audio/wav", hex(&sound)]]));
    assert_eq!(read["tabs"]["images"], json!(["sample/a0001/alignment", "sample/a0001/spectrum"]));
    assert_eq!(read["tabs"]["audio"], json!(["sample/a0001/sound"]));
    assert_eq!(read["tabs"]["scalars"].as_array().unwrap().len(), read["scalars"].as_object().unwrap().len());

    // The same from the finished log.
    let later = folder.path().join("later");
    let exporter = TensorBoard::create(&later, run, began).unwrap();
    assert_eq!(export_log(run.join("run.jsonl"), vec![Box::new(exporter)]).unwrap().problems, []);
    assert_eq!(read_by_tensorboard(&python, &later), read);
}

#[test]
fn steps_that_are_done_again_replace_those_that_were_lost() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (run, board) = (folder.path(), folder.path().join("tensorboard"));
    let began = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    start(run, &board, began, 1..=5);
    // Killed after step 5, resumed from the checkpoint of step 3.
    start(run, &board, began + Duration::from_secs(60), 4..=6);
    let read = read_by_tensorboard(&python, &board);
    let steps: Vec<u64> = scalars(&read, "lr").into_iter().map(|(step, _)| step).collect();
    assert_eq!(steps, [1, 2, 3, 4, 5, 6]);
    // Figures that arrived before the first step of a start are placed at that step, not at 0.
    let steps: Vec<u64> = scalars(&read, "memory/data_mb").into_iter().map(|(step, _)| step).collect();
    assert_eq!(steps, [1, 4]);
}
