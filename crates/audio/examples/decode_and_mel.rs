//! How much faster than it sounds: decoding and log-mel, on one thread, over a folder of recordings.
//!
//!     cargo run --release -p tandem-audio --example decode_and_mel -- FOLDER [ROUNDS]
//!
//! Prints the best of some rounds: the others measure what else the machine was doing.
//! `tools/reference/audio/throughput.py` measures librosa on the same folder.
#![expect(clippy::print_stdout, reason = "an example prints what it found")]

use std::error::Error;
use std::io::Cursor;
use std::path::Path;
use std::time::{Duration, Instant};

use tandem_audio::{Clip, FeatureSettings, LogMel, MelFrames, PitchSettings, PitchTracker, Resampler, decode};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().ok_or("which folder?")?;
    let rounds = args.next().map_or(Ok(5), |rounds| rounds.parse())?;
    let files = read_all(Path::new(&folder))?;
    let settings = FeatureSettings::default();
    let clips = decode_all(&files)?;
    let seconds: f64 = clips.iter().map(Clip::seconds).sum();
    println!("{} files, {:.1} minutes", files.len(), seconds / 60.0);

    let report = |name: &str, best: Duration| println!("{name:<24} {:>7.0} x real time", seconds / best.as_secs_f64());
    let mut clip = Clip::default();
    report("decode", best_of(rounds, || files.iter().try_for_each(|file| decode(Cursor::new(file), &mut clip)))?);

    let mut resampler = Resampler::new(settings.rate_hz);
    let mut at_rate = clips.clone();
    if clips.iter().any(|clip| clip.rate_hz != settings.rate_hz) {
        report(
            "resample",
            best_of(rounds, || {
                clips.iter().zip(&mut at_rate).try_for_each(|(clip, out)| resampler.clip_into(clip, out))
            })?,
        );
    }

    let (mut log_mel, mut mel, mut energy) = (LogMel::new(&settings)?, MelFrames::default(), Vec::new());
    report("log-mel", best_of(rounds, || at_rate.iter().try_for_each(|clip| log_mel.mel_into(clip, &mut mel)))?);
    report(
        "log-mel and energy",
        best_of(rounds, || at_rate.iter().try_for_each(|clip| log_mel.mel_energy_into(clip, &mut mel, &mut energy)))?,
    );
    let (mut tracker, mut pitch) = (PitchTracker::new(&settings, &PitchSettings::default())?, Vec::new());
    report("pitch", best_of(rounds, || at_rate.iter().try_for_each(|clip| tracker.pitch_into(clip, &mut pitch)))?);
    Ok(())
}

fn read_all(folder: &Path) -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
    let mut paths: Vec<_> =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_, std::io::Error>>()?;
    paths.retain(|path| path.is_file());
    paths.sort();
    Ok(paths.iter().map(std::fs::read).collect::<Result<_, _>>()?)
}

fn decode_all(files: &[Vec<u8>]) -> Result<Vec<Clip>, Box<dyn Error>> {
    let one = |file: &Vec<u8>| {
        let mut clip = Clip::default();
        decode(Cursor::new(file), &mut clip).map(|()| clip)
    };
    Ok(files.iter().map(one).collect::<Result<_, _>>()?)
}

fn best_of<E>(rounds: usize, mut work: impl FnMut() -> Result<(), E>) -> Result<Duration, E> {
    let mut best = Duration::MAX;
    for _ in 0..rounds {
        let start = Instant::now();
        work()?;
        best = best.min(start.elapsed());
    }
    Ok(best)
}
