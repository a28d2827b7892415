//! Seconds of audio that are decoded and turned into features per second.
//!
//! `cargo run --release -p tandem-feed --example throughput -- FOLDER [THREADS]`
#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tandem_audio::{Clip, FeatureSettings};
use tandem_corpus::{Dataset, OpenOptions, SampleIndex};
use tandem_feed::{Features, Featurizer, load_into};
use tandem_pipeline::Worker;

/// Seconds of audio that a thread processed, and its time for each step.
#[derive(Default)]
struct Spent {
    audio_s: f64,
    decode_s: f64,
    mel_s: f64,
    pitch_s: f64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().ok_or("which corpus?")?;
    let num_threads: usize = args.next().map_or(Ok(1), |text| text.parse())?;
    let dataset = Arc::new(Dataset::open(folder, &OpenOptions::default())?);
    let next = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let mut workers = Vec::new();
    for number in 0..num_threads {
        let (dataset, next) = (Arc::clone(&dataset), Arc::clone(&next));
        workers.push(Worker::spawn(format!("measure-{number}"), move |_| process(&dataset, &next))?);
    }
    let mut sum = Spent::default();
    for worker in workers {
        let spent = worker.join()?.map_err(|error| error.to_string())?;
        sum.audio_s += spent.audio_s;
        sum.decode_s += spent.decode_s;
        sum.mel_s += spent.mel_s;
        sum.pitch_s += spent.pitch_s;
    }
    let wall_s = start.elapsed().as_secs_f64();
    println!("{} recordings, {:.0} s of audio, {num_threads} threads", dataset.samples().len(), sum.audio_s);
    for (name, spent_s) in
        [("decode", sum.decode_s), ("resample and log-mel", sum.mel_s), ("both and pitch", sum.pitch_s)]
    {
        println!("{name:22} {:7.0} x real time per thread", sum.audio_s / spent_s);
    }
    println!("{:22} {:7.0} x real time, all threads together", "everything above", sum.audio_s / wall_s);
    Ok(())
}

fn process(dataset: &Dataset, next: &AtomicUsize) -> Result<Spent, Box<dyn Error + Send + Sync>> {
    let mut featurizer = Featurizer::new(&FeatureSettings::default())?;
    let (mut clip, mut features, mut spent) = (Clip::default(), Features::default(), Spent::default());
    while let Some(sample) = dataset.get(SampleIndex(next.fetch_add(1, Ordering::Relaxed) as u32)) {
        let start = Instant::now();
        load_into(&sample.audio, &mut clip)?;
        let decoded = Instant::now();
        featurizer.clip_into(&clip, false, &mut features)?;
        let mel = Instant::now();
        featurizer.clip_into(&clip, true, &mut features)?;
        spent.audio_s += clip.seconds();
        spent.decode_s += (decoded - start).as_secs_f64();
        spent.mel_s += (mel - decoded).as_secs_f64();
        spent.pitch_s += mel.elapsed().as_secs_f64();
    }
    Ok(spent)
}
