//! Measures how fast sentences become phonemes: `phoneme_rate LANGUAGE FILE`, a sentence on each line of the file.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::time::Instant;

use tandem_espeak::Espeak;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(tag), Some(file)) = (args.next(), args.next()) else { return Err("expected LANGUAGE FILE".into()) };
    let text = std::fs::read_to_string(file)?;
    let sentences: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let started = Instant::now();
    let espeak = Espeak::load()?;
    println!("espeak-ng {} loaded in {:.1} ms", espeak.version(), started.elapsed().as_secs_f64() * 1e3);
    for _ in 0..3 {
        let started = Instant::now();
        let mut bytes = 0;
        for sentence in &sentences {
            bytes += espeak.phonemes(&tag, sentence)?.len();
        }
        let seconds = started.elapsed().as_secs_f64();
        let (count, rate) = (sentences.len(), sentences.len() as f64 / seconds);
        println!("{count} sentences to {bytes} bytes of phonemes in {seconds:.3} s: {rate:.0} sentences/s");
    }
    Ok(())
}
