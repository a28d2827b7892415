//! Writes a manifest of a million rows (or as many as the first argument says) to a temporary folder, opens it, and
//! says how long that took, up to the first batch: by the clock, and in processor time, which other programs on the
//! machine do not lengthen. A benchmark to read, not a test.
#![allow(clippy::print_stdout, reason = "an example talks to whoever runs it")]

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tandem_corpus::{Dataset, Distribution, Extent, OpenOptions, Order, Parts};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let num_rows: u32 = std::env::args().nth(1).map_or(Ok(1_000_000), |rows| rows.parse())?;
    let path = std::env::temp_dir().join(format!("tandem-manifest-{}.jsonl", std::process::id()));
    write_manifest(&path, num_rows)?;
    let result = report(&path);
    std::fs::remove_file(&path)?;
    result
}

fn report(path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let started = Started { clock: Instant::now(), cpu_s: cpu_s() };
    let dataset = Dataset::open(path, &OpenOptions::default())?;
    let opened = started.elapsed();
    let split = dataset.split(1234);
    let durations = Distribution::new(dataset.samples().iter().filter_map(|(_, sample)| sample.duration_s));
    let divided = started.elapsed();
    // 86.13 frames to a second: 22 050 Hz in hops of 256.
    let frames = split.train.iter().filter_map(|index| {
        let duration_s = dataset.get(*index)?.duration_s?;
        Some((*index, Extent { frames: (duration_s * 22_050.0 / 256.0) as u32, tokens: 1 }))
    });
    let order = Parts::cut(frames, 2, 16).map(|parts| Order::training(1234, Arc::new(parts)));
    let first = order.and_then(|order| order.batch(0, 0));
    let ready = started.elapsed();

    let bytes = std::fs::metadata(path)?.len();
    println!("{} rows, {:.0} MB, {} problems", dataset.samples().len(), bytes as f64 / 1e6, dataset.problems().len());
    println!("{:.1} hours, {} speakers", durations.hours(), dataset.samples().speakers().len());
    println!("opened                {opened}");
    println!("+ split, statistics   {divided}");
    println!("+ first batch of {}   {ready}", first.map_or(0, |batch| batch.samples().count()));
    Ok(())
}

struct Started {
    clock: Instant,
    cpu_s: f64,
}

impl Started {
    fn elapsed(&self) -> String {
        format!("{:.3} s, processor {:.3} s", self.clock.elapsed().as_secs_f64(), cpu_s() - self.cpu_s)
    }
}

/// Time this thread has had a processor; not a number where the system does not say.
fn cpu_s() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).map_or(f64::NAN, |ns| ns / 1e9)
}

fn write_manifest(path: &Path, num_rows: u32) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    for i in 0..num_rows {
        let text = &TEXT[..40 + (i as usize * 7919) % (TEXT.len() - 40)];
        let (speaker, duration_s) = (i % 2311, 1.0 + f64::from(i % 12_000) / 1000.0);
        writeln!(
            file,
            "{{\"audio_filepath\": \"audio/speaker{speaker:04}/chapter{:03}/utterance_{i:07}.flac\", \
             \"text\": \"{text}\", \"duration\": {duration_s:.3}, \"speaker\": \"s{speaker}\", \"lang\": \"en\"}}",
            i % 113
        )?;
    }
    file.flush()
}

const TEXT: &str = "the boats came back before the evening wind, and all along the harbour people stood and waved \
                    until the last of the lamps had been lit and carried inside";
