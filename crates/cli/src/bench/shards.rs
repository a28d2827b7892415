//! `tandem bench shards`.

use std::fs::File;

use anyhow::Context as _;
use rustix::fs::{Advice, fadvise, fstatfs};
use serde_json::{Value, json};
use tandem_bench::benchmarks::shards::{
    self, ClipFields, ClipRate, IndexSpeed, ReadyTimes, ResumeTimes, ShardContents,
};
use tandem_checkpoint::free_bytes;
use tandem_feed::RATE_HZ;
use tandem_plan::setting::Id;

use super::peers::Peer;
use super::setup::BenchSetup;
use super::table::{TextTable, percent, sign};
use super::{BenchArgs, BenchOutput, failed};
use crate::corpus::shown_names;
use crate::exit::Exit;
use crate::scratch::Scratch;
use crate::screen::Screen;

/// Utterances of the large corpus. There are a tenth as many with durations, and a fiftieth as long as sentences.
const ROWS: usize = 1_000_000;
const LISTED_SHARE: usize = 10;
const CLIPS_SHARE: usize = 50;
/// Shards of the large corpus and of the clips: more than any machine has threads to scan them or workers to read them.
const NUM_SHARDS: usize = 64;
/// The fewest clips, in batches.
const MIN_BATCHES: usize = 4;
/// So low that a recording of a second and a half is 3 kB, and a million of them 5 GB.
const SHORT_RATE_HZ: u32 = 1050;
const SHORT_S: [f64; 2] = [1.3, 1.9];
const CLIP_S: [f64; 2] = [1.5, 4.5];

/// The goals: speed of indexing ÷ speed of reading; seconds and bytes of an opened corpus; seconds to the batch to resume at;
/// clips per second ÷ those of a peer.
const GOAL_OF_SEQUENTIAL: f64 = 0.8;
const GOAL_READY_S: f64 = 2.0;
const GOAL_BYTES: f64 = 64.0;
const GOAL_RESUME_S: f64 = 1.0;
const GOAL_OVER_PEER: f64 = 3.0;

/// The type of a file system in memory, as `statfs` gives it.
const TMPFS: i64 = 0x0102_1994;

pub(super) fn measure(args: &BenchArgs, setup: &BenchSetup, screen: &Screen) -> Result<BenchOutput, Exit> {
    let rows = args.rows.unwrap_or(ROWS);
    let batch = u32::try_from(setup.resolved.plan.batch_size).unwrap_or(u32::MAX);
    let [short, listed, clips] = contents(rows, batch);
    let (folder, clips_folder) = (scratch(args, &[short, listed, clips])?, scratch(args, &[])?);
    screen.progress(&format!("Writing {rows} utterances to tar shards..."))?;
    let written = |folder: &Scratch, contents| shards::write(folder.path(), contents).map_err(failed);
    let sets = [written(&folder, short)?, written(&folder, listed)?, written(&clips_folder, clips)?];
    let indexes = [short, listed, clips].map(|contents| folder.path().join(format!("{}-index", contents.name)));
    let (mut output, has_goal) = (BenchOutput::default(), rows >= ROWS);
    screen.progress("Indexing them...")?;
    let speeds = sets.iter().zip(&indexes).map(|(shards, index)| shards::index(shards, index, &drop_pages));
    let speeds = speeds.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    show_indexing(&speeds, has_goal, &mut output);
    screen.progress("Opening them by their index...")?;
    let (ready, dataset) = shards::open_indexed(&sets[0], &indexes[0], &drop_pages).map_err(failed)?;
    show_ready(&ready, has_goal, &mut output);
    screen.progress("Resuming in the middle of epoch 3...")?;
    let resumed = shards::resume(&setup.context, dataset, batch).map_err(failed)?;
    show_resume(&resumed, ready.rows, has_goal, &mut output);
    screen.progress("Counting clips...")?;
    let (training_set, names) = match setup.training_set() {
        Some(training_set) => (training_set.clone(), args.plan.settings.typed(Id::TrainData)),
        None => {
            let training_set = shards::training_set(&sets[2], &indexes[2]).map_err(failed)?;
            (training_set, shown_names(std::slice::from_ref(&sets[2].pattern)))
        }
    };
    for fields in [ClipFields::Samples, ClipFields::LogMel] {
        output.clips.push(shards::clip_rate(&setup.context, &training_set, batch, fields).map_err(failed)?);
    }
    show_clips(&mut output);
    output.peer_words = vec![("{shards}", names), ("{batch}", batch.to_string())];
    output.kept = Some(clips_folder);
    Ok(output)
}

/// The large corpus, the one with durations, and the one with clips as long as sentences.
fn contents(rows: usize, batch: u32) -> [ShardContents; 3] {
    let short = ShardContents {
        name: "short",
        rows,
        num_shards: NUM_SHARDS,
        rate_hz: SHORT_RATE_HZ,
        seconds: SHORT_S,
        has_durations: false,
    };
    // In as many fewer shards: small files would be read more slowly.
    let (rows_with, shards_with) = (rows.div_ceil(LISTED_SHARE), NUM_SHARDS.div_ceil(LISTED_SHARE));
    let listed =
        ShardContents { name: "listed", rows: rows_with, num_shards: shards_with, has_durations: true, ..short };
    let num_clips = rows.div_ceil(CLIPS_SHARE).max(MIN_BATCHES * batch as usize);
    let clips = ShardContents { name: "clips", rows: num_clips, rate_hz: RATE_HZ, seconds: CLIP_S, ..short };
    [short, listed, clips]
}

/// A temporary folder with room for `sets`: in `--bench-dir`, whose disk is then measured, or where temporary files go.
fn scratch(args: &BenchArgs, sets: &[ShardContents]) -> Result<Scratch, Exit> {
    let parent = args.folder.clone().unwrap_or_else(std::env::temp_dir);
    let needed_bytes: u64 = sets.iter().map(ShardContents::max_bytes).sum();
    if let Some(free_bytes) = free_bytes(&parent).filter(|free_bytes| *free_bytes < needed_bytes) {
        let [needed, free] = [needed_bytes, free_bytes].map(|bytes| bytes as f64 / 1e9);
        return Err(Exit::Usage(format!(
            "❌ the shards need {needed:.1} GB, and {free:.1} GB are free in {}\n   \
             Another disk: --bench-dir DIR. Fewer utterances: --rows {}",
            parent.display(),
            ROWS / 10
        )));
    }
    Ok(Scratch::new_in(&parent).context("cannot create a temporary folder")?)
}

/// Drops the pages of a file from the page cache. False where the file itself is in memory, and where the system refuses.
fn drop_pages(file: &File) -> bool {
    let is_in_memory = fstatfs(file).is_ok_and(|system| system.f_type == TMPFS);
    !is_in_memory && fadvise(file, 0, None, Advice::DontNeed).is_ok()
}

fn show_indexing(speeds: &[IndexSpeed], has_goal: bool, output: &mut BenchOutput) {
    let columns = ["durations from", "utterances", "GB", "read GB/s", "index s", "index GB/s", "÷ read", "goal"];
    let mut table = TextTable::new("Indexing tar shards without an index", &columns);
    for speed in speeds {
        let (of_sequential, gb) = (speed.of_sequential(), speed.num_bytes as f64 / 1e9);
        let met = has_goal.then_some(of_sequential >= GOAL_OF_SEQUENTIAL);
        let source = if speed.num_measured > 0 { "headers" } else { "JSON" };
        table.row(vec![
            source.to_owned(),
            speed.rows.to_string(),
            format!("{gb:.2}"),
            format!("{:.2}", gb / speed.sequential_s),
            format!("{:.2}", speed.index_s),
            format!("{:.2}", gb / speed.index_s),
            percent(of_sequential),
            sign(met),
        ]);
        output.rows.push(json!({
            "table": "index",
            "durations": source,
            "rows": speed.rows,
            "bytes": speed.num_bytes,
            "sequential_seconds": speed.sequential_s,
            "index_seconds": speed.index_s,
            "of_sequential": of_sequential,
            "is_cold": speed.is_cold,
            "goal_met": met,
        }));
    }
    let is_cold = speeds.iter().all(|speed| speed.is_cold);
    table.note(match is_cold {
        true => "the page cache of the files is dropped before each measurement; medians of three",
        false => "⚠️ the files stay in the page cache: this is the speed of memory, not of a disk; medians of three",
    });
    table.note(format!("goal: ÷ read ≥ {}, for 1000000 utterances", percent(GOAL_OF_SEQUENTIAL)));
    output.text += &table.show();
}

fn show_ready(ready: &ReadyTimes, has_goal: bool, output: &mut BenchOutput) {
    let mut table = TextTable::new(format!("{} utterances with an index", ready.rows), &["", "", "goal"]);
    let is_ready = has_goal.then_some(ready.seconds <= GOAL_READY_S);
    table.row(vec!["from names to a dataset".to_owned(), format!("{:.3} s", ready.seconds), sign(is_ready)]);
    let bytes = ready.bytes_beside_strings();
    let is_small = bytes.filter(|_| has_goal).map(|bytes| bytes.round() <= GOAL_BYTES);
    let shown = bytes.map_or("not measured".to_owned(), |bytes| format!("{bytes:.1} bytes"));
    table.row(vec!["memory of an utterance, without its strings".to_owned(), shown, sign(is_small)]);
    let strings = format!("{:.1} bytes", ready.string_bytes_per_row);
    table.row(vec!["its strings: text and name of the member".to_owned(), strings, String::new()]);
    table.row(vec![
        "the index on the disk".to_owned(),
        format!("{:.1} MB", ready.index_bytes as f64 / 1e6),
        String::new(),
    ]);
    table.note(format!("goals for 1000000 utterances: ≤ {GOAL_READY_S} s, ≤ {GOAL_BYTES} bytes"));
    output.text += &table.show();
    output.rows.push(json!({
        "table": "ready",
        "rows": ready.rows,
        "seconds": ready.seconds,
        "bytes_per_row": ready.bytes_per_row,
        "string_bytes_per_row": ready.string_bytes_per_row,
        "index_bytes": ready.index_bytes,
        "goal_met": is_ready.zip(is_small).map(|(is_ready, is_small)| is_ready && is_small),
    }));
}

fn show_resume(resumed: &ResumeTimes, rows: usize, has_goal: bool, output: &mut BenchOutput) {
    let (epoch, k) = (resumed.cursor.epoch, resumed.cursor.k);
    let title = format!("Resuming {rows} utterances at batch {k} of {} in epoch {epoch}", resumed.num_batches);
    let mut table = TextTable::new(title, &["", "s", "goal"]);
    for (part, seconds) in &resumed.parts {
        table.row(vec![(*part).to_owned(), format!("{seconds:.3}"), String::new()]);
    }
    let (total_s, met) = (resumed.total_s(), has_goal.then_some(resumed.total_s() <= GOAL_RESUME_S));
    table.row(vec!["from the dataset to the first batch".to_owned(), format!("{total_s:.3}"), sign(met)]);
    table.note(format!("goal: ≤ {GOAL_RESUME_S} s for 1000000 utterances"));
    output.text += &table.show();
    let parts = resumed.parts.iter().map(|(part, seconds)| json!({ "part": part, "seconds": seconds }));
    output.rows.push(json!({
        "table": "resume",
        "rows": rows,
        "epoch": epoch,
        "batch": k,
        "parts": parts.collect::<Vec<_>>(),
        "total_seconds": total_s,
        "goal_met": met,
    }));
}

fn show_clips(output: &mut BenchOutput) {
    let mut table = TextTable::new("Clips from shards to batches", &["to", "batch", "threads", "clip s", "clips/s"]);
    for rate in &output.clips {
        table.row(vec![
            rate.fields.slug().to_owned(),
            rate.batch.to_string(),
            rate.threads.to_string(),
            format!("{:.2}", rate.clip_s),
            format!("{:.0}", rate.clips_per_s()),
        ]);
        output.rows.push(json!({
            "table": "clips",
            "fields": rate.fields.slug(),
            "batch": rate.batch,
            "threads": rate.threads,
            "clip_seconds": rate.clip_s,
            "clips": rate.num_clips,
            "clips_per_s": rate.clips_per_s(),
            "goal_met": null,
        }));
    }
    table.note("samples: in pinned memory and copied to the data device; log-mel: features of them too");
    output.text += &table.show();
}

/// A table of peers that printed `NAME: … 123 clips/s`, where NAME has the label of one of our rows, and its JSON rows. None
/// where there is nothing to compare.
pub(super) fn compare(ours: &[ClipRate], peers: &[Peer]) -> Option<(String, Vec<Value>)> {
    let mut table = TextTable::new("Compared with peers", &["", "clips/s", "ours clips/s", "ours ÷ peer", "goal"]);
    let mut rows = Vec::new();
    for (name, clips_per_s) in peers.iter().flat_map(|peer| peer.lines()).filter_map(|line| parse(line)) {
        let Some(rate) = ours.iter().find(|rate| name.contains(rate.fields.slug())) else { continue };
        let (ours, ratio) = (rate.clips_per_s(), rate.clips_per_s() / clips_per_s);
        let met = ratio >= GOAL_OVER_PEER;
        let shown = [format!("{clips_per_s:.0}"), format!("{ours:.0}"), format!("{ratio:.2}"), sign(Some(met))];
        table.row([vec![name.to_owned()], shown.to_vec()].concat());
        rows.push(json!({
            "table": "peer",
            "name": name,
            "clips_per_s": clips_per_s,
            "ours_clips_per_s": ours,
            "ours_over_peer": ratio,
            "goal_met": met,
        }));
    }
    table.note(format!("goal: {GOAL_OVER_PEER} times as many clips as every peer"));
    (!rows.is_empty()).then(|| (table.show(), rows))
}

fn parse(line: &str) -> Option<(&str, f64)> {
    let (name, rest) = line.split_once(": ")?;
    let before = rest.split_once(" clips/s")?.0;
    let number = before.rsplit(' ').next()?.parse::<f64>().ok()?;
    (number.is_finite() && number > 0.0).then_some((name, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_clips_per_second_are_parsed() {
        let check = |line: &str, expected| assert_eq!(parse(line), expected, "{line}");
        let name = "webdataset 1.0.2 + DataLoader, samples";
        check(&format!("{name}: 2 workers, batch 16, 1234.5 clips/s"), Some((name, 1234.5)));
        check("x: 7 clips/s", Some(("x", 7.0)));
        for line in ["", "x: clips/s", "x: many clips/s", "x: -1 clips/s", "x: 0 clips/s", "7 clips/s"] {
            check(line, None);
        }
    }

    #[test]
    fn a_peer_is_compared_with_the_row_it_names_and_others_are_left_out() {
        let rate = |fields, num_clips| ClipRate { fields, batch: 4, threads: 2, num_clips, seconds: 2.0, clip_s: 3.0 };
        let ours = [rate(ClipFields::Samples, 6000), rate(ClipFields::LogMel, 600)];
        let peer = Peer::run("echo 'a, log-mel: 150 clips/s'; echo 'b, samples: 500 clips/s'; echo 'c: 9 clips/s'");
        let (text, rows) = compare(&ours, &[peer]).unwrap();
        let found: Vec<(&Value, &Value)> = rows.iter().map(|row| (&row["ours_over_peer"], &row["goal_met"])).collect();
        assert_eq!(found, [(&2.0.into(), &false.into()), (&6.0.into(), &true.into())], "{text}");
        assert!(compare(&ours, &[Peer::run("echo none")]).is_none());
    }

    #[test]
    fn a_file_in_memory_keeps_its_pages() {
        let memory = std::path::Path::new("/dev/shm");
        if memory.is_dir() {
            assert!(!drop_pages(&tempfile::tempfile_in(memory).unwrap()));
        }
    }
}
