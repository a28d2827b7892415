//! What is in the files, by a decoder of a dozen lines. `tests/tensorboard.rs` asks TensorBoard itself.

use std::time::Duration;

use tandem_events::{Role, VERSION};

use super::frame::tests::unframe;
use super::*;
use crate::spool::tests::LimitedDisk;

/// A field of a message: a number, or bytes.
#[derive(Clone, Debug, PartialEq)]
enum Field {
    Number(u64),
    Bytes(Vec<u8>),
}

fn fields(mut message: &[u8]) -> BTreeMap<u64, Vec<Field>> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let end = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap();
        let (number, rest) = bytes.split_at(end + 1);
        *bytes = rest;
        number.iter().rev().fold(0, |sum, byte| sum << 7 | u64::from(byte & 0x7F))
    }
    let mut found: BTreeMap<u64, Vec<Field>> = BTreeMap::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let length = match key & 7 {
            0 => 0,
            1 => 8,
            2 => varint(&mut message) as usize,
            5 => 4,
            other => panic!("no such wire type: {other}"),
        };
        let field =
            if key & 7 == 0 { Field::Number(varint(&mut message)) } else { Field::Bytes(message[..length].into()) };
        message = &message[length..];
        found.entry(key >> 3).or_default().push(field);
    }
    found
}

fn bytes(field: &Field) -> &[u8] {
    match field {
        Field::Bytes(bytes) => bytes,
        Field::Number(number) => panic!("{number}"),
    }
}

/// An event in words: `step tag=value`, `start at step`, `version`.
fn words(message: &[u8]) -> Vec<String> {
    let event = fields(message);
    if let Some(version) = event.get(&3) {
        return vec![String::from_utf8_lossy(bytes(&version[0])).into()];
    }
    let Field::Number(step) = event[&2][0] else { panic!("{event:?}") };
    if event.contains_key(&7) {
        return vec![format!("start at {step}")];
    }
    let summary = fields(bytes(&event[&5][0]));
    let value = |value: &Field| {
        let value = fields(bytes(value));
        let number = f32::from_le_bytes(bytes(&value[&2][0]).try_into().unwrap());
        format!("{step} {}={number}", String::from_utf8_lossy(bytes(&value[&1][0])))
    };
    summary[&1].iter().map(value).collect()
}

fn board<W: Write>(out: W) -> TensorBoard<W> {
    TensorBoard::new(out, PathBuf::new(), UNIX_EPOCH + Duration::from_secs(100))
}

fn write<W: Write + Send>(board: &mut TensorBoard<W>, events: impl IntoIterator<Item = RunEvent>) -> io::Result<()> {
    events
        .into_iter()
        .try_for_each(|event| board.take(&Record { v: VERSION, seq: 0, t_ns: 1_500_000_000, dropped: 0, event }))
}

fn check(events: impl IntoIterator<Item = RunEvent>, expected: &[&str]) {
    let mut board = board(Vec::new());
    write(&mut board, events).unwrap();
    board.finish().unwrap();
    let (messages, left_bytes) = unframe(board.spool.file());
    let found: Vec<String> = messages.iter().flat_map(|message| words(message)).collect();
    assert_eq!((found.iter().map(String::as_str).collect::<Vec<_>>().as_slice(), left_bytes), (expected, 0));
}

fn step(step: u64, wall_ms: u64, wait_ms: u64) -> RunEvent {
    RunEvent::Step { step, wall_ns: wall_ms * 1_000_000, wait_ns: wait_ms * 1_000_000 }
}

fn memory(used_bytes: u64) -> RunEvent {
    RunEvent::Memory { role: Role::Data, card: 0, used_bytes, limit_bytes: 8 << 20, peak_bytes: 3 << 20 }
}

#[test]
fn a_file_begins_with_its_version() {
    check([], &["brain.Event:2"]);
}

#[test]
fn what_comes_before_the_first_step_is_put_at_it() {
    let process = RunEvent::ProcessMemory { card: 1, bytes: 7 << 19, limit_bytes: 9 };
    check(
        [memory(1 << 20), memory(2 << 20), process, step(41, 500, 0)],
        &[
            "brain.Event:2",
            "start at 41",
            "41 memory/data_limit_mb=8",
            "41 memory/data_mb=2",
            "41 memory/data_peak_mb=3",
            "41 memory/process_card1_mb=3.5",
        ],
    );
}

#[test]
fn the_step_rate_is_written_about_once_a_second_and_at_the_end() {
    let steps = [step(1, 400, 0), step(2, 400, 0), step(3, 450, 125), step(4, 2_000, 1_000), step(5, 250, 0)];
    let end = RunEvent::RunEnded { exit_code: 0, reason: String::new() };
    check(
        steps.into_iter().chain([end]),
        &[
            "brain.Event:2",
            "start at 1",
            "3 steps_per_s=2.4",
            "3 stall=0.1",
            "4 steps_per_s=0.5",
            "4 stall=0.5",
            "5 steps_per_s=4",
            "5 stall=0",
        ],
    );
}

#[test]
fn the_wait_of_each_rank_is_a_mean_over_the_time_of_the_step_rate() {
    let waits =
        |step, wait_ms: [u64; 2]| RunEvent::RankWaits { step, waited_ns: wait_ms.map(|ms| ms * 1_000_000).into() };
    check(
        [
            step(1, 400, 0),
            waits(1, [30, 0]),
            step(2, 400, 0),
            waits(2, [10, 1]),
            step(3, 200, 0),
            waits(3, [7, 3]),
            step(4, 2_000, 0),
            step(5, 1_000, 0),
        ],
        &[
            "brain.Event:2",
            "start at 1",
            "3 steps_per_s=3",
            "3 stall=0",
            "3 ranks/wait_ms/0=20",
            "3 ranks/wait_ms/1=0.5",
            "4 steps_per_s=0.5",
            "4 stall=0",
            "4 ranks/wait_ms/0=7",
            "4 ranks/wait_ms/1=3",
            "5 steps_per_s=1",
            "5 stall=0",
        ],
    );
}

#[test]
fn what_is_no_number_is_shown_as_none() {
    let losses = [("loss".to_owned(), Some(0.5)), ("mel".to_owned(), None)].into();
    let learned = RunEvent::StepMetrics { step: 7, epoch: 0, losses, gradient_norm: None, lr: 0.25, skipped: true };
    let expected =
        ["brain.Event:2", "start at 7", "7 loss/loss=0.5", "7 loss/mel=NaN", "7 gradient_norm=NaN", "7 lr=0.25"];
    check([learned], &expected);
}

#[test]
fn events_have_the_date_of_their_record() {
    let mut board = board(Vec::new());
    write(&mut board, [step(1, 2_000, 0)]).unwrap();
    board.finish().unwrap();
    let (messages, _) = unframe(board.spool.file());
    let date = |message: &Vec<u8>| f64::from_le_bytes(bytes(&fields(message)[&1][0]).try_into().unwrap());
    assert_eq!(messages.iter().map(date).collect::<Vec<_>>(), [100.0, 101.5, 101.5]);
}

#[test]
fn a_disk_that_was_full_for_a_while_breaks_no_frame() {
    let mut board = board(LimitedDisk { room: 100, ..LimitedDisk::default() });
    let learned = |step| RunEvent::StepMetrics {
        step,
        epoch: 0,
        losses: [].into(),
        gradient_norm: None,
        lr: 0.5,
        skipped: false,
    };
    assert!(write(&mut board, (1..=2000).map(learned)).is_err(), "more than waits for a disk");
    assert!(board.flush().is_err());
    board.spool.file().room = usize::MAX;
    write(&mut board, [learned(3000)]).unwrap();
    board.finish().unwrap();
    let (messages, left_bytes) = unframe(&board.spool.file().held);
    assert_eq!(left_bytes, 0);
    assert_eq!(words(&messages[messages.len() - 1])[1], "3000 lr=0.5");
}

#[test]
fn samples_that_are_gone_are_left_out_and_broken_ones_are_a_problem() {
    let folder = tempfile::tempdir().unwrap();
    let mut board = TensorBoard::new(Vec::new(), folder.path().into(), UNIX_EPOCH);
    let sample = || RunEvent::SampleWritten { step: 5, path: "step-00000005-a.wav".into(), seconds: 1.0, ns: 1 };
    write(&mut board, [sample()]).unwrap();
    board.finish().unwrap();
    assert_eq!(unframe(board.spool.file()).0.len(), 1);
    fs::write(folder.path().join("step-00000005-a.wav"), "no sound").unwrap();
    assert!(write(&mut board, [sample()]).unwrap_err().to_string().contains("no WAV file"));
}

#[test]
fn every_start_has_a_file_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/tensorboard");
    for _ in 0..3 {
        TensorBoard::create(&path, "", UNIX_EPOCH).unwrap();
    }
    let names: Vec<_> = fs::read_dir(&path).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3);
    assert!(
        names.iter().all(|name| name.to_string_lossy().starts_with("events.out.tfevents.0000000000.")),
        "{names:?}"
    );
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().join("tensorboard");
    let Err(error) = TensorBoard::create(&path, "", UNIX_EPOCH) else { panic!("a folder in a file") };
    assert!(error.to_string().starts_with("a TensorBoard file could not be created"), "{error}");
    assert!(error.to_string().ends_with("tensorboard"), "{error}");
}
